"""When a join can end, and with which result. Pure functions of the join's record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.errors import DeadlineExceeded, DependencyFailed
from ..core.interfaces import Verdict
from ..core.result import Failure, Result
from ..core.states import FAILED
from ..core.values import json_value, writable
from ..core.view import Branch
from .records import Node
from .views import branches_of, decided


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a join should do now: wait, close over what is done, or end without a value."""

    verdict: Literal["wait", "close", "fail", "stop"]
    failure: Failure | None = None
    reason: str = ""


WAIT, CLOSE = Ruling("wait"), Ruling("close")


def judge(node: Node, arrived: bool) -> Ruling:
    """Say whether a join can end, now that a branch has. `arrived`: that branch brought a value.

    Asks the merge whether it is certain if the join may close early; what the merge raises comes out.
    """
    op = node.step.op
    assert op.kind == "join" and node.merge is not None
    done, out = node.branches_done, node.pending
    if op.tolerate == "all" and node.branches_failed:
        return _fail_like(next(dep for dep in node.deps if dep.state is FAILED))
    if op.tolerate == "quorum":
        quorum = op.quorum or 1
        if done + out < quorum:
            return _short(node, f"needs {quorum} branches and can get no more than {done + out}")
        out = max(0, quorum - done)  # no more than these will be heard
    if out == 0:
        return CLOSE if done or op.tolerate == "any-end" else _short(node, "got a value from none of its branches")
    if op.early and arrived and decided(node, out):
        return CLOSE
    return WAIT


def judge_at_deadline(node: Node, failure: Failure | None = None) -> Ruling:
    """Say what a join whose time is up does with the branches that are done: it closes over them, or fails when they
    are too few, with `failure` or as at its `deadline`."""
    op = node.step.op
    assert op.kind == "join"
    enough = {"all": len(node.deps), "quorum": op.quorum or 1, "best-effort": 1, "any-end": 0}[op.tolerate]
    if node.branches_done >= enough:
        return CLOSE
    if failure is not None:
        return Ruling("fail", failure)
    short = late(node)
    return Ruling("fail", short.model_copy(update={"message": f"{short.message}, {enough} are needed"}))


def late(node: Node) -> Failure:
    """Return how far a join had come at its deadline."""
    op = node.step.op
    assert op.kind == "join"
    message = f"{node.id}: after {op.deadline:g} s {node.branches_done} branches are done"
    return Failure(kind=DeadlineExceeded.__name__, message=message)


def limit_of(join: Node) -> Failure | None:
    """Return the budget or deadline that limited a join or one of its branches, if any did."""
    return join.limited or next((dep.limited for dep in join.deps if dep.limited), None)


def conclude(node: Node) -> Result:
    """Return a join's result over the branches that are done; what the merge raises comes out."""
    assert node.merge is not None
    branches = branches_of(node)
    node.seen = None
    verdict = node.merge.merge(branches, node.run.task)
    if not isinstance(verdict, Verdict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"it returned a {type(verdict).__name__}, which is no Verdict")
    return Result(
        value=json_value(verdict.value),
        why=writable(verdict.why),
        partial=limit_of(node) is not None,
        extracted=verdict.extracted,
        patch=verdict.patch,
        prior=_prior(verdict, branches),
    )


def _prior(verdict: Verdict, branches: Sequence[Branch]) -> str:
    """Return what stands in the line before the value, if that is one branch's own text."""
    if verdict.winner is None or verdict.extracted:
        return ""
    result = next((branch.result for branch in branches if branch.name == verdict.winner), None)
    return result.prior if result is not None and result.value == verdict.value else ""


def dependency_failed(dep: Node) -> Failure:
    """Return the failure of a step that needs `dep`, which failed. The first cause is carried on, not nested."""
    cause = dep.failure
    assert cause is not None
    if cause.kind == DependencyFailed.__name__:
        return cause
    return Failure(kind=DependencyFailed.__name__, message=f"{dep.id}: {cause.kind}: {cause.message}")


def _fail_like(dep: Node) -> Ruling:
    return Ruling("fail", dependency_failed(dep))


def _short(node: Node, what: str) -> Ruling:
    failed = next((dep for dep in node.deps if dep.failure is not None), None)
    if failed is None or failed.failure is None:
        return Ruling("stop", reason=f"{node.id} {what}: they were stopped")
    cause = failed.failure
    message = f"{node.id} {what}; first failure: {failed.id}: {cause.kind}: {cause.message}"
    return Ruling("fail", Failure(kind=DependencyFailed.__name__, message=message))
