"""Text that only followers read is posted at most every `TEXT_INTERVAL_S`; nothing of it is lost or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from plait.core.events import Event, Job, Progressed, Succeeded
from plait.core.interfaces import Progress, Tell, Worker
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result
from plait.runtime.driver import jobs
from plait.runtime.driver.jobs import JobTable


class Told(Worker):
    """Lets the test report."""

    name, slots, serves = "model", 1, ("think",)
    tell: Tell

    async def start(self) -> None:
        pass

    def begin(self, job: Job, tell: Tell) -> None:
        self.tell = tell

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        raise NotImplementedError("it is called back")
        yield

    async def cancel(self, attempt: int) -> None:
        pass

    async def health(self) -> AsyncIterator[bool]:
        yield True

    async def close(self) -> None:
        pass


def begun(may_wait: bool) -> tuple[JobTable, Tell, list[Event]]:
    events: list[Event] = []
    worker = Told()
    table = JobTable([worker], events.append, asyncio.get_running_loop().time, lambda attempt: may_wait)
    table.start("model", Job(1, "r", "r:a", ModelCall(prompt="?")), None, "r")
    return table, worker.tell, events


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Progressed)]


async def test_the_first_text_is_posted_at_once_and_later_ones_together() -> None:
    table, tell, events = begun(may_wait=True)
    for word in ("a", "b", "c", "\ud83d", "\ude00"):
        tell(Progress(word, 2))
    assert texts(events) == ["a"]
    await asyncio.sleep(3 * jobs.TEXT_INTERVAL_S)
    assert texts(events) == ["a", "bc\U0001f600"]
    joined = events[1]
    assert isinstance(joined, Progressed) and (joined.tokens, joined.largest) == (8, 2)
    tell(Progress("d", 1))  # nothing came for a while
    assert texts(events)[2:] == ["d"]
    tell(Progress("e", 1))
    tell(Result(value="abcde"))
    assert texts(events)[3:] == ["e"] and isinstance(events[-1], Succeeded)
    await table.close()


async def test_ids_and_probabilities_keep_their_pieces() -> None:
    table, tell, events = begun(may_wait=True)
    tell(Progress("a", 1))
    tell(Progress("b", 1, ids=(7,)))
    tell(Progress("c", 1, ids=(8, 9)))
    tell(Progress("d", 1))
    assert [(event.text, event.ids) for event in events if isinstance(event, Progressed)] == [
        ("a", ()),
        ("bc", (7, 8, 9)),
        ("d", ()),
    ]
    tell(Progress("e", 1, logprob=-0.5))
    tell(Progress("f", 1, logprob=-1.5))
    assert texts(events)[3:] == ["e", "f"]
    tell(Result(value="abcdef"))
    await table.close()


async def test_text_that_is_read_while_it_is_written_does_not_wait() -> None:
    table, tell, events = begun(may_wait=False)
    for word in ("a", "b", "c"):
        tell(Progress(word, 1))
    assert texts(events) == ["a", "b", "c"]
    await table.close()
    tell(Progress("late", 1))
    assert len(events) == 3
