"""Read-only views of a machine's records for policies and merges. A view shows the present state and is not a copy.

Members are documented once, at the protocol of the same name in `core.view`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar, cast

from ..core.interfaces import Merge, Tally
from ..core.lengths import QUANTILE, expected_tokens
from ..core.ops import Kind
from ..core.states import WAITING, describe_move
from ..core.task import Task
from ..core.view import AttemptEnd, Branch, ProgramView, StepView as AnyStep, WorkerView
from .action_builder import context_step, prior, written
from .prefix_groups import beginning, cached, prompt_tokens, shared_tokens
from .ready_queue import ReadyQueue
from .records import Node, PrefixGroup, Records
from .run_statistics import lane_of

T = TypeVar("T")


def _read(read: Callable[[NodeView], T]) -> T:
    """Return a read-only property of `NodeView`, declared with the type of what it reads."""
    return cast("T", property(read))


class NodeView:
    """`core.view.StepView` over the record of a step."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeView) and other._node is self._node

    def __hash__(self) -> int:
        return hash(self._node.id)

    id = _read(lambda view: view._node.id)
    run = _read(lambda view: view._node.run.id)
    plan = _read(lambda view: view._node.step)
    kind: Kind = _read(lambda view: view._node.step.op.kind)
    state = _read(lambda view: view._node.state)
    upward_rank = _read(lambda view: view._node.path_tokens.upward_rank)
    result = _read(lambda view: view._node.outcome.result)
    failure = _read(lambda view: view._node.outcome.failure)

    @property
    def tokens(self) -> int:
        node = self._node
        if node.attempts.live is not None:
            return node.attempts.live.generated
        return node.outcome.own.length if node.outcome.own else 0

    @property
    def text(self) -> str:
        node = self._node
        if node.attempts.live is not None:
            return "".join(node.attempts.live.text)
        return node.outcome.own.text if node.outcome.own else ""

    @property
    def line(self) -> str:
        node = self._node
        if node.attempts.live is not None:
            return prior(node) + "".join(node.attempts.live.text)
        return node.outcome.own.line if node.outcome.own else ""

    worker = _read(lambda view: view._node.attempts.live.worker.name if view._node.attempts.live else None)
    started = _read(lambda view: view._node.attempts.live.started if view._node.attempts.live else None)
    hedged = _read(lambda view: view._node.attempts.hedged)

    @property
    def held(self) -> str:
        blocked = self._node.place.blocked
        return blocked.reason if blocked is not None and blocked.by == "policy" else ""

    group = _read(lambda view: view._node.attempts.live.group if view._node.attempts.live else None)

    @property
    def lowest(self) -> float | None:
        node = self._node
        if node.attempts.live is not None:
            return node.attempts.live.lowest
        return (
            node.outcome.own.signals.lowest
            if node.outcome.own is not None and node.outcome.own.signals is not None
            else None
        )

    prompt_tokens = _read(lambda view: prompt_tokens(view._node))
    shared_tokens = _read(lambda view: shared_tokens(view._node))
    beginning = _read(lambda view: beginning(view._node))

    @property
    def max_tokens(self) -> int:
        op = self._node.step.op
        return op.sampling.max_tokens if op.kind == "think" else 0

    @property
    def home(self) -> str | None:
        node = self._node
        if node.after is None:
            return None
        return context_step(node.after, node.after_own).attempts.ran_on

    ran_on = _read(lambda view: view._node.attempts.ran_on)
    siblings = _read(lambda view: GroupView(view._node.place.prefix_group))

    @property
    def owner(self) -> NodeView | None:
        owner = self._node.scope.owner
        return NodeView(owner) if owner else None

    after = _read(lambda view: NodeView(view._node.after) if view._node.after else None)
    needs = _read(lambda view: tuple(NodeView(dep) for dep in view._node.deps))
    going = _read(lambda view: view._node.needs_under_way)
    consumers = _read(lambda view: tuple(NodeView(node) for node in view._node.dependants if not node.ended))
    story = _read(lambda view: tuple(map(describe_move, view._node.story)))

    def decided(self) -> bool:
        node = self._node
        if node.merge is None or node.state is not WAITING:
            return False
        return decided(node, node.pending)

    tally = _read(lambda view: tally_of(view._node))
    outstanding = _read(lambda view: view._node.pending)
    votes = _read(lambda view: view._node.merge is not None and view._node.merge.votes)

    def reads(self) -> Task:
        node = self._node
        return node.run.task if node.merge is None else node.merge.reads(node.run.task)

    def branches(self) -> list[Branch]:
        return branches_of(self._node)


def branches_of(join: Node) -> list[Branch]:
    """Return a join's branches as its merge sees them now, in order.

    A merge that may close early is consulted at the end of every branch, so the list is cached, and only branches that
    have moved or generated since are rebuilt.
    """
    seen = join.join.seen
    if seen is None:
        seen = join.join.seen = [branch_of(dep) for dep in join.deps]
        return list(seen)
    for i, dep in enumerate(join.deps):
        known, attempt = seen[i], dep.attempts.live
        if known.state is not dep.state or (
            attempt is not None and (known.pieces is not attempt.text or known.tokens != attempt.generated)
        ):
            seen[i] = branch_of(dep)
    return list(seen)


