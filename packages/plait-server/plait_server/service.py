"""State that all endpoints share: the orchestrator, the running runs and the rights, without scheduling of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from starlette.requests import Request as HttpRequest

from plait.core.budget import Budget
from plait.core.errors import ConfigError, UsageError
from plait.core.interfaces import Worker, offer
from plait.core.ops import Plugin
from plait.core.plan import Plan
from plait.core.request import Request
from plait.core.value_sizes import cost_of
from plait.runtime.client.client import AsyncOrchestrator, Handle
from plait.runtime.client.pricing import table
from plait.runtime.client.request_preparation import Live
from plait.runtime.driver.typed_answers import check_schema
from plait.runtime.journal import store
from plait.runtime.journal.directory import find, place
from plait.runtime.journal.location import Database
from plait.runtime.journal.store_membership import Counters
from plait.runtime.telemetry import wanted

from . import outside
from .admission import Allowance, RequestAdmission
from .bodies import Body, ServedStrategy, resolve
from .documents import Documents
from .errors import ApiError, invalid, unavailable
from .fields import apply_rights
from .health import ServerHealth
from .http import HostGuard, apart, request_id
from .listing import EndedRuns
from .metrics import Metrics
from .response_store import ResponseStore
from .settings import Settings
from .tenants import DAY_S, ServedRun, Tenants, User

log = logging.getLogger("plait.serve")

MAX_STEPS = 1000
"""Of a plan in a request."""
_OWNERS = 10_000
"""Maximum number of runs whose tenant is kept in memory."""
_NOT_AUDITED = ("models", "metrics", "page", "login", "about", "readyz")


class Audit:
    """The file of requests. Lines are added whole, so several processes may share it."""

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        if path is not None:
            try:
                self._file = os.open(path.expanduser(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            except OSError as error:
                raise ConfigError(f"the audit file {path} cannot be written: {error.strerror}") from None

    def write(self, **fields: Any) -> None:
        """Add a line."""
        if self._file is not None:
            line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
            os.write(self._file, (json.dumps(line, ensure_ascii=True) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Service:
    """The server without HTTP."""

    def __init__(self, orchestrator: AsyncOrchestrator, settings: Settings, workers: Sequence[Worker]) -> None:
        self.orchestrator = orchestrator
        self.settings = settings
        self.workers = tuple(workers)
        self.tenants = Tenants(settings)
        self._ours = _find_alias_plugins(settings)
        self.guard = HostGuard(settings)
        config = orchestrator.config
        self.store = config.journal if isinstance(config.journal, Database) else None
        """State that other processes share."""
        self._counters = Counters(self.store) if self.store is not None else None
        for user in self.tenants.users.values() if self._counters is not None else ():
            user.share = partial(self._reserve_shared, user)
        self.pooled = self.store is not None and config.pool is not None
        """Whether other processes take over the runs of processes that died."""
        location = place(config) if config.journal != "off" else None
        self.responses = ResponseStore(settings, location and Documents(location, "response"))
        self.completions = ResponseStore(settings, location and Documents(location, "completion"), "chat completion")
        self.metrics = Metrics(settings.planners, list(self.tenants.users), self.workers, lambda: not self.problems)
        self.admission = RequestAdmission(max(1, settings.connections // 2), settings.body_bytes_per_tenant)
        self.health = ServerHealth(self.workers, self.tenants, location, settings.upstream_wait)
        orchestrator.watch(self.health)
        self.audit = Audit(settings.audit)
        orchestrator.watch(self.metrics)
        orchestrator.on_taken = self._register_taken_over
        self.on_run_taken_over: Callable[[ServedRun], Awaitable[None]] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self.live: dict[str, ServedRun] = {}
        self.ended = EndedRuns()
        self._owners: OrderedDict[str, str] = OrderedDict()
        self.ready = False
        self.closing = False
        self._priced = False
        """Whether the cost of a run can be limited."""

    async def start(self) -> None:
        """Start the workers."""
        await self.orchestrator.start()
        self.ready = True
        config = self.orchestrator.config
        self._priced = any(getattr(worker, "prices", None) or table(config, [worker]) for worker in self.workers)

    async def close(self) -> None:
        """Let what runs end, and free everything."""
        await self.drain()
        self.ready = False
        await self.health.close()
        await self.orchestrator.close()
        if self._work:
            await asyncio.wait(self._work, timeout=self.settings.drain_seconds)
        for responses in (self.responses, self.completions):
            await asyncio.to_thread(responses.close)
        self.audit.close()

    def record_request(
        self, endpoint: str, request: HttpRequest, user: User | None, status: int, seconds: float
    ) -> None:
        """Take note of a request that was answered."""
        self.metrics.answered(endpoint, status, seconds)
        run = request.scope.get("plait.run", "")
        who = user.name if user is not None else ""
        fields = {"tenant": who, "endpoint": endpoint, "run": run, "status": status, "seconds": round(seconds, 4)}
        fields |= {"request": name} if (name := request_id(request)) else {}
        log.info("%s %s %d %.3f s", request.method, request.url.path, status, seconds, extra=fields)
        if endpoint not in _NOT_AUDITED:
            client = request.client.host if request.client is not None else ""
            self.audit.write(**fields, method=request.method, path=request.url.path[:200], client=client)

    def join_trace(self, request: HttpRequest) -> None:
        """Make the caller's span, if its request names one, the parent of the spans of its runs."""
        if "traceparent" in request.headers and wanted(self.orchestrator.config.telemetry):
            from opentelemetry import context, propagate

            context.attach(propagate.extract(dict(request.headers)))  # each request is a task of its own

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the server is not ready, for any reader; empty if it is."""
        if self.closing or not self.ready:
            return ("stopping" if self.closing else "starting",)
        return self.health.problems

    @property
    def served_models(self) -> tuple[str, ...]:
        """Names of models that the workers have."""
        return tuple(dict.fromkeys(name for worker in self.workers for name in offer(worker).models))

    @property
    def any_name(self) -> bool:
        """Whether a worker accepts any model name."""
        return any(
            not offer(worker).models and "think" in offer(worker).serves and getattr(worker, "has_answered", True)
            for worker in self.workers
        )

    def strategy(self, model: str, user: User) -> ServedStrategy:
        """Return the strategy that a model name selects. Raises `ApiError`, also for a model of other tenants."""
        try:
            strategy = resolve(model, self.settings.aliases, self.served_models, self.any_name)
        except ApiError as error:
            if error.status == 404 and not all(getattr(worker, "has_answered", True) for worker in self.workers):
                raise unavailable("an upstream has not answered yet, and may have this model") from None
            raise
        user.may_ask(model, strategy.model)
        return strategy

    async def count_request(self, user: User) -> None:
        """Count a request of a tenant's over all processes of the store, and learn what they have counted. Raises
        `ApiError` beyond the rate."""
        if self._counters is None or not user.limited:
            return
        _, requests = await asyncio.to_thread(self._counters.add, f"requests {user.name}", 60, (1.0,))
        used = await asyncio.to_thread(self._counters.add, f"used {user.name}", DAY_S, (0.0, 0.0, 0.0))
        user.learned(*used, requests=requests)

    async def _count_usage(self, user: User) -> None:
        """Count what a tenant has used here over all processes of the store, and say what its runs hold."""
        assert self._counters is not None
        async with user.accounting:
            sent, name = user.unsent, f"used {user.name}"
            more = (*sent.values(), float(user.take_journal_bytes()))
            user.learned(*await asyncio.to_thread(self._counters.add, name, DAY_S, more, user.held))
            user.unsent = {what: amount - sent[what] for what, amount in user.unsent.items()}

    async def _reserve_shared(self, user: User, allowance: Allowance, wanted: float) -> float:
        """Reserve a part of a tenant's day in the store; return the amount that its runs here may hold."""
        assert self._counters is not None
        name, what = f"used {user.name}", allowance.name
        held, place = allowance.held + user.unsent[what], list(user.unsent).index(what)
        granted = await asyncio.to_thread(self._counters.reserve, name, DAY_S, place, held, wanted, allowance.limit)
        return granted - user.unsent[what]  # runs that have ended meanwhile hold less, and have used more

    def limits(self, user: User) -> Budget:
        """Return the budget of one run of a tenant."""
        tokens = min(self.settings.tokens_per_run, user.tokens_left())
        return Budget(tokens=tokens, seconds=self.settings.seconds_per_run)

    def apply_limits(self, request: Request, plan: Plan | None, user: User) -> Request:
        """Return a request within the bounds of a tenant. Raises `ApiError` for what is not this tenant's."""
        named = "planner" in request.model_fields_set
        planner = request.planner if named else self.orchestrator.config.planner
        if plan is None:
            user.may_plan(planner)
        elif len(plan.steps) > MAX_STEPS:
            raise invalid(f"the plan has {len(plan.steps)} steps, and {MAX_STEPS} are the most here")
        rights, width = user.rights(request.model), self.settings.width
        outside.check(request, plan, rights, self.orchestrator.plugins, self._ours, width)
        if request.output is not None:
            check_schema(request.output)
        mine, theirs = request.budget.limits, self.limits(user).limits
        if (
            plan is not None
            and (tokens := cost_of(plan, request.retries, 0, self.orchestrator.plugins.merge_class).tokens) is not None
        ):
            theirs["tokens"] = min(theirs["tokens"], max(1, tokens))  # it cannot use more, so it need not reserve more
        least = {name: min(limits[name] for limits in (mine, theirs) if name in limits) for name in mine | theirs}
        budget = Budget.model_validate({**least, "strict": request.budget.strict})
        most = self.settings.value_bytes_per_run
        return user.own(request.model_copy(update={"planner": planner, "budget": budget, "value_bytes": most}))

    async def submit(
        self, request: Request, body: Body, user: User, *, watch: bool, fairness_group: str = ""
    ) -> ServedRun:
        """Start a run; `fairness_group` is for a run without a tenant. A tenant's runs are always in the tenant's
        group: in a group of its own, each request would weigh as much as the tenant. Raises `ApiError`, and the
        orchestrator's errors for an invalid request."""
        if self.closing:
            raise ApiError(503, "the server is being stopped: send the request again, to another", retry=True)
        self.check_places(user)
        async with self.admission.turn(user.load):
            return await self._submit(request, body, user, watch, fairness_group)

    def check_places(self, user: User) -> None:
        """Raise `ApiError` (429) if a tenant, or the whole server, has as many runs as it may have."""
        free = self.settings.runs - len(self.live)
        if free > 0:
            user.check_runs(self.tenants.run_limit(user, free))
        else:
            raise ApiError(429, "the server is full: send the request again later", code="server_busy", retry=True,
                           headers={"retry-after": "1"})  # fmt: skip

    async def _submit(self, request: Request, body: Body, user: User, watch: bool, fairness_group: str) -> ServedRun:
        self.check_places(user)  # others may have taken them meanwhile
        self.health.check_salt(user.salt)
        takes = (getattr(worker, "extra_body", None) for worker in self.workers if "think" in offer(worker).serves)
        passed = body.upstream_fields(self.settings.extra_body)
        request, unused = apply_rights(request, passed, user.rights(request.model), takes)
        request = await apart(body.is_long, self.apply_limits, request, body.plait.plan, user)
        if fairness_group and not request.fairness_group:  # after the check, which refuses a group from outside
            request = request.model_copy(update={"fairness_group": fairness_group})
        with user.admitted():
            # Clients send a temperature with every request: the response reports that it is ignored.
            live = Live(lenient=True, outside=True)
            async with user.reserving(request.budget, self._priced) as reserved:
                request = request.model_copy(update={"budget": reserved.budget})
                handle = await self.orchestrator.submit(request, plan=body.plait.plan, watch=watch, live=live)
                reserved.handle = handle
        run = ServedRun(handle, user, body.model, body.plait.steps)
        run.unread = (*(name for name in body.unused_fields if name not in passed), *unused)
        run.thoughts = body.include_reasoning
        if body.bytes_held is not None:
            body.bytes_held.hold()
            run.body = body.bytes_held
        self._register(run)
        return run

    def _register(self, live: ServedRun) -> None:
        handle, user = live.handle, live.user
        self.live[handle.run] = live
        user.began(handle.run, handle)
        if self.tenants.everybody is None:  # else all runs are everybody's
            self._owners[handle.run] = user.name
        if len(self._owners) > _OWNERS:
            self._owners.popitem(last=False)
        handle.finished.add_done_callback(lambda done: self._unregister(live, done))

    def _register_taken_over(self, handle: Handle) -> None:
        """Register a run that this process took over from another one."""
        user = self.tenants.everybody or self.tenants.users.get(handle.request.tenant)
        if user is None:  # the tenant was removed: the run ends, and no client can read it
            return
        live = ServedRun(handle, user, "", steps=False)
        self._register(live)
        self._note_usage(user, 0)
        if self.on_run_taken_over is not None:
            self.run_in_background(self.on_run_taken_over(live), "the response of a run that was taken over")

    def run_in_background(self, work: Awaitable[None], what: str) -> None:
        """Run something in the background."""
        task = asyncio.ensure_future(_log_errors(work, what))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def send_order(self, run: str, verb: str, about: str = "", value: JsonValue = None) -> None:
        """Tell the process that has a run what a client wants of it. Raises `UsageError` for an ended run."""
        if self.store is not None:
            await asyncio.to_thread(store.order, self.store, run, verb, about, value)

    async def read_status(self, run: str) -> str | None:
        """Return the status of a run of another process: `running`, `interrupted`, how it ended, or `unknown`.
        `None`: the journals cannot be read."""
        try:
            return (await asyncio.to_thread(find, place(self.orchestrator.config), run)).status
        except ConfigError:
            return None
        except UsageError:
            return "unknown"

    def is_visible(self, user: User, run: str, share: str | None = None) -> bool:
        """Return whether a tenant may see a run, running or past. A store keeps the tenant of each run (`share`); for
        runs in files, the server knows only the tenants of runs since its start."""
        return user.tenant.admin or share == user.name or (share is None and self._owners.get(run) == user.name)

    def _unregister(self, live: ServedRun, done: asyncio.Future) -> None:
        self.live.pop(live.handle.run, None)
        failed = done.cancelled() or done.exception() is not None
        answer = None if failed else done.result()
        self.ended.add(live, answer)
        live.user.ended(live.handle.run, answer)
        if live.body is not None:
            live.body.release()
        self._note_usage(live.user, 0 if answer is None else answer.usage.completion)
        if answer is not None:
            usage = answer.usage
            self.audit.write(
                tenant=live.user.name, run=live.handle.run, model=live.model[:200],
                planner=live.handle.request.planner.name, ended=answer.status, prompt_tokens=usage.prompt,
                completion_tokens=usage.completion, cancelled_tokens=usage.cancelled, cost=usage.cost,
                seconds=round(answer.seconds, 4),
            )  # fmt: skip

    def charge(self, user: User, tokens: int, cost: float) -> None:
        """Count what a request without a run took."""
        user.charge(tokens, cost)
        self._note_usage(user, tokens)

    def _note_usage(self, user: User, generated: int) -> None:
        if self._counters is not None:
            self.run_in_background(self._count_usage(user), "what a request took")
        self.metrics.used(user.name, generated)

    async def drain(self) -> None:
        """Wait up to `drain_seconds` for running runs to end, then cancel them."""
        self.closing = True
        waiting = [live.handle.finished for live in self.live.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=self.settings.drain_seconds)
        for live in list(self.live.values()):
            live.handle.cancel("the server was stopped", cause="closed")


def _find_alias_plugins(settings: Settings) -> list[Plugin]:
    """Return the plugins that the operator has named in aliases: their options may say more than a request's."""
    plugins: list[Plugin] = []
    for name in settings.aliases:
        with contextlib.suppress(ApiError):  # an alias for nothing is refused where it is asked for
            strategy = resolve(name, settings.aliases, (), any_name=True)
            plugins += [plugin for plugin in (strategy.planner, *strategy.policies) if plugin is not None]
    return plugins


async def _log_errors(work: Awaitable[None], what: str) -> None:
    try:
        await work
    except Exception as error:
        log.error("%s: %s", what, error)
