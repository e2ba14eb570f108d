"""Move steps: make them ready, cancel them, and spread the end of a step to its neighbours.

Two rules carry nearly everything. Downstream: a step that ends notifies its dependants; one whose needs are all met
becomes ready, a join counts its branches, and any other step that needs a missing value ends without one too.
Upstream: a step that ends releases its needs; a step without a consumer is cancelled.

The layer above `attempt_lifecycle.py`. It chooses no worker and reads no event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.causes import Cause, sentence
from ..core.errors import (
    RAISED,
    BudgetExceeded,
    DeadlineExceeded,
    DependencyFailed,
    EngineError,
    Interrupted,
    NeverMade,
    PluginError,
    WorkerLost,
)
from ..core.events import Cancel, Expand
from ..core.interfaces import Merge, Policy, Verdict
from ..core.result import Failure, Result, as_failure, frames_of
from ..core.states import CANCELLED, DONE, EXPANDED, EXPANDING, FAILED, READY, RUNNING, WAITING, State
from ..core.value_sizes import measure_value
from ..core.values import json_value, writable
from ..core.view import Branch
from .attempt_lifecycle import Slots
from .ready_queue import ReadyQueue
from .records import Attempt, Node, Records, Run, Scope
from .value_sizes import branch_weights, byte_limit, charge_join, charge_references
from .views import MachineView, NodeView, branches_of, decided

_TRY = "try "
"""Prefix of the reason of a move to `waiting` before another try."""
_LIMITS: dict[str, Cause] = {BudgetExceeded.__name__: "budget", DeadlineExceeded.__name__: "deadline"}


class Steps:
    """The moves of all steps."""

    def __init__(self, records: Records, queue: ReadyQueue, slots: Slots) -> None:
        self.ended: deque[Node] = deque()
        """Steps that have ended and whose neighbours have not been notified yet."""
        self._records = records
        self._queue = queue
        self._slots = slots

    # -- one step ------------------------------------------------------------------------------------------------------

    def move(self, node: Node, state: State, reason: str = "") -> None:
        """Move a step, and note it."""
        node.move(state, self._records, reason)

    def ready(self, node: Node) -> None:
        """Rank a step whose needs are met, and queue it for a slot."""
        # A step without needs inserts no values, so it has nothing to charge, nor has a call without arguments.
        op = node.step.op
        reads = node.run.put or op.kind != "call" or op.args
        if node.deps and reads and (heavy := charge_references(node)) is not None:
            self.fail(node, heavy)
            return
        before = node.path_tokens.before
        for dep in node.deps:
            if dep.path_tokens.total > before:
                before = dep.path_tokens.total
        if node.after_own and node.after is not None:
            before = max(before, node.after.path_tokens.own)
        node.path_tokens.before = before
        node.move(READY, self._records)
        if not node.run.policies.rankers or self._rank(node, node.run):
            self._queue.push(node)

    def enqueue(self, node: Node) -> None:
        """Ask the policies for the rank of a ready step, and queue it."""
        if not node.run.policies.rankers or self._rank(node, node.run):
            self._queue.push(node)

    def _rank(self, node: Node, run: Run) -> bool:
        """Set a step's rank; return whether no policy raised."""
        node.place.rank = ()
        for policy in run.policies.rankers:
            try:
                subject = NodeView(node)
                rank = policy.rank(subject, MachineView(self._records, self._queue, subject, run.id))
                node.place.rank += tuple(map(float, rank))  # one after the other: a later policy only breaks ties
            except RAISED as error:
                self.break_run(run, policy, error)
                return False
        return True

    def finish_with_value(self, node: Node, result: Result, path: int) -> None:
        """End a step with a value; `path` is the longest chain of generated tokens that it was made from."""
        node.outcome.result, node.path_tokens.total = result, path
        node.move(DONE, self._records)
        self.ended.append(node)
        owner = node.scope.owner
        if owner is not None and path > owner.path_tokens.own and _is_flow(owner):
            owner.path_tokens.own = path  # what the flow makes from now on may depend on it

    def fail(self, node: Node, failure: Failure) -> None:
        """End a step without a value, unless it has ended already."""
        if node.ended:
            return
        if is_limit(failure):
            failure = _with_last_try(node, failure)
        node.outcome.failure = failure
        node.outcome.limited = node.outcome.limited or (failure if is_limit(failure) else None)
        self._slots.stop_all(node, _cause_of(failure), failure.message)
        self.move(node, FAILED, f"{failure.kind}: {failure.message}")
        self.ended.append(node)

    def cancel(self, node: Node, cause: Cause, about: str = "") -> None:
        """Cancel a step, unless it has ended already. `about`: see `core.causes.sentence`."""
        if node.ended:
            return
        if not self._slots.stop_all(node, cause, about):
            # No worker runs it, so no other event would report its end to watchers.
            self._records.actions.append(Cancel(node.id, cause=cause, about=about))
        node.move(CANCELLED, self._records, sentence(cause, about), cause)
        self.ended.append(node)

    def end_like(self, node: Node, dep: Node) -> None:
        """End a step because one that it needs ended without a value."""
        node.outcome.limited = node.outcome.limited or dep.outcome.limited
        if dep.outcome.failure is not None:
            self.fail(node, dependency_failed(dep))
        else:
            self.cancel(node, "failed-need", dep.id)

    def retry_or_fail(self, attempt: Attempt, failure: Failure) -> None:
        """Continue after an attempt without a value: with the other attempt if there is one; else retry the step if the
        failure and the kind of the step allow it, from a checkpoint if the worker was lost; else fail it."""
        node = attempt.node
        # Only the text of a lost worker is continued: the text itself may have caused any other failure.
        checkpoint = attempt.checkpoint() if failure.lost else None
        if not failure.lost:
            node.attempts.checkpoint = None
        # A hedge or a repeated loss may leave less than is known already: the longer checkpoint saves more tokens.
        elif checkpoint is not None and (
            node.attempts.checkpoint is None or len(checkpoint.ids) > len(node.attempts.checkpoint.ids)
        ):
            node.attempts.checkpoint = checkpoint
        if node.attempts.live is not None:
            return  # the failure of one of two attempts does not concern the step
        if node.inner is not None:  # patches to the failed attempt are void
            for name in node.inner.names.values():
                self.cancel(name, "retried", node.id)
            node.inner, node.own_waiters = None, None
        match retry_delay(node, failure):
            case Failure() as final:
                self.fail(node, final)
            case delay:
                self.move(node, WAITING, f"{_TRY}{node.attempts.count}: {failure.kind}: {failure.message}")
                if failure.lost:
                    # A loss says nothing about the step, so it goes again at once; after a failure it waits, for the
                    # cause may pass.
                    node.attempts.lost += 1
                    node.attempts.interrupted += failure.kind == Interrupted.__name__
                    self.ready(node)
                else:
                    self._slots.timers.add(self._records.now + delay, "retry", node)

    def lose_worker(self, live: Sequence[Attempt], worker: str, message: str) -> None:
        """Retry the steps of a worker that went away. If exactly one of them has lost another worker before, it may be
        the cause: it fails once it has lost as many workers as `Retries.deaths` allows."""
        again = [
            attempt.node
            for attempt in live
            if attempt.node.attempts.lost_on and attempt.node.attempts.lost_on[-1] != worker
        ]
        for attempt in live:
            node = attempt.node
            if node.state is not RUNNING:  # the retry of another lost step has cancelled it
                continue
            before = node.attempts.lost_on
            node.attempts.lost_on = before if before and before[-1] == worker else (*before, worker)
            if again == [node] and len(node.attempts.lost_on) >= node.run.request.retries.deaths:
                problem = f"{message}, as {before[-1]} had before: not retried, since it may be what kills workers"
                self.retry_or_fail(attempt, as_failure(EngineError(problem)))
            else:
                self.retry_or_fail(attempt, as_failure(WorkerLost(message)))

    # -- its neighbours ------------------------------------------------------------------------------------------------

    def spread(self) -> None:
        """Notify the neighbours of all steps that have ended, and of the steps that end as a consequence."""
        ended = self.ended
        while ended:
            self._notify(ended.popleft())

    def _notify(self, node: Node) -> None:
        """Notify the dependants, the needs and the scope of a step that has ended."""
        run, scope, done = node.run, node.scope, node.state is DONE
        for reader in node.dependants:
            if reader.ended or reader.join.released:
                continue  # a released join has its result, so its branches no longer matter to it
            reader.pending -= 1
            if reader.merge is not None:
                if reader.join.untallied is not None:
                    reader.join.untallied.append(node)
                if done:
                    reader.join.done += 1
                    if reader.join.waits_for_all and reader.pending:
                        continue  # it cannot close before the last branch, unless one fails
                elif node.state is FAILED:
                    reader.join.failed += 1
                self.judge(reader, arrived=done)
            elif not done:
                self.end_like(reader, node)
            elif reader.pending == 0:
                self.ready(reader)
        if not node.join.released:  # a released join has released its needs already
            for dep in node.deps:
                if not dep.ended:
                    self.release(dep)
        if not done and node.account is not None and node.last_move[2] == "ready":
            # It never began, so no end of an attempt will queue the steps that it went before.
            self._slots.ask_others(node)
        node.place.blocked = None
        if run.held.heaps:
            self._slots.stirred[run.id] = run
        if node.inner is not None:
            for step in node.inner.names.values():
                self.cancel(step, "owner-ended", node.id)
        if scope.output is node and not scope.open:  # a patch to come may name another output
            self.output_ended(scope, node)

    def release(self, node: Node) -> None:
        """Remove a consumer of a step, and cancel the step if it was the last."""
        node.consumers -= 1
        if node.consumers == 0:
            self.cancel(node, "unneeded")

    def expand(self, node: Node, result: Result) -> None:
        """Ask the planner to expand a step that has its own result."""
        self.move(node, EXPANDING)
        self._records.actions.append(Expand(node.id, node.attempts.generation, result=result))
        waiters, node.own_waiters = node.own_waiters or (), None
        for waiter in waiters:  # they continue the step's own text, which is complete now
            waiter.pending -= 1
            if waiter.pending == 0 and not waiter.ended:
                self.ready(waiter)

    def output_ended(self, scope: Scope, output: Node) -> None:
        """End the step that expands into a closed scope, or the run, because the output of the scope has ended."""
        owner = scope.owner
        if owner is None:
            self._slots.closing.append(scope.run)
            return
        if owner.state is not EXPANDED:
            return  # its planner has not closed it yet; `close_expansion` calls this again
        owner.outcome.limited = owner.outcome.limited or output.outcome.limited
        if output.outcome.result is not None:
            path = output.path_tokens.total if _is_flow(owner) else max(output.path_tokens.total, owner.path_tokens.own)
            self.finish_with_value(owner, output.outcome.result, path)
        elif output.outcome.failure is not None:
            self.fail(owner, output.outcome.failure.bare)
        else:
            self.cancel(owner, "failed-output", output.id)

    # -- joins ---------------------------------------------------------------------------------------------------------

    def judge(self, node: Node, arrived: bool) -> None:
        """End a join if the end of a branch allows it; `arrived`: the branch ended with a value."""
        try:
            ruling = judge(node, arrived)
        except RAISED as error:
            self.fail(node, plugin_failure(node.merge, error))
            return
        if ruling is not WAIT:
            self.obey(node, ruling)

    def obey(self, node: Node, ruling: Ruling) -> None:
        """Apply a ruling to a join."""
        match ruling.verdict:
            case "wait":
                return
            case "close":
                self._close_join(node)
            case "stop":
                self.cancel(node, "too-few", ruling.about)
            case "fail":
                assert ruling.failure is not None
                node.outcome.limited = limit_of(node)
                self.fail(node, ruling.failure)

    def _close_join(self, node: Node) -> None:
        if (heavy := charge_join(node)) is not None:
            self.fail(node, heavy)
            return
        try:
            result = conclude(node)
        except RAISED as error:
            self.fail(node, plugin_failure(node.merge, error))
            return
        node.outcome.own = result
        node.outcome.limited = limit_of(node)
        node.path_tokens.own = max(
            [node.path_tokens.before, *[dep.path_tokens.total for dep in node.deps if dep.state is DONE]]
        )
        if not node.step.expands and result.patch is None:
            self.finish_with_value(node, result, node.path_tokens.own)
            return
        node.join.released = True  # before the release cancels its branches, which would count as ended
        self.expand(node, result)
        for dep in node.deps:
            if not dep.ended:
                self.release(dep)

    # -- whole runs ----------------------------------------------------------------------------------------------------

    def break_run(self, run: Run, plugin: Policy, error: BaseException) -> None:
        """End a run whose policy raised."""
        self.break_with(run, plugin_failure(plugin, error))

    def break_with(self, run: Run, failure: Failure) -> None:
        """End a run with the failure of a policy, unless one has ended it already."""
        if run.broken is None:  # the first failure is reported: later ones may follow from it
            run.broken = failure
            self.cancel_all(run, "broken", failure.message)

    def cancel_all(self, run: Run, cause: Cause, about: str) -> None:
        """Cancel all steps of a run."""
        for node in run.nodes:
            self.cancel(node, cause, about)


