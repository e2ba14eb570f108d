"""The exception tree, and nothing else.

    PlaitError
    ├── UsageError               the caller's mistake: nothing was run
    │   ├── FieldError           a field that is not known, missing, or of the wrong kind; also a ValueError
    │   ├── PlanError            a cycle, an unknown step, a step that leads nowhere
    │   ├── PluginError          no such planner, policy, merge, task or worker; wrong options; a plugin that raised
    │   ├── ToolSchemaError      a function that cannot be a tool
    │   ├── ConfigError          a setting that cannot be read or makes no sense
    │   │   └── RunTaken         another process has the run or its journal
    │   ├── NotAllowed           a request, or a step of its plan, asks for what is not this tenant's
    │   └── TaskError            a request that the task cannot read
    ├── WorldError               the world's side: it was run, and did not work
    │   ├── WorkerError          an engine or tool host that cannot start or broke
    │   │   ├── EngineError      the model engine: no model, no memory
    │   │   │   ├── Rejected         a request that makes no sense to it, however often it is sent
    │   │   │   │   └── ContextOverflow    a prompt that is longer than the model's context
    │   │   │   └── CutInThoughts    an answer that ended before its first word that is no thought
    │   │   ├── WorkerLost       it went away while it held work
    │   │   │   └── Interrupted  plait itself ended the attempt
    │   │   │       └── NeverMade    before the attempt had reached its worker, so it may be made again
    │   │   ├── NoWorker         nothing serves this kind of step
    │   │   ├── NoCluster        Ray is not installed, or its cluster does not start
    │   │   └── Overloaded       too many runs wait for a slot: this one was not taken
    │   ├── ToolError            a tool raised, hung, or returned something that is not JSON
    │   │   ├── OutcomeUnknown   it changes the world, and the process ended before it had said how it went
    │   │   ├── Unanswered       it asked a person: no one answers, or the answer is invalid
    │   │   └── Denied           a person did not allow the call
    │   ├── PlannerError         a planner could not make a plan of what it was given
    │   │   ├── CutInForm        a typed answer that was cut at its most tokens before its form was whole
    │   │   └── FlowError        a flow did what a flow cannot do, such as awaiting what is no step
    │   ├── BudgetExceeded       tokens, seconds, attempts, width, cost or steps are used up
    │   ├── DeadlineExceeded     a join's deadline passed with too few branches
    │   ├── DependencyFailed     a step it needs did not end in a value
    │   └── RunFailed            raised by `answer.unwrap()` only: the run has no answer
    └── InvariantError           a bug in plait
        └── InvalidTransition    a step was moved where the table of moves does not allow; carries its story

Inside a run a failed step is data (`plait.core.result.Failure`, whose `kind` is a name from this tree); only
`answer.unwrap()` raises it. Every exception here is picklable: `args` holds all that `__init__` takes.
"""

from __future__ import annotations

import re
from typing import ClassVar, Protocol


class PlaitError(Exception):
    """Base of all errors raised by this package."""

    code: ClassVar[str] = "error"
    """Error code for programs, listed in docs/errors.md: the class's name in kebab case. A class that is renamed sets
    its old code, because a code stays the same when a class or a message changes."""

    retryable = False

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls) and cls.__module__.startswith("plait"):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


class UsageError(PlaitError):
    """The caller's mistake; nothing was run. `param`: the invalid field (`messages[2]`), if known."""

    def __init__(self, message: object = "", param: str = "") -> None:
        super().__init__(message)
        self.param = param


class FieldError(UsageError, ValueError):
    """Fields of a plan, an option or a budget that are not known, missing or of the wrong kind."""


class PlanError(UsageError):
    """A plan that is not a DAG in which every step leads to the output."""


class PluginError(UsageError):
    """A plugin that cannot be found, configured, or that raised inside the machine."""


class ToolSchemaError(UsageError):
    """A function whose signature cannot be put into a JSON schema."""


class ConfigError(UsageError):
    """A setting that cannot be read or makes no sense."""


class RunTaken(ConfigError):
    """Another live process has the run or its journal, or has just claimed the run."""


class NotAllowed(UsageError):
    """A request, or a step of its plan, asks for a model, tool, host or field that this tenant may not use."""


class TaskError(UsageError):
    """A request that the task cannot read."""


class WorldError(PlaitError):
    """The run or step started and failed."""


class WorkerError(WorldError):
    """A worker that cannot start, or that broke."""


class EngineError(WorkerError):
    """The model engine: no model, no memory."""


