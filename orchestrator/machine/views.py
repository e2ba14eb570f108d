"""What policies and merges see of a machine: read-only views of its records, which show the present and not a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from ..core.interfaces import Merge, Tally
from ..core.lengths import QUANTILE, expected_tokens
from ..core.ops import Kind
from ..core.plan import Step
from ..core.result import Failure, Result
from ..core.states import WAITING, State, tell
from ..core.task import Task
from ..core.view import Branch, Ended, StepView as AnyStep, WorkerView
from .assemble import context_step, prior, written
from .ended_steps import like, samples
from .lanes import lane_of
from .prefix_groups import cached, prompt_tokens, shared_tokens
from .ready_queue import ReadyQueue
from .records import Node, PrefixGroup, Records


class StepView:
    """One step, read-only."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepView) and other._node is self._node

    def __hash__(self) -> int:
        return hash(self._node.id)

    @property
    def id(self) -> str:
        """Id of the step, unique among all runs."""
        return self._node.id

    @property
    def run(self) -> str:
        """Id of its run."""
        return self._node.run.id

    @property
    def plan(self) -> Step:
        """What the plan says of it."""
        return self._node.step

    @property
    def kind(self) -> Kind:
        """`think`, `call` or `join`."""
        return self._node.step.op.kind

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._node.state

    @property
    def upward_rank(self) -> float:
        """Longest way from its start to the output: tokens that may be generated, one for a call."""
        return self._node.upward_rank

    @property
    def result(self) -> Result | None:
        """What it ended in."""
        return self._node.result

    @property
    def failure(self) -> Failure | None:
        """Why it has no result."""
        return self._node.failure

    @property
    def tokens(self) -> int:
        """Tokens generated so far, those that a lost attempt handed on included, or in the end."""
        node = self._node
        if node.attempt is not None:
            return node.attempt.generated
        return node.own.usage.completion if node.own else 0

    @property
    def text(self) -> str:
        """Text generated so far, if the step streams, or in the end."""
        node = self._node
        if node.attempt is not None:
            return "".join(node.attempt.text)
        return node.own.text if node.own else ""

    @property
    def line(self) -> str:
        """The same with all that stands before it in its line of reasoning (`Result.line`)."""
        node = self._node
        if node.attempt is not None:
            return prior(node) + "".join(node.attempt.text)
        return node.own.line if node.own else ""

    @property
    def worker(self) -> str | None:
        """Name of the worker that runs it now."""
        return self._node.attempt.worker.name if self._node.attempt else None

    @property
    def started(self) -> float | None:
        """When the attempt that runs now was sent out, in seconds."""
        return self._node.attempt.started if self._node.attempt else None

    @property
    def hedged(self) -> bool:
        """Whether it has had its second attempt, which may be over."""
        return self._node.hedged

    @property
    def held(self) -> str:
        """Why a policy holds it back in our queue; empty if none does."""
        blocked = self._node.blocked
        return blocked.reason if blocked is not None and blocked.by == "policy" else ""

    @property
    def group(self) -> float | None:
        """Mean confidence (nats) of the last full window, of a step that runs and says so (`Sampling.window`)."""
        return self._node.attempt.group if self._node.attempt else None

    @property
    def lowest(self) -> float | None:
        """The lowest such mean so far, or in the end."""
        node = self._node
        if node.attempt is not None:
            return node.attempt.lowest
        return node.own.signals.lowest if node.own is not None and node.own.signals is not None else None

    @property
    def prompt_tokens(self) -> int:
        """About how many tokens its prompt has, the context that it continues included: counted where an engine has
        said so, else a token for every four characters."""
        return prompt_tokens(self._node)

    @property
    def shared_tokens(self) -> int:
        """About how many of these are the same for all its siblings."""
        return shared_tokens(self._node)

    @property
    def max_tokens(self) -> int:
        """Most tokens that it may generate; 0 if it is no think step."""
        op = self._node.step.op
        return op.sampling.max_tokens if op.kind == "think" else 0

    @property
    def home(self) -> str | None:
        """Name of the worker whose cache holds the context that it continues: where the step that it comes `after` ran
        last."""
        node = self._node
        if node.after is None:
            return None
        return context_step(node.after, node.after_own).ran_on

    @property
    def ran_on(self) -> str | None:
        """Name of the worker that it was last sent to; in the end, of the one that gave its value."""
        return self._node.ran_on

    @property
    def siblings(self) -> Siblings:
        """The steps of its run that continue the same context as it or begin with the same prompt (for a call: that
        call the same tool), itself included. Empty in a run without policies."""
        return Siblings(self._node.prefix_group)

    @property
    def owner(self) -> StepView | None:
        """The step that expanded into this one."""
        owner = self._node.scope.owner
        return StepView(owner) if owner else None

    @property
    def after(self) -> StepView | None:
        """The step whose context it continues."""
        return StepView(self._node.after) if self._node.after else None

    @property
    def needs(self) -> tuple[StepView, ...]:
        """The steps it needs; for a join, its branches in order."""
        return tuple(StepView(dep) for dep in self._node.deps)

    def each_need(self) -> Iterator[StepView]:
        """Yield the same one by one, for who may not want them all."""
        yield from map(StepView, self._node.deps)

    @property
    def going(self) -> int:
        """How many of these have begun and not ended."""
        return self._node.branches_going

    @property
    def consumers(self) -> tuple[StepView, ...]:
        """The steps that need it and have not ended."""
        return tuple(StepView(node) for node in self._node.dependants if not node.ended)

    @property
    def story(self) -> tuple[str, ...]:
        """Its moves so far, oldest first."""
        return tuple(map(tell, self._node.story))

    def decided(self) -> bool:
        """Return whether a join's merge is already certain of its verdict, branches that have not ended being
        unknown."""
        node = self._node
        if node.merge is None or node.state is not WAITING:
            return False
        return decided(node, node.pending)

    @property
    def tally(self) -> Tally | None:
        """What a join's merge has counted of the branches that have ended, if it counts them one by one."""
        return tally_of(self._node)

    @property
    def outstanding(self) -> int:
        """How many of its needs have not ended."""
        return self._node.pending

    @property
    def votes(self) -> bool:
        """Whether it is a join that weighs its branches' answers against one another (`Merge.votes`)."""
        return self._node.merge is not None and self._node.merge.votes

    def reads(self) -> Task:
        """Return the task by which the answers of a join's branches are read (`Merge.reads`)."""
        node = self._node
        return node.run.task if node.merge is None else node.merge.reads(node.run.task)

    def branches(self) -> list[Branch]:
        """Return the branches of a join, in order."""
        return branches_of(self._node)


