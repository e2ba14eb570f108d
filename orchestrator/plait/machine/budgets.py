"""Accounts: admit and charge attempts under nested budgets.

An account exists only where a budget sets a limit. It refers to the account around it, and a charge to one account is
a charge to all accounts around it.

Before an attempt starts it reserves its prompt, which is known, and the tokens that such attempts usually generate
(`lengths.py`). It is granted all that is left, up to its request. Its reports are charged as they come. When a limit
is reached, all attempts under it are cut (`Machine`). Example: of a budget of 300 tokens, eight attempts that may
generate 512 each and usually need 20 start together, and may use the 300 in any proportion.

With `Budget.strict`, on a worker that does not report progress, and while all limits are far off (`is_far_off`),
an attempt reserves all that it may generate.
Example: of a budget of 100 tokens, two attempts that may generate 60 each get 60 and then, when the first has ended
after 20 tokens, 60 again.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.budget import Budget
from ..core.flow import is_root
from ..core.request import Request
from ..core.result import MILLION, NO_USAGE, Price, Usage
from .records import Account, Attempt, Node


class Ask(NamedTuple):
    """The tokens and the price that an attempt requests."""

    tokens: int = 0
    """Maximum number of generated tokens, `thoughts` included; 0 for a tool."""
    likely: int = 0
    """Tokens that it is likely to generate."""
    counted: bool = False
    """Its worker reports tokens while it generates, so that it can be cut."""
    prompt: int = 0
    """Tokens of its prompt, where a budget limits them."""
    margin: int = 0
    """Tokens by which `prompt` may be too low."""
    estimated: bool = False
    """`prompt` is an estimate."""
    price: Price | None = None
    """Price of its model on its worker."""
    thoughts: int | None = None
    """Maximum tokens of thoughts; `None`: the model is not known to write any."""


NOTHING = Ask()
"""The request of a tool call."""


class Grant(NamedTuple):
    """The attempt may start and generate up to `tokens`, and up to `thoughts` before them."""

    tokens: int
    short: str = ""
    """The limit that made `tokens` less than requested, as a message."""
    ask: Ask = NOTHING
    thoughts: int | None = None


CALL = Grant(0)
"""The grant of a tool call without a budget."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: something under `account` has to end first."""

    account: Account


@dataclass(frozen=True, slots=True)
class Refusal:
    """Never: this limit is used up."""

    message: str


class _Limit(NamedTuple):
    """One limit of tokens or cost, with the account's use of it."""

    name: str
    most: float
    used: float
    reserved: float
    """Reserved by live attempts."""
    each_prompt: float
    """Charge for a prompt token."""
    each_token: float
    """Charge for a generated token."""


_OF_CALLS = frozenset({"seconds", "attempts", "width", "cost"})
"""Limits that may keep a call from starting."""


def open_account(
    budget: Budget | None, owner: str, parent: Account | None, now: float, level: int = 0
) -> Account | None:
    """Return an account for `budget`, or the one around it where `budget` sets no limit."""
    limits = {} if budget is None else budget.limits
    if budget is None or not limits:
        return parent
    deadline = None if budget.seconds is None else now + budget.seconds
    account = Account(budget, owner, () if parent is None else (parent, *parent.around), deadline, level)
    prompts = "prompt_tokens" in limits or "total_tokens" in limits or "cost" in limits
    account.prompts = prompts or (parent is not None and parent.prompts)
    account.thinking = "thinking_tokens" in limits or (parent is not None and parent.thinking)
    account.lengths = prompts or "tokens" in limits or (parent is not None and parent.lengths)
    account.calls = not _OF_CALLS.isdisjoint(limits) or (parent is not None and parent.calls)
    return account


def open_run(request: Request, owner: str, now: float) -> Account | None:
    """Return the account of a whole run, if it has any limit."""
    budget = request.bounded
    account = open_account(budget, owner, None, now)
    if account is not None:
        account.by_default = budget is not request.budget
    return account


def _limits(account: Account, price: Price | None) -> Iterator[_Limit]:
    limit = account.budget
    if limit.tokens is not None:
        yield _Limit("tokens", limit.tokens, account.tokens, account.held_back.tokens, 0, 1)
    if limit.prompt_tokens is not None:
        yield _Limit("prompt_tokens", limit.prompt_tokens, account.prompt, account.held_back.margin, 1, 0)
    if limit.total_tokens is not None:
        used, reserved = account.prompt + account.tokens, account.held_back.tokens + account.held_back.margin
        yield _Limit("total_tokens", limit.total_tokens, used, reserved, 1, 1)
    if limit.cost is not None and price is not None:
        rates = price.input / MILLION, price.output / MILLION
        yield _Limit("cost", limit.cost, account.cost, account.held_back.cost, *rates)


