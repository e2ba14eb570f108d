"""Choose which ready step goes to which worker next.

Steps queue in lanes: a kind of step, and the model if one is named. The smallest priority goes first: that of the
request and of the step together. Then the share that has been served least goes first (`run_statistics.Share`). Within
a share, rank and arrival decide (`wait_queues.py`).

Among workers with a free slot the one with the fewest attempts gets the step, unless a policy chose another.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.events import WorkerUp
from ..core.ops import Kind
from ..core.request import Request
from ..core.result import Usage
from .records import Attempt, Node, Run, WorkerState
from .run_statistics import ServiceCounter, Share
from .wait_queues import Room, Waiting
from .working_sets import WorkingSets

_IDLE_LANES = 64
"""Number of empty lanes that are kept: a lane for every model that was ever named would be a leak."""


@dataclass(slots=True, eq=False)
class _Pool:
    """Workers that serve the same lanes. The free ones are in a heap by (attempts of all processes, name).

    An entry may be stale. Each free worker has an entry whose count is not above its true one, so it is enough to
    correct the top entry when it is read.
    """

    last: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    """Service counter of the share whose step these workers took last: of think steps, and (`True`) of calls."""
    heap: list[tuple[int, str, WorkerState]] = field(default_factory=list[tuple[int, str, WorkerState]])

    def offer(self, worker: WorkerState) -> None:
        """List a worker, which may have a free slot."""
        busy = worker.busy
        if worker.up and worker.running < worker.slots and not 0 <= worker.listed <= busy:
            worker.listed = busy
            heapq.heappush(self.heap, (busy, worker.name, worker))

    def least(self) -> WorkerState | None:
        """Return the free worker with the fewest attempts (by name among equals), or `None`."""
        heap = self.heap
        while heap:
            busy, _, worker = heap[0]
            if worker.listed == busy:
                if worker.up and worker.running < worker.slots:
                    if worker.busy == busy:
                        return worker
                    worker.listed = worker.busy
                    heapq.heapreplace(heap, (worker.busy, worker.name, worker))
                    continue
                worker.listed = -1
            heapq.heappop(heap)
        return None


@dataclass(slots=True, eq=False)
class _Lane:
    """Steps of one kind, and of one model if they name one: who serves them, and which shares have some waiting."""

    name: str
    call: bool
    pools: list[_Pool] = field(default_factory=list[_Pool])
    """Workers that serve it, in groups that serve the same lanes."""
    expected: bool = False
    """Whether a worker serves it, or will when it is back."""
    heap: list[tuple[int, float, int, Share]] = field(default_factory=list[tuple[int, float, int, Share]])
    """The shares that wait, by (priority, key, number). An entry may be stale. Each waiting share has an entry that is
    not above its true one, so it is enough to correct the top entry when it is read."""
    listed: dict[Share, tuple[int, float]] = field(default_factory=dict[Share, tuple[int, float]])
    """The entries that are not stale."""

    def least_loaded(self) -> WorkerState | None:
        """Return the worker with a free slot that runs the fewest attempts (by name among equals), or `None`."""
        pools = self.pools
        if len(pools) == 1:
            return pools[0].least()
        best: WorkerState | None = None
        for pool in pools:
            worker = pool.least()
            if worker is not None and (best is None or (worker.busy, worker.name) < (best.busy, best.name)):
                best = worker
        return best

    def enter(self, share: Share, priority: int) -> None:
        """List a share, unless it is listed at least as far ahead."""
        # The entry of a share that waits alone is not kept correct (`_top`): it must be, once a second one comes.
        if len(self.heap) == 1:
            first, _, number, alone = self.heap[0]
            self.listed[alone] = known = first, self.tally(alone).key
            self.heap[0] = (*known, number, alone)
        key = self.tally(share).key
        if share not in self.listed or (priority, key) < self.listed[share]:
            self.listed[share] = (priority, key)
            heapq.heappush(self.heap, (priority, key, share.number, share))

    def tally(self, share: Share) -> ServiceCounter:
        """Return a share's service counter for steps of this kind."""
        return share.call if self.call else share.think


