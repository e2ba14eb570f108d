"""The two closed vocabularies of the machine: events (past facts that go in) and actions (orders that come out).

Both are written to the journal and compared on replay, so they are frozen pydantic models told apart by `kind`. Times
(`at`) are seconds on whatever clock the driver has; the machine only compares and adds them. Step ids are
`run:name` and, for a step that another one expanded into, `run:outer/name`. This file decides nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from .plan import Call, Kind, Plan, Request, Think
from .result import Failure, Result, Usage
from .values import Frozen

Status = Literal["done", "partial", "failed", "cancelled"]


PRIORITY_STEP = 1_000_000
"""How much one step of `Step.priority` weighs in `Job.priority`; a policy's rank moves it by less than half of this."""


class Job(Frozen):
    """All that a worker gets: an attempt at one step, references resolved, limits applied."""

    attempt: int
    """Fresh for every dispatch; news of any other attempt is ignored."""
    run: str
    step: str
    """Step id."""
    op: Think | Call
    """`Think.prompt` holds only text and tokens, `Think.after` is resolved into leading tokens, `Call.args` are
    values."""
    seconds: float | None = None
    """Time left by the nearest budget, for a worker that can pass it on. The machine keeps the limit itself."""
    generated: tuple[int, ...] = ()
    """Token ids that another attempt at the step (lost, or slow) has generated already. The worker goes on after them.
    Its result covers them too (value, `token_ids`; `prompt_ids` is the prompt without them), its `Progressed` and
    `usage.completion` only what is new. `sampling.max_tokens` counts them: so many less may be generated, and with none
    left the job ends at once, `finish="length"`. A worker that takes no ids starts from the beginning, and sends no
    `Progressed.ids`."""
    priority: int = 0
    """For a worker with a queue of its own: lower is earlier. `step.priority * PRIORITY_STEP` and the first number of
    the policies' rank, cut to less than half of that either way."""


class Submitted(Frozen):
    """A run was asked for, with the planner's first plan."""

    kind: Literal["submitted"] = "submitted"
    at: float
    run: str
    request: Request
    plan: Plan


class Expanded(Frozen):
    """A planner's reader said how an expanding step goes on."""

    kind: Literal["expanded"] = "expanded"
    at: float
    step: str
    attempt: int
    """The attempt whose text was read (0 for a join); a patch to a retried attempt is ignored."""
    patch: Plan | None = None
    closed: bool = False
    """No further patch will come. Without any output in its patches the step keeps its own value."""
    failure: Failure | None = None
    """The reader could not go on; the step fails."""


class Progressed(Frozen):
    """A live attempt generated more."""

    kind: Literal["progressed"] = "progressed"
    at: float
    attempt: int
    text: str = ""
    tokens: int = 0
    """Generated since the last such news, in tokens."""
    logprob: float | None = None
    """Mean log-probability (nats) of these tokens, if asked for."""
    ids: tuple[int, ...] = ()
    """The token ids, from a worker that can go on from ids."""
    group: float | None = None
    """Mean confidence of the last full window (`Sampling.window`), in nats."""
    lowest: float | None = None
    """The lowest such mean of the attempt so far."""


class Succeeded(Frozen):
    """An attempt ended in a value."""

    kind: Literal["succeeded"] = "succeeded"
    at: float
    attempt: int
    result: Result


class Failed(Frozen):
    """An attempt ended without a value."""

    kind: Literal["failed"] = "failed"
    at: float
    attempt: int
    failure: Failure
    usage: Usage = Usage()


class Stopped(Frozen):
    """A worker confirmed that a cancelled attempt is over; `result` holds what it had generated."""

    kind: Literal["stopped"] = "stopped"
    at: float
    attempt: int
    result: Result = Result(finish="cancelled")


class WorkerUp(Frozen):
    """A worker is ready, for the first time or again."""

    kind: Literal["worker-up"] = "worker-up"
    at: float
    worker: str
    slots: int = Field(ge=0)
    """Attempts it takes at the same time."""
    serves: tuple[Kind, ...]
    models: tuple[str, ...] = ()
    """Names that `Think.model` may ask for here; empty: whatever it asks for."""
    cache_tokens: int | None = None
    """Tokens that its prefix cache holds."""
    block: int | None = None
    """Tokens in a block of that cache."""


class WorkerDown(Frozen):
    """A worker went away with all that it was running."""

    kind: Literal["worker-down"] = "worker-down"
    at: float
    worker: str
    returning: bool = False
    """Whether it is being restarted: steps wait for it rather than fail for want of a worker."""


class Tick(Frozen):
    """A time that the machine had asked to be woken at has come."""

    kind: Literal["tick"] = "tick"
    at: float


class Cancelled(Frozen):
    """The user gave the run up."""

    kind: Literal["cancelled"] = "cancelled"
    at: float
    run: str
    reason: str = "cancelled by the user"


class Pruned(Frozen):
    """The user gave one step up, as a policy may: it is left out, and its run goes on."""

    kind: Literal["pruned"] = "pruned"
    at: float
    step: str
    reason: str = "pruned by the user"


class Paused(Frozen):
    """The user wants nothing more of a run to start (what runs goes on, and so does the time), or wants it to go on."""

    kind: Literal["paused"] = "paused"
    at: float
    run: str
    on: bool = True
    """`False`: go on."""


class Elsewhere(Frozen):
    """Something happened in a run that another journal holds. Written where steps of this journal's runs started
    because of it; says nothing to a machine."""

    kind: Literal["elsewhere"] = "elsewhere"
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
    | Tick
    | Cancelled
    | Pruned
    | Paused
    | Elsewhere
)


class Dispatch(Frozen):
    """Start a job on a worker."""

    kind: Literal["dispatch"] = "dispatch"
    worker: str
    job: Job
    reason: str = ""
    """Why there, if a policy said so."""


class Cancel(Frozen):
    """Give a step up. With an attempt: tell the worker, which answers `Stopped`. Without: it never ran."""

    kind: Literal["cancel"] = "cancel"
    step: str
    attempt: int | None = None
    worker: str | None = None
    reason: str = ""


class Expand(Frozen):
    """Feed a step's reader: with a text delta while it runs, with the result when it has ended."""

    kind: Literal["expand"] = "expand"
    step: str
    attempt: int
    delta: str | None = None
    result: Result | None = None


class WakeAt(Frozen):
    """Send a `Tick` at this time; a later `WakeAt` replaces an earlier one."""

    kind: Literal["wake-at"] = "wake-at"
    at: float


class Finish(Frozen):
    """The run is over: nothing of it is live any more. Sent once."""

    kind: Literal["finish"] = "finish"
    run: str
    status: Status
    result: Result | None = None
    """Of the output step, if it has one."""
    failure: Failure | None = None
    """Why there is no answer, or not a whole one."""
    partial: dict[str, JsonValue] = {}
    """Values of the steps that were done, by step id, when the run has no answer of its own."""
    usage: Usage = Usage()
    critical_path_tokens: int = 0
    """Most generated tokens along any chain of steps that the answer was made from."""
    steps: int = 0
    """Steps that entered the plan."""


Action = Dispatch | Cancel | Expand | WakeAt | Finish

event_adapter: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
action_adapter: TypeAdapter[Action] = TypeAdapter(Annotated[Action, Field(discriminator="kind")])
