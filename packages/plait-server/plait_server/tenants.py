"""Who asks: API keys, and what each tenant may do and has used."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from plait.core.budget import Budget
from plait.core.errors import ConfigError
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.rights import ANY_HOST, Rights
from plait.core.sampling import answer_fields
from plait.core.tools.context import OPERATOR, Answerer
from plait.runtime.client.answer import Answer
from plait.runtime.client.handle import Handle
from plait.runtime.journal.journal import BYTES_BY_TENANT

from .admission import Allowance, BodyBytes, Holding, TenantLoad
from .bodies import resolve
from .errors import ApiError, invalid
from .settings import Settings, Tenant

DAY_S = 86_400
MAX_SESSIONS_PER_TENANT = 1000
"""Browsers of one tenant that are logged in at the same time; the oldest are logged out first."""
SESSION_LIFETIME_S = 7 * DAY_S


def new_key() -> str:
    """Return a fresh API key: 256 random bits."""
    return f"plait-{secrets.token_urlsafe(32)}"


def hashed(key: str) -> str:
    """Return the stored hash of a key. Keys are random, so one round of SHA-256 is enough against guessing."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


class User:
    """A tenant at work: its limits, and what it has used of them."""

    def __init__(self, tenant: Tenant, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.tenant = tenant
        self.name: str = tenant.name
        self._settings = settings
        self.planners: tuple[str, ...] = settings.planners if tenant.planners is None else tenant.planners
        """Names of the planners that it may use."""
        self._meant: set[str | None] = set()
        """Models that the names of its models stand for."""
        for name in tenant.models or ():
            with contextlib.suppress(ApiError):  # an unknown name is rejected when a request uses it
                self._meant.add(resolve(name, settings.aliases, (), any_name=True).model)
        self._clock = clock
        self.load = TenantLoad(tenant.fairness_weight)
        self._runs: set[str] = set()
        self._starting = 0
        self._recent: deque[float] = deque()
        self._day = 0
        self._tokens = 0
        self._cost = 0.0
        self._journal = self._journal_counted = 0
        """Bytes in journals: of today, as far as they are counted; of this process, counted there or older."""
        tokens = [] if tenant.tokens_per_day is None else [Allowance("tokens", tenant.tokens_per_day)]
        self._allowances = tokens + ([] if tenant.cost_per_day is None else [Allowance("cost", tenant.cost_per_day)])
        self.share: Callable[[Allowance, float], Awaitable[float]] | None = None
        """Reserves an amount in the store of all servers; returns the amount that runs of this one may hold."""
        self.accounting = asyncio.Lock()
        self.unsent = {"tokens": 0.0, "cost": 0.0}
        """Use that the store does not have yet."""
        self._held: dict[str, list[Holding]] = {}
        """By run: of each allowance, what it holds."""
        # Not guessable from the name: with another tenant's salt, one could find its cached prompts by timing.
        self.salt: str = secrets.token_hex(8) if tenant.keys and tenant.salted else ""

    @property
    def runs(self) -> int:
        """Number of running runs."""
        return len(self._runs) + self._starting

    @property
    def used(self) -> tuple[int, float]:
        """Tokens and cost of today."""
        self._turn()
        return self._tokens, self._cost

    @property
    def limited(self) -> bool:
        """Whether each of its requests asks what all processes of a store have counted, if one exists."""
        tenant = self.tenant
        return any(
            limit is not None for limit in (tenant.requests_per_minute, tenant.tokens_per_day, tenant.cost_per_day)
        )

    @property
    def held(self) -> tuple[float, ...]:
        """What its runs hold of the day's tokens and cost, if there are limits."""
        held = {allowance.name: allowance.held for allowance in self._allowances}
        return tuple(held.get(name, 0.0) for name in self.unsent) if held else ()

    def take_journal_bytes(self) -> int:
        """Return the bytes that this process has written to journals since the last call, and count them."""
        self._turn()
        more = BYTES_BY_TENANT[self.name] - self._journal_counted
        self._journal, self._journal_counted = self._journal + more, self._journal_counted + more
        return more

    def learned(self, now: float, tokens: float, cost: float, journal: float, requests: float = 0.0) -> None:
        """Take note of what all processes together have counted: the day's tokens, cost and bytes in journals, the
        minute's requests; and of the store's clock, which is everybody's. Raises `ApiError` beyond the rate."""
        ahead_s = now - time.monotonic()
        self._clock = lambda: ahead_s + time.monotonic()
        self._turn()
        self._journal = max(self._journal, int(journal))
        self._tokens, self._cost = max(self._tokens, int(tokens)), max(self._cost, cost)
        most = self.tenant.requests_per_minute
        if most is not None and requests > most:
            wait = max(1, round(60 - self._clock() % 60))
            raise self._later(f"rate limit of {most} requests per minute", wait)

    def sees(self, other: User) -> bool:
        """Whether it sees another tenant's runs."""
        return self is other or self.tenant.admin

    @property
    def answerer(self) -> Answerer:
        """Its identity when it answers questions of runs. Without tenants it is the operator, unless the server is
        `open`."""
        if self.tenant.keys:
            return Answerer(name=f"tenant {self.name}", tenant=self.name, approves=self.tenant.approves)
        return Answerer(name="anybody", approves=False) if self._settings.open else OPERATOR

    def tokens_left(self) -> int:
        """Return the number of tokens that a run may generate now. Raises `ApiError` if a limit per day is used up."""
        self._turn()
        most = self.tenant.tokens_per_run or 1 << 62
        if self.tenant.tokens_per_day is not None:
            left = self.tenant.tokens_per_day - self._tokens
            if left <= 0:
                raise self._spent(f"the {self.tenant.tokens_per_day} tokens of today are used up")
            most = min(most, left)
        if self.tenant.cost_per_day is not None and self._cost >= self.tenant.cost_per_day:
            raise self._spent(f"the {self.tenant.cost_per_day:g} of today are spent")
        written = self._journal + BYTES_BY_TENANT[self.name] - self._journal_counted
        journal = self._settings.journal_bytes_per_tenant
        if written >= journal:
            raise self._spent(
                f"your runs have written {written:,} bytes to journals today, and {journal:,} are allowed"
            )
        return most

    def may_ask(self, name: str, model: str | None) -> None:
        """Raise `ApiError` for a model that is not this tenant's."""
        allowed = self.tenant.models
        if allowed is not None and name not in allowed and model not in allowed:
            raise ApiError(404, f"there is no model {name!r} here; there are: {', '.join(allowed)}",
                           param="model", code="model_not_found")  # fmt: skip

    def may_plan(self, planner: Plugin) -> None:
        """Raise `ApiError` for a planner that is not allowed here."""
        if planner.name not in self.planners:
            known = ", ".join(self.planners)
            raise invalid(f"the planner {planner.name!r} is not to be used here; there are: {known}", "model",
                          "planner_not_found")  # fmt: skip

    def rights(self, model: str | None) -> Rights:
        """Return the rights of the tenant's runs; `model`: the one that the request's model name selects."""
        tenant, settings = self.tenant, self._settings
        named = tenant.models
        if named is not None and model is not None and model in self._meant:
            named = (*named, model) if model not in named else named
        if not tenant.keys:
            hosts = (ANY_HOST,) if settings.image_hosts is None else settings.image_hosts
            return Rights(models=named, planners=self.planners, tools=tenant.tools, image_hosts=hosts)
        hosts = settings.image_hosts or () if tenant.image_hosts is None else tenant.image_hosts
        fields = settings.extra_body if tenant.extra_body is None else tenant.extra_body
        return Rights(models=named, planners=self.planners, tools=tenant.tools, extra_body=fields, image_hosts=hosts,
                      apart=True)  # fmt: skip

    def own(self, request: Request) -> Request:
        """Return a request with its rights and what keeps tenants apart."""
        mine: dict[str, object] = {"rights": self.rights(request.model)}
        if self.tenant.keys:
            mine |= {"tenant": self.name, "salt": self.salt, "fairness_group": self.name,
            "fairness_weight": self.tenant.fairness_weight,
                     "priority": 0}  # fmt: skip
        return request.model_copy(update=mine)

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a run that is being started. Raises `ApiError` beyond the tenant's rates."""
        now, tenant = self._clock(), self.tenant
        while self._recent and self._recent[0] <= now - 60:
            self._recent.popleft()
        if tenant.requests_per_minute is not None and len(self._recent) >= tenant.requests_per_minute:
            wait = max(1, round(self._recent[0] + 60 - now))
            raise self._later(f"rate limit of {tenant.requests_per_minute} requests per minute", wait)
        if tenant.requests_per_minute is not None:
            self._recent.append(now)
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    @contextlib.asynccontextmanager
    async def reserving(self, budget: Budget, priced: bool) -> AsyncIterator[Reservation]:
        """Reserve of the day's tokens and cost what a run may use; what is reserved, and its run has not begun, is free
        again afterwards. `priced`: a limit of cost can be given to a run. Raises `ApiError` where nothing is left."""
        if not self._allowances:
            yield Reservation(budget)
            return
        async with self.accounting:  # one after another: what a run holds that has not begun cannot be divided
            made = Reservation(budget)
            try:
                for allowance in self._allowances:
                    await self._reserve(allowance, made, priced)
                yield made
                if made.handle is not None:
                    self._held[made.handle.run] = made.holdings
                    for allowance, holding in zip(self._allowances, made.holdings, strict=True):
                        await allowance.begun(holding, made.handle)
            finally:
                if made.handle is None:
                    for allowance, holding in zip(self._allowances, made.holdings, strict=False):
                        allowance.settle(holding, 0.0)
                    if (share := self.share) is not None:
                        with contextlib.suppress(ConfigError):
                            await asyncio.gather(*(share(allowance, 0.0) for allowance in self._allowances))

    async def _reserve(self, allowance: Allowance, made: Reservation, priced: bool) -> None:
        self.tokens_left()
        name = allowance.name
        used, most = (self._tokens, made.budget.tokens) if name == "tokens" else (self._cost, made.budget.cost)
        if name == "cost" and not priced:  # the cost cannot be limited: it is known only when the run has ended
            made.holdings.append(Holding(0.0, 0.0))
            return
        left, most = allowance.limit - used, most or math.inf
        if self.share is not None:
            left = min(left, await self.share(allowance, most))
        holding = await allowance.reserve(most, left)
        if holding is None:
            raise self._later(f"running runs have reserved the rest of today's {name}", 1)
        made.holdings.append(holding)
        held = int(holding.held) if name == "tokens" else holding.held
        made.budget = made.budget.model_copy(update={name: held})

    def began(self, run: str, handle: Handle | None = None) -> None:
        """Register a run; `handle`: given for a run that was not admitted here, but taken over."""
        self._runs.add(run)
        if handle is not None and run not in self._held:
            for allowance in self._allowances:
                limit = handle.budget.tokens if allowance.name == "tokens" else handle.budget.cost
                allowance.holdings.append(Holding(limit or 0.0, limit or 0.0, handle))
                self._held.setdefault(run, []).append(allowance.holdings[-1])

    def ended(self, run: str, answer: Answer | None) -> None:
        """Take note of the end of a run, and of what it took."""
        self._runs.discard(run)
        tokens, cost = used_by(answer)
        self.charge(tokens, cost)
        for allowance, holding in zip(self._allowances, self._held.pop(run, ()), strict=False):
            allowance.settle(holding, tokens if allowance.name == "tokens" else cost)

    def charge(self, tokens: int, cost: float) -> None:
        """Count tokens and cost for the day."""
        self._turn()
        self._tokens += tokens
        self._cost += cost
        self.unsent = {"tokens": self.unsent["tokens"] + tokens, "cost": self.unsent["cost"] + cost}

    def _turn(self) -> None:
        today = int(self._clock() // DAY_S)
        if today != self._day:
            self._day, self._tokens, self._cost = today, 0, 0.0
            self._journal, self._journal_counted = 0, BYTES_BY_TENANT[self.name]

    def check_runs(self, limit: int) -> None:
        """Raise `ApiError` if it has as many runs as the limit, which is the tenant's own if that is set."""
        limit = min(limit, self.tenant.runs or limit)
        if self.runs >= limit:
            raise self._later(f"{self.runs} of your runs are running, which is the limit", 1)

    def _later(self, message: str, seconds: int) -> ApiError:
        return ApiError(429, f"{message}: retry in {seconds} s", code="rate_limit_exceeded",
                        headers={"retry-after": str(seconds)})  # fmt: skip

    def _spent(self, message: str) -> ApiError:
        wait = int(DAY_S - self._clock() % DAY_S) + 1
        return ApiError(429, f"{message}: the limit is reset at midnight (UTC)", code="insufficient_quota", retry=False,
                        headers={"retry-after": str(wait)})  # fmt: skip


@dataclass(slots=True)
class Reservation:
    """The limits of a run that is being started."""

    budget: Budget
    """With no more than is reserved."""
    handle: Handle | None = None
    """The run, once it is submitted."""
    holdings: list[Holding] = field(default_factory=list[Holding])


def used_by(answer: Answer | None) -> tuple[int, float]:
    """Return the tokens and the cost of a run for the daily limit. Uncounted tokens count as generated, as in
    budgets."""
    if answer is None:
        return 0, 0.0
    return answer.usage.completion + answer.usage.uncounted, answer.usage.cost


class Tenants:
    """All tenants, found by their keys."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        open_to_all = not settings.tenants
        self.everybody: User | None = User(Tenant(name="anybody", admin=True), settings, clock) if open_to_all else None
        self.users: dict[str, User] = {tenant.name: User(tenant, settings, clock) for tenant in settings.tenants}
        self._by_key = {key: self.users[tenant.name] for tenant in settings.tenants for key in tenant.keys}
        weights = sum(user.tenant.fairness_weight for user in self.users.values())
        self._places = {
            user: int(settings.runs * user.tenant.fairness_weight / weights) for user in self.users.values()
        }
        """Part of the server's places for runs, by weight."""
        self._clock = clock
        self._sessions: dict[str, dict[str, float]] = {name: {} for name in self.users}
        """By tenant, hash of the token: when the session ends."""
        if len(self.users) < len(settings.tenants) or len(self._by_key) < sum(len(t.keys) for t in settings.tenants):
            raise invalid("two tenants have the same name, or the same key")

    def run_limit(self, user: User, free: int) -> int:
        """Return the number of runs that a tenant may have while `free` places are left: its part by weight, and
        beyond that no more than it leaves to the others. So a lone tenant gets half, and none fills the server."""
        return max(1, self._places.get(user, 0), free)

    def login(self, key: str) -> str:
        """Return a token for a browser in the place of a key. Raises `ApiError` for one that is not known."""
        user = self.find(f"Bearer {key}")
        token = secrets.token_urlsafe(32)
        if user is not self.everybody:
            sessions = self._sessions[user.name]
            sessions[hashed(token)] = self._clock() + SESSION_LIFETIME_S
            while len(sessions) > MAX_SESSIONS_PER_TENANT:
                del sessions[next(iter(sessions))]
        return token

    def logout(self, token: str) -> None:
        """End the session of a browser, if it has one."""
        for sessions in self._sessions.values():
            sessions.pop(hashed(token), None)

    def of_session(self, token: str) -> User | None:
        """Return whose browser it is; `None` where its session has ended."""
        digest, now = hashed(token), self._clock()
        for name, sessions in self._sessions.items() if token else ():
            if (end := sessions.get(digest)) is not None:
                return self.users[name] if now < end else None
        return None

    def find(self, authorization: str) -> User:
        """Return whose key it is, of a header `authorization`. Raises `ApiError`."""
        if self.everybody is not None:
            return self.everybody
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(401, "an API key is needed: send it as `Authorization: Bearer KEY`", code="missing_api_key",
                           headers={"www-authenticate": "Bearer"})  # fmt: skip
        digest = hashed(key.strip())
        user = self._by_key.get(digest)
        if user is None or not any(hmac.compare_digest(digest, key) for key in user.tenant.keys):
            raise ApiError(401, "this API key is not known here", code="invalid_api_key",
                           headers={"www-authenticate": "Bearer"})  # fmt: skip
        return user


@dataclass(slots=True)
class ServedRun:
    """A run that a client has started, and that has not ended."""

    handle: Handle
    user: User
    """Whose it is."""
    model: str
    """As the client named it."""
    steps: bool
    """Whether the branches are streamed."""
    began: float = field(default_factory=time.time)
    unread: tuple[str, ...] = ()
    """Fields of the body that neither plait nor the upstream uses."""
    thoughts: bool = True
    """Whether the response contains the model's thoughts before its answer."""
    body: BodyBytes | None = None
    """The bytes of the body that it was started with."""

    @property
    def must_call(self) -> bool:
        """Whether the answer has to call a function of the client."""
        return self.handle.request.tool_choice not in ("auto", "none")

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens to tell beside each; `None`: no log-probabilities."""
        return self.handle.request.generation.top_logprobs

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of the body that are unused, that the planner has no option for, or that its own options
        override."""
        return (*self.unread, *answer_fields(self.handle.request.generation))
