"""Handles that a flow may await: model calls, tool calls, joins, and groups of handles.

A handle is created together with its step; awaiting the handle waits for the step's end. A flow may pass a handle to
later steps before the step ends: the machine then waits, not the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar, Unpack, cast

from pydantic import JsonValue

from .budget import Budget
from .call_config import CallConfig
from .errors import FlowError, WorldError
from .ops import ModelCall, Part
from .plan import Step
from .planning import TrajectoryOptions
from .result import Failure, Result

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class StepFailed(WorldError):
    """An awaited step has no value, because it failed or was cancelled. `failure` has the reason."""

    def __init__(self, step: str, failure: Failure) -> None:
        super().__init__(step, failure)
        self.step = step
        self.failure = failure

    def __str__(self) -> str:
        return f"{self.step}: {self.failure.kind}: {self.failure.message}"


class Group:
    """A scope of a flow: steps that share a budget."""

    def __init__(self, name: str, budget: Budget | None, outer: Group | None = None) -> None:
        self.name: str = name
        self.budget: Budget | None = budget
        self.outer: Group | None = outer
        self.steps: list[StepHandle[object]] = []
        self.count = 0
        """Steps made in it and in the scopes inside it."""

    def chain(self) -> Iterator[Group]:
        """Yield this scope and its outer scopes, innermost first."""
        group: Group | None = self
        while group is not None:
            yield group
            group = group.outer


class Chance(Protocol):
    """Random numbers, as `random.Random` has them."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int | None = None) -> int: ...

    def choice(self, seq: Sequence[T]) -> T: ...

    def sample(self, population: Sequence[T], k: int) -> list[T]: ...

    def shuffle(self, x: list[T]) -> None: ...


class FlowPlace:
    """One coroutine of a flow. Each coroutine has its own names and random numbers, so these do not depend on the order
    in which coroutines resume."""

    def __init__(self, prefix: str, random: Chance) -> None:
        self.prefix = prefix
        """Prefix of its steps' names: empty for the flow itself, `2.` for the flow's second coroutine."""
        self.random = random
        self._counts: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        """Number of sequential model calls that the coroutine has awaited, by scope that limits `turns`; the empty name
        counts the whole flow."""

    def next(self, kind: str) -> str:
        """Return a new name: `think-1`, `2.think-1`."""
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{self.prefix}{kind}-{number}"

    def inner(self) -> str:
        """Return the prefix of the next coroutine that it starts."""
        number = self._counts["."] = self._counts.get(".", 0) + 1
        return f"{self.prefix}{number}."


class FlowHost(Protocol):
    """What runs a flow."""

    def place(self) -> FlowPlace:
        """Return the place of the running coroutine."""
        ...

    def add_step(self, handle: StepHandle[object], group: Group | None) -> None:
        """Take a step that the flow has made."""
        ...

    def give_up(self, handle: StepHandle[object], reason: str) -> None:
        """Give a step up."""
        ...

    def spawn(self, coroutine: Coroutine[object, None, T]) -> Promise[T]:
        """Run a coroutine concurrently."""
        ...

    def abandon(self, task: Promise[object], reason: str) -> None:
        """Give a coroutine up, with all steps that it has made."""
        ...

    def wait(self, awaited: Promise[object]) -> Generator[object, None, None]:
        """Suspend the running coroutine until something has ended."""
        ...

    def note_passed(self) -> None:
        """Take note that something was awaited that had ended already."""
        ...

    def read(self, awaited: Promise[object]) -> None:
        """Mark a result as observed, so that its failure is not reported again."""
        ...

    def keep(self, value: object) -> str:
        """Store a value for the readers of the flow's steps, and return its key."""
        ...

    def now(self) -> float:
        """Return the time, in seconds after the run began."""
        ...


class Promise(Generic[T_co]):
    """Something that a flow may await, any number of times."""

    def __init__(self, host: FlowHost) -> None:
        self._host = host
        self._ended = False
        self._value: object = None
        self._error: BaseException | None = None
        self._then: list[Callable[[], None]] = []

    def __await__(self) -> Generator[object, None, T_co]:
        if self._ended:
            self._host.note_passed()
        else:
            yield from self._host.wait(self)
        return self.outcome()

    @property
    def ended(self) -> bool:
        """Whether awaiting it would not wait."""
        return self._ended

    @property
    def error(self) -> BaseException | None:
        """What awaiting it raises, if it has ended and does."""
        return self._error

    def outcome(self) -> T_co:
        """Return the awaited value, or raise its error. Raises `FlowError` before the end."""
        if not self._ended:
            raise FlowError(f"{self!r} has not ended: await it first")
        self._host.read(self)
        if self._error is not None:
            raise self._error
        return cast("T_co", self._value)

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call a function when it has ended, or at once."""
        if self._ended:
            then()
        else:
            self._then.append(then)

    def settle(self, value: object = None, error: BaseException | None = None) -> None:
        """End it. Called by the driver of the flow."""
        if self._ended:
            return
        self._ended, self._value, self._error = True, value, error
        waiting, self._then = self._then, []
        for then in waiting:
            then()


class Maker(Protocol):
    """What makes the steps of a flow."""

    def continued(
        self, line: Trajectory, pieces: Pieces, prompt: CallConfig | None, options: TrajectoryOptions
    ) -> Trajectory:
        """Continue a line."""
        ...


class StepHandle(Promise[T_co]):
    """A step that a flow has made."""

    def __init__(self, maker: Maker, host: FlowHost, step: Step) -> None:
        super().__init__(host)
        self._maker = maker
        self.step = step
        """The step's plan entry."""
        self._result: Result | None = None

    def __repr__(self) -> str:
        return f"<step {self.step.name}>"

    @property
    def name(self) -> str:
        """The step's name."""
        return self.step.name

    @property
    def result(self) -> Result:
        """The step's result. Raises `StepFailed` if the step has no value, `FlowError` before it has ended."""
        self.outcome()
        assert self._result is not None
        return self._result

    @property
    def done(self) -> bool:
        """Whether it ended in a value."""
        return self._result is not None

    @property
    def partial(self) -> bool:
        """Whether a budget or deadline cut its value."""
        return self._result is not None and self._result.partial

    @property
    def value(self) -> JsonValue:
        """The step's value; raises as `result` does."""
        return self.result.value

    @property
    def text(self) -> str:
        """The step's value as text; raises as `result` does."""
        return self.result.text

    def end(self, result: Result | None, failure: Failure | None) -> None:
        """Set the step's outcome, a result or a failure. The flow's driver calls this method."""
        if result is None:
            assert failure is not None
            self.settle(error=StepFailed(self.step.name, failure))
        else:
            self._result = result
            self.settle(self._awaited_value(result))

    def _awaited_value(self, result: Result) -> object:
        return self


