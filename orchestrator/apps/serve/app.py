"""The ASGI application: routes, keys, errors."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from .chat import ChatCompletions
from .errors import ApiError, not_found, of_error
from .http import same_page
from .new_runs import NewRuns
from .responses import ResponsesApi
from .runs import COOKIE, RunsApi
from .service import Service
from .tenants import User

__all__ = ["build"]

log = logging.getLogger("plait.serve")

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

    routes = [
        Route("/healthz", _healthz),
        Route("/readyz", _Endpoint(service, _readyz, "readyz", keys=False)),
        Route("/v1/models", _Endpoint(service, _models(service), "models"), methods=["GET"]),
        Route("/v1/models/{name:path}", _Endpoint(service, _model(service), "models")),
        Route("/metrics", _Endpoint(service, _metrics, "metrics")),
        Route("/v1/chat/completions", _Endpoint(service, ChatCompletions(service), "chat"), methods=["POST"]),
    ]
    responses = ResponsesApi(service)
    for path, handler, method in (
        ("", responses.create, "POST"),
        ("/{id}", responses.read, "GET"),
        ("/{id}", responses.delete, "DELETE"),
        ("/{id}/input_items", responses.items, "GET"),
        ("/{id}/cancel", responses.cancel, "POST"),
    ):
        routes.append(Route(f"/v1/responses{path}", _Endpoint(service, handler, "responses"), methods=[method]))
    runs, new = RunsApi(service), NewRuns(service)
    for path, handler, method in (
        ("/runs", runs.list, "GET"),
        ("/runs", new.start, "POST"),
        ("/runs/new", new.choices, "GET"),
        ("/runs/{run}", runs.show, "GET"),
        ("/runs/{run}/data", runs.data, "GET"),
        ("/runs/{run}/page", runs.page, "GET"),
        ("/runs/{run}/events", runs.events, "GET"),
        ("/runs/{run}/{verb}", runs.order, "POST"),
    ):
        routes.append(Route(path, _Endpoint(service, handler, "runs", browser=True), methods=[method]))
    routes.append(Route("/", _Endpoint(service, runs.index, "page", keys=False), methods=["GET"]))
    routes.append(Route("/login", _Endpoint(service, runs.login, "login", keys=False), methods=["POST"]))
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_exception_handler(404, _no_route)
    app.add_exception_handler(405, _no_method)
    app.state.service = service
    return app


class _Endpoint:
    """An ASGI app around a handler: finds the tenant, answers errors in OpenAI's form."""

    def __init__(
        self, service: Service, handler: Handler, name: str, *, keys: bool = True, browser: bool = False
    ) -> None:
        self._service, self._handler, self._name, self._keys = service, handler, name, keys
        self._browser = browser
        """Whether the cookie of a browser that has logged in stands for a key."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        request = Request(scope, receive, send)
        began, status = time.perf_counter(), 500
        user: User | None = None

        async def heard(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if ignored := scope.get("plait.ignored"):
                    more = (b"x-plait-ignored", ", ".join(ignored).encode())
                    message = {**message, "headers": [*message.get("headers", ()), more]}
            await send(message)

        try:
            try:
                self._service.guard.check(request)
                if self._keys:
                    user = self._user(request)
                answer = await self._handler(request, user)  # pyright: ignore[reportArgumentType]
            except ClientDisconnect:
                status = 499
                return
            except Exception as error:
                answer = self._error(error)
            await answer(scope, receive, heard)
        finally:
            self._service.answered(self._name, request, user, status, time.perf_counter() - began)

    def _user(self, request: Request) -> User:
        tenants, said = self._service.tenants, request.headers.get("authorization", "")
        found = tenants.of_session(request.cookies.get(COOKIE, "")) if self._browser and not said else None
        if found is not None:
            same_page(request)  # a browser sends the cookie along for pages of other ports too
        return found or tenants.find(said)

    def _error(self, error: Exception) -> Response:
        said = of_error(error)
        if said.status == 500 and said.code == "internal_error":
            log.error("a request met with a mistake of ours", exc_info=error)
        return said.response()


async def _healthz(_: Request) -> Response:
    """Alive: the event loop runs."""
    return PlainTextResponse("ok", headers=_SECURE)


async def _readyz(request: Request, _: User) -> Response:
    service: Service = request.app.state.service
    ready = service.ready and not service.closing
    return PlainTextResponse("ready" if ready else "not ready", 200 if ready else 503, headers=_SECURE)


async def _metrics(request: Request, user: User) -> Response:
    if not user.tenant.admin:
        raise ApiError(403, "the metrics are for tenants that are `admin`")
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _models(service: Service) -> Handler:
    async def models(_: Request, user: User) -> Response:
        return JSONResponse({"object": "list", "data": list(listed(service, user).values())})

    return models


def _model(service: Service) -> Handler:
    async def model(request: Request, user: User) -> Response:
        name = request.path_params["name"]
        found = listed(service, user).get(name)
        if found is None:
            service.strategy(name, user)  # a planner's name with options is a model too
            found = _card(name)
        return JSONResponse(found)

    return model


def listed(service: Service, user: User) -> dict[str, dict[str, Any]]:
    """Return the models that a tenant may ask for: aliases, the workers' models, and each planner over each of them."""
    served = service.served
    plain = [*service.settings.aliases, *served]
    planned = [f"plait/{planner}@{model}" for planner in user.planners for model in served]
    planned = planned or [f"plait/{planner}" for planner in user.planners]
    names = dict.fromkeys([*plain, *planned])
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        with contextlib.suppress(ApiError):
            service.strategy(name, user)
            found[name] = _card(name)
    return found


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "plait"}


async def _no_route(request: Request, _: Exception) -> Response:
    return not_found(f"there is nothing at {request.method} {request.url.path}", code="unknown_url").response()


async def _no_method(request: Request, _: Exception) -> Response:
    message = f"{request.url.path} does not take {request.method}"
    return ApiError(405, message, code="method_not_allowed").response()
