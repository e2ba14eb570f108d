"""Engines that come and go with the load: the rule alone, a wave of load in virtual time, and real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator, Config
from plait.core.errors import ConfigError
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.runtime.client import worker_factory
from plait.runtime.client.worker_factory import workers as build
from plait.runtime.driver import autoscaler
from plait.runtime.driver.autoscaler import Bounds, Scaler
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from plait_research.simulation.latency import Host, varied
from plait_research.simulation.workload import WorkloadReport, simulate_workload

BOUNDS = Bounds(least=1, most=4, target=1.0, patience=2.0, cool_down=10.0, drain=1.0)


def test_it_grows_after_patience_and_shrinks_after_the_cool_down() -> None:
    scaler = Scaler(BOUNDS)
    assert [scaler.choose_count(at, 30, 10, 1) for at in (0.0, 1.0, 2.0)] == [1, 1, 3]
    assert scaler.choose_count(3.0, 100, 10, 3) == 3  # not yet for long
    assert scaler.choose_count(5.0, 100, 10, 3) == 4  # never more than `most`
    assert [scaler.choose_count(at, 5, 10, 4) for at in (6.0, 10.0, 14.0)] == [4, 4, 4]
    assert scaler.choose_count(16.0, 5, 10, 4) == 1


def test_a_peak_within_the_cool_down_keeps_the_engines() -> None:
    scaler = Scaler(BOUNDS)
    for at in range(40):
        assert scaler.choose_count(float(at), 40 if at % 8 == 0 else 5, 10, 4) == 4


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 1000)), max_size=60),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_it_stays_within_its_bounds_and_remembers_little(looks: list[tuple[float, int]], least: int, more: int) -> None:
    bounds = Bounds(least=least, most=least + more, patience=1.0, cool_down=5.0)
    scaler, now, engines = Scaler(bounds), 0.0, least
    for gap, steps in looks:
        now += max(0.5, gap)
        engines = scaler.choose_count(now, steps, 8, engines)
        assert bounds.least <= engines <= bounds.most
        assert len(scaler._wanted) <= 12


ONE = Request(text="q", planner=Plugin(name="sample", options={"n": 4, "answer": {"max_tokens": 200}}))
WAVE = [i * 4.0 for i in range(15)] + [60 + i * 0.3 for i in range(100)] + [90 + i * 4.0 for i in range(20)]
"""Runs that come one in four seconds, then three a second for half a minute, then again seldom."""


def played(bounds: Bounds | None, engines: int) -> WorkloadReport:
    hosts = [Host(f"e{i}", slots=8, decode_rate=50.0, tells_ids=bounds is not None) for i in range(engines)]
    return simulate_workload(ONE, WAVE, hosts=hosts, outcome=varied(0.5), elastic=bounds, start=5.0)


def test_a_wave_is_served_with_fewer_engine_seconds_and_nothing_is_lost() -> None:
    always, one = played(None, 6), played(None, 1)
    bounds = Bounds(least=1, most=6, cool_down=15.0, drain=0.5)
    report = played(bounds, 6)
    assert report.done == always.done == len(WAVE)
    assert report.engine_seconds < 0.7 * always.engine_seconds
    assert report.latency.p90 < 0.6 * one.latency.p90
    assert 2 <= report.changes <= 14  # up and down once, not to and fro
    assert report.usage.cancelled <= 16 * 8 * report.changes  # of an attempt that was handed over at most a report


class Noted(Scripted):
    """Knows when it is there."""

    def __init__(self, name: str) -> None:
        super().__init__([Reply(when="long", text="word " * 60, tokens_per_second=30), Reply(text="ok", delay=0.02)],
                         slots=4, name=name)  # fmt: skip
        self.there = False
        self.starts = 0

    async def start(self) -> None:
        await super().start()
        self.there, self.starts = True, self.starts + 1

    async def close(self) -> None:
        await super().close()
        self.there = False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)


async def test_workers_come_with_load_go_without_it_and_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [Noted(f"w{i}") for i in range(3)]
    monkeypatch.setattr(autoscaler, "CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(worker_factory, "Bounds", partial(Bounds, patience=0.05, drain=0.1))
    settings = {"journal": "off", "engines": 1, "max_engines": 3, "cool_down": 0.8}  # longer than a busy core pauses
    async with AsyncOrchestrator(workers=workers, **settings) as orchestrator:
        assert [each.there for each in workers] == [True, False, False]
        runs = [await orchestrator.submit(f"short {i}") for i in range(200)]
        await until(lambda: all(each.there for each in workers))
        assert {(await run).answer for run in runs} == {"ok"}
        aloud = "single:answer.stream=true"  # what was generated by then is known
        # One on each. No worker may be lost to them: an engine that plait itself removes is no lost one.
        long = [await orchestrator.submit(f"long {i}", planner=aloud, retries={"lost": 0}) for i in range(3)]
        await until(lambda: sum(each.there for each in workers) == 1)
        answers = [await run for run in long]
        assert all(answer.status == "done" for answer in answers)
        assert sum(answer.usage.cancelled > 0 for answer in answers) == 2  # those that ran on the workers that went
        more = [await orchestrator.submit(f"short {i}") for i in range(200)]
        await until(lambda: all(each.there for each in workers))
        assert {(await run).answer for run in more} == {"ok"}
    assert not any(each.there for each in workers)


def test_settings_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_engines"):
        build(Config(worker="engine", max_engines=2), Plugins())
    with pytest.raises(ConfigError, match="not both"):
        build(Config(max_engines=2, placement="pack"), Plugins())
