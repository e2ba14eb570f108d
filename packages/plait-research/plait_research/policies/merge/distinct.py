"""Merge `distinct`: cluster the beginnings of traces by the answers that they would give now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.declarations import Fidelity, Free
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.policies._ballots import read_claim

__all__ = ["Distinct"]

_DOUBT = re.compile(
    r"\b(?:not (?:yet|sure|certain|clear|known|determined)|unsure|unclear|unknown|uncertain|undetermined|undecided|yet"
    r"|no answer|cannot|can't|couldn't|don't know|do not know|need to|need more|depends|maybe|perhaps|wait|hmm"
    r"|let me|let's|let us|i|i'm|i'll|we|we'll)\b",
    re.IGNORECASE,
)
_MOST_WORDS = 6


class Pair(Frozen):
    """A beginning and the probe of it."""

    trace: str
    """Branch that wrote the beginning."""
    probe: str
    """Branch in which the model was asked for its answer so far."""


class Distinct(Merge):
    """Greedy clusters of beginnings with equal answers so far, after DeepPrune (arXiv 2510.08483) with a probe as the
    judge.

    A beginning that ended by itself counts with its own answer, any other beginning with the answer of its probe. A
    probe that states that it has no answer yet ("I am not sure yet"), or writes a whole sentence, has none. A
    beginning without an answer is a cluster of its own: that costs tokens, where a wrong cluster would cost votes.

    The first beginning of a cluster that ended by itself represents it, else its first beginning. The value is a list
    of {"trace": name, "count": size of the cluster, "done": whether the trace ended by itself}. Beginnings that failed
    are left out.
    """

    fidelity = Fidelity("variant", "as `redundant`", paper="2510.08483")

    beginnings: Annotated[tuple[Pair, ...], Free()] = Field(default=(), description="The beginnings, in order.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the representatives; `why` says how many clusters there are."""
        by_name = {branch.name: branch for branch in branches}
        clusters: dict[str, list[tuple[str, bool]]] = {}
        for pair in self.beginnings:
            trace, probe = by_name.get(pair.trace), by_name.get(pair.probe)
            if trace is None or trace.result is None:
                continue
            ended = trace.result.finish != "length"
            # No answer has this key: what has none stays alone.
            key = f"!{pair.trace}"
            if ended and (claim := read_claim(trace, task)) is not None:
                key = f"={claim[1]}"
            elif not ended and (answer := _answer_key(probe, task)) is not None:
                key = f"={answer}"
            clusters.setdefault(key, []).append((pair.trace, ended))
        heads: list[JsonValue] = []
        for members in clusters.values():
            name, ended = next((member for member in members if member[1]), members[0])
            heads.append({"trace": name, "count": len(members), "done": ended})
        total = sum(len(members) for members in clusters.values())
        return Verdict(value=heads, why=f"{len(heads)} clusters of {total} beginnings")


def _answer_key(probe: Branch | None, task: Task) -> str | None:
    """Return the key of a probe's answer. Only the probe's own words count: the beginning before them may name other
    answers."""
    if probe is None or not probe.done or probe.result is None:
        return None
    answer = task.extract(probe.result.text)
    return None if answer is None or not is_settled(answer) else task.key(answer)


def is_settled(answer: JsonValue) -> bool:
    """Return whether a probe's answer is one, and no doubt or sentence: `42`, `Paris`, but not `I am not sure yet`."""
    if not isinstance(answer, str):
        return True
    return len(answer.split()) <= _MOST_WORDS and _DOUBT.search(answer) is None
