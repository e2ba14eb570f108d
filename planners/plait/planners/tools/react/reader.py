"""Starts the calls of one turn while it is written."""

from __future__ import annotations

from collections.abc import Container, Sequence

from plait.core.interfaces import PlanningContext
from plait.core.ops import Join, Plugin, ToolCall
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.tools.turns import CallRequest, completes_call

from .options import ReactOptions, turn_calls

RESULTS = "results"


def call_step(call: CallRequest) -> Step:
    """Return the step that makes a call."""
    args = {key: {"$literal": value} for key, value in call.arguments.items()}
    return Step(name=call.step, op=ToolCall(tool=call.name, args=args), label=call.name)


class TurnReader:
    """Starts the calls of one turn while it is written."""

    def __init__(self, planner: ReactOptions, brief: PlanningContext, first: int, known: Container[str]) -> None:
        self._planner, self._brief, self._first, self._known = planner, brief, first, known
        self._text = ""
        self._made: dict[str, Step] = {}

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return a step for each call that is complete now."""
        self._text += delta
        if not self._planner.turn.stream or not completes_call(self._text, delta, self._planner.dialect):
            return ()
        return [Plan(steps=(step,)) for step in self._new(self._calls(self._text, whole=False))]

    def close(self, result: Result) -> Plan | None:
        """Return the remaining calls and the join of all calls, or nothing for a turn without calls."""
        text = result.text
        calls = self._calls(text)
        if not calls:
            return None
        new = self._new(calls)
        needs = list(self._made)
        # The join's value includes the turn's text, since an expanded step's value is its expansion's value.
        tokens = result.usage.prompt + result.usage.completion
        merge = Plugin(name="observations", options={"written": text, "data": tokens or None})
        join = Step(name=RESULTS, op=Join(merge=merge, on_failure="any-end"), needs=tuple(needs), label="results")
        return Plan(steps=(*new, join), output=RESULTS)

    def _calls(self, text: str, whole: bool = True) -> list[tuple[CallRequest, str]]:
        return turn_calls(self._planner, self._brief, text, self._first, self._known, whole)

    def _new(self, calls: Sequence[tuple[CallRequest, str]]) -> list[Step]:
        new: list[Step] = []
        for call, fate in calls:
            asked = self._planner.asked_agent(call) if fate == "ours" else None
            if (fate != "run" and asked is None) or call.step in self._made:
                continue
            step = call_step(call) if asked is None else asked[0].step(asked[1], call.step)
            self._made[call.step] = step
            new.append(step)
        return new