def admit(account: Account | None, ask: Ask, now: float, *, decided: bool = False) -> Grant | Wait | Refusal:
    """Decide whether an attempt can start under all accounts around it.

    If less is left than it is likely to need, it waits while others run, since most give some back; if none runs, it
    gets what is left. `decided`: a recorded decision starts it, so only the grant is computed.
    """
    if account is None:
        return Grant(ask.tokens) if ask.tokens else CALL
    granted, short, thoughts = ask.tokens, "", ask.thoughts
    hold: Account | None = None
    for payer in (account, *account.around):
        limit = payer.budget
        if message := _exhausted(payer, now):
            return Refusal(message)
        if limit.width is not None and payer.running >= limit.width:
            hold = hold or payer
        if not ask.tokens:
            continue
        if thoughts and payer.budget.thinking_tokens is not None:
            spare = payer.budget.thinking_tokens - payer.thoughts - payer.held_back.thoughts
            if spare < thoughts and payer.held_back.thoughts and not decided:
                hold = hold or payer
            thoughts = min(thoughts, max(0, spare))
        fit = _fit(payer, ask, granted, short, decided)
        if isinstance(fit, Refusal):
            return fit
        granted, short, waits = fit
        if waits:
            hold = hold or payer
    if hold:
        return Wait(hold)  # only now: a limit further out may be used up for good, and then waiting is useless
    if thoughts is None:
        return Grant(granted, short, ask)
    words = min(granted, ask.tokens - (ask.thoughts or 0))  # a shortage reduces the thoughts first
    return Grant(words, short, ask, min(thoughts, granted - words))


def _exhausted(payer: Account, now: float) -> str:
    """Return a message if a limit of an account is used up whatever an attempt would generate, or an empty text."""
    if not payer.calls:
        return ""
    limit = payer.budget
    if payer.deadline is not None and now >= payer.deadline:
        return f"{payer.owner}: all {limit.seconds:g} seconds are used up; raise `seconds`"
    if limit.attempts is not None and payer.attempts >= limit.attempts:
        return f"{payer.owner}: all {limit.attempts} attempts are used up; raise `attempts`"
    if limit.cost is not None and payer.cost >= limit.cost:
        return f"{payer.owner}: {payer.cost:g} of a cost of {limit.cost:g} is spent; raise `cost`"
    return ""


def _fit(payer: Account, ask: Ask, granted: int, short: str, decided: bool) -> tuple[int, str, bool] | Refusal:
    """Fit an attempt with `granted` tokens so far into the limits of one more account. Return the granted tokens, the
    limit that made them less than requested, and whether to wait: live attempts may give reservations back."""
    # An attempt that cannot be cut in time has to fit as a whole; any other is cut when the limit is reached.
    full = payer.budget.strict or not ask.counted
    waits = False
    for one in _limits(payer, ask.price):
        left = one.most - one.used - (one.reserved if full else 0)
        room = left if full else left - one.reserved
        prompt = one.each_prompt * (ask.prompt + ask.margin)
        wanted = prompt + one.each_token * (ask.tokens if full else ask.likely)
        if room < wanted and _may_give_back(payer, one, full, ask.counted) and not (decided and not full):
            waits = True
        elif left - prompt < one.each_token or left < prompt:
            return Refusal(_used_up(payer, one, ask, left))
        elif one.each_token and (fits := int((left - prompt) / one.each_token)) < granted:
            granted = fits
            short = f"{payer.owner}: `{one.name}` left {fits} tokens to generate; {_advise_raise(payer, one.name)}"
    return granted, short, waits


FAR_OFF_ATTEMPTS = 16
"""Number of such attempts that must fit into the rest of a limit that is far off."""


def is_far_off(account: Account, tokens: int, price: Price | None) -> bool:
    """Return whether an attempt that may generate `tokens` can be charged in full at its start: no limit is near, and
    all reservations together stay within half of the rest. Such an attempt need not report progress, which costs a
    server a line for every token."""
    for payer in (account, *account.around):
        if payer.budget.strict or (payer.budget.cost is not None and price is None):
            return False
        for one in _limits(payer, price):
            needs, left = one.each_token * tokens, one.most - one.used
            if FAR_OFF_ATTEMPTS * needs > left or one.reserved + needs > left / 2:
                return False
    return True


