"""Ask planners for plans and patches, on behalf of a driver or the simulator.

Holds a run's planner and the readers of its expanding steps. Their plans, patches and exceptions become events. It has
no clock and no loop: callers pass the times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...core.errors import RAISED, NotAllowed, PlaitError, PlannerError
from ...core.events import Action, Event, Expand, Expanded, Pruned, Submitted
from ...core.flow import Flow, ask_a_person, flow_within, is_root, may_have_effects
from ...core.interfaces import Planner, PlanningContext, Reader, demand_size
from ...core.ops import Join, ModelCall, Text, ToolCall
from ...core.plan import Plan, Step
from ...core.request import Request
from ...core.result import as_failure, cancelled_failure, frames_of
from ...core.rights import Rights
from ...core.sampling import ANSWER_FIELDS, resolve, set_fields
from ...core.states import State
from ...core.tools.schemas import MORE_TOOLS
from ...core.tools.tool import ToolSpec
from ...core.values import json_value
from ...core.view import StepView
from ...machine import Machine
from . import typed_answers
from .flows import End, FlowRecord, RunningFlow, replay_flow

ENDS = (State.DONE.value, State.FAILED.value, State.CANCELLED.value)
"""States of steps that have ended."""


@dataclass(slots=True)
class _Reading:
    """A step that is being read."""

    attempt: int
    reader: Reader | None
    """`None` if it has raised and is not called again."""
    held: list[Plan] = field(default_factory=list[Plan])
    """Patches with side effects, or that need such steps: they wait until the text is complete. A lost attempt is
    retried and voids its patches, which must have had no effects by then."""
    names: set[str] = field(default_factory=set[str])
    """Names of the steps that are held."""

    def ready(self, patches: Sequence[Plan], brief: PlanningContext) -> list[Plan]:
        """Return the patches that may start now, and hold the others."""
        ready: list[Plan] = []
        for patch in patches:
            effects = any(may_have_effects(step, brief) for step in patch.steps)
            if effects or (self.names and any(name in self.names for name in _mentioned(patch))):
                self.held.append(patch)
                self.names |= {step.name for step in patch.steps}
            else:
                ready.append(patch)
        return ready


@dataclass(slots=True)
class _Open:
    """A run whose steps may expand."""

    planner: Planner
    brief: PlanningContext
    readers: dict[str, _Reading] = field(default_factory=dict[str, _Reading])
    """By step id."""
    shift: float = 0.0
    """Seconds by which the machine's clock is ahead of the run's."""


class Expander:
    """The planners of all active runs. `revise` is applied to every plan and patch, with the planning context of its
    run, before it becomes an event."""

    def __init__(self, revise: Callable[[Plan, PlanningContext], Plan] | None = None) -> None:
        self._revise = revise or _as_it_is
        self._runs: dict[str, _Open] = {}
        self._given: dict[str, PlanningContext] = {}
        """Planning contexts of runs with a complete plan: they have no planner, but patches of merges are revised."""
        self.flows: dict[str, RunningFlow] = {}
        """By the id of the step that represents the flow."""

    def adopt(self, run: str, planner: Planner, brief: PlanningContext) -> None:
        """Register a run that was planned before, so that its steps can continue to expand."""
        self._runs[run] = _Open(planner, brief)

    def add_complete_plan(self, run: str, brief: PlanningContext) -> None:
        """Register a run with a complete plan."""
        self._given[run] = brief

    def start(self, run: str, planner: Planner, brief: PlanningContext, at: float) -> Submitted:
        """Ask the planner for its first plan and return the event that submits it.

        Raises `UsageError` if its options ask for too many steps, a `PlaitError` of the planner as it is, and
        `PlannerError` for any other error of the planner. Such a run is not registered.
        """
        try:
            demand_size(planner, brief)
            plan = sound_plan(planner.start(brief), type(planner).__name__)
        except RAISED as error:
            raise _of_planner(planner, "start", error) from error
        self._runs[run] = _Open(planner, brief)
        if brief.request.output is not None:
            plan = typed_answers.with_form(plan, brief.request)
        plan = answering(self._revise(plan, brief), brief.request)
        return Submitted(at=at, run=run, request=brief.request, plan=plan)

    def collect_events(self, machine: Machine, at: float) -> list[Event]:
        """Report the steps that ended in the last `Machine.handle` to their flows; return the flows' events."""
        ends: dict[str, list[End]] = {}
        for _, step, _, state, _ in machine.moves:
            if state in ENDS:
                root = step.rpartition("/")[0]
                flow = self.flows.get(root)
                if flow is not None and flow.knows(step) and root.partition(":")[0] in machine.runs:
                    ends.setdefault(root, []).append(end_of(machine, step))
        events: list[Event] = []
        for root, news in ends.items():
            flow = self.flows[root]
            if machine.nodes[root].ended:  # the flow was cancelled as a whole
                flow.close(news)
            else:
                events += flow.handle_ends(news, machine.now - self._runs[root.partition(":")[0]].shift, at)
        return events

    def shift(self, run: str, seconds: float) -> None:
        """Set the seconds by which a run's new machine is ahead of its old clock."""
        self._runs[run].shift = seconds

    def is_flow(self, step: Step, run: str) -> bool:
        """Return whether a step of a run represents a flow: the run's planner or one within it."""
        opened = self._runs.get(run)
        return opened is not None and (isinstance(opened.planner, Flow) or flow_within(step, opened.brief) is not None)

    def replay_flow(self, action: Expand, machine: Machine, trail: Iterable[FlowRecord], at: float) -> list[Event]:
        """Replay a flow through its journal records; return the events that the journal lacks. Raises `ConfigError` if
        the flow differs from its records."""
        opened = self._runs[action.step.partition(":")[0]]
        flow = self._flow(opened, machine.nodes[action.step].step, action, machine)
        assert flow is not None
        return replay_flow(flow, trail, lambda step: end_of(machine, step), at)

    def _flow(self, opened: _Open, step: Step, action: Expand, machine: Machine) -> RunningFlow | None:
        """Return a new `RunningFlow` for the flow that a step represents, or `None` for any other step."""
        within = flow_within(step, opened.brief)
        if within is None and not isinstance(opened.planner, Flow):
            return None
        flow, brief = within or (opened.planner, opened.brief)
        assert isinstance(flow, Flow)
        account = machine.nodes[action.step].account
        turns = account is not None and any(a.budget.turns is not None for a in (account, *account.around))
        running = self.flows[action.step] = RunningFlow(flow, brief, action.step, action.attempt, self._revise, turns)
        return running

    def slow_part(self, action: Expand, machine: Machine) -> Callable[[], object] | None:
        """Return the slow part of an expansion, to be called on a thread before `expand`: the parsing of an answer by
        the caller's form. `None` if there is no such part."""
        # It must not touch the machine, which the loop changes meanwhile.
        node, opened = machine.nodes.get(action.step), self._runs.get(action.step.partition(":")[0])
        if action.result is None or action.result.patch is not None or node is None or opened is None:
            return None
        if not typed_answers.reads(node.step, opened.brief):
            return None
        reading = opened.readers.get(action.step)
        if reading is None or reading.attempt < action.attempt:
            reading = _Reading(action.attempt, typed_answers.OutputReader(node.step, opened.brief))
            opened.readers[action.step] = reading
        reader = reading.reader
        return partial(reader.look, action.result) if isinstance(reader, typed_answers.OutputReader) else None

    def expand(self, action: Expand, machine: Machine, at: float) -> list[Event]:
        """Feed a step's reader and return its events, in order; after the step's result the last event closes it.

        An error of the planner becomes an event too, and ends the step. Input for an ended step gives no event.
        """
        step = machine.view().step(action.step)
        if step is None:
            return []
        if action.result is not None and action.result.patch is not None:  # a merge's patch, which needs no planner
            asking = self._runs.get(step.run)
            brief = self._given.get(step.run) if asking is None else asking.brief
            patch = action.result.patch
            try:
                patch = patch if brief is None else self._revise(patch, brief)
            except NotAllowed as error:
                return [_failed(action, at, error)]
            return [Expanded(at=at, step=action.step, attempt=action.attempt, patch=patch, closed=True)]
        opened = self._runs.get(step.run)
        if opened is None:
            message = f"run {step.run} was submitted without a planner, so {action.step} has nothing to expand into"
            return [_failed(action, at, PlannerError(message))]
        if is_root(step.plan):
            if action.step in self.flows:
                return []
            try:
                flow = self._flow(opened, step.plan, action, machine)
            except RAISED as error:
                return [_failed(action, at, _of_planner(opened.planner, f"flow {step.plan.name!r}", error), error)]
            if flow is not None:
                return flow.begin(machine.now, at)
        # Text of an older attempt comes late, and a reader that raised has failed the step already.
        reading = opened.readers.get(action.step)
        if reading is not None and (
            reading.attempt > action.attempt or (reading.attempt == action.attempt and reading.reader is None)
        ):
            return []
        try:
            if reading is None or reading.attempt != action.attempt:
                reading = _Reading(action.attempt, _reader(opened, action.step, machine))
                opened.readers[action.step] = reading
            events: list[Event] = [*self._read(reading, opened.brief, action, step, at)]
        except RAISED as error:
            opened.readers[action.step] = _Reading(action.attempt, None)
            return [_failed(action, at, _of_planner(opened.planner, f"reader of {step.plan.name!r}", error), error)]
        if action.result is not None:
            del opened.readers[action.step]
        return events

    def _read(
        self, reading: _Reading, brief: PlanningContext, action: Expand, step: StepView, at: float
    ) -> list[Expanded]:
        assert reading.reader is not None
        patches: list[Plan] = []
        if action.delta is not None:
            fed: Sequence[Plan] = reading.reader.feed(action.delta)
            patches += reading.ready([self._revise(sound_plan(patch, "its reader"), brief) for patch in fed], brief)
        last: Plan | None = None
        if action.result is not None:
            # `merged` is optional: most readers need the result of a join alone and not its branches.
            merged = getattr(reading.reader, "merged", None)
            if merged is not None and step.kind == "join":
                made: Plan | None = merged(action.result, step.branches())
            else:
                made = reading.reader.close(action.result)
            last = None if made is None else self._revise(sound_plan(made, "its reader"), brief)
            patches += reading.held
        events = [Expanded(at=at, step=action.step, attempt=action.attempt, patch=patch) for patch in patches]
        if action.result is not None:
            events.append(Expanded(at=at, step=action.step, attempt=action.attempt, patch=last, closed=True))
        return events

    def forget(self, run: str) -> None:
        """Drop an ended run."""
        self._runs.pop(run, None)
        self._given.pop(run, None)
        for root in [flow for flow in self.flows if flow.partition(":")[0] == run]:
            self.flows.pop(root).close()


