"""Environments of tasks from data sets, `humaneval` and `reasoning-gym`: problems and grades come from the set."""

from __future__ import annotations

import json
import secrets
from fractions import Fraction
from typing import Any, cast

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.core.extras import extra
from plait.core.task import Environment
from plait.core.values import as_text
from plait.workers.tools.environments.code import CodeEnvironment
from plait.workers.tools.sandbox import Program

__all__ = ["HumanEvalEnvironment", "ReasoningGymEnvironment"]


def alike(answer: JsonValue, wanted: JsonValue, within: float = 0.0, ordered: bool = False) -> bool:
    """Return whether an answer equals the expected one: texts ignore case and spaces, numbers may differ by the share
    `within` of the expected value, and lists and table rows have any order unless `ordered`.

    >>> alike('[["Bo", 3.01], ["ann", 4]]', [["Ann", 4], ["Bo", 3]], 0.01)
    True
    """
    if answer is None:
        return False
    if isinstance(wanted, list):
        given = _list(answer)
        if given is None or len(given) != len(wanted):
            return False
        left, right = (given, wanted) if ordered else (_sorted(given), _sorted(wanted))
        # cells of a row stay in their order
        return all(alike(one, other, within, True) for one, other in zip(left, right, strict=True))
    one, other = _key(answer), _key(wanted)
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return abs(one - other) <= Fraction(within) * abs(other)
    return one == other


def _list(answer: JsonValue) -> list[JsonValue] | None:
    """Return a list, or the one that a text is in JSON."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError):
            return None
    return cast("list[JsonValue]", answer) if isinstance(answer, list) else None


def _sorted(values: list[JsonValue]) -> list[JsonValue]:
    """Return values in a canonical order, texts first, so that rows are sorted by their exact parts."""
    return sorted(values, key=_rank)


def _rank(value: JsonValue) -> list[tuple[bool, str, Fraction]]:
    keys = [_key(cell) for cell in value] if isinstance(value, list) else [_key(value)]
    ranks = [(isinstance(key, Fraction), "" if isinstance(key, Fraction) else key, _number(key)) for key in keys]
    return sorted(ranks)


def _number(key: str | Fraction) -> Fraction:
    return key if isinstance(key, Fraction) else Fraction(0)


def _key(answer: JsonValue) -> str | Fraction:
    """Return a text without regard to case and spaces, or the value of a number."""
    text = " ".join(as_text(answer).split()).casefold()
    try:
        return Fraction(text.removesuffix(".").replace("_", "?"))
    except (ValueError, ZeroDivisionError):
        return text


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


class ReasoningGymEnvironment(Environment):
    """No tools. The expectation is the problem's entry: `{"question": …, "answer": …, "metadata": {…}}`."""

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Return whether the family's verifier gives the full score. Raises `ToolError` without Reasoning Gym."""
        gym = extra("reasoning_gym", "Reasoning Gym is not installed: pip install 'plait[reasoning-gym]'", ToolError)
        if answer is None:
            return False
        score: Any = gym.get_score_answer_fn(json.loads(self.text)["family"])
        try:
            return score(answer if isinstance(answer, str) else json.dumps(answer), wanted) >= 1.0
        except Exception:  # some verifiers raise for an answer in another format
            return False