def _may_give_back(account: Account, limit: _Limit, full: bool, counted: bool) -> bool:
    """Return whether an end of a running attempt may free part of a limit."""
    if not limit.each_token:
        return account.held_back.estimates > 0
    return limit.reserved > 0 if full and not (counted or account.counted) else account.running > 0


def _advise_raise(account: Account, limit: str) -> str:
    """Return the advice on how to raise a limit."""
    if account.by_default and limit == "tokens" and not account.changed:
        most = account.budget.tokens
        return (
            f"this run has no limit of its own, so the default of {most} tokens holds (setting "
            f"`default_token_limit`): raise `tokens`"
        )
    return f"raise `{limit}`"


def _used_up(account: Account, limit: _Limit, ask: Ask, left: float) -> str:
    """Return the message of a refusal."""
    raised = _advise_raise(account, limit.name)
    if limit.name == "tokens":
        return f"{account.owner}: all {account.budget.tokens} tokens are used up; {raised}"
    about = "up to " if ask.estimated else ""
    most = ask.prompt + ask.margin
    prompt, left = f"a prompt of {about}{most} tokens", max(0, left)
    if limit.name == "cost":
        needed = limit.each_prompt * most + limit.each_token
        problem = f"{prompt} and one more cost {needed:g}, and {left:g} of {limit.most:g} is left"
    elif limit.name == "total_tokens":
        problem = f"{prompt} and an answer do not fit into the {left:g} that are left of {limit.most:g}"
    else:
        problem = f"{prompt} does not fit into the {left:g} that are left of {limit.most:g}"
    return f"{account.owner}: {problem}; {raised}"


def _reserved_tokens(account: Account, attempt: Attempt) -> int:
    """Return the tokens that an attempt has reserved in an account and not reported yet."""
    # A strict budget reserves the whole grant; any other only the likely length, because the rest can be cut.
    charge = attempt.charge
    if account.budget.strict or not charge.counted:
        left = attempt.reserved - (attempt.tokens if charge.counted else 0)
    else:
        left = charge.likely - attempt.tokens
    return left if left > 0 else 0


def _cost(attempt: Attempt, tokens: int) -> float:
    """Return the cost of generated tokens of an attempt and of its prompt's margin."""
    price = attempt.charge.price
    return 0.0 if price is None else tokens * _rate(price) + attempt.charge.margin * price.input / MILLION


def _rate(price: Price) -> float:
    return price.output / MILLION


def reserve(account: Account, attempt: Attempt) -> None:
    """Charge the start of an attempt: its prompt and its likely tokens."""
    if attempt.node.place.lane == "call":  # a call reserves no tokens
        for payer in (account, *account.around):
            payer.attempts += 1
            payer.running += 1
        return
    price = attempt.charge.price
    # The prompt is charged at once: the worker reads it whatever becomes of the attempt.
    attempt.charge.cost = price.input * attempt.charge.prompt / MILLION if price is not None else 0.0
    for payer in (account, *account.around):
        held = _reserved_tokens(payer, attempt)
        payer.held_back.tokens += held
        payer.held_back.thoughts += attempt.charge.thoughts
        payer.held_back.cost += 0.0 if price is None else _cost(attempt, held)
        payer.prompt += attempt.charge.prompt
        payer.held_back.margin += attempt.charge.margin
        payer.cost += attempt.charge.cost
        payer.held_back.estimates += attempt.charge.estimated
        payer.counted |= attempt.charge.counted
        payer.attempts += 1
        payer.running += 1


def take_in(account: Account, attempt: Attempt) -> None:
    """Charge an attempt that began before the account was opened."""
    account.held_back.tokens += _reserved_tokens(account, attempt)
    account.held_back.thoughts += attempt.charge.thoughts
    account.tokens += attempt.tokens if attempt.charge.counted else 0
    account.prompt += attempt.charge.prompt
    account.held_back.margin += attempt.charge.margin
    account.held_back.cost += _cost(attempt, _reserved_tokens(account, attempt))
    account.held_back.estimates += attempt.charge.estimated
    account.counted |= attempt.charge.counted
    account.running += 1


