"""Are the tools found among thousands, and do checks and repairs make plans run?

Measures retrieval and plans on generated tools, and writes the page.

What is reported comes from domains that were not looked at when settings were chosen (`unseen`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from plait.core.record import StepRecord
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.workers.tools.retrieve import Catalog as Index
from plait_research.planners.workflow import Workflow

from .._tools.command import Given, command
from .._tools.statistics import mean, share
from .catalog import Catalog, MockTool, Request
from .writer import Planner

__all__ = ["SIZES", "Plan", "Recall", "page", "plans", "recall", "run"]

SIZES = (300, 1000, 5000)
KS = (5, 12, 25)
ERRORS = (0.0, 0.1, 0.2, 0.4)
REPAIRS = (0, 1, 2, 4)
WIDTH = 16
"""Questions at the same time."""


@dataclass(frozen=True, slots=True)
class Recall:
    """How much of a smallest plan is among the `k` tools that are found for its question."""

    tools: int
    k: int
    producers: bool
    shares: tuple[float, ...]
    """By question: of the tools that are needed."""


def recall(sizes: Sequence[int], questions: int, seed: int, seen: bool = False) -> list[Recall]:
    """Search for every question among ever more tools."""
    found: list[Recall] = []
    for size in sizes:
        catalog = Catalog(tools=size)
        index = Index(catalog.specs)
        names = [each.name for each in catalog.specs]
        asked = catalog.requests(questions, seed, seen)
        for producers in (False, True):
            ranked = [[names[at] for at in index.search(each.text, max(KS), producers=producers)] for each in asked]
            for k in KS:
                shares = tuple(_among(each, some[:k]) for each, some in zip(asked, ranked, strict=True))
                found.append(Recall(size, k, producers, shares))
    return found


def _among(request: Request, names: Sequence[str]) -> float:
    needed = {each.tool for each in request.things}
    return round(len(needed & set(names)) / len(needed), 4)


@dataclass(frozen=True, slots=True)
class Plan:
    """What became of one question."""

    tools: int
    errors: float
    repairs: int
    ran: bool
    """The run ended, no call failed, and what was asked for was made."""
    f1: float
    """Of the edges between calls, against the smallest plan's; 0 for a plan that did not run."""
    depth: float | None
    """Calls one after another, divided by the smallest plan's; of plans that ran."""
    mended: int
    """Repairs that the model was asked for."""
    searches: int
    """Searches for tools, the first included."""
    needed: int
    """Calls of the smallest plan."""


async def plans(size: int, questions: int, seed: int, errors: float, repairs: int, shown: int = 12) -> list[Plan]:
    """Plan and run the unseen questions among `size` tools."""
    catalog = Catalog(tools=size)
    asked = catalog.requests(questions, seed)
    model = Planner({each.text: each for each in asked}, errors, seed)
    tools = [MockTool(each) for each in catalog.things.values()]
    planner = Workflow(repairs=repairs, max_tools=shown)
    gate = asyncio.Semaphore(WIDTH)
    async with AsyncOrchestrator(workers=[model], tools=tools, journal="off") as orchestrator:

        async def one(request: Request) -> Plan:
            async with gate:
                answer = await orchestrator.run(request.text, planner=planner, policies=[])
            return judged(request, answer, size, errors, repairs)

        return list(await asyncio.gather(*map(one, asked)))


def judged(request: Request, answer: Answer, size: int, errors: float, repairs: int) -> Plan:
    """Compare a run with the smallest plan."""
    steps = {row.step: row for row in answer.trace if row.kind == "call" and row.label}
    edges = frozenset((steps[need].label, row.label) for row in steps.values() for need in row.needs if need in steps)
    good = isinstance(answer.value, str) and answer.value.startswith(f"{request.target.kind}:")
    ran = answer.status == "done" and good and all(row.state == "done" for row in steps.values())
    thinks = [row for row in answer.trace if row.kind == "think"]
    return Plan(
        size,
        errors,
        repairs,
        ran,
        _f1(edges, request.edges) if ran else 0.0,
        _depth(steps) / request.target.level if ran else None,
        sum(row.label == "repair" for row in thinks),
        sum(row.kind == "call" and not row.label for row in answer.trace),
        len(request.things),
    )


def _f1(found: frozenset[tuple[str, str]], right: frozenset[tuple[str, str]]) -> float:
    return 2 * len(found & right) / (len(found) + len(right)) if found or right else 1.0


def _depth(steps: dict[str, StepRecord]) -> int:
    depths: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in depths:
            depths[name] = 1 + max((of(need) for need in steps[name].needs if need in steps), default=0)
        return depths[name]

    return max(map(of, steps), default=0)


