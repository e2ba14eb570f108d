"""Jobs begin a few in each turn of the loop, in order; one that is given up before never begins."""

from __future__ import annotations

import asyncio
from functools import partial

from plait.runtime.driver.jobs import FEW, PASSED, Pace


def idle() -> float:
    """A clock of a loop that works nothing."""
    return 0.0


def entered(pace: Pace, begun: list[int], jobs: range, share: str = "s", run: str = "r") -> None:
    """Have jobs begin that write down their number."""
    for number in jobs:
        pace.enter(number, share, run, partial(begun.append, number))


async def test_a_few_begin_in_each_turn_in_order() -> None:
    pace, begun = Pace(asyncio.get_running_loop(), idle), list[int]()
    entered(pace, begun, range(20))
    most = before = len(begun)
    assert before == FEW, "the first wait for nothing"
    while len(begun) < 20:
        await asyncio.sleep(0)
        most, before = max(most, len(begun) - before), len(begun)
    assert begun == list(range(20)) and most == FEW


async def test_a_turn_in_which_much_was_done_begins_nothing_but_not_for_ever() -> None:
    worked = [0.0]
    pace, begun = Pace(asyncio.get_running_loop(), lambda: worked[0]), list[int]()
    entered(pace, begun, range(FEW + 2))
    turns = 0
    while len(begun) < FEW + 1:
        worked[0] += 1.0  # each turn works for a second
        await asyncio.sleep(0)
        turns += 1
    assert turns == PASSED + 1


async def test_what_is_given_up_before_it_begins_takes_no_turn() -> None:
    pace, begun = Pace(asyncio.get_running_loop(), idle), list[int]()
    entered(pace, begun, range(FEW + 2))
    assert pace.give_up(FEW + 1) and not pace.give_up(FEW + 1)
    for _ in range(4):
        await asyncio.sleep(0)
    assert begun == list(range(FEW + 1))
    assert not pace.give_up(0)


async def test_a_run_with_few_jobs_does_not_wait_for_all_of_one_with_many() -> None:
    pace, begun = Pace(asyncio.get_running_loop(), idle), list[int]()
    entered(pace, begun, range(100), run="many")
    entered(pace, begun, range(100, 101), run="one")
    while len(begun) < 101:
        await asyncio.sleep(0)
    assert begun.index(100) <= 2 * FEW


async def test_many_runs_of_a_share_wait_for_one_another_and_nobody_else_for_them() -> None:
    pace, begun = Pace(asyncio.get_running_loop(), idle), list[int]()
    for number in range(100):
        entered(pace, begun, range(number, number + 1), share="many", run=f"r{number}")
    entered(pace, begun, range(100, 101), share="one")
    while len(begun) < 101:
        await asyncio.sleep(0)
    assert begun.index(100) <= 2 * FEW
