"""Planners written as coroutines.

    class Drafts(Flow):
        n: int = 4

        async def run(self, ctx: Flow.Context, question: str) -> Answerable:
            drafts = await ctx.gather(*(ctx.think(question, temperature=0.8) for _ in range(self.n)))
            return await ctx.join(drafts, merge="majority")

Each `ctx.think`, `ctx.call` and `ctx.join` makes a step. The steps made until the coroutine suspends enter the plan
together. A flow must be deterministic, because a resumed run executes the flow again against the journal. It therefore
awaits only handles of its context, and takes random numbers and the time from its context.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypedDict, TypeVar, Unpack, cast

from pydantic import JsonValue

from .budget import Budget
from .call_config import CallConfig
from .chat import Message
from .errors import FlowError
from .interfaces import Merge, Planner, PlanningContext, Reader
from .ops import Join, ModelCall, Op, Part, Plugin, Ref, Text, ToolCall
from .plan import Plan, Step
from .planning import CallOptions, TrajectoryOptions, call_model, derive
from .step_handles import (
    All,
    CallHandle,
    Chance,
    First,
    FlowHost,
    Group,
    JoinHandle,
    Pieces,
    Promise,
    Several,
    StepFailed,
    StepHandle,
    Trajectory,
)
from .tools.context import ToolContext
from .tools.tool import tool

__all__ = [
    "ROOT",
    "Answerable",
    "Context",
    "Flow",
    "StepFailed",
    "Trajectory",
    "ask_a_person",
    "flow_step",
    "flow_within",
    "is_root",
    "may_have_effects",
]

T = TypeVar("T")
M = TypeVar("M", bound=StepHandle[object])
ROOT = "flow"
"""Name of the step that a flow's run consists of at first."""
Answerable = StepHandle[object] | JsonValue
"""Return type of a flow: the run's value, or a step with this value."""
OnFailure = Literal["all", "quorum", "best-effort", "any-end"]


Waited = Promise[T] | Coroutine[object, None, T]
"""Arguments of `gather`, `first` and `race`: handles, and coroutines that make more steps."""


class AnyTool(Protocol):
    """A tool, as far as a flow looks at it."""

    name: str


class StepOptions(TypedDict, total=False):
    """Options that every step of a flow accepts."""

    name: str
    """Default: the step's kind and a number."""
    label: str
    budget: Budget | None
    priority: int


_new_step: Callable[..., Step] = Step


@tool
async def ask_a_person(question: str, choices: list[JsonValue], ctx: ToolContext) -> JsonValue:
    """Put a question to a person, for `Context.ask`. Every tool worker has this tool; planners do not see it."""
    return await ctx.ask(question, choices)


