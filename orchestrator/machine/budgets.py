"""Accounts: what a nest of budgets still allows.

An account exists only where a budget sets a limit; each knows the account around it, and what is charged to one is
charged to all around it. Tokens are kept by reservation: an attempt reserves the most it may generate and gives back
the rest when it ends, so live attempts cannot exceed a token budget. Example: of a budget of 100 tokens, two attempts
that may generate 60 each get 60 and then, when the first has ended after 20 tokens, 60 again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..core.plan import Budget
from .records import Account


class Grant(NamedTuple):
    """The attempt may start and generate up to `tokens`; `truncated` if that is less than it asked for."""

    tokens: int
    truncated: bool


CALL = Grant(0, False)
"""Of a tool call without a budget."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: something under `account` has to end first."""

    account: Account


@dataclass(frozen=True, slots=True)
class Refusal:
    """Never: this limit is used up."""

    message: str


def open_account(budget: Budget | None, owner: str, parent: Account | None, now: float) -> Account | None:
    """Return an account for `budget`, or the one around it where `budget` sets no limit."""
    if budget is None or budget == Budget():
        return parent
    deadline = None if budget.seconds is None else now + budget.seconds
    return Account(budget, owner, parent, deadline)


def admit(account: Account | None, tokens: int, now: float) -> Grant | Wait | Refusal:
    """Say whether an attempt that may generate `tokens` (0 for a tool) can start under all accounts around it.

    With less left than asked for it waits while others hold reservations, since most give some back; when none does,
    it gets what is left.
    """
    if account is None:
        return Grant(tokens, False) if tokens else CALL
    granted = tokens
    hold: Account | None = None
    for each in account.chain():
        limit = each.budget
        if each.deadline is not None and now >= each.deadline:
            return Refusal(f"{each.owner}: all {limit.seconds:g} seconds are used up; raise `seconds`")
        if limit.attempts is not None and each.attempts >= limit.attempts:
            return Refusal(f"{each.owner}: all {limit.attempts} attempts are used up; raise `attempts`")
        if limit.cost is not None and each.cost >= limit.cost:
            return Refusal(f"{each.owner}: {each.cost:g} of a cost of {limit.cost:g} is spent; raise `cost`")
        if limit.width is not None and each.running >= limit.width:
            hold = hold or each
        if limit.tokens is not None and tokens:
            left = limit.tokens - each.tokens - each.reserved
            if left < tokens and each.reserved:
                hold = hold or each
            elif left <= 0:
                return Refusal(f"{each.owner}: all {limit.tokens} tokens are used up; raise `tokens`")
            else:
                granted = min(granted, left)
    return Wait(hold) if hold else Grant(granted, granted < tokens)


def reserve(account: Account | None, tokens: int) -> None:
    """Charge the start of an attempt that was granted `tokens`."""
    if account is not None:
        for each in account.chain():
            each.reserved += tokens
            each.attempts += 1
            each.running += 1


def settle(account: Account | None, reserved: int, tokens: int, cost: float) -> list[Account]:
    """Charge the end of an attempt; return the accounts that hold steps back and may now admit one."""
    holders: list[Account] = []
    if account is not None:
        for each in account.chain():
            each.reserved -= reserved
            each.tokens += tokens
            each.overrun += max(0, tokens - reserved)
            each.running -= 1
            each.cost += cost
            if each.held:
                holders.append(each)
    return holders


def enter(account: Account | None, steps: int) -> str | None:
    """Charge `steps` that enter the plan; return a message, charging nothing, if that is more than a budget allows."""
    if account is None:
        return None
    for each in account.chain():
        if each.budget.steps is not None and each.steps + steps > each.budget.steps:
            return f"{each.owner}: {each.steps} + {steps} steps exceed a limit of {each.budget.steps}; raise `steps`"
    for each in account.chain():
        each.steps += steps
    return None


def covers(account: Account, inner: Account | None) -> bool:
    """Return whether `inner` is `account` or an account inside it."""
    return inner is not None and any(each is account for each in inner.chain())


def seconds_left(account: Account | None, now: float) -> float | None:
    """Return the time until the nearest deadline, or `None` if there is none."""
    if account is None:
        return None
    deadlines = [each.deadline for each in account.chain() if each.deadline is not None]
    return max(0.0, min(deadlines) - now) if deadlines else None
