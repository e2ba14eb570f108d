"""Check what must be true of a machine between any two events. Slow, since it walks everything."""

from __future__ import annotations

from collections import Counter

from plait.core.errors import InvariantError
from plait.core.states import UNDER_WAY, State
from plait.machine.backlog import Backlog
from plait.machine.budgets import Grant, admit
from plait.machine.machine import Machine
from plait.machine.records import Account, Node, Run
from plait.machine.views import branch_of, branches_of


def check_invariants(machine: Machine, *, follows: bool = False) -> None:
    """Raise `InvariantError` unless slots, accounts, consumers and the queue are as they must be.

    A machine that `follows` orders has the queue and the slots of the one that it follows.
    """
    if not follows:
        _check_slots(machine)
        _check_queue(machine)
    for run in machine.runs.values():
        live = sum(attempt.node.run is run for attempt in machine.attempts.values())
        _demand(live == run.live, run.id, f"counts {run.live} attempts, {live} exist")
        for node in run.nodes:
            _check_consumers(node)
            _check_needs(node)
            _check_accounts(node)
            _check_branches(node)
    waiting = sum(not run.live and not run.paused for run in machine.runs.values())
    _demand(machine.waiting_runs == waiting, "the machine", f"counts {machine.waiting_runs} waiting runs of {waiting}")
    thinks = [node for node in machine.nodes.values() if node.step.op.kind == "think" and not node.run.paused]
    steps = sum(node.state is State.READY for node in thinks)
    steps += sum(attempt.node.step.op.kind == "think" for attempt in machine.attempts.values())
    _demand(machine.model_steps == steps, "the machine", f"counts {machine.model_steps} model steps of {steps}")
    for node in machine.nodes.values():
        _demand(node.run.id in machine.runs, node.id, "outlives its run")
    for attempt in machine.attempts.values():
        _demand(attempt.node.run.id in machine.runs, attempt.node.id, "has an attempt that outlives its run")


def _check_slots(machine: Machine) -> None:
    held = Counter(attempt.worker.name for attempt in machine.attempts.values())
    for host in machine.workers.values():
        _demand(host.running == held[host.name], host.name, f"counts {host.running} slots taken, {held[host.name]} are")
        most = max(host.slots, host.carried)
        left = sum(attempt.left for attempt in machine.attempts.values() if attempt.worker is host)
        _demand(host.load == left, host.name, f"counts a load of {host.load} tokens, {left} are left")
        here = [attempt for attempt in machine.attempts.values() if attempt.worker is host]
        shared = {
            attempt.node.place.prefix_group: attempt.node.place.prefix_group.shared.get(host.name, 0)
            for attempt in here
            if attempt.node.place.prefix_group
        }
        room = sum(attempt.context for attempt in here) + sum(shared.values())
        _demand(host.context == room, host.name, f"counts {host.context} tokens of context, there are {room}")
        _demand(not host.up or host.running <= most, host.name, f"runs {host.running} on {host.slots} slots")


def _check_queue(machine: Machine) -> None:
    """Check that every ready step is in exactly one place: the ready queue or one backlog."""
    places: Counter[str] = Counter()
    for lane, nodes in machine.queue.waiting():
        ready = [node.id for node in nodes if node.state is State.READY]
        places.update(ready)
        idle = any(worker.free > 0 and worker.in_lane(lane) for worker in machine.workers.values())
        _demand(not (ready and idle), min(ready, default=lane), "is ready beside an idle slot")
    for run in machine.runs.values():
        _check_held_by_policies(run)
        _demand(run.paused or not run.set_aside.heaps, run.id, "is not paused and has steps set aside")
        places.update(name for name, node in run.prompt_sizes.counting.items() if node.state is State.READY)
        places.update(node.id for backlog in (run.held, run.set_aside) for node in backlog.nodes())
    for worker in machine.workers.values():
        kept = worker.held.nodes()
        places.update(node.id for node in kept)
        _demand(not kept or (worker.up and worker.running > 0), worker.name, "keeps steps waiting and runs nothing")
    places.update(_check_waiting_programs(machine))
    places.update(_check_held_by_budgets(machine, places))
    for node in machine.nodes.values():
        where = places[node.id]
        _demand(where == (node.state is State.READY), node.id, f"is {node.state} and is in {where} queues")


def _check_waiting_programs(machine: Machine) -> list[str]:
    """Check that the steps of programs that wait for room will be checked again; return their ids."""
    waiting = machine.queue.programs.waiting.nodes()
    for node in waiting:
        again = machine.queue.is_active(node.place.lane) or bool(machine.timers.heap)
        _demand(again, node.id, "waits for room and nothing runs")
    return [node.id for node in waiting]


def _check_held_by_policies(run: Run) -> None:
    """Check that the steps that policies hold back will be checked again."""
    here = run.held.nodes()
    forced = run.forced is not None and run.forced.state is State.READY
    going = run.live or run.paused or forced or any(node.state is State.EXPANDING for node in run.nodes)
    _demand(bool(not here or going), run.id, "is held back and nothing of it runs")
    for node in here:
        blocked = node.place.blocked
        _demand(blocked is not None and blocked.backlog is run.held, node.id, "is held back and not marked so")
        _demand(blocked is not None and bool(blocked.reason), node.id, "is held back and does not say why")