def _cause_of(failure: Failure) -> Cause:
    """Return the cause with which the attempts of a failing step are stopped."""
    return _LIMITS.get(failure.kind, "failed")


def plugin_failure(plugin: Policy | Merge | None, error: BaseException) -> Failure:
    """Return the failure of a step or run whose plugin raised."""
    problem = writable(f"{type(plugin).__name__} raised {type(error).__name__}: {error}")
    return Failure(kind=PluginError.__name__, message=problem, frames=frames_of(error))


def _is_flow(node: Node) -> bool:
    """Return whether a step represents a flow: a join without branches that expands."""
    return node.merge is not None and node.step.expands and not node.step.needs


@dataclass(frozen=True, slots=True)
class Ruling:
    """The next move of a join: wait, close over its finished branches, or end without a value."""

    verdict: Literal["wait", "close", "fail", "stop"]
    failure: Failure | None = None
    about: str = ""
    """The branches that a stopped join lacked."""


WAIT, CLOSE = Ruling("wait"), Ruling("close")


def judge(node: Node, arrived: bool) -> Ruling:
    """Decide whether the end of a branch ends its join. `arrived`: the branch ended with a value.

    If the join may close early, the merge decides whether its result is certain. Errors of the merge propagate.
    """
    op = node.step.op
    assert op.kind == "join" and node.merge is not None
    done, out = node.join.done, node.pending
    if op.on_failure == "all" and node.join.failed:
        return _fail_like(next(dep for dep in node.deps if dep.state is FAILED))
    if op.on_failure == "quorum":
        quorum = op.quorum or 1
        if done + out < quorum:
            return _short(node, f"needs {quorum} branches and can get no more than {done + out}")
        out = max(0, quorum - done)  # the join closes at its quorum, so it reads no more branches than these
    if out == 0:
        return CLOSE if done or op.on_failure == "any-end" else _short(node, "got a value from none of its branches")
    if op.early and arrived and decided(node, out):
        return CLOSE
    return WAIT


