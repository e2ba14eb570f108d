"""What a planner is told of a request: completed from the settings, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack, cast

from pydantic import JsonValue

from ...core.budget import Budget
from ...core.errors import PluginError, UsageError
from ...core.graph import validate
from ...core.interfaces import Brief, Merge, Planner, Worker
from ...core.ops import Join, Plugin
from ...core.plan import Plan, Request
from ...core.task import Task
from ..plugins.inline import Kind, address, handed_over, is_local, verified
from ..plugins.loader import Plugins, parse_plugin
from ..plugins.trust import trust
from .asking import approvals, asked, asking, checked, form_of
from .config import Config
from .options import Name, Options, Own
from .pricing import demand, limits
from .streaming import check_plan, check_planner
from .widths import settled

__all__ = ["Briefs"]

T = TypeVar("T")


class Briefs:
    """Makes the briefs of requests. `tools`: what steps may call. `workers`: those that were handed over, if any."""

    def __init__(self, config: Config, plugins: Plugins, tools: Any, workers: Sequence[Worker] | None) -> None:
        self._config, self._plugins, self._tools, self._workers = config, plugins, tools, workers
        self._judged: dict[tuple[str, Own], type[Task]] = {}

    def brief(self, text: str = "", *, planned: bool = False, **options: Unpack[Options]) -> Brief:
        """Return the brief of a request; `AsyncOrchestrator.brief` says more."""
        config = self._config
        text, messages = asked(checked(text, options), options.get("messages"))
        planner = self._spec("planner", options.get("planner") or config.planner)
        trust(planner)
        made: Planner | None = None
        if not planned:
            planner = settled(planner, self._plugins, config, limits(options, config))
            general = self._general(planner, _first(options.get("n"), config.n), options.get("merge") or config.merge)
            planner = Plugin(name=planner.name, options={**planner.options, **general})
            made = self._plugins.planner(planner)
        policies = options.get("policies")
        standing = config.policies_with(sum("think" in each.serves for each in self._workers or ()) or 1)
        form = form_of(options.get("output_type"))
        task_spec = self._task(options)
        if form is not None and task_spec == Plugin(name="plain"):
            task_spec = Plugin(name="plain", options={"answer": "json", "field": ""})  # votes are over JSON values
        request = Request(
            text=text,
            task=task_spec,
            planner=planner,
            policies=tuple(self._spec("policy", each) for each in (standing if policies is None else policies)),
            budget=limits(options, config),
            seed=_first(options.get("seed"), config.seed) or 0,
            share=options.get("share") or "",
            weight=1.0 if (weight := options.get("weight")) is None else weight,
            priority=options.get("priority") or 0,
            model=options.get("model"),
            salt=options.get("salt") or "",
            messages=messages,
            asks=asking(options),
            approve=approvals(options.get("approve"), self._tools.specs_with(options.get("tools") or ())),
            form=form,
        )
        trust(request.planner, *request.policies)
        demand(request.budget, None, self._workers or None, config, request.planner)
        task = self._plugins.task(request.task, text)
        if messages and not task.chat():
            raise UsageError(
                f"the task {request.task.name!r} puts a request to the model as plain text, so no messages can stand "
                "before it: give a text, or use a task that chats (plain)"
            )
        for spec in request.policies:
            self._plugins.policy(spec)  # said now rather than when the run has begun
        if made is not None:
            check_planner(planner, made, request.policies, self._plugins)
        tools = self._tools.specs_with([*(options.get("tools") or ()), *task.tools()])
        return Brief(request=request, task=task, tools=tools, plugins=self._plugins)

    def check(self, plan: Plan, brief: Brief, opened: bool = True) -> None:
        """Raise what is wrong with a plan. `opened`: MCP servers are open, so that it is known what they offer."""
        unasked = self._config.mcp and not opened
        demand(Budget(), plan, self._workers or None, self._config)
        validate(plan, tools=None if unasked else [spec.name for spec in brief.tools])
        for step in plan.steps:
            if isinstance(step.op, Join):
                self._plugins.merge(step.op.merge)
        check_plan(plan, brief.request.policies, self._plugins)

    def _general(self, spec: Plugin, n: int | None, merge: Name | Merge | Own | None) -> dict[str, JsonValue]:
        """Return `n` and `merge` as options of a planner; raise `UsageError` where it has no such option."""
        planner = self._plugins.class_of("planner", spec.name)
        assert issubclass(planner, Planner)
        options: dict[str, JsonValue] = {}
        if n is not None:
            if planner.n_option is None:
                raise UsageError(f"the planner {spec.name!r} makes no branches to count: leave out `n`")
            options[planner.n_option] = n
        if merge is not None:
            if "merge" not in planner.model_fields:
                raise UsageError(f"the planner {spec.name!r} has no `merge` to choose: leave it out")
            options["merge"] = self._spec("merge", merge).model_dump()
            trust(Plugin(name="", options=options))
        return options

    def _spec(self, kind: Kind, given: object) -> Plugin:
        if isinstance(given, str | Plugin):
            return given if isinstance(given, Plugin) else parse_plugin(given)
        return handed_over(kind, given, self._plugins.register)

    def _task(self, options: Options) -> Plugin:
        task, verify = self._spec("task", options.get("task") or "plain"), options.get("verify")
        trust(task)
        if verify is None:
            return task
        if not callable(verify):
            raise PluginError(f"{verify!r} cannot judge answers: give a function of one, the answer")
        local, cls = is_local(verify), self._judged.get((task.name, verify))
        cls = cls or verified(cast("type[Task]", self._plugins.class_of("task", task.name)), verify)
        cls = cls if local else self._judged.setdefault((task.name, verify), cls)
        name = self._plugins.register("task", f"{task.name}+{address(verify)}", cls, verify if local else None)
        return Plugin(name=name, options=task.options)


def _first(given: T | None, default: T | None) -> T | None:
    return default if given is None else given