def _reader(opened: _Open, name: str, machine: Machine) -> Reader:
    """Return the reader of a step: that of the flow that made it, or else that of the run's planner."""
    step = machine.nodes[name].step
    if typed_answers.reads(step, opened.brief):
        return typed_answers.OutputReader(step, opened.brief)
    above = name.rpartition("/")[0]
    while above:
        node = machine.nodes.get(above)
        within = None if node is None else flow_within(node.step, opened.brief)
        if within is not None:
            return within[0].reader(step, within[1])
        above = above.rpartition("/")[0]
    return opened.planner.reader(step, opened.brief)


def heard_at(root: str, event: Event, machine: Machine, actions: Sequence[Action]) -> FlowRecord | None:
    """Return the record of an event that a machine has just handled for the flow of a root, or `None`."""
    of_flow: Expanded | Pruned | None = None
    if isinstance(event, Expanded | Pruned) and (event.step == root or event.step.rpartition("/")[0] == root):
        of_flow = event if isinstance(event, Pruned) == (event.step != root) else None
    ended = tuple(step for _, step, _, state, _ in machine.moves if state in ENDS and step.rpartition("/")[0] == root)
    began = any(isinstance(action, Expand) and action.step == root for action in actions)
    return FlowRecord(machine.now, of_flow, ended, began) if of_flow is not None or ended or began else None


