"""The SDK's client: requests in, answers out. Async; `sync.py` is a façade over it.

Puts together what a configuration names (workers, planner, journal), hands requests to the driver, and reads answers
out of finished runs. It decides nothing about how a run goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from pydantic import JsonValue

from ..core.base import Brief, Planner, Task, Worker
from ..core.errors import TaskError, UsageError, as_failure
from ..core.events import Action, Event, Finish, Progressed, Submitted
from ..core.graph import validate
from ..core.ir import Budget, Join, Plan, Plugin, Request
from ..core.machine import Machine
from ..core.nodes import Node, Run, State
from ..core.tool import Tool
from .answer import Answer, AnswerNews, News, StepNews, TextNews
from .build import workers as build_workers
from .config import Config
from .driver import Driver
from .expander import Expander
from .journal import Journal
from .plugins import Plugins, parse_plugin
from .report import report

T = TypeVar("T")
ToolLike = Tool[..., Any] | Callable[..., Any]
Name = str | Plugin
"""A plugin by name; a string may carry options (`sample:n=16,temperature=0.8`)."""


class Options(TypedDict, total=False):
    """What a request may say besides its text. What it leaves out, or gives as `None`, is the configuration's."""

    task: Name | None
    """What the text means; `plain` by default."""
    planner: Name | None
    """How the work is split."""
    policies: Iterable[Name] | None
    """Order, placement, pruning: ranks are compared one after another, the first to name a place counts, all prune."""
    merge: Name | None
    """For planners that have this option: how branches become one answer."""
    n: int | None
    """For planners that have this option: how many branches."""
    budget: Budget | None
    """Hard limits."""
    tokens: int | None
    """That limit alone."""
    seconds: float | None
    """That limit alone."""
    tools: Iterable[ToolLike]
    """Functions that this and later requests may call, besides the orchestrator's own."""
    seed: int | None
    """Of all sampling."""


