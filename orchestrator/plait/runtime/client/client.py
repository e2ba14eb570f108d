"""The SDK's client: requests in, answers out. Async; `sync.py` is a façade over it.

Puts together what a configuration names (workers, planner, journal), and hands requests to the driver. It decides
nothing about how a run goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import JsonValue

from ...core.addresses import allow
from ...core.errors import ConfigError, UsageError
from ...core.events import Submitted
from ...core.flow import Flow
from ...core.interfaces import PlanningContext, Worker
from ...core.plan import Plan
from ...core.provenance import Provenance, facts, models_of
from ...core.request import Request, as_tuple
from ...core.task import Task
from ...core.tools.tool import ToolSpec
from ...machine import Machine
from .. import telemetry
from ..control.socket import ControlSocket
from ..driver.driver import CALL_SILENCE_LIMIT_S, MODEL_SILENCE_LIMIT_S, Driver, watch_silence
from ..driver.event_pump import LOOP_SLICE_S, OFFLOAD_PLAN_STEPS, Watcher
from ..driver.expander import Expander, revised
from ..driver.flows import first_patch
from ..driver.result_cache import CachingWorker, ResultCache, default_file, identity
from ..journal.journal import version
from ..journal.location import Database, Location, located
from ..journal.resume import JournalSink, OnUncertainSideEffect, Resumer, RunEntry
from ..journal.writer import Recorder
from ..plugins.entry_points import demand_hook
from ..plugins.loader import Plugins
from ..plugins.spec import trust
from .answer import Answer, Lessons, Mode, RunEvent
from .config import Config
from .flow import LiveFlow, ProgramFlow
from .handle import Handle, Questions, read_answer
from .pool import Pool
from .pricing import priced
from .questions import OnAsk, QuestionQueue
from .request_preparation import Briefs, Live, ToolLike, apart, of_kind
from .worker_factory import bound_load, build_workers, fit_model, handed_over, started, tools as build_tools

__all__ = ["AsyncOrchestrator", "Handle", "ToolLike", "read_answer"]


class AsyncOrchestrator:
    """Plans, runs and answers requests over one set of workers.

    Use it as `async with AsyncOrchestrator(model="…") as orchestrator`, or call `close()` yourself; workers start with
    the first run. Any number of runs may be active at once; they share workers and prefix caches.

    Args:
        model: folder or name of the model; the chat model that `plait model get` fetched if left out.
        worker: `ray` (engines in Ray actors), `engine` (in this process), `http` (your own server), `scripted`, or a
            third party's `pkg.mod:Class`.
        tools: functions that steps may call.
        workers: ready-made workers to use in place of what the configuration names.
        on_ask: puts the questions of tools (`await ctx.ask(…)`) to a person and returns the answer; an ordinary
            function is called on a thread of its own. Without it a question waits for `Handle.answer`, and in `run`,
            which gives out no handle, the tool fails. `"later"`: it waits there too, for an answer from another process
            (`plait runs answer`).
        control: whether `plait runs` sees and steers its runs, as they do those of commands.
        config: a whole configuration; without it `Config.load` reads file, environment and `settings`, by their names.

    >>> from plait.workers.scripted import Reply, Scripted
    >>> async def main() -> None:
    ...     async with AsyncOrchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as orchestrator:
    ...         handle = await orchestrator.submit("What is 2 + 2?")
    ...         print((await handle).answer)
    ...         async for news in orchestrator.stream("And 3 + 1?", modes=["step", "answer"]):
    ...             print(news.kind, news.record.state if news.kind == "step" else news.answer.answer)
    >>> asyncio.run(main())
    4
    step waiting
    step ready
    step running
    step done
    answer 4

    Raises `ConfigError` for invalid settings and `PluginError` for unknown workers; `start` (or
    the first run) raises `WorkerError` for those that cannot start.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        worker: str | None = None,
        tools: Iterable[ToolLike] = (),
        workers: Sequence[Worker] | None = None,
        on_ask: OnAsk | Literal["later"] | None = None,
        control: bool = False,
        config: Config | None = None,
        **settings: Any,
    ) -> None:
        if config is not None:
            of_kind("config", config, Config, "config=Config.load(…)")
        named = {"model": model, "worker": worker} | settings
        if config is not None and (doubled := [name for name, value in named.items() if value is not None]):
            raise ConfigError(
                f"{', '.join(doubled)} beside `config`: put all settings into it (config.model_copy(update={{…}})), or "
                "give them by name without it"
            )
        config = config or Config.load(**named)
        self.config: Config = fit_model(config) if workers is None else config
        allow(*self.config.allow)
        trust(self.config.worker, self.config.planner, self.config.merge, *self.config.policies)
        self.plugins: Plugins = Plugins()
        self._given = handed_over(workers)
        self._tools: Any = build_tools(self.config, self.plugins, tools)
        self._asker = QuestionQueue(on_ask)
        if hasattr(self._tools, "on_ask"):
            self._tools.on_ask = self._asker.ask
        self._driver: Driver | None = None
        self._provenance: Callable[..., Provenance] = Provenance.of
        """Makes the provenance of a request, with the models that were started."""
        self._expander = Expander(revised)
        self._records = JournalSink(self.config)
        self._resumer = Resumer(self.config, self.plugins, self._asker, self._records)
        self._cache: ResultCache | None = None
        self._briefs = Briefs(self.config, self.plugins, self._tools, self._given)
        self._starting = asyncio.Lock()
        self._submitting = asyncio.Lock()
        self._turn = 0.0
        """When the event loop last did something else between two submissions."""
        self._start_up: asyncio.Task[None] | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._home = Home()
        self._socket = ControlSocket(self if control else None)
        self._watchers: list[Watcher] = []
        self._handles: dict[str, Handle] = {}
        self._pool: Pool | None = None
        self.on_taken: Callable[[Handle], object] | None = None
        """Called with each run that was taken over from another process of the pool, when it resumes here."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the workers, if that has not been done."""
        driver = await self._started()
        if not self._records.off:
            self._records.check(driver.recorder)

    def watch(self, watcher: Watcher) -> None:
        """Before the start: have a function, which must not block, called after each event with machine and actions."""
        if self._driver is not None:
            raise UsageError("this orchestrator has started: call `watch` before `start`")
        self._watchers.append(watcher)

    async def start_workers(self) -> None:
        """Start the workers alone: nothing is written down before a first run."""
        await self._started()

    async def _started(self) -> Driver:
        self._home.enter()
        if self._driver is not None and not (self._closed or self._starting.locked()):
            return self._driver
        async with self._starting:
            if self._closed:
                raise UsageError("this orchestrator was closed; make a new one")
            if self._driver is None:
                self._start_up = asyncio.ensure_future(self._start())
                try:
                    await self._start_up
                except asyncio.CancelledError:
                    if not self._closed:
                        raise
            if self._driver is not None:
                return self._driver
            raise UsageError("this orchestrator was closed while its workers started; make a new one")

    async def _start(self) -> None:
        driver, self.config = await started(self._build_driver, self.config, self._given is None)
        if self.config.lease is None:
            driver.jobs.spawn(watch_silence(driver, MODEL_SILENCE_LIMIT_S, CALL_SILENCE_LIMIT_S))
        self._driver = driver
        self._provenance = partial(Provenance.of, plait=version(), models=models_of(driver.workers))
        self._records.facts = facts(driver.workers, self._tools.specs, self._given is not None)
        if isinstance(self.config.journal, Database):
            self._pool = Pool(self.config, self._handles, self.reopen, lambda: self.on_taken, driver)
            await self._pool.open()
        await self._socket.open()

    def _build_driver(self, config: Config) -> Driver:
        """Return a driver with the workers that a configuration names, not started."""
        model_workers = priced(build_workers(config, self.plugins) if self._given is None else self._given, config)
        if config.cache is not None:
            self._cache = self._cache or ResultCache(config.cache if config.cache != "on" else default_file())
            model_workers = [
                CachingWorker(worker, self._cache, identity(config.model, worker, config.base_url))
                for worker in model_workers
            ]
        for worker in self._given or ():
            _employ(worker, self._home)
        tools = [] if self._tools.name in {worker.name for worker in model_workers} else [self._tools]
        machine = Machine(self.plugins, lease=config.lease)
        recorder = Recorder(machine, next_file=self._records.next_file, meta=self._records.meta)
        driver = Driver(machine, [*model_workers, *tools], self._expander, recorder, collector=config.collector)
        bound_load(driver, model_workers, config)
        driver.return_wait_s = config.worker_wait
        driver.watchers.extend(self._watchers)
        telemetry.watch(driver, config)
        return driver

    async def close(self) -> None:
        """Give up what still runs and free workers and journal. May be called twice, and by a tool of its own."""
        if self._home.is_elsewhere:  # its loop has ended, or it was made before a fork
            await self._abandon()
            return
        self._closing = self._closing or asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _abandon(self) -> None:
        """Free what can be freed from another event loop than the one that it was started on."""
        self._closed, driver, self._driver = True, self._driver, None
        if driver is not None and self._home.is_same_process:
            driver.recorder.close()
            for worker in driver.workers:
                with contextlib.suppress(Exception):
                    await worker.close()
        self._home.leave()

    async def _close(self) -> None:
        self._closed = True
        if self._start_up is not None and not self._start_up.done():
            self._start_up.cancel()
            await asyncio.wait([self._start_up])
        await self._socket.close()
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()
        if "lessons" in vars(self):
            await self.lessons.settled()
        if self._pool is not None:
            await self._pool.close()
        self._home.leave()
        if self._cache is not None:
            self._cache.close()

    # -- runs --------------------------------------------------------------------------------------------------------

    async def run(self, request: str | Request = "", *, plan: Plan | None = None, **fields: Any) -> Answer:
        """Run one request to its end and return the answer; arguments as for `submit`.

        A failed run returns an answer with `status="failed"`. Cancelling the awaiting task cancels the run.
        """
        return await (await self._submit(request, fields, plan, False, answerable=False))

    async def stream(
        self,
        request: str | Request = "",
        *,
        plan: Plan | None = None,
        modes: Collection[Mode] | None = None,
        **fields: Any,
    ) -> AsyncGenerator[RunEvent, None]:
        """Run one request and yield its events as they come: steps that move, text, questions, and last the answer.

        Args:
            request: as for `submit`, like all fields.
            plan: the same.
            modes: kinds of events to yield (`"step"`, `"text"`, `"ask"`, `"answer"`); all by default.

        With text deltas all model calls stream, whatever their planner sets; `name` and `step` identify the
        branches. Leaving the iteration early cancels the run.
        """
        handle = await self.submit(request, plan=plan, watch=True if modes is None else modes, **fields)
        async for news in handle.news(modes):
            yield news

    async def submit(
        self,
        request: str | Request = "",
        *,
        plan: Plan | None = None,
        watch: bool | Collection[Mode] = False,
        live: Live | None = None,
        **fields: Any,
    ) -> Handle:
        """Start one request and return its handle at once.

        Args:
            request: what is asked: a text, or a `Request`.
            plan: a finished plan to run in place of a planner's.
            watch: keep events for `Handle.news`. With `True`, or kinds of events that include `"text"`, all model calls
                stream their text.
            live: what of the request cannot be written down.
            fields: fields of `Request`. Plugins may be functions. Among `tools`, functions are what plans may call, and
                `verify`, a function of the answer, judges it in place of the task.

        Raises `TaskError`, `PlanError`, `PluginError` or `ToolSchemaError` for a request that cannot be run,
        `WorkerError` for workers that cannot start, `Overloaded` where too many runs wait (`max_waiting`).
        """
        return await self._submit(request, fields, plan, watch, answerable=True, live=live)

    async def _submit(
        self,
        given: str | Request,
        fields: Mapping[str, Any],
        plan: Plan | None,
        watch: bool | Collection[Mode],
        answerable: bool,
        live: Live | None = None,
    ) -> Handle:
        self._home.enter()
        request, own = self._briefs.build(given, fields, as_given=(plan, live) != (None, None))
        live = own if live is None else live
        if plan is not None:
            of_kind("plan", plan, Plan, "plan=Plan(steps=(…), output=…)")
            if request.output is not None:
                raise UsageError("`output` needs a planner: parse the answer of your own plan yourself")
        if self.config.mcp:
            await self.start()  # what their servers offer is known only then
        if "lessons" in vars(self) and plan is None and (path := self._briefs.path_of(request)) is not None:
            await self.lessons.settled(path)
        async with self._submitting:
            if perf_counter() - self._turn > LOOP_SLICE_S:  # thousands at once do not stall the event loop
                await asyncio.sleep(0)
                self._turn = perf_counter()
            brief = self._briefs.brief(request, live, planned=plan is not None)
            driver = await self._started()
            if not self._records.off:
                self._records.check(driver.recorder)
            driver.admit()
            run, at = secrets.token_hex(16), driver.now()
            if plan is None:
                planner = live.planner or self.plugins.planner(brief.request.planner)
                large = planner.size() >= OFFLOAD_PLAN_STEPS
                event = await apart(large, self._expander.start, run, planner, brief, at)
            else:
                if not live.outside:
                    trust(plan)
                plan = await apart(len(plan.steps) >= OFFLOAD_PLAN_STEPS, revised, plan, brief)
                event = Submitted(at=at, run=run, request=brief.request, plan=plan)
                self._expander.add_complete_plan(run, brief)
            try:
                await apart(len(event.plan.steps) >= OFFLOAD_PLAN_STEPS, self._briefs.check, event.plan, brief)
            except BaseException:
                self._expander.forget(run)
                raise
            if not self._records.off:
                self._records.open(driver.recorder)
            tools = (*live.tools, *brief.task.tools())
            take_back = self._tools.lend(run, tools) if tools else None
            handle = self._handles[run] = Handle(
                driver, event, brief.task, watch,
                asker=self._asker, provenance=self._made_of(brief), known=answerable,
                on_settled=lambda run: self._handles.pop(run, None),
            )  # fmt: skip
            if live.shared is None or take_back:  # the functions among the arguments live as long as the run (`held`)
                handle.finished.add_done_callback(lambda _, held=live: take_back() if take_back else None)
            if brief.request.planner.options.get("learn") is True:
                self.lessons.follow(brief.request, brief.task, handle.finished)
            self._asker.begin(run, driver.recorder, None, handle.asked if answerable else None, brief.request.tenant)
            return handle

    def flow(self, request: str | Request = "", **fields: Any) -> LiveFlow:
        """Return a context for `async with` in which a program makes steps by itself, as a `Flow` does.

        The steps share a run, with its budget, journal and answer; other fields as for `submit`. Set `ctx.value` to
        what the run shall end in; after the block `ctx.result` is its answer. An exception gives the run up.

        >>> from plait.core.budget import Budget
        >>> from plait.workers.scripted import Reply, Scripted
        >>> async def main() -> None:
        ...     async with AsyncOrchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as plait:
        ...         async with plait.flow(budget=Budget(tokens=100)) as ctx:
        ...             drafts = await ctx.gather(ctx.think("2 + 2?"), ctx.think("What is 2 + 2?"))
        ...             ctx.value = ctx.join(drafts, merge="majority")
        ...         print(ctx.result.answer)
        >>> asyncio.run(main())
        4
        """

        async def submit(program: ProgramFlow) -> Handle:
            made, live = self._briefs.build(request or "a flow", {**fields, "planner": program})
            live.planner = program
            return await self._submit(made, {}, None, False, answerable=True, live=live)

        return LiveFlow(submit)

    async def resume(
        self,
        run: str,
        *,
        on_uncertain_side_effect: OnUncertainSideEffect | None = None,
        tools: Iterable[ToolLike] = (),
        path: str | Location | None = None,
        force: bool = False,
    ) -> Answer:
        """Finish a run whose process ended before it did, and return its answer; one that has finished is only read.

        Finished steps are not run again, uncertain side effects only if allowed. Time between the processes is free.

        Args:
            run: its id, or as much of the beginning as no other run's has.
            on_uncertain_side_effect: for a call with side effects and an unknown outcome: `fail`, `ask` a person, or
                `retry`; the configuration's by default. A tool that says it is idempotent is called again anyway.
            tools: functions that its steps may call, in addition to the orchestrator's own.
            path: its journal, or the folder or store to look in; the configuration's by default.
            force: resume even if the models or tools differ from those that the run began with.

        Raises `UsageError` for an unknown run, and `ConfigError` for one that another process runs or that cannot be
        resumed.
        """
        return await (await self._reopen(run, False, on_uncertain_side_effect, tools, path, force, answerable=False))

    async def reopen(
        self,
        run: str,
        *,
        watch: bool | Collection[Mode] = False,
        on_uncertain_side_effect: OnUncertainSideEffect | None = None,
        tools: Iterable[ToolLike] = (),
        path: str | Location | None = None,
        force: bool = False,
    ) -> Handle:
        """Do what `resume` does and return a handle at once; with `watch` it keeps events."""
        return await self._reopen(run, watch, on_uncertain_side_effect, tools, path, force, answerable=True)

    async def _reopen(
        self,
        run: str,
        watch: bool | Collection[Mode],
        on_uncertain_side_effect: OnUncertainSideEffect | None,
        tools: Iterable[ToolLike],
        path: str | Location | None,
        force: bool,
        answerable: bool,
    ) -> Handle:
        of_kind("run", run, str, "its id, as `plait runs list` shows it")
        if path is not None:
            of_kind("path", path, str | Path | Database, "the path of a journal or a folder")
        functions: tuple[Any, ...] = as_tuple("tools", tools, "tools=[function]")
        entry: RunEntry = self._resumer.find(run, located(path) if path is not None else None)
        driver = await self._started()
        questions = Questions()
        on_question = questions.add_question if answerable else None
        unknown = on_uncertain_side_effect or self.config.on_uncertain_side_effect
        lent = contextlib.ExitStack()
        specs: list[ToolSpec] = []

        def lend(task: Task) -> Iterable[ToolSpec]:
            own = (*functions, *task.tools())
            lent.callback(self._tools.lend(entry.run, own))
            specs.extend(self._tools.specs_with(own))
            return specs

        try:
            taken = await self._resumer.take_up(entry, driver, lend, unknown, on_question, force)
        except BaseException:
            lent.close()
            raise
        submitted = taken.rebuilt.submitted
        task = self.plugins.task(submitted.request.task, submitted.request.text)
        handle = Handle(
            driver, submitted, task, watch,
            asker=self._asker, future=taken.future, nodes=taken.rebuilt.nodes, began=taken.began, ended=taken.ended,
            provenance=partial(self._provenance, submitted.request, tools=specs),
            on_settled=lambda run: self._handles.pop(run, None),
        )  # fmt: skip
        self._handles[handle.run] = handle
        handle.finished.add_done_callback(lambda _: lent.close())
        # What had ended before has taught already.
        if taken.ended is None and submitted.request.planner.options.get("learn") is True:
            self.lessons.follow(submitted.request, task, handle.finished)
        questions.handle(handle)
        return handle

    @cached_property
    def lessons(self) -> Lessons:
        """What planners learn from ended runs: `lessons.feedback(run, right)` rates an answer. Raises `UsageError`."""
        return demand_hook("lessons", "Planners that learn")(self.plugins.planner)

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers, once they have started."""
        return () if self._driver is None else self._driver.workers

    @property
    def runs(self) -> Mapping[str, Handle]:
        """The active runs, by id."""
        return self._handles

    def resize(self, worker: str, slots: int | None = None) -> int:
        """Limit a worker to `slots` slots, and return the number in use. Raises `UsageError` above its maximum."""
        return self._driver.resize(worker, slots) if self._driver is not None else 0

    def answer(self, question: str, value: JsonValue) -> None:
        """Answer a question that a tool has put, by its id, as the operator. Raises `UsageError` for one that is not
        open, `Unanswered` for an answer that is not one of its choices."""
        self._asker.answer(question, value)

    def plan(self, request: str | Request = "", **fields: Any) -> Plan:
        """Return the first plan for a request, checked, and start nothing. Raises what submitting it would raise."""
        brief = self.brief(request, **fields)
        planner = self.plugins.planner(brief.request.planner)
        if isinstance(planner, Flow):
            return first_patch(planner, brief)
        plan = Expander().start("plan", planner, brief, 0.0).plan
        self._briefs.check(plan, brief, opened=self._driver is not None)
        return plan

    async def provenance(self, request: str | Request = "", **fields: Any) -> Provenance:
        """Return the provenance of the answer to a request, without its question: models, tools, planner and options,
        seed, version. Arguments as for `submit`; starts the workers, for only they know their models."""
        await self._started()
        return self._made_of(self.brief(request, **fields))()

    def _made_of(self, brief: PlanningContext) -> Callable[[], Provenance]:
        """Return a function that builds the provenance of a request, since it is rarely read."""
        return partial(self._provenance, brief.request, tools=brief.tools)

    def brief(self, request: str | Request = "", *, planned: bool = False, **fields: Any) -> PlanningContext:
        """Return the validated planning context of a request, and start nothing.

        With `planned` there is a plan already, and no planner's options are looked at. Raises what submitting the
        request would raise.
        """
        return self._briefs.brief(*self._briefs.build(request, fields, as_given=planned), planned=planned)


class Home:
    """The process and the event loop of one orchestrator: where it may be used, with workers that no other one has."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_same_process(self) -> bool:
        """Whether this is the process that it was made in."""
        return os.getpid() == self._process

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is another process, or another event loop than the one that it was started on."""
        return not self.is_same_process or self._loop not in (None, asyncio.get_running_loop())

    def enter(self) -> None:
        """Demand to be where it was started; the first time decides. Raises `UsageError`."""
        if os.getpid() != self._process:
            raise UsageError(
                "this orchestrator was made before this process was forked, and its event loop runs in the other one: "
                "make one in this process, or start processes with multiprocessing's `spawn`"
            )
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise UsageError(
                "this orchestrator was started on another event loop (each `asyncio.run` makes a new one): make one "
                "inside each, or use `Orchestrator`, which has a loop of its own"
            )
        self._loop = loop

    def leave(self) -> None:
        """Give its workers free for others."""
        for worker in [worker for worker, home in _EMPLOYED.items() if home() is self]:
            del _EMPLOYED[worker]


_EMPLOYED: dict[int, weakref.ref[Home]] = {}
"""By the identity of a worker: who has it. An orchestrator that is forgotten unclosed takes its workers with it."""


def _employ(worker: Worker, home: Home) -> None:
    """Note that an orchestrator has a worker. Raises `UsageError` if another one has: attempt numbers would clash."""
    known = _EMPLOYED.get(id(worker))
    other = known() if known is not None else None
    if other is not None and other is not home:
        raise UsageError(
            f"the worker {worker.name!r} works for another orchestrator, which is not closed: give each its own"
        )
    _EMPLOYED[id(worker)] = weakref.ref(home)
