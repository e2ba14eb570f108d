"""Environment `repository`: a repository at a commit, where a patch is graded by the exit codes of named tests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import secrets
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field, JsonValue

from plait.core.declarations import Fidelity, ServerFile
from plait.core.errors import ToolError
from plait.core.tools.tool import Tool, tool

from .bash_sql import BashSqlEnvironment

__all__ = ["RepositoryEnvironment"]

_APPLY = "git apply --whitespace=nowarn"
_STATUSES = ("FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL")
_PASSES = {"PASSED", "XFAIL"}
_WANTED = 'what is wanted is {"FAIL_TO_PASS": ["tests.test_a.A.test_b"], "PASS_TO_PASS": [], "test_patch": "diff …"}'


class RepositoryEnvironment(BashSqlEnvironment):
    """A repository (a bundle or folder of git) at the commit that a question names, after SWE-bench (arXiv 2310.06770).
    `look` runs a command in a copy, `try_patch` in a copy with a patch. Every call has its own copy, so the branches of
    a run do not see one another. The answer is a patch.

    The expectation has `FAIL_TO_PASS` and `PASS_TO_PASS`, names of tests; `test_patch`, which brings the tests (an
    answer's changes to its files are left out); and `command`, which runs a test (default `python3 -m unittest`). A
    test passes if the command ends with 0, and pytest's summary (`-rA`) does not name it otherwise. The first test that
    takes longer than `test_seconds` ends the tests.
    """

    fidelity = Fidelity("variant", "runs each named test by itself", ("swe-bench-status",), "2310.06770")
    limits: ClassVar[Mapping[str, float]] = {"disk": 256, "seconds": 900, "cpu": 900, "memory": 2048, "processes": 64}

    folder: Annotated[str, ServerFile()] = Field(default=".", description="Folder of the repositories or bundles.")
    test_seconds: float = Field(default=60, gt=0, description="Time limit of one test in seconds.")

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return `look`, which is the first of all, and `try_patch`."""

        @tool
        async def try_patch(patch: str, command: str) -> str:
            """Run a shell command in a copy of the repository with a patch, and return its output.

            Args:
                patch: a unified diff.
                command: the command line.
            """
            return await self._run_patched(f"{_APPLY} .answer || exit\n{command}", patch, "told")

        return [*super().tools()[:1], try_patch]

    async def _begin(self) -> None:
        if not self._begun:
            self._tar = await asyncio.to_thread(pack_commit, self.folder, *json.loads(self.text)["repository"])
            self._begun = True

    async def _run_patched(self, script: str, patch: str, field: str, tests: str = "") -> str:
        await self._begin()
        files = {name: text.removesuffix("\n") + "\n" for name, text in ((".answer", patch), (".tests", tests))}
        return str((await self._ran("shell", script, self._tar, keep=False, files=files))[field])

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Return whether a patch resolves the issue. Raises `ToolError` for another form of expectation."""
        return (await self.report(answer, wanted))["resolved"] == "RESOLVED_FULL"

    async def report(self, answer: JsonValue, wanted: JsonValue) -> dict[str, Any]:
        """Return whether a patch `applied`, the tests' `statuses`, SWE-bench's `resolved`, and the `log`'s end. Raises
        `ToolError`."""
        if not isinstance(wanted, dict) or not {"FAIL_TO_PASS", "PASS_TO_PASS"} <= wanted.keys():
            raise ToolError(_WANTED)
        fixed, kept = (cast("list[str]", wanted[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS"))
        tests, key = str(wanted.get("test_patch", "")), secrets.token_hex(8)
        held = [f"--exclude={shlex.quote(name)}" for name in re.findall(r"^diff --git a/(\S+)", tests, re.MULTILINE)]
        lines = [f"{_APPLY} {' '.join(held)} .answer && {f'{_APPLY} .tests' if tests else 'true'} || exit; echo {key}"]
        run = f"timeout -k 1 {self.test_seconds} {wanted.get('command', 'python3 -m unittest')}"
        for name in (*fixed, *kept):
            lines += [f"{run} {shlex.quote(name)} > .log 2>&1; code=$?; echo {key} $code; tail -c 2000 .log; echo"]
            lines += ["[ $code -lt 124 ] || exit"]  # ended at its time limit, or killed
        await self._begin()  # its errors are raised
        output = "the tests were ended at a limit"
        with contextlib.suppress(ToolError):
            output = await self._run_patched("\n".join(lines), str(answer or ""), "output", tests)
        statuses: dict[str, str] = {}
        for name, part in zip((*fixed, *kept), output.split(key)[2:], strict=False):
            code, _, log = part.partition("\n")
            statuses[name] = parse_log(log).get(name, "PASSED") if code.strip() == "0" else "FAILED"
        resolved = resolve(statuses, fixed, kept) if key in output else "RESOLVED_NO"
        log = output.replace(key, "exit code")[-2000:]
        return {"applied": key in output, "statuses": statuses, "resolved": resolved, "log": log}


def pack_commit(folder: str, name: str, commit: str) -> str:
    """Return the packed files of a commit of a repository in a folder. Raises `ToolError`."""
    root = Path(folder).expanduser().resolve()
    source = (root / name).resolve()
    if not source.is_relative_to(root) or not source.exists() or not re.fullmatch("[0-9a-f]{7,40}", commit):
        raise ToolError(f"{root} has no {name} at {commit}; give a bundle or folder of git in it, and a commit's hash")
    with tempfile.TemporaryDirectory() as clone:
        try:
            subprocess.run(["git", "clone", "--quiet", "--bare", "--", source, clone], capture_output=True, check=True)
            archive = ["git", "-C", clone, "archive", "--format=tar.gz", commit]
            return base64.b64encode(subprocess.run(archive, capture_output=True, check=True).stdout).decode()
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode(errors="replace")[-300:]
            raise ToolError(f"git cannot read {name} at {commit}: {reason}") from None


def parse_log(log: str) -> dict[str, str]:
    """Return the status of each test that pytest's summary (`-rA`) names, by SWE-bench's rule."""
    statuses: dict[str, str] = {}
    for line in log.split("\n"):
        words = (line.replace(" - ", " ") if line.startswith("FAILED") else line).split()
        if line.startswith(_STATUSES) and len(words) > 1 and not re.match(r"SKIPPED \[\d+\]$", " ".join(words[:2])):
            statuses[words[1]] = words[0]
    return statuses


def resolve(statuses: Mapping[str, str], fixed: Sequence[Any], kept: Sequence[Any]) -> str:
    """Return SWE-bench's resolution: `RESOLVED_FULL` if all tests pass, `_PARTIAL` if some of `fixed` and all of `kept`
    do, else `_NO`. A skipped test is not fixed, and not broken."""
    passed = sum(statuses.get(test) in _PASSES for test in fixed)
    level = "FULL" if passed == len(fixed) else "PARTIAL" if passed else "NO"
    return f"RESOLVED_{level if all(statuses.get(test) in {*_PASSES, 'SKIPPED'} for test in kept) else 'NO'}"
