"""The machine: events in, actions out. It decides what runs when, what is given up, and what a run ends in.

Theory of operation
-------------------
`handle` takes one event, changes the records, and returns the actions that follow from it; nothing else changes them.
Every handler does its own small part and, where a step ends, puts it on a list; `_advance` then works through that list
until nothing moves (`lifecycle.py`):

* A step that ends tells its dependants. One whose needs are all met becomes ready; a join counts its branches; any
  other dependant of a step without a value ends without one itself. So failure travels downstream as data until a join
  tolerates it.
* A step that ends lets go of what it needed. Each step counts its readers (dependants that have not ended, and its
  scope while that keeps it); at none it is cancelled, and lets go in turn. Early stop, quorum, failure, budgets and the
  user's Ctrl-C all reduce to this one rule, upstream.
* Ready steps go to free slots in order of (priority, rank, arrival) as far as their budgets admit; ranks of different
  policies are not compared: between runs that order their steps differently, or not, the turn goes by arrival. One that
  a budget holds back waits with that budget's account, which lets the next be asked about when something under it has
  ended. One that a policy holds back waits likewise until something of its run has ended, and never when nothing of it
  is live.

A dispatch makes an *attempt* with a fresh id. An attempt that is lost hands on the token ids it had told, and the next
goes on from them. A policy may ask for a second attempt beside a live one; the first result wins, and the loss or
failure of one of two is nothing to the step. Cancelling a step ends the step at once and asks the attempt to stop; the
attempt keeps its slot and its token reservation until the worker has answered. One that never does (its grace is over,
its worker went away) is charged all that it might have generated. News of an attempt that is gone is counted in `late`
and otherwise ignored, so duplicates and stragglers do no harm.

A step that expands owns a *scope*. While the scope is open more patches may come and its steps are kept even if nobody
reads them yet; when it closes only its output is kept, and the output's end is the end of the expanding step.

A run finishes once: when its output step has ended and none of its attempts is left.

What this file does not know: clocks, tasks, threads, randomness, workers beyond their names and slots, and what a
planner will say next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import assert_never

from ..core.errors import BudgetExceeded, PlaitError, PluginError, WorkerLost
from ..core.events import (
    Action,
    Cancelled,
    Elsewhere,
    Event,
    Expand,
    Expanded,
    Failed,
    Finish,
    Paused,
    Progressed,
    Pruned,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from ..core.interfaces import Hedge, Plugins, Policy, Stop
from ..core.plan import Plan, Think
from ..core.result import Failure, Usage, as_failure
from ..core.states import State
from . import budgets
from .assemble import prior
from .dispatch import Attempts
from .follow import Order, take_over
from .joins import judge_at_deadline
from .link import insert, repeats
from .outcome import finish, is_over
from .records import Attempt, Node, Run, Scope, WorkerState, is_current
from .views import StepView, View

_SOONEST = 0.001
"""Seconds until a policy is asked again at the soonest: one that always asks for now must not stop the world."""
_REMEMBERED = 65_536
"""Runs that are known to have finished; a driver may live for years."""


class Machine(Attempts):
    """All state of all runs. `cancel_timeout` is how many seconds a worker has to confirm a cancel, `lease` how many an
    attempt may be silent before its worker is taken to have lost it (`None`: for ever)."""

    def __init__(self, plugins: Plugins, *, cancel_timeout: float = 10.0, lease: float | None = None) -> None:
        super().__init__(plugins, cancel_timeout=cancel_timeout, lease=lease)
        self.late = 0
        """News of attempts, steps and runs that were already over."""
        self.retired: list[Run] = []
        """Runs that finished in the last `handle`."""
        self._finished: dict[str, None] = {}
        """Ids of the runs that finished last, in that order: a second copy of one's submission is late news."""
        self._wishes: list[tuple[Run, Hedge]] = []

    @property
    def workers(self) -> dict[str, WorkerState]:
        """All workers that ever came, by name."""
        return self.fleet.workers

    def handle(self, event: Event) -> list[Action]:
        """Take one event and return what to do about it, in order."""
        self._renew()
        self.now = max(self.now, event.at)
        subject: Node | None = None
        match event:
            case Succeeded():
                subject = self._on_succeeded(event)
            case Progressed():
                subject = self._on_progressed(event)
            case Failed():
                subject = self._on_failed(event)
            case Stopped():
                self._on_stopped(event)
            case Expanded():
                self._on_expanded(event)
            case Submitted():
                self._on_submitted(event)
            case Tick():
                self._on_tick(event)
            case WorkerUp():
                self.fleet.up(event.worker, event.slots, event.serves, event.models, event.cache_tokens, event.block)
            case WorkerDown():
                self._on_worker_down(event)
            case Cancelled():
                self._on_cancelled(event)
            case Pruned():
                self._on_pruned(event)
            case Paused():
                self._on_paused(event)
            case Elsewhere():
                pass
            case _:
                assert_never(event)
        self._spread()
        if subject is not None and subject.run.reviewers and not is_over(subject.run):
            self._review(event, subject.run, subject)  # before slots are filled: what it stops must not start
        self._advance()
        if self._orders is not None:
            self._follow(hedges=True)
        for run, hedge in self._wishes:  # after: a step's second attempt takes no slot from another's first
            self._hedge(hedge, run)
        return self._close_up()

    def follow(self, event: Event, orders: Sequence[Order]) -> list[Action]:
        """Take an event as `handle` does, but send out what `orders` say in place of what this machine would choose.

        An order that cannot be followed is dropped with those after it: the actions returned lack it then.
        """
        self._orders = deque(orders)
        try:
            return self.handle(event)
        finally:
            self._orders = None

    def adopt(self, other: Machine, run: str, at: float) -> list[Action]:
        """Go on with a run of another machine, of which no attempt is left; return what to do about it.

        Its attempts are numbered from above the last of both machines. Times of its records move by as much as `at`
        lies after the other machine's present: the time in between does not count for it.
        """
        self._renew()
        self.now = max(self.now, at)
        for node in take_over(self, other, other.runs.pop(run), at):
            self._queue(node)
        self._advance()
        return self._close_up()

    def _renew(self) -> None:
        self._out, self.moves, self.retired, self._wishes, self.refused = [], [], [], [], []

    def _close_up(self) -> list[Action]:
        while self._closing:
            self._finish_if_over(self._closing.pop())
        wake = self.timers.arm()
        if wake is not None:
            self._out.append(WakeAt(at=wake))
        return self._out

    # -- events ------------------------------------------------------------------------------------------------------

    def _on_submitted(self, event: Submitted) -> None:
        if event.run in self.runs or event.run in self._finished:
            self.late += 1
            return
        request = event.request
        try:
            run = Run(event.run, request, self._plugins.task(request.task, request.text))
            policies = [self._plugins.policy(spec) for spec in request.policies]
            run.rankers = tuple(each for each in policies if type(each).rank is not Policy.rank)
            run.placers = tuple(each for each in policies if type(each).place is not Policy.place)
            run.reviewers = tuple(each for each in policies if type(each).review is not Policy.review)
            run.root = scope = Scope(run, None, None, f"{run.id}:")
            account = budgets.open_account(request.budget, f"run {run.id}", None, self.now)
            nodes = self._insert(event.plan, scope, account)
        except PlaitError as error:
            self._over(event.run)
            self._out.append(Finish(run=event.run, status="failed", failure=as_failure(error)))
            return
        if account is not None:
            self._arm_deadline(account, run)
        self.runs[run.id] = run
        self._start(nodes)
        self._close_scope(scope)
        for policy in run.reviewers:
            try:
                after = policy.first_look()
            except Exception as error:
                self._break(run, policy, error)
                return
            if after is not None:
                self._wish_wake(run, self.now + after)

    def _on_succeeded(self, event: Succeeded) -> Node | None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            self.late += 1
            return None
        read = attempt.state == "live"
        self._gone(attempt, event.result.usage, read=read)
        if not read:
            return None
        node, result = attempt.node, self._won(attempt, event.result)
        if attempt.truncated and result.finish == "length":
            node.limited = True
        if node.limited and not result.partial:
            result = result.model_copy(update={"partial": True})
        if node.after is not None:
            result = result.model_copy(update={"prior": prior(node)})
        node.own = result
        node.path_own = node.path_before + result.usage.completion
        if node.step.expands:
            self._expand(node, result)
        else:
            self._done(node, result, node.path_own)
        return node

    def _on_progressed(self, event: Progressed) -> Node | None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            self.late += 1
            return None
        attempt.heartbeat = self.now
        tokens = max(event.tokens, len(event.ids))
        if tokens and not attempt.tokens and attempt.node.run.parked:
            self._stirred[attempt.node.run.id] = attempt.node.run
        attempt.tokens += tokens
        used = min(attempt.left, tokens)
        attempt.left -= used
        attempt.worker.load -= used
        node, text = attempt.node, event.text
        if attempt.state != "live":
            return None
        if event.ids:
            attempt.ids = attempt.ids or []
            attempt.ids.extend(event.ids)
        if event.group is not None or event.lowest is not None:
            attempt.group, attempt.lowest = event.group, event.lowest
        if attempt.resumed_from is not None and not attempt.continues and (tokens or text):
            attempt.continues = bool(event.ids)
            if attempt.continues:
                text = attempt.resumed_from.text + text
            else:
                attempt.resumed_from = None  # this worker takes no ids and began again
        if text:
            attempt.text.append(text)
            if node.step.expands and isinstance(node.step.op, Think) and node.step.op.stream:
                self._out.append(Expand(step=node.id, attempt=attempt.id, delta=text))
        return node

    def _on_failed(self, event: Failed) -> Node | None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            self.late += 1
            return None
        live = attempt.state == "live"
        known = event.usage != Usage() or not event.failure.lost
        self._gone(attempt, event.usage if known else None)
        if not live:
            return None
        self._retry_or_fail(attempt, event.failure)
        return attempt.node

    def _on_stopped(self, event: Stopped) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            self.late += 1
            return
        live = attempt.state == "live"
        self._gone(attempt, event.result.usage)
        if live:
            message = f"{attempt.worker.name} stopped this attempt though nobody had asked it to"
            self._retry_or_fail(attempt, as_failure(WorkerLost(message)))

    def _on_worker_down(self, event: WorkerDown) -> None:
        self.fleet.down(event.worker, event.returning)
        message = f"worker {event.worker} went away while it ran this step"
        lost = [each for each in self.attempts.values() if each.worker.name == event.worker]
        live = [each for each in lost if each.state == "live"]
        for attempt in lost:
            self._gone(attempt, None)
        for attempt in live:
            if attempt.node.state is State.RUNNING:  # else it ended as part of another that was lost
                self._retry_or_fail(attempt, as_failure(WorkerLost(message)))

    def _on_expanded(self, event: Expanded) -> None:
        node = self.nodes.get(event.step)
        if node is None or node.generation != event.attempt or node.state not in (State.RUNNING, State.EXPANDING):
            self.late += 1
            return
        if event.failure is not None:
            self._fail(node, event.failure)
            return
        if event.patch is not None:
            if node.inner is None:
                prefix = f"{node.id}/" if node.tries <= 1 else f"{node.id}~{node.tries}/"
                node.inner = Scope(node.run, node, node.scope, prefix)
            if repeats(event.patch, node.inner):
                self.late += 1
            else:
                try:
                    added = self._insert(event.patch, node.inner, node.account)
                except PlaitError as error:
                    self._fail(node, as_failure(error))
                    return
                self._start(added)
        if event.closed and node.state is State.EXPANDING:
            self._close_expansion(node)

    def _on_cancelled(self, event: Cancelled) -> None:
        run = self.runs.get(event.run)
        if run is None:
            self.late += 1
            return
        if run.cancelled is None and not is_over(run):
            run.cancelled = event.reason
            self._cancel_all(run, event.reason)

    def _on_pruned(self, event: Pruned) -> None:
        node = self.nodes.get(event.step)
        if node is None or node.ended:
            self.late += 1
            return
        self._cancel(node, event.reason)

    def _on_paused(self, event: Paused) -> None:
        run = self.runs.get(event.run)
        if run is None:
            self.late += 1
            return
        run.paused = event.on
        if not event.on:
            aside, run.aside = run.aside, []
            for entry in filter(is_current, aside):
                self.fleet.put_back(entry)

    def _on_tick(self, event: Tick) -> None:
        for timer in self.timers.due(self.now):
            match timer.subject:
                case Node() as node if timer.kind == "retry":
                    if node.state is State.WAITING:
                        self._ready(node)
                case Node() as node:
                    if node.state is State.WAITING:
                        node.limited = True
                        self._obey(node, judge_at_deadline(node))
                case Attempt() as attempt if timer.kind == "lease":
                    self._lease_over(attempt)
                case Attempt() as attempt:
                    if attempt.state == "stopping":
                        self._gone(attempt, None)
                case Run() as run:
                    if run.wake == timer.at and not is_over(run):
                        run.wake = None
                        self._spread()
                        self._review(event, run, None)
                case (account, run):
                    if run.id in self.runs:
                        self._seconds_over(account)

    # -- plans -------------------------------------------------------------------------------------------------------

    def _insert(self, plan: Plan, scope: Scope, account: budgets.Account | None) -> Sequence[Node]:
        owner = scope.owner
        added = insert(plan, scope, account, self.now, self._plugins.merge)
        for each in added.accounts:
            self._arm_deadline(each, scope.run)
        before = 0
        if owner is not None:
            generated = owner.attempt.generated if owner.attempt else 0
            before = owner.path_own if owner.own is not None else owner.path_before + generated
        for node in added.nodes:
            self.nodes[node.id] = node
            node.path_before = before
            op = node.step.op
            if op.kind == "join" and op.deadline is not None:
                self.timers.add(self.now + op.deadline, "deadline", node)
        return added.nodes

    def _start(self, nodes: Sequence[Node]) -> None:
        """Start what is ready among new steps, and end what needs something that has already ended badly."""
        for node in nodes:
            if node.state is not State.WAITING:
                continue
            if node.merge is not None:
                if node.pending < len(node.deps):
                    self._judge(node, arrived=node.branches_done > 0)
                continue
            for dep in node.deps:
                if dep.ended and dep.state is not State.DONE:
                    self._end_like(node, dep)
                    break
            else:
                if node.pending == 0:
                    self._ready(node)

    def _close_expansion(self, node: Node) -> None:
        assert node.own is not None
        scope = node.inner
        if scope is None or scope.output is None:
            self._done(node, node.own, node.path_own)
            return
        self._move(node, State.EXPANDED)
        self._close_scope(scope)
        if scope.output.ended:
            self._output_ended(scope, scope.output)

    def _close_scope(self, scope: Scope) -> None:
        """Keep only the output from now on."""
        scope.open = False
        for node in scope.names.values():
            if node is not scope.output and not node.ended:
                self._release(node)

    # -- limits, policies, ends ----------------------------------------------------------------------------------------

    def _lease_over(self, attempt: Attempt) -> None:
        assert self._lease is not None
        if attempt.state != "live":
            return
        if attempt.heartbeat + self._lease > self.now:
            self.timers.add(attempt.heartbeat + self._lease, "lease", attempt)
            return
        message = f"worker {attempt.worker.name} has been silent about this step for {self._lease:g} s"
        self._stop(attempt, message)
        self._retry_or_fail(attempt, as_failure(WorkerLost(message)))

    def _arm_deadline(self, account: budgets.Account, run: Run) -> None:
        if account.deadline is not None:
            self.timers.add(account.deadline, "seconds", (account, run))

    def _seconds_over(self, account: budgets.Account) -> None:
        """Fail the work under an account whose time is up; joins that wait make what they can of what is done."""
        message = f"{account.owner}: all {account.budget.seconds:g} seconds are used up; raise `seconds`"
        for node in account.timed:
            if node.ended or node.state is State.EXPANDED or (node.merge is not None and node.state is State.WAITING):
                continue
            self._fail(node, Failure(kind=BudgetExceeded.__name__, message=message))

    def _review(self, event: Event, run: Run, subject: Node | None) -> None:
        """Ask a run's policies what follows from an event, and do so; hedges come after slots are filled."""
        about = StepView(subject) if subject is not None else None
        for policy in run.reviewers:
            try:
                wishes = list(policy.review(event, View(self, about, run.id)))
                times = [float(wish.at) for wish in wishes if not isinstance(wish, Stop | Hedge)]
            except Exception as error:
                self._break(run, policy, error)
                break
            for wish in wishes:
                node = self.nodes.get(wish.step) if isinstance(wish, Stop | Hedge) else None
                if isinstance(wish, Stop | Hedge) and (node is None or node.run is not run):
                    self._break(run, policy, PluginError(_no_step(wish.step, run)))
                    break
                if isinstance(wish, Stop):
                    if node is not None and not node.ended:
                        node.merged_into = wish.merged_into
                        self._cancel(node, wish.reason)
                elif isinstance(wish, Hedge):
                    self._wishes.append((run, wish))
            if times:
                self._wish_wake(run, min(times))
            self._spread()

    def _wish_wake(self, run: Run, at: float) -> None:
        at = max(at, self.now + _SOONEST)
        if run.wake is None or at < run.wake:
            run.wake = at
            self.timers.add(at, "review", run)

    def _finish_if_over(self, run: Run) -> None:
        if run.live or run.id not in self.runs or not is_over(run):
            return
        assert run.root is not None and run.root.output is not None
        self._over(run.id)
        del self.runs[run.id]
        self._holding.pop(run.id, None)
        for node in run.nodes:
            del self.nodes[node.id]
        self.retired.append(run)
        self._out.append(finish(run, run.root.output))

    def _over(self, run: str) -> None:
        self._finished[run] = None
        if len(self._finished) > _REMEMBERED:
            del self._finished[next(iter(self._finished))]


def _no_step(given: str, run: Run) -> str:
    """Say that a policy's order names no step of its run, and what the id may have been meant to be."""
    meant = [repr(node.id) for node in run.nodes if node.step.name == given]
    hint = f"; did you mean {' or '.join(meant[:2])}?" if meant else ""
    return f"it stops or hedges {given!r}, which is the id of no step of the run {run.id!r}{hint} (an id is `step.id`)"
