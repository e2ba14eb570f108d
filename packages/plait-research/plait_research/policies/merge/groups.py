"""Merges that group branches: `alike` by predicted answers, `distinct` by probed answers, `shortest-majority` by
answers, with votes divided by the length of the answers' traces."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from plait.core.declarations import Fidelity, Free, ToolName
from plait.core.interfaces import Merge, Verdict
from plait.core.ops import Join, Plugin, ToolCall
from plait.core.plan import Plan, Step
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.core.vocabulary import FreeText
from plait.policies._ballots import (
    Class,
    OpenVote,
    build_verdict,
    drop_ballots,
    format_names,
    group_by_answer,
    no_vote_verdict,
    read_claim,
    read_roll,
)
from plait.policies.merge._grouping import Grouping, Groups
from plait.policies.merge._model_merge import unique_name

__all__ = ["Alike", "Distinct", "ShortestMajority"]


_COMPARE = """\
{question}

Two unfinished attempts at this:

A:
{a}

B:
{b}

Will A and B come to the same final answer? Say only yes or no.
"""


class Alike(Grouping):
    """Greedy clusters of beginnings after DeepPrune (arXiv 2510.08483), with an embedding or an untrained model instead
    of its trained judge.

    Beginnings that ended by themselves are clustered by their answers, without further calls; an ended beginning
    without an answer is its own cluster. The others are compared with these first, then with one another. `embedding`:
    a tool returns vectors of all texts, and a beginning joins the most similar earlier cluster at a cosine of
    `threshold` (0.9). `model`: a model predicts for pairs whether both will give the same answer; with `judge.logprobs`
    its probability must reach `threshold` (0.5).

    If the tool or a model's call fails, or answers neither yes nor no, the beginnings stay apart, which costs tokens
    but no vote. The value has the form of `distinct`: a list of {"trace": name, "count": size of the cluster, "done":
    whether the trace ended by itself}. Failed beginnings are left out.
    """

    fidelity = Fidelity("variant", "the answer so far, not their trained judge", paper="2510.08483")

    ask: Literal["embedding", "model"] = Field(default="model", description="What judges: an embedding or a model.")
    tool: Annotated[str, ToolName()] = Field(
        default="embed",
        min_length=1,
        description="Name of the tool: it embeds `texts` and returns one list of numbers a text.",
    )
    called: FreeText | None = Field(default=None, description="Step that judged; set by the merge itself.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the representatives, or the calls as more plan; `why` has the number of clusters."""
        by_name = {branch.name: branch for branch in branches}
        calls = {self.called, *(self.grouped.calls if self.grouped is not None else ())}
        traces = [branch for branch in branches if branch.name not in calls and branch.done and branch.result]
        ended = {trace.name for trace in traces if trace.result and trace.result.finish != "length"}
        counts, mute = _cluster_by_answer(traces, ended, task)
        # ended beginnings come first, since a beginning similar to one of them need not continue
        names = sorted(counts, key=lambda name: name not in ended)
        alone = Groups(whole=tuple((name,) for name in names))
        note = ""
        if self.called is None and self.grouped is None:
            begun = Groups(open=tuple(names), apart=tuple(name for name in names if name in ended)).settle_open()
            if begun.open:
                why = f"{len(names)} of {len(traces)} beginnings to compare"
                ask = self._round(begun, by_name, task) if self.ask == "model" else self._vectors(names, by_name)
                return Verdict(value=None, why=why, patch=ask)
            groups = begun
        elif self.grouped is not None:
            groups = self.read_round(self.grouped, by_name)
            if groups.open:
                why = f"{len(groups.whole)} clusters, {len(groups.open)} beginnings to compare"
                return Verdict(value=None, why=why, patch=self._round(groups, by_name, task))
            note = f"; {groups.silent} comparisons came to nothing and count as no" if groups.silent else ""
        else:
            asked = by_name.get(self.called or "")
            value = asked.result.value if asked is not None and asked.result is not None else None
            near = self.by_embedding(names, value, ended)
            groups, note = (near, "") if near else (alone, f"; {self.tool} gave no vectors, so nothing is alike")
        clusters = [*groups.whole, *((name,) for name in mute)]
        heads: list[JsonValue] = []
        for members in clusters:
            count = sum(counts.get(name, 1) for name in members)
            heads.append({"trace": members[0], "count": count, "done": members[0] in ended})
        return Verdict(value=heads, why=f"{len(heads)} clusters of {len(traces)} beginnings{note}")

    def _vectors(self, names: Sequence[str], by_name: dict[str, Branch]) -> Plan:
        name = unique_name("vectors", by_name)
        texts: list[JsonValue] = [self.excerpt(by_name[name].line) for name in names]
        call = Step(name=name, op=ToolCall(tool=self.tool, args={"texts": texts}), label=self.tool)
        return self._plan_round((call,), list(by_name), {"called": name})

    def _round(self, groups: Groups, by_name: dict[str, Branch], task: Task) -> Plan:
        texts = {name: branch.line for name, branch in by_name.items()}
        steps = self.comparisons(groups, texts, _COMPARE, task)
        asking = groups.model_copy(update={"calls": tuple(step.name for step in steps)})
        traces = [name for name in by_name if self.grouped is None or name not in self.grouped.calls]
        return self._plan_round(steps, traces, {"grouped": asking})

    def _plan_round(self, steps: Sequence[Step], traces: Sequence[str], update: dict[str, object]) -> Plan:
        """Return the calls and the join that reads them."""
        options: dict[str, JsonValue] = self.model_copy(update=update).model_dump(mode="json")
        op = Join(merge=Plugin(name="alike", options=options), on_failure="any-end")
        needs = (*(step.name for step in steps), *traces)
        end = Step(name=unique_name("alike", needs), op=op, needs=needs, label="who is alike")
        return Plan(steps=(*steps, end), output=end.name)


