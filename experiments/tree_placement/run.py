"""How much of a tree do two engines compute twice, by where children are placed? In virtual time.

How much of a tree two engines compute twice, by where children are placed; virtual time.

    python -m experiments tree_placement

A search of 1,000 nodes of 5 to 60 tokens behind a prompt of 200, 16 nodes in flight on two engines of 8 slots with
prefix caches. Computed are the tokens that are generated, and the prompt tokens that no cache has: of those of a child
that leaves its parent's engine the whole path. Unique is the same with each token once.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import fmean

from plait.core.events import Job
from plait.core.flow import Context
from plait.core.interfaces import Policy
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.search import Scorer, SearchNode
from plait.planners.search.tree import Tree
from plait.policies.schedule.placement import Affinity
from plait.policies.schedule.simple import LeastLoaded, Random as Anywhere
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

__all__ = ["PLACES", "Placed", "placed"]

PROMPT = "What is to be done? " * 40
"""200 tokens."""
PLACES: dict[str, tuple[int, Policy]] = {
    "one engine": (1, Affinity()),
    "affinity": (2, Affinity()),
    "affinity, gap of 4": (2, Affinity(overload=1, slack=4)),
    "affinity, gap of 3": (2, Affinity(overload=1, slack=3)),
    "affinity, gap of 2": (2, Affinity(overload=1, slack=2)),
    "least-loaded": (2, LeastLoaded()),
    "random": (2, Anywhere()),
}
"""Engines and policy. With a gap a child goes to its parent's engine unless that runs over `gap` attempts more."""


class Even(Scorer):
    """Scores that are the same in every run."""

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return a seventh of the child's number."""
        return (node.index % 7) / 7


class Placed:
    """What became of one tree."""

    def __init__(self, engines: int, policy: Policy, seed: int, nodes: int) -> None:
        planner = Tree(
            search=Plugin(name="stride", options={"branch": 3}), max_branches=nodes, n=16, scorer=Even(), depth=9
        )
        hosts = [Host(f"engine-{i}", slots=16 // engines, cache_tokens=200_000, block=1) for i in range(engines)]
        request = Request(text=PROMPT, seed=seed)
        done = simulate(request, planner=planner, hosts=hosts, outcome=_step, policies=[policy], seed=seed)
        spans = {span.step.rpartition("/")[2]: span for span in done.spans if span.kind == "think"}
        parents = {name: spans.get(name.rpartition(".")[0]) for name in spans}
        self.moved = sum(at is not None and at.host != spans[name].host for name, at in parents.items())
        """Children that left their parent's engine."""
        # An engine always reads at least the last token of a prompt.
        computed = done.usage.completion + done.prompt_computed - done.steps
        self.ratio = computed / (done.usage.completion + 200)
        loads = Counter(span.host for span in spans.values())
        self.most = max(loads.values()) / len(spans)
        """Share of the nodes on the engine with more of them."""
        self.seconds = done.makespan


def _step(job: Job, random: Random) -> Result:
    tokens = 5 + min(55, int(random.expovariate(1 / 15)))
    return Result(value=f"{job.step} takes a step\n", usage=Usage(completion=tokens))


def placed(name: str, seeds: int = 3, nodes: int = 1000) -> list[Placed]:
    """Return the trees of one way to place."""
    return [Placed(*PLACES[name], seed, nodes) for seed in range(seeds)]


def main() -> None:
    """Print the table."""
    print("| placed by | computed ÷ unique | children that moved | larger share | seconds |\n" + "|---" * 5 + "|")
    for name in PLACES:
        trees = placed(name)
        print(
            f"| {name} | {fmean(each.ratio for each in trees):.3f} | {fmean(each.moved for each in trees):.0f} | "
            f"{fmean(each.most for each in trees):.0%} | {fmean(each.seconds for each in trees):.1f} |", flush=True,
        )  # fmt: skip
