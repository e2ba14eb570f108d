"""Search `particle`: particle filtering, and particle Gibbs, over steps of reasoning."""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.search import Frontier, Search, SearchNode, SearchTree

from ._rounds import Rounds

__all__ = ["Particle"]


class Particle(Search):
    """`particles` lines take one step each; then as many are drawn anew, with replacement, by the odds of their scores
    (particle filtering, arXiv 2502.01618: weights are the softmax of the scores' logits). Those that have ended stay.

    With `iterations` > 1 it is particle Gibbs: a finished line, drawn by its weight, takes part in the next iteration
    as one of the particles.
    """

    particles: int = Field(default=8, ge=1, le=10_000)
    """Lines at a time."""
    iterations: int = Field(default=1, ge=1)
    """Passes from the root."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the softmax: small favours the best."""

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
        if self._depth < len(self._reference):
            particles.append(self._reference[self._depth])
        if not particles:
            return []
        drawn = self._drawn(particles, self._options.particles)
        self._ended = [node for node in drawn if node.outcome == "answer"]
        going = [node for node in drawn if node.outcome != "answer"]
        for node in going:
            if node.outcome == "expanded":  # of the reference line
                node.outcome = "open"
        return going or self._again()

    def _again(self) -> list[SearchNode]:
        """Begin the next iteration, with a finished line as one of its particles."""
        if self._iteration >= self._options.iterations or not self._ended:
            return []
        self._iteration += 1
        (kept,) = self._drawn(self._ended, 1)
        self._reference, self._ended, self._depth = kept.path(), [], 0
        self.tree.root.outcome = "open"
        return [self.tree.root] * max(1, self._options.particles - 1)

    def _drawn(self, nodes: list[SearchNode], count: int) -> list[SearchNode]:
        """Draw nodes with replacement, by systematic resampling: the number of each differs from its expectation by
        less than one."""
        scores = [min(max(self.tree.prior(node), 1e-6), 1 - 1e-6) for node in nodes]
        logits = [math.log(score / (1 - score)) / self._options.temperature for score in scores]
        weights = [math.exp(each - max(logits)) for each in logits]
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
