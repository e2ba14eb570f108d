"""What planners, policies and merges may see of a running plan. Read-only, and alive: a view shows the present.

The machine's own records stand behind these protocols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from .lengths import QUANTILE
from .ops import Kind, Text, Tokens
from .plan import Step
from .result import Failure, Result
from .states import DONE, State
from .task import Task


class AttemptEnd(NamedTuple):
    """An attempt that ended in a value."""

    seconds: float
    """From its dispatch to its end."""
    tokens: int
    """Of its value."""
    worker: str


class ProgramView(NamedTuple):
    """A program (a run, or the runs of one session) on one worker: contexts there that will be continued."""

    name: str
    """The run's id, or its tenant and session."""
    arrival: int
    """Its place in the order in which programs sent their first model call."""
    worker: str
    """Empty for a program without a context on the worker in question."""
    tokens: int
    """Tokens of its contexts, without those that it shares with other programs."""
    growth: int
    """Tokens by which these contexts are expected to grow."""
    running: int
    """Model calls that run. With 0 its contexts are idle."""
    calls: tuple[str, ...]
    """Ids of its running tool calls; `View.peers` says how long such calls take."""
    idle_since: float
    """Time at which its last model call ended."""
    turn_s: float
    """Mean seconds of a model call of such programs; 0 before one has ended."""
    gap_s: float
    """Mean seconds between two of them, which tool calls take; 0 before it is known."""


class Branch(NamedTuple):
    """One branch of a join, as a merge sees it."""

    name: str
    """Local name of the step."""
    step: str
    """Its id."""
    state: State
    result: Result | None
    failure: Failure | None
    tokens: int
    """Generated so far."""
    pieces: Sequence[str] = ()
    """The text so far, in pieces, if it is running and streams."""
    merged_into: str | None = None
    """Id of the branch that replaced it (`Stop.merged_into`): a vote counts it with that branch."""
    prior: str = ""
    """Text of its line before its own (`Result.prior`)."""
    written: tuple[Text | Tokens, ...] = ()
    """Of a step that has ended and expanded into more of its own line: all that the line added from the step's first
    token on, what was put between included, also where it broke off: what a thread wrote."""

    @property
    def done(self) -> bool:
        """Whether it ended in a value."""
        return self.state is DONE

    @property
    def text(self) -> str:
        """Its value as text, or what it has written so far, of a step that streams."""
        return self.result.text if self.result is not None else "".join(self.pieces)

    @property
    def line(self) -> str:
        """The text of its whole trajectory so far (`Result.line`)."""
        return self.result.line if self.result is not None else self.prior + "".join(self.pieces)


