"""Queues of ready steps of one share (`run_statistics.Share`) that wait for a slot, and the timers of a machine.

The order of ready steps:

In a lane, the smaller priority goes first, then the smaller rank that the run's policies gave the step when it became
ready, then arrival.

Ranks of different policies measure different things (remaining tokens, places in a tree). Steps whose runs rank them by
different policies therefore wait in different queues, one for each *order*; steps without a rank wait in another.
Between orders, steps start in order of arrival. If an order starts a later arrival first, because of its rank, the two
steps swap their tickets (numbers of arrival), so that other orders see no jump in the queue. Example: steps a, b, c
arrive in that order, a and c are ranked by one policy with c first, b by none. They start as c, b, a.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..core.interfaces import Policy
from ..core.states import READY, WAITING
from .backlog import Queued, queued
from .records import Account, Attempt, Node, Run, WorkerState


@dataclass(slots=True, eq=False)
class ArrivalQueue:
    """Ready steps of one lane that no policy ranks. Most come in order of arrival and with priority 0: these wait in a
    plain line, the others in a heap."""

    line: deque[Node] = field(default_factory=deque[Node])
    heap: list[Queued[Node]] = field(default_factory=list[Queued[Node]])

    def push(self, node: Node) -> None:
        """Add a step."""
        line = self.line
        if node.place.priority == 0 and (not line or line[-1].place.ticket < node.place.ticket):
            line.append(node)
        else:
            heapq.heappush(self.heap, queued(node))

    def first(self) -> Node | None:
        """Return the step that is to go first; steps that are over are dropped on the way."""
        line, heap = self.line, self.heap
        while line and line[0].state is not READY:
            line.popleft()
        if not heap:
            return line[0] if line else None
        while heap and heap[0][3].state is not READY:
            heapq.heappop(heap)
        if not line or (heap and heap[0] < queued(line[0])):
            return heap[0][3] if heap else None
        return line[0]

    def pop(self, node: Node) -> None:
        """Take out the first step, which is `node`."""
        if self.line and self.line[0] is node:
            self.line.popleft()
        else:
            heapq.heappop(self.heap)

    def nodes(self) -> list[Node]:
        """Return all steps here, ended ones included."""
        return [*self.line, *(entry[3] for entry in self.heap)]


@dataclass(slots=True, eq=False)
class RankedQueue:
    """Ready steps of one lane and one order. Every operation takes O(log n), amortised."""

    heap: list[Queued[Node]] = field(default_factory=list[Queued[Node]])
    """By priority, rank, ticket."""
    _turns: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """A heap of (priority, turn, ticket); entries whose step has left, or has swapped its turn, are stale."""
    _waiting: dict[int, Node] = field(default_factory=dict[int, Node])
    """The steps in the other heap, by ticket."""

    def push(self, node: Node) -> None:
        """Add a step; one that was taken out before has kept its turn."""
        heapq.heappush(self.heap, queued(node))
        self._waiting[node.place.ticket] = node
        node.place.turn = node.place.turn or node.place.ticket
        self.note_turn(node)

    def note_turn(self, node: Node) -> None:
        """Record the new or swapped turn of a step in this queue."""
        heapq.heappush(self._turns, (node.place.priority, node.place.turn, node.place.ticket))

    def first(self) -> Node | None:
        """Return the step that is to go first; steps that are over are dropped on the way."""
        while self.heap and self.heap[0][3].state is not READY:
            self.pop()
        return self.heap[0][3] if self.heap else None

    def pop(self) -> None:
        """Take out the first step."""
        self._waiting.pop(heapq.heappop(self.heap)[2], None)

    def earliest(self) -> Node:
        """Return the step whose turn comes first. The queue must not be empty."""
        while True:
            _, turn, ticket = self._turns[0]
            node = self._waiting.get(ticket)
            if node is not None and node.place.turn == turn and not node.ended:
                return node
            heapq.heappop(self._turns)


class _Choice(NamedTuple):
    """The step of an order that would start now, a worker for it, and the step of that order whose turn comes first."""

    node: Node
    worker: WorkerState | None
    queue: RankedQueue
    due: Node
    due_in: RankedQueue


Rankers = tuple[type[Policy], ...]
"""The classes of the policies that rank: two functions of one name are two classes."""
Room = Mapping[str, WorkerState | None]
"""Lanes from which a step could start now, each with a free worker; `None`: no worker serves it or will."""


class Waiting:
    """The ready steps of one share."""

    def __init__(self) -> None:
        self.lanes: dict[str, ArrivalQueue] = {}
        """By lane: the steps that no policy ranks. Empty lanes are removed at the next read."""
        self.orders: dict[Rankers, dict[str, RankedQueue]] = {}
        """By order, then by lane: the steps that policies rank. Empty orders are removed at the next read."""

    def push(self, node: Node, lane: str) -> None:
        """Add a step."""
        if node.place.rank:
            order = tuple(type(policy) for policy in node.run.policies.rankers)
            self.orders.setdefault(order, {}).setdefault(lane, RankedQueue()).push(node)
        else:
            queue = self.lanes.get(lane)
            if queue is None:
                queue = self.lanes[lane] = ArrivalQueue()
            queue.push(node)

    def first(self, lane: str) -> Node | None:
        """Return a step of a lane that has the smallest priority, or `None` if nothing waits there."""
        best: Node | None = None
        queue = self.lanes.get(lane)
        if queue is not None:
            # The common case, without the checks of heaps and orders below.
            if queue.line and not queue.heap and not self.orders and queue.line[0].state is READY:
                return queue.line[0]
            best = queue.first()
            if best is None:
                del self.lanes[lane]
        if self.orders:
            for lanes in self.orders.values():
                ranked = lanes.get(lane)
                node = ranked.first() if ranked is not None else None
                if node is not None and (best is None or node.place.priority < best.place.priority):
                    best = node
        return best

    def pop(self, lane: str) -> Node | None:
        """Take out the step that goes first in a lane, or return `None`."""
        if self.orders:
            taken = self.take({lane: None})
            return None if taken is None else taken[0]
        queue = self.lanes.get(lane)
        if queue is None:
            return None
        if queue.line and not queue.heap and queue.line[0].state is READY:
            return queue.line.popleft()  # the common case
        node = queue.first()
        if node is not None:
            queue.pop(node)
        return node

    def take(self, room: Room) -> tuple[Node, WorkerState | None] | None:
        """Take out the step that goes first in the lanes given, or return `None`."""
        chosen: Node | None = None
        where: ArrivalQueue | None = None
        worker: WorkerState | None = None
        for lane, free in room.items():
            queue = self.lanes.get(lane)
            node = queue.first() if queue is not None else None
            if node is not None and (chosen is None or queued(node) < queued(chosen)):
                chosen, where, worker = node, queue, free
        if self.orders:
            due = None if chosen is None else (chosen.place.priority, chosen.place.ticket)
            choice = self._of_orders(due, room)
            if choice is not None:
                choice.queue.pop()
                node, other = choice.node, choice.due
                # The step that was due takes the later turn of the one that starts: other orders see no jump.
                if other is not node:
                    node.place.turn, other.place.turn = other.place.turn, node.place.turn
                    choice.due_in.note_turn(other)
                return node, choice.worker
        if chosen is None or where is None:
            return None
        where.pop(chosen)
        return chosen, worker

    def _of_orders(self, due: tuple[int, int] | None, room: Room) -> _Choice | None:
        """Return the choice of the order whose turn comes first, if it comes before `due` (a priority and a ticket)."""
        best: _Choice | None = None
        for order in list(self.orders):
            choice = self._of_order(order, room)
            if choice is not None:
                turn = (choice.due.place.priority, choice.due.place.turn)
                if due is None or turn < due:
                    due, best = turn, choice
        return best

    def _of_order(self, order: Rankers, room: Room) -> _Choice | None:
        """Return the step that may start first among the steps of one order, over the lanes given."""
        lanes = self.orders[order]
        choice: _Choice | None = None
        for lane, queue in list(lanes.items()):
            node = queue.first()
            if node is None:
                del lanes[lane]
                continue
            if lane not in room:
                continue
            worker, due = room[lane], queue.earliest()
            if choice is None:
                choice = _Choice(node, worker, queue, due, queue)
                continue
            if queued(node) < queued(choice.node):
                choice = choice._replace(node=node, worker=worker, queue=queue)
            if (due.place.priority, due.place.turn) < (choice.due.place.priority, choice.due.place.turn):
                choice = choice._replace(due=due, due_in=queue)
        if not lanes:
            del self.orders[order]
        return choice

    def nodes(self) -> list[tuple[str, list[Node]]]:
        """Return lanes with their steps, ended ones included."""
        ranked = [(lane, queue) for lanes in self.orders.values() for lane, queue in lanes.items()]
        return [(lane, queue.nodes()) for lane, queue in self.lanes.items()] + [
            (lane, [entry[3] for entry in queue.heap]) for lane, queue in ranked
        ]


# -- timers; `machine.py` handles those that are due -----------------------------------------------------------------

TimerKind = Literal["retry", "deadline", "cancel", "lease", "seconds", "review"]
Subject = Node | Attempt | Run | tuple[Account, Run]


class Timer(NamedTuple):
    """One timer: a time, and the record that waits for it."""

    at: float
    order: int
    kind: TimerKind
    subject: Subject

    @property
    def stale(self) -> bool:
        """Whether its record no longer waits for it: a step has moved, an attempt has ended, a run is over."""
        match self.subject:
            case Node() as node:
                return node.state is not WAITING
            case Attempt() as attempt:
                return attempt.state == "ended"
            case Run() as run:
                return run.over
            case (_, run):
                return run.over


@dataclass(slots=True, eq=False)
class Timers:
    """Timers by time, then by the order in which they were set."""

    heap: list[Timer] = field(default_factory=list[Timer])
    """Those that are set, stale ones among them; the first is the next."""
    _order: int = 0
    _armed: float | None = None
    _sweep_at: int = 64

    def add(self, at: float, kind: TimerKind, subject: Subject) -> None:
        """Set a timer. Stale timers are removed now and then, since they keep whole runs in memory."""
        # Sweeping at twice the size that was left keeps the cost of a timer constant on average.
        if len(self.heap) >= self._sweep_at:
            self.heap = [timer for timer in self.heap if not timer.stale]
            heapq.heapify(self.heap)
            self._sweep_at = max(64, 2 * len(self.heap))
        self._order += 1
        heapq.heappush(self.heap, Timer(at, self._order, kind, subject))

    def pop_due(self, now: float) -> Iterator[Timer]:
        """Take out and yield the timers whose time has come."""
        self._armed = None
        while self.heap and self.heap[0].at <= now:
            yield heapq.heappop(self.heap)

    def arm(self) -> float | None:
        """Return the earliest time of a timer, or `None` if it equals the last returned one."""
        if not self.heap:
            return None
        while self.heap and self.heap[0].stale:
            heapq.heappop(self.heap)
        # The same time again would only make the driver cancel its timer and set an equal one.
        if not self.heap or self.heap[0].at == self._armed:
            return None
        self._armed = self.heap[0].at
        return self._armed

    def find_timers(self, run: Run) -> Iterator[Timer]:
        """Yield a run's timers that are not stale, in the order in which they were set."""
        yield from sorted(
            (timer for timer in self.heap if not timer.stale and _run_of(timer) is run), key=lambda timer: timer.order
        )

    def pending(self, run: Run) -> bool:
        """Whether a current timer will change a run by itself. The review of a policy does not: it only looks."""
        return any(not timer.stale and timer.kind != "review" and _run_of(timer) is run for timer in self.heap)


def _run_of(timer: Timer) -> Run:
    match timer.subject:
        case Node() as node:
            return node.run
        case Attempt() as attempt:
            return attempt.node.run
        case Run() as run:
            return run
        case (_, run):
            return run
