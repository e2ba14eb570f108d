"""Merge `distinct`: which beginnings of traces are worth going on with, by the answers that they would give now.

Decides who stands for whom. It does not know how the beginnings are continued, nor how their votes are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch

from .._ballots import claim_of

__all__ = ["Distinct"]


class Pair(Frozen):
    """A beginning and the probe of it."""

    trace: str
    """Branch that wrote the beginning."""
    probe: str
    """Branch in which the model was asked for its answer so far."""


class Distinct(Merge):
    """Greedy clusters of beginnings with equal answers so far, after DeepPrune (arXiv 2510.08483) with a probe for a
    judge.

    A beginning that ended by itself counts with its own answer, any other with its probe's. Those without an answer are
    like none. A cluster is represented by its first beginning that ended by itself, else by its first. The value is a
    list of {"trace": name, "count": beginnings that it stands for, "done": whether it ended by itself}, for a planner
    to go on from; beginnings that failed are left out.
    """

    pairs: tuple[Pair, ...] = ()
    """The beginnings, in order."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the representatives; `why` says how many clusters there are."""
        by_name = {branch.name: branch for branch in branches}
        clusters: dict[str, list[tuple[str, bool]]] = {}
        for pair in self.pairs:
            trace, probe = by_name.get(pair.trace), by_name.get(pair.probe)
            if trace is None or trace.result is None:
                continue
            ended = trace.result.finish != "length"
            key = f"!{pair.trace}"
            if ended and (claim := claim_of(trace, task)) is not None:
                key = f"={claim[1]}"
            elif not ended and (said := _said(probe, task)) is not None:
                key = f"={said}"
            clusters.setdefault(key, []).append((pair.trace, ended))
        heads: list[JsonValue] = []
        for members in clusters.values():
            name, ended = next((each for each in members if each[1]), members[0])
            heads.append({"trace": name, "count": len(members), "done": ended})
        total = sum(len(members) for members in clusters.values())
        return Verdict(value=heads, why=f"{len(heads)} clusters of {total} beginnings")


def _said(probe: Branch | None, task: Task) -> str | None:
    """Return the key of the answer that a probe gives. Only its own words count: the beginning that it was put after
    may name other answers."""
    if probe is None or not probe.done or probe.result is None:
        return None
    answer = task.extract(probe.result.text)
    return None if answer is None else task.key(answer)
