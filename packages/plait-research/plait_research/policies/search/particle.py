"""Search `particle`: particle filtering, and particle Gibbs, over steps of reasoning."""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count
from plait.policies.search._rounds import Rounds

__all__ = ["Particle", "draw_probabilities"]

_LEAST = 1e-7
"""Of a score and of what it lacks to 1, so that its logit is finite."""


class Particle(Search):
    """`particles` lines take one step each; then as many are drawn again, with replacement, by the odds of their scores
    (particle filtering, arXiv 2502.01618: weights are the softmax of the scores' logits). Those that have ended stay.

    With `iterations` > 1 it is particle Gibbs: a finished line, drawn by its weight, is a particle of the next pass
    that is never lost: one less is drawn each time, it can be drawn too, as far as the others have come, and at the end
    the next is drawn from it too.

    Differs from its_hub: draws are systematic, which scatter less than independent ones with the same odds.
    """

    fidelity = Fidelity(
        "variant",
        "systematic resampling with the same odds; the kept line is weighed as far as the others have come",
        oracles=("its-hub-odds", "its-hub-gibbs"),
        paper="2502.01618",
    )

    particles: Count = Field(default=8, ge=1, le=10_000, description="Lines at a time.")
    iterations: Count = Field(default=1, ge=1, description="Passes from the root.")
    reward_temperature: float = Field(
        default=1.0, gt=0, description="Temperature of the scores: small favours the best."
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the particles of one run."""
        return _Particles(tree, self)


class _Particles(Rounds):
    def __init__(self, tree: SearchTree, options: Particle) -> None:
        super().__init__(tree, options.particles)
        self._options = options
        self._ended: list[SearchNode] = []
        self._reference: list[SearchNode] = []
        self._depth = 0
        self._iteration = 1

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        self._depth += 1
        particles = [node for node in came if node.outcome in ("open", "answer")] + self._ended
        kept = self._reference[min(self._depth, len(self._reference) - 1)] if self._reference else None
        if kept is not None:
            particles.append(kept)
        if not particles:
            return []
        drawn = self._resample(particles, self._options.particles - (kept is not None)) if self._free else []
        self._ended = [node for node in drawn if node.outcome == "answer"]
        going = [node for node in drawn if node.outcome != "answer"]
        for node in going:
            if node.outcome == "expanded":  # of the reference line
                node.outcome = "open"
        return going or self._next_iteration()

    @property
    def _free(self) -> bool:
        """Whether there are particles beside the reference line."""
        return self._options.particles > 1 or not self._reference

    def _next_iteration(self) -> list[SearchNode]:
        """Begin the next iteration, with a finished line as one of its particles."""
        finished = self._ended + self._reference[-1:]
        if self._iteration >= self._options.iterations or not finished:
            return []
        self._iteration += 1
        (kept,) = self._resample(finished, 1)
        self._reference, self._ended, self._depth = kept.path(), [], 0
        self.tree.root.outcome = "open"
        return [self.tree.root] * max(1, self._options.particles - 1)

    def _resample(self, nodes: list[SearchNode], count: int) -> list[SearchNode]:
        """Draw nodes with replacement, by systematic resampling: the number of each differs from its expectation by
        less than one."""
        weights = draw_probabilities([self.tree.prior(node) for node in nodes], self._options.reward_temperature)
        step = sum(weights) / count
        at = self.tree.random.random() * step
        drawn: list[SearchNode] = []
        reached = 0.0
        for node, weight in zip(nodes, weights, strict=True):
            reached += weight
            while at < reached and len(drawn) < count:
                drawn.append(node)
                at += step
        return drawn or [nodes[-1]]


def draw_probabilities(scores: list[float], temperature: float = 1.0) -> list[float]:
    """Return the chance of each score to be drawn: the softmax of their logits.

    >>> [round(each, 2) for each in draw_probabilities([0.5, 0.75])]
    [0.25, 0.75]
    """
    clipped = [min(max(score, _LEAST), 1 - _LEAST) for score in scores]
    logits = [math.log(score / (1 - score)) / temperature for score in clipped]
    most = max(logits)
    weights = [math.exp(logit - most) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]