class StepView(Protocol):
    """One step, read-only."""

    @property
    def id(self) -> str:
        """Id of the step, unique among all runs."""
        ...

    @property
    def run(self) -> str:
        """Id of its run."""
        ...

    @property
    def plan(self) -> Step:
        """The step in the plan."""
        ...

    @property
    def kind(self) -> Kind:
        """`think`, `call` or `join`."""
        ...

    @property
    def state(self) -> State:
        """Where it stands."""
        ...

    @property
    def upward_rank(self) -> float:
        """Longest way from its start to the output: tokens that may be generated, one for a call."""
        ...

    @property
    def result(self) -> Result | None:
        """What it ended in."""
        ...

    @property
    def failure(self) -> Failure | None:
        """Why it has no result."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens generated so far, those that a lost attempt handed on included, or in the end."""
        ...

    @property
    def text(self) -> str:
        """Text generated so far, if the step streams, or in the end."""
        ...

    @property
    def line(self) -> str:
        """The same with all that stands before it in its line of reasoning (`Result.line`)."""
        ...

    @property
    def worker(self) -> str | None:
        """Name of the worker that runs it now."""
        ...

    @property
    def started(self) -> float | None:
        """When the attempt that runs now was sent out, in seconds."""
        ...

    @property
    def hedged(self) -> bool:
        """Whether it has had its second attempt, which may be over."""
        ...

    @property
    def held(self) -> str:
        """Why a policy holds it back in our queue; empty if none does."""
        ...

    @property
    def group(self) -> float | None:
        """Mean confidence (nats) of the last full window, of a running step that reports it (`Sampling.window`)."""
        ...

    @property
    def lowest(self) -> float | None:
        """The lowest such mean so far, or in the end."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """About how many tokens its prompt has, the context that it continues included: counted where an engine has
        said so, else a token for every four characters."""
        ...

    @property
    def shared_tokens(self) -> int:
        """About how many of these are the same for all its siblings."""
        ...

    @property
    def beginning(self) -> int | None:
        """A number that follows from how its prompt begins, and is the same in every process; `None` for a step that
        continues another or begins with nothing of its plan's."""
        ...

    @property
    def max_tokens(self) -> int:
        """Most tokens that it may generate; 0 if it is no think step."""
        ...

    @property
    def home(self) -> str | None:
        """Name of the worker whose cache holds the context that it continues: where the step that it comes `after` ran
        last."""
        ...

    @property
    def ran_on(self) -> str | None:
        """Name of the last worker that it was sent to; after its end, of the worker that returned its value."""
        ...

    @property
    def siblings(self) -> Siblings:
        """The steps of its run that continue the same context as it or begin with the same prompt (for a call: that
        call the same tool), itself included. Empty in a run without policies."""
        ...

    @property
    def owner(self) -> StepView | None:
        """The step that expanded into this one."""
        ...

    @property
    def after(self) -> StepView | None:
        """The step whose context it continues."""
        ...

    @property
    def needs(self) -> tuple[StepView, ...]:
        """The steps it needs; for a join, its branches in order."""
        ...

    @property
    def going(self) -> int:
        """How many of these have begun and not ended."""
        ...

    @property
    def consumers(self) -> tuple[StepView, ...]:
        """The steps that need it and have not ended."""
        ...

    @property
    def story(self) -> tuple[str, ...]:
        """Its moves so far, oldest first."""
        ...

    def decided(self) -> bool:
        """Return whether a join's merge is already certain of its verdict, branches that have not ended being
        unknown."""
        ...

    @property
    def tally(self) -> object:
        """What a join's merge has counted of the branches that have ended (`Merge.tally`), or `None`."""
        ...

    @property
    def outstanding(self) -> int:
        """How many of its needs have not ended."""
        ...

    @property
    def votes(self) -> bool:
        """Whether it is a join that weighs its branches' answers against one another (`Merge.votes`)."""
        ...

    def reads(self) -> Task:
        """Return the task by which the answers of a join's branches are read (`Merge.reads`)."""
        ...

    def branches(self) -> list[Branch]:
        """Return the branches of a join, in order."""
        ...


class Siblings(Protocol):
    """The steps that share a context, and where they were sent. Iterating yields them in the order of the plan."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[StepView]: ...

    @property
    def sent(self) -> Mapping[str, int]:
        """Attempts that were sent out so far, by worker, in the order of the first to each."""
        ...

    @property
    def live(self) -> Mapping[str, int]:
        """Attempts that are not over, by worker."""
        ...


class WorkerView(Protocol):
    """One worker, read-only."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def serves(self) -> tuple[Kind, ...]:
        """Kinds of steps that it takes."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """Names that `ModelCall.model` may ask for; empty: whatever it asks for."""
        ...

    @property
    def slots(self) -> int:
        """Attempts that it takes at the same time."""
        ...

    @property
    def running(self) -> int:
        """Attempts on it."""
        ...

    @property
    def busy(self) -> int:
        """Attempts on it, with those of other processes (`share_load`)."""
        ...

    @property
    def up(self) -> bool:
        """Whether it is there."""
        ...

    @property
    def free(self) -> int:
        """Slots that can take a step now."""
        ...

    @property
    def load(self) -> int:
        """Tokens that the attempts on it may still generate."""
        ...

    @property
    def context(self) -> int:
        """About how many tokens of context the attempts on it may come to hold, what siblings share counted once (of
        runs with policies)."""
        ...

    @property
    def kept(self) -> int:
        """About how many steps policies keep waiting for it (`Defer.worker`)."""
        ...

    def pace(self, attempts: int) -> float | None:
        """Return the estimated seconds per token at this number of attempts, from recently ended attempts (of runs with
        policies); `None` before any has ended."""
        ...

    @property
    def cache_tokens(self) -> int | None:
        """Tokens that its prefix cache holds, if reported."""
        ...

    @property
    def block(self) -> int | None:
        """Tokens in a block of that cache, if reported."""
        ...

    def could_take(self, step: StepView) -> bool:
        """Return whether it serves a step's kind and model, free slot or not."""
        ...

    def takes(self, step: StepView) -> bool:
        """Return whether it serves a step's kind and model, and has a free slot."""
        ...


