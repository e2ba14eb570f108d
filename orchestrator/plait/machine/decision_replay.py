"""Replay recorded decisions, and take a run over from another machine.

A machine considers all its runs when it chooses which step goes to which worker. A journal that holds only some of
them cannot repeat that choice, so it records it as *orders*: the attempts that were sent out and the steps that were
refused one. A machine that follows them makes the same attempts under the same ids, whatever slots it has.
"""

from __future__ import annotations

from typing import NamedTuple

from ..core.result import Failure
from ..core.states import State
from .backlog import Backlog
from .records import Node, Records, Run
from .wait_queues import Timers


class SendOrder(NamedTuple):
    """An attempt that was sent out."""

    step: str
    worker: str
    attempt: int
    priority: int
    reason: str


class RefuseOrder(NamedTuple):
    """A step that failed at its start: its budget was used up, no worker served it, or a policy raised."""

    step: str
    failure: Failure
    run: str = ""
    """Set if the whole run was broken by a policy."""


Order = SendOrder | RefuseOrder


def take_over(into: Records, timers: Timers, other: Records, its_timers: Timers, run: Run, at: float) -> list[Node]:
    """Move a run's records between machines, shift its times by the difference of their clocks, and return its ready
    steps. The run must have no attempt left. Blocked steps become ready, because this machine checks them again.
    """
    assert not run.live and run.id not in into.runs
    shift = at - other.now
    run.held, run.set_aside, run.forced = Backlog[Node](), Backlog[Node](), None
    run.policies.program = None
    run.submitted += shift
    if run.wake is not None:
        run.wake += shift
    inner = dict.fromkeys(node.account for node in run.nodes if node.account is not None)
    accounts = dict.fromkeys(payer for account in inner for payer in (account, *account.around))
    for account in accounts:
        account.held = Backlog[Node]()
        if account.deadline is not None:
            account.deadline += shift
    for node in run.nodes:
        node.shift(shift)
        node.place.blocked = None
    ready = sorted((node for node in run.nodes if node.state is State.READY), key=lambda node: node.place.ticket)
    # Tickets of the other machine mean nothing here: the steps arrive again, in their old order.
    for node in ready:
        node.place.ticket = node.place.turn = 0
    for timer in its_timers.find_timers(run):
        timers.add(timer.at + shift, timer.kind, timer.subject)
    into.runs[run.id] = run
    into.nodes.update((node.id, node) for node in run.nodes)
    # New attempts are numbered above those of both machines: a late event must not name a new attempt.
    into.last_attempt = max(into.last_attempt, other.last_attempt)
    return ready
