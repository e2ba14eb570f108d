"""No curve bends: what a planner, merge, policy or command costs grows with the size of its work.

Cost is counted in calls, at n and 8 n. Above n^1.15 the plugin's docstring has to name the power, as `n^2`, and why.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Budget, Plugin
from plait.apps import main
from plait.core.result import Result, Usage
from plait.core.states import State
from plait.core.task import Task
from plait.core.view import Branch
from plait.runtime.plugins.loader import Plugins
from tests.complexity.counted import EXPONENT, Says, counting, exponent

PLUGINS = Plugins()
FIVE = Usage(completion=5)
WIDTHS: dict[str, dict[str, Any]] = {
    "adaptive": {},
    "blackboard": {"rounds": 2},
    "debate": {"rounds": 2},
    "layers": {"rounds": 2},
    "mars": {},
    "sample": {},
    "think-summarize": {},
}
"""Planners with a width `n`, and their other options."""
OPTIONS: dict[str, dict[str, Any]] = {
    "constant": {"value": 1},
    "splice": {"head": "", "tail": ""},
}
MERGES = [
    name
    for name in PLUGINS.names("merge")
    if name not in ("judged", "pairwise", "map-reduce", "synthesis", "equivalent", "best-scored")  # they ask a model
    and name != "by-saturation"  # it costs by the branches that it wants more
    and name not in ("inverse-entropy", "self-certainty", "weighted")  # the same vote, by signals of a real model
]
POLICIES = [name for name in PLUGINS.names("policy") if name not in ("redundant", "deepconf")]  # the same


def power(cls: type) -> float:
    """The power of n that a class says it costs; by default 1."""
    said = re.search(r"n\^(\d+(?:\.\d+)?)", cls.__doc__ or "")
    return float(said[1]) + EXPONENT - 1 if said else EXPONENT


def ran(planner: Plugin, policies: tuple[Plugin, ...] = ()) -> int:
    """The calls of a whole run."""

    async def run() -> int:
        async with AsyncOrchestrator(workers=[Says("It is {}.".format)], journal="off") as orchestrator:
            await orchestrator.run("First")
            with counting() as counter:
                answer = await orchestrator.run(
                    "What is it?", planner=planner, policies=policies, budget=Budget(steps=10_000, tokens=10**7)
                )
            assert answer.status in ("done", "partial"), answer.failure
            return counter.calls

    return asyncio.run(run())


@pytest.mark.parametrize("name", WIDTHS)
def test_a_planner_costs_by_its_width(name: str) -> None:
    grown = exponent(lambda n: ran(Plugin(name=name, options={**WIDTHS[name], "n": n})), 8, least=2)
    assert grown <= power(PLUGINS.class_of("planner", name)), f"n^{grown:.2f}"


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_costs_by_the_steps_that_it_looks_at(name: str) -> None:
    grown = exponent(lambda n: ran(Plugin(name="sample", options={"n": n}), (Plugin(name=name),)), 12, least=2)
    assert grown <= power(PLUGINS.class_of("policy", name)), f"n^{grown:.2f}"


@pytest.mark.parametrize("name", MERGES)
def test_a_merge_costs_by_its_branches(name: str) -> None:
    merge = PLUGINS.merge(Plugin(name=name, options=OPTIONS.get(name, {})))
    task: Task = PLUGINS.task(Plugin(name="plain"), "What is it?")

    def cost(n: int) -> int:
        done = [
            Branch(f"b{i}", f"r:b{i}", State.DONE, Result(value=f"It is {i % 7}.", logprob=-0.5, usage=FIVE), None, 5)
            for i in range(n)
        ]
        with counting() as counter:
            merge.merge(done, task)
        return counter.calls

    grown = exponent(cost, 25)
    assert grown <= power(type(merge)), f"n^{grown:.2f}"


@pytest.mark.parametrize("command", ["list", "show"])
def test_a_command_on_one_run_does_not_read_the_others(command: str, tmp_path: Path) -> None:
    async def written(path: Path, runs: int) -> str:
        async with AsyncOrchestrator(workers=[Says("It is {}.".format)], journal=path) as orchestrator:
            handles = [await orchestrator.submit("what", planner="sample:n=3") for _ in range(runs)]
            for each in handles:
                await each
            return handles[runs // 2].run

    def cost(n: int) -> int:
        path = tmp_path / f"{n}.plait"
        run = asyncio.run(written(path, n))
        words = ["runs", command, *([run] if command == "show" else ["--limit", "3"]), "--from", str(path), "--json"]
        assert main.run(words) == 0
        with counting() as counter:
            assert main.run(words) == 0
        return counter.calls

    few, many = cost(64), cost(192)  # lines of the index are read by the page
    assert many <= 1.2 * few, f"{few:,} calls beside 63 other runs, {many:,} beside 191"
