"""The machine: events in, actions out. It decides when each step runs, which steps are cancelled, and how a run ends.

Theory of operation
-------------------
`handle` takes one event (an attempt succeeded, a worker went away, a timer is due), changes the records, and returns
the actions that follow (send this job, stop that attempt, ask the planner, wake me at). Nothing else changes the
records, and there is no clock, no randomness and no I/O in here: the same events give the same actions, which is what
makes a journal replayable.

The words:

* A *run* is one request. Its plan consists of *steps* (record: `Node`). A *join* is a step that merges others, its
  *branches*.
* An *attempt* is one dispatch of a step to a *worker*, with an id of its own. It occupies one of the worker's *slots*
  until the worker has reported its end, even if the step has ended before.
* A step's *dependants* are the steps that need it. Those that may still use its value are its *consumers*; its scope
  counts as one while it keeps the step.
* A *scope* is the set of steps that one step expanded into (or the run's first plan). It has one *output*.
* An *account* is the running total of a budget. Accounts nest: run, group, step.

The rules, and where they are:

1. A step that ends with a value unblocks its dependants. If it ends without one, they end without one too, except
   joins, which tolerate failures as their plan declares. Failure travels downstream as data. (`steps.py`)
2. A step that ends releases the steps that it needed. A step without a consumer is cancelled, and releases in turn.
   Early stop, quorum, failure, budgets and the user's Ctrl-C all work by this one rule, upstream. (`steps.py`)
3. Ready steps go to free slots by priority, then by what their run has been served, then by the policies' rank, then
   by arrival. (`ready_queue.py`, `wait_queues.py`, `run_statistics.Share`)
4. A ready step may be blocked by a budget, by a policy or by the user's pause. When something has ended there, the
   first of the blocked steps is checked again. A policy never blocks the only step that a run could start.
   (`dispatch.py`)
5. A lost attempt leaves a *checkpoint*, its token ids; the next attempt continues from it. A *hedge* is a second
   attempt beside a live one: the first result wins, the other is stopped. (`attempt_lifecycle.py`)
6. A cancelled step ends at once; its attempt is asked to stop, and keeps slot and token reservation until the worker
   has answered. If the worker never does, the budget is charged all that the attempt might have generated; if the
   worker dies, the reported tokens and one report more. (`attempt_lifecycle.py`)
   An attempt whose budget is used up is *cut*: it is asked to stop, and its text so far is its step's result.
7. A run finishes once: when its output step has ended and none of its attempts is left. (`action_builder.py`)
8. Events of an attempt that has ended are counted in `late` and otherwise ignored, so duplicates do no harm.

The layers; each calls only those below it: `machine.py`; `plans.py`, `dispatch.py`, `limits.py`; `steps.py`;
`attempt_lifecycle.py`; `ready_queue.py`, `budgets.py`, `wait_queues.py`, `views.py`; `records.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import assert_never

from ..core.causes import sentence
from ..core.errors import PlaitError, WorkerLost
from ..core.events import (
    Action,
    CacheChanged,
    Cancelled,
    Counted,
    Event,
    Expand,
    Expanded,
    Failed,
    Finish,
    ForeignEvent,
    Limited,
    LoadShared,
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
from ..core.flow import is_root
from ..core.interfaces import PluginRegistry
from ..core.result import Failure, Result, Usage, as_failure
from ..core.states import EXPANDING, READY, RUNNING, WAITING, Move
from ..core.view import AttemptEnd
from . import budgets, prompt_sizes
from .action_builder import finish, prior
from .attempt_lifecycle import Slots
from .decision_replay import Order, RefuseOrder, take_over
from .dispatch import Dispatcher, Reviews
from .limits import LimitEnforcer, exceeded
from .plans import Plans, group_policies, is_duplicate
from .ready_queue import ReadyQueue
from .records import Account, Attempt, Node, Records, Run, Scope, WorkerState
from .run_statistics import template_keys
from .steps import Steps, deadline_failure, judge_at_deadline
from .value_sizes import count_concerned, read_after
from .views import MachineView, NodeView
from .wait_queues import Timer, Timers

_REMEMBERED_RUNS = 4_096
"""Runs that are known to have finished; a driver may live for years, and each takes some 150 bytes."""


class Machine:
    """All state of all runs. `cancel_timeout` is how many seconds a worker has to confirm a cancel, `lease` how many an
    attempt may be silent before its worker is taken to have lost it (`None`: for ever)."""

    def __init__(self, plugins: PluginRegistry, *, cancel_timeout: float = 10.0, lease: float | None = None) -> None:
        self.cancel_timeout = cancel_timeout
        self.lease = lease
        self.late: int = 0
        """Number of events about attempts, steps and runs that were already over."""
        self.retired: list[Run] = []
        """Runs that finished in the last `handle`."""
        self._plugins = plugins
        self._finished: dict[str, None] = {}
        """Ids of the runs that finished last, in that order: a second copy of a submission counts as late."""
        self._records = records = Records()
        self.queue = queue = ReadyQueue(records.workers)
        self._slots = slots = Slots(records, queue, cancel_timeout=cancel_timeout, lease=lease)
        self._steps = steps = Steps(records, queue, slots)
        self._dispatcher = Dispatcher(records, queue, slots, steps)
        self._reviews = Reviews(records, queue, slots, steps)
        self._plans = Plans(records, slots, steps, plugins)
        self._limits = LimitEnforcer(records, slots, steps)
        self.runs: dict[str, Run] = records.runs
        """Runs that have not finished, by id."""
        self.nodes: dict[str, Node] = records.nodes
        """Their steps, by id."""
        self.attempts: dict[int, Attempt] = records.attempts
        """Attempts that have not ended, by id."""
        self.workers: dict[str, WorkerState] = records.workers
        """All workers that have ever registered, by name."""
        self.timers: Timers = slots.timers

    @property
    def now(self) -> float:
        """Time of the last event, in seconds."""
        return self._records.now

    @property
    def moves(self) -> list[Move]:
        """Moves of steps in the last `handle`, in order."""
        return self._records.moves

    @property
    def last_attempt(self) -> int:
        """Attempts sent out so far."""
        return self._records.last_attempt

    @property
    def waiting_runs(self) -> int:
        """Number of runs without an attempt, paused runs excluded."""
        return self._records.waiting

    @property
    def model_steps(self) -> int:
        """Model steps that run, or could run if there were a slot."""
        return self._records.ready + self._records.thinking

    @property
    def refused(self) -> list[tuple[int, RefuseOrder]]:
        """Steps that were refused an attempt in the last `handle`, each with the number of actions before it."""
        return self._dispatcher.refused

    def view(self, subject: NodeView | None = None, run: str = "") -> MachineView:
        """Return the view that policies get of a run, with a step as its subject if one is given."""
        return MachineView(self._records, self.queue, subject, run)

    def handle(self, event: Event) -> list[Action]:
        """Handle one event and return the actions that follow, in order."""
        self._open_answer(event.at)
        subject: Node | None = None
        match event:
            case Succeeded():
                subject = self._on_succeeded(event)
            case Progressed():
                subject = self._on_progressed(event)
            case Failed():
                subject = self._on_failed(event)
            case Stopped():
                subject = self._on_stopped(event)
            case Expanded():
                self._on_expanded(event)
            case Counted():
                self._on_counted(event)
            case Submitted():
                self._on_submitted(event)
            case Tick():
                self._on_tick(event)
            case WorkerUp():
                self._slots.worker_up(event)
            case WorkerDown():
                self._on_worker_down(event)
            case CacheChanged():
                self._records.prefixes.record_report(event.worker, event.news.held, event.news.cleared)
            case LoadShared():
                self.queue.record_others(event.attempts)
            case Cancelled():
                self._on_cancelled(event)
            case Pruned():
                self._on_pruned(event)
            case Paused():
                self._on_paused(event)
            case Limited():
                self._on_limited(event)
            case ForeignEvent():
                pass
            case _:
                assert_never(event)
        if subject is not None and subject.run.policies.reviewers:
            self._steps.spread()
            if not subject.run.over:
                self._reviews.review(event, subject.run, subject)  # before slots are filled: what it stops cannot start
        dispatcher, hedges = self._dispatcher, self._reviews.hedges
        dispatcher.advance()
        if dispatcher.orders is not None:
            dispatcher.follow(hedges=True)
        if hedges:
            for run, hedge in hedges:  # after: a step's second attempt takes no slot from another's first
                dispatcher.hedge(hedge, run)
            hedges.clear()
        return self._close_answer()

    def is_reviewed(self, attempt: int) -> bool | None:
        """Return whether policies or budgets read each report of an attempt; `None` for an attempt that is over."""
        live = self.attempts.get(attempt)
        return None if live is None else live.charge.counted or bool(live.node.run.policies.reviewers)

    def build_ask(self, node: Node, worker: WorkerState) -> budgets.Ask:
        """Return the request that an attempt at a step on a worker would make to its budgets."""
        return self._dispatcher.build_ask(node, worker, node.attempts.checkpoint)

    def reach(self, attempt: int) -> int:
        """Return the number of steps that an attempt's end concerns: its step's dependants, or a join's branches."""
        live = self.attempts.get(attempt)
        return 0 if live is None else count_concerned(live.node)

    def reads(self, attempt: int, most: int) -> int:
        """Return the approximate number of characters that joins read when an attempt's step ends, up to `most`."""
        live = self.attempts.get(attempt)
        return read_after(live.node, most) if live is not None and live.node.dependants else 0

    def find_finished(self, run: str) -> Run | None:
        """Return the records of a run that finished in the last `handle`."""
        return next((ended for ended in self.retired if ended.id == run), None)

    def follow(self, event: Event, orders: Sequence[Order]) -> list[Action]:
        """Handle an event as `handle` does, but send out the attempts of `orders` instead of choosing.

        An order that cannot be followed is dropped with all orders after it; the returned actions lack them.
        """
        self._dispatcher.orders = deque(orders)
        try:
            return self.handle(event)
        finally:
            self._dispatcher.orders = None

    def adopt(self, other: Machine, run: str, at: float) -> list[Action]:
        """Take over a run of another machine that has no attempt left; return the actions that follow. Its attempts are
        numbered above the last of both machines. The times of its records move by the difference between `at` and the
        other machine's time, so that the time in between does not count for the run."""
        self._open_answer(at)
        taken = other._records.runs.pop(run)
        taken.share = self.queue.enter(run, taken.request)
        if not taken.paused:
            self._records.waiting += 1
            self._records.ready += taken.ready
        for node in take_over(self._records, self._slots.timers, other._records, other._slots.timers, taken, at):
            self._steps.enqueue(node)
        self._dispatcher.advance()
        return self._close_answer()

    def _open_answer(self, at: float) -> None:
        records = self._records
        records.actions = []
        # New lists, and not cleared ones: the caller may still hold those of the last event.
        if records.moves:
            records.moves = []
        if self.retired:
            self.retired = []
        if self._dispatcher.refused:
            self._dispatcher.refused = []
        if at > records.now:
            records.now = at

    def _close_answer(self) -> list[Action]:
        slots, actions = self._slots, self._records.actions
        # Runs finish last, so that `Finish` comes after every other action of its run.
        while slots.closing:
            self._finish_if_over(slots.closing.pop())
            if not slots.closing and self.queue.programs.stirred:
                self._dispatcher.advance()  # a run that has finished leaves room for programs that wait
        if slots.timers.heap and (wake := slots.timers.arm()) is not None:
            actions.append(WakeAt(wake))
        return actions

    # -- events of attempts --------------------------------------------------------------------------------------------

    def _on_succeeded(self, event: Succeeded) -> Node | None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            self.late += 1
            return None
        read = attempt.state == "live"
        self._slots.end_attempt(attempt, event.result.usage, read=read)
        if not read:
            return None
        # An answer that stopped by itself is whole, even if its grant was short.
        short = (attempt.cut or attempt.short) if event.result.finish == "length" else ""
        # Cut answers are left out: their lengths say how much was left and not how long such answers are.
        if not short and not attempt.node.merge:
            ended = AttemptEnd(self._records.now - attempt.started, attempt.length(event.result), attempt.worker.name)
            node = attempt.node
            keys = template_keys(node.step, node.run.request.planner.name)
            self._records.ended.add(keys, ended, node.run.lengths)
        return self._take_result(attempt, event.result, exceeded(short) if short else None)

    def _take_result(self, attempt: Attempt, result: Result, limited: Failure | None = None) -> Node:
        """Make the result of a live attempt that is over its step's; `limited`: the limit that cut it, if any."""
        node, result = attempt.node, self._slots.record_win(attempt, result)
        node.outcome.limited = node.outcome.limited or limited
        if node.outcome.limited and not result.partial:
            result = result.model_copy(update={"partial": True})
        if node.after is not None:
            result = result.model_copy(update={"prior": prior(node)})
        node.outcome.own = result
        node.path_tokens.own = node.path_tokens.before + result.usage.completion
        if node.step.expands:
            self._steps.expand(node, result)
        else:
            self._steps.finish_with_value(node, result, node.path_tokens.own)
        return node

    def _on_progressed(self, event: Progressed) -> Node | None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            self.late += 1
            return None
        node, text = attempt.node, event.text
        attempt.heartbeat = self._records.now
        tokens = max(event.tokens, len(event.ids))
        if tokens and not attempt.tokens and node.run.held.heaps:
            self._slots.stirred[node.run.id] = node.run
        reached: Account | None = None
        if attempt.charge.counted and tokens and node.account is not None:
            reached = budgets.charge_report(node.account, attempt, tokens, self._records.now)
        else:
            attempt.tokens += tokens
        self.queue.count_tokens(attempt, tokens)
        attempt.largest = max(attempt.largest, event.largest or tokens)
        # A worker may report more than it was granted; the load of the others must not shrink by that.
        used = min(attempt.left, tokens)
        attempt.left -= used
        attempt.worker.load -= used
        # A stopping attempt is charged for its tokens, but its text is no longer its step's.
        if attempt.state != "live":
            return None
        if event.ids:
            attempt.ids = attempt.ids or []
            attempt.ids.extend(event.ids)
        if event.group is not None or event.lowest is not None:
            attempt.group, attempt.lowest = event.group, event.lowest
        if attempt.resumed_from is not None and not attempt.continues and (tokens or text):
            text = attempt.settle_resumption(bool(event.ids)) + text
        if text:
            attempt.add_text(text)
            if node.step.feeds_reader:
                self._records.actions.append(Expand(node.id, attempt.id, delta=text))
        if reached is not None:
            self._limits.cut(reached)
        return node

    def _on_counted(self, event: Counted) -> None:
        node = self.nodes.get(event.step)
        if node is None or node.run.prompt_sizes.counting.pop(event.step, None) is None:
            self.late += 1
            return
        if event.tokens is None:
            node.run.prompt_sizes.uncounted.add(node.id)
        else:
            prompt_sizes.prompt_counted(node, event.tokens)
        if node.state is READY:
            self.queue.push(node)

    def _on_failed(self, event: Failed) -> Node | None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            self.late += 1
            return None
        live = attempt.state == "live"
        # Empty usage of a lost attempt means that it is unknown; with any other failure it means that nothing was used.
        known = event.usage != Usage() or not event.failure.lost
        self._slots.end_attempt(attempt, event.usage if known else None, dead=True)
        if not live:
            return None
        self._steps.retry_or_fail(attempt, event.failure)
        return attempt.node

    def _on_stopped(self, event: Stopped) -> Node | None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            self.late += 1
            return None
        live, result = attempt.state == "live", event.result
        # A cut attempt that generated something has a value: the end of a budget is like the end of `max_tokens`.
        if live and attempt.cut and (result.usage.completion or attempt.tokens):
            text = "".join(attempt.text) if result.value is None else result.value
            self._slots.end_attempt(attempt, result.usage, read=True)
            result = result.model_copy(update={"finish": "length", "value": text})
            return self._take_result(attempt, result, exceeded(attempt.cut))
        self._slots.end_attempt(attempt, result.usage)
        if live and attempt.cut:
            self._cut_off(attempt)
        elif live:
            message = f"{attempt.worker.name} stopped this attempt without a request to stop it"
            self._steps.retry_or_fail(attempt, as_failure(WorkerLost(message)))
        return None

    def _cut_off(self, attempt: Attempt) -> None:
        """Fail the step of a cut attempt that ended without a value, unless the step has another attempt."""
        if attempt.node.attempts.live is None:
            self._steps.fail(attempt.node, exceeded(attempt.cut))

    def _on_worker_down(self, event: WorkerDown) -> None:
        self._slots.worker_down(event.worker, event.returning)
        because = f": {event.reason}" if event.reason else ""
        if because:
            self._records.lost = f"{event.worker} went away{because}"
        message = f"worker {event.worker} went away while it ran this step{because}"
        # The slots of all lost attempts are freed before any step is tried again: else the first retry would see the
        # worker's other attempts as live.
        lost = [attempt for attempt in self.attempts.values() if attempt.worker.name == event.worker]
        live = [attempt for attempt in lost if attempt.state == "live"]
        for attempt in lost:
            self._slots.end_attempt(attempt, None, dead=True)
        self._steps.lose_worker(live, event.worker, message)

    # -- events of runs ------------------------------------------------------------------------------------------------

    def _on_submitted(self, event: Submitted) -> None:
        if event.run in self.runs or event.run in self._finished:
            self.late += 1
            return
        request = event.request
        try:
            run = Run(event.run, request, self._plugins.task(request.task, request.text), submitted=event.at)
            policies = [self._plugins.policy(spec) for spec in request.policies]
            group_policies(run.policies, policies)
            run.root = scope = Scope(run, None, None, f"{run.id}:")
            run.account = account = budgets.open_run(request, f"run {run.id}", self._records.now)
            nodes = self._plans.enter(event.plan, scope, account)
        except PlaitError as error:
            self._remember(event.run)
            self._records.actions.append(Finish(event.run, "failed", failure=as_failure(error)))
            return
        if account is not None:
            self._plans.arm_deadline(account, run)
        self.runs[run.id] = run
        self._records.waiting += 1
        # The run enters the queue before its steps start: `push` looks its share up.
        run.share = self.queue.enter(run.id, request)
        self._plans.start(nodes)
        self._plans.close_scope(scope)  # after the start: closing may cancel steps that nothing consumes
        self._reviews.begin(run)

    def _on_expanded(self, event: Expanded) -> None:
        node = self.nodes.get(event.step)
        if node is None or node.attempts.generation != event.attempt or node.state not in (RUNNING, EXPANDING):
            self.late += 1
            return
        if event.failure is not None:
            self._steps.fail(node, event.failure)
            return
        if event.patch is not None:
            if node.inner is None:
                # A retried expansion gets its own prefix: the ids of the cancelled steps stay taken.
                prefix = f"{node.id}/" if node.attempts.count <= 1 else f"{node.id}~{node.attempts.count}/"
                level = node.scope.level + (node.scope.owner is not None or not is_root(node.step))
                node.inner = Scope(node.run, node, node.scope, prefix, level)
            if is_duplicate(event.patch, node.inner):
                self.late += 1
            else:
                try:
                    added = self._plans.enter(event.patch, node.inner, node.account, event.waited, event.refused)
                except PlaitError as error:
                    self._steps.fail(node, as_failure(error))
                    return
                self._plans.start(added)
        if event.closed and node.state is EXPANDING:
            self._plans.close_expansion(node, event.cut)

    def _on_cancelled(self, event: Cancelled) -> None:
        run = self.runs.get(event.run)
        if run is None:
            self.late += 1
            return
        if run.cancelled is None and not run.over:
            run.cancelled = event.cause, sentence(event.cause, event.reason)
            self._steps.cancel_all(run, event.cause, event.reason)

    def _on_pruned(self, event: Pruned) -> None:
        node = self.nodes.get(event.step)
        if node is None or node.ended:
            self.late += 1
            return
        self._steps.cancel(node, event.cause, event.reason)

    def _on_paused(self, event: Paused) -> None:
        run = self.runs.get(event.run)
        if run is None:
            self.late += 1
            return
        # Counters of paused runs are taken out as a whole, so that `waiting` and `ready` show only work that may start.
        if run.paused != event.on:
            run.paused = event.on
            change = -1 if event.on else 1
            self._records.ready += change * run.ready
            self._records.waiting += 0 if run.live else change
        if not event.on:
            self._dispatcher.resume(run)

    def _on_limited(self, event: Limited) -> None:
        run = self.runs.get(event.run)
        if run is None:
            self.late += 1
            return
        self._limits.change(run, event.budget)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _on_tick(self, event: Tick) -> None:
        self.queue.programs.stir()
        for timer in self._slots.timers.pop_due(self._records.now):
            self._handle_timer(timer, event)

    def _handle_timer(self, timer: Timer, event: Tick) -> None:
        match timer.subject:
            case Node() as node if timer.kind == "retry":
                if node.state is WAITING:
                    self._steps.ready(node)
            case Node() as node:
                if node.state is WAITING:
                    node.outcome.limited = node.outcome.limited or deadline_failure(node)
                    self._steps.obey(node, judge_at_deadline(node))
            case Attempt() as attempt if timer.kind == "lease":
                self._lease_over(attempt)
            case Attempt() as attempt:
                if attempt.state == "stopping":
                    self._slots.end_attempt(attempt, None)
                elif attempt.state == "live" and attempt.cut:
                    self._slots.end_attempt(attempt, None)
                    self._cut_off(attempt)
            case Run() as run:
                if run.wake == timer.at and not run.over:  # an earlier review has replaced other timers
                    run.wake = None
                    self._steps.spread()
                    self._reviews.review(event, run, None)
            case (account, run):
                if run.id in self.runs:
                    self._limits.seconds_over(account)

    def _lease_over(self, attempt: Attempt) -> None:
        """Treat an attempt as lost if it has not reported for the time of a lease."""
        lease = self._slots.lease
        assert lease is not None
        if attempt.state != "live":
            return
        # Reports do not move the timer, which would cost a heap operation each: it is set again when it is due.
        if attempt.heartbeat + lease > self._records.now:
            self._slots.timers.add(attempt.heartbeat + lease, "lease", attempt)
            return
        message = f"worker {attempt.worker.name} has been silent about this step for {lease:g} s"
        self._slots.stop(attempt, "silent", message)
        self._steps.retry_or_fail(attempt, as_failure(WorkerLost(message)))

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _finish_if_over(self, run: Run) -> None:
        if run.live or run.id not in self.runs or not run.over:
            return
        assert run.root is not None and run.root.output is not None
        self._remember(run.id)
        del self.runs[run.id]
        if not run.paused:
            self._records.waiting -= 1
            self._records.ready -= run.ready
        self.queue.leave(run)
        self._dispatcher.holding.pop(run.id, None)
        for node in run.nodes:
            del self.nodes[node.id]
        self.retired.append(run)
        self._records.actions.append(finish(run, run.root.output))

    def _remember(self, run: str) -> None:
        self._finished[run] = None  # in order of insertion: the first is the oldest
        if len(self._finished) > _REMEMBERED_RUNS:
            del self._finished[next(iter(self._finished))]
