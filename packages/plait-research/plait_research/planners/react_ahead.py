"""Planner `react-ahead`: `react`, which makes likely tool calls while the model still writes its turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

from pydantic import Field, JsonValue, TypeAdapter, model_validator

from plait.core.chat import Message
from plait.core.declarations import Fidelity, Free
from plait.core.flow import Context
from plait.core.ops import ToolCall
from plait.core.record import StepRecord
from plait.core.step_handles import CallHandle, StepFailed, Trajectory
from plait.core.tools.turns import CallOutcome, read_calls
from plait.core.values import as_text
from plait.core.vocabulary import Count
from plait.planners.tools.react import Ledger, React

from ..call_patterns import CallPattern, SeenCall, count_patterns, predict_calls
from ..learning_planner import LearningPlanner, RunOutcome

__all__ = ["ReactAhead"]

_turns = TypeAdapter(list[list[SeenCall]])
_RUNNING = CallOutcome(False, "it is still running")


@dataclass
class EarlyLedger(Ledger):
    """The calls of a conversation, those included that run before the model asks for them."""

    early: dict[str, CallHandle] = field(default_factory=dict[str, CallHandle])
    """Calls that the model has not asked for, by key."""
    epoch: int = 0
    """Number of changes by calls with side effects when they began."""
    started: int = 0
    taken: int = 0

    @property
    def wasted(self) -> int:
        """Number of calls that the model has not asked for so far."""
        return self.started - self.taken

    def start(self, ctx: Context, call: SeenCall) -> None:
        """Make a call that is likely."""
        self.started += 1
        op = ToolCall(tool=call.tool, args={name: {"$literal": value} for name, value in call.arguments.items()})
        self.early[call.key] = ctx.called(op, name=f"ahead-{self.started}", label=f"{call.tool}, ahead of the model")
        self.record(call.key, _RUNNING)

    def settle(self, asked: Collection[str]) -> None:
        """Record the results of calls that have ended; `asked`: those that the model has asked for."""
        for key, handle in [*self.early.items()]:
            if handle.done:
                self.results[key] = self.results[key][0], CallOutcome(True, as_text(handle.value))
            elif key in asked:
                error = handle.error
                what = error.failure.message if isinstance(error, StepFailed) else ""
                self.results[key] = self.results[key][0], CallOutcome(False, what)
            if key in asked:
                self.taken += 1
                del self.early[key]

    def cancel_unlikely(self, ctx: Context, likely: Collection[str]) -> None:
        """Cancel the running calls that the model will not ask for."""
        for key in [key for key, handle in self.early.items() if key not in likely and not handle.done]:
            self._cancel(ctx, key, "the model will not ask for it")

    def cancel_stale(self, ctx: Context) -> None:
        """Cancel the calls that began before a call with side effects."""
        if self.epoch != len(self.before):
            self.epoch = len(self.before)
            for key in [*self.early]:
                self._cancel(ctx, key, "a call with side effects came between")

    def _cancel(self, ctx: Context, key: str, reason: str) -> None:
        ctx.cancel(self.early.pop(key), reason)
        self.results.pop(key, None)


class ReactAhead(LearningPlanner, React):
    """`react` with tool calls ahead of the model (PASTE, arXiv 2603.18897; Speculative Actions, arXiv 2510.04371).

    While the model writes a turn, up to `max_ahead` calls that `patterns` make likely already run. A call that the
    model then asks for takes the result of the running one. The others are cancelled once they are no longer likely;
    their results are kept until a call with side effects. Tools with side effects, and tools whose calls a person
    has to allow, are never called ahead: the model sees the same results as with `react`.

    `plait learn effort TASK --planner react-ahead --out FILE` counts patterns in the journals of `react` and
    `react-ahead`; `path=FILE` uses them. Without patterns this is `react`.

    Differs from PASTE: an argument is a constant, an earlier argument, a part of a result or a word of a known form;
    a call is made by its probability alone, whatever its tool takes. Defaults: probability 0.4, 2 calls at a time.
    """

    fidelity = Fidelity("variant", "four sources of arguments in place of mined derivations", paper="2603.18897")
    counts_runs_of: ClassVar[tuple[str, ...]] = ("react",)
    ledger_type: ClassVar[type[Ledger]] = EarlyLedger

    patterns: Annotated[tuple[CallPattern, ...], Free()] = Field(
        default=(), description="Patterns of calls, as `plait learn effort` counts them."
    )
    threshold: float = Field(
        default=0.4,
        ge=0.0,
        le=1.0,
        description="Threshold of a score: the probability from which on a call is made ahead.",
    )
    max_ahead: Count = Field(default=2, ge=0, le=64, description="Maximum number of calls that run ahead at a time.")
    max_wasted: Count = Field(
        default=32, ge=0, description="Number of calls of a run, not asked for by the model, that ends calls ahead."
    )

    @model_validator(mode="after")
    def _learns_from_journals(self) -> Self:
        if self.learn and self.path is not None:
            raise ValueError("calls are counted in journals, not at the end of a run: use `plait learn effort`")
        return self

    async def run_turn(
        self,
        ctx: Context,
        before: Trajectory | None,
        ledger: Ledger,
        messages: Sequence[Message],
        prompt: str,
        last: bool = False,
    ) -> Trajectory:
        """Run a turn, and likely calls beside it."""
        assert isinstance(ledger, EarlyLedger)
        ledger.cancel_stale(ctx)
        likely = {} if last else {call.key: call for call in self.likely_calls(ctx, ledger)}
        ledger.cancel_unlikely(ctx, likely)
        running = sum(not handle.ended for handle in ledger.early.values())
        fresh = [call for key, call in likely.items() if key not in ledger.results]
        for call in fresh[: max(0, min(self.max_ahead - running, self.max_wasted - ledger.wasted))]:
            ledger.start(ctx, call)
        turn = await super().run_turn(ctx, before, ledger, messages, prompt, last)
        calls = ledger.calls(turn.value)
        asked = [call.key for call, fate in calls if fate == "same" and call.key in ledger.early]
        await ctx.gather(*(ledger.early[key] for key in asked), return_exceptions=True)
        ledger.settle(asked)
        if not calls:
            ledger.cancel_unlikely(ctx, ())
        return turn

    def likely_calls(self, ctx: Context, ledger: EarlyLedger) -> list[SeenCall]:
        """Return the calls that may be made ahead of the next turn, the most likely first."""
        free = {tool.name for tool in ctx.brief.tools if not (tool.side_effects or tool.approve)}
        turns = [
            [SeenCall(call.name, call.arguments, outcome.text, outcome.ok) for call, outcome in turn]
            for turn in ledger.history
        ]
        usable = [
            pattern for pattern in self.patterns if pattern.tool in free and pattern.probability >= self.threshold
        ]
        likely = predict_calls(usable, turns, ctx.brief.request.text)
        return [likely[key][1] for key in sorted(likely, key=lambda key: (-likely[key][0], key))]

    @classmethod
    def measure(cls, steps: Sequence[StepRecord], data: JsonValue) -> JsonValue:
        """Return the calls of a recorded run, by turn, with their results."""
        made: dict[str, SeenCall] = {}
        for step in steps:
            if step.plan is not None and isinstance(op := step.plan.op, ToolCall) and step.ended:
                call = SeenCall(op.tool, {name: _unwrap(value) for name, value in op.args.items()})
                made[call.key] = replace(call, result=as_text(step.value), ok=step.state == "done")
        turns: list[list[SeenCall]] = []
        for step in steps:
            if step.kind == "think" and isinstance(step.value, str):
                calls = read_calls(step.value, "native", 1, ()) or read_calls(step.value, "action", 1, ())
                turns.append([made[call.key] for call in calls if call.key in made])
        return _turns.dump_python([turn for turn in turns if turn], mode="json")

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return the patterns with the counts of a run."""
        turns = _turns.validate_python(outcome.data or [])
        if not turns:
            return {}
        counted = count_patterns(self.patterns, turns, outcome.text)
        return {"patterns": [pattern.model_dump(mode="json", exclude_defaults=True) for pattern in counted]}


def _unwrap(value: JsonValue) -> JsonValue:
    """Return an argument of a call as the model gave it."""
    return value["$literal"] if isinstance(value, dict) and value.keys() == {"$literal"} else value