def judge_at_deadline(node: Node, failure: Failure | None = None) -> Ruling:
    """Decide how a join ends whose time is up: it closes over its finished branches, or fails if they are too few,
    with `failure` or with the failure of its own `deadline`."""
    op = node.step.op
    assert op.kind == "join"
    enough = {"all": len(node.deps), "quorum": op.quorum or 1, "best-effort": 1, "any-end": 0}[op.on_failure]
    if node.join.done >= enough:
        return CLOSE
    if failure is not None:
        return Ruling("fail", failure)
    short = deadline_failure(node)
    return Ruling("fail", short.model_copy(update={"message": f"{short.message}, {enough} are needed"}))


def deadline_failure(node: Node) -> Failure:
    """Return the failure of a join at its deadline, with the number of its finished branches."""
    op = node.step.op
    assert op.kind == "join"
    message = f"{node.id}: after {op.deadline:g} s {node.join.done} branches are done"
    return Failure(kind=DeadlineExceeded.__name__, message=message)


def limit_of(join: Node) -> Failure | None:
    """Return the budget or deadline that limited a join or one of its branches, if any did."""
    return join.outcome.limited or next((dep.outcome.limited for dep in join.deps if dep.outcome.limited), None)


def conclude(node: Node) -> Result:
    """Return a join's result over its finished branches. Errors of the merge propagate. Values of branches are shared
    with the result, not copied, however often it holds them."""
    assert node.merge is not None
    branches, known = branches_of(node), branch_weights(node)
    node.join.seen = None
    verdict = node.merge.merge(branches, node.run.task)
    if not isinstance(verdict, Verdict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"it returned a {type(verdict).__name__} instead of a Verdict")
    weight, most = measure_value(verdict.value, known, byte_limit(node.run)), byte_limit(node.run)
    if weight.bytes > most:
        raise ValueError(f"its value has more than {most:,} bytes: raise `value_bytes`")
    result = Result(
        why=writable(verdict.why),
        data=json_value(verdict.data),
        partial=limit_of(node) is not None,
        extracted=verdict.extracted,
        patch=verdict.patch,
        prior=_prior(verdict, branches),
    )
    node.outcome.weight = weight
    # Values of branches were checked when they came: only what the merge added is walked.
    value = json_value(verdict.value, known={same: weighed.levels for same, weighed in known.items()})
    return result.model_copy(update={"value": value})