def branches_of(join: Node) -> list[Branch]:
    """Return a join's branches as its merge sees them now, in order.

    A merge that may close early is asked with every branch that ends, so what it was shown before is kept, and only
    branches that have moved or generated since are looked at again.
    """
    seen = join.seen
    if seen is None:
        seen = join.seen = [branch_of(dep) for dep in join.deps]
        return list(seen)
    for i, dep in enumerate(join.deps):
        known, attempt = seen[i], dep.attempt
        if known.state is not dep.state or (
            attempt is not None and (known.pieces is not attempt.text or known.tokens != attempt.generated)
        ):
            seen[i] = branch_of(dep)
    return list(seen)


def decided(join: Node, outstanding: int) -> bool:
    """Return whether a join's merge is certain of its verdict; what the merge raises comes out."""
    assert join.merge is not None
    tally = tally_of(join)
    if tally is not None:
        return tally.decided(outstanding)
    return join.merge.decided(branches_of(join), outstanding, join.run.task)


def tally_of(join: Node) -> Tally | None:
    """Return the tally of a join's branches that have ended, if its merge keeps one."""
    if join.tally is None and join.merge is not None and _keeps_tally(join.merge):
        join.tally = join.merge.tally(join.run.task)
        if join.tally is not None:
            join.untallied = [dep for dep in join.deps if dep.ended]
    if join.tally is not None and join.untallied:
        ended, join.untallied = join.untallied, []
        for dep in ended:
            join.tally.ended(branch_of(dep))
    return join.tally


def _keeps_tally(merge: Merge) -> bool:
    """Whether a merge's tally, if it has one, says what its `decided` says: a subclass may have another `decided`."""
    for each in type(merge).__mro__:
        if "tally" in vars(each) or "decided" in vars(each):
            return "tally" in vars(each)
    return False


def branch_of(node: Node) -> Branch:
    """Return a step as a merge sees it."""
    attempt, own, name = node.attempt, node.own, node.step.name
    if attempt is None:
        tokens = own.usage.completion if own is not None else 0
        said = written(node) if node.inner is not None and node.ended else ()
        return Branch(name, node.id, node.state, node.result, node.failure, tokens, (), node.merged_into, written=said)
    before = prior(node) if node.after is not None else ""
    tokens, pieces = attempt.generated, attempt.text
    return Branch(name, node.id, node.state, node.result, node.failure, tokens, pieces, node.merged_into, before)