def _cluster_by_answer(traces: Sequence[Branch], ended: set[str], task: Task) -> tuple[dict[str, int], list[str]]:
    """Return the beginnings with the size of their cluster (ended beginnings with equal answers are one), and the names
    of ended beginnings without an answer."""
    counts: dict[str, int] = {}
    firsts: dict[str, str] = {}
    mute: list[str] = []
    for trace in traces:
        claim = read_claim(trace, task) if trace.name in ended else None
        if claim is None and trace.name in ended:
            mute.append(trace.name)
            continue
        first = trace.name if claim is None else firsts.setdefault(claim[1], trace.name)
        counts[first] = counts.get(first, 0) + 1
    return counts, mute


_DOUBT = re.compile(
    r"\b(?:not (?:yet|sure|certain|clear|known|determined)|unsure|unclear|unknown|uncertain|undetermined|undecided|yet"
    r"|no answer|cannot|can't|couldn't|don't know|do not know|need to|need more|depends|maybe|perhaps|wait|hmm"
    r"|let me|let's|let us|i|i'm|i'll|we|we'll)\b",
    re.IGNORECASE,
)
_MOST_WORDS = 6


class Pair(Frozen):
    """A beginning and its probe."""

    trace: str
    """Branch that wrote the beginning."""
    probe: str
    """Branch of the probe, which requested the model's answer so far."""


class Distinct(Merge):
    """Greedy clusters of beginnings with equal answers so far, after DeepPrune (arXiv 2510.08483) with a probe as the
    judge.

    A beginning that ended by itself counts with its own answer, any other beginning with the answer of its probe. A
    probe that states doubt ("I am not sure yet") or writes a whole sentence has no answer. A beginning without an
    answer is its own cluster, which costs tokens, while a wrong cluster would cost votes.

    The first beginning that ended by itself represents its cluster, else the first beginning. The value is a list of
    {"trace": name, "count": size of the cluster, "done": whether the trace ended by itself}. Beginnings that failed are
    left out.
    """

    fidelity = Fidelity("variant", "as `redundant`", paper="2510.08483")

    beginnings: Annotated[tuple[Pair, ...], Free()] = Field(default=(), description="The beginnings, in order.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the representatives; `why` has the number of clusters."""
        by_name = {branch.name: branch for branch in branches}
        clusters: dict[str, list[tuple[str, bool]]] = {}
        for pair in self.beginnings:
            trace, probe = by_name.get(pair.trace), by_name.get(pair.probe)
            if trace is None or trace.result is None:
                continue
            ended = trace.result.finish != "length"
            # No answer has this key, so a beginning without an answer stays alone.
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
    """Return the key of a probe's answer. Only the probe's own text counts, since the beginning may name other
    answers."""
    if probe is None or not probe.done or probe.result is None:
        return None
    answer = task.extract(probe.result.text)
    return None if answer is None or not is_settled(answer) else task.key(answer)


def is_settled(answer: JsonValue) -> bool:
    """Return whether a probe's text is an answer (`42`, `Paris`), not a doubt or sentence (`I am not sure yet`)."""
    if not isinstance(answer, str):
        return True
    return len(answer.split()) <= _MOST_WORDS and _DOUBT.search(answer) is None


class ShortestMajority(OpenVote, Merge):
    """Shortest Majority Vote (Zeng et al., arXiv 2502.12215): the answer with the largest c / log(l).

    c is the answer's number of votes and l their mean length in tokens, at least e, so that very short answers do not
    divide by zero. A branch that was cut off by its token limit has no known length and does not vote. The weight of
    length is small (4 votes of 16,000 tokens still beat 3 of 2,000): in the main it breaks ties. Equal scores go to the
    answer with more votes, then to the one whose first voter comes earliest.
    """

    fidelity = Fidelity("formula", paper="2502.12215")
    lost_in = ("erring_votes", "votes")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has votes, mean lengths, the margin and the excluded branches."""
        roll, cut = drop_ballots(read_roll(branches, task), lambda ballot: ballot.result.finish != "length")
        left_out = [f"cut off: {format_names(cut)}"] if cut else []
        counted = group_by_answer(roll.ballots)
        if not counted:
            return no_vote_verdict(roll, left_out)
        for group in counted:
            group.weight = group.votes / math.log(max(_length(group), math.e))
        best = min(counted, key=lambda group: (-group.weight, -group.votes, group.first.place))
        second = max((group.weight for group in counted if group is not best), default=0.0)
        why = f"{best.votes} of {roll.votes} votes, mean length {_length(best):.4g} tokens"
        why += f", score {best.weight:.4g}, margin {best.weight - second:.4g}"
        return build_verdict(best, why, roll, left_out)


def _length(group: Class) -> float:
    """Return the mean length of an answer's traces in tokens, without the branches merged into them."""
    return math.fsum(ballot.result.length for ballot in group.ballots) / len(group.ballots)