def _prior(verdict: Verdict, branches: Sequence[Branch]) -> str:
    """Return the text before the value in its trajectory, if the value is one branch's own text."""
    if verdict.winner is None or verdict.extracted:
        return ""
    result = next((branch.result for branch in branches if branch.name == verdict.winner), None)
    return result.prior if result is not None and result.value == verdict.value else ""


def dependency_failed(dep: Node) -> Failure:
    """Return the failure of a step whose need `dep` failed. The first cause is passed on, not nested."""
    cause = dep.outcome.failure
    assert cause is not None
    if cause.kind == DependencyFailed.__name__:
        return cause
    return Failure(kind=DependencyFailed.__name__, message=f"{dep.id}: {cause.kind}: {cause.message}")


def _fail_like(dep: Node) -> Ruling:
    return Ruling("fail", dependency_failed(dep))


def _short(node: Node, what: str) -> Ruling:
    ended = [dep for dep in node.deps if dep.ended and dep.state is not DONE]
    failed = [dep for dep in ended if dep.outcome.failure is not None]
    if not failed:
        why = next((f"; first, {dep.id}: {dep.story[-1][4]}" for dep in ended if dep.story and dep.story[-1][4]), "")
        return Ruling("stop", about=f"{what}{why}")
    first = failed[0]
    cause = first.outcome.failure
    assert cause is not None
    count = f"{len(failed)} of {len(node.deps)} branches failed"
    message = f"{node.id} {what}; first failure: {first.id}: {cause.kind}: {cause.message} ({count})"
    return Ruling("fail", Failure(kind=DependencyFailed.__name__, message=message))