class AsyncOrchestrator:
    """Plans, runs and answers requests over one set of workers.

    Use it as `async with AsyncOrchestrator(model="…") as orchestrator`, or call `close()` yourself; workers start with
    the first run. Any number of runs may be under way at once; they share workers and prefix caches.

    Args:
        model: folder or name of the model; the bundled one if left out.
        worker: `ray` (engines in Ray actors), `engine` (in this process), `http` (a server of yours), `scripted`, or a
            third party's `pkg.mod:Class`.
        tools: functions that steps may call.
        workers: ready-made workers to use in place of what the configuration names.
        config: a whole configuration; without it `Config.load` reads file, environment and `settings`.
        settings: single settings of `Config`, by name.

    Raises `ConfigError` for settings that make no sense and `PluginError` for workers that are not there; `start` (or
    the first run) raises `WorkerError` for those that cannot start.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        worker: str | None = None,
        tools: Iterable[ToolLike] = (),
        workers: Sequence[Worker] | None = None,
        config: Config | None = None,
        **settings: Any,
    ) -> None:
        self.config = config or Config.load(model=model, worker=worker, **settings)
        self.plugins = Plugins()
        self._given = list(workers) if workers is not None else None
        self._tools: Any = self.plugins.worker("tools", tools=tools, file=self.config.tools)
        self._driver: Driver | None = None
        self._expander = Expander()
        self._starting = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the workers, if that has not been done."""
        async with self._starting:
            if self._closed:
                raise UsageError("this orchestrator was closed; make a new one")
            if self._driver is None:
                await self._start()

    async def _start(self) -> None:
        model_workers = self._given if self._given is not None else build_workers(self.config, self.plugins)
        given = {worker.name for worker in model_workers}
        all_workers = [*model_workers, *([] if self._tools.name in given else [self._tools])]
        machine = Machine(self.plugins)
        journal = None
        if self.config.journal is not None:
            meta: dict[str, JsonValue] = {"worker": self.config.worker, "model": self.config.model}
            journal = Journal(self.config.journal).open(meta=meta)
        driver = Driver(machine, all_workers, self._expander, journal)
        try:
            await driver.start()
        except BaseException:
            if journal is not None:
                journal.close()
            raise
        self._driver = driver

    async def close(self) -> None:
        """Give up what still runs and free engine, actors and journal. May be called twice."""
        self._closed = True
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    # -- runs --------------------------------------------------------------------------------------------------------

    async def run(self, text: str = "", *, plan: Plan | None = None, **options: Unpack[Options]) -> Answer:
        """Run one request to its end and return the answer; arguments as for `submit`.

        A run that fails returns an answer that says so. Cancelling the awaiting task gives the run up.
        """
        handle = await self.submit(text, plan=plan, **options)
        return await handle

    async def stream(
        self, text: str = "", *, plan: Plan | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[News, None]:
        """Run one request and yield its news as they come: steps that move, text, and last the answer.

        Arguments as for `submit`. Leaving the iteration early gives the run up.
        """
        handle = await self.submit(text, plan=plan, watch=True, **options)
        async for news in handle.news():
            yield news

    async def submit(
        self, text: str = "", *, plan: Plan | None = None, watch: bool = False, **options: Unpack[Options]
    ) -> Handle:
        """Start one request and return its handle at once.

        Args:
            text: what is asked.
            plan: a finished plan to run in place of a planner's.
            watch: keep news for `Handle.news`.
            options: see `Options`.

        Raises `TaskError`, `PlanError`, `PluginError` or `ToolSchemaError` for a request that cannot be run,
        `WorkerError` for workers that cannot start.
        """
        brief = self.brief(text, planned=plan is not None, **options)
        await self.start()
        assert self._driver is not None
        run, at = secrets.token_hex(4), self._driver.now()
        if plan is None:
            event = self._expander.start(run, self.plugins.planner(brief.request.planner), brief, at)
        else:
            event = Submitted(at=at, run=run, request=brief.request, plan=plan)
        try:
            self._check(event.plan, brief)
        except UsageError:
            self._expander.forget(run)
            raise
        return Handle(self._driver, event, brief.task, watch)

    def plan(self, text: str = "", **options: Unpack[Options]) -> Plan:
        """Return the first plan for a request, checked, and start nothing. Raises what submitting it would raise."""
        brief = self.brief(text, **options)
        plan = Expander().start("plan", self.plugins.planner(brief.request.planner), brief, 0.0).plan
        self._check(plan, brief)
        return plan

    def brief(self, text: str = "", *, planned: bool = False, **options: Unpack[Options]) -> Brief:
        """Return what a planner is told of a request, checked, and start nothing.

        With `planned` there is a plan already, and no planner's options are looked at. Raises what submitting the
        request would raise.
        """
        config = self.config
        self._tools.add(options.get("tools", ()))
        planner = _spec(options.get("planner") or config.planner)
        if not planned:
            general = self._general(planner, options.get("n") or config.n, options.get("merge") or config.merge)
            planner = Plugin(name=planner.name, options={**planner.options, **general})
            self.plugins.planner(planner)
        policies = options.get("policies")
        request = Request(
            text=text,
            task=_spec(options.get("task") or "plain"),
            planner=planner,
            policies=tuple(_spec(each) for each in (config.policies if policies is None else policies)),
            budget=self._budget(options),
            seed=_first(options.get("seed"), config.seed) or 0,
        )
        task = self.plugins.task(request.task, text)
        for spec in request.policies:
            self.plugins.policy(spec)  # said now rather than when the run has begun
        return Brief(request=request, task=task, tools=tuple(self._tools.specs))

    def _check(self, plan: Plan, brief: Brief) -> None:
        validate(plan, tools=[spec.name for spec in brief.tools])
        for step in plan.steps:
            if isinstance(step.op, Join):
                self.plugins.merge(step.op.merge)

    def _budget(self, options: Options) -> Budget:
        limits = {
            "tokens": _first(options.get("tokens"), self.config.tokens),
            "seconds": _first(options.get("seconds"), self.config.seconds),
        }
        given = (options.get("budget") or Budget()).model_dump()
        return Budget.model_validate(given | {key: value for key, value in limits.items() if value is not None})

    def _general(self, spec: Plugin, n: int | None, merge: Name | None) -> dict[str, JsonValue]:
        """Return `n` and `merge` as options of a planner; raise `UsageError` where it has no such option."""
        planner = self.plugins.class_of("planner", spec.name)
        assert issubclass(planner, Planner)
        options: dict[str, JsonValue] = {}
        if n is not None:
            if planner.n_option is None:
                raise UsageError(f"the planner {spec.name!r} makes no branches to count: leave out `n`")
            options[planner.n_option] = n
        if merge is not None:
            if "merge" not in planner.model_fields:
                raise UsageError(f"the planner {spec.name!r} has no `merge` to choose: leave it out")
            options["merge"] = _spec(merge).model_dump()
        return options


class Handle:
    """One run under way. Await it for the answer."""

    def __init__(self, driver: Driver, event: Submitted, task: Task, watch: bool) -> None:
        self.run = event.run
        """Id of the run."""
        self._driver = driver
        self._task = task
        self._began = event.at
        self._seen = 0
        self._news: asyncio.Queue[News | BaseException] | None = asyncio.Queue() if watch else None
        if watch:
            driver.watchers.append(self._watch)
        self._finish = asyncio.ensure_future(self._answer(driver.submit(event)))

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Answer:
        try:
            return await asyncio.shield(self._finish)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self, reason: str = "cancelled by the user") -> None:
        """Give the run up; awaiting it then returns what was done."""
        self._driver.cancel(self.run, reason)

    async def news(self) -> AsyncGenerator[News, None]:
        """Yield the run's news, the answer last. Only for a handle made with `watch=True`, and once."""
        if self._news is None:
            raise UsageError("submit with watch=True to follow a run's news")
        try:
            while True:
                item = await self._news.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if isinstance(item, AnswerNews):
                    return
        finally:
            if not self._finish.done():
                self.cancel()

    async def _answer(self, future: asyncio.Future[tuple[Finish, Run | None]]) -> Answer:
        try:
            finish, run = await future
        except BaseException as error:  # the driver broke down: whoever follows the news must hear of it too
            if self._news is not None:
                self._news.put_nowait(error)
            raise
        finally:
            if self._news is not None:
                with contextlib.suppress(ValueError):
                    self._driver.watchers.remove(self._watch)
        ended = self._driver.now()
        answer = read_answer(finish, run, self._task, self._began, ended)
        if self._news is not None:
            self._news.put_nowait(AnswerNews(at=ended - self._began, answer=answer))
        return answer

    def _watch(self, event: Event, machine: Machine, actions: list[Action]) -> None:
        assert self._news is not None
        run = machine.runs.get(self.run) or next((each for each in machine.retired if each.id == self.run), None)
        if run is None:
            return
        at = event.at - self._began
        for node in run.nodes[self._seen :]:
            self._news.put_nowait(_step_news(node, at, State.WAITING.value))  # its moves since follow below
        self._seen = len(run.nodes)
        nodes = machine.nodes if run.id in machine.runs else {node.id: node for node in run.nodes}
        for _, step, _, state, reason in machine.moves:
            node = nodes.get(step)
            if node is not None and node.run is run:
                self._news.put_nowait(_step_news(node, at, state, reason))
        if isinstance(event, Progressed):
            attempt = machine.attempts.get(event.attempt)
            if attempt is not None and attempt.node.run is run:
                news = TextNews(at=at, step=attempt.node.id, text=event.text, tokens=attempt.tokens)
                self._news.put_nowait(news)