class Context:
    """The interface with which a flow makes its steps."""

    def __init__(self, host: FlowHost, brief: PlanningContext, planner: str) -> None:
        self.brief = brief
        """The request, its task, and the available tools."""
        self._inner: Inner | None = None
        self._tools = brief.tools  # of the run; `brief.tools` are this flow's
        self.host: FlowHost = host
        self._host = host
        self._planner = planner
        self._names: dict[str, None] = {}
        self._group: Group | None = None

    @property
    def random(self) -> Chance:
        """Random number generator with a reproducible seed; each coroutine of the flow has its own generator."""
        return self._host.place().random

    def now(self) -> float:
        """Return the seconds between the run's start and the current event."""
        return self._host.now()

    @property
    def token_limit(self) -> int | None:
        """The smallest limit of generated tokens of the run and of the scopes around this context; `None`: no limit."""
        budgets = [group.budget for group in self._group.chain()] if self._group is not None else []
        limits = [budget.tokens for budget in (self.brief.request.bounded, *budgets) if budget is not None]
        return min((tokens for tokens in limits if tokens is not None), default=None)

    def keep(self, value: object) -> str:
        """Store a value for the readers of the flow's steps and return its key in `PlanningContext.kept`. The state of
        each step then need not contain a value that grows with the run. A repeated flow must store the same value."""
        return self._host.keep(value)

    # -- steps -------------------------------------------------------------------------------------------------------

    def think(
        self, pieces: Pieces, prompt: CallConfig | None = None, **options: Unpack[TrajectoryOptions]
    ) -> Trajectory:
        """Call the model with the prompt `pieces`, configured by `prompt` and `options` (`plait.planning.call_model`).
        A handle among the pieces means the value of its step, which may still be running."""
        return self._think(pieces, None, prompt, options)

    def continued(
        self, line: Trajectory, pieces: Pieces, prompt: CallConfig | None, options: TrajectoryOptions
    ) -> Trajectory:
        """Continue a line (`Trajectory.think`)."""
        return self._think(pieces, line, prompt, options)

    def step(self, step: Step) -> Trajectory:
        """Make a model call from a plan's step, such as a step of `plait.planning.call_model`."""
        if not isinstance(step.op, ModelCall):
            raise FlowError(f"{step.name} is no model call: use `ctx.call` and `ctx.join`")
        return self._add(Trajectory(self, self._host, step))

    def plan(self, plan: Plan) -> StepHandle[object]:
        """Make the steps of a helper's plan; return the handle of the plan's output."""
        kinds: dict[str, type[Trajectory | CallHandle | JoinHandle]] = {
            "think": Trajectory,
            "call": CallHandle,
            "join": JoinHandle,
        }
        made = {step.name: self._add(kinds[step.op.kind](self, self._host, step)) for step in plan.steps}
        if plan.output not in made:
            raise FlowError(f"the plan has no step {plan.output!r}, which it names as its output")
        return made[plan.output]

    def call(self, name: str | AnyTool, /, **args: object) -> CallHandle:
        """Call a tool, by its name. A handle among the arguments means the value of its step."""
        op = ToolCall(
            tool=name if isinstance(name, str) else name.name, args={k: _argument(v) for k, v in args.items()}
        )
        return self._add(CallHandle(self, self._host, self._step("call", op, (), {})))

    def called(
        self, op: ToolCall, after: Iterable[StepHandle[object]] = (), **named: Unpack[StepOptions]
    ) -> CallHandle:
        """Make a tool call from a plan's op, once the steps `after` have succeeded."""
        return self._add(CallHandle(self, self._host, self._step("call", op, (step.name for step in after), named)))

    def ask(self, question: str, choices: Sequence[JsonValue] = ()) -> CallHandle:
        """Put a question to a person. Awaiting the handle gives the answer, one of `choices` if given. It raises
        `StepFailed` if no one can be asked."""
        return self.call(ask_a_person, question=question, choices=list(choices))

    async def score(self, line: Trajectory, by: str | AnyTool, **args: object) -> float:
        """Score a trajectory's text with a tool that takes `text` and returns a number."""
        await line
        value = await self.call(by, text=line.line, **args)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FlowError(f"the tool {by!r} scored {line.name} with {value!r}: it must return a number")
        return float(value)

    def join(
        self,
        branches: Iterable[StepHandle[object]],
        merge: str | Plugin | Merge = "collect",
        *,
        on_failure: OnFailure = "all",
        quorum: int | None = None,
        deadline: float | None = None,
        early: bool = False,
        **named: Unpack[StepOptions],
    ) -> JoinHandle:
        """Join several steps into one value; options as for `Join`. The steps may still be running."""
        needs = list(branches)
        for need in needs:
            if not isinstance(need, StepHandle):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise FlowError(f"a join takes steps (think, call, join), not {need!r}: await it, or give its steps")
        spec = Plugin(name=merge) if isinstance(merge, str) else Plugin.of(merge)
        op = Join(merge=spec, on_failure=on_failure, quorum=quorum, deadline=deadline, early=early)
        return self._joined("join", op, (need.name for need in needs), named)

    def answer(
        self,
        value: StepHandle[object] | JsonValue,
        why: str = "",
        *,
        data: JsonValue = None,
        **named: Unpack[StepOptions],
    ) -> JoinHandle:
        """Return a step with the given value or another step's value, a note on the value's origin, and `data` for
        programs."""
        told: dict[str, JsonValue] = {} if data is None else {"data": data}
        if isinstance(value, StepHandle):
            spec = Plugin(name="stitch", options={**({"note": why} if why else {}), **told})
            return self._joined("answer", Join(merge=spec), (value.name,), named)
        spec = Plugin(name="constant", options={"value": value, "why": why, **told})
        return self._joined("answer", Join(merge=spec, on_failure="any-end"), (), named)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def gather(self, *awaited: Waited[T], return_exceptions: bool = False) -> All[T]:
        """Wait for steps and coroutines concurrently; awaiting the handle gives their values in order. The first
        exception ends the wait, unless exceptions are returned among the values."""
        return All(self._host, [self._one(waited) for waited in awaited], return_exceptions)

    def first(self, awaited: Iterable[Waited[T]], ok: Callable[[T], bool] | None = None) -> First[T]:
        """Wait for the first value that passes `ok` (without `ok`: the first value) and cancel the others, in the
        engine too. Awaiting the handle gives this value, or `None` if no value passes."""
        return First(self._host, [self._one(waited) for waited in awaited], ok, self.cancel)

    def race(self, awaited: Iterable[Waited[T]]) -> First[T]:
        """Wait until the first one ends, in a value or an exception, and cancel the others."""
        return First(self._host, [self._one(waited) for waited in awaited], None, self.cancel, any_end=True)

    def cancel(self, awaited: Promise[object], reason: str = "given up by the flow") -> None:
        """Cancel a step, or a coroutine of `gather`, `first` or `race` with the coroutine's steps."""
        match awaited:
            case Several():
                for member in awaited.members:
                    self.cancel(member, reason)
            case StepHandle():
                if not awaited.ended:
                    self._host.give_up(awaited, reason)
            case _:
                self._host.abandon(awaited, reason)

    def scope(self, budget: Budget | None = None) -> BudgetScope:
        """Return a context for `async with` whose steps share a budget. Leaving it cancels the running steps."""
        name = self._host.place().next("scope")
        name = name if self._group is None else f"{self._group.name}/{name}"
        return BudgetScope(self, Group(name, budget, self._group))

    def inside(self, group: Group) -> Context:
        """Return a context like this one whose steps belong to a group."""
        inner = Context(self._host, self.brief, self._planner)
        inner._names, inner._group, inner._inner = self._names, group, self._inner
        inner._tools = self._tools
        return inner

    async def delegate(
        self,
        flow: Flow,
        question: str,
        *,
        name: str = "",
        tools: Sequence[str] | None = None,
        budget: Budget | None = None,
        messages: Sequence[Message] = (),
    ) -> JsonValue:
        """Run another flow on a question within this run, and return the flow's value.

        The steps have names that begin with `name`, share a budget, and are cancelled with this flow. The other flow
        sees the named `tools` of the run (default: all), and the conversation before the question (`messages`). Raises
        the flow's exceptions; `FlowError` for an unknown tool.
        """
        known = {tool.name for tool in self._tools}
        missing = sorted(set(tools or ()) - known)
        if missing:
            raise FlowError(f"{name or 'a flow'} wants the tools {', '.join(missing)}: give them to the run")
        place = self._next(name or "flow")
        async with self.scope(budget) as inner:
            chosen = tuple(tool for tool in self._tools if tools is None or tool.name in tools)
            asked = {"text": question, "messages": tuple(messages), "asked": False}
            request = self.brief.request.model_copy(update=asked)
            task = self.brief.task.model_copy(update={"text": question})
            inner.brief = replace(self.brief, request=request, task=task, tools=chosen)
            inner._inner = Inner(f"{place}.", Plugin.of(flow), None if tools is None else tuple(tools))
            value = await flow.run(inner, question)
            if not isinstance(value, StepHandle):
                return value
            await value
            return value.value

    # -- inside ------------------------------------------------------------------------------------------------------

    def _one(self, awaited: Waited[T]) -> Promise[T]:
        return awaited if isinstance(awaited, Promise) else self._host.spawn(awaited)

    def _think(
        self, pieces: Pieces, after: Trajectory | None, prompt: CallConfig | None, options: TrajectoryOptions
    ) -> Trajectory:
        inner = self._inner
        if inner is not None:
            if "name" in options:
                options["name"] = f"{inner.prefix}{options['name']}"
            if options.get("expands"):
                options["state"] = inner.wrapped(options.get("state"))
            if after is None:
                options.setdefault("messages", ())  # not those of the request
        named: dict[str, object] = {**options}
        name = str(named.pop("name", "")) or self._next("think")
        if options.get("stop") or (prompt is not None and prompt.stop):
            named.setdefault("keep_stop", True)
        before = None if after is None else after.name
        step = call_model(
            self.brief, self._planner, name, _parts(pieces), prompt, after=before, **cast("CallOptions", named)
        )
        return self._add(Trajectory(self, self._host, step))

    def _next(self, kind: str) -> str:
        prefix = self._inner.prefix if self._inner is not None else ""
        name = f"{prefix}{self._host.place().next(kind)}"
        while name in self._names:
            name = f"{prefix}{self._host.place().next(kind)}"
        return name

    def _joined(self, kind: str, op: Join, needs: Iterable[str], named: StepOptions) -> JoinHandle:
        return self._add(JoinHandle(self, self._host, self._step(kind, op, needs, named)))

    def _step(self, kind: str, op: Op, needs: Iterable[str], named: StepOptions) -> Step:
        prefix = self._inner.prefix if self._inner is not None else ""
        own = named.get("name")
        name = f"{prefix}{own}" if own else self._next(kind)
        return _new_step(**{**named, "name": name, "op": op, "needs": tuple(dict.fromkeys(needs))})

    def _add(self, handle: M) -> M:
        if handle.name in self._names:
            raise FlowError(f"a step of this flow is named {handle.name!r} already: leave `name` out, or give another")
        self._names[handle.name] = None
        self._host.add_step(handle, self._group)
        return handle


