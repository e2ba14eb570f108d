"""`plait why` of a run that succeeded: its critical path by use, and the remedy that follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait import Orchestrator, Plan, Step, ToolCall, ToolContext, tool
from plait.apps.common.graph import longest_path
from plait.apps.trace.model import Contact, Segment, Trace
from plait.apps.trace.time_shares import USES, TimeShares, time_shares
from plait.core.ops import Join, ModelCall, Plugin
from plait.core.record import Change, StepRecord
from plait.core.result import Result, Usage
from plait.runtime.runlog import AttemptRecord, WorkerRecord

Plait = Callable[..., Any]


class Story:
    """A run's trace, written step by step."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.attempts: list[AttemptRecord] = []
        self.segments: list[Segment] = []

    def step(
        self, name: str, ready: float, start: float, end: float, needs: tuple[str, ...] = (), worker: str = "w",
        first: float | None = None, tool: str = "", model: str | None = None, entered: float = 0.0, **more: Any,
    ) -> None:  # fmt: skip
        moves: tuple[Change, ...] = ((ready, "ready", ""), (start, "running", worker), (end, "done", ""))
        kind = "call" if tool else "think"
        op = ToolCall(tool=tool, args={}) if tool else ModelCall(prompt="x", model=model)
        self.steps.append(
            StepRecord(name, name, kind, needs=needs, state="done", moves=moves, entered=entered,
                       usage=Usage(completion=10), **more)
        )  # fmt: skip
        self.attempts.append(
            AttemptRecord(len(self.attempts), "r", name, worker, op, start, end, "succeeded", first=first,
                          result=Result(value="x"))
        )  # fmt: skip

    def join(self, name: str, at: float, needs: tuple[str, ...]) -> None:
        plan = Step(name=name, op=Join(merge=Plugin(name="collect")), needs=needs)
        self.steps.append(
            StepRecord(name, name, "join", needs=needs, state="done", moves=((at, "done", ""),), plan=plan)
        )

    def read(self, *contacts: tuple[str, int, int]) -> None:
        made = [Contact(step, cached, computed, 0) for step, cached, computed in contacts]
        self.segments.append(Segment(len(self.segments), None, 0, 100, made))

    def shares(self, seconds: float, output: str, asked: dict[str, float] | None = None, slots: int = 2) -> TimeShares:
        trace = Trace("r", "", "plain", "p", (), "", 0, (), seconds=seconds, steps=self.steps, attempts=self.attempts,
                      segments=self.segments, output=output)  # fmt: skip
        trace.hosts = [WorkerRecord(name, slots, ("think",)) for name in ("w", "v")]
        found = time_shares(trace, asked or {})
        assert found is not None and sum(found.uses.values()) == pytest.approx(seconds)
        return found


def test_the_path_is_that_of_the_slower_branch_and_its_parts_are_separate() -> None:
    story = Story()
    story.step("a", 0.1, 0.1, 2.1, first=0.6)
    story.step("b", 0.1, 1.1, 4.1, first=1.6)
    story.join("j", 4.2, ("a", "b"))
    story.step("c", 4.3, 4.3, 9.3, ("j",), tool="search", worker="tools")
    found = story.shares(10.0, "c")
    assert [step for step, _ in found.path] == ["b", "c"]
    parts = {use: round(seconds, 6) for use, seconds in found.uses.items() if seconds}
    assert parts == {"write": 2.5, "read": 0.5, "queue": 1.0, "tools": 5.0, "other": 1.0}
    assert found.savings["queue"] == pytest.approx(1.0) and found.savings["tools"] == pytest.approx(5.0)
    assert found.remedy == "5 s less without it: 1 call of search took 5 s on the path: a faster search"


def test_what_another_path_would_take_is_not_saved() -> None:
    story = Story()
    story.step("a", 0.0, 0.0, 9.0)
    story.step("b", 0.0, 5.0, 10.0)
    story.join("j", 10.0, ("a", "b"))
    found = story.shares(10.0, "j")
    assert found.uses["queue"] == 5.0 and found.savings["queue"] == pytest.approx(1.0)
    assert (
        "1 s less without it: b waited 5 s for one of w's 2 slots (1 other call of this run ran there)" in found.remedy
    )


