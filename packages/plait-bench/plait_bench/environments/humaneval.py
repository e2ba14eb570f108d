"""Environment `humaneval`: runs a function on the hidden tests of its problem, in the sandbox."""

from __future__ import annotations

import json
import secrets

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.workers.tools.environments.code import CodeEnvironment
from plait.workers.tools.sandbox import Program

__all__ = ["HumanEvalEnvironment"]


class HumanEvalEnvironment(CodeEnvironment):
    """`run_python` for the planner; a program is right if it passes the problem's `check`.

    The expectation is `{"test": "def check(candidate): …"}`. As in the original, the problem's beginning precedes the
    program, which may use its imports and helpers.
    """

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Run a program on the hidden tests. Raises `ToolError` if the sandbox does not work."""
        if not isinstance(wanted, dict) or not isinstance(wanted.get("test"), str):
            raise ToolError('write what a function must do as {"test": "def check(candidate): …"}')
        if not isinstance(answer, str):
            return False
        problem = json.loads(self.text)
        passed = secrets.token_hex(8)  # a program must not pass by printing or exiting
        code = f"{problem['prompt']}\n{answer}\n{wanted['test']}\ncheck({problem['entry_point']})\nprint({passed!r})\n"
        outcome = await self._sandbox.run(Program(code=code, limits=self._sandbox.limits))
        if outcome.status == "broken":
            raise ToolError(f"the sandbox does not work: {outcome.stderr}")
        return outcome.stdout.rstrip().endswith(passed)
