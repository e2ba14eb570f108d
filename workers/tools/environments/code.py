"""Environment `code`: runs programs of the task `code`, and grades one by its hidden cases."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from plait.core.environment import Environment
from plait.core.errors import ToolError
from plait.core.programs import harness, outputs, returned
from plait.core.tools.tool import Tool

from ..sandbox import Program, Sandbox, shared

__all__ = ["CodeEnvironment"]


class CodeEnvironment(Environment):
    """`run_python` for the planner; a program is right if it returns what every hidden case wants.

    What is wanted is `[{"args": […], "want": …}, …]`. The cases are run in a sandbox, after the run.
    """

    sandbox: str = "auto"
    """Backend: `bubblewrap`, `container`, or `process` (limits only, no security boundary)."""

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return the tools of the sandbox."""
        return self._sandbox.tools()

    @property
    def _sandbox(self) -> Sandbox:
        return shared(self.sandbox)

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Run a program on the hidden cases. Raises `ToolError` where the sandbox does not work."""
        cases: Any = wanted
        if not isinstance(cases, list) or not all(isinstance(case, dict) and "args" in case for case in cases):
            raise ToolError('what a program is wanted to do is said as [{"args": [1, 2], "want": 3}, …]')
        if not isinstance(answer, str):
            return False
        key = secrets.token_hex(8)
        code = harness(answer, str(json.loads(self.text)["entry"]), [case["args"] for case in cases], key)
        outcome = await self._sandbox.run(Program(code=code, limits=self._sandbox.limits))
        if outcome.status == "broken":
            raise ToolError(f"the sandbox does not work: {outcome.stderr}")
        cells = outputs({"stdout": outcome.stdout}, len(cases), key)
        return all(returned(cell, case.get("want")) for cell, case in zip(cells, cases, strict=True))
