"""Environment `bash-sql`: a folder and a SQLite database that commands change, graded by what they have become."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue, PrivateAttr

from plait.core.environment import Environment
from plait.core.errors import ToolError
from plait.core.tools.tool import Tool, tool

from ..sandbox import Program, Sandbox, SandboxLimits, shared

__all__ = ["BashSqlEnvironment"]

DATABASE = "data.db"
_MOST = 8_000
"""Characters of a command's output that are told."""
_RUNNER = """
import base64, json, os, sqlite3, subprocess, sys

job = json.load(sys.stdin)
os.mkdir("work")
os.chdir("work")
for name, data in job["files"].items():
    if os.path.dirname(name):
        os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "wb") as file:
        file.write(base64.b64decode(data))
code, told = 0, ""
if job["kind"] == "shell":
    done = subprocess.run(["sh", "-c", job["command"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    code, told = done.returncode, done.stdout.decode(errors="replace")
else:
    database = sqlite3.connect("data.db", isolation_level=None)
    rows, statement = [], ""
    try:
        for piece in job["command"].split(";"):
            statement += piece + ";"
            if sqlite3.complete_statement(statement):
                rows += database.execute(statement).fetchmany(200) if statement.strip("; \\n") else []
                statement = ""
        told = "\\n".join("|".join(map(str, row)) for row in rows)
    except sqlite3.Error as error:
        code, told = 1, "%s: %s" % (type(error).__name__, error)
    database.close()
files, tables = {}, {}
for folder, folders, names in os.walk("."):
    folders.sort()
    for name in sorted(names):
        path = os.path.relpath(os.path.join(folder, name))
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as file:
                files[path] = base64.b64encode(file.read()).decode()
if "data.db" in files:
    database = sqlite3.connect("data.db")
    try:
        for (name,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
            rows = database.execute('select * from "%s"' % name.replace('"', '""')).fetchall()
            tables[name] = sorted(([str(cell) for cell in row] for row in rows))
    except sqlite3.Error:
        pass
sys.stdout.write(json.dumps({"code": code, "told": told, "files": files, "tables": tables}))
"""


class BashSqlEnvironment(Environment):
    """A shell and SQLite in the sandbox, after InterCode (arXiv 2306.14898). The tools `look` and `query` run on a
    copy, so a search may try them; `bash` and `sql` change the state. Differs: each command has a process of its own
    (`cd` does not last), and the state is kept here between commands, so that looking needs no undoing.

    What is wanted is the state: `{"files": {"name": "text"}, "tables": {"table": [["cell", …], …]}}`; files that are
    not named must not be there, and rows have no order. The answer's text does not count.
    """

    sandbox: str = "auto"
    """Backend: `bubblewrap`, `container`, or `process` (limits only, no security boundary)."""

    _files: dict[str, str] = PrivateAttr(default_factory=dict[str, str])
    _tables: dict[str, list[list[str]]] = PrivateAttr(default_factory=dict[str, "list[list[str]]"])
    _begun: bool = PrivateAttr(default=False)
    _turn: asyncio.Lock = PrivateAttr(default_factory=asyncio.Lock)
    _made: list[str] = PrivateAttr(default_factory=list[str])

    @property
    def _sandbox(self) -> Sandbox:
        return shared(self.sandbox)

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return `look`, `query`, `bash` and `sql`."""

        @tool
        async def look(command: str) -> str:
            """Run a shell command on a copy of the folder and return its output. What it changes is thrown away.

            Args:
                command: the command line.
            """
            return await self._do("shell", command, keep=False)

        @tool
        async def query(statement: str) -> str:
            """Run SQL on a copy of the database and return the rows. What it changes is thrown away.

            Args:
                statement: SQLite statements.
            """
            return await self._do("sql", statement, keep=False)

        @tool(side_effects=True)
        async def bash(command: str) -> str:
            """Run a shell command in the folder, for good, and return its output.

            Args:
                command: the command line.
            """
            return await self._do("shell", command, keep=True)

        @tool(side_effects=True)
        async def sql(statement: str) -> str:
            """Run SQL on the database data.db, for good, and return the rows.

            Args:
                statement: SQLite statements.
            """
            return await self._do("sql", statement, keep=True)

        tools: list[Tool[..., Any]] = [look, query, bash, sql]
        return tools

    @property
    def made(self) -> Sequence[str]:
        """The commands that have changed the state, in order."""
        return tuple(self._made)

    async def state(self) -> dict[str, Any]:
        """Return the files and tables as they are."""
        async with self._turn:
            await self._begin()
        files = {
            name: base64.b64decode(data).decode(errors="replace")
            for name, data in self._files.items()
            if name != DATABASE
        }
        return {"files": files, "tables": self._tables}

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Return whether the state is the wanted one."""
        if not isinstance(wanted, dict):
            raise ToolError('a wanted state is {"files": {"name": "text"}, "tables": {"name": [["cell"]]}}')
        state = await self.state()
        rows: Any = wanted.get("tables", {})
        tables = {name: sorted([str(cell) for cell in row] for row in each) for name, each in rows.items()}
        return state == {"files": wanted.get("files", {}), "tables": tables}

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            given: Any = json.loads(self.text)
            files: dict[str, str] = given.get("files", {})
            self._files = {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}
            if given.get("sql"):
                await self._run("sql", given["sql"], keep=True)

    async def _do(self, kind: str, command: str, keep: bool) -> str:
        async with self._turn:
            await self._begin()
            if keep:
                self._made.append(command)
            return await self._run(kind, command, keep)

    async def _run(self, kind: str, command: str, keep: bool) -> str:
        job = json.dumps({"files": self._files, "kind": kind, "command": command})
        limits = self._sandbox.limits.model_copy(update={"output": 4 << 20})
        outcome = await self._sandbox.run(Program(code=_RUNNER, stdin=job, limits=SandboxLimits.model_validate(limits)))
        if outcome.status != "done" or outcome.cut:
            what = {"timeout": "it took too long", "output": "too much was written"}.get(outcome.status, outcome.stderr)
            raise ToolError(f"the command was ended, and changed nothing: {what[-500:]}")
        said: Any = json.loads(outcome.stdout)
        if keep:
            self._files, self._tables = said["files"], said["tables"]
        told = said["told"][:_MOST]
        return told if not said["code"] else f"{told}\n(exit code {said['code']})".lstrip()