@pytest.mark.parametrize(
    ("worker", "start", "remedy"),
    [("v", 4.0, "the policy `affinity`"), ("w", 4.0, "`working-set`"), ("w", 1.0, "start it after")],
)
def test_prompt_tokens_read_again_are_counted_by_model(worker: str, start: float, remedy: str) -> None:
    story = Story()
    story.step("a", 0.0, 0.0, 2.0, first=1.0)
    story.step("other", 0.0, 0.0, 1.0, first=0.5, model="large")
    story.step("b", start, start, start + 4.0, first=start + 3.0, worker=worker, entered=start)
    story.read(("a", 0, 60), ("other", 0, 60), ("b", 0, 60))
    story.read(("b", 0, 20))
    found = story.shares(start + 4.0, "b")
    assert found.uses["again"] == pytest.approx(2.25) and found.uses["read"] == pytest.approx(
        1.75 if start > 2 else 1.25
    )
    assert "b read 60 tokens again" in found.remedy and remedy in found.remedy


def test_a_step_of_a_plan_that_is_still_written_starts_within_its_owner() -> None:
    story = Story()
    story.step("plan", 0.0, 0.0, 5.0, first=1.0)
    story.step("1", 2.0, 2.0, 8.0, tool="look", owner="plan", entered=2.0)
    found = story.shares(8.0, "1")
    assert dict(found.path) == {"plan": {"read": 1.0, "write": 1.0}, "1": {"tools": 6.0}}


def test_a_flow_continues_where_a_step_ended_and_early_joins_wait_for_no_loser() -> None:
    story = Story()
    story.step("a", 0.0, 0.0, 2.0)
    story.step("slow", 0.0, 0.0, 9.0)
    story.join("vote", 2.0, ("a", "slow"))
    story.step("b", 2.5, 2.5, 4.0, entered=2.5)
    found = story.shares(4.0, "b")
    assert [step for step, _ in found.path] == ["a", "b"] and found.uses["other"] == pytest.approx(0.5)
    assert found.remedy == "a wrote 10 of the path's 20 tokens (5 a second): fewer of them, or a faster model"


def test_a_tool_that_failed_takes_its_time_too() -> None:
    story = Story()
    story.step("plan", 0.0, 0.0, 1.0)
    story.step("1", 1.0, 1.0, 9.0, tool="look", entered=1.0)
    story.steps[1].state, story.steps[1].moves = "failed", (*story.steps[1].moves[:-1], (9.0, "failed", "no answer"))
    story.attempts[1].ending = "failed"
    story.join("scratchpad", 9.0, ("1",))
    story.step("joiner", 9.0, 9.0, 10.0, ("scratchpad",))
    found = story.shares(10.0, "joiner")
    assert found.uses["tools"] == 8.0 and [step for step, _ in found.path] == ["plan", "1", "joiner"]


def test_retries_count_apart_and_a_run_without_output_has_no_path() -> None:
    story = Story()
    story.step("a", 6.0, 6.0, 8.0)
    story.steps[0].moves = ((0.0, "ready", ""), (0.0, "running", "w"), (5.0, "waiting", ""), *story.steps[0].moves)
    story.steps[0].tries = 2
    found = story.shares(8.0, "a")
    assert found.uses["retries"] == 6.0 and "a ran 2 times" in found.remedy
    assert time_shares(Trace("r", "", "", "", (), "", 0, (), output="gone"), {}) is None


def test_the_seconds_of_a_person_are_those_of_the_journal(tmp_path: Path, plait: Plait) -> None:
    @tool
    async def order(what: str, ctx: ToolContext) -> str:
        """Order something."""
        return str(await ctx.ask(f"Order {what}?"))

    plan = Plan(steps=(Step(name="o", op=ToolCall(tool="order", args={"what": "tea"})),), output="o")
    journal = tmp_path / "j.sqlite"
    with Orchestrator(
        workers=[], tools=[order], on_ask=lambda question: time.sleep(0.2) or "yes", journal=journal
    ) as orchestrator:
        answer = orchestrator.run(plan=plan)
        assert answer.status == "done", answer.failure
        run = answer.run
    shown = plait("why", run, "--from", journal, "--json").json
    assert "time" in shown, shown
    shown = shown["time"]
    assert shown["uses"]["approvals"] >= 0.2 > shown["uses"]["tools"]
    assert "o waited" in shown["remedy"] and "for a person" in shown["remedy"]
    shown = plait("why", run, "--from", journal).out
    assert USES["approvals"] in shown and "critical path, 1 step:" in shown


def test_a_longest_path_ends_where_it_shall() -> None:
    edges = [("a", "b", 1.0), ("b", "c", 0.0), ("a", "c", 0.5), ("c", "d", 9.0)]
    assert longest_path(edges, "c").names == ("a", "b", "c") and longest_path(edges, "c").length == 1.0
