"""Planners written as coroutines.

    class Drafts(Flow):
        n: int = 4

        async def run(self, ctx: Flow.Context, question: str) -> Answerable:
            drafts = await ctx.gather(*(ctx.think(question, temperature=0.8) for _ in range(self.n)))
            return await ctx.join(drafts, merge="majority")

Each `ctx.think`, `ctx.call` and `ctx.join` makes a step; the steps made until the coroutine suspends enter the plan
together. A flow has to make the same steps whenever the steps end in the same way: a run that is resumed executes it
again, against the journal. So it awaits nothing but handles of its context, and takes chance and time from there.
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
from .renamed import accept
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
"""What a flow may return: a step, whose value is the run's, or a value."""
OnFailure = Literal["all", "quorum", "best-effort", "any-end"]


Waited = Promise[T] | Coroutine[object, None, T]
"""What `gather`, `first` and `race` take: handles, and coroutines that make more."""


class AnyTool(Protocol):
    """A tool, as far as a flow looks at it."""

    name: str


class StepOptions(TypedDict, total=False):
    """Options that every step of a flow accepts."""

    name: str
    """By default its kind and a number."""
    label: str
    budget: Budget | None
    priority: int


_new_step: Callable[..., Step] = Step


@tool
async def ask_a_person(question: str, choices: list[JsonValue], ctx: ToolContext) -> JsonValue:
    """Put a question to a person, for `Context.ask`. Every worker for tools has it; planners do not see it."""
    return await ctx.ask(question, choices)


