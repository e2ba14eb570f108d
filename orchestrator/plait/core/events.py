"""The two closed vocabularies of the machine: events (past facts that go in) and actions (orders that come out).

Both are written to the journal and compared on replay. A machine handles millions of them, so they are plain
dataclasses: `event_adapter` and `action_adapter` check what is read from a file, and nothing is checked inside. None
is changed after it was made. Times (`at`) are seconds on whatever clock the driver has; the machine only compares and
adds them. Step ids are `run:name` and, for a step that another one expanded into, `run:outer/name`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter

from .budget import Budget
from .causes import Cause
from .ops import Kind, ModelCall, ToolCall
from .plan import Plan
from .request import Request
from .result import NO_USAGE, Failure, Price, Result, Usage


class _Record:
    """Base of events and actions: read from JSON, they have no unknown fields."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


Status = Literal["done", "partial", "failed", "cancelled"]


_CANCELLED = Result.model_construct({"finish"}, finish="cancelled", usage=NO_USAGE)

PRIORITY_STEP = 1_000_000
"""How much one step of `Step.priority` weighs in `Job.priority`; a policy's rank moves it by less than half of this."""


@dataclass(slots=True, frozen=True)
class Hints:
    """Hints that a worker may send to a serving stack with a model call: see `Worker.hints`."""

    session: str
    """The run and the line: a step that continues another's context has the same, the further branches of a fork have
    their own."""
    parent: str = ""
    """The session that this one was forked from; the run, for one that was not."""
    final: bool = False
    """No other step of the plan continues this context."""
    expected: int | None = None
    """Tokens that the answer is expected to have (`core.lengths`), once steps like it have ended."""
    burst: str = ""
    """The same for siblings that begin with the same context; empty without any."""
    burst_size: int = 1
    """How many they are."""
    program: str = ""
    """The client's session, which all its runs share; empty without one."""
    origin: str = ""
    """The same for all lines that begin alike, and for every continuation of them: where the first of them went,
    the context of the others is cached."""


@dataclass(slots=True)
class Job(_Record):
    """All that a worker gets: an attempt at one step, references resolved, limits applied."""

    attempt: int
    """Fresh for every dispatch; news of any other attempt is ignored."""
    run: str
    step: str
    """Step id."""
    op: ModelCall | ToolCall
    """`ModelCall.prompt` holds only text and tokens, `ModelCall.after` is resolved into leading tokens, `ToolCall.args`
    are values."""
    seconds: float | None = None
    """Time left by the nearest budget, for a worker that can pass it on. The machine keeps the limit itself."""
    generated: tuple[int, ...] = ()
    """Token ids that another attempt at the step (lost, or slow) has generated. The worker continues from there.
    Its result covers them too (value, `token_ids`; `prompt_ids` is the prompt without them), its `Progressed` and
    `usage.completion` only what is new. `sampling.max_tokens` counts them too; if none is
    left, the job ends at once, `finish="length"`. A worker that takes no ids starts from the beginning, and sends no
    `Progressed.ids`."""
    priority: int = 0
    """For a worker with a queue of its own: lower is earlier. `step.priority * PRIORITY_STEP` and the first number of
    the policies' rank, cut to less than half of that either way."""
    report: bool = False
    """A budget or a policy counts its tokens while they are generated: report how many are new at least once in
    `Worker.reports` tokens, whether or not the step streams."""
    hints: Hints | None = None
    """For a worker that wants them (`Worker.hints`)."""
    trace: str = ""
    """The span of the attempt, as the header `traceparent` says it; empty where nothing is traced."""


@dataclass(slots=True)
class Submitted(_Record):
    """A run was asked for, with the planner's first plan."""

    kind: Literal["submitted"] = field(default="submitted", kw_only=True)
    at: float
    run: str
    request: Request
    plan: Plan


@dataclass(slots=True)
class Expanded(_Record):
    """A planner's reader returned the next plan of an expanding step."""

    kind: Literal["expanded"] = field(default="expanded", kw_only=True)
    at: float
    step: str
    attempt: int
    """The attempt whose text was read (0 for a join); a patch to a retried attempt is ignored."""
    patch: Plan | None = None
    closed: bool = False
    """No further patch will come. Without any output in its patches the step keeps its own value."""
    failure: Failure | None = None
    """The reader raised; the step fails."""
    waited: Annotated[dict[str, dict[str, int]], Field(exclude_if=lambda waited: not waited)] = field(
        default_factory=dict[str, dict[str, int]]
    )
    """By step of the patch: the model calls, one after another, that its flow had waited for when it made it. By scope
    that limits `turns`; those of the whole flow under the empty name."""
    cut: Annotated[bool, Field(exclude_if=lambda cut: not cut)] = False
    """A flow has ended that read results which a budget or deadline had cut: so its value is partial."""
    refused: Annotated[dict[str, str], Field(exclude_if=lambda refused: not refused)] = field(
        default_factory=dict[str, str]
    )
    """Steps of the patch that a scope's budget does not allow, and the reason: they fail at once
    (`BudgetExceeded`)."""


