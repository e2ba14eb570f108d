"""A request made ready for its planner: taken from the caller's arguments, completed from the settings, and checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, ParamSpec, TypeVar, cast

from pydantic import JsonValue

from ...core.addresses import find_addresses
from ...core.budget import Budget
from ...core.errors import PlanError, PluginError, UsageError
from ...core.interfaces import Merge, Planner, PlanningContext, Policy, Worker
from ...core.ops import Function, Join, ModelCall, Plugin
from ...core.plan import Plan, validate
from ...core.request import HandOver, Request, as_tuple
from ...core.sampling import ANSWER_FIELDS, Generation, answer_fields, resolve
from ...core.task import Task
from ...core.tools.tool import Tool, ToolSpec
from ...core.value_sizes import cost_of
from ...core.values import writable
from ..driver.typed_answers import check_schema
from ..plugins.inline import address, is_local, verified
from ..plugins.loader import Plugins
from ..plugins.spec import is_untrusted, named, trust
from .config import Config
from .pricing import demand

_SCALARS = frozenset((str, int, float, bool, NoneType))
_FIELDS = frozenset((*Request.model_fields, "tokens", "seconds"))
_MOST_SHARED = 64
"""Arguments of requests that are remembered."""
P = ParamSpec("P")
T = TypeVar("T")
ToolLike = Tool[..., Any] | Callable[..., Any]
Own = Callable[..., Any]
"""A function of the caller's: a planner `fn(brief) -> Plan`, a policy's rank `fn(step, view) -> number`, a merge
`fn(branches, task) -> value`, a verifier `fn(answer) -> bool | None`. All but planners run inside the machine and must
be pure. A run can be resumed in another process if that can import it and allows it
(`Orchestrator(allow=["pkg.mod:name"])`)."""


@dataclass(slots=True)
class Live:
    """What belongs to a request and lives in this process: it cannot be written down."""

    tools: tuple[ToolLike, ...] = ()
    """Functions that this request alone may call, in addition to the orchestrator's own."""
    verify: Own | None = None
    """Judges answers in place of the task."""
    planner: Planner | None = None
    """Makes the plan in place of the one that the request names."""
    lenient: bool = False
    """What `generation` says and the planner has no option for is left in it, and not refused."""
    outside: bool = False
    """It came from outside: the Python code that it names is not allowed by being named, as with a caller's own."""
    held: object = None
    """What has to live as long as the run, such as functions that are plugins."""
    shared: SharedRequest | None = None
    """The part that requests with the same arguments share."""


@dataclass(slots=True)
class SharedRequest:
    """The part that requests share if only their texts differ."""

    request: Request
    """As the arguments make it."""
    complete: Request | None = None
    """The same, completed from the settings and checked."""
    planner: Planner | None = None
    """The planner that it then names."""


def of_kind(name: str, given: object, kind: type[T] | Any, example: str) -> T:
    """Return an argument that is of a kind. Raises `UsageError` with an example."""
    if not isinstance(given, kind):
        raise UsageError(f"{name}={given!r:.80} is no {getattr(kind, '__name__', kind)}: write {example}")
    return cast("T", given)


