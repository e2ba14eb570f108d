"""The final choice among a tree's answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from plait.core.search import SearchNode
from plait.core.task import Task

Weight = Literal["last", "mean", "min", "product", "best", "count"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer that won."""

    node: SearchNode
    value: JsonValue
    why: str


def choose(answers: Sequence[SearchNode], task: Task, rule: Weight) -> Choice | None:
    """Return the answer with the greatest sum of scores, or `None` without answers. `best` takes the answer with the
    highest single score, as in best-of-n. `count` takes the answer of most nodes, as in a majority vote.

    Equal answers (`Task.key`) count as one. Ties go to the higher single score, then to fewer tokens, then to the first
    name. An unknown score counts as the mean of the known scores.
    """
    if not answers:
        return None
    known = [weighed for weighed in (_weight(node, rule) for node in answers) if weighed is not None]
    unknown = sum(known) / len(known) if known else 1.0
    groups: dict[str, list[tuple[float, SearchNode]]] = {}
    for node in answers:
        weight = _weight(node, rule)
        groups.setdefault(task.key(node.answer), []).append((unknown if weight is None else weight, node))

    def order(group: list[tuple[float, SearchNode]]) -> tuple[float, float, int, str]:
        weight, node = _best(group)
        total = weight if rule == "best" else sum(score * node.weight for score, node in group)
        return (-total, -weight, _tokens(node), node.name)

    won = min(groups.values(), key=order)
    _, node = _best(won)
    total = sum(weight * node.weight for group in groups.values() for weight, node in group) or 1.0
    share = sum(weight * node.weight for weight, node in won) / total
    return Choice(node, node.answer, f"{share:.0%} of the score; {len(answers)} answers, {len(groups)} different")


def _best(group: Sequence[tuple[float, SearchNode]]) -> tuple[float, SearchNode]:
    return min(group, key=lambda weighed: (-weighed[0], _tokens(weighed[1]), weighed[1].name))


def _tokens(node: SearchNode) -> int:
    return sum(step.tokens for step in node.path())


def _weight(node: SearchNode, rule: Weight) -> float | None:
    if rule == "count":
        return 1.0
    if rule in ("last", "best"):
        return node.score
    scores = [step.score for step in node.path()[1:] if step.score is not None]
    if not scores:
        return None
    match rule:
        case "mean":
            return sum(scores) / len(scores)
        case "min":
            return min(scores)
        case _:
            return math.prod(scores)
