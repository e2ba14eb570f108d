"""The ASGI application: routes, keys, errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from plait.runtime.client.answer import Answer

from .admission import PLACE
from .agui import AguiApi, AguiBody
from .bodies import AUTO, LARGE_BODY_BYTES, PREFIX, Body
from .chat import ChatCompletions
from .completions import Completions
from .dialect import ApiDialect, write_stream
from .errors import RETRY_AFTER_S, ApiError, not_found, of_error
from .http import EventStream, apart, read, refuse_body, request_id, same_page, unless_disconnected
from .messages import CountBody, Messages
from .response_body import ResponseBody
from .responses import ResponsesApi
from .runs import COOKIE, NewRuns, RunsApi
from .server_info import AboutApi
from .service import Service
from .stored_completions import StoredCompletions
from .stream_events import ChoiceEnded, ChoiceEvent, read_choice, stream_choices
from .tenants import ServedRun, User
from .token_requests import TOKENIZER_PATHS, TokenizerBody, TokenRequests

log = logging.getLogger("plait.serve")


_BODIES: dict[str, type[Body]] = {
    "/v1/responses": ResponseBody,
    "/v1/responses/input_tokens": ResponseBody,
    "/v1/responses/compact": ResponseBody,
    "/v1/messages/count_tokens": CountBody,
    "/agui": AguiBody,
}
"""The bodies of the endpoints without a dialect."""
DIALECTS: tuple[type[ApiDialect], ...] = (ChatCompletions, Completions, Messages)
BODIES = tuple(dict.fromkeys([*(dialect.body_type for dialect in DIALECTS), *_BODIES.values()]))

Handler = Callable[[Request, User], Awaitable[Any]]
_SECURE = {"x-content-type-options": "nosniff"}


def build(service: Service) -> Starlette:
    """Return the application of a service. It starts the orchestrator, and closes it at the end."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            await service.start()
            yield
        finally:
            await service.close()

    routes = [Route("/healthz", _healthz)]

    def add(method: str, path: str, handler: Handler, name: str, **options: Any) -> None:
        routes.append(Route(path, _Endpoint(service, handler, name, **options), methods=[method]))

    add("GET", "/readyz", _readyz, "readyz", keys=False)
    add("GET", "/v1/models", _models, "models")
    add("GET", "/v1/models/{name:path}", _model, "models")
    add("GET", "/metrics", _metrics, "metrics")
    for dialect in DIALECTS:
        handler = DialectHandler(service, dialect)
        add("POST", dialect.path, handler, dialect.name, starts_run=True, form=dialect.error)
    bodies = {dialect.path: dialect.body_type for dialect in DIALECTS} | _BODIES
    about = AboutApi(service, routes, bodies | dict.fromkeys(TOKENIZER_PATHS, TokenizerBody))
    add("GET", "/health", about.health, "about", keys=False)
    add("GET", "/version", about.version, "about")
    add("GET", "/openapi.json", about.openapi, "about")
    add("POST", "/v1/messages/count_tokens", about.count_message, "about", form=Messages.error)
    add("POST", "/agui", AguiApi(service).run, "agui", starts_run=True)
    stored = StoredCompletions(service)
    add("GET", "/v1/chat/completions", stored.list, "chat", reads=True)
    add("GET", "/v1/chat/completions/{id}", stored.read, "chat", reads=True)
    add("POST", "/v1/chat/completions/{id}", stored.update, "chat")
    add("DELETE", "/v1/chat/completions/{id}", stored.delete, "chat")
    add("GET", "/v1/chat/completions/{id}/messages", stored.messages, "chat", reads=True)
    responses = ResponsesApi(service)
    add("POST", "/v1/responses", responses.create, "responses", starts_run=True)
    add("POST", "/v1/responses/input_tokens", responses.count, "responses")
    add("POST", "/v1/responses/compact", responses.compact, "responses", starts_run=True)
    add("GET", "/v1/responses/{id}", responses.read, "responses")
    add("DELETE", "/v1/responses/{id}", responses.delete, "responses")
    add("GET", "/v1/responses/{id}/input_items", responses.items, "responses")
    add("POST", "/v1/responses/{id}/cancel", responses.cancel, "responses")
    for path in TOKENIZER_PATHS:
        add("POST", path, TokenRequests(service).tokenize, "tokens")
    add("GET", "/tokenizer_info", TokenRequests(service).tokenize, "tokens")
    runs, new = RunsApi(service), NewRuns(service)
    add("GET", "/runs", runs.list, "runs", reads=True, browser=True)
    add("POST", "/runs", new.start, "runs", starts_run=True, browser=True)
    add("GET", "/runs/new", new.choices, "runs", browser=True)
    add("GET", "/runs/{run}", runs.show, "runs", browser=True)
    add("GET", "/runs/{run}/data", runs.data, "runs", reads=True, browser=True)
    add("GET", "/runs/{run}/page", runs.page, "runs", browser=True)
    add("GET", "/runs/{run}/events", runs.events, "runs", browser=True)
    add("POST", "/runs/{run}/feedback", runs.feedback, "runs", browser=True)
    add("POST", "/runs/{run}/{verb}", runs.order, "runs", browser=True)
    add("GET", "/", runs.index, "page", keys=False)
    add("POST", "/login", runs.login, "login", keys=False)
    add("POST", "/logout", runs.logout, "login", keys=False)
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_exception_handler(404, _no_route)
    app.add_exception_handler(405, _no_method)
    app.state.service = service
    return app


