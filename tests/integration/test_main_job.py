"""The main job, for real: puzzles, spawned threads, the bundled model on vLLM in a Ray actor."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from plait import AsyncOrchestrator, Config
from plait.workers.ray import RayWorker, pool
from plait_bench.countdown import draw, is_right

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

Both = tuple[AsyncOrchestrator, RayWorker]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ray(ray_cluster: Callable[..., None]) -> AsyncIterator[Both]:
    """An orchestrator over one engine in a Ray actor, and that worker."""
    ray_cluster(gpus=0)
    (worker,) = pool(1, options={"model": Config.load().model, "kv_cache_memory_bytes": 128 << 20})
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        yield orchestrator, worker


async def _solve(orchestrator: AsyncOrchestrator, count: int, planner: str, **options: Any) -> list[Any]:
    problems = draw(count, seed=11)
    gate = asyncio.Semaphore(16)

    async def one(text: str) -> Any:
        async with gate:
            return await orchestrator.run(text, task="countdown", planner=planner, **options)

    answers = await asyncio.gather(*(one(problem.text) for problem in problems))
    for problem, answer in zip(problems, answers, strict=True):
        assert answer.verified is None or answer.verified == is_right(problem, answer.answer)
    return answers


async def test_threads_solve_most_puzzles_and_more_than_one_line(ray: Both) -> None:
    orchestrator, _ = ray
    threads = await _solve(orchestrator, 40, "threads")
    single = await _solve(orchestrator, 40, "single")
    solved = sum(answer.verified is True for answer in threads)
    assert solved >= 30  # 85 % and more on 300 problems; far enough below that for 40
    assert solved >= sum(answer.verified is True for answer in single) + 6


async def test_threads_read_their_parents_context_from_the_cache(ray: Both) -> None:
    orchestrator, _ = ray
    answers = await _solve(orchestrator, 10, "threads")
    spawned = [answer for answer in answers if len(answer.report.steps) > 2]
    assert len(spawned) >= 8
    for answer in spawned:
        assert answer.usage.cached >= 0.4 * answer.usage.prompt
        assert answer.critical_path_tokens < answer.total_tokens


@pytest.mark.parametrize("how", ["policy", "merge"])
async def test_after_a_vote_is_decided_the_engine_generates_nothing_for_the_losers(ray: Both, how: str) -> None:
    orchestrator, worker = ray
    planner = "sample:n=8,merge=best-of" + (",early=true" if how == "merge" else "")
    policies = ["consensus"] if how == "policy" else []
    stopped = 0
    for number, problem in enumerate(draw(12, seed=3)):
        before = (await worker.stats())["generated"]
        answer = await orchestrator.run(problem.text, task="countdown", planner=planner, policies=policies, seed=number)
        after = await worker.stats()
        # All that the engine generated for this run is in its account, what it generated for losers included; the
        # engine runs nothing of it any more and its counter stands still.
        assert after["running"] == 0
        assert after["generated"] - before == answer.usage.completion
        await asyncio.sleep(0.05)
        assert (await worker.stats())["generated"] == after["generated"]
        losers = [row for row in answer.report.steps if row.state == "cancelled"]
        stopped += len(losers)
        if losers:
            assert answer.verified is True
            assert answer.usage.cancelled > 0
            # All samples decode in step, so when the last one that ended decided the vote, each loser had about as
            # many tokens. What it may have beyond that is the steps that passed while the abort was on its way, which
            # are more on a busy machine.
            deciding = max(
                row.path_tokens for row in answer.report.steps if row.state == "done" and row.kind == "think"
            )
            assert answer.usage.cancelled <= len(losers) * (deciding + 64)
    assert stopped >= 12


async def test_cancelling_a_run_frees_the_engine(ray: Both) -> None:
    orchestrator, worker = ray
    handles = [
        await orchestrator.submit(problem.text, task="countdown", planner="sample:n=8") for problem in draw(4, seed=4)
    ]
    while (await worker.stats())["running"] < 16:
        await asyncio.sleep(0.01)
    for handle in handles:
        handle.cancel()
    answers = [await asyncio.wait_for(handle, 300) for handle in handles]
    assert {answer.status for answer in answers} <= {"cancelled", "done"}
    assert (await worker.stats())["running"] == 0


@pytest.mark.parametrize("count", [90, pytest.param(1000, marks=pytest.mark.slow)])
async def test_runs_that_are_cancelled_at_random_leave_nothing_behind(ray: Both, count: int) -> None:
    """Many runs over one engine, two thirds of them given up at some moment."""
    orchestrator, worker = ray
    rng = random.Random(5)
    problems = draw(50, seed=21)
    room = asyncio.Semaphore(24)
    statuses: list[str] = []

    async def one(number: int) -> None:
        async with room:
            planner = ("threads:n=4", "sample:n=4,answer.temperature=1,answer.max_tokens=64")[number % 2]
            text = problems[number % 50].text
            handle = await orchestrator.submit(text, task="countdown", planner=planner, seed=number)
            if number % 3:
                await asyncio.sleep(rng.expovariate(1 / 0.05))
                handle.cancel()
            statuses.append((await handle).status)

    await asyncio.gather(*(one(number) for number in range(count)))
    assert len(statuses) == count
    assert statuses.count("cancelled") > 0.3 * count
    assert statuses.count("done") + statuses.count("partial") >= 0.3 * count
    driver = orchestrator._driver
    assert driver is not None
    machine = driver.machine
    for _ in range(100):  # the last aborts are on their way
        if not machine.attempts and (await worker.stats())["running"] == 0:
            break
        await asyncio.sleep(0.05)
    assert machine.attempts == {}
    assert machine.runs == {}
    assert machine.nodes == {}
    assert all(host.running == 0 for host in machine.workers.values())
    stats = await worker.stats()
    assert stats["running"] == 0
    assert stats["kv_used"] == 0
    assert len(driver.jobs) == 0