class ReadyQueue:
    """The steps that are ready for a slot, and the workers that have slots."""

    def __init__(self, workers: dict[str, WorkerState]) -> None:
        self.workers = workers
        self.shares: dict[str, Share] = {}
        """By name; the share of a single run is named `:` and its id."""
        self.programs = WorkingSets()
        self._arrived = 0
        self._waiting: dict[Share, Waiting] = {}
        self._lanes: dict[str, _Lane] = {}
        self._busy: dict[str, _Lane] = {}
        """The lanes in which shares are listed."""
        self._pools: dict[tuple[tuple[Kind, ...], tuple[str, ...]], _Pool] = {}
        """By what their workers serve."""
        self._pool_of: dict[str, _Pool] = {}
        """By worker."""
        self._tickets = 0  # ticket 0 means that a step was not ready before

    # -- workers -------------------------------------------------------------------------------------------------------

    def worker_up(self, event: WorkerUp) -> None:
        """Enter a worker, bring one back, or change what one offers."""
        name, slots, serves = event.worker, event.slots, event.serves
        worker = self.workers.setdefault(name, WorkerState(name, slots, serves))
        worker.slots, worker.serves, worker.up, worker.returning = slots, serves, True, False
        # Running attempts stay when a worker comes back with fewer slots: they may exceed them until they end.
        worker.carried = worker.running
        worker.models, worker.cache_tokens, worker.block = event.models, event.cache_tokens, event.block
        worker.reports, worker.counts_tokens, worker.prices = event.reports, event.counts_tokens, event.prices
        self._see_who_serves()

    def worker_down(self, name: str, returning: bool) -> None:
        """Remove a worker. The steps of a worker that will return keep waiting."""
        worker = self.workers.setdefault(name, WorkerState(name, 0, ("think", "call")))
        worker.up, worker.returning = False, returning
        self._see_who_serves()

    def _see_who_serves(self) -> None:
        """Recompute which workers serve which lanes."""
        # From scratch, because workers change seldom and the pools are read with every step.
        before, self._pools = self._pools, {}
        for worker in self.workers.values():
            worker.listed = -1
            serves = worker.serves, worker.models
            pool = self._pools.get(serves)
            if pool is None:
                pool = self._pools[serves] = _Pool()
                if serves in before:
                    pool.last = before[serves].last
            pool.offer(worker)
            self._pool_of[worker.name] = pool
        for lane in self._lanes.values():
            self._see_lane(lane)

    def _see_lane(self, lane: _Lane) -> None:
        here = [worker for worker in self.workers.values() if worker.in_lane(lane.name)]
        lane.pools = list(dict.fromkeys(self._pool_of[worker.name] for worker in here))
        lane.expected = any(worker.up or worker.returning for worker in here)

    def _lane(self, name: str) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= _IDLE_LANES + 2 * len(self._busy):
                self._lanes = dict(self._busy)
            lane = self._lanes[name] = _Lane(name, name == "call")
            self._see_lane(lane)
        return lane

    def least_loaded(self, lane: str) -> WorkerState | None:
        """Return the worker with a free slot that runs the fewest attempts (by name among equals), or `None`."""
        return self._lane(lane).least_loaded()

    def find_other(self, lane: str, beside: WorkerState) -> WorkerState | None:
        """Return the worker other than `beside` with a free slot and the fewest attempts, or `None`."""
        free = (
            worker
            for worker in self.workers.values()
            if worker is not beside and worker.free > 0 and worker.in_lane(lane)
        )
        return min(free, key=lambda worker: (worker.busy, worker.name), default=None)

    def is_active(self, lane: str) -> bool:
        """Return whether a worker that serves a lane runs an attempt."""
        return any(worker.running and worker.up for worker in self.workers.values() if worker.in_lane(lane))

    def expects(self, lane: str) -> bool:
        """Whether a worker serves a lane, or will when it is back."""
        return self._lane(lane).expected

    def models(self) -> list[str]:
        """Return the model names of all workers that are up or will return."""
        return sorted(
            {name for worker in self.workers.values() if worker.up or worker.returning for name in worker.models}
        )

    # -- shares --------------------------------------------------------------------------------------------------------

    def enter(self, run: str, request: Request) -> Share:
        """Return the share of a new run."""
        name = request.fairness_group or f":{run}"
        share = self.shares.get(name)
        if share is None:
            self._arrived += 1
            share = self.shares[name] = Share(name, self._arrived)
            self._waiting[share] = Waiting()
        share.runs += 1
        share.weigh(request.fairness_weight)
        return share

    def leave(self, run: Run) -> None:
        """Remove a finished run from its share and its program. A share without a run is deleted."""
        if run.policies.program is not None:
            self.programs.leave(run, run.policies.program)
        share = run.share
        share.runs -= 1
        if not share.runs:
            del self.shares[share.name], self._waiting[share]
            for name, lane in list(self._busy.items()):
                if lane.listed.pop(share, None) is not None and not lane.listed:
                    lane.heap.clear()
                    del self._busy[name]

    def count_tokens(self, attempt: Attempt, tokens: int) -> None:
        """Count tokens that an attempt has reported."""
        attempt.due = attempt.node.run.share.think.count_tokens(tokens, attempt.due)

    def record_others(self, attempts: Mapping[str, int]) -> None:
        """Record the attempts of other processes, by worker."""
        for name, worker in self.workers.items():
            worker.elsewhere = attempts.get(name, 0)
            self._pool_of[name].offer(worker)

    def count_start(self, attempt: Attempt) -> None:
        """Count an attempt that begins."""
        node = attempt.node
        share = node.run.share
        if node.run.policies.admitters:
            self.programs.begin(attempt)
        if node.step.op.kind == "think":
            attempt.due = share.think.begin()
        else:
            share.call.served += 1

    def count_end(self, attempt: Attempt, usage: Usage, read: bool, now: float) -> None:
        """Count the end of an attempt, which gives its slot back; `read`: with a value."""
        node, worker = attempt.node, attempt.worker
        if node.run.policies.admitters:
            self.programs.end(attempt, usage, read, now)
        worker.running -= 1
        if not 0 <= worker.listed <= worker.busy:
            self._pool_of[worker.name].offer(worker)
        if node.step.op.kind != "think":
            return
        share = node.run.share
        share.think.end(usage, attempt.tokens, attempt.due)
        for lane in self._busy.values():
            if len(lane.heap) > 1 and not lane.call and share in lane.listed:
                lane.enter(share, lane.listed[share][0])

    # -- steps ---------------------------------------------------------------------------------------------------------

    def push(self, node: Node) -> None:
        """Queue a step that is ready: for the first time, or again where it stood."""
        if node.place.ticket == 0:
            self._tickets = node.place.ticket = self._tickets + 1
        name, share = node.place.lane, node.run.share
        lane = self._lanes.get(name) or self._lane(name)
        waiting, known = self._waiting[share], lane.listed.get(share)
        if known is None or (len(self.shares) > 1 and waiting.first(name) is None):
            lane.tally(share).lift(self._least(lane))
            known = lane.listed.get(share)  # `_least` drops shares without waiting steps, perhaps this one
        waiting.push(node, name)
        if known is None or node.place.priority < known[0]:
            lane.enter(share, node.place.priority)
            self._busy[name] = lane

    def _least(self, lane: _Lane) -> float:
        """Return the service counter of the first of the shares that wait for the workers of a lane; if none waits,
        that of the last share that did."""
        counters: list[float] = []
        for busy in self._busy.values():
            if busy.call is lane.call and (busy is lane or any(pool in lane.pools for pool in busy.pools)):
                first = self._top(busy)
                if first is not None:
                    counters.append(busy.tally(first).counter)
        return min(counters, default=max([pool.last[lane.call] for pool in lane.pools], default=0.0))

    def _top(self, lane: _Lane) -> Share | None:
        """Return the share that goes first in a lane, and drop shares that no longer wait."""
        heap, listed = lane.heap, lane.listed
        while heap:
            priority, key, number, share = heap[0]
            if listed.get(share) != (priority, key):
                heapq.heappop(heap)
                continue
            first = self._waiting[share].first(lane.name)
            if first is None:
                heapq.heappop(heap)
                del listed[share]
                continue
            # A single share is first whatever its key, so its entry is not corrected. `enter` corrects it when a second
            # share comes.
            if len(heap) == 1 and len(self._busy) == 1:
                return share
            true = first.place.priority, lane.tally(share).key
            if true != (priority, key):
                listed[share] = true
                heapq.heapreplace(heap, (*true, number, share))
                continue
            return share
        return None

    def take(self) -> tuple[Node, WorkerState | None] | None:
        """Take out the first step that a worker has room for, or a step that no worker serves or will serve, with
        `None` as its worker. Return `None` if there is no such step."""
        busy = self._busy
        if len(busy) == 1 and len(self.shares) == 1:
            return self._take_alone()
        room: dict[str, WorkerState | None] = {}
        first: dict[bool, _Lane] = {}
        for name, lane in list(busy.items()):
            if self._top(lane) is None:
                del busy[name]
                continue
            worker = lane.least_loaded()
            if worker is None and lane.expected:
                continue
            # A lane without any worker is taken too, so that its steps fail at once and do not wait for ever.
            room[name] = worker
            before = first.get(lane.call)
            if before is None or lane.heap[0][:3] < before.heap[0][:3]:
                first[lane.call] = lane
        if not first:
            return None
        share = min(first.values(), key=self._arrival).heap[0][3]
        ours = [lane.call for lane in first.values() if lane.heap[0][3] is share]
        return self._take(share, {name: worker for name, worker in room.items() if (name == "call") in ours})

    def _take_alone(self) -> tuple[Node, WorkerState | None] | None:
        """Do the work of `take` for one share in one lane, where nothing needs comparing. The share stays listed even
        if nothing of it waits, until a second share comes."""
        ((name, lane),) = self._busy.items()
        ((share, waiting),) = self._waiting.items()
        queue = waiting.lanes.get(name)
        if not waiting.orders and (queue is None or not (queue.line or queue.heap)):
            return None
        worker = lane.least_loaded()
        if (worker is None and lane.expected) or (node := waiting.pop(name)) is None:
            return None
        if worker is not None:
            self._pool_of[worker.name].last[lane.call] = (share.call if lane.call else share.think).counter
        return node, worker

    def _take(self, share: Share, room: Room) -> tuple[Node, WorkerState | None]:
        """Take out the first step of a share in the given lanes; one of them must have a step."""
        taken = self._waiting[share].take(room)
        assert taken is not None
        node, worker = taken
        if worker is not None:
            call = node.step.op.kind == "call"
            self._pool_of[worker.name].last[call] = (share.call if call else share.think).counter
        return taken

    def _arrival(self, lane: _Lane) -> tuple[int, int]:
        """Return priority and arrival number of the step for which a share goes first in a lane."""
        # Between think steps and calls arrival decides: tokens and numbers of calls cannot be compared.
        first = self._waiting[lane.heap[0][3]].first(lane.name)
        assert first is not None
        return first.place.priority, first.place.ticket

    def waiting(self) -> list[tuple[str, list[Node]]]:
        """Return lanes with the steps in their queues, ended steps included."""
        return [node for waiting in self._waiting.values() for node in waiting.nodes()]