def end_of(machine: Machine, step: str) -> End:
    """Return the end of a step of an active run."""
    node = machine.nodes[step]
    if node.outcome.result is not None:
        return End(step, node.outcome.result, None)
    return End(step, None, node.outcome.failure or cancelled_failure(node.outcome.cause, node.last_move[4]))


def _as_it_is(plan: Plan, brief: PlanningContext) -> Plan:
    return plan


def _mentioned(patch: Plan) -> Iterator[str]:
    for step in patch.steps:
        yield from step.references()
        if step.op.kind == "think" and step.op.after is not None:
            yield step.op.after
    if patch.output is not None:
        yield patch.output


def _failed(action: Expand, at: float, error: PlaitError, raised: BaseException | None = None) -> Expanded:
    """Return the failed end of an expansion, with the frames of the planner's own exception `raised`."""
    frames = frames_of(raised) if raised is not None and raised is not error else ""
    failure = as_failure(error).model_copy(update={"frames": frames})
    return Expanded(at=at, step=action.step, attempt=action.attempt, failure=failure)


def _of_planner(planner: Planner, what: str, error: BaseException) -> PlaitError:
    """Return a planner's exception as a `PlaitError`."""
    if isinstance(error, PlaitError):
        return error
    return PlannerError(f"{type(planner).__name__} raised {type(error).__name__} in its {what}: {error}")


