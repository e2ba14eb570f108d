"""In this process, in a Ray actor, behind a server: a planner answers the same. The first two are compared here; that
the worker in this process answers as a server does is the pair `scripted_is_http`."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from plait import AsyncOrchestrator, Config, Plugin
from plait.core.interfaces import Worker
from plait.workers.ray import RayWorker
from tests.planners.test_contract import ASKS, NAMES, OPTIONS, PROMPT, run_python, search

from .test_oracles import RACES, Outcome, Same, outcome_of

pytestmark = pytest.mark.engine
HOST = f"{Same.__module__}:{Same.__name__}"
SURE = [each for each in NAMES if each not in RACES]


async def asked(worker: Worker, planners: list[str]) -> dict[str, Outcome]:
    """Ask all planners, one after another, on one worker."""
    async with AsyncOrchestrator(config=Config(journal="off"), workers=[worker], tools=[search, run_python]) as plait:
        found: dict[str, Outcome] = {}
        for planner in planners:
            task, text = ASKS.get(planner, ("plain", PROMPT))
            spec = Plugin(name=planner, options=OPTIONS.get(planner, {}))
            found[planner] = outcome_of(await plait.run(text, planner=spec, task=task, seed=7))
        return found


async def check(planners: list[str]) -> None:
    here = await asked(Same("single"), planners)
    there = await asked(RayWorker(HOST, {"planner": "single"}, num_cpus=0), planners)
    assert here == there
    assert any(each.status == "done" for each in here.values())


async def test_some_planners_answer_in_ray_as_in_this_process(ray_cluster: Callable[..., None]) -> None:
    ray_cluster()
    await check(random.Random(28).sample(SURE, 6))


@pytest.mark.slow
async def test_all_planners_answer_in_ray_as_in_this_process(ray_cluster: Callable[..., None]) -> None:
    ray_cluster()
    await check(SURE)