def charge_report(account: Account, attempt: Attempt, tokens: int, now: float) -> Account | None:
    """Charge tokens that a counted attempt reports; return the account whose limit is reached by them, if any."""
    price, before = attempt.charge.price, attempt.charge.cost
    if price is not None:
        attempt.charge.cost += tokens * _rate(price) + (now - attempt.charge.priced_until) * price.hour / 3600
        attempt.charge.priced_until = now
    reached: Account | None = None
    for payer in (account, *account.around):
        # `_held` reads `attempt.tokens`, and each account reserves by its own rule: add, compare, and restore.
        held = _reserved_tokens(payer, attempt)
        attempt.tokens += tokens
        less = held - _reserved_tokens(payer, attempt)
        attempt.tokens -= tokens
        payer.held_back.tokens -= less
        payer.held_back.cost -= 0.0 if price is None else less * _rate(price)
        payer.tokens += tokens
        payer.cost += attempt.charge.cost - before
        if reached is None and any(one.used >= one.most and one.each_token for one in _limits(payer, price)):
            reached = payer
    attempt.tokens += tokens
    return reached


def reached_limit_message(account: Account) -> str:
    """Return a message naming the limit of tokens or cost that is reached, or an empty text."""
    limit = account.budget
    if limit.tokens is not None and account.tokens >= limit.tokens:
        return f"{account.owner}: all {limit.tokens} tokens are used up; {_advise_raise(account, 'tokens')}"
    if limit.total_tokens is not None and account.prompt + account.tokens >= limit.total_tokens:
        return f"{account.owner}: all {limit.total_tokens} tokens, prompts included, are used up; raise `total_tokens`"
    if limit.cost is not None and account.cost >= limit.cost:
        return f"{account.owner}: {account.cost:g} of a cost of {limit.cost:g} is spent; raise `cost`"
    return ""


def settle(account: Account | None, attempt: Attempt, tokens: int, usage: Usage | None, now: float) -> list[Account]:
    """Charge the end of an attempt that generated `tokens`, uncounted ones included; return the accounts that hold
    steps back and may now admit one. Without `usage` its prompt and its cost are unknown."""
    holders: list[Account] = []
    if account is None:
        return holders
    if usage is NO_USAGE and attempt.node.place.lane == "call":  # nothing was reserved, and nothing used
        for payer in (account, *account.around):
            payer.running -= 1
            if not payer.running:
                payer.held_back.cost = 0.0
            if payer.held.heaps:
                holders.append(payer)
        return holders
    price, counted = attempt.charge.price, attempt.tokens if attempt.charge.counted else 0
    more = tokens - counted  # tokens that were charged while it ran are not charged again
    prompt, cost = _final_prompt_and_cost(attempt, tokens, more, usage, now)
    for payer in (account, *account.around):
        held = _reserved_tokens(payer, attempt)
        payer.held_back.tokens -= held
        payer.held_back.thoughts -= attempt.charge.thoughts
        payer.thoughts += attempt.charge.thoughts if usage is None else usage.thoughts
        payer.tokens += more
        if tokens > attempt.reserved:
            payer.overrun += tokens - attempt.reserved
        payer.prompt += prompt - attempt.charge.prompt
        payer.held_back.margin -= attempt.charge.margin
        payer.cost += cost - attempt.charge.cost
        payer.held_back.estimates -= attempt.charge.estimated
        payer.running -= 1
        back = 0.0 if price is None else _cost(attempt, held)
        # Exactly 0 when nothing runs: the remainder of a sum of floats would count against later attempts.
        payer.held_back.cost = payer.held_back.cost - back if payer.running else 0.0
        if payer.held.heaps:
            holders.append(payer)
    return holders


def _final_prompt_and_cost(
    attempt: Attempt, tokens: int, more: int, usage: Usage | None, now: float
) -> tuple[int, float]:
    """Return the prompt tokens and the cost of an attempt that is over; `more` of its tokens are not charged yet."""
    charge = attempt.charge
    price, reserved = charge.price, charge.prompt + charge.margin
    if usage is None:
        return reserved, charge.cost + _cost(attempt, more)
    prompt = usage.prompt or charge.prompt
    cost = usage.cost
    if price is not None:
        cost = (cost or price.of(usage, now - attempt.started)) + (tokens - usage.completion) * _rate(price)
    if usage.uncounted_prompt and prompt < reserved:  # uncounted: a limit is hard, so the reservation is charged
        cost += (reserved - prompt) * (price.input if price is not None else 0.0) / MILLION
        prompt = reserved
    return prompt, cost


