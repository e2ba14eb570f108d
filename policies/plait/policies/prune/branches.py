"""Policies that stop branches: `consensus` if a join's verdict can no longer change (`Merge.decided`), `redundant` if
one begins like another, which then votes for both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, cast

from pydantic import Field, field_validator

from plait.core.addresses import resolve
from plait.core.declarations import CodeAddress, Fidelity
from plait.core.errors import PluginError
from plait.core.events import Event, Failed, Progressed, Succeeded
from plait.core.interfaces import Policy, Stop
from plait.core.ops import ModelCall
from plait.core.states import State
from plait.core.task import Task
from plait.core.view import StepView, View

from .._similarity import cosine, counts_cosine, grams, jaccard
from .._stopping import is_only_for, tolerant_joins, tolerant_votes

__all__ = ["Consensus", "Redundant"]


class Consensus(Policy):
    """Cancel the branches that cannot change a decided vote.

    It affects only joins with `on_failure="best-effort"`: a stopped branch could fail any other join. It never stops a
    branch that another step reads too.
    """

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Return the unfinished branches of every decided join that reads the event's step."""
        if not isinstance(event, Succeeded | Failed) or view.subject is None:
            return ()
        stops: dict[str, Stop] = {}
        for join in tolerant_joins(view.subject):
            if not join.outstanding or not join.decided():
                continue
            branches = join.branches()
            out = [branch for branch in branches if not branch.state.ended]
            done = sum(branch.done for branch in branches)
            counts = f"{done} of {len(branches)} branches done, {len(out)} out cannot change it"
            reason = f"{join.plan.name} is decided: {counts}"
            for branch in out:
                if is_only_for(join, branch, view):
                    stops.setdefault(branch.step, Stop(branch.step, reason))
        return tuple(stops.values())


Beginning = Sequence[str]
"""The first steps of a branch, in the task's canonical form."""


class Redundant(Policy):
    """Redundancy pruning after DeepPrune (arXiv 2510.08483): greedy clustering while the branches are generated.

    After `steps` steps (or `tokens` tokens) the policy compares a branch with the branches that are past this point. If
    the most similar branch reaches `threshold`, it takes over the vote and the new branch is cancelled. A cluster keeps
    its count as weight, so pruning does not shift the vote towards rare answers.

    Differs from the paper, whose trained judge predicts whether two traces give the same answer: here `criterion`
    compares their first steps in the task's canonical form. A policy is pure, so a remote judge (an embedding server, a
    model) belongs to the planner `deepprune`. Measure a judge first (AUROC; the paper:
    0.71 for its own on unseen models, 0.66 for an untrained model, 0.58 for sentence embeddings). A branch without a
    step is its own cluster, and clusters are not capped. The policy makes the branches stream.
    """

    fidelity = Fidelity("variant", "equal steps, not their trained judge", paper="2510.08483")

    needs_stream: ClassVar[bool] = True

    steps: int = Field(default=25, ge=1, description="Steps at which to compare.")
    tokens: int = Field(
        default=500, ge=1, description="Tokens at which to compare a branch that has fewer steps by then."
    )
    threshold: float = Field(
        default=0.8,
        gt=0.0,
        le=1.0,
        description="Threshold of a score: the similarity at which a branch is given up.",
    )
    criterion: Annotated[str, CodeAddress()] = Field(
        default="steps",
        pattern=r"^(steps|ngrams|[\w.]+:\w+)$",
        description="Criterion. `steps`: the Jaccard similarity of the sets of steps. `ngrams`: the cosine of "
        "the counts of three characters in a row. `pkg.mod:fn`: the cosine of what your function makes of a text, a "
        "list of numbers of one length; it runs inside the machine, so it must be quick (a table of word vectors, not "
        "a network), and a function of its argument alone.",
    )

    @field_validator("criterion")
    @classmethod
    def _there(cls, value: str) -> str:
        if ":" in value:
            _load_embedding(value)
        return value

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Return the branch that has just reached the comparison point, if its beginning is redundant."""
        subject = view.subject
        if subject is None:
            return ()
        if isinstance(event, Succeeded):
            self._demand_stream(subject)
            return ()
        if not isinstance(event, Progressed) or subject.state is not State.RUNNING:
            return ()
        joins = tolerant_votes(subject)
        if not joins or subject.tokens - event.tokens >= self.tokens:  # was compared before
            return ()
        task = view.task(subject.run)
        text = subject.line
        if not self._has_reached(task, text, subject.tokens):
            return ()
        # The branch had reached the point before this piece; each branch is compared once.
        if self._has_reached(task, text[: len(text) - len(event.text)], subject.tokens - event.tokens):
            return ()
        return list(self._stop_similar(joins, subject, task))

    def _has_reached(self, task: Task, text: str, tokens: int) -> bool:
        return tokens >= self.tokens or len(task.steps(text)) >= self.steps

    def _stop_similar(self, joins: Sequence[StepView], subject: StepView, task: Task) -> Iterator[Stop]:
        if any(reader not in joins for reader in subject.consumers) or len(joins) > 1:
            return  # another step reads the branch too
        mine = task.steps(subject.line)[: self.steps]
        # All branches without a step would be equal.
        if not mine:
            return
        best: StepView | None = None
        similarity = -1.0
        for other in joins[0].needs:
            if other == subject or other.state not in (State.RUNNING, State.DONE):
                continue
            text = other.line
            # The other branch is still too short. It is compared with this branch once it is long enough.
            if other.state is State.RUNNING and not self._has_reached(task, text, other.tokens):
                continue
            like = self._similarity(mine, task.steps(text)[: self.steps])
            if like > similarity:
                best, similarity = other, like
        if best is not None and similarity >= self.threshold:
            why = f"{joins[0].plan.name}: {similarity:.2g} like {best.plan.name}, which its vote goes with"
            yield Stop(subject.id, why, merged_into=best.id)

    def _similarity(self, a: Beginning, b: Beginning) -> float:
        match self.criterion:
            case "steps":
                return jaccard(a, b)
            case "ngrams":
                return counts_cosine(_grams("\n".join(a)), _grams("\n".join(b)))
            case path:
                return cosine(_embed(path, "\n".join(a)), _embed(path, "\n".join(b))) if b else 0.0

    @staticmethod
    def _demand_stream(subject: StepView) -> None:
        op = subject.plan.op
        if isinstance(op, ModelCall) and op.stream is False and tolerant_votes(subject):
            why = "forbids streaming, so nothing can be compared: leave out stream=false"
            raise PluginError(f"{subject.plan.name} {why}")


@functools.lru_cache(maxsize=1024)
def _grams(text: str) -> Mapping[str, int]:
    return grams(text) if text else {}


@functools.lru_cache(maxsize=1024)
def _embed(path: str, text: str) -> tuple[float, ...]:
    """Return a text's embedding from the user's function. Raises `PluginError`."""
    vector = _load_embedding(path)(text)
    try:
        return tuple(map(float, vector))
    except (TypeError, ValueError):
        raise PluginError(f"judge={path} must return a list of numbers, not a {type(vector).__name__}") from None


def _load_embedding(path: str) -> Callable[[str], Sequence[float]]:
    """Return the function that `pkg.mod:fn` names. Raises `PluginError`."""
    return cast("Callable[[str], Sequence[float]]", resolve(path, "judge"))
