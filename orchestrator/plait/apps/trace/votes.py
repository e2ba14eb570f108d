"""The decisions of a run's joins: the verdict and its reason, the other answers, and the branches not waited for.

The run's task defines answers and their equality. If the verdict is not the answer of a branch, no ballots are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from ...core.record import StepRecord
from ...core.task import Task
from ...core.values import as_text
from .model import AnswerVotes, Vote


def votes_of(steps: Sequence[StepRecord], task: Task) -> list[Vote]:
    """Return the verdicts of all joins with more than one branch, in the order in which they were reached."""
    known = {step.step: step for step in steps}
    joins = [step for step in steps if step.kind == "join" and len(step.needs) > 1]
    votes = [_vote(step, [known[need] for need in step.needs], task) for step in joins]
    return sorted(votes, key=lambda vote: (vote.at is None, vote.at or 0.0))


def _vote(join: StepRecord, branches: Sequence[StepRecord], task: Task) -> Vote:
    closed = join.moves[0][0] if join.moves else None
    heard = [branch for branch in branches if closed is not None and _done_by(branch, closed)]
    known = {branch.step for branch in heard}
    reached = any(state in ("done", "expanding") for _, state, _ in join.moves)
    return Vote(
        step=join.step,
        at=closed,
        verdict="" if join.value is None else as_text(join.value),
        why=join.why if reached else join.moves[-1][2] if join.moves else "",
        early=reached and closed is not None and any(_still_out(branch, closed) for branch in branches),
        ballots=_ballots(join.value, heard, task) if reached else (),
        unheard=tuple(branch.step for branch in branches if branch.step not in known),
    )


def _still_out(branch: StepRecord, at: float) -> bool:
    """Return whether a branch was still active when the join closed."""
    if not branch.ended or branch.moves[-1][0] > at:
        return True
    return branch.cause == "unneeded" and branch.ended_at == at


def _done_by(branch: StepRecord, at: float) -> bool:
    return any(state == "done" and when <= at for when, state, _ in branch.moves)


def _ballots(verdict: JsonValue, heard: Iterable[StepRecord], task: Task) -> tuple[AnswerVotes, ...]:
    """Return the candidate answers; none if the join's verdict is not the answer of a branch."""
    classes: dict[str | None, list[str]] = {}
    answers: dict[str | None, JsonValue] = {}
    for branch in heard:
        answer = _answer(branch.output, task)
        key = _key(answer, task)
        classes.setdefault(key, []).append(branch.step)
        answers.setdefault(key, answer)
    chosen = {key for key in (_key(verdict, task), _key(_answer(verdict, task), task)) if key is not None}
    if verdict is not None and not chosen & {key for key in classes if key is not None}:
        return ()
    if verdict is None and None not in classes:
        return ()
    ballots = [
        AnswerVotes(
            answer="" if key is None else as_text(answers[key]),
            steps=tuple(steps),
            verified=None if key is None else _verified(answers[key], task),
            chosen=key is not None and key in chosen,
        )
        for key, steps in classes.items()
    ]
    return tuple(sorted(ballots, key=lambda ballot: (not ballot.chosen, not ballot.answer, -len(ballot.steps))))


def _answer(value: JsonValue, task: Task) -> JsonValue:
    """Return a branch's answer; a value that is not text is an answer itself."""
    if not isinstance(value, str):
        return value
    try:
        return task.extract(value)
    except Exception:  # tasks are plugins: a task that fails on a text finds no answer
        return None


def _key(answer: JsonValue, task: Task) -> str | None:
    if answer is None:
        return None
    try:
        return task.key(answer)
    except Exception:  # not an answer of this task, such as a list of tools' values
        return None


def _verified(answer: JsonValue, task: Task) -> bool | None:
    try:
        return task.verify(answer)
    except Exception:
        return None
