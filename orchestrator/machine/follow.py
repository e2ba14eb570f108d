"""Follows decisions that were made before, and takes a run over from another machine.

A machine chooses by all its runs which step goes to which worker. A journal that holds some of them only cannot repeat
that choice, so it records it: `orders` are the attempts that were sent out and the steps that were refused one, and a
machine that follows them makes the same attempts under the same ids, whatever slots it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..core.events import Action, Dispatch
from ..core.result import Failure
from ..core.states import State
from . import budgets
from .records import Node, Run

if TYPE_CHECKING:
    from .machine import Machine


class Sent(NamedTuple):
    """An attempt that was sent out."""

    step: str
    worker: str
    attempt: int
    priority: int
    reason: str


class Refused(NamedTuple):
    """A step that failed when it was its turn: its budget was used up, no worker served it, or a policy raised."""

    step: str
    failure: Failure
    run: str = ""
    """Set if the whole run was broken by a policy."""


Order = Sent | Refused


def orders_of(actions: Sequence[Action], refused: Sequence[tuple[int, Refused]] = ()) -> list[Order]:
    """Return the orders in what a machine said to an event (`Machine.refused` holds the refusals), in their order."""
    orders: list[Order] = []
    waiting = list(refused)
    for index, action in enumerate(actions):
        while waiting and waiting[0][0] <= index:
            orders.append(waiting.pop(0)[1])
        if isinstance(action, Dispatch):
            job = action.job
            orders.append(Sent(job.step, action.worker, job.attempt, job.priority, action.reason))
    return orders + [each for _, each in waiting]


def startable(node: Node, order: Order) -> bool:
    """Whether an order can be followed now, rather than after what has ended has spread."""
    if isinstance(order, Refused):
        return not node.ended
    return node.state is State.READY


def grant_of(node: Node, now: float) -> budgets.Grant | None:
    """Return what a step's budgets allow its next attempt, `None` for nothing."""
    kept = node.checkpoint if node.attempt is None else node.attempt.checkpoint()
    tokens = 0
    if node.step.op.kind == "think":
        tokens = node.step.op.sampling.max_tokens - (len(kept.ids) if kept is not None else 0)
    grant = budgets.admit(node.account, tokens, now)
    return grant if isinstance(grant, budgets.Grant) else None


def take_over(machine: Machine, other: Machine, run: Run, at: float) -> list[Node]:
    """Move a run's records between machines, its times by as much as their clocks differ; return its ready steps.

    No attempt of it may be left. What held its steps back in the other machine is forgotten: this one asks again.
    """
    assert not run.live and run.id not in machine.runs
    shift = at - other.now
    run.parked.clear()
    run.aside.clear()
    run.forced = None
    if run.wake is not None:
        run.wake += shift
    accounts = {account: None for node in run.nodes if node.account is not None for account in node.account.chain()}
    for account in accounts:
        account.held.clear()
        if account.deadline is not None:
            account.deadline += shift
    for node in run.nodes:
        node.story = tuple((move[0] + shift, *move[1:]) for move in node.story)
        node.held, node.asked, node.woken = "", None, None
    ready = sorted((node for node in run.nodes if node.state is State.READY), key=lambda node: node.ticket)
    for node in ready:
        node.ticket = node.turn = 0
    for timer in other.timers.of(run):
        machine.timers.add(timer.at + shift, timer.kind, timer.subject)
    machine.runs[run.id] = run
    machine.nodes.update((node.id, node) for node in run.nodes)
    machine.last_attempt = max(machine.last_attempt, other.last_attempt)
    return ready