class CallHandle(StepHandle[JsonValue]):
    """A tool call. Awaiting it gives the tool's value."""

    def _awaited_value(self, result: Result) -> JsonValue:
        return result.value


class JoinHandle(StepHandle["JoinHandle"]):
    """A join. Awaiting the handle returns it, with `value`, `text` and `why`."""

    @property
    def why(self) -> str:
        """Why the merge chose this value."""
        return self.result.why


class Trajectory(StepHandle["Trajectory"]):
    """A line of reasoning: a model call and the calls that it continues. Awaiting the handle returns it."""

    @property
    def line(self) -> str:
        """The whole text of the trajectory, including inserted text; `text` is the last call's part."""
        return self.result.line

    @property
    def finished(self) -> bool:
        """Whether the model ended the text itself, not a stop text or token limit."""
        result, op = self.result, self.step.op
        stops = op.sampling.stop if isinstance(op, ModelCall) else ()
        return result.finish == "stop" and not (stops and result.text.endswith(stops))

    @property
    def logprob(self) -> float | None:
        """Mean log-probability (nats) of the last call's tokens, if asked for."""
        return self.result.logprob

    @property
    def labels(self) -> dict[str, float]:
        """Log-probabilities (nats) of the last call's labels."""
        return self.result.labels

    @property
    def tokens(self) -> int:
        """Tokens of the last call's text."""
        return self.result.length

    def think(
        self, pieces: Pieces = (), prompt: CallConfig | None = None, **options: Unpack[TrajectoryOptions]
    ) -> Trajectory:
        """Append `pieces` and continue the trajectory token for token; other arguments as for `Context.think`."""
        return self._maker.continued(self, pieces, prompt, options)

    def fork(
        self, n: int, pieces: Pieces = (), prompt: CallConfig | None = None, **options: Unpack[TrajectoryOptions]
    ) -> list[Trajectory]:
        """Continue the line `n` times, each with a seed of its own."""
        return [self.think(pieces, prompt, **options) for _ in range(n)]


Pieces = str | Part | StepHandle[object] | Sequence[str | Part | StepHandle[object]]
"""A prompt: text, pieces of a plan's prompt, and handles, which mean the values of their steps."""


class Several(Promise[T_co]):
    """Waits for members."""

    members: Sequence[Promise[object]] = ()


class All(Several[list[T]]):
    """Waits for several awaitables. The first exception ends the wait, unless exceptions are returned as values."""

    def __init__(self, host: FlowHost, members: Iterable[Promise[T]], exceptions: bool) -> None:
        super().__init__(host)
        self._each = list(members)
        self.members: Sequence[Promise[object]] = self._each
        self._open = len(self._each)
        self._exceptions = exceptions
        for member in self._each:
            member.when_ended(lambda member=member: self._one(member))
        if not self._each:
            self.settle([])

    def _one(self, member: Promise[T]) -> None:
        self._open -= 1
        if member.error is not None and not self._exceptions:
            self.settle(error=member.error)
        elif not self._open:
            self.settle([member.outcome() if member.error is None else member.error for member in self._each])


class First(Several[T | None]):
    """Waits for the first of several awaitables with an accepted value, and cancels the others."""

    def __init__(
        self,
        host: FlowHost,
        members: Iterable[Promise[T]],
        ok: Callable[[T], bool] | None,
        cancel: Callable[[Promise[object]], None],
        any_end: bool = False,
    ) -> None:
        super().__init__(host)
        self._each = list(members)
        self.members: Sequence[Promise[object]] = self._each
        self._open = len(self._each)
        self._ok, self._cancel, self._any_end = ok, cancel, any_end
        for member in self._each:
            member.when_ended(lambda member=member: self._one(member))
        if not self._each:
            self.settle(None)

    def _one(self, member: Promise[T]) -> None:
        if self._ended:
            return
        self._open -= 1
        try:
            wins = self._any_end or (member.error is None and (self._ok is None or self._ok(member.outcome())))
        # `ok` is the planner's own code: raise its exceptions in the flow, at the waiting `await`.
        except Exception as raised:
            self.settle(error=raised)
            return
        if wins:
            self.settle(None if member.error is not None else member.outcome(), member.error)
            for other in self._each:
                if not other.ended:
                    self._cancel(other)
        elif not self._open:
            self.settle(None)
