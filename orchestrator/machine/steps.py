"""How steps move: what becomes ready, what is given up, what a step's end does to others. The bottom of the machine.

`machine.py` says what each event means and holds the theory of operation, `attempts.py` what goes to which slot. Does
not know events, workers, planners or the end of a run.
"""

from __future__ import annotations

from collections import deque

from ..core.errors import PluginError
from ..core.events import Action, Cancel, Expand
from ..core.interfaces import Merge, Plugins, Policy
from ..core.result import Failure, Result
from ..core.states import Move, State
from .follow import Order, Refused
from .joins import WAIT, Ruling, conclude, dependency_failed, judge
from .outcome import is_limit
from .ready_queue import Fleet
from .records import Attempt, LatencyStats, Node, Run, Scope
from .timers import Timers
from .views import StepView, View


class Lifecycle:
    """All state of all runs, and the moves of their steps."""

    def __init__(self, plugins: Plugins, *, cancel_timeout: float, lease: float | None) -> None:
        self.now = 0.0
        self.runs: dict[str, Run] = {}
        self.nodes: dict[str, Node] = {}
        self.attempts: dict[int, Attempt] = {}
        self.fleet = Fleet()
        self.timers = Timers()
        self.moves: list[Move] = []
        """What moved in the last `handle`, for those who watch."""
        self._plugins = plugins
        self._cancel_timeout = cancel_timeout
        self._lease = lease
        self._out: list[Action] = []
        self._ended: deque[Node] = deque()
        self._closing: list[Run] = []
        """Runs that may be over."""
        self.last_attempt = 0
        self.latencies = LatencyStats()
        self._holding: dict[str, Run] = {}
        """Runs of which policies may hold steps back."""
        self._orders: deque[Order] | None = None
        """What is left to follow of recorded orders; `None`: this machine decides itself."""
        self.refused: list[tuple[int, Refused]] = []
        """Steps of the last `handle` that were refused an attempt, each with how many actions came before."""
        self._stirred: dict[str, Run] = {}
        """Those of which something has ended since steps were last sent out."""

    # What `attempts.py` does, called from here.

    def _dispatch_ready(self) -> None:
        raise NotImplementedError

    def _stop_attempt(self, node: Node, reason: str) -> bool:
        raise NotImplementedError

    def _passed_on(self, node: Node) -> None:
        raise NotImplementedError

    def _unblock(self, node: Node) -> None:
        raise NotImplementedError

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
            if reader.ended or reader.released:
                continue
            reader.pending -= 1
            if reader.merge is not None:
                if done:
                    reader.branches_done += 1
                    if reader.waits_for_all and reader.pending:
                        continue
                elif node.state is State.FAILED:
                    reader.branches_failed += 1
                self._judge(reader, arrived=done)
            elif not done:
                self._end_like(reader, node)
            elif reader.pending == 0:
                self._ready(reader)
        if not node.released:
            for dep in node.deps:
                if not dep.ended:
                    self._release(dep)
        if node.woken is not None:
            self._passed_on(node)
        elif node.account is not None and node.story[-1][2] == State.READY:
            self._unblock(node)
        if node.run.parked:
            self._stirred[node.run.id] = node.run
        if node.inner is not None:
            for each in node.inner.names.values():
                self._cancel(each, f"{node.id}, which expanded into it, has ended")
        if node.scope.output is node and not node.scope.open:
            self._output_ended(node.scope, node)

    def _release(self, node: Node) -> None:
        node.consumers -= 1
        if node.consumers == 0:
            self._cancel(node, "nobody reads it any more")

    def _ready(self, node: Node) -> None:
        for dep in node.deps:
            if dep.path > node.path_before:
                node.path_before = dep.path
        if node.after_own and node.after is not None:
            node.path_before = max(node.path_before, node.after.path_own)
        self._move(node, State.READY)
        self._queue(node)

    def _queue(self, node: Node) -> None:
        rank: tuple[float, ...] = ()
        for policy in node.run.rankers:
            try:
                rank += tuple(map(float, policy.rank(StepView(node), View(self, StepView(node), node.run.id))))
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
        node.limited = node.limited or is_limit(failure)
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
        node.limited = node.limited or dep.limited
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
        owner.limited = owner.limited or output.limited
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
                node.limited = node.limited or any(dep.limited for dep in node.deps)
                self._fail(node, ruling.failure)

    def _close_join(self, node: Node) -> None:
        try:
            result = conclude(node)
        except Exception as error:
            self._fail(node, raised(node.merge, error))
            return
        node.own, node.limited = result, result.partial
        node.path_own = max([node.path_before, *(dep.path for dep in node.deps if dep.state is State.DONE)])
        if not node.step.expands and result.patch is None:
            self._done(node, result, node.path_own)
            return
        node.released = True
        self._expand(node, result)
        for dep in node.deps:
            if not dep.ended:
                self._release(dep)

    # -- whole runs ----------------------------------------------------------------------------------------------------

    def _break(self, run: Run, plugin: Policy | Merge | None, error: Exception) -> None:
        """End a run whose policy raised."""
        self._break_with(run, raised(plugin, error))

    def _break_with(self, run: Run, failure: Failure) -> None:
        if run.broken is None:
            run.broken = failure
            self._cancel_all(run, run.broken.message)

    def _cancel_all(self, run: Run, reason: str) -> None:
        for node in run.nodes:
            self._cancel(node, reason)


def raised(plugin: Policy | Merge | None, error: Exception) -> Failure:
    """Return the failure of what depended on a plugin that raised."""
    return Failure(kind=PluginError.__name__, message=f"{type(plugin).__name__} raised {type(error).__name__}: {error}")
