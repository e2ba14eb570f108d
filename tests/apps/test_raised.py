"""Where a user's code raised is told once: in the journal, on the page, in the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Flow, Join, Plan, Step, ToolCall, tool
from plait.apps.trace.read import read_trace
from plait.apps.viewer.page import data_of
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants

from .conftest import Plait

PLAN = Plan(
    steps=(
        Step(name="broken", op=ToolCall(tool="divide", args={"a": 1, "b": 0})),
        Step(name="next", op=ToolCall(tool="divide", args={"a": 1, "b": 1}), needs=("broken",)),
        Step(name="last", op=Join(), needs=("next",)),
    ),
    output="last",
)


def deeper(a: int, b: int) -> float:
    return a / b


@tool
def divide(a: int, b: int) -> float:
    """Divide."""
    return deeper(a, b)


async def test_a_tool_that_raises_is_told_where_and_only_once(tmp_path: Path) -> None:
    journal = tmp_path / "runs.db"
    async with AsyncOrchestrator(workers=[], tools=[divide], journal=journal) as plait:
        answer = await plait.run("x", plan=PLAN)
    found = {step.path: step.failure for step in answer.trace}
    assert found["broken"] is not None and "tool 'divide' raised ZeroDivisionError" in found["broken"].message
    lines = found["broken"].frames.splitlines()
    assert [line.rpartition(" in ")[2] for line in lines] == ["divide", "deeper"]
    assert all(line.startswith(f"{__file__}:") for line in lines), "plait's own frames are left out"
    assert found["next"] is not None and not found["next"].frames
    assert answer.failure is not None and not answer.failure.frames
    data = data_of(read_trace(journal, Plugins(), answer.run))
    assert json.dumps(data).count("in deeper") == 2, "of the attempt, and of its step, which shows its attempt's"
    told = [step["name"] for step in data["steps"] if step["frames"]]
    assert told == ["broken"]
    assert sum("in deeper" in row.event for row in Journal(journal).rows()) == 1
    assert replay(journal, Plugins(), check=check_invariants).divergence is None


class Faulty(Flow):
    """A planner that raises while it runs."""

    async def run(self, ctx: Flow.Context, question: str) -> object:
        await ctx.think("one")
        return deeper(1, 0)


async def test_a_planner_and_a_merge_that_raise_are_told_where() -> None:
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="one")])], journal="off") as plait:
        answer = await plait.run("x", planner=Faulty())
        by_merge = await plait.run("x", planner="sample:n=2", merge=lambda branches, task: deeper(1, 0))
    for each, names in ((answer, ["Faulty.run", "deeper"]), (by_merge, ["<lambda>", "deeper"])):
        (frames,) = [step.failure.frames for step in each.trace if step.failure is not None and step.failure.frames]
        assert [line.rpartition(".<locals>.")[2].rpartition(" in ")[2] for line in frames.splitlines()] == names
        assert each.failure is not None and not each.failure.frames


def test_the_terminal_says_where_once(plait: Plait, script: Any, tmp_path: Path) -> None:
    (tmp_path / "own_tools.py").write_text(
        "from plait import tool\n\n@tool\ndef broken() -> int:\n    raise ValueError('no such luck')\n"
    )
    plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "broken"}}], "output": "a"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = ("run", "q", "--plan", "plan.json", "--tools", "own_tools.py", "--script", script({"text": "one"}))
    done = plait(*words)
    assert done.code == 1 and done.err.count("own_tools.py:5 in broken") == 1 and "Traceback" not in done.err + done.out