class Siblings:
    """The steps that share a context, and where they were sent. Iterating yields them in the order of the plan."""

    __slots__ = ("_group",)

    def __init__(self, group: PrefixGroup | None) -> None:
        self._group = group

    def __len__(self) -> int:
        return len(self._group.nodes) if self._group is not None else 0

    def __iter__(self) -> Iterator[StepView]:
        yield from map(StepView, self._group.nodes if self._group is not None else ())

    @property
    def sent(self) -> Mapping[str, int]:
        """Attempts that were sent out so far, by worker, in the order of the first to each."""
        return MappingProxyType(self._group.sent) if self._group is not None else {}

    @property
    def live(self) -> Mapping[str, int]:
        """Attempts that are not over, by worker."""
        return MappingProxyType(self._group.live) if self._group is not None else {}

    @property
    def finished(self) -> Sequence[Ended]:
        """Seconds, tokens and workers of those that ended in a value, the first to end first."""
        return tuple(self._group.finished) if self._group is not None else ()


class View:
    """The machine, read-only. `subject` is the step that a question or the event under review is about, if it is about
    one; `run` is the run that it is about."""

    __slots__ = ("_queue", "_records", "run", "subject")

    def __init__(self, records: Records, queue: ReadyQueue, subject: StepView | None = None, run: str = "") -> None:
        self._records = records
        self._queue = queue
        self.subject = subject
        self.run = run or (subject.run if subject is not None else "")

    @property
    def now(self) -> float:
        """Time of the event being handled, in seconds."""
        return self._records.now

    @property
    def workers(self) -> tuple[WorkerView, ...]:
        """All workers, in the order in which they came."""
        return tuple(self._records.workers.values())

    def idlest(self, step: AnyStep) -> WorkerView | None:
        """Return the worker that a step goes to if no policy says otherwise: of those that serve it and have a free
        slot the one with the fewest attempts; `None` if none has."""
        return self._queue.least_loaded(lane_of(step.plan.op))

    def serving(self, step: AnyStep) -> int:
        """Return how many workers serve a step's kind and model, free slot or not."""
        return self._queue.serving(lane_of(step.plan.op))

    def cached(self, step: AnyStep) -> Mapping[str, int]:
        """Return about how many tokens of a step's prompt, from its start, each worker has cached, whichever run sent
        them there; workers without any are left out. Empty for a step that continues another (`StepView.home`)."""
        node = self._records.nodes.get(step.id)
        return {} if node is None else cached(node, self._records.prefixes)

    def submitted(self, run: str) -> float:
        """Return when a run that has not finished was submitted, in seconds on the clock of `now`."""
        return self._records.runs[run].submitted

    def deadline(self, run: str) -> float | None:
        """Return when the seconds of its budget are over, if they are limited."""
        record = self._records.runs[run]
        seconds = record.request.budget.seconds
        return None if seconds is None else record.submitted + seconds

    def peers(self, step: AnyStep) -> Sequence[Ended]:
        """Return seconds, tokens and workers of the latest steps like one that ended in a value, of all runs, the
        oldest first: those of its template (`core.lengths`), model, limit of tokens and place (at the beginning of a
        context or not), or where there are few, of any template; for a call those of the same tool."""
        node = self._records.nodes.get(step.id)
        return () if node is None else like(node, self._records)

    def expected_tokens(self, step: AnyStep, share: float = QUANTILE) -> float:
        """Return how many tokens more a think step is expected to generate: this quantile of the lengths of steps like
        it, its siblings first, that are longer than what it has (`core.lengths`). One at least."""
        node = self._records.nodes.get(step.id)
        found = [] if node is None else samples(node, self._records)
        return expected_tokens(step.max_tokens, found, known=step.tokens, share=share)

    @property
    def attempts(self) -> int:
        """Attempts sent out so far, of all runs."""
        return self._records.last_attempt

    def worker(self, name: str) -> WorkerView | None:
        """Return a worker, by name."""
        return self._records.workers.get(name)

    def step(self, id: str) -> StepView | None:
        """Return a step of a run that has not finished, by id."""
        node = self._records.nodes.get(id)
        return StepView(node) if node else None

    def steps(self, run: str) -> Iterator[StepView]:
        """Yield all steps of a run that has not finished, in the order in which they entered the plan."""
        record = self._records.runs.get(run)
        yield from map(StepView, record.nodes if record else ())

    def running(self, run: str) -> Sequence[StepView]:
        """Return its steps that have an attempt under way, in the order in which they began; those of a run that
        policies place or look at."""
        record = self._records.runs.get(run)
        return tuple(map(StepView, record.going if record else ()))

    def task(self, run: str) -> Task:
        """Return what the run's request means. Raises `KeyError` for a run that is not there."""
        return self._records.runs[run].task