@dataclass(frozen=True, slots=True)
class FlowWaits:
    """Model calls that a flow had waited for when it made steps (`Expanded.waited`)."""

    calls: Mapping[str, Mapping[str, int]]
    """By step and scope, by their names."""
    scopes: Mapping[Account, str]
    """Names of the flow's scopes; any other account is one around the flow."""

    def count_calls(self, node: Node, account: Account) -> int:
        """Return the number of calls that count against an account."""
        calls = self.calls.get(node.step.name)
        return calls.get(self.scopes.get(account, ""), 0) if calls else 0


def enter(account: Account | None, nodes: Sequence[Node], level: int, waited: FlowWaits | None = None) -> str | None:
    """Charge steps that enter the plan, needs before their dependants, in a scope of this level; return a message, and
    charge nothing, if a budget does not allow them.

    A flow's step above the limit of turns enters and is refused at its start, so that the flow receives the failure."""
    if account is None:
        return None
    owner_step = nodes[0].scope.owner if nodes else None
    of_flow = owner_step is not None and is_root(owner_step.step)
    # Collected first and written at the end: a refusal by an outer account must leave the inner ones unchanged.
    entered: list[tuple[Account, dict[Node, int], dict[Node, int]]] = []
    for payer in (account, *account.around):
        limit, owner = payer.budget, payer.owner
        if limit.steps is not None and payer.steps + len(nodes) > limit.steps:
            return f"{owner}: {payer.steps} + {len(nodes)} steps exceed a limit of {limit.steps}; raise `steps`"
        if limit.depth is not None and level - payer.level > limit.depth:
            return (
                f"{owner}: an expansion of depth {level - payer.level} exceeds a limit of {limit.depth}; raise `depth`"
            )
        if limit.turns is not None:
            turns: dict[Node, int] = {}
            before: dict[Node, int] = {}
            for node in nodes:
                if waited is not None and (calls := waited.count_calls(node, payer)):
                    before[node] = calls
                turns[node] = _turns(node, ChainMap(turns, payer.turns), before.get(node, 0))
                if turns[node] > limit.turns and not of_flow:
                    return _too_many_turns(payer, node, turns[node])
            entered.append((payer, turns, before))
    for payer in (account, *account.around):
        payer.steps += len(nodes)
    for payer, turns, before in entered:
        payer.turns.update(turns)
        payer.waited.update(before)
    return None


def _turns(node: Node, known: Mapping[Node, int], waited: int) -> int:
    """Return the maximum number of model calls along any chain that ends with this step, as far as they are known.
    `waited`: the calls that a flow had waited for."""
    most = waited + (known.get(node.scope.owner, 0) if node.scope.owner is not None else 0)
    for dep in node.deps:
        most = max(most, known.get(dep, 0))
        while dep.inner is not None and dep.inner.output is not None:
            dep = dep.inner.output  # its value is that of the steps that it expanded into
            most = max(most, known.get(dep, 0))
    return most + (node.step.op.kind == "think")


def _too_many_turns(account: Account, node: Node, turns: int) -> str:
    problem = f"{node.id} would be turn {turns} of at most {account.budget.turns}"
    return f"{account.owner}: {problem}; raise `turns`"


def check_turns(node: Node) -> str | None:
    """Return a message if a think step exceeds the limit of turns: its needs may have expanded into more turns than
    were known when it entered the plan."""
    account = node.account
    if account is None:
        return None
    for payer in (account, *account.around):
        if payer.budget.turns is not None:
            payer.turns[node] = turns = _turns(node, payer.turns, payer.waited.get(node, 0))
            if turns > payer.budget.turns:
                return _too_many_turns(payer, node, turns)
    return None


def covers(account: Account, inner: Account | None) -> bool:
    """Return whether `inner` is `account` or an account inside it."""
    return inner is not None and any(payer is account for payer in (inner, *inner.around))


def seconds_left(account: Account | None, now: float) -> float | None:
    """Return the seconds until the nearest deadline, or `None` without a deadline."""
    if account is None:
        return None
    nearest: float | None = None
    for payer in (account, *account.around):
        if payer.deadline is not None and (nearest is None or payer.deadline < nearest):
            nearest = payer.deadline
    return None if nearest is None else max(0.0, nearest - now)