def _step_news(node: Node, at: float, state: str, reason: str = "") -> StepNews:
    owner = node.scope.owner
    return StepNews(
        at=at,
        step=node.id,
        name=node.step.name,
        owner=owner.id if owner is not None else None,
        op=node.step.op.kind,
        label=node.step.label,
        state=state,
        reason=reason,
        tokens=node.attempt.tokens if node.attempt else node.own.usage.completion if node.own else 0,
        value=node.own.value if node.own is not None else None,
    )


def read_answer(finish: Finish, run: Run | None, task: Task, began: float, ended: float) -> Answer:
    """Return the answer that a finished run holds, as its task reads it."""
    result, answer, verified = finish.result, None, None
    failure = finish.failure
    if result is not None and result.value is not None:
        try:
            # A value that is not text is no generated text either: a merge's verdict or a tool's value is the answer.
            answer = task.extract(result.value) if isinstance(result.value, str) else result.value
            verified = task.verify(answer) if answer is not None else None
        except Exception as error:
            failure = as_failure(TaskError(f"{type(task).__name__} could not read the output: {error}"))
    return Answer(
        run=finish.run,
        status=finish.status,
        answer=answer,
        verified=verified,
        value=result.value if result is not None else None,
        why=result.why if result is not None else "",
        failure=failure,
        partial=finish.partial,
        report=report(finish, run, began, ended),
    )


def _first(given: T | None, default: T | None) -> T | None:
    return default if given is None else given


def _spec(name: Name) -> Plugin:
    return name if isinstance(name, Plugin) else parse_plugin(name)