def _check_held_by_budgets(machine: Machine, places: Counter[str]) -> list[str]:
    """Check that the steps that budgets hold back have to wait and will be checked again; return their ids. `places`
    counts the steps in queues."""
    held: list[str] = []
    accounts: dict[Account, None] = {}
    asked: list[tuple[Backlog[Node], str]] = []
    for node in machine.nodes.values():
        accounts.update(dict.fromkeys((node.account, *node.account.around) if node.account is not None else ()))
        if node.state is State.READY and node.place.blocked is not None and places[node.id]:
            asked.append((node.place.blocked.backlog, node.place.blocked.key))
    for account in accounts:
        for lane, heap in account.held.heaps.items():
            nodes = [entry[3] for entry in sorted(heap) if entry[3].state is State.READY]
            held += [node.id for node in nodes]
            if nodes and not any(backlog is account.held and key == lane for backlog, key in asked):
                node = nodes[0]
                asks = [machine.build_ask(node, worker) for worker in machine.workers.values() if worker.in_lane(lane)]
                # Counted attempts are left out: an end under another account may have lowered their likely need.
                answers = [admit(node.account, ask, machine.now) for ask in asks if not ask.counted]
                free = bool(answers) and all(isinstance(answer, Grant) for answer in answers)
                _demand(not free, node.id, f"is held back by {account.owner} for no reason")
                _demand(account.running > 0, node.id, f"waits for {account.owner}, under which nothing runs")
    return held


def _check_consumers(node: Node) -> None:
    if node.ended:
        return
    scope = node.scope
    kept = int(scope.open or scope.output is node)
    consumers = kept + sum(not dependant.ended and not dependant.join.released for dependant in node.dependants)
    _demand(consumers == node.consumers, node.id, f"counts {node.consumers} consumers, has {consumers}")
    _demand(consumers > 0, node.id, "is live and has no consumer")
    owner = scope.owner
    _demand(owner is None or not owner.ended, node.id, "is live in the expansion of a step that has ended")


def _check_branches(node: Node) -> None:
    """The cached list of branches of a join equals a freshly built one."""
    if node.join.seen is not None:
        kept = list(node.join.seen)
        shown, node.join.seen = branches_of(node), kept
        _demand(shown == [branch_of(dep) for dep in node.deps], node.id, "remembers branches that have changed")


def _check_needs(node: Node) -> None:
    if node.state is State.WAITING and not node.join.released:
        out = sum(not dep.ended for dep in node.deps)
        own = int(node.after_own and node.after is not None and node.after.outcome.own is None)
        _demand(node.pending == out + own, node.id, f"waits for {node.pending} needs, {out + own} are out")
    if node.state is State.WAITING and node.merge is not None:
        done = sum(dep.state is State.DONE for dep in node.deps)
        failed = sum(dep.state is State.FAILED for dep in node.deps)
        counted = (node.join.done, node.join.failed)
        _demand(counted == (done, failed), node.id, f"counts {counted} branches done and failed, not {(done, failed)}")
    if node.run.policies.watch and not node.ended:
        going = sum(dep.state in UNDER_WAY for dep in node.deps)
        _demand(node.needs_under_way == going, node.id, f"counts {node.needs_under_way} active needs, {going} are")
        _demand((node in node.run.going) == (node.state is State.RUNNING), node.id, "is running or not, and listed so")
    if node.state is State.RUNNING:
        _demand(
            node.attempts.live is not None and node.attempts.live.state == "live",
            node.id,
            "runs without a live attempt",
        )
    else:
        _demand(node.attempts.live is None, node.id, f"is {node.state} and has a live attempt")
    if node.attempts.hedge is not None:
        _demand(
            node.attempts.live is not None and node.attempts.hedged, node.id, "has a second attempt without a first"
        )
        _demand(node.attempts.hedge.state == "live", node.id, "has a second attempt that is not live")
        _demand(not node.step.side_effects, node.id, "has side effects and two attempts")


def _check_accounts(node: Node) -> None:
    if node.account is None:
        return
    for account in (node.account, *node.account.around):
        least = min(account.held_back.tokens, account.held_back.thoughts, account.running)
        _demand(least >= 0, account.owner, "gave back more than it took")
        _demand(account.deadline is None or node in account.timed, node.id, "is under a deadline that forgets it")
        if account.changed:  # the new limit may lie below past use
            continue
        limit = account.budget
        if limit.tokens is not None:
            spent = account.tokens + account.held_back.tokens - account.overrun
            kept = limit.strict or not account.counted
            _demand(not kept or spent <= limit.tokens, account.owner, f"spent {spent} of {limit.tokens} tokens")
        if limit.attempts is not None:
            _demand(account.attempts <= limit.attempts, account.owner, f"made {account.attempts} attempts")
        if limit.width is not None:
            _demand(account.running <= limit.width, account.owner, f"runs {account.running} wide")


def _demand(holds: bool, who: str, what: str) -> None:
    if not holds:
        raise InvariantError(f"{who} {what}")
