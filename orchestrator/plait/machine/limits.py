"""Enforce the limits of budgets while attempts run, and change a run's limits.

The layer above `steps.py`, beside `plans.py`.
"""

from __future__ import annotations

from ..core.budget import Budget
from ..core.errors import BudgetExceeded
from ..core.result import Failure
from ..core.states import EXPANDED, WAITING
from . import budgets
from .attempt_lifecycle import Slots
from .records import Account, Node, Records, Run
from .steps import Steps, judge_at_deadline


def exceeded(message: str) -> Failure:
    """Return the failure of a step or run that exceeds a budget."""
    return Failure(kind=BudgetExceeded.__name__, message=message)


class LimitEnforcer:
    """Enforces limits that are reached, and changes limits."""

    def __init__(self, records: Records, slots: Slots, steps: Steps) -> None:
        self._records = records
        self._slots = slots
        self._steps = steps

    def cut(self, account: Account) -> None:
        """Cut the attempts under an account whose limit is reached, except those that have used their whole grant:
        they end without a request."""
        reason = budgets.reached_limit_message(account)
        for attempt in list(self._records.attempts.values()):
            going = attempt.charge.counted and attempt.state == "live" and not attempt.cut
            if going and attempt.tokens < attempt.reserved and budgets.covers(account, attempt.node.account):
                self._slots.cut(attempt, reason)

    def seconds_over(self, account: Account) -> None:
        """Fail the steps under an account whose time is up; waiting joins close over their finished branches.

        A join with all its branches under the account ends when they end. Any other is judged here, as at its
        `deadline`, unless it would expand, which needs time.
        """
        if account.deadline is None or account.deadline > self._records.now:
            return  # the user has moved the deadline
        message = f"{account.owner}: all {account.budget.seconds:g} seconds are used up; raise `seconds`"
        failure = exceeded(message)
        joins: list[Node] = []
        for node in account.timed:
            if node.ended or node.state is EXPANDED:
                continue
            if node.merge is not None and node.state is WAITING:
                joins.append(node)
            else:
                self._steps.fail(node, failure)
        for node in joins:
            if not node.ended and any(not dep.ended and not budgets.covers(account, dep.account) for dep in node.deps):
                node.outcome.limited = node.outcome.limited or failure
                if node.step.expands:
                    self._steps.fail(node, failure)
                else:
                    self._steps.obey(node, judge_at_deadline(node, failure))
                self._steps.spread()

    def change(self, run: Run, budget: Budget) -> None:
        """Change the limits of a run. A smaller width stops nothing: fewer attempts begin. If tokens or cost are used
        up already, running attempts are cut."""
        account = run.account
        budget = run.request.model_copy(update={"budget": budget}).bounded
        if account is None:
            run.account = account = self._open(run)
        before, account.budget, account.changed = account.budget, budget, True
        # The time of a run counts from its submission, so that a change neither restarts nor extends it by itself.
        if before.seconds != budget.seconds:
            began = run.submitted if account.deadline is None else account.deadline - (before.seconds or 0.0)
            account.deadline = None if budget.seconds is None else began + budget.seconds
            account.timed = [] if budget.seconds is None else list(run.nodes)
            if account.deadline is not None:
                self._slots.timers.add(account.deadline, "seconds", (account, run))
        for node in run.nodes:
            for payer in (node.account, *node.account.around) if node.account is not None else ():
                payer.lengths |= budget.tokens is not None
                payer.thinking |= budget.thinking_tokens is not None
                payer.calls = True  # the new limit may be one of calls: each start checks it
        if budgets.reached_limit_message(account):
            self.cut(account)
        # A higher limit has no event of its own that would wake the steps behind the old one.
        for lane in list(account.held.heaps):
            self._slots.ask_next(account.held, lane)

    def _open(self, run: Run) -> Account:
        """Open the account of a run that had no limits, with its usage so far, around the accounts of its groups and
        steps."""
        account = Account(Budget(), f"run {run.id}")
        account.steps = len(run.nodes)
        for node in run.nodes:
            account.attempts += node.attempts.count + node.attempts.hedged
            if node.attempts.spent is not None:
                account.tokens += node.attempts.spent.completion + node.attempts.spent.uncounted
                account.prompt += node.attempts.spent.prompt + node.attempts.spent.uncounted_prompt
                account.thoughts += node.attempts.spent.thoughts
            if node.inner is not None:
                _enclose_groups(account, node.inner.groups)
            if node.account is None:
                node.account = account
            else:
                _enclose(account, node.account)
        if run.root is not None:
            _enclose_groups(account, run.root.groups)
        for attempt in self._records.attempts.values():
            if attempt.node.run is run:
                budgets.take_in(account, attempt)
        return account


def _enclose_groups(account: Account, groups: dict[str, Account | None]) -> None:
    """Put groups under an account, those without limits of their own as the account itself."""
    for name, group in groups.items():
        if group is None:
            groups[name] = account
        else:
            _enclose(account, group)


def _enclose(account: Account, inner: Account) -> None:
    """Put an account, and those around it, under another one."""
    for payer in (inner, *inner.around):
        if payer is not account and account not in payer.around:
            payer.around = (*payer.around, account)
