"""Environment `programs`: compiles programs, and grades them by hidden cases or published tests."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.core.programs import MAIN, normalise_output
from plait.core.tools.tool import Tool
from plait.workers.tools.environments.code import CodeEnvironment
from plait.workers.tools.sandbox.compiled import run_compiled

__all__ = ["ProgramsEnvironment"]

_MAIN = re.compile(r"\bint\s+main\s*\([^)]*\)\s*\{")
_ANSWER = re.compile(r'^#include "generated-code\.hpp".*$', re.MULTILINE)


class ProgramsEnvironment(CodeEnvironment):
    """`run_program` for the planner; a program is right if it writes what every hidden case wants and no sanitizer of
    the problem finds anything.

    What is wanted is `[{"stdin": text, "stdout": text}, …]`, or `{"tests": text}` with a `main` of its own that must
    reach its end. With `"passed": "Validation: PASS"` that `main` must write this line. Tests stand behind the program,
    or around it where they include `generated-code.hpp`. A case without `stdout` wants what the `source` writes that
    is translated.
    """

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return the tools of the sandbox."""
        problem = json.loads(self.text)
        source = (problem.get("source") or {}).get("language", "python")
        return self._sandbox.tools(problem["language"], *({source} - {"python", problem["language"]}))

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Run a program on the hidden cases or tests. Raises `ToolError` where the sandbox or a compiler is missing."""
        source: dict[str, str] = json.loads(self.text).get("source") or {}
        known = {"stdout", "stdin"} if source else {"stdout"}
        if not isinstance(answer, str):
            return False
        match wanted:
            case {"tests": str(tests), **rest}:
                return await self._test(answer, tests, str(rest.get("passed", "")))
            case [*cases] if cases and all(isinstance(case, dict) and known & {*case} for case in cases):
                given: list[Any] = cases
            case _:
                raise ToolError('write what a program must do as [{"stdin": "2", "stdout": "4"}] or {"tests": "…"}')
        inputs = [str(case.get("stdin", "")) for case in given]
        written = await self._outputs(source["code"], inputs, language=source["language"]) if source else inputs
        if len(written) != len(inputs):
            raise ToolError("the program that is translated fails on the input of a hidden case")
        wants = [normalise_output(str(case.get("stdout", text))) for case, text in zip(given, written, strict=True)]
        for check in ("", *json.loads(self.text).get("checks", ())):
            if await self._outputs(answer, inputs, check) != wants:
                return False
        return True

    async def _test(self, program: str, tests: str, passed: str) -> bool:
        """Return whether a program passes tests: they then write a random text, which the program cannot know."""
        key = f"Passed{secrets.token_hex(8)}"
        label = passed.partition(":")[0]
        ended = f'\\g<0> struct {key} {{ ~{key}() {{ printf("{key}"); }} }} reached;'
        tests = tests.replace(label, key) if label else f"#include <cstdio>\n{_MAIN.sub(ended, tests)}"
        whole = _ANSWER.sub(lambda _: program, tests) if _ANSWER.search(tests) else f"{program}\n{tests}"
        return any(
            (passed.replace(label, key, 1) if label else key) in text for text in await self._outputs(whole, [""])
        )

    async def _outputs(self, program: str, inputs: list[str], check: str = "", language: str = "") -> list[str]:
        """Return the outputs of the runs that ended with exit code 0."""
        language, limits = language or json.loads(self.text)["language"], self._sandbox.limits
        if language == "python":
            cells = await self._cells(program, MAIN, [[text] for text in inputs])
            return [str(value) for kind, value in cells if kind == "value"]
        done = await run_compiled(self._sandbox.run, [program], language, inputs, limits, check=check)
        return [normalise_output(outcome["stdout"]) for outcome in done["outcomes"] if outcome["code"] == 0]
