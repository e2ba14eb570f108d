"""Engines that die, runs that are cancelled, and what is left of both: nothing."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from benchmarks import faults
from orchestrator import AsyncOrchestrator, Config
from orchestrator.apps.problems import draw
from orchestrator.core.errors import WorkerError
from workers.ray_pool import pool

# Slow: they start and lose several clusters in one process, which Ray does not always survive.
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]


async def test_an_engine_that_is_killed_costs_neither_answers_nor_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PROBLEMS", 24)
    workers = faults.engines(tmp_path)
    async with AsyncOrchestrator(workers=workers, config=Config(journal="off")) as orchestrator:
        await faults.solve(orchestrator, 99)
        found = await faults.trial(orchestrator, workers, tmp_path, seed=3)
    assert found["moved"] > 0, "the engine was killed when nothing was running"
    assert found["same"] == 24
    assert found["repeated"] < 0.05  # 1 % is measured on longer runs


@pytest.mark.parametrize("count", [200, 1000])
async def test_runs_that_are_cancelled_at_random_leave_nothing_behind(count: int) -> None:
    """Many runs over one engine, two thirds of them given up at some moment."""
    rng = random.Random(5)
    (worker,) = pool(1, options={"model": Config.load().model, "slots": 64})
    problems = draw(50, seed=21)
    async with AsyncOrchestrator(workers=[worker], config=Config(journal="off")) as orchestrator:
        room = asyncio.Semaphore(24)
        statuses: list[str] = []

        async def one(number: int) -> None:
            async with room:
                planner = ("threads:width=4", "sample:n=4,temperature=1,max_tokens=64")[number % 2]
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
        assert all(host.running == 0 for host in machine.fleet.hosts.values())
        stats = await worker.stats()
        assert stats["running"] == 0
        assert stats["kv_used"] == 0
        assert driver._jobs == {}


async def test_room_that_a_cluster_does_not_have_is_said_so() -> None:
    workers = pool(2, "workers.scripted:Scripted", {"replies": [{"text": "x"}]}, num_cpus=1000, strategy="spread")
    with pytest.raises(WorkerError, match="1000 CPU"):
        async with AsyncOrchestrator(workers=workers, config=Config(journal="off")):
            pass