class View(Protocol):
    """The machine, read-only. `subject` is the step that a question or the event under review is about, if it is about
    one; `run` is the run that it is about."""

    @property
    def run(self) -> str:
        """Id of the run that the question or the event under review is about."""
        ...

    @property
    def subject(self) -> StepView | None:
        """The step that it is about, if it is about one."""
        ...

    @property
    def now(self) -> float:
        """Time of the event being handled, in seconds."""
        ...

    @property
    def workers(self) -> tuple[WorkerView, ...]:
        """All workers, in the order in which they came."""
        ...

    def idlest(self, step: StepView) -> WorkerView | None:
        """Return the worker that a step goes to if no policy says otherwise: of those that serve it and have a free
        slot the one with the fewest attempts; `None` if none has."""
        ...

    def cached(self, step: StepView) -> Mapping[str, int]:
        """Return about how many tokens of a step's prompt, from its start, each worker has cached, whichever run sent
        them there; workers without any are left out. Empty for a step that continues another (`StepView.home`)."""
        ...

    def submitted(self, run: str) -> float:
        """Return when a run that has not finished was submitted, in seconds on the clock of `now`."""
        ...

    def deadline(self, run: str) -> float | None:
        """Return when the seconds of its budget are over, if they are limited."""
        ...

    def peers(self, step: StepView) -> Sequence[AttemptEnd]:
        """Return seconds, tokens and worker of recent steps like this one, of all runs, the oldest first: of the same
        template (`core.lengths`), model, limit of tokens and place in a context (at its beginning or not); where those
        are few, of any template. For a call: of the same tool."""
        ...

    def expected_tokens(self, step: StepView, share: float = QUANTILE) -> float:
        """Return the expected number of tokens that a step still generates: this quantile of the lengths of steps like
        it, its siblings first, that are longer than what it has (`core.lengths`). One at least."""
        ...

    def programs(self, worker: str) -> Sequence[ProgramView]:
        """Return the programs with contexts on a worker, of runs with a policy that admits programs."""
        ...

    def program(self, step: StepView, worker: str) -> ProgramView:
        """Return a step's program with its contexts on a worker; without any there, with its size elsewhere or the
        expected size of a new one. Raises `KeyError` for an unknown step or worker."""
        ...

    @property
    def attempts(self) -> int:
        """Attempts sent out so far, of all runs."""
        ...

    def worker(self, name: str) -> WorkerView | None:
        """Return a worker, by name."""
        ...

    def step(self, id: str) -> StepView | None:
        """Return a step of a run that has not finished, by id."""
        ...

    def steps(self, run: str) -> Iterator[StepView]:
        """Yield all steps of a run that has not finished, in the order in which they entered the plan."""
        ...

    def running(self, run: str) -> Sequence[StepView]:
        """Return its steps with a running attempt, in the order in which they began; those of a run that
        policies place or look at."""
        ...

    def task(self, run: str) -> Task:
        """Return the task of the run's request. Raises `KeyError` for an unknown run."""
        ...