def revised(plan: Plan, brief: PlanningContext) -> Plan:
    """Return a plan completed with the settings of its run's tools and request. Raises `NotAllowed` for a step that
    exceeds the rights of the run."""
    if brief.request.rights.__dict__ != _ALL.__dict__:
        brief.request.rights.hold(plan)
    plan = with_defaults(plan, brief.request)
    if "call" not in {step.op.kind for step in plan.steps}:
        return plan
    return with_approval(marked(plan, brief.tools), brief)


_ALL = Rights.model_construct()


def answering(plan: Plan, request: Request) -> Plan:
    """Return a run's first plan with the request's settings for the answer (a required function call, its beginning,
    its form) in the calls that generate it: the output step, or the branches of its join."""
    # Later plans ask other questions too: they get functions as an offer only, and a required call is checked in the
    # answer.
    must_call = request.tool_choice not in ("auto", "none")
    if not (must_call or request.begin or request.form is not None):
        return plan
    output = next((step for step in plan.steps if step.name == plan.output), None)
    asked = () if output is None else output.needs if isinstance(output.op, Join) else (output.name,)

    def completed(step: Step) -> Step:
        op = step.op
        if step.name not in asked or step.expands or not isinstance(op, ModelCall):
            return step
        update: dict[str, object] = {}
        if must_call and op.tool_choice == "auto":
            update |= {"tools": request.tools, "tool_choice": request.tool_choice}
        if request.begin and op.chat and not op.begin:
            update["begin"] = request.begin
        if request.form is not None and op.sampling.structured is None:
            update["sampling"] = op.sampling.model_copy(update={"structured": request.form})
        return step.model_copy(update={"op": op.model_copy(update=update)}) if update else step

    return plan.model_copy(update={"steps": tuple(map(completed, plan.steps))})


def with_defaults(plan: Plan, request: Request) -> Plan:
    """Return a plan whose model calls have the request's model, salt, messages, functions and `generation`, unless they
    set their own."""
    # Fields of the answer alone are left out: the planner has them in its options.
    generation = _read_generation(request)
    plain = _without(generation, _IN_CHATS)
    apart = request.rights.apart
    if request.model is None and not (request.salt or request.messages or request.tools or generation or apart):
        return plan
    offered = tuple(tool for tool in request.tools if request.tool_choice in ("auto", "required", tool.name))

    def completed(step: Step) -> Step:
        op = step.op
        if not isinstance(op, ModelCall):
            return step
        salt = request.salt if apart else op.salt or request.salt
        update: dict[str, object] = {"model": op.model or request.model, "salt": salt}
        if wished := generation if op.chat else plain:
            update["sampling"] = op.sampling.model_copy(update=resolve(op.sampling, request=wished))
        if offered and op.chat and not op.tools:
            parallel = request.parallel_tool_calls
            update |= {"tools": offered, "tool_choice": "auto", "parallel_tool_calls": parallel}
        if request.messages and op.chat and op.after is None and "messages" not in op.model_fields_set:
            update["messages"] = request.messages
            if request.asked and op.prompt == (Text(text=request.text),):
                update["prompt"] = ()  # the conversation has it already
        return step.model_copy(update={"op": op.model_copy(update=update)})

    return plan.model_copy(update={"steps": tuple(map(completed, plan.steps))})


