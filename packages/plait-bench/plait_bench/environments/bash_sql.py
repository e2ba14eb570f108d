"""Environment `bash-sql`: a folder and a SQLite database that commands change, graded by their final state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from pydantic import Field, JsonValue, PrivateAttr

from plait.core.declarations import Fidelity
from plait.core.errors import ToolError
from plait.core.task import Environment
from plait.core.tools.tool import Tool, tool
from plait.workers.tools.sandbox import Program, Sandbox, SandboxLimits, shared

from ._intercode import of_rows, of_shell
from .data_sets import alike

__all__ = ["BashSqlEnvironment"]

_MOST = 8_000
"""Most characters of a command's output in the report."""
_ROWS = 200
"""Most rows of a statement in the report."""
_RUNNER = """
import base64, csv, io, json, os, re, shutil, sqlite3, stat, subprocess, sys, tarfile

job = json.load(sys.stdin)
os.mkdir("work")
os.chdir("work")
for name, text in job["files"].items():
    if os.path.dirname(name):
        os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "w", newline="") as file:
        file.write(text)
for name in job["tables"]:
    with open(name, newline="") as file:
        head, *rows = csv.reader(file)
    database = sqlite3.connect("data.db")
    quoted = ['"%s"' % column.replace('"', '""') for column in head]
    table = '"%s"' % os.path.splitext(os.path.basename(name))[0].replace('"', '""')
    database.execute("create table %s (%s)" % (table, ", ".join(column + " numeric" for column in quoted)))
    marks = ", ".join("?" for _ in head)
    cells = ([cell or None for cell in row] for row in rows if len(row) == len(head))
    database.executemany("insert into %s values (%s)" % (table, marks), cells)
    database.commit()
    database.close()
if job["tar"]:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(job["tar"]))) as tar:
        tar.extraction_filter = staticmethod(lambda info, path: info)
        tar.extractall(".")
code, told, rows, at = 0, "", None, job["at"]
here = os.getcwd()
roots = "|".join(re.escape(name) for name in job["at_root"])
def outside(data):
    for name in job["at_root"]:
        data = data.replace((here + "/" + name).encode(), ("/" + name).encode())
    return data
if job["kind"] == "shell":
    command = job["command"]
    if roots:
        command = re.sub("(?<![\\w./])/(%s)(?!\\w)" % roots, lambda found: here + found[0], command)
    command = "trap 'pwd -P > \\"%s/../at\\"' EXIT; %s" % (here, command)  # where `cd` has led
    done = subprocess.run([shutil.which("bash") or "sh", "-c", command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=at if os.path.isdir(at) else ".")
    code, told = done.returncode, outside(done.stdout).decode(errors="replace")
    if os.path.isfile("../at"):
        with open("../at") as file:
            at = os.path.relpath(file.read().rstrip("\\n"), os.path.realpath(here))
        at = "." if at.startswith("..") else at
else:
    database = sqlite3.connect("data.db", isolation_level=None)
    lines, statement, more = [], "", 0
    try:
        for piece in job["command"].split(";"):
            statement += piece + ";"
            if sqlite3.complete_statement(statement):
                if statement.strip("; \\n"):
                    found = database.execute(statement)
                    if found.description is not None:
                        rows = [[str(cell) if isinstance(cell, bytes) else cell for cell in row]
                                for row in found.fetchmany(100000)]
                        lines += [[str(cell) for cell in row] for row in rows[:job["rows"]]]
                        more += max(0, len(rows) - job["rows"])
                statement = ""
        told = "\\n".join("|".join(row) for row in lines)
        if more:
            told += "\\n(%d rows more are not shown)" % more
    except sqlite3.Error as error:
        code, told = 1, "%s: %s" % (type(error).__name__, error)
    database.close()
said = {"at": at, "code": code, "told": told[:job["most"]], "rows": rows, "output": told[:1000000]}
if len(told) > job["most"]:
    said["told"] += "\\n(%d characters more are not shown)" % (len(told) - job["most"])
if job["keep"]:
    state = {"files": {}, "folders": [], "links": {}, "modes": {}, "tables": {}}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        def pack(path):
            info = tar.gettarinfo(path)
            if info is None:
                return
            name = os.path.relpath(path)
            if info.issym():
                state["links"][name] = info.linkname
            elif info.isdir() or info.isreg() or info.islnk():
                state["modes"][name] = "%o" % stat.S_IMODE(info.mode)
                os.chmod(path, info.mode | stat.S_IRWXU)  # to read what its owner may not
            if info.isdir():
                state["folders"].append(name)
            if info.isreg() or info.islnk():
                with open(path, "rb") as file:
                    data = outside(file.read()) if roots else file.read()
                state["files"][name] = "" if name == "data.db" else data.decode(errors="replace")
            if info.isreg():
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:
                tar.addfile(info)
            if info.isdir():
                for each in sorted(os.listdir(path)):
                    pack(os.path.join(path, each))
        for each in sorted(os.listdir(".")):
            pack(each)
    if os.path.isfile("data.db"):
        database = sqlite3.connect("data.db")
        try:
            tables = "select name from sqlite_master where type = 'table' and name not glob 'sqlite_*'"
            for (name,) in database.execute(tables).fetchall():
                rows = database.execute('select * from "%s"' % name.replace('"', '""')).fetchall()
                state["tables"][name] = sorted([str(cell) for cell in row] for row in rows)
        except sqlite3.Error:
            pass
    for each in ("files", "modes"):
        state[each].pop("data.db", None)
    said["state"], said["tar"] = state, base64.b64encode(packed.getvalue()).decode()
sys.stdout.write(json.dumps(said))
"""


