"""Makers and a trainer in virtual time: throughput against the closed forms, and no rollout that is too old."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import pytest

from plait.core.errors import UsageError
from plait_research.rollouts.producer import Feed
from plait_research.rollouts.record import Record, WeightsSegment


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time goes on only when nobody has anything to do, and then at once to the next timer."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def virtually(work: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def record(number: int, policy: int, reward: float | None = 1.0) -> Record:
    return Record(
        rollout=f"{number}/0", group=str(number), tokens=(1, 2), mask=(0, 1), logprobs=(0.0, -1.0),
        segments=(WeightsSegment(start=1, end=2, policy=policy),), reward=reward,
    )  # fmt: skip


async def train(feed: Feed, make: float, step: float, steps: int) -> tuple[float, list[int], list[str]]:
    """Run `batch` makers that take `make` seconds a rollout, and a trainer of `step` seconds a step. Return seconds a
    step (the first, which fills the pipe, left out), the ages, and the rollouts that were trained on."""
    made = 0
    ages: list[int] = []
    seen: list[str] = []

    async def maker() -> None:
        nonlocal made
        while True:
            await feed.credit()
            number, policy = made, feed.version
            made += 1
            await asyncio.sleep(make)
            feed.put([record(number, policy)])

    makers = [asyncio.ensure_future(maker()) for _ in range(feed.batch)]
    loop = asyncio.get_running_loop()
    began = 0.0
    for number in range(steps + 1):
        batch = await feed.take()
        ages += [feed.version - version for each in batch for version in each[0].versions]
        seen += [each[0].rollout for each in batch]
        await asyncio.sleep(step)
        feed.trained()
        if not number:
            began = loop.time()
    seconds = (loop.time() - began) / steps
    for each in makers:
        each.cancel()
    await asyncio.gather(*makers, return_exceptions=True)
    return seconds, ages, seen


@pytest.mark.parametrize(("make", "step"), [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (10.0, 0.5)])
def test_synchronous_takes_both_times_and_one_step_ahead_the_longer(make: float, step: float) -> None:
    steps = 40
    together, ages, seen = virtually(train(Feed(8), make, step, steps))
    assert together == pytest.approx(make + step)
    assert set(ages) == {0}
    assert len(seen) == len(set(seen)) == 8 * (steps + 1)
    overlapped, ages, seen = virtually(train(Feed(8, staleness=1.0), make, step, steps))
    assert overlapped == pytest.approx(max(make, step))
    assert max(ages) == 1
    assert len(seen) == len(set(seen)) == 8 * (steps + 1)


@pytest.mark.parametrize(("make", "step"), [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0)])
def test_half_a_step_ahead_lies_between(make: float, step: float) -> None:
    seconds, ages, _ = virtually(train(Feed(8, staleness=0.5), make, step, 40))
    assert max(make, step) <= seconds <= make + step
    assert max(ages) <= 1


def test_what_is_too_old_when_it_is_taken_is_left_out_and_made_again() -> None:
    async def work() -> tuple[Feed, list[list[Record]]]:
        feed = Feed(2, staleness=3.0, max_staleness=1)
        for number in range(6):
            await feed.credit()
            feed.put([record(number, policy=0)])
        await feed.take()
        feed.trained()
        feed.trained()
        waiting = asyncio.ensure_future(feed.take())
        await asyncio.sleep(1)
        assert not waiting.done(), "the four that are there are two updates old"
        for number in range(6, 8):
            await asyncio.wait_for(feed.credit(), 1)
            feed.put([record(number, policy=2)])
        return feed, await waiting

    feed, batch = virtually(work())
    assert [each[0].rollout for each in batch] == ["6/0", "7/0"]
    assert feed.counts.stale == 4


def test_unjudged_rollouts_are_counted_and_their_credit_comes_back() -> None:
    async def work() -> Feed:
        feed = Feed(2)
        rewards = [math.nan, 1.0, None, 0.0]
        waiting = asyncio.ensure_future(feed.take())
        for number, reward in enumerate(rewards):
            assert not waiting.done()
            await asyncio.wait_for(feed.credit(), 1)
            feed.put([record(number, 0, reward)])
            await asyncio.sleep(1)
        await waiting
        return feed

    assert virtually(work()).counts.unjudged == 2


def of_group(group: str, branch: int, reward: float | None, policy: int = 0) -> list[Record]:
    made = record(0, policy, reward)
    return [made.model_copy(update={"rollout": f"{group}/{branch}", "group": group, "branch": branch})]


def test_rollouts_of_a_group_are_given_out_together_with_their_advantages() -> None:
    async def work() -> tuple[Feed, list[list[Record]]]:
        feed = Feed(6, group=3)
        for _ in range(6):
            await asyncio.wait_for(feed.credit(), 1)
        for group, branch, reward in (("b", 0, 0.0), ("a", 2, 1.0), ("b", 1, None), ("a", 0, 0.0), ("b", 2, 1.0)):
            feed.put(of_group(group, branch, reward))
        waiting = asyncio.ensure_future(feed.take())
        await asyncio.sleep(1)
        assert not waiting.done(), "a lacks one of three"
        feed.put(of_group("a", 1, 0.0))
        batch = await waiting
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(feed.credit(), 1)
        feed.trained()
        for _ in range(6):
            await asyncio.wait_for(feed.credit(), 1)
        return feed, batch

    feed, batch = virtually(work())
    assert [each[0].rollout for each in batch] == ["b/0", "b/2", "a/0", "a/1", "a/2"], "whole groups as they came"
    gains = [each[0].advantage for each in batch]
    assert gains == pytest.approx([-0.7071, 0.7071, -0.5774, -0.5774, 1.1547], abs=1e-4)
    assert (feed.counts.read, feed.counts.unjudged) == (5, 1)


def test_a_group_of_which_nothing_is_left_is_made_again() -> None:
    async def work() -> tuple[Feed, list[list[Record]]]:
        feed = Feed(2, group=2)
        for _ in range(2):
            await feed.credit()
        feed.forfeit("a")
        feed.put(of_group("a", 1, 1.0))
        waiting = asyncio.ensure_future(feed.take())
        for branch in range(2):
            await asyncio.wait_for(feed.credit(), 1)
            feed.put(of_group("b", branch, float(branch)))
        return feed, await waiting

    _, batch = virtually(work())
    assert [each[0].rollout for each in batch] == ["b/0", "b/1"], "the one that was left of a had none to compare with"


def test_a_maker_that_is_given_up_loses_no_credit() -> None:
    async def work() -> None:
        feed = Feed(1)
        await feed.credit()
        first, second = (asyncio.ensure_future(feed.credit()) for _ in range(2))
        await asyncio.sleep(0)
        feed.forfeit()
        first.cancel()
        await asyncio.wait_for(second, 1)

    virtually(work())


def test_a_feed_without_a_batch_is_refused() -> None:
    for wrong in ((0, 0.0), (1, -1.0), (1, math.inf)):
        with pytest.raises(UsageError):
            Feed(*wrong)
    with pytest.raises(UsageError, match="not made of groups of 3"):
        Feed(8, group=3)
