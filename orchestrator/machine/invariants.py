"""What must be true of a machine between any two events. Slow (it walks everything): for tests, simulation and replay.

Decides nothing; raises `InvariantError` with the step and the rule that is broken.
"""

from __future__ import annotations

from collections import Counter

from ..core.errors import InvariantError
from ..core.states import State
from .budgets import Grant, admit
from .machine import Machine
from .records import Account, Node, is_current, lane_of
from .views import branch_of, branches_of


def check(machine: Machine) -> None:
    """Raise `InvariantError` unless slots, accounts, readers and the queue are as they must be."""
    _check_slots(machine)
    _check_queue(machine)
    for run in machine.runs.values():
        live = sum(attempt.node.run is run for attempt in machine.attempts.values())
        _demand(live == run.live, run.id, f"counts {run.live} attempts, {live} exist")
        for node in run.nodes:
            _check_readers(node)
            _check_needs(node)
            _check_accounts(node)
            _check_branches(node)
    for node in machine.nodes.values():
        _demand(node.run.id in machine.runs, node.id, "outlives its run")
    for attempt in machine.attempts.values():
        _demand(attempt.node.run.id in machine.runs, attempt.node.id, "has an attempt that outlives its run")


def check_not_stuck(machine: Machine) -> None:
    """Raise `InvariantError` if a run can only wait for ever: nothing of it runs, nothing is asked of a planner, no
    timer is set, and what is ready waits neither for a slot that is taken nor for a worker that is coming back."""
    hosts = machine.fleet.workers.values()
    room = any(host.returning or (host.up and host.running) for host in hosts)
    for run in machine.runs.values():
        waits = run.live or any(node.state is State.EXPANDING for node in run.nodes)
        queued = room and any(node.state is State.READY for node in run.nodes)
        _demand(bool(waits or queued or run.paused or machine.timers.pending(run)), run.id, "is stuck")


def _check_slots(machine: Machine) -> None:
    held = Counter(attempt.worker.name for attempt in machine.attempts.values())
    for host in machine.fleet.workers.values():
        _demand(host.running == held[host.name], host.name, f"counts {host.running} slots taken, {held[host.name]} are")
        most = max(host.slots, host.carried)
        left = sum(attempt.left for attempt in machine.attempts.values() if attempt.worker is host)
        _demand(host.load == left, host.name, f"counts a load of {host.load} tokens, {left} are left")
        here = [attempt for attempt in machine.attempts.values() if attempt.worker is host]
        shared = {
            attempt.node.prefix_group: attempt.node.prefix_group.room.get(host.name, 0)
            for attempt in here
            if attempt.node.prefix_group
        }
        room = sum(attempt.room for attempt in here) + sum(shared.values())
        _demand(host.context == room, host.name, f"counts {host.context} tokens of context, there are {room}")
        _demand(not host.up or host.running <= most, host.name, f"runs {host.running} on {host.slots} slots")


def _check_queue(machine: Machine) -> None:
    queued: set[str] = set()
    for lane, queue in machine.fleet.waiting():
        current = [entry[3].id for entry in queue if is_current(entry)]
        queued.update(current)
        idle = any(host.free > 0 and lane in host.lanes for host in machine.fleet.workers.values())
        _demand(not (current and idle), min(current, default=lane), "is ready beside an idle slot")
    held = _check_held(machine)
    aside = {entry[3].id for run in machine.runs.values() for entry in run.aside if is_current(entry)}
    for run in machine.runs.values():
        _demand(run.paused or not run.aside, run.id, "is not paused and has steps set aside")
    parked = _check_parked(machine)
    for node in machine.nodes.values():
        where = (node.id in queued) + (node.id in held) + (node.id in aside) + (node.id in parked)
        _demand(where == (node.state is State.READY), node.id, f"is {node.state} and stands in {where} queues")


def _check_parked(machine: Machine) -> set[str]:
    """Check that what policies hold back will be asked about again, and return the ids of those steps."""
    parked: set[str] = set()
    for run in machine.runs.values():
        here = [entry[3].id for heap in run.parked.values() for entry in heap if is_current(entry)]
        parked.update(here)
        forced = run.forced is not None and run.forced.state is State.READY
        going = run.live or run.paused or forced or any(node.state is State.EXPANDING for node in run.nodes)
        _demand(bool(not here or going), run.id, "is held back and nothing of it runs")
        _demand(all(machine.nodes[each].held for each in here), run.id, "holds a step back and does not say why")
    return parked


