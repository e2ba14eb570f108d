"""What all endpoints share: the orchestrator, the runs under way, and who may do what. No scheduling of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue
from starlette.requests import Request

from ...core.interfaces import Worker, offer
from ...core.plan import Budget
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.plugins.spec import parse_plugin
from ...runtime.plugins.trust import untrusted
from .asked import Asked, Wishes, asked
from .audit import Audit
from .bodies import Sampled
from .errors import ApiError, invalid
from .kept import Responses
from .live import Live
from .metrics import Metrics
from .settings import Settings
from .strategy import PlaitField, Strategy, resolve
from .tenants import Tenants, User

__all__ = ["Service"]

log = logging.getLogger("plait.serve")

_OWNERS = 10_000
"""Runs of which is remembered whose they are."""
_AUDITED = ("chat", "responses", "runs")


class Service:
    """The server without HTTP."""

    def __init__(self, orchestrator: AsyncOrchestrator, settings: Settings, workers: Sequence[Worker]) -> None:
        self.orchestrator = orchestrator
        self.settings = settings
        self.workers = tuple(workers)
        self.tenants = Tenants(settings)
        self.responses = Responses(settings)
        self.metrics = Metrics(settings.planners, list(self.tenants.users), self.workers)
        self.audit = Audit(settings.audit)
        orchestrator.watch(self.metrics)
        self.live: dict[str, Live] = {}
        self._owners: OrderedDict[str, str] = OrderedDict()
        self.ready = False
        self.closing = False

    async def start(self) -> None:
        """Start the workers."""
        await self.orchestrator.start()
        self.ready = True

    async def close(self) -> None:
        """Let what runs end, and free everything."""
        await self.drain()
        self.ready = False
        await self.orchestrator.close()
        self.audit.close()

    def answered(self, endpoint: str, request: Request, user: User | None, status: int, seconds: float) -> None:
        """Take note of a request that was answered."""
        self.metrics.answered(endpoint, status, seconds)
        run = request.scope.get("plait.run", "")
        who = user.name if user is not None else ""
        said = {"tenant": who, "endpoint": endpoint, "run": run, "status": status, "seconds": round(seconds, 4)}
        log.info("%s %s", request.method, request.url.path, extra=said)
        if endpoint in _AUDITED:
            client = request.client.host if request.client is not None else ""
            self.audit.write(**said, method=request.method, path=request.url.path[:200], client=client)

    @property
    def served(self) -> tuple[str, ...]:
        """Names of models that the workers have."""
        return tuple(dict.fromkeys(name for each in self.workers for name in offer(each).models))

    @property
    def any_name(self) -> bool:
        """Whether a worker takes any name of a model."""
        return any(not offer(each).models and "think" in offer(each).serves for each in self.workers)

    def strategy(self, model: str, user: User) -> Strategy:
        """Return what the name of a model asks for. Raises `ApiError`, also for a model that is not the tenant's."""
        found = resolve(model, self.settings.aliases, self.served, self.any_name)
        user.may_ask(model, found.model)
        return found

    def limits(self, user: User) -> Budget:
        """Return what one run of a tenant may use at most."""
        tokens = min(self.settings.tokens_per_run, user.tokens_left())
        return Budget(tokens=tokens, seconds=self.settings.seconds_per_run)

    def ask(self, body: Sampled, conversation: Sequence[Mapping[str, Any]], wishes: Wishes, user: User) -> Asked:
        """Return what a body asks for. Raises `ApiError` for what cannot be honoured, or is not this tenant's."""
        strategy, said = self.strategy(body.model, user), body.plait.planner
        planner = (parse_plugin(said) if isinstance(said, str) else said) or strategy.planner
        planner = planner or self.orchestrator.config.planner
        user.may_plan(planner, body.plait.plan)
        self._bounded({"n": body.plait.n, **planner.options})
        return asked(body, conversation, wishes, strategy, planner, self.orchestrator, self.limits(user))

    def _bounded(self, options: Mapping[str, JsonValue]) -> None:
        """Raise `ApiError` for an option that asks a planner for too many of something: planners make all at once."""
        for name, value in options.items():
            many = isinstance(value, int | float) and value > self.settings.width
            if many and not any(word in name for word in ("token", "chars")):
                raise invalid(f"{name}={value} is more than the {self.settings.width} allowed here", "model")

    async def submit(self, asked: Asked, field: PlaitField, user: User, *, watch: bool) -> Live:
        """Start a run. Raises `ApiError`, and what the orchestrator raises for a request that makes no sense."""
        if self.closing:
            raise ApiError(503, "the server is being stopped: send the request again, to another", retry=True)
        if len(self.live) >= self.settings.runs:
            raise ApiError(429, "the server is full: send the request again later", code="server_busy", retry=True)
        with user.admitted(), untrusted():
            options = user.shared(asked.options)
            handle = await self.orchestrator.submit(plan=field.plan, watch=watch, **options)
        live = self.live[handle.run] = Live(handle, user, asked)
        user.began(handle.run)
        self._owners[handle.run] = user.name
        if len(self._owners) > _OWNERS:
            self._owners.popitem(last=False)
        handle.finished.add_done_callback(lambda done: self._ended(live, done))
        return live

    def owns(self, user: User, run: str) -> bool:
        """Whether a tenant may see a run, under way or past. Whose runs are is known since the server started."""
        return user.tenant.admin or self._owners.get(run) == user.name

    def _ended(self, live: Live, done: asyncio.Future) -> None:
        self.live.pop(live.handle.run, None)
        failed = done.cancelled() or done.exception() is not None
        answer = None if failed else done.result()
        live.user.ended(live.handle.run, answer)
        if answer is not None:
            usage = answer.usage
            self.metrics.used(live.user.name, usage.completion)
            self.audit.write(
                tenant=live.user.name, run=live.handle.run, model=live.asked.model[:200],
                planner=live.asked.planner.name, ended=answer.status, prompt_tokens=usage.prompt,
                completion_tokens=usage.completion, cancelled_tokens=usage.cancelled, cost=usage.cost,
                seconds=round(answer.seconds, 4),
            )  # fmt: skip

    async def drain(self) -> None:
        """Let runs under way end, for so long as the settings say, then give them up."""
        self.closing = True
        waiting = [live.handle.finished for live in self.live.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=self.settings.drain_seconds)
        for live in list(self.live.values()):
            live.handle.cancel("the server was stopped")