def decided(join: Node, outstanding: int) -> bool:
    """Return whether a join's merge is certain of its result. Errors of the merge propagate."""
    assert join.merge is not None
    tally = tally_of(join)
    if tally is not None:
        return tally.decided(outstanding)
    return join.merge.decided(branches_of(join), outstanding, join.run.task)


def tally_of(join: Node) -> Tally | None:
    """Return the tally of a join's branches that have ended, if its merge keeps one."""
    if join.join.tally is None and join.merge is not None and _keeps_tally(join.merge):
        join.join.tally = join.merge.tally(join.run.task)
        if join.join.tally is not None:
            join.join.untallied = [dep for dep in join.deps if dep.ended]
    # Only the branches that ended since the last read are added, so that n branches cost n additions and not n².
    if join.join.tally is not None and join.join.untallied:
        ended, join.join.untallied = join.join.untallied, []
        for dep in ended:
            join.join.tally.ended(branch_of(dep))
    return join.join.tally


def _keeps_tally(merge: Merge) -> bool:
    """Return whether a merge's tally, if it has one, agrees with its `decided`."""
    # A subclass may override `decided` alone: then the inherited tally would answer differently.
    for base in type(merge).__mro__:
        if "tally" in vars(base) or "decided" in vars(base):
            return "tally" in vars(base)
    return False


def branch_of(node: Node) -> Branch:
    """Return a step as a merge sees it."""
    attempt, own, name = node.attempts.live, node.outcome.own, node.step.name
    if attempt is None:
        tokens = own.length if own is not None else 0
        line = written(node) if node.inner is not None and node.ended else ()
        return Branch(
            name,
            node.id,
            node.state,
            node.outcome.result,
            node.outcome.failure,
            tokens,
            (),
            node.outcome.merged_into,
            written=line,
        )
    before = prior(node) if node.after is not None else ""
    tokens, pieces = attempt.generated, attempt.text
    return Branch(
        name,
        node.id,
        node.state,
        node.outcome.result,
        node.outcome.failure,
        tokens,
        pieces,
        node.outcome.merged_into,
        before,
    )


class GroupView:
    """`core.view.Siblings` over the record of a prefix group."""

    __slots__ = ("_group",)

    def __init__(self, group: PrefixGroup | None) -> None:
        self._group = group

    def __len__(self) -> int:
        return len(self._group.nodes) if self._group is not None else 0

    def __iter__(self) -> Iterator[NodeView]:
        yield from map(NodeView, self._group.nodes if self._group is not None else ())

    @property
    def sent(self) -> Mapping[str, int]:
        return MappingProxyType(self._group.sent) if self._group is not None else {}

    @property
    def live(self) -> Mapping[str, int]:
        return MappingProxyType(self._group.live) if self._group is not None else {}


class MachineView:
    """`core.view.View` over all records of a machine."""

    __slots__ = ("_queue", "_records", "run", "subject")

    def __init__(self, records: Records, queue: ReadyQueue, subject: NodeView | None = None, run: str = "") -> None:
        self._records = records
        self._queue = queue
        self.subject: NodeView | None = subject
        self.run: str = run or (subject.run if subject is not None else "")

    @property
    def now(self) -> float:
        return self._records.now

    @property
    def workers(self) -> tuple[WorkerView, ...]:
        return tuple(self._records.workers.values())

    def idlest(self, step: AnyStep) -> WorkerView | None:
        return self._queue.least_loaded(lane_of(step.plan.op))

    def cached(self, step: AnyStep) -> Mapping[str, int]:
        node = self._records.nodes.get(step.id)
        return {} if node is None else cached(node, self._records.prefixes)

    def submitted(self, run: str) -> float:
        return self._records.runs[run].submitted

    def deadline(self, run: str) -> float | None:
        record = self._records.runs[run]
        seconds = record.request.budget.seconds
        return None if seconds is None else record.submitted + seconds

    def peers(self, step: AnyStep) -> Sequence[AttemptEnd]:
        node = self._records.nodes.get(step.id)
        return () if node is None else self._records.ended.find_similar(node.template_keys)

    def expected_tokens(self, step: AnyStep, share: float = QUANTILE) -> float:
        node = self._records.nodes.get(step.id)
        # Siblings of the run predict best, so their lengths come first (`EndedSteps.samples`).
        lengths = [] if node is None else self._records.ended.samples(node.template_keys, node.run.lengths)
        return expected_tokens(step.max_tokens, lengths, known=step.tokens, share=share)

    def programs(self, worker: str) -> Sequence[ProgramView]:
        return self._queue.programs.views(worker)

    def program(self, step: AnyStep, worker: str) -> ProgramView:
        return self._queue.programs.view(self._records.nodes[step.id], self._records.workers[worker])

    @property
    def attempts(self) -> int:
        return self._records.last_attempt

    def worker(self, name: str) -> WorkerView | None:
        return self._records.workers.get(name)

    def step(self, id: str) -> NodeView | None:
        node = self._records.nodes.get(id)
        return NodeView(node) if node else None

    def steps(self, run: str) -> Iterator[NodeView]:
        record = self._records.runs.get(run)
        yield from map(NodeView, record.nodes if record else ())

    def running(self, run: str) -> Sequence[NodeView]:
        record = self._records.runs.get(run)
        return tuple(map(NodeView, record.going if record else ()))

    def task(self, run: str) -> Task:
        return self._records.runs[run].task
