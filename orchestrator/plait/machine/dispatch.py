"""Choose which ready steps start, and where: check budgets and policies, fill free slots, hedge running steps.

A ready step with a free worker may still be *blocked*: by a budget that is used up for now, by a policy that holds it,
or because the user has paused its run. It then waits in a backlog (`Backlog`) of the account or the run. When
something has changed there, the first step of the backlog is checked again, and when that one starts, the next.

The decisions of policies on events of their runs are applied here too: stops, hedges, and times of the next review.

The layer above `steps.py`. It knows no plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from ..core.errors import RAISED, NoWorker, PluginError
from ..core.events import PRIORITY_STEP, Count, Event
from ..core.interfaces import Defer, Hedge, Pin, Policy, Stop
from ..core.ops import ModelCall
from ..core.result import Failure, as_failure
from ..core.states import EXPANDING, READY, RUNNING
from ..core.values import writable
from . import budgets, prompt_sizes
from .attempt_lifecycle import Slots
from .backlog import Backlog
from .decision_replay import Order, RefuseOrder
from .ready_queue import ReadyQueue
from .records import Blockage, Node, Records, Run, WorkerState
from .run_statistics import Checkpoint
from .steps import Steps, plugin_failure
from .views import MachineView, NodeView

_MOST_RANK = PRIORITY_STEP // 2 - 1
_SOONEST = 0.001
"""Minimum seconds until the next review: a policy that always asks for now must not block the loop."""


class Dispatcher:
    """Fills free slots with ready steps."""

    def __init__(self, records: Records, queue: ReadyQueue, slots: Slots, steps: Steps) -> None:
        self.holding: dict[str, Run] = {}
        """Runs with steps that policies may hold back."""
        self.orders: deque[Order] | None = None
        """Recorded orders that are left to follow; `None`: this machine decides what to send."""
        self.refused: list[tuple[int, RefuseOrder]] = []
        """Steps of the last event that were refused an attempt, each with the number of actions before it."""
        self._records = records
        self._queue = queue
        self._slots = slots
        self._steps = steps

    def advance(self) -> None:
        """Spread the ends of steps and fill slots, which may end steps, until nothing moves."""
        steps = self._steps
        while True:
            if steps.ended:
                steps.spread()
            self._fill()
            if not steps.ended:
                return

    def _fill(self) -> None:
        """Send out ready steps until no slot is free or no step may start."""
        slots, take = self._slots, self._queue.take
        if slots.stirred:  # only the first behind each name: the next is checked when that one has started
            for run in slots.stirred.values():
                for behind in list(run.held.heaps):
                    slots.ask_next(run.held, behind)
            slots.stirred.clear()
        programs = self._queue.programs
        if programs.stirred:
            programs.stirred = False
            for key in list(programs.waiting.heaps):
                slots.ask_next(programs.waiting, key)
        if self.orders is not None:  # a replay repeats the recorded decisions instead of deciding again
            self.follow(hedges=False)
            return
        while True:
            while (taken := take()) is not None:
                self._consider(*taken)
            if not self.holding or not self._force():
                return

    def _consider(self, node: Node, worker: WorkerState | None) -> None:
        """Start a step that a worker has room for, or block it."""
        run = node.run
        if run.paused:
            self._block(node, "pause", run.set_aside)
            return
        if worker is None:
            self._refuse(node, as_failure(NoWorker(self._explain_no_worker(node))))
            return
        account = node.account
        answer = self._admit(node, worker)
        if answer is None:
            return
        if isinstance(answer, budgets.Grant):
            reason = ""
            if run.policies.placers or run.policies.admitters:
                place = self._choose(node, worker)
                if place is None:
                    return
                chosen, reason = place
                if chosen is not worker and account is not None:
                    # Another worker may cost more, or not report tokens: then the step stays on the admitted worker.
                    there = self._admit(node, chosen)
                    if isinstance(there, budgets.Grant):
                        worker, answer = chosen, there
                else:
                    worker = chosen
            priority = node.place.priority * PRIORITY_STEP
            # Workers get one number: the rank only orders steps of equal priority, so it is clamped below the next one.
            if node.place.rank and node.place.rank[0] == node.place.rank[0]:  # it may be NaN
                priority += int(max(-_MOST_RANK, min(_MOST_RANK, node.place.rank[0])))
            self._start(node, worker, answer, priority, reason)
        elif isinstance(answer, budgets.Wait):
            self._block(node, "budget", answer.account.held, node.place.lane, f"waits for {answer.account.owner}")
        else:
            self._refuse(node, Failure(kind="BudgetExceeded", message=answer.message))

    def _admit(self, node: Node, worker: WorkerState) -> budgets.Grant | budgets.Wait | budgets.Refusal | None:
        """Return the budgets' decision whether a step may start on a worker, or `None` if the worker has to count its
        prompt first."""
        account, op = node.account, node.step.op
        if node.place.lane == "call" and (account is None or not account.calls):
            return budgets.CALL  # no limit concerns it, and there may be thousands of calls
        if account is None or op.kind == "call":
            return budgets.admit(account, self.build_ask(node, worker, node.attempts.checkpoint), self._records.now)
        late = budgets.check_turns(node)
        if late is not None:
            return budgets.Refusal(late)  # before its prompt is counted, which would be a wasted request
        known = len(node.attempts.checkpoint.ids) if node.attempts.checkpoint is not None else 0
        if account.prompts and node.id not in node.run.prompt_sizes.uncounted:
            size = prompt_sizes.prompt_size(node, worker, known, ask=True)
            if isinstance(size, ModelCall):
                node.run.prompt_sizes.counting[node.id] = node
                self._records.actions.append(Count(node.id, worker.name, size))
                return None
        return budgets.admit(account, self.build_ask(node, worker, node.attempts.checkpoint), self._records.now)

    def build_ask(self, node: Node, worker: WorkerState, checkpoint: Checkpoint | None) -> budgets.Ask:
        """Return the request of a further attempt at a step, without the tokens that it continues from."""
        op, account = node.step.op, node.account
        if op.kind != "think":
            return budgets.NOTHING
        known = len(checkpoint.ids) if checkpoint is not None else 0
        most = op.sampling.max_tokens - known
        # Estimates of lengths and prompts cost time and serve only accounts that limit them.
        if account is None or not (account.lengths or account.thinking):
            return budgets.Ask(most)
        thoughts = None
        # By default a model may think or not: thoughts are requested once an answer of it here has had some.
        if account.thinking or op.sampling.thinking == "on" or op.model in worker.thinks:
            thoughts = op.most_thoughts
            most += thoughts
        price = worker.price(op.model)
        counted = worker.reports is not None and not budgets.is_far_off(account, most, price)
        likely = self._records.ended.reserved(node.template_keys, most, known) if counted else most
        if not account.prompts:
            return budgets.Ask(most, likely, counted, price=price, thoughts=thoughts)
        size = prompt_sizes.prompt_size(node, worker, known, ask=False)
        assert isinstance(size, prompt_sizes.PromptSize)
        return budgets.Ask(most, likely, counted, size.tokens, size.margin, size.estimated, price, thoughts)

    def _refuse(self, node: Node, failure: Failure) -> None:
        self.refused.append((len(self._records.actions), RefuseOrder(node.id, failure)))
        self._steps.fail(node, failure)

    def _explain_no_worker(self, node: Node) -> str:
        op = node.step.op
        if op.kind != "think" or op.model is None or not self._queue.expects(op.kind):
            lost = f" ({self._records.lost})" if self._records.lost else ""
            return f"no worker serves {op.kind} steps{lost}; start one, or check why it ended"
        names = ", ".join(map(repr, self._queue.models())) or "none by name"
        return f"no worker serves the model {op.model!r} (models: {names}); start one, or leave `model` out"

    def _start(self, node: Node, worker: WorkerState, grant: budgets.Grant, priority: int, reason: str) -> None:
        node.attempts.count += 1
        node.move(RUNNING, self._records, worker.name)
        attempt = self._slots.begin(node, worker, grant, node.attempts.checkpoint, priority, reason)
        node.attempts.live, node.attempts.generation = attempt, attempt.id
        blocked = node.place.blocked
        if blocked is not None:
            node.place.blocked = None
            self._slots.ask_next(blocked.backlog, blocked.key)

    # -- blocked steps -------------------------------------------------------------------------------------------------

    def _block(
        self,
        node: Node,
        by: Literal["budget", "policy", "pause"],
        backlog: Backlog[Node],
        key: str = "",
        reason: str = "",
    ) -> None:
        """Block a ready step. If a budget or its program's admission blocked it before and something else does now, the
        next step behind that is queued, which may start; in the reverse case, that can wait until an attempt of the run
        ends."""
        before = node.place.blocked
        same = before is not None and before.backlog is backlog and before.key == key
        since = before.since if before is not None and same else self._records.now
        node.place.blocked = Blockage(by, since, backlog, key, reason)
        backlog.put(key, node)
        waited = before is not None and (before.by == "budget" or before.backlog is self._queue.programs.waiting)
        if before is not None and waited and not same:
            self._slots.ask_next(before.backlog, before.key)

    def resume(self, run: Run) -> None:
        """Queue the steps that were due while a run was paused, at their old places."""
        nodes, run.set_aside = run.set_aside.nodes(), Backlog[Node]()
        for node in nodes:
            node.place.blocked = None
            self._queue.push(node)

    def _choose(self, node: Node, default: WorkerState) -> tuple[WorkerState, str] | None:
        """Return the worker that a step goes to and why, or `None` if a policy blocked it or ended its run."""
        run, queue = node.run, self._queue
        place = self._place(node, default, run.policies.placers) if run.policies.placers else (default, "")
        if isinstance(place, Defer):
            # Behind a busy worker the step is checked again when an attempt there ends. An idle worker gives no such
            # occasion, so the step waits for an event of its run.
            busy = self._records.workers.get(place.worker)
            if busy is not None and busy.up and busy.running:
                self._block(node, "policy", busy.held, "", place.reason)
                return None
            self._block(node, "policy", run.held, place.behind, place.reason)
            self.holding[run.id] = run  # so that one starts regardless when nothing else of it moves
            return None
        if run.policies.admitters and not node.ended and queue.programs.is_short(node, place[0], self._records.now):
            admitted = self._place(node, place[0], run.policies.admitters, admit=True)
            if isinstance(admitted, Defer) and self._is_checked_again(node, admitted):
                key = f"{node.place.lane} {run.request.fairness_group}"
                self._block(node, "policy", queue.programs.waiting, key, admitted.reason)
                return None
            place = place if isinstance(admitted, Defer) or not admitted[1] else admitted
        return None if node.ended else place  # a policy may have raised, which ends the run

    def _is_checked_again(self, node: Node, hold: Defer) -> bool:
        """Return whether an end or a timer will make the machine check a step that waits for admission."""
        if self._queue.is_active(node.place.lane):
            return True
        if hold.until is not None:
            self._slots.timers.add(max(hold.until, self._records.now + _SOONEST), "review", node.run)
        return hold.until is not None

    def _place(
        self, node: Node, default: WorkerState, policies: Sequence[Policy], admit: bool = False
    ) -> tuple[WorkerState, str] | Defer:
        """Ask all policies: any of them may defer the step; else the first that names a worker with room decides."""
        chosen: tuple[WorkerState, str] | None = None
        run, workers = node.run, self._records.workers
        subject = NodeView(node)
        for policy in policies:
            try:
                view = MachineView(self._records, self._queue, subject, run.id)
                answer = policy.admit(subject, default, view) if admit else policy.place(subject, view)
                if isinstance(answer, Defer):
                    if node is run.forced:
                        continue  # policies may slow a run down and never stop it
                    return answer
                name, reason = (answer.worker, answer.reason) if isinstance(answer, Pin) else (answer, "")
                worker = workers.get(name) if name is not None else None
                if name is not None and worker is None:
                    there = ", ".join(workers) or "none"
                    raise PluginError(f"it places a step on {name!r}, which does not exist (workers: {there})")
            except RAISED as error:
                failure = plugin_failure(policy, error)
                self.refused.append((len(self._records.actions), RefuseOrder(node.id, failure.bare, run.id)))
                self._steps.break_with(run, failure)
                return default, ""
            # The loop continues after a choice, because a later policy may still defer the step.
            if chosen is None and worker is not None and worker.free > 0 and worker.in_lane(node.place.lane):
                chosen = worker, reason
        return chosen or (default, "")

    def _force(self) -> bool:
        """Start one step of each run whose policies hold everything back; return whether there was one."""
        forced = False
        for run in list(self.holding.values()):
            if run.live or run.paused or (run.forced is not None and run.forced.state is READY):
                continue
            if any(node.state is EXPANDING and (node.deps or node.merge is None) for node in run.nodes):
                continue  # its planner will send more; a flow, which has no needs, may be waiting for just this step
            node = run.held.first()
            if node is None:
                del self.holding[run.id]
                continue
            run.forced, node.place.blocked = node, None
            self._queue.push(node)
            forced = True
        return forced

    # -- hedges --------------------------------------------------------------------------------------------------------

    def hedge(self, wish: Hedge, run: Run) -> None:
        """Start a second attempt at a running step, if a worker is free and its budgets allow it."""
        node = self._records.nodes.get(wish.step)
        if node is None or node.run is not run or node.attempts.live is None or node.attempts.hedged or run.paused:
            return
        step, first = node.step, node.attempts.live
        # A call with side effects must not run twice. A planner that streams the text of one attempt cannot take back
        # the steps that it has made of it.
        if step.side_effects or step.feeds_reader:
            return
        lane = node.place.lane
        if wish.worker is None:
            worker = self._queue.find_other(lane, first.worker)
        else:
            worker = self._records.workers.get(wish.worker)
        if worker is None or worker is first.worker or worker.free <= 0 or not worker.in_lane(lane):
            return
        checkpoint = first.checkpoint()
        grant = budgets.admit(node.account, self.build_ask(node, worker, checkpoint), self._records.now)
        if isinstance(grant, budgets.Grant) and not grant.short:  # a shorter hedge could only give less than the first
            node.attempts.hedged = True
            node.attempts.hedge = self._slots.begin(node, worker, grant, checkpoint, first.priority, wish.reason)

    # -- orders of another machine -------------------------------------------------------------------------------------

    def follow(self, hedges: bool) -> None:
        """Follow the recorded orders in turn, as far as they can be followed now."""
        records = self._records
        while self.orders:
            order = self.orders[0]
            if isinstance(order, RefuseOrder) and order.run:
                self.orders.popleft()
                run = records.runs.get(order.run)
                if run is not None:
                    self._steps.break_with(run, order.failure)
                continue
            node = records.nodes.get(order.step)
            if node is None:
                return
            first = node.attempts.live
            if isinstance(order, RefuseOrder):
                if node.ended:
                    return
                self.orders.popleft()
                self._refuse(node, order.failure)
                continue
            again = hedges and first is not None and not node.attempts.hedged
            if not again and node.state is not READY:
                return  # ended steps must spread first
            # A hedge continues the live attempt's text; a new attempt continues the last lost one's.
            checkpoint = node.attempts.checkpoint if first is None else first.checkpoint()
            worker = records.workers.get(order.worker)
            if worker is None:
                return
            grant = budgets.admit(node.account, self.build_ask(node, worker, checkpoint), records.now, decided=True)
            if not isinstance(grant, budgets.Grant):
                return
            self.orders.popleft()
            # The attempt gets its recorded id, because the events that follow name it. Other runs' ids are skipped.
            records.last_attempt = order.attempt - 1
            if first is not None:
                node.attempts.hedged = True
                node.attempts.hedge = self._slots.begin(node, worker, grant, checkpoint, order.priority, order.reason)
            else:
                self._start(node, worker, grant, order.priority, order.reason)


class Reviews:
    """Ask policies to review their runs."""

    def __init__(self, records: Records, queue: ReadyQueue, slots: Slots, steps: Steps) -> None:
        self.hedges: list[tuple[Run, Hedge]] = []
        """Requested hedges, which start after free slots are filled."""
        self._records = records
        self._queue = queue
        self._slots = slots
        self._steps = steps

    def begin(self, run: Run) -> None:
        """Ask a new run's policies for the time of their first review."""
        for policy in run.policies.reviewers:
            try:
                asked = policy.first_look()
                after = None if asked is None else _time(asked)
            except RAISED as error:
                self._steps.break_run(run, policy, error)
                return
            if after is not None:
                self._wake(run, self._records.now + after)

    def review(self, event: Event, run: Run, subject: Node | None) -> None:
        """Ask a run's policies to review an event, and apply their decisions."""
        about = NodeView(subject) if subject is not None else None
        for policy in run.policies.reviewers:
            # All decisions are read before one is applied: a policy may be a generator that raises half-way.
            try:
                wishes = list(policy.review(event, MachineView(self._records, self._queue, about, run.id)))
                times = [_time(wish.at) for wish in wishes if not isinstance(wish, Stop | Hedge)]
            except RAISED as error:
                self._steps.break_run(run, policy, error)
                break
            for wish in wishes:
                if not isinstance(wish, Stop | Hedge):
                    continue
                node = self._records.nodes.get(wish.step)
                if node is None or node.run is not run:
                    self._steps.break_run(run, policy, PluginError(_no_step(wish.step, run)))
                    break
                if isinstance(wish, Hedge):
                    self.hedges.append((run, wish))
                elif not node.ended:
                    node.outcome.merged_into = wish.merged_into
                    self._steps.cancel(node, "pruned", writable(str(wish.reason)))
            if times:
                self._wake(run, min(times))
            self._steps.spread()

    def _wake(self, run: Run, at: float) -> None:
        """Set the time of a run's next review; the earliest of several requests counts."""
        # A time in the past would make the timer due in the same tick, again and again.
        at = max(at, self._records.now + _SOONEST)
        if run.wake is None or at < run.wake:
            run.wake = at
            self._slots.timers.add(at, "review", run)


def _time(asked: float) -> float:
    """Return the time that a policy asks for, in seconds. Raises `ValueError` for NaN."""
    at = float(asked)
    if at != at:
        raise ValueError("it asks to be woken at NaN, which is not a time")
    return at


def _no_step(given: str, run: Run) -> str:
    """Return the message for a policy that names an unknown step, with the ids of steps of that name."""
    meant = [repr(node.id) for node in run.nodes if node.step.name == given]
    hint = f"; did you mean {' or '.join(meant[:2])}?" if meant else ""
    problem = f"it stops or hedges {given!r}, which is not the id of a step of the run {run.id!r}"
    return f"{problem}{hint} (an id is `step.id`)"
