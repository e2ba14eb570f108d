"""Policy `affinity` in several processes: they agree on the place of a beginning, and none tells another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from plait import AsyncOrchestrator, Plugin
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.result import Failure, Result
from tests.complexity.counted import Says

HEADERS = [f"You are helper number {i}. " * 60 for i in range(16)]


class Heard(Says):
    """A model that notes which headers it was sent."""

    def __init__(self, name: str) -> None:
        super().__init__("It is {}.".format)
        self.name = name
        self.headers = set[str]()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Answer."""
        assert job.op.kind == "think"
        text = "".join(part.text for part in job.op.prompt if part.kind == "text")
        self.headers.add(next(header for header in HEADERS if text.startswith(header)))
        async for item in super().run(job):
            yield item


async def placed(agree: bool, names: Sequence[str], questions: Sequence[str]) -> dict[str, set[str]]:
    """Ask in one process of its own; return which headers each engine was sent."""
    workers = [Heard(name) for name in names]
    policy = Plugin(name="affinity", options={"agree": agree})
    async with AsyncOrchestrator(workers=workers, journal="off") as orchestrator:
        for question in questions:
            await orchestrator.run(question, planner="sample:n=2", policies=[policy])
    return {worker.name: worker.headers for worker in workers}


async def test_processes_that_never_talk_send_the_same_beginning_to_the_same_engine() -> None:
    names = [f"engine-{i}" for i in range(8)]
    one = await placed(True, names, [f"{header}What is one?" for header in HEADERS])
    two = await placed(True, names[::-1], [f"{header}And two, then?" for header in reversed(HEADERS)])
    assert one == two
    assert sum(map(len, one.values())) == len(HEADERS), "each header is read once"
    assert sum(1 for headers in one.values() if headers) >= 4, "they are spread"
    apart = await placed(False, names[::-1], [f"{header}And two, then?" for header in reversed(HEADERS)])
    assert apart != two


async def test_an_engine_that_goes_moves_no_other_beginnings_than_its_own() -> None:
    names = [f"engine-{i}" for i in range(8)]
    questions = [f"{header}What is one?" for header in HEADERS]
    before = await placed(True, names, questions)
    after = await placed(True, names[1:], questions)
    assert all(before[name] <= after[name] for name in names[1:])
