"""The baseline of one call a turn, on a script, and its reader of calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from experiments._tools.one_call_a_turn import OneCallATurn, read_call
from plait import AsyncOrchestrator, Plugin
from plait.core.interfaces import Job, Progress
from plait.core.ops import ModelCall, Text
from plait.core.result import Failure, Result
from plait.workers.scripted import Reply, Scripted
from plait_bench.tasks.tables import Tables

SPECS = {tool.name: tool.spec for tool in Tables(text="who is Ardan?").tools()}


class Turns(Scripted):
    """Writes given turns one after another, and notes what it was shown."""

    def __init__(self, *turns: str) -> None:
        super().__init__([Reply(text="")])
        self.turns, self.shown = list(turns), list[str]()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        self.shown.append("".join(part.text for part in job.op.prompt if isinstance(part, Text)))
        self.script = self.script.model_copy(update={"replies": (Reply(text=self.turns.pop(0)),)})
        async for each in super().run(job):
            yield each


async def test_one_call_a_turn_shows_results_and_failures_and_ends_with_the_answer() -> None:
    text = "what is Ardan's age?"
    right = Tables(text=text).right()
    call = 'Action: lookup("age", "s0")\nObservation: '
    model = Turns(call, call, f"\nAction: Finish({right})<end>")
    task = Plugin(name="tables", options={"latency": [0.0, 0.0], "failing": 1.0})
    async with AsyncOrchestrator(workers=[model]) as orchestrator:
        answer = await orchestrator.run(text, task=task, planner=OneCallATurn(), policies=[])
        assert answer.verified and answer.answer == right
        assert model.shown[0] == "<react>what is s0's age?"
        assert model.shown[1].startswith(f"{model.shown[0]}{call}error: ")
        assert model.shown[2] == f"{model.shown[1]}{call}{right}"
        odd = Turns("Action: fly()")
    async with AsyncOrchestrator(workers=[odd]) as orchestrator:
        assert (await orchestrator.run(text, task=task, planner=OneCallATurn(), policies=[])).answer is None


@pytest.mark.parametrize(
    "text",
    ["", "Action: ", "lookup", "Action: fly(1)", 'Action: lookup("age")', 'Action: add(1, 2', "Action: add(1, x)",
     "Action: add(" + "[" * 5000 + ")", "Action: Finish(1)"],
)  # fmt: skip
def test_what_is_no_call_is_none(text: str) -> None:
    assert read_call(text, SPECS) is None


def test_a_call_is_read_by_position() -> None:
    assert read_call(' Action: add(1, "n0")\n', SPECS) == ("add", {"a": 1, "b": "n0"})
