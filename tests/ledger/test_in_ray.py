"""In this process, in a Ray actor, behind a server: a planner answers the same, and as many tokens are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from plait import AsyncOrchestrator, Config, Plugin
from plait.core.interfaces import Worker
from plait.runtime.client.answer import Answer
from plait.workers.http import Http
from plait.workers.ray import RayWorker
from tests.planners.test_contract import ASKS, NAMES, OPTIONS, PROMPT, run_python, search

from .cells import replies
from .test_oracles import RACES, Outcome, Same, outcome_of
from .truth import TruthServer

pytestmark = pytest.mark.engine
AHEAD = {"speculate"}
BY_FUNCTIONS = {"partial_rollout", "react", "react_ahead", "speculate"}
"""Planners whose tools a server gets as functions and not as text: its prompt differs, and so does its answer."""
HOST = f"{Same.__module__}:{Same.__name__}"


@dataclass(frozen=True)
class Told:
    """What is told of a run."""

    outcome: Outcome
    generated: int
    by: str | None
    """Who counted these."""


async def asked(worker: Worker, planners: list[str]) -> dict[str, Told]:
    """Ask all planners, one after another, on one worker."""
    async with AsyncOrchestrator(config=Config(journal="off"), workers=[worker], tools=[search, run_python]) as plait:
        found: dict[str, Told] = {}
        for planner in planners:
            task, text = ASKS.get(planner, ("plain", PROMPT))
            spec = Plugin(name=planner, options=OPTIONS.get(planner, {}))
            found[planner] = _told(planner, await plait.run(text, planner=spec, task=task, seed=7))
        return found


def _told(planner: str, answer: Answer) -> Told:
    """Of a planner that races only the status is the same, and of one that drafts ahead not the count: a draft that is
    not needed any more is stopped wherever it is."""
    if planner in RACES:
        return Told(Outcome(answer.status, None, ""), 0, None)
    if planner in AHEAD:
        return Told(outcome_of(answer), 0, answer.usage.sources.completion)
    return Told(outcome_of(answer), answer.usage.completion, answer.usage.sources.completion)


async def check(planners: list[str]) -> None:
    here = await asked(Same("single"), planners)
    there = await asked(RayWorker(HOST, {"planner": "single"}, num_cpus=0), planners)
    assert here == there
    async with TruthServer.of("text", True, replies=replies("single")) as server:
        served = await asked(Http(server.url, slots=8, backoff=0.001), planners)
    assert _comparable(served) == _comparable(here)
    assert any(each.outcome.status == "done" for each in here.values())
    assert {each.by for each in here.values()} <= {"server", None}


def _comparable(found: dict[str, Told]) -> dict[str, Outcome | str]:
    return {name: each.outcome.status if name in BY_FUNCTIONS else each.outcome for name, each in found.items()}


async def test_all_planners_answer_in_ray_as_in_this_process_and_behind_a_server(
    ray_cluster: Callable[..., None],
) -> None:
    ray_cluster()
    await check(list(NAMES))