class Rejected(EngineError):
    """A request that the engine or server rejects, however often it is sent: a prompt longer than its context, an image
    for a model that sees none, a field that it does not take."""


class ContextOverflow(Rejected):
    """A prompt that is longer than the model's context."""


class CutInThoughts(EngineError):
    """A model's output ended before its reasoning did. `most`: the limit of reasoning tokens."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most

    def __str__(self) -> str:
        return (
            f"the model was cut off within its thoughts after {self.most} tokens, before its first word: raise "
            "thinking_tokens, or ask with thinking=off"
        )


class WorkerLost(WorkerError):
    """The worker went away while it held work."""

    retryable = True


class Interrupted(WorkerLost):
    """plait itself ended the attempt: its process ended and the run was resumed, or the autoscaler removed the engine.
    Neither the step nor the worker caused it, so it does not count towards the step's allowed losses."""


class NeverMade(Interrupted):
    """The attempt had not reached its worker when the process ended, or may safely be repeated. Even a call with side
    effects is repeated."""


class NoWorker(WorkerError):
    """No worker serves this kind of step, and none is coming back."""


class NoCluster(WorkerError):
    """Ray is not installed, or its local cluster does not start. An engine can run without Ray."""


class Overloaded(WorkerError):
    """Too many runs wait for a slot, so this one was not taken. `wait`: the estimated waiting time in seconds; `None`
    if unknown."""

    retryable = True

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message, wait)
        self.message: str
        self.wait: float | None
        self.message, self.wait = message, wait

    def __str__(self) -> str:
        return self.message


class ToolError(WorldError):
    """A tool raised, hung, or returned something that is not JSON."""


class OutcomeUnknown(ToolError):
    """A call with side effects was running when the process ended; its outcome is unknown."""


class Unanswered(ToolError):
    """A tool asked a person, and got no answer that it can use."""


class Denied(ToolError):
    """A call that a person had to allow first, and did not."""


class PlannerError(WorldError):
    """A planner could not make a plan from its input."""


class CutInForm(PlannerError):
    """A typed answer (`Request.output`) reached its token limit before its JSON was complete."""


class FlowError(PlannerError):
    """A flow awaited something other than a step, or changed after its run began."""


class BudgetExceeded(WorldError):
    """A hard limit of a budget is used up."""


class DeadlineExceeded(WorldError):
    """A join's deadline passed with too few branches done."""


class DependencyFailed(WorldError):
    """A step that this one needs did not end in a value."""


class FailedRun(Protocol):
    """The attributes of a `plait.core.result.Failure` that its exception needs."""

    @property
    def kind(self) -> str:
        """Class of the error."""
        ...

    @property
    def message(self) -> str:
        """The cause and, where there is one, the remedy."""
        ...


class RunFailed(WorldError):
    """The run ended without an answer. `failure` has the reason."""

    def __init__(self, failure: FailedRun) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return f"{self.failure.kind}: {self.failure.message}"


class InvariantError(PlaitError):
    """A bug in plait itself; please report it with the journal."""


class InvalidTransition(InvariantError):
    """A step was moved against the table of legal moves. `story` is its causal log, oldest first."""

    def __init__(self, step: str, start: str, finish: str, story: tuple[str, ...]) -> None:
        super().__init__(step, start, finish, story)
        self.step: str
        self.start: str
        self.finish: str
        self.story: tuple[str, ...]
        self.step, self.start, self.finish, self.story = step, start, finish, story

    def __str__(self) -> str:
        lines = "\n  ".join(self.story)
        return f"step {self.step!r} cannot move from {self.start} to {self.finish}; its story:\n  {lines}"


RAISED = (Exception, SystemExit, GeneratorExit, BaseExceptionGroup)
"""Exceptions in a plugin's code that end only the plugin's run. Ctrl-C and the cancellation of a task are excluded."""


def code_of(kind: str) -> str:
    """Return the error code for a class name (`Failure.kind`): `cancelled` for a cancelled step, `other` for an error
    that plait does not define.

    >>> code_of("WorkerLost"), code_of("Cancelled"), code_of("KeyError")
    ('worker-lost', 'cancelled', 'other')
    """
    if kind == "Cancelled":
        return "cancelled"
    return next((error.code for error in error_classes() if error.__name__ == kind), "other")


def error_classes() -> list[type[PlaitError]]:
    """Return all error classes of the tree, including those of modules imported so far."""
    classes = [PlaitError]
    for error in classes:  # it grows while it is walked
        classes += error.__subclasses__()
    return classes
