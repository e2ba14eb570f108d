"""Which ready step goes to which worker next.

Steps queue in lanes: a kind of step, and the model if one is named. In a lane, smaller `Step.priority` goes first, then
the smaller rank that the run's policies gave the step when it became ready, then arrival.

Ranks of different policies measure different things (tokens to go, places in a tree), so steps whose runs rank them by
different policies stand in different queues, one for each *order*, and steps that no policy ranks in another. Between
orders, steps start in order of arrival. If an order starts a later arrival first, because its rank says so, the two
steps swap their tickets (numbers of arrival), so that other orders see no jump in the queue. Example: steps a, b, c
arrive in that order, a and c are ranked by one policy with c first, b by none. They start as c, b, a.

Among workers with a free slot the one with the fewest attempts gets the step, unless a policy chose another.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.interfaces import Policy
from ..core.plan import Kind
from ..core.states import State
from .records import Node, Queued, WorkerState, lane_of, queued


@dataclass(slots=True, eq=False)
class Unranked:
    """Ready steps of one lane that no policy ranks. Most come in order of arrival and with priority 0: these stand in a
    plain line, the others in a heap."""

    line: deque[Node] = field(default_factory=deque[Node])
    heap: list[Queued] = field(default_factory=list[Queued])

    def push(self, node: Node) -> None:
        """Add a step."""
        line = self.line
        if node.step.priority == 0 and (not line or line[-1].ticket < node.ticket):
            line.append(node)
        else:
            heapq.heappush(self.heap, queued(node))

    def first(self) -> Node | None:
        """Return the step that is to go first; steps that are over are dropped on the way."""
        line, heap = self.line, self.heap
        while line and line[0].state is not State.READY:
            line.popleft()
        if not heap:
            return line[0] if line else None
        while heap and heap[0][3].state is not State.READY:
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
        """Return all steps here, those included that are over."""
        return [*self.line, *(entry[3] for entry in self.heap)]


@dataclass(slots=True, eq=False)
class Ranked:
    """Ready steps of one lane and one order. Every operation takes O(log n), amortised."""

    heap: list[Queued] = field(default_factory=list[Queued])
    """By priority, rank, ticket."""
    _turns: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """A heap of (priority, turn, ticket); entries whose step has gone, or has swapped its turn, are stale."""
    _waiting: dict[int, Node] = field(default_factory=dict[int, Node])
    """The steps in the other heap, by ticket."""

    def push(self, node: Node) -> None:
        """Add a step; one that was taken out before has kept its turn."""
        heapq.heappush(self.heap, queued(node))
        self._waiting[node.ticket] = node
        node.turn = node.turn or node.ticket
        self.note_turn(node)

    def note_turn(self, node: Node) -> None:
        """Take note of the turn of a step that stands here, a new or a swapped one."""
        heapq.heappush(self._turns, (node.step.priority, node.turn, node.ticket))

    def first(self) -> Node | None:
        """Return the step that is to go first; steps that are over are dropped on the way."""
        while self.heap and self.heap[0][3].state is not State.READY:
            self.pop()
        return self.heap[0][3] if self.heap else None

    def pop(self) -> None:
        """Take out the first step."""
        self._waiting.pop(heapq.heappop(self.heap)[2], None)

    def earliest(self) -> Node:
        """Return the step here whose turn comes first. Only while there is a first."""
        while True:
            _, turn, ticket = self._turns[0]
            node = self._waiting.get(ticket)
            if node is not None and node.turn == turn and not node.ended:
                return node
            heapq.heappop(self._turns)


class _Choice(NamedTuple):
    """The step of an order that would start now, a worker for it, and the step of that order whose turn comes first."""

    node: Node
    worker: WorkerState | None
    queue: Ranked
    due: Node
    due_in: Ranked


@dataclass(slots=True, eq=False)
class _Pool:
    """Workers that serve the same lanes. The free ones stand in a heap by (running attempts, name).

    An entry may be stale. Each free worker has one whose count is not above its true one, so it is enough to correct
    the entry on top when somebody asks.
    """

    lanes: dict[str, None]
    heap: list[tuple[int, str, WorkerState]] = field(default_factory=list[tuple[int, str, WorkerState]])

    def offer(self, worker: WorkerState) -> None:
        """List a worker, which may have a free slot."""
        running = worker.running
        if worker.up and running < worker.slots and not 0 <= worker.listed <= running:
            worker.listed = running
            heapq.heappush(self.heap, (running, worker.name, worker))

    def least(self) -> WorkerState | None:
        """Return the free worker with the fewest attempts (by name among equals), or `None`."""
        heap = self.heap
        while heap:
            running, _, worker = heap[0]
            if worker.listed == running:
                if worker.up and worker.running < worker.slots:
                    if worker.running == running:
                        return worker
                    worker.listed = worker.running
                    heapq.heapreplace(heap, (worker.running, worker.name, worker))
                    continue
                worker.listed = -1
            heapq.heappop(heap)
        return None


Rankers = tuple[type[Policy], ...]
"""The classes of the policies that rank: two functions of one name are two classes."""


class ReadyQueue:
    """The steps that are ready for a slot, and the workers that have slots."""

    def __init__(self, workers: dict[str, WorkerState]) -> None:
        self.workers = workers
        self.serving: dict[str, int] = {}
        """How many workers that are up serve each lane."""
        self.orders: dict[Rankers, dict[str, Ranked]] = {}
        """By order, then by lane: the steps that policies rank. An order of which nothing waits is not there."""
        self._lanes: dict[str, Unranked] = {"think": Unranked(), "call": Unranked()}
        """By lane: the steps that no policy ranks."""
        self._expected: dict[str, bool] = {}
        """Whether a worker serves this lane, or will when it is back."""
        self._pools: dict[str, list[_Pool]] = {}
        """By lane."""
        self._pool_of: dict[str, _Pool] = {}
        """By worker."""
        self._tickets = 0
        self._see_who_serves()

    # -- workers -------------------------------------------------------------------------------------------------------

    def worker_up(
        self,
        name: str,
        slots: int,
        serves: tuple[Kind, ...],
        models: tuple[str, ...] = (),
        cache_tokens: int | None = None,
        block: int | None = None,
    ) -> None:
        """Enter a worker, bring one back, or change what one offers."""
        worker = self.workers.setdefault(name, WorkerState(name, slots, serves))
        worker.slots, worker.serves, worker.up, worker.returning = slots, serves, True, False
        worker.carried = worker.running
        worker.models, worker.cache_tokens, worker.block = models, cache_tokens, block
        self._see_who_serves()

    def worker_down(self, name: str, returning: bool) -> None:
        """Take a worker out. One that comes back keeps its steps waiting."""
        worker = self.workers.setdefault(name, WorkerState(name, 0, ("think", "call")))
        worker.up, worker.returning = False, returning
        self._see_who_serves()

    def _see_who_serves(self) -> None:
        """Find anew which workers serve which lanes; workers and lanes change seldom."""
        lanes, workers = self._lanes, self.workers.values()
        pools: dict[tuple[str, ...], _Pool] = {}
        for worker in workers:
            worker.see_lanes(lanes)
            worker.listed = -1
            pool = pools.setdefault(tuple(worker.lanes), _Pool(worker.lanes))
            pool.offer(worker)
            self._pool_of[worker.name] = pool
        for lane in lanes:
            here = [worker for worker in workers if lane in worker.lanes]
            self._pools[lane] = [pool for pool in pools.values() if lane in pool.lanes]
            self._expected[lane] = any(worker.up or worker.returning for worker in here)
            self.serving[lane] = sum(worker.up for worker in here)

    def offer(self, worker: WorkerState) -> None:
        """Take note that a worker has given a slot back."""
        self._pool_of[worker.name].offer(worker)

    def least_loaded(self, lane: str) -> WorkerState | None:
        """Return the worker with a free slot that runs the fewest attempts (by name among equals), or `None`."""
        pools = self._pools.get(lane, ())
        if len(pools) == 1:
            return pools[0].least()
        best: WorkerState | None = None
        for pool in pools:
            worker = pool.least()
            if worker is not None and (best is None or (worker.running, worker.name) < (best.running, best.name)):
                best = worker
        return best

    def another(self, lane: str, beside: WorkerState) -> WorkerState | None:
        """Return the worker other than one with a free slot that runs the fewest attempts, or `None`."""
        free = (each for each in self.workers.values() if each is not beside and each.free > 0 and lane in each.lanes)
        return min(free, key=lambda each: (each.running, each.name), default=None)

    def expects(self, lane: str) -> bool:
        """Whether a worker serves a lane, or will when it is back."""
        return self._expected[lane]

    def models(self) -> list[str]:
        """Return the names that workers there are give their models."""
        return sorted({name for each in self.workers.values() if each.up or each.returning for name in each.models})

    # -- steps ---------------------------------------------------------------------------------------------------------

    def push(self, node: Node) -> None:
        """Queue a step that is ready: for the first time, or again where it stood."""
        if node.ticket == 0:
            self._tickets = node.ticket = self._tickets + 1
        op = node.step.op
        lane = op.kind if op.kind != "think" or op.model is None else lane_of(node.step)
        if lane not in self._lanes:
            self._lanes[lane] = Unranked()
            self._see_who_serves()
        if node.rank:
            order = tuple(type(policy) for policy in node.run.rankers)
            self.orders.setdefault(order, {}).setdefault(lane, Ranked()).push(node)
        else:
            self._lanes[lane].push(node)

    def take(self) -> tuple[Node, WorkerState | None] | None:
        """Take out the first step that a worker has room for; or one, with `None`, that no worker serves or will serve.
        Return `None` if there is neither."""
        chosen: Node | None = None
        room: WorkerState | None = None
        where: Unranked | None = None
        for lane, queue in self._lanes.items():
            if not queue.line and not queue.heap:
                continue
            worker = self.least_loaded(lane)
            if worker is None and self._expected[lane]:
                continue
            node = queue.first()
            if node is not None and (chosen is None or queued(node) < queued(chosen)):
                chosen, room, where = node, worker, queue
        if self.orders:
            due = None if chosen is None else (chosen.step.priority, chosen.ticket)
            choice = self._of_orders(due)
            if choice is not None:
                choice.queue.pop()
                node, other = choice.node, choice.due
                if other is not node:
                    node.turn, other.turn = other.turn, node.turn
                    choice.due_in.note_turn(other)
                return node, choice.worker
        if chosen is None or where is None:
            return None
        where.pop(chosen)
        return chosen, room

    def _of_orders(self, due: tuple[int, int] | None) -> _Choice | None:
        """Return the choice of the order whose turn comes first, if it comes before `due` (a priority and a ticket)."""
        best: _Choice | None = None
        for order in list(self.orders):
            found = self._of_order(order)
            if found is not None:
                turn = (found.due.step.priority, found.due.turn)
                if due is None or turn < due:
                    due, best = turn, found
        return best

    def _of_order(self, order: Rankers) -> _Choice | None:
        """Return the step that may start first among the steps of one order, over all lanes."""
        lanes = self.orders[order]
        found: _Choice | None = None
        for lane, queue in list(lanes.items()):
            node = queue.first()
            if node is None:
                del lanes[lane]
                continue
            worker = self.least_loaded(lane)
            if worker is None and self._expected[lane]:
                continue
            due = queue.earliest()
            if found is None:
                found = _Choice(node, worker, queue, due, queue)
                continue
            if queued(node) < queued(found.node):
                found = found._replace(node=node, worker=worker, queue=queue)
            if (due.step.priority, due.turn) < (found.due.step.priority, found.due.turn):
                found = found._replace(due=due, due_in=queue)
        if not lanes:
            del self.orders[order]
        return found

    def waiting(self) -> list[tuple[str, list[Node]]]:
        """Return lanes with the steps in their queues, those included that are over."""
        ranked = [(lane, queue) for lanes in self.orders.values() for lane, queue in lanes.items()]
        return [(lane, queue.nodes()) for lane, queue in self._lanes.items()] + [
            (lane, [entry[3] for entry in queue.heap]) for lane, queue in ranked
        ]