class Inner(NamedTuple):
    """A flow that works within another (`Context.delegate`)."""

    prefix: str
    """Before the names of its steps."""
    planner: Plugin
    tools: tuple[str, ...] | None

    def wrapped(self, state: JsonValue) -> JsonValue:
        """Return a step's reader state: the step's flow, and the reader's own state."""
        tools = None if self.tools is None else list[JsonValue](self.tools)
        return {"planner": self.planner.model_dump(mode="json"), "tools": tools, "state": state}


class BudgetScope:
    """A part of a flow whose steps share a budget and end with it."""

    def __init__(self, context: Context, group: Group) -> None:
        self._context, self._group = context, group

    async def __aenter__(self) -> Context:
        return self._context.inside(self._group)

    async def __aexit__(self, *error: object) -> None:
        for step in self._group.steps:
            self._context.cancel(step, "its scope has ended")


_Context = Context


class Flow(Planner):
    """A planner written as a coroutine. Its fields are its options, as in any planner."""

    if TYPE_CHECKING:
        Context = _Context  # an alias, so that `ctx: Flow.Context` can be written
    else:
        Context: ClassVar[type[_Context]] = _Context
    turn_seconds: ClassVar[float] = 10.0
    """Maximum seconds that the flow may run without waiting for a step. A flow blocks the process while it runs, so a
    slower flow fails."""
    gone: ClassVar[str] = ""
    """Reason why another process cannot resume the flow's run; empty if it can."""

    cuts_are_fine: ClassVar[bool] = False
    """The answer is complete even if a budget or deadline cut a result that the flow read. Default: it is partial."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Make steps, await them, and return the answer's step or value. `question` is the request as its task renders
        it for a model.

        Any exception fails the run. A cancelled coroutine gets `asyncio.CancelledError` at its `await` and may make no
        further steps.
        """
        raise NotImplementedError

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of a step of a flow inside this flow (`Context.delegate`)."""
        match step.state:
            case {"planner": dict() as spec, "tools": tools, "state": state}:
                planner = brief.plugin("planner", Plugin.model_validate(spec))
                assert isinstance(planner, Planner)
                chosen = tuple(tool for tool in brief.tools if not isinstance(tools, list) or tool.name in tools)
                return planner.reader(step.model_copy(update={"state": state}), replace(brief, tools=chosen))
            case _:
                return super().reader(step, brief)

    def start(self, brief: PlanningContext) -> Plan:
        """Return the step that represents the flow and expands into the flow's steps."""
        step = Step(
            name=ROOT,
            op=Join(merge=Plugin(name="constant"), on_failure="any-end"),
            expands=True,
            label=type(self).__name__,
        )
        return Plan(steps=(step,), output=ROOT)