@dataclass(slots=True)
class Progressed(_Record):
    """A live attempt generated more."""

    kind: Literal["progressed"] = field(default="progressed", kw_only=True)
    at: float
    attempt: int
    text: str = ""
    tokens: int = 0
    """Generated since the last such news, in tokens."""
    logprob: float | None = None
    """Mean log-probability (nats) of these tokens, if asked for."""
    ids: tuple[int, ...] = ()
    """The token ids, from a worker that can continue from ids."""
    group: float | None = None
    """Mean confidence of the last full window (`Sampling.window`), in nats."""
    lowest: float | None = None
    """The lowest such mean of the attempt so far."""
    largest: int = 0
    """Of several reports sent as one: the tokens of the largest. 0 for a single report."""
    reasoning: str = ""
    """Reasoning that a server sends apart from the text, for those who follow the run."""


@dataclass(slots=True)
class Succeeded(_Record):
    """An attempt ended in a value."""

    kind: Literal["succeeded"] = field(default="succeeded", kw_only=True)
    at: float
    attempt: int
    result: Result


@dataclass(slots=True)
class Failed(_Record):
    """An attempt ended without a value."""

    kind: Literal["failed"] = field(default="failed", kw_only=True)
    at: float
    attempt: int
    failure: Failure
    usage: Usage = NO_USAGE


@dataclass(slots=True)
class Stopped(_Record):
    """A worker confirmed that a cancelled attempt is over; `result` holds what it had generated."""

    kind: Literal["stopped"] = field(default="stopped", kw_only=True)
    at: float
    attempt: int
    result: Result = _CANCELLED


@dataclass(slots=True)
class WorkerUp(_Record):
    """A worker is ready, for the first time or again."""

    kind: Literal["worker-up"] = field(default="worker-up", kw_only=True)
    at: float
    worker: str
    slots: Annotated[int, Field(ge=0)]
    """Attempts it takes at the same time."""
    serves: tuple[Kind, ...]
    models: tuple[str, ...] = ()
    """Names that `ModelCall.model` may ask for here; empty: whatever it asks for."""
    cache_tokens: int | None = None
    """Tokens that its prefix cache holds."""
    block: int | None = None
    """Tokens in a block of that cache."""
    reports: int | None = None
    """The most tokens between two reports of a job that asks for them (`Job.report`); `None`: it may report none."""
    counts_tokens: bool = False
    """It can count the tokens of a prompt before it runs it."""
    prices: dict[str, Price] = field(default_factory=dict[str, Price])
    """What its models cost, by name; under no name that of any other."""


@dataclass(slots=True)
class WorkerDown(_Record):
    """A worker went away with all that it was running."""

    kind: Literal["worker-down"] = field(default="worker-down", kw_only=True)
    at: float
    worker: str
    returning: bool = False
    """Whether it is being restarted: steps wait for it rather than fail for want of a worker."""
    reason: str = ""
    """Why, in the words of the worker or its engine, as far as it is known."""


@dataclass(frozen=True, slots=True)
class CacheUpdate(_Record):
    """What a worker's prefix cache holds of the prompts that it was sent, by its engine's own events."""

    held: tuple[tuple[int, Annotated[int, Field(ge=0)]], ...] = ()
    """Attempts, and how many tokens it holds of the prompt of each: these from the start, and none after them."""
    cleared: bool = False
    """Before that it has forgotten everything."""


@dataclass(slots=True)
class CacheChanged(_Record):
    """A worker reports a change of its prefix cache. After its first such event it reports every change."""

    kind: Literal["cache-changed"] = field(default="cache-changed", kw_only=True)
    at: float
    worker: str
    news: CacheUpdate


@dataclass(slots=True)
class Counted(_Record):
    """A worker has counted the prompt of a ready step, as it was asked to (`Count`)."""

    kind: Literal["counted"] = field(default="counted", kw_only=True)
    at: float
    step: str
    tokens: Annotated[int, Field(ge=0)] | None = None
    """`None`: it cannot tell."""