_NO_GENERATION = Request.model_fields["generation"].default


def _read_generation(request: Request) -> dict[str, object]:
    """Return the fields of a request's `generation` that its model calls take."""
    if request.generation is _NO_GENERATION:  # as in most requests
        return {}
    return _without(set_fields(request.generation), ANSWER_FIELDS)


def _without(fields: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in names}


_IN_CHATS = ("chat_template_kwargs", "reasoning_effort")
"""Fields of `generation` that only a chat template reads."""


def with_approval(plan: Plan, brief: PlanningContext) -> Plan:
    """Return a plan whose calls are marked for approval as the tools and the request require. The plan's own marks
    count only if they are stricter."""
    asked = brief.request.approve
    careful = {tool.name: tool for tool in brief.tools}

    def wanted(op: ToolCall) -> bool | None:
        spec = careful.get(op.tool)
        named = op.tool in asked or "all" in asked or (spec is not None and spec.approve)
        changing = "side-effects" in asked and (spec is None or spec.side_effects)
        # Questions to a person and the search for tools have no effects; approval of a question would be a second one.
        hidden = op.tool in (ask_a_person.name, MORE_TOOLS) and spec is None
        return True if (named or changing or op.approve) and not hidden else None

    if all(not isinstance(step.op, ToolCall) or step.op.approve == wanted(step.op) for step in plan.steps):
        return plan
    steps = tuple(
        step.model_copy(update={"op": step.op.model_copy(update={"approve": wanted(step.op)})})
        if isinstance(step.op, ToolCall)
        else step
        for step in plan.steps
    )
    return plan.model_copy(update={"steps": steps})


def marked(plan: Plan, tools: Iterable[ToolSpec]) -> Plan:
    """Return a plan whose calls of tools with side effects are marked, unless the tool is idempotent.

    A planner may have left the mark out, or not know of the effects. Steps without such a tool keep their marks.
    """
    effects = {spec.name: spec.once for spec in tools if spec.side_effects}
    if not effects or all(_as_it_should_be(step, effects) for step in plan.steps):
        return plan
    steps = tuple(
        step if _as_it_should_be(step, effects) else step.model_copy(update={"side_effects": not step.side_effects})
        for step in plan.steps
    )
    return plan.model_copy(update={"steps": steps})


def _as_it_should_be(step: Step, effects: dict[str, bool]) -> bool:
    return not isinstance(step.op, ToolCall) or effects.get(step.op.tool, step.side_effects) == step.side_effects


def sound_plan(given: object, planner: str) -> Plan:
    """Return a planner's plan if its parts have the right types. Raises `PlannerError`."""
    # Planners are user code, and may have built the plan without validation.
    if not isinstance(given, Plan):
        raise PlannerError(f"{planner} planned a {type(given).__name__}, which is not a Plan")
    for step in given.steps:
        if not isinstance(step, Step):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PlannerError(f"{planner} planned a {type(step).__name__} as a step, which is not a Step")
        if step.op.kind == "call":
            try:
                json_value(step.op.args)
            except ValueError as error:
                raise PlannerError(f"{planner}: arguments of the call {step.name!r}: {error}") from None
    if not isinstance(given.output, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PlannerError(
            f"{planner}: the output of a plan is the name of a step, and not a {type(given.output).__name__}"
        )
    return given
