"""What a run's joins decided: the verdict and why, which answers stood against it, and whose voice was not waited for.

Reads a finished machine's records and asks the run's task what an answer is and when two are the same. It decides what
counts as a choice; it does not know how merges weigh.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import JsonValue

from ...core.task import Task
from ...core.values import as_text
from ...machine.records import Node, Run
from .model import Ballot, Vote

__all__ = ["votes_of"]

_UNREAD = "nobody reads it any more"
"""The machine's reason for giving up a step whose readers have all ended."""


def votes_of(run: Run, began: float) -> list[Vote]:
    """Return the verdicts of all joins with more than one branch, in the order in which they were reached."""
    joins = [node for node in run.nodes if node.step.op.kind == "join" and len(node.deps) > 1]
    votes = [_vote(node, run.task, began) for node in joins]
    return sorted(votes, key=lambda each: (each.at is None, each.at or 0.0))


def _vote(join: Node, task: Task, began: float) -> Vote:
    closed = _closed_at(join)
    unheard = tuple(dep.id for dep in join.deps if closed is None or not _done_by(dep, closed))
    heard = [dep for dep in join.deps if dep.id not in set(unheard)]
    early = closed is not None and any(_still_out(dep, closed) for dep in join.deps)
    return Vote(
        step=join.id,
        at=None if closed is None else closed - began,
        verdict="" if join.own is None or join.own.value is None else as_text(join.own.value),
        why=join.own.why if join.own is not None else join.story[-1][4] if join.story else "",
        early=early and join.own is not None,
        ballots=_ballots(join, heard, task),
        unheard=unheard,
    )


def _closed_at(join: Node) -> float | None:
    return next((at for at, _, start, _, _ in join.story if start == "waiting"), None)


def _still_out(node: Node, at: float) -> bool:
    """Whether a branch had not ended when the join closed, so that at most the join's closing ended it."""
    if not node.ended or node.story[-1][0] > at:
        return True
    when, _, _, finish, reason = node.story[-1]
    return when == at and finish == "cancelled" and reason == _UNREAD


def _done_by(node: Node, at: float) -> bool:
    return any(finish == "done" and when <= at for when, _, _, finish, _ in node.story)


def _ballots(join: Node, heard: Iterable[Node], task: Task) -> tuple[Ballot, ...]:
    """Return the answers that stood for choice; none for a join whose verdict is no branch's answer."""
    if join.own is None:
        return ()
    classes: dict[str | None, list[Node]] = {}
    answers: dict[str | None, JsonValue] = {}
    for dep in heard:
        assert dep.result is not None
        answer = _answer(dep.result.value, task)
        key = _key(answer, task)
        classes.setdefault(key, []).append(dep)
        answers.setdefault(key, answer)
    verdict = join.own.value
    chosen = {key for key in (_key(verdict, task), _key(_answer(verdict, task), task)) if key is not None}
    if verdict is not None and not chosen & {key for key in classes if key is not None}:
        return ()
    if verdict is None and None not in classes:
        return ()
    ballots = [
        Ballot(
            answer="" if key is None else as_text(answers[key]),
            steps=tuple(node.id for node in nodes),
            verified=None if key is None else _verified(answers[key], task),
            chosen=key is not None and key in chosen,
        )
        for key, nodes in classes.items()
    ]
    return tuple(sorted(ballots, key=lambda each: (not each.chosen, not each.answer, -len(each.steps))))


def _answer(value: JsonValue, task: Task) -> JsonValue:
    """Return the answer that a branch claims; a value that is no text is one already."""
    if not isinstance(value, str):
        return value
    try:
        return task.extract(value)
    except Exception:  # tasks are plugins: one that chokes on a text finds no answer in it
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