def _with_last_try(node: Node, failure: Failure) -> Failure:
    """Return the failure of a limit with the failure of the step's last try, if there was one."""
    # A reader who sees only the limit would raise it, and wait longer for the same failure.
    tried = next((move[4] for move in reversed(node.story) if move[4].startswith(_TRY)), "")
    if not tried:
        return failure
    return failure.model_copy(update={"message": f"{failure.message}; the step's last failure was {tried}"})


def retry_delay(node: Node, failure: Failure) -> float | Failure:
    """Return the seconds to wait before a step is retried, or the failure that it ends with.

    A step with side effects is retried only if its attempt was never made. A step whose worker was lost is retried at
    once, `Retries.lost` times; interruptions by plait itself do not count. After any other retryable failure,
    the retries of the step's kind apply, with exponential backoff.
    """
    retries = node.run.request.retries
    if failure.kind == NeverMade.__name__:
        return 0.0
    if node.step.side_effects:
        if failure.lost:
            message = f"{failure.message}; whether it took effect is unknown, so it is not retried"
            return failure.model_copy(update={"message": message})
        return failure
    if failure.kind == Interrupted.__name__ or (
        failure.lost and node.attempts.lost - node.attempts.interrupted < retries.lost
    ):
        return 0.0
    again = retries.think if node.step.op.kind == "think" else retries.call
    tried = node.attempts.count - node.attempts.lost
    if failure.retryable and not failure.lost and tried <= again:
        return retries.backoff * 2.0 ** (tried - 1)
    if node.attempts.count > 1:
        return failure.model_copy(update={"message": f"{failure.message} (after {node.attempts.count} tries)"})
    return failure


def is_limit(failure: Failure) -> bool:
    """Whether a failure comes from a budget or deadline rather than from the step."""
    return failure.kind in ("BudgetExceeded", "DeadlineExceeded")