class Context:
    """What a flow makes its steps with."""

    def __init__(self, host: FlowHost, brief: PlanningContext, planner: str) -> None:
        self.brief = brief
        """The request, its task, and the tools there are."""
        self._inner: Inner | None = None
        self._tools = brief.tools  # of the run; `brief.tools` are this flow's
        self.host: FlowHost = host
        self._host = host
        self._planner = planner
        self._names: dict[str, None] = {}
        self._group: Group | None = None

    @property
    def random(self) -> Chance:
        """Random numbers, the same whenever the run is made again; each coroutine of the flow has its own."""
        return self._host.place().random

    def now(self) -> float:
        """Return the seconds since the run began, as of the event that the flow is reacting to."""
        return self._host.now()

    def keep(self, value: object) -> str:
        """Keep something for the readers of the flow's steps, and return the name under which `PlanningContext.kept`
        has it: what grows with the run need not be in the state of every step. It must be there again, the same,
        whenever the flow is run again."""
        return self._host.keep(value)

    # -- steps -------------------------------------------------------------------------------------------------------

    def think(
        self, pieces: Pieces, prompt: CallConfig | None = None, **options: Unpack[TrajectoryOptions]
    ) -> Trajectory:
        """Call the model: `pieces` are its prompt, `prompt` and `options` configure it (`plait.planning.call_model`).
        Handles among the pieces stand for the values of their steps, which need not have ended."""
        return self._think(pieces, None, prompt, options)

    def continued(
        self, line: Trajectory, pieces: Pieces, prompt: CallConfig | None, options: TrajectoryOptions
    ) -> Trajectory:
        """Continue a line (`Trajectory.think`)."""
        return self._think(pieces, line, prompt, options)

    def step(self, step: Step) -> Trajectory:
        """Make a model call of a step as plans have them, such as those of `plait.planning.call_model`."""
        if not isinstance(step.op, ModelCall):
            raise FlowError(f"{step.name} is no model call: use `ctx.call` and `ctx.join`")
        return self._add(Trajectory(self, self._host, step))

    def plan(self, plan: Plan) -> StepHandle[object]:
        """Make the steps of a plan that a helper has put together; return its output."""
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
        """Call a tool, by its name. Handles among the arguments stand for the values of their steps."""
        op = ToolCall(
            tool=name if isinstance(name, str) else name.name, args={k: _argument(v) for k, v in args.items()}
        )
        return self._add(CallHandle(self, self._host, self._step("call", op, (), {})))

    def called(
        self, op: ToolCall, after: Iterable[StepHandle[object]] = (), **named: Unpack[StepOptions]
    ) -> CallHandle:
        """Make a tool call as plans have it, once the steps `after` have ended in a value."""
        return self._add(CallHandle(self, self._host, self._step("call", op, (step.name for step in after), named)))

    def ask(self, question: str, choices: Sequence[JsonValue] = ()) -> CallHandle:
        """Put a question to a person. Awaiting it gives the answer, one of `choices` if there are any; `StepFailed` if
        no one can be asked."""
        return self.call(ask_a_person, question=question, choices=list(choices))

    async def score(self, line: Trajectory, by: str | AnyTool, **args: object) -> float:
        """Return a tool's score of a line's text: the tool takes `text` and returns a number."""
        await line
        value = await self.call(by, text=line.line, **args)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FlowError(f"the tool {by!r} scored {line.name} with {value!r}: it must return a number")
        return float(value)

    @accept(tolerate="on_failure")
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
        """Make one value of several steps; options as those of `Join`. The steps need not have ended."""
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
        """Return a step that has a value, or passes a step's value on, with a note on how it came about, and `data` for
        programs that want to know."""
        told: dict[str, JsonValue] = {} if data is None else {"data": data}
        if isinstance(value, StepHandle):
            spec = Plugin(name="stitch", options={**({"note": why} if why else {}), **told})
            return self._joined("answer", Join(merge=spec), (value.name,), named)
        spec = Plugin(name="constant", options={"value": value, "why": why, **told})
        return self._joined("answer", Join(merge=spec, on_failure="any-end"), (), named)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def gather(self, *awaited: Waited[T], return_exceptions: bool = False) -> All[T]:
        """Wait for steps and coroutines side by side; awaiting it gives their values in order. The first exception
        ends it, unless exceptions are to stand among the values."""
        return All(self._host, [self._one(waited) for waited in awaited], return_exceptions)

    def first(self, awaited: Iterable[Waited[T]], ok: Callable[[T], bool] | None = None) -> First[T]:
        """Wait for the first value for which `ok` holds (the first value at all without it) and give up the others, in
        the engine too. Awaiting it gives that value, or `None` if no value passes."""
        return First(self._host, [self._one(waited) for waited in awaited], ok, self.cancel)

    def race(self, awaited: Iterable[Waited[T]]) -> First[T]:
        """Wait for the first to end, in a value or an exception, and give up the others."""
        return First(self._host, [self._one(waited) for waited in awaited], None, self.cancel, any_end=True)

    def cancel(self, awaited: Promise[object], reason: str = "given up by the flow") -> None:
        """Give something up: a step, or a coroutine of `gather`, `first` or `race` with the steps that it has made."""
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
        """Return a context for `async with` whose steps share a budget. Its end gives up those that still run."""
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
        """Let another flow work on a question, within this run, and return its value.

        Its steps have names that begin with `name`, share a budget, and are given up with this flow. It sees those of
        the run's `tools` that are named (all by default), and the conversation before the question (`messages`).
        Raises what the flow raises; `FlowError` for an unknown tool.
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
        """Return the state that the reader of a step needs: the step's flow, and the reader's own state."""
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
    """A planner written as a coroutine. Its fields are its options, as with any planner."""

    if TYPE_CHECKING:
        Context = _Context  # an alias, so that `ctx: Flow.Context` can be written
    else:
        Context: ClassVar[type[_Context]] = _Context
    turn_seconds: ClassVar[float] = 10.0
    """Seconds that it may run without waiting for a step. It blocks the rest of the process meanwhile, so a flow that
    takes longer fails."""
    gone: ClassVar[str] = ""
    """Why a run of it cannot be taken up by another process, if it cannot."""

    cuts_are_fine: ClassVar[bool] = False
    """Its answer is whole even if a budget or deadline cut a result that it read. By default it is partial then."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Make steps, await them, and return the step (or value) that answers. `question` is the request as its task
        puts it to a model.

        It may raise anything, which fails the run. What is given up gets `asyncio.CancelledError` at its `await`, and
        may make no more steps then.
        """
        raise NotImplementedError

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of a step of a flow that works within this one (`Context.delegate`)."""
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
    """Return a step for the patch of a reader: a flow that works on a question, as a part of the run. Its value is the
    flow's. `reach` names the tools that the flow may call; by default all of the run."""
    spec = Plugin.of(flow).model_dump(mode="json")
    tools = None if reach is None else list[JsonValue](reach)
    state: JsonValue = {"flow": spec, "question": question, "reach": tools}
    op = Join(merge=Plugin(name="constant"), on_failure="any-end")
    return Step(name=name, op=op, expands=True, label=label, state=state)


def flow_within(step: Step, brief: PlanningContext) -> tuple[Flow, PlanningContext] | None:
    """Return the flow that a step of `flow_step` represents, and its brief; `None` for any other step. `brief` is the
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
    """Whether a step changes the world, or is a flow that may call a tool which does."""
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
    """Return an argument with references in the place of handles; what only looks like a reference is protected."""
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
