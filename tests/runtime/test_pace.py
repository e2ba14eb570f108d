"""Jobs begin a few in each turn of the loop, in order; one that is given up before never begins."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

from plait.core.events import Event, Job, Succeeded
from plait.core.interfaces import Tell, Worker
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.result import Result
from plait.runtime.driver.jobs import MAX_BUSY_TURNS, MAX_JOBS_PER_TURN, SHORT_TURN_S, JobTable, Pace


def idle() -> float:
    """A clock of a loop that works nothing."""
    return 0.0


def entered(pace: Pace, begun: list[int], jobs: range, share: str = "s", run: str = "r") -> None:
    """Have jobs begin that write down their number."""
    for number in jobs:
        pace.enter(number, share, run, partial(begun.append, number))


async def turns(pace: Pace, jobs: int) -> list[int]:
    """How many of so many jobs begin in each turn of the loop."""
    begun, counts = list[int](), list[int]()
    entered(pace, begun, range(jobs))
    while len(begun) < jobs or not counts:
        counts.append(len(begun) - sum(counts))
        await asyncio.sleep(0)
    assert begun == list(range(jobs)), "in order"
    return [*counts, len(begun) - sum(counts)]


async def test_jobs_that_cost_little_begin_a_few_a_turn() -> None:
    assert await turns(Pace(asyncio.get_running_loop(), idle), 20) == [1, 2, 4, MAX_JOBS_PER_TURN, 5]


async def test_jobs_that_take_a_while_begin_one_a_turn() -> None:
    monotonic = itertools.count()
    pace = Pace(asyncio.get_running_loop(), lambda: next(monotonic) * 2 * SHORT_TURN_S)
    assert await turns(pace, 5) == [1, 1, 1, 1, 1]


async def test_after_a_long_turn_one_begins_again() -> None:
    worked = [0.0]
    pace, begun = Pace(asyncio.get_running_loop(), lambda: worked[0]), list[int]()
    entered(pace, begun, range(100))
    for _ in range(4):
        await asyncio.sleep(0)
    before, worked[0] = len(begun), 1.0
    await asyncio.sleep(0)
    assert len(begun) == before, "nothing in the turn after it"
    await asyncio.sleep(0)
    assert len(begun) == before + 2, "and then few"


async def test_a_turn_in_which_much_was_done_begins_nothing_but_not_for_ever() -> None:
    worked = [0.0]
    pace, begun = Pace(asyncio.get_running_loop(), lambda: worked[0]), list[int]()
    entered(pace, begun, range(3))
    taken = 0
    while len(begun) < 2:
        worked[0] += 1.0  # each turn works for a second
        await asyncio.sleep(0)
        taken += 1
    assert taken == MAX_BUSY_TURNS + 1


async def test_what_is_given_up_before_it_begins_takes_no_turn() -> None:
    pace, begun = Pace(asyncio.get_running_loop(), idle), list[int]()
    entered(pace, begun, range(3))
    assert pace.give_up(2) and not pace.give_up(2)
    for _ in range(4):
        await asyncio.sleep(0)
    assert begun == [0, 1]
    assert not pace.give_up(0)


async def test_a_run_with_few_jobs_does_not_wait_for_all_of_one_with_many() -> None:
    pace, begun = Pace(asyncio.get_running_loop(), idle), list[int]()
    entered(pace, begun, range(100), run="many")
    entered(pace, begun, range(100, 101), run="one")
    while len(begun) < 101:
        await asyncio.sleep(0)
    assert begun.index(100) <= 2 * MAX_JOBS_PER_TURN


async def test_many_runs_of_a_share_wait_for_one_another_and_nobody_else_for_them() -> None:
    pace, begun = Pace(asyncio.get_running_loop(), idle), list[int]()
    for number in range(100):
        entered(pace, begun, range(number, number + 1), share="many", run=f"r{number}")
    entered(pace, begun, range(100, 101), share="one")
    while len(begun) < 101:
        await asyncio.sleep(0)
    assert begun.index(100) <= 2 * MAX_JOBS_PER_TURN


class CallingBack(Worker):
    """A worker that is called directly, and notes which jobs it was given."""

    name, slots, serves = "back", 9, ("think", "call")

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin(self, job: Job, tell: Tell) -> None:
        self.begun.append(job.attempt)
        tell(Result(value="x"))


async def test_model_calls_have_turns_also_on_a_worker_that_calls_back_and_tool_calls_begin_at_once() -> None:
    worker, events = CallingBack(), list[Event]()
    table = JobTable([worker], events.append, lambda: 0.0)
    think, call = ModelCall(prompt=(Text(text="q"),)), ToolCall(tool="look")
    for attempt, op in enumerate((think, think, think, call, call), 1):
        table.start("back", Job(attempt=attempt, run="r", step=f"r:{attempt}", op=op), None, "r")
    assert worker.begun == [1, 4, 5]
    for _ in range(10):
        await asyncio.sleep(0)
    assert worker.begun == [1, 4, 5, 2, 3]
    assert sorted(event.attempt for event in events if isinstance(event, Succeeded)) == [1, 2, 3, 4, 5]
