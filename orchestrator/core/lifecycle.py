"""How steps move: what becomes ready, what is given up, what goes to which slot. The lower half of the machine.

`machine.py` says what each event means and holds the theory of operation; the rules by which one step's end moves
others stand here. Does not know events, planners or the end of a run.
"""

from __future__ import annotations

from collections import deque

from . import budget
from .base import Merge, Plugins, Policy
from .ends import is_cut, retry_delay
from .errors import NoWorker, PluginError, as_failure
from .events import Action, Cancel, Expand
from .fleet import Fleet, Host
from .ir import Failure, Kind, Result, Usage
from .joins import WAIT, Ruling, conclude, dependency_failed, judge
from .nodes import Attempt, Move, Node, Run, Scope, State
from .resolve import resolve
from .timers import Timers
from .trusted import dispatch
from .view import StepView, View


class Lifecycle:
    """All state of all runs, and the moves of their steps."""

    def __init__(self, plugins: Plugins, *, grace: float, lease: float | None) -> None:
        self.now = 0.0
        self.runs: dict[str, Run] = {}
        self.nodes: dict[str, Node] = {}
        self.attempts: dict[int, Attempt] = {}
        self.fleet = Fleet()
        self.timers = Timers()
        self.moves: list[Move] = []
        """What moved in the last `handle`, for those who watch."""
        self._plugins = plugins
        self._grace = grace
        self._lease = lease
        self._out: list[Action] = []
        self._ended: deque[Node] = deque()
        self._closing: list[Run] = []
        """Runs that may be over."""
        self._last_attempt = 0

    def _spread(self) -> None:
        """Work through the steps that have ended, and those that this ends."""
        while self._ended:
            self._propagate(self._ended.popleft())

    def _advance(self) -> None:
        """Move on until nothing moves: ends spread, then what is ready goes to free slots."""
        while True:
            if self._ended:
                self._spread()
            self._dispatch_ready()
            if not self._ended:
                return

    def _propagate(self, node: Node) -> None:
        """Tell everyone concerned that a step has ended."""
        done = node.state is State.DONE
        for reader in node.dependants:
            if reader.ended or reader.let_go:
                continue
            reader.pending -= 1
            if reader.merge is not None:
                if done:
                    reader.branches_done += 1
                    if reader.patient and reader.pending:
                        continue
                elif node.state is State.FAILED:
                    reader.branches_failed += 1
                self._judge(reader, arrived=done)
            elif not done:
                self._end_like(reader, node)
            elif reader.pending == 0:
                self._ready(reader)
        if not node.let_go:
            for dep in node.deps:
                if not dep.ended:
                    self._let_go(dep)
        if node.woken is not None:
            self._passed_on(node)
        if node.inner is not None:
            for each in node.inner.names.values():
                self._cancel(each, f"{node.id}, which expanded into it, has ended")
        if node.scope.output is node and not node.scope.open:
            self._output_ended(node.scope, node)

    def _let_go(self, node: Node) -> None:
        node.readers -= 1
        if node.readers == 0:
            self._cancel(node, "nobody reads it any more")

    def _ready(self, node: Node) -> None:
        for dep in node.deps:
            if dep.path > node.path_before:
                node.path_before = dep.path
        if node.after_own and node.after is not None:
            node.path_before = max(node.path_before, node.after.path_own)
        self._move(node, State.READY)
        rank: tuple[float, ...] = ()
        for policy in node.run.rankers:
            try:
                rank += tuple(map(float, policy.rank(StepView(node), View(self, StepView(node)))))
            except Exception as error:
                self._break(node.run, policy, error)
                return
        self.fleet.push(node, rank)

    def _done(self, node: Node, result: Result, path: int) -> None:
        node.result, node.path = result, path
        self._move(node, State.DONE)
        self._ended.append(node)

    def _fail(self, node: Node, failure: Failure) -> None:
        if node.ended:
            return
        node.failure = failure
        node.cut = node.cut or is_cut(failure)
        self._stop_attempt(node, failure.message)
        self._move(node, State.FAILED, f"{failure.kind}: {failure.message}")
        self._ended.append(node)

    def _cancel(self, node: Node, reason: str) -> None:
        if node.ended:
            return
        if not self._stop_attempt(node, reason):
            self._out.append(Cancel(step=node.id, reason=reason))
        self._move(node, State.CANCELLED, reason)
        self._ended.append(node)

    def _end_like(self, node: Node, dep: Node) -> None:
        """End a step because one that it needs ended without a value."""
        node.cut = node.cut or dep.cut
        if dep.failure is not None:
            self._fail(node, dependency_failed(dep))
        else:
            self._cancel(node, f"{dep.id}, which it needs, was stopped")

    def _move(self, node: Node, state: State, reason: str = "") -> None:
        self.moves.append(node.move(state, self.now, reason))

    def _expand(self, node: Node, result: Result) -> None:
        self._move(node, State.EXPANDING)
        self._out.append(Expand(step=node.id, attempt=node.generation, result=result))
        waiters, node.own_waiters = node.own_waiters or (), None
        for waiter in waiters:
            waiter.pending -= 1
            if waiter.pending == 0 and not waiter.ended:
                self._ready(waiter)

    def _output_ended(self, scope: Scope, output: Node) -> None:
        owner = scope.owner
        if owner is None:
            self._closing.append(scope.run)
            return
        if owner.state is not State.EXPANDED:
            return
        owner.cut = owner.cut or output.cut
        if output.result is not None:
            self._done(owner, output.result, max(output.path, owner.path_own))
        elif output.failure is not None:
            self._fail(owner, output.failure)
        else:
            self._cancel(owner, f"{output.id}, its output, was stopped")

    # -- joins ---------------------------------------------------------------------------------------------------------

    def _judge(self, node: Node, arrived: bool) -> None:
        """End a join if it can end, now that a branch has."""
        try:
            ruling = judge(node, arrived)
        except Exception as error:
            self._fail(node, raised(node.merge, error))
            return
        if ruling is not WAIT:
            self._obey(node, ruling)

    def _obey(self, node: Node, ruling: Ruling) -> None:
        match ruling.verdict:
            case "wait":
                return
            case "close":
                self._close_join(node)
            case "stop":
                self._cancel(node, ruling.reason)
            case "fail":
                assert ruling.failure is not None
                node.cut = node.cut or any(dep.cut for dep in node.deps)
                self._fail(node, ruling.failure)

    def _close_join(self, node: Node) -> None:
        try:
            result = conclude(node)
        except Exception as error:
            self._fail(node, raised(node.merge, error))
            return
        node.own, node.cut = result, result.partial
        node.path_own = max([node.path_before, *(dep.path for dep in node.deps if dep.state is State.DONE)])
        if not node.step.expands:
            self._done(node, result, node.path_own)
            return
        node.let_go = True
        self._expand(node, result)
        for dep in node.deps:
            if not dep.ended:
                self._let_go(dep)

    # -- attempts ------------------------------------------------------------------------------------------------------

    def _dispatch_ready(self) -> None:
        while (taken := self.fleet.take()) is not None:
            entry, host = taken
            node = entry[3]
            op = node.step.op
            if host is None:
                message = f"no worker serves {op.kind} steps; start one, or check why it ended"
                self._fail(node, as_failure(NoWorker(message)))
                continue
            tokens = op.sampling.max_tokens if op.kind == "think" else 0
            match budget.admit(node.account, tokens, self.now):
                case budget.Grant() as grant:
                    if node.run.placers:
                        host = self._place(node, host)
                    self._dispatch(node, host, grant)
                    if node.woken is not None:
                        self._passed_on(node)
                case budget.Hold(account):
                    budget.hold(account, entry)
                    if node.woken is account:
                        node.woken = None
                    self._passed_on(node)
                case budget.Refusal(message):
                    self._fail(node, Failure(kind="BudgetExceeded", message=message))

    def _passed_on(self, node: Node) -> None:
        """Let the next step be asked about that the account holds back which had let this one be asked about.

        An account lets one step of each kind go when something under it ends, and the next when that one did not stay
        with it: so a budget that holds thousands back costs a question or two an attempt, not thousands.
        """
        account, node.woken = node.woken, None
        if account is not None:
            self._wake(account, node.step.op.kind)

    def _wake(self, account: budget.Account, kind: Kind) -> None:
        entry = budget.unhold(account, kind)
        if entry is not None:
            entry[3].woken = account
            self.fleet.put_back(entry)

    def _place(self, node: Node, default: Host) -> Host:
        for policy in node.run.placers:
            try:
                name = policy.place(StepView(node), View(self, StepView(node)))
                host = self.fleet.hosts.get(name) if name is not None else None
            except Exception as error:
                self._break(node.run, policy, error)
                return default
            if host is not None and host.free > 0 and node.step.op.kind in host.serves:
                return host
        return default

    def _dispatch(self, node: Node, host: Host, grant: budget.Grant) -> None:
        if node.ended:  # a policy that raised while it was asked for a place has ended the run
            return
        self._last_attempt += 1
        op = resolve(node, grant.tokens)
        attempt = Attempt(self._last_attempt, node, host, grant.tokens, grant.truncated, self.now)
        self.attempts[attempt.id] = attempt
        node.attempt, node.generation = attempt, attempt.id
        node.tries += 1
        node.run.live += 1
        if op.kind == "think":
            node.prompt = tuple(part for part in op.prompt if part.kind != "ref")
        seconds: float | None = None
        if node.account is not None:
            budget.reserve(node.account, grant.tokens)
            seconds = budget.seconds_left(node.account, self.now)
        self.fleet.occupy(host)
        self._move(node, State.RUNNING, host.name)
        if self._lease is not None:
            self.timers.add(self.now + self._lease, "lease", attempt)
        self._out.append(dispatch(host.name, attempt.id, node.run.id, node.id, op, seconds))

    def _stop_attempt(self, node: Node, reason: str) -> bool:
        """Ask the worker to stop a step's live attempt, if it has one."""
        attempt = node.attempt
        if attempt is None:
            return False
        attempt.state, node.attempt = "stopping", None
        self.timers.add(self.now + self._grace, "grace", attempt)
        self._out.append(Cancel(step=node.id, attempt=attempt.id, worker=attempt.host.name, reason=reason))
        return True

    def _gone(self, attempt: Attempt, usage: Usage | None, read: bool = False) -> None:
        """Take note that an attempt is over: its slot and its reservation are free again.

        Without `usage` nobody knows what it generated: the meter counts what was heard of, and the accounts are charged
        all that it might have generated, since a limit is hard.
        """
        node, run = attempt.node, attempt.node.run
        least = attempt.reserved if usage is None else 0
        usage = usage or Usage()
        if usage.completion < attempt.tokens:
            usage = usage.model_copy(update={"completion": attempt.tokens})
        attempt.state = "gone"
        del self.attempts[attempt.id]
        if node.attempt is attempt:
            node.attempt = None
        run.live -= 1
        run.meter.add(usage, read)
        self.fleet.release(attempt.host)
        if node.account is not None:
            charge = max(usage.completion, least)
            for holder in budget.settle(node.account, attempt.reserved, charge, usage.cost):
                for kind in holder.held:
                    self._wake(holder, kind)
        if run.live == 0:
            self._closing.append(run)

    def _retry_or_fail(self, node: Node, failure: Failure) -> None:
        """Try a step again if its failure and its kind allow it, else let it fail."""
        if node.inner is not None:  # patches to the failed attempt are void
            for each in node.inner.names.values():
                self._cancel(each, f"{node.id}, which expanded into it, is tried again")
            node.inner, node.own_waiters = None, None
        match retry_delay(node, failure):
            case Failure() as final:
                self._fail(node, final)
            case delay:
                self._move(node, State.WAITING, f"try {node.tries}: {failure.kind}: {failure.message}")
                if failure.lost:
                    node.lost += 1
                    self._ready(node)
                else:
                    self.timers.add(self.now + delay, "retry", node)

    # -- whole runs ----------------------------------------------------------------------------------------------------

    def _break(self, run: Run, plugin: Policy | Merge | None, error: Exception) -> None:
        """End a run whose policy raised."""
        if run.broken is None:
            run.broken = raised(plugin, error)
            self._cancel_all(run, run.broken.message)

    def _cancel_all(self, run: Run, reason: str) -> None:
        for node in run.nodes:
            self._cancel(node, reason)


def raised(plugin: Policy | Merge | None, error: Exception) -> Failure:
    """Return the failure of what depended on a plugin that raised."""
    return Failure(kind=PluginError.__name__, message=f"{type(plugin).__name__} raised {type(error).__name__}: {error}")