def _check_held(machine: Machine) -> set[str]:
    """Check that what budgets hold back is rightly held back, and return the ids of those steps."""
    held: set[str] = set()
    woken = [(node.woken, lane_of(node.step)) for node in machine.nodes.values() if node.state is State.READY]
    accounts: dict[Account, None] = {}
    for node in machine.nodes.values():
        accounts.update(dict.fromkeys(node.account.chain() if node.account is not None else ()))
    for account in accounts:
        for lane, heap in account.held.items():
            entries = [entry for entry in heap if is_current(entry)]
            held.update(entry[3].id for entry in entries)
            if entries and (account, lane) not in woken:
                node = min(entries)[3]
                op = node.step.op
                kept = len(node.checkpoint.ids) if node.checkpoint is not None else 0
                answer = admit(node.account, op.sampling.max_tokens - kept if op.kind == "think" else 0, machine.now)
                _demand(not isinstance(answer, Grant), node.id, f"is held back by {account.owner} for no reason")
                _demand(account.running > 0, node.id, f"waits for {account.owner}, under which nothing runs")
    return held


def _check_readers(node: Node) -> None:
    if node.ended:
        return
    scope = node.scope
    kept = int(scope.open or scope.output is node)
    readers = kept + sum(not each.ended and not each.released for each in node.dependants)
    _demand(readers == node.consumers, node.id, f"counts {node.consumers} readers, has {readers}")
    _demand(readers > 0, node.id, "is live and nobody reads it")
    owner = scope.owner
    _demand(owner is None or not owner.ended, node.id, "is live in the expansion of a step that has ended")


def _check_branches(node: Node) -> None:
    """What a merge would be shown now, of which much is kept from before, is what there is."""
    if node.seen is not None:
        kept = list(node.seen)
        shown, node.seen = branches_of(node), kept
        _demand(shown == [branch_of(dep) for dep in node.deps], node.id, "remembers branches that have changed")


def _check_needs(node: Node) -> None:
    if node.state is State.WAITING and not node.released:
        out = sum(not dep.ended for dep in node.deps)
        own = int(node.after_own and node.after is not None and node.after.own is None)
        _demand(node.pending == out + own, node.id, f"waits for {node.pending} needs, {out + own} are out")
    if node.state is State.WAITING and node.merge is not None:
        done = sum(dep.state is State.DONE for dep in node.deps)
        failed = sum(dep.state is State.FAILED for dep in node.deps)
        counted = (node.branches_done, node.branches_failed)
        _demand(counted == (done, failed), node.id, f"counts {counted} branches done and failed, not {(done, failed)}")
    if node.state is State.RUNNING:
        _demand(node.attempt is not None and node.attempt.state == "live", node.id, "runs without a live attempt")
    else:
        _demand(node.attempt is None, node.id, f"is {node.state} and has a live attempt")
    if node.hedge is not None:
        _demand(node.attempt is not None and node.hedged, node.id, "has a second attempt without a first")
        _demand(node.hedge.state == "live", node.id, "has a second attempt that is not live")
        _demand(not node.step.side_effects, node.id, "has side effects and two attempts")


def _check_accounts(node: Node) -> None:
    if node.account is None:
        return
    for account in node.account.chain():
        limit = account.budget
        if limit.tokens is not None:
            spent = account.tokens + account.reserved - account.overrun
            _demand(spent <= limit.tokens, account.owner, f"spent {spent} of {limit.tokens} tokens")
        if limit.attempts is not None:
            _demand(account.attempts <= limit.attempts, account.owner, f"made {account.attempts} attempts")
        if limit.width is not None:
            _demand(account.running <= limit.width, account.owner, f"runs {account.running} wide")
        _demand(account.reserved >= 0 and account.running >= 0, account.owner, "gave back more than it took")
        _demand(account.deadline is None or node in account.timed, node.id, "is under a deadline that forgets it")


def _demand(holds: bool, who: str, what: str) -> None:
    if not holds:
        raise InvariantError(f"{who} {what}")