class DialectHandler:
    """Answers the requests of a dialect: from a body to runs, and from their choices to what is sent."""

    def __init__(self, service: Service, dialect: type[ApiDialect]) -> None:
        self._service, self._dialect = service, dialect
        self._stored, self._tokens = StoredCompletions(service), TokenRequests(service)

    async def __call__(self, request: Request, user: User) -> Any:
        """Answer a request."""
        dialect = self._dialect
        body: Any = await read(request, dialect.body_type, self._service.settings)
        body.check()
        if body.asks_for_tokens and self._tokens.takes(body, user):
            return await self._tokens.complete(request, dialect.path.removeprefix("/v1/"), body, user)
        runs = await self._start_runs(body, user)
        request.scope["plait.run"], request.scope["plait.ignored"] = runs[0].handle.run, runs[0].ignored

        def give_up() -> None:
            for run in runs:
                run.handle.cancel(cause="client-gone")

        if body.stream:
            events = self._events(runs, body, user)
            return EventStream(write_stream(dialect(runs, body), events), give_up)
        finished = asyncio.gather(*(run.handle.finished for run in runs))
        answers = await unless_disconnected(request.receive, finished, give_up)
        if answers is None:
            return Response(status_code=499)
        long = body.is_long or sum(answer.usage.completion for answer in answers) > LARGE_BODY_BYTES
        whole = await apart(long, self._whole, runs, answers, body)
        if body.is_stored:
            await self._stored.add(whole, body, user)
        return await apart(long, JSONResponse, whole)

    def _whole(self, runs: Sequence[ServedRun], answers: Sequence[Answer], body: Any) -> dict[str, Any]:
        choices = [read_choice(*pair, self._dialect.raw) for pair in zip(runs, answers, strict=True)]
        return self._dialect(runs, body).whole(choices)

    async def _events(
        self, runs: Sequence[ServedRun], body: Any, user: User
    ) -> AsyncGenerator[tuple[int, ChoiceEvent], None]:
        """Yield the events of the choices. The answer is stored before its last event is sent."""
        left = len(runs)
        async for place, event in stream_choices(runs, self._dialect.raw):
            left -= isinstance(event, ChoiceEnded)
            if not left and body.is_stored:
                answers = [run.handle.finished.result() for run in runs]
                with contextlib.suppress(Exception):  # the client gets its answer also if it cannot be stored
                    await self._stored.add(self._whole(runs, answers, body), body, user)
            yield place, event

    async def _start_runs(self, body: Any, user: User) -> list[ServedRun]:
        """Start a run for each choice. Raises `ApiError`, and then none is left."""
        service, runs = self._service, list[ServedRun]()
        async with service.admission.turn(user.load):
            requests = await apart(body.is_long, self._dialect.read_requests, body, service.strategy(body.model, user))
        # Without a seed of the client's the choices differ too: else all would be the same.
        first, many = body.seed if body.seed is not None else 1, len(requests) > 1
        # All of a request have slots and turns as one run has; those of a tenant have them in the tenant's share.
        share = f"choices-{secrets.token_hex(8)}" if many else ""
        try:
            for place, request in enumerate(requests):
                await service.count_request(user)
                own = request.model_copy(update={"seed": first + place}) if many else request
                runs.append(await service.submit(own, body, user, watch=bool(body.stream), fairness_group=share))
        except BaseException:
            for run in runs:
                run.handle.cancel("another choice of the request was refused")
            raise
        return runs