async def apart(large: bool, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a function, on a thread if it would block the event loop for too long."""
    return await asyncio.to_thread(work, *args, **named) if large else work(*args, **named)


def build_request(given: object, fields: Mapping[str, Any], hand_over: HandOver) -> tuple[Request, Live]:
    """Return the request that a program's arguments make, and what of them lives.

    Args:
        given: its text, or a request.
        fields: further fields of `Request`, `verify`, and `tools`: functions, which plans may call, and
            descriptions of functions that the model may call and the caller runs.
        hand_over: registers plugins that are objects instead of names.

    Raises `UsageError`.
    """
    named = {name: value for name, value in fields.items() if name not in ("tools", "verify") and value is not None}
    named |= {name: _in_a_file(named[name]) for name in ("planner", "merge", "task") if name in named}
    if isinstance(policies := named.get("policies"), list | tuple):
        named["policies"] = [_in_a_file(policy) for policy in cast("Sequence[object]", policies)]
    tools: tuple[Any, ...] = ()
    if fields.get("tools") is not None:
        tools = as_tuple("tools", fields["tools"], "tools=[function]")
    told: list[Any] = [tool for tool in tools if isinstance(tool, Function | Mapping)]
    if told:
        named["tools"] = told
    functions = tuple(tool for tool in tools if not isinstance(tool, Function | Mapping))
    live = Live(functions, fields.get("verify"), held=fields)
    if isinstance(given, Request):
        return given.updated(named, hand_over), live
    return Request.of({"text": given, **named}, hand_over), live


def _in_a_file(given: object) -> object:
    """Return an argument as it is, or what a text such as `FILE.py:Class` means."""
    return named(given) if isinstance(given, str) and ":" in given else given


class Briefs:
    """Makes the briefs of requests. `tools`: what steps may call. `workers`: those that were handed over, if any."""

    def __init__(self, config: Config, plugins: Plugins, tools: Any, workers: Sequence[Worker] | None) -> None:
        self._config, self._plugins, self._tools, self._workers = config, plugins, tools, workers
        self._judged: dict[tuple[str, Own], type[Task]] = {}
        self._standing = config.policies_with(sum("think" in worker.serves for worker in workers) if workers else None)
        self._generation = Generation.model_construct(
            max_tokens=config.max_tokens,
            thinking=config.thinking,
            temperature=config.temperature,
            top_p=config.top_p,
        )
        self._shared: dict[object, SharedRequest] = {}
        """By the arguments beside the text."""

    def build(self, given: object, fields: Mapping[str, Any], *, as_given: bool = False) -> tuple[Request, Live]:
        """Build a request as `build_request` does. A text with known arguments is not read and checked again, and has
        the settings filled in already unless `as_given`."""
        kinds = tuple(map(type, fields.values()))
        if type(given) is not str or not _SCALARS.issuperset(kinds):
            return build_request(given, fields, self._plugins.hand_over)
        key = (is_untrusted(), kinds, *fields.items())  # kinds: 1 is equal to 1.0 and to True
        shared = self._shared.get(key)
        if shared is not None:
            known = shared.request if as_given or shared.complete is None else shared.complete
            return known.model_copy(update={"text": writable(given)}), Live(held=fields, shared=shared)
        request, live = build_request(given, fields, self._plugins.hand_over)
        if self._can_be_shared(request, fields):
            if len(self._shared) >= _MOST_SHARED:
                del self._shared[next(iter(self._shared))]
            live.shared = self._shared[key] = SharedRequest(request)
        return request, live

    def _can_be_shared(self, request: Request, fields: Collection[str]) -> bool:
        # A planner may read its options in a file, which may change, and code that is named may be a function that
        # lives no longer than a run.
        planner = request.planner if "planner" in fields else self._config.planner
        code = find_addresses([(spec.name, spec.options) for spec in (request.task, planner, *request.policies)])
        fixed = "path" not in planner.options and not any(code)
        return fixed and "text" not in fields and _FIELDS.issuperset(fields)

    def brief(self, request: Request, live: Live, *, planned: bool = False) -> PlanningContext:
        """Return the brief of a request; `AsyncOrchestrator.brief` says more."""
        shared = None if planned else live.shared
        if shared is None or shared.complete is None or request.planner is not shared.complete.planner:
            request = self._complete_and_check(request, live, planned)
            if shared is not None:
                shared.complete, shared.planner = request, self._plugins.planner(request.planner)
        if shared is not None:
            live.planner = shared.planner
        task = self._plugins.task(request.task, request.text)
        if request.messages and not task.chat():
            raise UsageError(
                f"the task {request.task.name!r} puts a request to the model as plain text, so no messages can stand "
                "before it: give a text, or use a task that chats (plain)"
            )
        own = (*live.tools, *task.tools())
        tools = () if not request.rights.tools else self._tools.specs_with(own) if own else self._tools.specs
        if request.approve or request.tool_choice != "auto":
            _check_tools(request, tools)
        return PlanningContext(request=request, task=task, tools=tools, plugins=self._plugins)

    def _complete_and_check(self, request: Request, live: Live, planned: bool) -> Request:
        """Return a request completed from the settings, whose text is not looked at."""
        request = self._completed(request, live)
        named = (request.task, request.planner, request.merge, *request.policies)
        if not live.outside and not all(plugin is None or plugin.plain for plugin in named):
            trust(*named)
        if request.budget.cost is not None or request.planner.options:  # those of an agent may limit its cost
            demand(request.budget, None, self._workers or None, self._config, request.planner)
        for spec in request.policies:
            self._plugins.policy(spec)  # said now rather than when the run has begun
        if not planned:
            request = self._planned(request, live.lenient)
        elif not live.lenient and (without_effect := answer_fields(request.generation)):
            raise UsageError(f"{', '.join(without_effect)} has no effect on your own plan: set it in the plan's steps")
        elif "learn" in request.planner.options:  # the caller's own plan gives no feedback, also when it is resumed
            options = {name: value for name, value in request.planner.options.items() if name != "learn"}
            request = request.model_copy(update={"planner": Plugin(name=request.planner.name, options=options)})
        if request.output is not None:
            check_schema(request.output)
        return request

    def path_of(self, request: Request) -> JsonValue:
        """Return the file with what was learned that a request's planner reads; `None` if it reads none."""
        planner = request.planner if "planner" in request.model_fields_set else self._config.planner
        return planner.options.get("path")

    def check(self, plan: Plan, brief: PlanningContext, opened: bool = True) -> None:
        """Raise what is wrong with a plan. `opened`: MCP servers are open, so that it is known what they offer."""
        unasked = self._config.mcp and not opened
        if plan.budget is not None or any(step.budget is not None for step in plan.steps):
            demand(Budget(), plan, self._workers or None, self._config)
        self._affordable(plan, brief.request)
        validate(plan, tools=None if unasked else [spec.name for spec in brief.tools])
        for step in plan.steps:
            if isinstance(step.op, Join):
                self._plugins.merge(step.op.merge)
        if brief.request.policies and (needing := self._that_need_streams(brief.request.policies)):
            self._check_streams(plan, needing)

    def _affordable(self, plan: Plan, request: Request) -> None:
        """Raise `PlanError` for a plan whose values come to more than its run may put together, as its graph says."""
        most = request.value_bytes or self._config.value_bytes
        # A single step has no values before it to put together.
        merge_class = self._plugins.merge_class
        if len(plan.steps) > 1 and cost_of(plan, request.retries, most, merge_class).bytes > most:
            raise PlanError(
                f"the values that this plan puts together come to more than {most:,} bytes: let its joins read fewer, "
                "or raise `value_bytes`"
            )

    def _completed(self, request: Request, live: Live) -> Request:
        """Return a request completed from the settings."""
        config, named = self._config, request.model_fields_set
        limits: dict[str, Any] = {}
        for budget in (config.budget, Budget(tokens=config.tokens, seconds=config.seconds), request.budget):
            limits |= {
                name: value for name, value in budget.__dict__.items() if value is not None and value is not False
            }
        return request.model_copy(
            update={
                "task": self._task(request, live.verify),
                "model": request.model or next(iter(config.adapters), None),
                "planner": request.planner if "planner" in named else config.planner,
                "policies": request.policies if "policies" in named else self._standing,
                "merge": request.merge or config.merge,
                "n": request.n or config.n,
                "budget": Budget(**limits),
                "default_token_limit": request.default_token_limit or config.default_token_limit,
                "value_bytes": request.value_bytes or config.value_bytes,
                "seed": request.seed if "seed" in named else config.seed,
            }
        )

    def _task(self, request: Request, verify: Own | None) -> Plugin:
        task = request.task
        if request.output is not None and task == Plugin(name="plain") and not request.tools:
            # Votes are over JSON values. A text that may call a function instead is taken as it is.
            task = Plugin(name="plain", options={"where": "json", "field": ""})
        if verify is None:
            return task
        if not callable(verify):
            raise PluginError(f"{verify!r} cannot judge answers: give a function of one, the answer")
        local, cls = is_local(verify), self._judged.get((task.name, verify))
        cls = cls or verified(cast("type[Task]", self._plugins.class_of("task", task.name)), verify)
        cls = cls if local else self._judged.setdefault((task.name, verify), cls)
        name = self._plugins.register("task", f"{task.name}+{address(verify)}", cls, verify if local else None)
        return Plugin(name=name, options=task.options)

    def _planned(self, request: Request, lenient: bool) -> Request:
        """Return a request whose `n`, `merge` and wishes about the answer stand among its planner's options.

        An option that the planner was given itself goes before a wish of `generation`, which then stays where it is:
        who reads the request sees that it had no effect. Raises `UsageError` for a wish that the planner has no option
        for, and policies that need branches that stream where those of the planner do not.
        """
        spec, generation = request.planner, request.generation
        planner = self._plugins.class_of("planner", spec.name)
        assert issubclass(planner, Planner)
        spec = planner.resolve_options(spec, request)
        options = dict(spec.options)
        if request.n is not None:
            if "n" not in planner.model_fields:
                raise UsageError(f"the planner {spec.name!r} makes no branches to count: leave out `n`")
            options["n"] = request.n
        if request.merge is not None:
            if "merge" not in planner.model_fields:
                raise UsageError(f"the planner {spec.name!r} has no `merge` to choose: leave it out")
            options["merge"] = request.merge.model_dump()
        options, unknown, took_effect = _resolve_answer(planner, options, generation, self._generation)
        if unknown and not lenient:
            raise UsageError(
                f"the planner {spec.name!r} has no option {unknown[0]!r} for its answer: leave {unknown[0]} out of "
                "`generation`"
            )
        if took_effect:
            defaults = Generation.model_fields
            generation = generation.model_copy(update={name: defaults[name].default for name in took_effect})
        spec = Plugin(name=spec.name, options=options)
        made = self._plugins.planner(spec)
        if needing := self._that_need_streams(request.policies):
            for prompt in made.says_answer():
                if getattr(made, prompt).stream is False:
                    raise UsageError(
                        f"the policy {needing[0]!r} compares branches while they are written, and "
                        f"{prompt}.stream=false of {spec.name!r} forbids streaming: leave out one of the two"
                    )
        return request.model_copy(update={"planner": spec, "n": None, "merge": None, "generation": generation})

    def _that_need_streams(self, policies: Iterable[Plugin]) -> list[str]:
        classes = {spec.name: cast("type[Policy]", self._plugins.class_of("policy", spec.name)) for spec in policies}
        return [name for name, cls in classes.items() if cls.needs_stream]

    def _check_streams(self, plan: Plan, needing: list[str]) -> None:
        """Raise `PlanError` for a vote of the plan over a branch that does not stream."""
        silent = {step.name for step in plan.steps if isinstance(step.op, ModelCall) and step.op.stream is False}
        for step in plan.steps:
            if not isinstance(step.op, Join) or silent.isdisjoint(step.needs):
                continue
            if cast("type[Merge]", self._plugins.class_of("merge", step.op.merge.name)).votes:
                branch = next(need for need in step.needs if need in silent)
                raise PlanError(
                    f"the policy {needing[0]!r} compares branches while they are written, and {branch!r} forbids "
                    "streaming: leave out its stream=false, or the policy"
                )


def _resolve_answer(
    planner: type[Planner], options: dict[str, JsonValue], request: Generation, settings: Generation
) -> tuple[dict[str, JsonValue], list[str], list[str]]:
    """Return a planner's options with `generation` of the request and the settings resolved for the calls that write
    the answer, the names of the request's fields that the planner has no option for, and of those that took effect."""
    prompts, wishes, known = planner.says_answer(), answer_fields(request), _answer_options(planner)
    asked = {name: value for name, value in wishes.items() if name in known}
    usual = {name: value for name, value in answer_fields(settings).items() if name in known}

    def resolved(own: JsonValue) -> dict[str, JsonValue]:
        given = own if isinstance(own, dict) else {}
        return cast("dict[str, JsonValue]", resolve(given, request=asked, settings=usual))

    places = [options]
    if not prompts:
        options = resolved(options)
        places = [options]
    elif asked or usual:
        places = [resolved(options.get(name)) for name in prompts]
        options = {**options, **dict(zip(prompts, places, strict=True))}
    took_effect = [name for name in asked if all(place[name] == asked[name] for place in places)]
    return options, [name for name in wishes if name not in asked], took_effect


def _answer_options(planner: type[Planner]) -> Collection[str]:
    """Return the fields of the answer's calls that a planner has options for."""
    if not planner.says_answer():
        return planner.model_fields
    return [name for name in ANSWER_FIELDS if not (planner.pieces and name == "max_tokens")]


def _check_tools(request: Request, tools: Sequence[ToolSpec]) -> None:
    """Raise `UsageError` for a name in `approve` or `tool_choice` that is no tool's."""
    known = ["all", "side-effects", *(tool.name for tool in tools)]
    for name in request.approve:
        if name not in known:
            message = f"approve: there is no tool {name!r:.80}; there are: {', '.join(known)}"
            raise UsageError(message, "approve")
    chosen, offered = request.tool_choice, [tool.name for tool in request.tools]
    if chosen not in ("auto", "none", *offered) and not (chosen == "required" and offered):
        there = ", ".join(offered) or "none were given in `tools`"
        raise UsageError(f"tool_choice={chosen!r} must be auto, none, required, or a function ({there})")