class BashSqlEnvironment(Environment):
    """A shell (bash where it is there) and SQLite in the sandbox, after InterCode (arXiv 2306.14898). The tools `look`
    and `query` run on a copy, so a search may try them; `bash` and `sql` change the state. Each command has a process
    of its own, and begins in the folder in which the one before it ended; the state is kept here between commands
    (folders, links and modes included), so that looking needs no undoing. With `at_root` in the problem these names are
    reached from `/` too, as `/testbed`; with `tables` each CSV file is a table of the database as well.

    What is wanted is `{"bash": "command"}` or `{"sql": "query"}`, a right one, and is graded as InterCode does: what
    has changed, new files and the last output, or the last rows, have to be as after that (`reward` tells the share).
    Or it has any of these; what is named has to be so:

    - `answer`: the answer, case and spaces apart; a number by its value, with `"within": 0.01` as near as a hundredth;
      a list, or a table as a list of rows, as JSON, in no order (`"ordered": true`: in this one)
    - `rows`: `[["cell", …], …]`, what the last statement gave, in no order, or in this one with `"ordered": true`
    - `output`: what the last command of the shell said, spaces apart
    - `files` `{"name": "text"}`, `tables` `{"table": [["cell", …], …]}`, `links` `{"name": "target"}`: all that there
      are; a task that names none of the three wants them as they were
    - `folders` `["name"]`: all that there are; `modes` `{"name": "755"}`: of these
    """

    fidelity = Fidelity(
        "variant",
        "SQLite in the place of MySQL; their rewards are exact",
        oracles=("intercode-sql", "intercode-bash"),
        paper="2306.14898",
    )

    limits: ClassVar[Mapping[str, float]] = {}
    """Limits of the sandbox that differ from its own."""
    sandbox: str = Field(
        default="auto",
        description="Backend: `bubblewrap`, `container`, or `process` (limits only, no security boundary).",
    )

    _tar: str = PrivateAttr(default="")
    """The folder between two commands."""
    _state: dict[str, Any] = PrivateAttr(default_factory=dict[str, Any])
    _first: dict[str, Any] = PrivateAttr(default_factory=dict[str, Any])
    """What there was before the first command: the runner's reply."""
    _at: str = PrivateAttr(default=".")
    """The folder in which the last command has ended."""
    _rows: list[list[str]] | None = PrivateAttr(default=None)
    """The result of the last statement."""
    _output: str | None = PrivateAttr(default=None)
    """The output of the last shell command."""
    _begun: bool = PrivateAttr(default=False)
    _roots: list[str] = PrivateAttr(default_factory=list[str])
    """Names in the folder that are reached from `/` too."""
    _tables: bool = PrivateAttr(default=False)
    """CSV files are tables too."""
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
        """Return the files, folders, links, modes and tables as they are."""
        async with self._turn:
            await self._begin()
        return dict(self._state)

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Return whether the answer, the last output and the state are as expected. Raises `ToolError` for an
        expectation without any of these."""
        if isinstance(wanted, dict) and wanted.keys() & _GOLD:
            return await self.reward(wanted) >= 1
        if not isinstance(wanted, dict) or not wanted or not wanted.keys() <= _WANTED:
            raise ToolError(
                'a wanted state is {"answer": …, "files": {"name": "text"}, "tables": {"name": [["cell"]]}}, or a '
                'right command {"bash": "rm a.txt"}'
            )
        state, want = await self.state(), cast("dict[str, Any]", wanted)
        whole = {"files", "tables", "links"}
        first = self._first["state"]
        asked = {"files": {}, "tables": {}, "links": {}} if whole & want.keys() else {n: first[n] for n in whole}
        asked |= {name: want[name] for name in whole & want.keys()}
        asked["tables"] = {name: _cells(rows, False) for name, rows in asked["tables"].items()}
        ordered = want.get("ordered") is True
        return (
            all(state[name] == asked[name] for name in whole)
            and ("folders" not in want or state["folders"] == sorted(want["folders"]))
            and all(state["modes"].get(name) == mode for name, mode in want.get("modes", {}).items())
            and ("answer" not in want or alike(answer, want["answer"], want.get("within", 0), ordered))
            and ("output" not in want or (self._output or "").split() == str(want["output"]).split())
            and ("rows" not in want or self._rows is not None)
            and ("rows" not in want or _cells(self._rows or [], ordered) == _cells(want["rows"], ordered))
        )

    async def reward(self, wanted: JsonValue) -> float:
        """Return InterCode's reward, from 0 to 1, for `{"bash": "command"}` or `{"sql": "query"}`. Raises `ToolError`
        for other tasks, and for an invalid query."""
        async with self._turn:
            await self._begin()
            match wanted:
                case {"bash": str(command), **rest} if not rest:
                    gold = await self._ran("shell", command, tar=self._first["tar"])
                    return of_shell(
                        self._first["state"], self._state, gold["state"], self._output or "", gold["output"]
                    )
                case {"sql": str(query), **rest} if not rest:
                    gold = await self._ran("sql", query, tar=self._first["tar"])
                    if gold["code"]:
                        raise ToolError(f"the right query cannot be run: {gold['told']}")
                    return 0.0 if self._rows is None else of_rows(self._rows, gold["rows"] or [])
                case _:
                    raise ToolError('a right command is {"bash": "rm a.txt"}, a right query {"sql": "select 1"}')

    async def _begin(self) -> None:
        if self._begun:
            return
        given: Any = json.loads(self.text)
        self._roots, self._tables = list(given.get("at_root", [])), bool(given.get("tables"))
        await self._run("sql", given.get("sql", ""), keep=True, files=given.get("files", {}))
        if given.get("setup"):
            await self._run("shell", given["setup"], keep=True)
        self._first = {"state": self._state, "tar": self._tar}
        self._rows, self._output, self._at, self._begun = None, None, ".", True

    async def _do(self, kind: str, command: str, keep: bool) -> str:
        async with self._turn:
            await self._begin()
            if keep:
                self._made.append(command)
            return await self._run(kind, command, keep)

    async def _run(self, kind: str, command: str, keep: bool, files: dict[str, str] | None = None) -> str:
        """Run a command, keep what has become of the folder, and return what the command report."""
        report = await self._ran(kind, command, self._tar, keep, files, self._at)
        if keep:
            self._tar, self._state, self._at = report["tar"], report["state"], report["at"]
        if kind == "sql":
            self._rows = report["rows"]
        else:
            self._output = report["output"]
        told = report["told"]
        return told if not report["code"] else f"{told}\n(exit code {report['code']})".lstrip()

    async def _ran(
        self,
        kind: str,
        command: str,
        tar: str,
        keep: bool = True,
        files: dict[str, str] | None = None,
        at: str = ".",
    ) -> dict[str, Any]:
        """Run a command on a packed folder; return the runner's reply. Raises `ToolError`."""
        job = {"files": files or {}, "tar": tar, "kind": kind, "command": command, "keep": keep, "at": at}
        limits = self._sandbox.limits.model_copy(update={"output": 4 << 20, **self.limits})
        tables = [name for name in files or () if self._tables and name.casefold().endswith(".csv")]
        job |= {"most": _MOST, "rows": _ROWS, "at_root": self._roots, "tables": tables}
        program = Program(code=_RUNNER, stdin=json.dumps(job), limits=SandboxLimits.model_validate(limits))  # fmt: skip
        outcome = await self._sandbox.run(program)
        if outcome.status != "done" or outcome.cut:
            what = {"timeout": "it took too long", "output": "too much was written"}.get(outcome.status, outcome.stderr)
            raise ToolError(f"the command was ended, and changed nothing: {what[-500:]}")
        reply: dict[str, Any] = json.loads(outcome.stdout)
        return reply


_GOLD = frozenset(("bash", "sql"))
_WANTED = frozenset(("answer", "within", "rows", "ordered", "output", "files", "tables", "links", "folders", "modes"))


def _cells(rows: Sequence[Sequence[object]], ordered: bool) -> list[list[str]]:
    """Return rows of texts, sorted unless their order counts."""
    cells = [[str(cell) for cell in row] for row in rows]
    return cells if ordered else sorted(cells)