# -- the page ----------------------------------------------------------------------------------------------------------


def run(given: Given, sizes: Sequence[int] = SIZES) -> str:
    """Measure, write the rows and the page, and return the page."""
    rows = given.out / "data" / "rows.json"
    if not given.report:
        questions, seed = given.problems, given.common.load().seed or 0
        found: dict[str, Any] = {"questions": questions, "seed": seed}
        found["recall"] = [astuple(each) for each in recall(sizes, questions, seed)]
        made: list[Plan] = []
        for errors in ERRORS:
            for repairs in REPAIRS if errors else (0,):
                made += asyncio.run(plans(sizes[0], questions, seed, errors, repairs))
        for size in sizes[1:]:
            made += asyncio.run(plans(size, questions, seed, 0.1, 2))
        found["plans"] = [astuple(each) for each in made]
        rows.parent.mkdir(parents=True, exist_ok=True)
        rows.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    said = json.loads(rows.read_text(encoding="utf-8"))
    recalls = [Recall(*each) for each in said["recall"]]
    return given.write(page(recalls, [Plan(*each) for each in said["plans"]], said["questions"], said["seed"]))


_HEAD = """\
# Tools at scale

Made by `python -m experiments tools_at_scale --problems {questions} --seed {seed}`, without an engine. The tools are
generated: typed, in domains of ten, each making one thing. A question names a thing, and the smallest plan for it is
known: {least} to {most} calls, {mean:.1f} on average. Three in ten questions call it by a word that no tool uses.
**The catalogue is made for the search**: each tool takes what another makes, which is what `with producers` looks for.
On [real tools](../toolbench/README.md) it changes nothing, and far fewer are found. Half the domains were looked at
while settings were chosen; all figures are from the other half. 95 % intervals (bootstrap) in brackets.

## Finding tools

The share of a smallest plan's tools that are among the `k` tools found (recall), and how often all of them are.

| tools | k | BM25 | all of them | with producers | all of them |
|---|---|---|---|---|---|
"""
_PLANS = """
## Plans

Planner `workflow` with 12 tools shown, and a model that knows the smallest plan but uses only the tools that it sees
of. Each step that it writes, in a plan or a repair, is spoilt with a given probability: an unknown tool, argument or
reference, a missing argument, a missing part, steps that wait for one another, a step twice, another tool of
the domain; all as likely. So this measures the search, the check and the repair loop, and no model.

*Executable*: the run ended, no call failed, and what was asked for was made. *Edge F1*: F1 score of the edges that
pass values between calls, against the smallest plan; 0 for a plan that did not run. As each thing has one maker,
a plan that runs is nearly always the right one. *Depth*: calls one after another, divided by the smallest plan's.

| tools | a step is spoilt | most repairs | executable | edge F1 | depth | repairs a plan | searches a plan |
|---|---|---|---|---|---|---|---|
"""
_FOOT = """
Not measured: ranking by vectors (there is no embedding model here whose figures would say anything about yours), and
plans of a real small model: none of the bundled models was trained to write them.
"""


def page(recalls: Sequence[Recall], made: Sequence[Plan], questions: int, seed: int) -> str:
    """Return the page."""
    needed = [each.needed for each in made] or [0]
    text = _HEAD.format(questions=questions, seed=seed, least=min(needed), most=max(needed), mean=np.mean(needed))
    by = {(each.tools, each.k, each.producers): each.shares for each in recalls}
    for size, k in dict.fromkeys((each.tools, each.k) for each in recalls):
        cells: list[str] = []
        for producers in (False, True):
            shares = by[size, k, producers]
            whole = [each == 1.0 for each in shares]
            cells += [mean(shares).percent(), share(whole).percent()]
        text += f"| {size:,} | {k} | {' | '.join(cells)} |\n"
    text += _PLANS
    for size, errors, repairs in dict.fromkeys((each.tools, each.errors, each.repairs) for each in made):
        rows = [each for each in made if (each.tools, each.errors, each.repairs) == (size, errors, repairs)]
        depths = [each.depth for each in rows if each.depth is not None]
        cells = [
            share([each.ran for each in rows]).percent(),
            mean([each.f1 for each in rows]).number(),
            f"{np.mean(depths):.2f}" if depths else "–",
            f"{np.mean([each.mended for each in rows]):.2f}",
            f"{np.mean([each.searches for each in rows]):.2f}",
        ]
        text += f"| {size:,} | {errors:.0%} | {repairs} | {' | '.join(cells)} |\n"
    return text + _FOOT


def main() -> None:
    """Run it; no engine is needed."""
    command("tools_at_scale", run, problems=300)
