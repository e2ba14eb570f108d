"""Merges that count votes: `majority`, weighted by `inverse-entropy`, `self-certainty` or the confidence of the model
(`weighted`), `posterior`, and `equivalent`, over classes of answers that a tool, an embedding or a model finds equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from plait.core.declarations import Fidelity, Free, ToolName
from plait.core.interfaces import Merge, Verdict
from plait.core.ops import Join, Plugin, ToolCall
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.task import Task
from plait.core.values import as_text
from plait.core.view import Branch
from plait.core.vocabulary import Count, FreeText

from .._ballots import (
    AnswerPosterior as Chances,
    Ballot,
    Class,
    OpenVote,
    Roll,
    Signal,
    VoteTally,
    build_verdict,
    clip,
    count_votes,
    drop_ballots,
    find_winner,
    format_names,
    group_by_answer,
    list_absent,
    measure_ballots,
    no_vote_verdict,
    percentile,
    read_roll,
    top_two,
    vote_confidence,
    weigh_votes,
)
from ._grouping import Grouping, Groups
from ._model_merge import unique_name

__all__ = ["Equivalent", "InverseEntropy", "Majority", "Posterior", "SelfCertainty", "Weighted"]


class Majority(Merge):
    """Self-consistency (Wang et al., arXiv 2203.11171): one vote for each branch that is done and has an answer.

    A branch that was merged into another as redundant votes with that branch. Ties go to the answer with the greater
    sum of its voters' mean log-probabilities if every tied voter has one, else to the answer with the earliest voter in
    the join's order. The value is the answer as the task extracted it from its first voter, or `null` when no branch
    has an answer.
    """

    plans_more = False
    fidelity = Fidelity("formula", paper="2203.11171")

    votes: ClassVar[bool] = True

    weights: Annotated[dict[str, Annotated[int, Field(ge=1)]], Free()] = Field(
        default={},
        description="Number of votes of a branch, by its name, if it represents more than itself: clusters of a "
        "planner's.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the counts, the margin and the branches without a vote."""
        roll = read_roll(branches, task, self.weights)
        counted = group_by_answer(roll.ballots)
        if not counted:
            return no_vote_verdict(roll)
        best, how = find_winner(counted)
        second = max((group.votes for group in counted if group is not best), default=0)
        return build_verdict(best, f"{best.votes} of {roll.votes} votes, margin {best.votes - second}{how}", roll)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether the lead exceeds the `outstanding` votes. Every outcome then has the same winner (by
        `Task.key`), whatever the tie rule. Branches merged into an unfinished branch are outstanding too."""
        return count_votes(branches, task, self.weights).decided(outstanding)

    def tally(self, task: Task) -> VoteTally:
        """Return an empty tally of the votes."""
        return VoteTally(task, self.weights)


class InverseEntropy(OpenVote, Merge):
    """Inverse-entropy weighted voting (Sequential Edge, arXiv 2511.02309): w = 1 / max(H, floor).

    H is the mean entropy of a branch's tokens in bits (`logprobs=20` of the planner; the tokens beyond the k likeliest
    count as one outcome). With the paper's floor of 1e-10, a trace written with near certainty, such as a loop, weighs
    more than all others together. So the floor is 0.05 bit here, and `cap` bounds a weight by the median's multiple
    (`cap=null`, `floor=1e-10` is the paper's rule). Ties go to the answer with more votes, then the earliest.
    """

    fidelity = Fidelity("variant", "a floor and a cap on weights", paper="2511.02309")

    floor: float = Field(default=0.05, gt=0.0, description="Least entropy that counts, in bits.")
    cap: float | None = Field(
        default=4.0,
        ge=1.0,
        description="Most (and one over it: least) that a weight may be of the voters' median weight.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has weights, margin, votes and who was left out."""
        remedy = "ask for it with logprobs=20 in the planner's options"
        roll, entropy, left_out = measure_ballots(
            read_roll(branches, task),
            lambda result: result.signals.entropy if result.signals else None,
            "entropy",
            remedy,
        )
        weights = {place: 1.0 / max(nats / math.log(2.0), self.floor) for place, nats in entropy.items()}
        weights = clip(weights, self.cap)
        return weigh_votes(roll, lambda ballot: weights[ballot.place], "inverse entropy", left_out)


class SelfCertainty(OpenVote, Merge):
    """Borda voting by self-certainty (Kang et al., arXiv 2502.18581).

    Self-certainty is the mean over tokens of KL(uniform || p), which needs the whole vocabulary (`logprobs=-1` of the
    planner). The r-th most certain of N voters (ties in the join's order) weighs (N - r + 1)^p. Voters without it are
    left out; the join fails if no voter has it. Ties go to the answer with more votes, then to the earliest.
    """

    fidelity = Fidelity("formula", paper="2502.18581")

    p: float = Field(
        default=1.2,
        ge=0.0,
        description="Exponent: 0 is the majority, and the larger it is, the more the certain ones decide.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has weights, margin, votes and who was left out."""
        remedy = "ask for the whole vocabulary with logprobs=-1 in the planner's options"
        roll, certain, left_out = measure_ballots(
            read_roll(branches, task),
            lambda result: result.signals.certainty if result.signals else None,
            "self-certainty",
            remedy,
        )
        order = sorted(certain, key=lambda place: (-certain[place], place))
        weights = {place: float(len(order) - at) ** self.p for at, place in enumerate(order)}
        return weigh_votes(roll, lambda ballot: weights[ballot.place], "Borda weight", left_out)


class Posterior(OpenVote, Merge):
    """The choice of Confidence-Guided Early Stopping (arXiv 2511.02603): the answer of the highest posterior.

    A vote of confidence c has the likelihood c if its answer is right, and (1 - c) / (K - 1) if another of K answers
    is; c = exp(`criterion` / `vote_temperature`), by default the geometric mean of the tokens' probabilities
    (`logprobs=1` of the planner). Many unsure votes can outweigh a sure one, and one sure vote many unsure ones, so the
    merge is as good as the model's calibration. Use it with the stop rule `cges:lead=false`. Ties go to the answer with
    more votes, then to the one whose first voter comes earliest.
    """

    fidelity = Fidelity("formula", paper="2511.02603")

    criterion: Signal = Field(
        default="logprob",
        description="Criterion: a signal, in nats; only one that is never positive is a log-probability.",
    )
    vote_temperature: float = Field(
        default=1.0, gt=0.0, description="Temperature of the votes' confidence: below 1 it makes them less sure."
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the posterior and the votes."""
        roll = read_roll(branches, task)
        if not roll.ballots:
            return no_vote_verdict(roll)
        chances, first = Chances(), dict[str, Class]()
        for ballot in roll.ballots:
            chances.add(ballot.key, vote_confidence(ballot.result, self.criterion, self.vote_temperature), ballot.count)
            first.setdefault(ballot.key, Class(ballot))
        posterior = chances.chances()
        best = min(first, key=lambda key: (-posterior[key], -chances.votes[key], first[key].first.place))
        why = f"posterior {posterior[best]:.4g}, {chances.votes[best]} of {roll.votes} votes"
        return build_verdict(first[best], why, roll, list_absent(roll))


By = Literal["mean", "tail", "bottom", "lowest"]


class Weighted(OpenVote, Merge):
    """DeepConf's confidence-weighted vote (arXiv 2508.15260): an answer's weight is the sum of its voters' confidence.

    Needs `logprobs=20` and a `window` of the planner; voters without a confidence are left out, and if none has one the
    join fails. The heaviest answer wins, even against the majority (`why` then reports it). Ties go to the answer with
    more votes, then to the answer whose first voter comes earliest.

    Only voters whose score reaches the percentile 100 - `eta` of all scores are kept (DeepConf offline), or, with
    `warmup`, of the lowest-group scores of the first `warmup` branches (DeepConf online, together with the policy
    `deepconf` and the same `eta` and `warmup`).

    Differs from the paper: `cap` limits every weight to a multiple of the median, so one degenerate trace (loops are
    written with near certainty) cannot outvote the others. `cap=null` is the paper's rule.
    """

    fidelity = Fidelity(
        "variant", "a cap on weights, without it as theirs", oracles=("deepconf-offline",), paper="2508.15260"
    )

    criterion: By = Field(
        default="tail",
        description="Criterion: the statistic that weighs, the mean, that of the last window (`tail`), of the "
        "lowest tenth of the windows (`bottom`) or of the lowest window.",
    )
    eta: float = Field(
        default=100.0, gt=0.0, le=100.0, description="Per cent of the branches to keep; the paper uses 10 and 90."
    )
    warmup: Annotated[int, Free()] = Field(
        default=0,
        ge=0,
        description="Number of branches that run to their ends first: their lowest-group scores set the threshold; 0: "
        "all voters, by their own scores.",
    )
    cap: float | None = Field(
        default=4.0,
        ge=1.0,
        description="Most (and one over it: least) that a weight may be of the voters' median weight.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has weights, margin, votes and who was left out."""
        remedy = "ask for it with logprobs=20 (and a window) in the planner's options"
        roll = read_roll(branches, task)
        roll, scores, left_out = measure_ballots(
            roll, lambda result: score(result, self.criterion), "confidence", remedy
        )
        roll, filtered = self._filter(roll, scores, branches)
        weights = clip({ballot.place: scores[ballot.place] for ballot in roll.ballots}, self.cap)
        what = f"{self.criterion} confidence"
        return weigh_votes(roll, lambda ballot: weights[ballot.place], what, [*left_out, *filtered])

    def _filter(self, roll: Roll, scores: dict[int, float], branches: Sequence[Branch]) -> tuple[Roll, list[str]]:
        if self.eta >= 100.0 or not roll.ballots:
            return roll, []
        floor = None
        if self.warmup:
            floor = threshold(branches, self.warmup, self.eta)
            scores = {ballot.place: score(ballot.result, "lowest") or 0.0 for ballot in roll.ballots}
        if floor is None:
            floor = percentile(list(scores.values()), 100.0 - self.eta)
        kept, out = drop_ballots(roll, lambda ballot: scores[ballot.place] >= floor)
        if not kept.ballots:  # No ballot may reach the threshold: a vote of all is better than no vote.
            return roll, ["the filter would have left no ballot and is ignored"]
        return kept, [f"below {floor:.4g}: {format_names(out)}"] if out else []


def score(result: Result, by: By) -> float | None:
    """Return a statistic of a result's confidence in nats, or `None` if the result has none."""
    signals = result.signals
    if signals is None:
        return None
    match by:
        case "mean":
            return signals.confidence
        case "tail":
            return signals.tail
        case "bottom":
            return signals.bottom
        case "lowest":
            return signals.lowest


def threshold(branches: Sequence[Branch], warmup: int, eta: float) -> float | None:
    """Return the percentile 100 - `eta` of the lowest-group scores of the first `warmup` branches, or `None` if these
    have no scores."""
    lowest = [branch.result.signals.lowest for branch in branches[:warmup] if branch.result and branch.result.signals]
    return percentile(lowest, 100.0 - eta) if lowest else None


_COMPARE = """\
{question}

Two answers to this:

A:
{a}

B:
{b}

Do A and B mean the same answer? Say only yes or no.
"""
_TOOLS = {"tool": "math_equal", "embedding": "embed"}


class Equivalent(OpenVote, Grouping):
    """A majority vote over classes of equivalent answers. Use it if the equivalence is too slow or too risky to compute
    inside the machine.

    Each different answer (by the task's key) is judged once; a single answer is not judged. Judges (`ask`):

    - `tool`: a tool, such as a computer algebra system, that takes `answers`, a list of texts, and returns for each
      answer the index of the first equal one (`math_equal`: math-verify in a process that can be killed).
    - `embedding`: a tool that takes `texts` and returns a vector for each. In the order of votes, an answer joins the
      most similar class before it at a cosine of `threshold` (0.9).
    - `model`: a model compares pairs of answers (yes or no), starting with the most frequent answer.

    If the tool or a model's call fails or returns another form, the task's keys decide (in that pair), and `why`
    reports it. Ties go to the answer whose first voter comes earliest in the join's order; the value is the answer of
    the class's first voter.
    """

    ask: Literal["tool", "embedding", "model"] = Field(default="tool", description="What judges.")
    tool: Annotated[str | None, ToolName()] = Field(
        default=None,
        min_length=1,
        description="Name of the tool: `math_equal` (of `ask=tool`) or `embed` (of `ask=embedding`) if left out.",
    )
    max_prompt_items: Count = Field(
        default=16,
        ge=2,
        description="Maximum number of items in one prompt, the nearest or best first: answers, those with most "
        "votes. The others keep to themselves.",
    )
    called: FreeText | None = Field(default=None, description="Step that judged; set by the merge itself.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict, or the calls as more plan."""
        by_name = {branch.name: branch for branch in branches}
        # After the first round the judge's calls are branches too; they have no vote.
        calls = {self.called, *(self.grouped.calls if self.grouped is not None else ())}
        roll = read_roll([branch for branch in branches if branch.name not in calls], task)
        counted = group_by_answer(roll.ballots)
        if not counted:
            return no_vote_verdict(roll)
        why = f"{len(counted)} different answers of {roll.votes} votes"
        if len(counted) == 1:
            return build_verdict(counted[0], why, roll)
        ranked = sorted(counted, key=lambda group: (-group.votes, group.first.place))
        if self.ask == "model":
            return self._group_by_model(ranked, roll, by_name, why, task)
        if self.called is None:
            # Embeddings need the answers in the order of votes; a tool returns places in the order of its input.
            return self._call(ranked if self.ask == "embedding" else counted, branches, why)
        asked = by_name.get(self.called)
        value = asked.result.value if asked is not None and asked.result is not None else None
        if self.ask == "embedding":
            groups = self.by_embedding([group.first.branch.name for group in ranked], value)
            return self._count_classes(roll, counted, _heads_of_groups(groups, counted) if groups is not None else None)
        return self._count_classes(roll, counted, _read_heads(value, len(counted)))

    @property
    def _tool(self) -> str:
        return self.tool or _TOOLS[self.ask]

    def _call(self, counted: Sequence[Class], branches: Sequence[Branch], why: str) -> Verdict:
        names = [branch.name for branch in branches]
        name = unique_name("equivalence", names)
        answers: list[JsonValue] = [as_text(group.first.answer) for group in counted]
        args: dict[str, JsonValue] = {"texts" if self.ask == "embedding" else "answers": answers}
        call = Step(name=name, op=ToolCall(tool=self._tool, args=args), label=self._tool)
        return Verdict(value=None, why=why, patch=self._plan_round((call,), names, {"called": name}))

    def _group_by_model(
        self, ranked: Sequence[Class], roll: Roll, by_name: dict[str, Branch], why: str, task: Task
    ) -> Verdict:
        texts = {group.first.branch.name: as_text(group.first.answer) for group in ranked}
        if self.grouped is None:
            alone = tuple((name,) for name in tuple(texts)[self.max_prompt_items :])
            groups = Groups(whole=alone, open=tuple(texts)[: self.max_prompt_items]).settle_open()
        else:
            groups = self.read_round(self.grouped, by_name)
        if groups.open:
            taken = dict.fromkeys(by_name, "") | texts
            steps = self.comparisons(groups, taken, _COMPARE, task)
            asking = groups.model_copy(update={"calls": tuple(step.name for step in steps)})
            voters = [name for name in by_name if self.grouped is None or name not in self.grouped.calls]
            return Verdict(value=None, why=why, patch=self._plan_round(steps, voters, {"grouped": asking}))
        note = [f"{groups.silent} comparisons came to nothing and count as no"] if groups.silent else []
        if len(ranked) > self.max_prompt_items:
            note.append(f"{len(ranked) - self.max_prompt_items} of the answers were not compared")
        counted = group_by_answer(roll.ballots)
        return self._count_classes(roll, counted, _heads_of_groups(groups, counted), note)

    def _plan_round(self, steps: Sequence[Step], voters: Sequence[str], update: dict[str, object]) -> Plan:
        """Return the calls and the vote that reads them."""
        options: dict[str, JsonValue] = self.model_copy(update=update).model_dump(mode="json")
        op = Join(merge=Plugin(name="equivalent", options=options), on_failure="any-end")
        needs = (*(step.name for step in steps), *voters)
        end = Step(name=unique_name("equivalent-vote", needs), op=op, needs=needs, label="vote")
        return Plan(steps=(*steps, end), output=end.name)

    def _count_classes(
        self, roll: Roll, given: Sequence[Class], heads: Sequence[int] | None, note: Sequence[str] = ()
    ) -> Verdict:
        """Return the verdict over classes; `heads[i]` is the place of the answer that answer i equals."""
        if heads is None:
            what = "classes" if self.ask == "tool" else "vectors"
            note = [*note, f"{self._tool} gave no {what}, so the task's own equality counts"]
            heads = range(len(given))
        head_of = {group.first.key: given[head].first.key for group, head in zip(given, heads, strict=True)}
        merged = [Ballot(b.place, b.branch, b.answer, head_of[b.key], b.count) for b in roll.ballots]
        counted = group_by_answer(merged)
        top, second = top_two(group.votes for group in counted)
        best = next(group for group in counted if group.votes == top)
        tie = ", a tie settled by order" if top == second else ""
        why = f"{top} of {roll.votes} votes, margin {top - second}{tie}; {len(given)} answers in {len(counted)} classes"
        return build_verdict(best, why, roll, note)


def _heads_of_groups(groups: Groups, counted: Sequence[Class]) -> list[int]:
    """Return for each answer the place of its group's first answer."""
    places = {group.first.branch.name: i for i, group in enumerate(counted)}
    heads = [0] * len(counted)
    for members in groups.whole:
        for name in members:
            heads[places[name]] = places[members[0]]
    return heads


def _read_heads(value: JsonValue, n: int) -> list[int] | None:
    """Return the classes if they are valid: each answer has an earlier answer, or itself, as the head of its class."""
    if not isinstance(value, list) or len(value) != n:
        return None
    heads = [index for index in value if isinstance(index, int) and not isinstance(index, bool)]
    # Each answer must point at the first answer of its class, which points at itself. This excludes circles.
    right = len(heads) == n and all(0 <= head <= i and heads[head] == head for i, head in enumerate(heads))
    return heads if right else None
