"""Jobs begin a few in each turn of the loop, in order; one that is given up before never begins."""

from __future__ import annotations

import asyncio

from plait.runtime.driver.jobs import FEW, Pace


async def test_a_few_begin_in_each_turn_in_order() -> None:
    pace, begun = Pace(asyncio.get_running_loop()), list[int]()

    async def job(number: int) -> None:
        if await pace.turn(number, "r"):
            begun.append(number)

    jobs = [asyncio.create_task(job(number)) for number in range(20)]
    most, before = 0, 0
    while not all(each.done() for each in jobs):
        await asyncio.sleep(0)
        most, before = max(most, len(begun) - before), len(begun)
    assert begun == list(range(20))
    assert most <= 2 * FEW  # those of a turn, and what was due when we were woken


async def test_what_is_given_up_before_it_begins_takes_no_turn() -> None:
    pace, begun = Pace(asyncio.get_running_loop()), list[int]()

    async def job(number: int) -> None:
        if await pace.turn(number, "r"):
            begun.append(number)

    jobs = [asyncio.create_task(job(number)) for number in range(FEW + 2)]
    await asyncio.sleep(0)
    assert pace.give_up(FEW + 1)
    await asyncio.gather(*jobs)
    assert begun == list(range(FEW + 1))
    assert not pace.give_up(0)


async def test_a_run_with_few_jobs_does_not_wait_for_all_of_one_with_many() -> None:
    pace, begun = Pace(asyncio.get_running_loop()), list[str]()

    async def job(number: int, run: str) -> None:
        if await pace.turn(number, run):
            begun.append(run)

    many = [asyncio.create_task(job(number, "many")) for number in range(100)]
    await asyncio.sleep(0)
    one = asyncio.create_task(job(100, "one"))
    await asyncio.gather(one, *many)
    assert begun.index("one") <= 4 * FEW
