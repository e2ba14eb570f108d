"""No curve bends: what a planner, merge, policy or command costs grows with the size of its work.

Cost is counted in calls, at n and 8 n. Above n^1.15 the plugin's class has to declare its `cost_exponent`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Budget, Plugin, tool
from plait.apps import main
from plait.core.result import Result, Usage
from plait.core.states import State
from plait.core.task import Task
from plait.core.view import Branch
from plait.runtime.plugins.loader import Plugins
from tests.complexity.cases import SIGNALS, Case, case_of, run_python, sampled, search, tree_of
from tests.complexity.counted import EXPONENT, Says, counting, exponent

PLUGINS = Plugins()
FIVE = Usage(completion=5)
OPTIONS: dict[str, dict[str, Any]] = {
    "by-saturation": {"max_branches": 1000},
    "constant": {"value": 1},
    "splice": {"block": {"head": "", "tail": ""}},
}
"""Options that a merge does not do without."""
ASKING = ("judged", "pairwise", "map-reduce", "synthesis", "equivalent", "best-scored")
"""Merges that ask a model, or another scorer: they cost by whole runs."""
SCORER_OPTIONS: dict[str, dict[str, Any]] = {"tool": {"tool": "mark"}}
"""Options that a scorer does not do without."""
MERGES = [name for name in PLUGINS.names("merge") if name not in ASKING]
POLICIES = list(PLUGINS.names("policy"))
SEARCHES = list(PLUGINS.names("search"))


def power(cls: type) -> float:
    """The power of n that a class declares, with the tolerance of the measurement."""
    return cls.cost_exponent + EXPONENT - 1  # type: ignore[attr-defined]


@tool
def mark(text: str) -> float:
    """Give a mark."""
    return 0.5


@tool
def reward(texts: list[str], question: str = "") -> list[float]:
    """Give marks."""
    return [0.5] * len(texts)


@tool
def perplexity(text: str, before: str = "") -> float:
    """Give a mark."""
    return 0.5


def ran(name: str, case: Case, n: int, policies: tuple[Plugin, ...] = ()) -> int:
    """The calls of a whole run at a size."""

    async def run() -> int:
        tools = [search, run_python, mark, reward, perplexity]
        async with AsyncOrchestrator(workers=[case.model(n)], tools=tools, journal="off") as orchestrator:
            with counting() as counter:
                answer = await orchestrator.run(
                    case.text(n),
                    task=case.task,
                    planner=Plugin(name=name, options=case.options(n)),
                    policies=policies,
                    budget=Budget(steps=10_000, tokens=10**7),
                )
            assert answer.status in ("done", "partial"), answer.failure
            return counter.calls

    return asyncio.run(run())


def curve(name: str, case: Case) -> float:
    """The power with which a planner's run grows."""
    return exponent(lambda n: ran(name, case, n), case.small, least=case.least)


@pytest.mark.parametrize("name", PLUGINS.listed("planner"))
def test_a_planner_costs_by_its_work(name: str) -> None:
    grown = curve(name, case_of(name))
    assert grown <= power(PLUGINS.class_of("planner", name)), f"n^{grown:.2f}"


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_costs_by_its_nodes(name: str) -> None:
    grown = curve("tree", tree_of(name))
    assert grown <= power(PLUGINS.class_of("search", name)), f"n^{grown:.2f}"


@pytest.mark.parametrize("name", PLUGINS.listed("scorer"))
def test_a_scorer_costs_by_the_nodes_that_it_scores(name: str) -> None:
    scorer = {"name": name, "options": SCORER_OPTIONS.get(name, {})}
    grown = curve("tree", tree_of("stride", scorer))
    assert grown <= power(PLUGINS.class_of("scorer", name)), f"n^{grown:.2f}"


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_costs_by_the_steps_that_it_looks_at(name: str) -> None:
    case = Case(lambda n: {"n": n, "answer": {"stream": True}})
    grown = exponent(lambda n: ran("sample", case, n, (Plugin(name=name),)), 12, least=2)
    assert grown <= power(PLUGINS.class_of("policy", name)), f"n^{grown:.2f}"


@pytest.mark.parametrize("name", ASKING)
def test_a_merge_that_asks_costs_by_its_branches(name: str) -> None:
    grown = curve("sample", sampled(name, OPTIONS.get(name, {})))
    assert grown <= power(PLUGINS.class_of("merge", name)), f"n^{grown:.2f}"


@pytest.mark.parametrize("name", MERGES)
def test_a_merge_costs_by_its_branches(name: str) -> None:
    merge = PLUGINS.merge(Plugin(name=name, options=OPTIONS.get(name, {})))
    task: Task = PLUGINS.task(Plugin(name="plain"), "What is it?")

    def cost(n: int) -> int:
        done = [
            Branch(
                f"b{i}",
                f"r:b{i}",
                State.DONE,
                Result(value=f"It is {i % 7}.", logprob=-0.5, usage=FIVE, signals=SIGNALS),
                None,
                5,
            )
            for i in range(n)
        ]
        with counting() as counter:
            merge.merge(done, task)
        return counter.calls

    grown = exponent(cost, 25)
    assert grown <= power(type(merge)), f"n^{grown:.2f}"


@pytest.mark.parametrize("command", ["list", "show", "view", "resume"])
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
        more = {"list": ["--limit", "3"], "view": [run, "--no-open", "--out", str(tmp_path / "page.html")]}
        words = ["runs", command, *more.get(command, [run]), "--from", str(path), "--json"]
        assert main.run(words) == 0
        with counting() as counter:
            assert main.run(words) == 0
        return counter.calls

    few, many = cost(64), cost(192)  # lines of the index are read by the page
    assert many <= 1.2 * few, f"{few:,} calls beside 63 other runs, {many:,} beside 191"