def is_root(step: Step) -> bool:
    """Return whether a step represents a flow."""
    return step.op.kind == "join" and not step.needs and step.expands


def flow_step(flow: Flow, question: str, name: str, *, label: str = "", reach: Sequence[str] | None = None) -> Step:
    """Return a step for a reader's patch: a flow that works on a question within the run. The step's value is the
    flow's. `reach` names the tools that the flow may call (default: all tools of the run)."""
    spec = Plugin.of(flow).model_dump(mode="json")
    tools = None if reach is None else list[JsonValue](reach)
    state: JsonValue = {"flow": spec, "question": question, "reach": tools}
    op = Join(merge=Plugin(name="constant"), on_failure="any-end")
    return Step(name=name, op=op, expands=True, label=label, state=state)


def flow_within(step: Step, brief: PlanningContext) -> tuple[Flow, PlanningContext] | None:
    """Return the flow of a step made by `flow_step`, and the flow's brief; `None` for any other step. `brief` is the
    run's. Raises `PluginError` for an unknown planner."""
    match step.state:
        case {"flow": dict() as spec, "question": str() as question}:
            flow = brief.plugin("planner", Plugin.model_validate(spec))
            assert isinstance(flow, Flow)
            seed = derive(brief.request.seed, "flow", step.name)
            request = brief.request.model_copy(update={"text": question, "messages": (), "asked": False, "seed": seed})
            return flow, replace(brief, request=request, task=brief.task.model_copy(update={"text": question}))
        case _:
            return None


