"""Start, stop and end attempts on workers, and queue the blocked steps that an end may unblock.

The lowest layer of the machine that acts. It writes to attempts, workers, accounts and timers. It moves no step and
makes no choice.
"""

from __future__ import annotations

from ..core.causes import Cause
from ..core.events import NO_USAGE, Cancel, Dispatch, Job, WorkerUp
from ..core.ops import ModelCall, ToolCall
from ..core.result import UNKNOWN, Result, Sources, Usage
from . import budgets, prefix_groups, prompt_sizes
from .action_builder import resolve
from .backlog import Backlog
from .ready_queue import ReadyQueue
from .records import Account, Attempt, Node, Records, Run, WorkerState
from .run_statistics import Charge, Checkpoint
from .wait_queues import Timers

_AT_LEAST = Sources.model_construct({"completion"}, completion="estimate")
_BY_IDS = Sources.model_construct({"completion"}, completion="ids")
_NOBODY_KNOWS = UNKNOWN.model_copy(update={"cost": "unknown"})


class Slots:
    """Attempts on workers. `cancel_timeout` and `lease` as for `Machine`."""

    def __init__(self, records: Records, queue: ReadyQueue, *, cancel_timeout: float, lease: float | None) -> None:
        self.cancel_timeout = cancel_timeout
        self.lease = lease
        self.timers: Timers = Timers()
        self.closing: list[Run] = []
        """Runs that may be over, because their last attempt or their output step has ended."""
        self.stirred: dict[str, Run] = {}
        """Runs with an attempt that has ended or reported its first tokens: their policies review held steps again."""
        self._records = records
        self._queue = queue

    def begin(
        self,
        node: Node,
        worker: WorkerState,
        grant: budgets.Grant,
        checkpoint: Checkpoint | None,
        priority: int,
        reason: str,
    ) -> Attempt:
        """Send a step to a worker, continuing from the checkpoint if there is one."""
        records, run, ask = self._records, node.run, grant.ask
        tokens = grant.tokens + (grant.thoughts or 0)
        records.last_attempt = number = records.last_attempt + 1
        op, generated = node.step.op, checkpoint.ids if checkpoint is not None else ()
        # A call without arguments has nothing to fill in, and there may be thousands of them.
        if not isinstance(op, ToolCall) or op.args:
            op = resolve(node, grant.tokens, len(generated), grant.thoughts)
        now = records.now
        attempt = Attempt(number, tokens, grant.short, now, now, priority, tokens, node=node, worker=worker)
        records.attempts[number] = attempt
        if not run.live and not run.paused:
            records.waiting -= 1
        run.live += 1
        records.thinking += op.kind == "think"
        node.attempts.ran_on = worker.name
        attempt.resumed_from = checkpoint
        seconds: float | None = None
        if node.account is not None:
            if ask is not budgets.NOTHING:
                attempt.charge = Charge(
                    counted=ask.counted,
                    likely=min(ask.likely, tokens),
                    thoughts=grant.thoughts or 0,
                    prompt=ask.prompt,
                    margin=ask.margin,
                    estimated=ask.estimated,
                    price=ask.price,
                    priced_until=now,
                )
            budgets.reserve(node.account, attempt)
            if node.account.calls:
                seconds = budgets.seconds_left(node.account, now)
        # Counted here and not when the worker confirms: the next choice of a worker must see the slot as taken.
        worker.load += tokens
        worker.running += 1
        self._queue.count_start(attempt)
        if node.place.prefix_group is not None:
            prefix_groups.count_start(node.place.prefix_group, attempt, records.prefixes)
        if self.lease is not None:
            self.timers.add(now + self.lease, "lease", attempt)
        if run.policies.needs_stream and isinstance(op, ModelCall) and op.stream is None:
            op = op.model_copy(update={"stream": True})
        report = attempt.charge.counted or run.policies.needs_counts
        job = Job(number, run.id, node.id, op, seconds, generated, priority, report, tenant=run.request.tenant)
        records.actions.append(Dispatch(worker.name, job, reason))
        return attempt

    def stop(self, attempt: Attempt, cause: Cause, about: str = "") -> None:
        """Ask a worker to stop an attempt. The attempt no longer belongs to its step."""
        # The slot is not free yet: the worker may generate until it receives the request. A worker that never answers
        # must not keep the slot for ever, hence the timer.
        attempt.state = "stopping"
        attempt.leave()
        self.timers.add(self._records.now + self.cancel_timeout, "cancel", attempt)
        self._records.actions.append(Cancel(attempt.node.id, attempt.id, attempt.worker.name, cause, about))

    def cut(self, attempt: Attempt, reason: str) -> None:
        """Ask a worker to stop an attempt whose budget is used up. The attempt still belongs to its step: its text so
        far is the step's result, as at the end of `max_tokens`."""
        attempt.cut = reason
        self.timers.add(self._records.now + self.cancel_timeout, "cancel", attempt)
        self._records.actions.append(Cancel(attempt.node.id, attempt.id, attempt.worker.name, "budget", reason))

    def stop_all(self, node: Node, cause: Cause, about: str = "") -> bool:
        """Ask the workers to stop a step's live attempts; return whether it had any."""
        first, second = node.attempts.live, node.attempts.hedge
        if first is None:
            return False
        self.stop(first, cause, about)
        if second is not None:
            self.stop(second, cause, about)
        return True

    def end_attempt(self, attempt: Attempt, usage: Usage | None, read: bool = False, dead: bool = False) -> None:
        """End an attempt, and free its slot and its reservation.

        `read`: its tokens go into its step's value. `dead`: it surely generates no more. Without `usage` the meter
        counts the reported tokens and the estimated prompt, and the rest as uncounted. The accounts are charged the
        whole reservation, since a limit is hard. Exception: for a dead attempt that had reported, they are charged the
        reports and one more as large as the largest. Example: 500 tokens reserved, 40 reported, at most 16 at a time:
        56.
        """
        node, worker = attempt.node, attempt.worker
        run = node.run
        known = usage
        usage = self._complete_usage(attempt, usage)
        # From here on its reports are late: `attempts` no longer has it, so no event can reach it twice.
        attempt.state = "ended"
        del self._records.attempts[attempt.id]
        attempt.leave()
        run.live -= 1
        if not run.live and not run.paused:
            self._records.waiting += 1
        self._records.thinking -= node.step.op.kind == "think"
        # Remembered by model, so that a budget of thoughts reserves some even if the step does not set `thinking`.
        if usage.thoughts and node.step.op.kind == "think":
            worker.thinks.add(node.step.op.model)
        if usage is not NO_USAGE:
            run.meter.add(usage, read)
        node.attempts.spent = usage if node.attempts.spent is None else node.attempts.spent + usage
        worker.load -= attempt.left
        self._queue.count_end(attempt, usage, read, self._records.now)
        if node.place.prefix_group is not None:
            prefix_groups.count_end(node.place.prefix_group, attempt, usage, self._records.prefixes)
        if node.account is not None:
            self._settle(node.account, attempt, usage, known, dead)
        # Steps that a policy keeps for this worker have no other occasion: the next one may take the freed slot.
        if worker.held.heaps and worker.free > 0:
            self.ask_next(worker.held, "")
        if run.held.heaps:
            self.stirred[run.id] = run
        # A run finishes only when nothing of it generates any more: its usage is whole.
        if run.live == 0 and run.over:
            self.closing.append(run)

    def _settle(self, account: Account, attempt: Attempt, usage: Usage, known: Usage | None, dead: bool) -> None:
        """Charge the end of an attempt to its accounts, and queue the steps that they hold back. `known` is the usage
        that its worker has reported."""
        if known is not None:
            charge = usage.completion + usage.uncounted
            # Before the accounts settle: the steps that they ask about next may have the same prompt.
            if account.prompts and attempt.node.step.op.kind == "think":
                prompt_sizes.prompt_reported(attempt, usage)
        else:
            reported = attempt.tokens + attempt.largest
            least = min(attempt.reserved, reported) if dead and attempt.tokens else attempt.reserved
            charge = max(usage.completion, least)
        for payer in budgets.settle(account, attempt, charge, known, self._records.now):
            for lane in list(payer.held.heaps):  # a copy: a lane whose last step is taken leaves the mapping
                self.ask_next(payer.held, lane)

    def _complete_usage(self, attempt: Attempt, usage: Usage | None) -> Usage:
        """Return the usage of an attempt: its worker's count, or an estimate, and at least what was reported."""
        if usage is None:
            usage = self._estimate_usage(attempt)
        if attempt.tokens and usage.completion < attempt.tokens:
            sources = usage.sources + _AT_LEAST  # the reports are a lower bound
            usage = usage.model_copy(update={"completion": attempt.tokens, "sources": sources})
        return usage

    def _estimate_usage(self, attempt: Attempt) -> Usage:
        """Return the usage of an attempt whose worker reported none."""
        node = attempt.node
        if node.step.op.kind != "think":
            return NO_USAGE
        known = len(attempt.resumed_from.ids) if attempt.resumed_from is not None else 0
        prompt = prompt_sizes.prompt_size(node, attempt.worker, known, ask=False)
        assert isinstance(prompt, prompt_sizes.PromptSize)
        return Usage(
            prompt=prompt.tokens,
            cost=attempt.charge.cost,
            uncounted=max(0, attempt.reserved - attempt.tokens),
            uncounted_prompt=max(prompt.tokens, prompt.margin),  # the prompt may not even have been sent
            sources=_NOBODY_KNOWS if attempt.charge.cost else UNKNOWN,
        )

    def record_win(self, attempt: Attempt, result: Result) -> Result:
        """Record the attempt that gave its step a value, stop the other one, and return the result.

        The result's usage includes the tokens that the attempt continued from; the meter no longer counts these as
        wasted.
        """
        node = attempt.node
        # The winner has left its step already (`over`), so a live attempt here is its hedge partner.
        if node.attempts.live is not None:
            self.stop(node.attempts.live, "superseded")
        node.attempts.ran_on = attempt.worker.name
        reused = attempt.count_reused(result) if attempt.resumed_from is not None else 0
        if reused:
            node.run.meter.reuse(reused)
            sources = result.usage.sources + _BY_IDS
            usage = result.usage.model_copy(update={"completion": result.usage.completion + reused, "sources": sources})
            result = result.model_copy(update={"usage": usage})
        if node.place.prefix_group is not None and node.step.op.kind == "think":
            worker, seconds = attempt.worker, self._records.now - attempt.started
            # Attempts on the worker, averaged over start and end (this one has left, hence + 1). Resumed tokens took no
            # decoding time.
            worker.speed.add((attempt.beside + worker.running + 1) / 2, seconds, result.usage.completion - reused)
        return result

    def worker_up(self, event: WorkerUp) -> None:
        """Enter a worker, bring one back, or change what one offers."""
        self._queue.worker_up(event)
        self._records.prefixes.limit(event.worker, event.cache_tokens, event.block)
        self._queue.programs.stir()
        self._requeue_held(self._records.workers[event.worker])

    def worker_down(self, name: str, returning: bool) -> None:
        """Remove a worker, with everything that it had cached."""
        self._queue.worker_down(name, returning)
        self._queue.programs.forget_worker(name)
        self._records.prefixes.forget(name)
        self._requeue_held(self._records.workers[name])

    def _requeue_held(self, worker: WorkerState) -> None:
        """Queue all steps that wait for a worker, because it went down or its slots changed."""
        nodes, worker.held = worker.held.nodes(), Backlog[Node]()
        for node in nodes:
            node.place.blocked = None
            self._queue.push(node)

    # -- blocked steps -------------------------------------------------------------------------------------------------

    def ask_next(self, backlog: Backlog[Node], key: str) -> None:
        """Put the first step of a key back into the ready queue, which checks it again."""
        node = backlog.take(key)
        if node is not None:
            self._queue.push(node)

    def ask_others(self, node: Node) -> None:
        """Queue the next step of each budget over a ready step that has ended: it may have blocked them."""
        lane = node.place.lane
        for account in (node.account, *node.account.around) if node.account is not None else ():
            if account.held.heaps:
                self.ask_next(account.held, lane)
