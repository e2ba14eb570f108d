"""Attempts: what goes to which slot, what a policy holds back, what is hedged, and what becomes of what was lost.

The middle of the machine, between the moves of steps (`lifecycle.py`) and the meaning of events (`machine.py`). It does
not know plans, planners or the end of a run.
"""

from __future__ import annotations

import heapq

from ..core.errors import Interrupted, NeverMade, NoWorker, PluginError
from ..core.events import PRIORITY_STEP, Cancel
from ..core.interfaces import Hedge, Hold, Place
from ..core.plan import Text
from ..core.result import Failure, Result, Usage, as_failure
from ..core.states import State
from ..core.view import Ended
from . import budgets, prefix_groups
from .assemble import resolve
from .follow import Refused, Sent, grant_of, startable
from .outcome import retry_delay
from .records import Attempt, Checkpoint, Node, Queued, Run, WorkerState, is_current, lane_of
from .steps import Lifecycle, raised
from .trusted import dispatch
from .views import StepView, View

_MOST_RANK = PRIORITY_STEP // 2 - 1


class Attempts(Lifecycle):
    """The attempts at all steps, and the steps that wait for one."""

    # -- what is ready -------------------------------------------------------------------------------------------------

    def _dispatch_ready(self) -> None:
        for run in self._stirred.values():
            for behind in run.parked:
                self._let_next(run, behind)
        self._stirred.clear()
        if self._orders is not None:
            self._follow(hedges=False)
            return
        while True:
            while (taken := self.fleet.take()) is not None:
                self._consider(*taken)
            if not self._holding or not self._force():
                return

    def _consider(self, entry: Queued, host: WorkerState | None) -> None:
        """Start a step that a worker has room for, or find out what keeps it."""
        node = entry[3]
        op, run = node.step.op, node.run
        if run.paused:
            run.aside.append(entry)
            if node.woken is not None:
                self._passed_on(node)
            return
        if host is None:
            self._refuse(node, as_failure(NoWorker(self._nobody(node))))
            return
        tokens = 0
        if op.kind == "think":
            tokens = op.sampling.max_tokens - (len(node.checkpoint.ids) if node.checkpoint is not None else 0)
        match budgets.admit(node.account, tokens, self.now):
            case budgets.Grant() as grant:
                reason = ""
                if run.placers:
                    place = self._place(node, host)
                    if isinstance(place, Hold):
                        self._park(entry, place)
                        if node.woken is not None:
                            self._passed_on(node)
                        return
                    host, reason = place
                    if node.ended:  # a policy that raised while it was asked has ended the run
                        return
                self._dispatch(node, host, grant, entry[1], reason)
                if node.woken is not None:
                    self._passed_on(node)
            case budgets.Hold(account):
                budgets.hold(account, entry)
                if node.woken is account:
                    node.woken = None
                self._passed_on(node)
            case budgets.Refusal(message):
                self._refuse(node, Failure(kind="BudgetExceeded", message=message))

    def _refuse(self, node: Node, failure: Failure) -> None:
        self.refused.append((len(self._out), Refused(node.id, failure)))
        self._fail(node, failure)

    def _follow(self, hedges: bool) -> None:
        """Follow the recorded orders in turn, as far as that can be done now."""
        while self._orders:
            order = self._orders[0]
            if isinstance(order, Refused) and order.run:
                self._orders.popleft()
                run = self.runs.get(order.run)
                if run is not None and run.broken is None:
                    self._break_with(run, order.failure)
                continue
            node = self.nodes.get(order.step)
            if node is None:
                return
            again = hedges and node.attempt is not None and not node.hedged and isinstance(order, Sent)
            if not again and not startable(node, order):
                return
            if isinstance(order, Refused):
                self._orders.popleft()
                self._refuse(node, order.failure)
                continue
            host, grant = self.fleet.workers.get(order.worker), grant_of(node, self.now)
            if host is None or grant is None:
                return
            self._orders.popleft()
            self.last_attempt = order.attempt - 1
            if again and node.attempt is not None:
                node.hedged = True
                node.hedge = self._begin(node, host, grant, node.attempt.checkpoint(), order.priority, order.reason)
            else:
                self._send(node, host, grant, order.priority, order.reason)

    def _nobody(self, node: Node) -> str:
        op = node.step.op
        if op.kind != "think" or op.model is None or not self.fleet.expects(op.kind):
            return f"no worker serves {op.kind} steps; start one, or check why it ended"
        names = ", ".join(map(repr, self.fleet.models())) or "none by name"
        return f"no worker serves the model {op.model!r}; those there are: {names}; start one, or leave `model` out"

    def _passed_on(self, node: Node) -> None:
        """Let the next step be asked about that the account holds back which had let this one be asked about.

        An account lets one step of each lane go when something under it ends, and the next when that one did not stay
        with it: so a budget that holds thousands back costs a question or two an attempt, not thousands.
        """
        account, node.woken = node.woken, None
        if account is not None:
            self._wake(account, lane_of(node.step))

    def _unblock(self, node: Node) -> None:
        """A step has ended that a budget may have held back before others: one of these may start now."""
        lane = lane_of(node.step)
        for account in node.account.chain() if node.account is not None else ():
            if account.held.get(lane):
                self._wake(account, lane)

    def _wake(self, account: budgets.Account, lane: str) -> None:
        entry = budgets.unhold(account, lane)
        if entry is not None:
            entry[3].woken = account
            self.fleet.put_back(entry)

    # -- what policies say of it ---------------------------------------------------------------------------------------

    def _place(self, node: Node, default: WorkerState) -> tuple[WorkerState, str] | Hold:
        """Ask all policies: a hold of any holds, else the first that names a worker with room places."""
        chosen: tuple[WorkerState, str] | None = None
        for policy in node.run.placers:
            try:
                answer = policy.place(StepView(node), View(self, StepView(node), node.run.id))
                if isinstance(answer, Hold):
                    if node is node.run.forced:
                        continue
                    return answer
                name, reason = (answer.worker, answer.reason) if isinstance(answer, Place) else (answer, "")
                host = self.fleet.workers.get(name) if name is not None else None
                if name is not None and host is None:
                    there = ", ".join(self.fleet.workers) or "none"
                    raise PluginError(f"it places a step on {name!r}, and there is no such worker (there are: {there})")
            except Exception as error:
                failure = raised(policy, error)
                self.refused.append((len(self._out), Refused(node.id, failure, node.run.id)))
                self._break_with(node.run, failure)
                return default, ""
            if chosen is None and host is not None and host.free > 0 and lane_of(node.step) in host.lanes:
                chosen = host, reason
        return chosen or (default, "")

    def _park(self, entry: Queued, hold: Hold) -> None:
        node = entry[3]
        node.held, node.asked = hold.reason, None
        heapq.heappush(node.run.parked.setdefault(hold.behind, []), entry)
        self._holding[node.run.id] = node.run

    def _let_next(self, run: Run, behind: str) -> None:
        """Of what policies hold back, the first behind a name is asked about again."""
        heap = run.parked.get(behind)
        while heap:
            entry = heapq.heappop(heap)
            if is_current(entry):
                entry[3].asked = behind
                self.fleet.put_back(entry)
                return

    def _force(self) -> bool:
        """Let a step of each run start whose policies hold all that there is to do; return whether there was one."""
        found = False
        for run in list(self._holding.values()):
            if run.live or run.paused or (run.forced is not None and run.forced.state is State.READY):
                continue
            if any(node.state is State.EXPANDING for node in run.nodes):  # its planner will say more
                continue
            entries = [entry for heap in run.parked.values() for entry in heap if is_current(entry)]
            if not entries:
                run.parked.clear()
                del self._holding[run.id]
                continue
            entry = min(entries)
            run.forced = node = entry[3]
            for heap in run.parked.values():
                if entry in heap:
                    heap.remove(entry)
                    heapq.heapify(heap)
            node.asked = None
            self.fleet.put_back(entry)
            found = True
        return found

    def _hedge(self, wish: Hedge, run: Run) -> None:
        """Make a second attempt at a running step, if that can be done at once and within its budgets."""
        node = self.nodes.get(wish.step) if self._orders is None else None
        if node is None or node.run is not run or node.attempt is None or node.hedged or run.paused:
            return
        step, first = node.step, node.attempt
        if step.side_effects or (step.expands and step.op.kind == "think" and step.op.stream):
            return
        lane = lane_of(step)
        host = self.fleet.another(lane, first.worker) if wish.worker is None else self.fleet.workers.get(wish.worker)
        if host is None or host is first.worker or host.free <= 0 or lane not in host.lanes:
            return
        kept = first.checkpoint()
        tokens = 0
        if step.op.kind == "think":
            tokens = step.op.sampling.max_tokens - (len(kept.ids) if kept is not None else 0)
        grant = budgets.admit(node.account, tokens, self.now)
        if isinstance(grant, budgets.Grant) and not grant.truncated:
            node.hedged = True
            node.hedge = self._begin(node, host, grant, kept, first.priority, wish.reason)

    # -- their lives ---------------------------------------------------------------------------------------------------

    def _dispatch(
        self, node: Node, host: WorkerState, grant: budgets.Grant, rank: tuple[float, ...], reason: str
    ) -> None:
        priority = node.step.priority * PRIORITY_STEP
        if rank and rank[0] == rank[0]:  # it may be no number
            priority += int(max(-_MOST_RANK, min(_MOST_RANK, rank[0])))
        self._send(node, host, grant, priority, reason)

    def _send(self, node: Node, host: WorkerState, grant: budgets.Grant, priority: int, reason: str) -> None:
        node.tries += 1
        self._move(node, State.RUNNING, host.name)
        attempt = self._begin(node, host, grant, node.checkpoint, priority, reason)
        node.attempt, node.generation = attempt, attempt.id
        if node.held or node.asked is not None:
            behind, node.asked, node.held = node.asked, None, ""
            if behind is not None:
                self._let_next(node.run, behind)

    def _begin(
        self, node: Node, host: WorkerState, grant: budgets.Grant, kept: Checkpoint | None, priority: int, reason: str
    ) -> Attempt:
        self.last_attempt += 1
        op = resolve(node, grant.tokens + len(kept.ids) if kept is not None else grant.tokens)
        attempt = Attempt(self.last_attempt, node, host, grant.tokens, grant.truncated, self.now)
        attempt.started, attempt.priority, attempt.left = self.now, priority, grant.tokens
        self.attempts[attempt.id] = attempt
        node.run.live += 1
        node.ran_on = host.name
        if op.kind == "think":
            begin = (Text(text=op.begin),) if op.begin else ()
            node.prompt = (*(part for part in op.prompt if part.kind != "ref"), *begin)
            attempt.resumed_from = kept
        seconds: float | None = None
        if node.account is not None:
            budgets.reserve(node.account, grant.tokens)
            seconds = budgets.seconds_left(node.account, self.now)
        host.load += grant.tokens
        self.fleet.occupy(host)
        if node.prefix_group is not None:
            prefix_groups.begun(node.prefix_group, attempt)
        if self._lease is not None:
            self.timers.add(self.now + self._lease, "lease", attempt)
        generated = attempt.resumed_from.ids if attempt.resumed_from is not None else ()
        self._out.append(
            dispatch(host.name, attempt.id, node.run.id, node.id, op, seconds, generated, priority, reason)
        )
        return attempt

    def _stop_attempt(self, node: Node, reason: str) -> bool:
        """Ask the workers to stop a step's live attempts, if it has any."""
        first, second = node.attempt, node.hedge
        if first is None:
            return False
        self._stop(first, reason)
        if second is not None:
            self._stop(second, reason)
        return True

    def _stop(self, attempt: Attempt, reason: str) -> None:
        attempt.state = "stopping"
        attempt.leave()
        self.timers.add(self.now + self._cancel_timeout, "cancel", attempt)
        self._out.append(Cancel(step=attempt.node.id, attempt=attempt.id, worker=attempt.worker.name, reason=reason))

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
        attempt.leave()
        run.live -= 1
        run.meter.add(usage, read)
        node.spent = usage if node.spent is None else node.spent + usage
        attempt.worker.load -= attempt.left
        self.fleet.release(attempt.worker)
        if node.prefix_group is not None:
            prefix_groups.gone(node.prefix_group, attempt)
        if node.account is not None:
            charge = max(usage.completion, least)
            for holder in budgets.settle(node.account, attempt.reserved, charge, usage.cost):
                for lane in holder.held:
                    self._wake(holder, lane)
        if run.parked:
            self._stirred[run.id] = run
        if run.live == 0:
            self._closing.append(run)

    def _won(self, attempt: Attempt, result: Result) -> Result:
        """Take note of the attempt that gave its step a value. Return its result, whose usage now counts the tokens
        that it went on from too; those are no longer counted as generated for nobody."""
        node = attempt.node
        if node.attempt is not None:
            self._stop(node.attempt, "the other attempt at this step was first")
        node.ran_on = attempt.worker.name
        reused = attempt.reused(result)
        if reused:
            node.run.meter.reuse(reused)
            usage = result.usage.model_copy(update={"completion": result.usage.completion + reused})
            result = result.model_copy(update={"usage": usage})
        if node.prefix_group is not None:
            ended = Ended(self.now - attempt.started, result.usage.completion, attempt.worker.name)
            node.prefix_group.finished.append(ended)
            self.latencies.add(node.step, ended)
        return result

    def _retry_or_fail(self, attempt: Attempt, failure: Failure) -> None:
        """Go on after an attempt without a value: with the other attempt if there is one, else try the step again if
        its failure and its kind allow it (a lost one from the tokens known), else let it fail."""
        node = attempt.node
        known = attempt.checkpoint() if failure.lost else None
        if not failure.lost:
            node.checkpoint = None  # the failure may lie in what was generated
        elif known is not None and (node.checkpoint is None or len(known.ids) > len(node.checkpoint.ids)):
            node.checkpoint = known
        if node.attempt is not None:
            return
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
                    node.interrupted += failure.kind in (Interrupted.__name__, NeverMade.__name__)
                    self._ready(node)
                else:
                    self.timers.add(self.now + delay, "retry", node)