def may_have_effects(step: Step, brief: PlanningContext) -> bool:
    """Return whether a step has side effects, or is a flow that may call a tool with side effects."""
    match step.state:
        case {"flow": dict(), "reach": reach}:
            tools = (tool for tool in brief.tools if not isinstance(reach, list) or tool.name in reach)
            return any(tool.side_effects or tool.approve for tool in tools)
        case _:
            return step.side_effects


def _parts(prompt: Pieces) -> tuple[Part, ...]:
    if isinstance(prompt, str):
        return (Text(text=prompt),)
    pieces = cast(
        "Sequence[str | Part | StepHandle[object]]", prompt if isinstance(prompt, list | tuple) else (prompt,)
    )
    return tuple(map(_part, pieces))


def _part(piece: str | Part | StepHandle[object]) -> Part:
    if isinstance(piece, StepHandle):
        return Ref(step=piece.name)
    return Text(text=piece) if isinstance(piece, str) else piece


def _argument(value: object) -> object:
    """Return an argument with its handles replaced by references; data that only looks like a reference is escaped."""
    match value:
        case StepHandle():
            return {"$ref": value.name}
        case dict():
            items = cast("dict[str, object]", value)
            if any(key.startswith("$") for key in items):
                return {"$literal": items}
            return {key: _argument(item) for key, item in items.items()}
        case list() | tuple():
            return [_argument(item) for item in cast("Sequence[object]", value)]
        case _:
            return value