@dataclass(slots=True)
class Tick(_Record):
    """A time that the machine had asked to be woken at has come."""

    kind: Literal["tick"] = field(default="tick", kw_only=True)
    at: float


@dataclass(slots=True)
class Cancelled(_Record):
    """The user gave the run up."""

    kind: Literal["cancelled"] = field(default="cancelled", kw_only=True)
    at: float
    run: str
    reason: str = ""
    """The reason given with the cancellation."""
    cause: Cause = "user"


@dataclass(slots=True)
class Pruned(_Record):
    """The user cancelled one step, as a policy may: it is left out, and its run continues."""

    kind: Literal["pruned"] = field(default="pruned", kw_only=True)
    at: float
    step: str
    reason: str = ""
    """The reason given with the cancellation."""
    cause: Cause = "pruned"


@dataclass(slots=True)
class Paused(_Record):
    """The user pauses a run or resumes it. A paused run starts no step; its running steps and its clock continue."""

    kind: Literal["paused"] = field(default="paused", kw_only=True)
    at: float
    run: str
    on: bool = True
    """`False`: resume."""


@dataclass(slots=True)
class Limited(_Record):
    """The user has changed the limits of a run while it runs. What has been used counts against them."""

    kind: Literal["limited"] = field(default="limited", kw_only=True)
    at: float
    run: str
    budget: Budget
    """All limits of the run from now on."""


@dataclass(slots=True)
class ForeignEvent(_Record):
    """Something happened in a run that another journal holds. Written where steps of this journal's runs started
    because of it; says nothing to a machine."""

    kind: Literal["elsewhere"] = field(default="elsewhere", kw_only=True)
    at: float


Event = (
    Submitted
    | Expanded
    | Progressed
    | Succeeded
    | Failed
    | Stopped
    | WorkerUp
    | WorkerDown
    | CacheChanged
    | Counted
    | Tick
    | Cancelled
    | Pruned
    | Paused
    | Limited
    | ForeignEvent
)


@dataclass(slots=True)
class Dispatch(_Record):
    """Start a job on a worker."""

    kind: Literal["dispatch"] = field(default="dispatch", kw_only=True)
    worker: str
    job: Job
    reason: str = ""
    """Why there, if a policy said so."""


@dataclass(slots=True)
class Cancel(_Record):
    """Give a step up. With an attempt: tell the worker, which answers `Stopped`. Without: it never ran."""

    kind: Literal["cancel"] = field(default="cancel", kw_only=True)
    step: str
    attempt: int | None = None
    worker: str | None = None
    cause: Cause = "unneeded"
    about: str = ""
    """Whom or what the cause names, as `core.causes.sentence` puts it into words."""


@dataclass(slots=True)
class Expand(_Record):
    """Feed a step's reader: with a text delta while it runs, with the result when it has ended."""

    kind: Literal["expand"] = field(default="expand", kw_only=True)
    step: str
    attempt: int
    delta: str | None = None
    result: Result | None = None


@dataclass(slots=True)
class Count(_Record):
    """Have a worker count the prompt of a ready step: a budget limits it. The answer is `Counted`."""

    kind: Literal["count"] = field(default="count", kw_only=True)
    step: str
    worker: str
    op: ModelCall


@dataclass(slots=True)
class WakeAt(_Record):
    """Send a `Tick` at this time; a later `WakeAt` replaces an earlier one."""

    kind: Literal["wake-at"] = field(default="wake-at", kw_only=True)
    at: float


@dataclass(slots=True)
class Finish(_Record):
    """The run is over: nothing of it is live any more. Sent once."""

    kind: Literal["finish"] = field(default="finish", kw_only=True)
    run: str
    status: Status
    result: Result | None = None
    """Of the output step, if it has one."""
    failure: Failure | None = None
    """Why there is no answer, or not a whole one."""
    partial: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Values of the steps that were done, by step id, when the run has no answer of its own."""
    usage: Usage = NO_USAGE
    critical_path_tokens: int = 0
    """Most generated tokens along any chain of steps that the answer was made from."""
    steps: int = 0
    """Steps that entered the plan."""


Action = Dispatch | Cancel | Expand | Count | WakeAt | Finish

_ASKED = ConfigDict(defer_build=True)  # made when something is read or written, and not at the start
event_adapter: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")], config=_ASKED)
action_adapter: TypeAdapter[Action] = TypeAdapter(Annotated[Action, Field(discriminator="kind")], config=_ASKED)
