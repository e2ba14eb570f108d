"""Environment `code`: runs programs of the task `code`, and grades one by its hidden cases."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, cast

from pydantic import Field, JsonValue

from plait.core.errors import ToolError
from plait.core.programs import MAIN, Cell, harness, has_returned, normalise_output, read_outputs
from plait.core.task import Environment
from plait.core.tools.tool import Tool

from ..sandbox import Program, Sandbox, shared

__all__ = ["CodeEnvironment"]


class CodeEnvironment(Environment):
    """`run_python` for the planner; a program is right if it returns what every hidden case wants.

    What is wanted is `[{"args": […], "want": …}, …]`, for a program `[{"stdin": text, "stdout": text}, …]`, or
    `{"check": "def check(candidate): …"}`: then the function has to pass that, as benchmarks of programs have it. All
    is run in a sandbox, after the run.
    """

    sandbox: str = Field(
        default="auto",
        description="Backend: `bubblewrap`, `container`, or `process` (limits only, no security boundary).",
    )

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return the tools of the sandbox."""
        return self._sandbox.tools()

    @property
    def _sandbox(self) -> Sandbox:
        return shared(self.sandbox)

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Run a program on the hidden cases. Raises `ToolError` where the sandbox does not work."""
        entry = str(json.loads(self.text).get("entry", MAIN))
        match wanted:
            case {"check": str(check), **rest} if not rest and entry != MAIN:
                return isinstance(answer, str) and await self._checked(answer, entry, check)
            case list() if all(isinstance(case, dict) and ("args" in case or "stdout" in case) for case in wanted):
                pass
            case _:
                raise ToolError('the cases of a program must be a list like [{"args": [1, 2], "want": 3}, …]')
        if not isinstance(answer, str):
            return False
        cases = [_case(cast("dict[str, Any]", case)) for case in wanted]
        cells = await self._cells(answer, entry, [args for args, _ in cases])
        return all(has_returned(cell, want) for cell, (_, want) in zip(cells, cases, strict=True))

    async def _checked(self, program: str, entry: str, check: str) -> bool:
        """Return whether a program's function passes a check: its own code, put behind the program."""
        behind = f"\n\n{check}\n\ndef _plait_checked():\n    check({entry})\n    return True\n"
        (cell,) = await self._cells(program + behind, "_plait_checked", [[]])
        return has_returned(cell, True)

    async def _cells(self, program: str, entry: str, inputs: list[list[Any]]) -> list[Cell]:
        key = secrets.token_hex(8)
        code = harness(program, entry, inputs, key)
        outcome = await self._sandbox.run(Program(code=code, limits=self._sandbox.limits))
        if outcome.status == "broken":
            raise ToolError(f"the sandbox does not work: {outcome.stderr}")
        return read_outputs({"stdout": outcome.stdout}, len(inputs), key)


def _case(case: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the arguments and the wanted value of a case."""
    if "stdout" in case:
        return [str(case.get("stdin", ""))], normalise_output(str(case["stdout"]))
    return list(case["args"]), case.get("want")