class _Endpoint:
    """An ASGI app around a handler: finds the tenant, answers errors in its `form`, which is OpenAI's by default."""

    def __init__(
        self,
        service: Service,
        handler: Handler,
        name: str,
        *,
        keys: bool = True,
        starts_run: bool = False,
        reads: bool = False,
        browser: bool = False,
        form: Callable[[ApiError], dict[str, Any]] = ApiError.body,
    ) -> None:
        self._service, self._handler, self._name, self._keys = service, handler, name, keys
        self._form = form
        self._starts_run = starts_run
        """Whether a request starts a run: then a tenant without a place is refused before its body is read."""
        self._reads = reads
        """Whether it reads what is stored: a tenant's reads then come one after another, beside those of others."""
        self._browser = browser
        """Whether the cookie of a logged-in browser is accepted in place of a key."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        request = Request(scope, receive, send)
        began, status, place = time.perf_counter(), 500, contextlib.AsyncExitStack()
        user: User | None = None

        async def send_counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more: dict[bytes, str] = {}
                if ignored := scope.get("plait.ignored"):
                    more[b"x-plait-ignored"] = ", ".join(ignored)
                if name := request_id(request) or scope.get("plait.run"):
                    more[b"x-request-id"] = name
                headers = [*message.get("headers", ()), *((key, value.encode()) for key, value in more.items())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            try:
                self._service.guard.check(request)
                if self._keys:
                    user = self._user(request)
                    scope[PLACE] = place.enter_context(self._service.admission.request(user.load))
                    if self._starts_run:
                        self._service.check_places(user)
                    self._service.join_trace(request)
                    if self._reads:
                        await place.enter_async_context(self._service.admission.reads.turn(user.load))
                answer = await self._handler(request, user)  # pyright: ignore[reportArgumentType]
            except ClientDisconnect:
                status = 499
                return
            except Exception as error:
                answer = self._error(error)
                if request.method == "POST":
                    answer.headers.update(await refuse_body(request, self._service.settings))
            await answer(scope, receive, send_counted)
        finally:
            await place.aclose()
            self._service.record_request(self._name, request, user, status, time.perf_counter() - began)

    def _user(self, request: Request) -> User:
        tenants, headers = self._service.tenants, request.headers
        key_given = headers.get("authorization", "")
        if not key_given and (key := headers.get("x-api-key", "")):  # as Anthropic's clients say it
            key_given = f"Bearer {key}"
        user = tenants.of_session(request.cookies.get(COOKIE, "")) if self._browser and not key_given else None
        if user is not None:
            same_page(request)  # a browser sends the cookie along for pages of other ports too
        return user or tenants.find(key_given)

    def _error(self, error: Exception) -> Response:
        self._service.health.note_error(error)
        failure = of_error(error)
        if failure.status == 500 and failure.code == "internal_error":
            log.error("internal error while handling a request", exc_info=error)
        return JSONResponse(self._form(failure), failure.status, headers=failure.headers)


async def _healthz(_: Request) -> Response:
    """Alive: the event loop runs."""
    return PlainTextResponse("ok", headers=_SECURE)


async def _readyz(request: Request, _: User) -> Response:
    service: Service = request.app.state.service
    if not (problems := service.problems):
        return PlainTextResponse("ready", headers=_SECURE)
    headers = {**_SECURE, "retry-after": str(RETRY_AFTER_S)}
    return PlainTextResponse(f"not ready: {', '.join(problems)}", 503, headers=headers)


async def _metrics(request: Request, user: User) -> Response:
    if not user.tenant.admin:
        raise ApiError(403, "the metrics are for tenants that are `admin`")
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _models(request: Request, user: User) -> Response:
    return JSONResponse({"object": "list", "data": list(list_models(request.app.state.service, user).values())})


async def _model(request: Request, user: User) -> Response:
    service, name = request.app.state.service, request.path_params["name"]
    card = list_models(service, user).get(name)
    if card is None:
        service.strategy(name, user)  # a planner's name with options is a model too
        card = _model_card(name)
    return JSONResponse(card)


def list_models(service: Service, user: User) -> dict[str, dict[str, Any]]:
    """Return the models that a tenant may ask for: aliases, the workers' models, and each planner over each of them."""
    served = service.served_models
    plain = [*service.settings.aliases, *served]
    planned = [f"plait/{planner}@{model}" for planner in user.planners for model in served]
    planned = planned or [f"plait/{planner}" for planner in user.planners]
    auto = [f"{PREFIX}{AUTO}"] if "route" in user.planners else []
    names = dict.fromkeys([*plain, *auto, *planned])
    cards: dict[str, dict[str, Any]] = {}
    for name in names:
        with contextlib.suppress(ApiError):
            service.strategy(name, user)
            cards[name] = _model_card(name)
    return cards


def _model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "plait"}


async def _no_route(request: Request, _: Exception) -> Response:
    return not_found(f"there is nothing at {request.method} {request.url.path}", code="unknown_url").response()


async def _no_method(request: Request, _: Exception) -> Response:
    message = f"{request.url.path} does not take {request.method}"
    return ApiError(405, message, code="method_not_allowed").response()
