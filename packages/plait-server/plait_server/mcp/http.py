"""`plait mcp --http`: who may connect, by the rule of `plait serve`.

A loopback address answers this machine's programs, and no page of the web (`Host` and `Origin` are checked). Any other
address needs keys, or `--open`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from plait.apps.common.options import (
    Common,
    MaxTokens,
    Planner,
    Policies,
    Seconds,
    Temperature,
    Tokens,
    common_options,
)
from plait.apps.models.standing import joined
from plait.core.errors import ConfigError
from plait.core.messages import explain, first_of_each, json_path
from plait.core.values import Frozen
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config, table
from plait.runtime.driver.garbage_collection import settle

from ..errors import ApiError
from ..http import HostGuard
from ..settings import LOOPBACK, Settings
from ..tenants import Tenants

TABLE = "mcp_server"
"""The table of plait.toml. `mcp` itself is a setting: the servers whose tools plait uses."""


class McpAccess(Frozen):
    """Who may use `plait mcp --http`."""

    keys: tuple[str, ...] = ()
    """Hashes of API keys, as `plait serve --new-key` prints them. Each key may use all that the server offers."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names (header `Host`, without ports) that the server accepts in addition to those of this machine."""
    open: bool = False
    """Whether a server without keys may listen on an address that other machines reach."""


def load_access(address: tuple[str, int], file: str | Path | None = None, is_open: bool = False) -> Settings:
    """Return the settings that `plait serve` would have for these clients. Raises `ConfigError` for an address that
    other machines reach without keys or `--open`."""
    host, port = address
    path, values = table(TABLE, file)
    try:
        access = McpAccess.model_validate({key.replace("-", "_"): value for key, value in values.items()})
        is_open = is_open or access.open
        if host not in LOOPBACK and not access.keys and not is_open:
            raise ConfigError(
                f"other machines reach {host}, and without keys any of them can run the tools of this server. Add "
                f"`keys` to the table [{TABLE}] of plait.toml (`plait serve --new-key` makes one), or accept it with "
                "--open"
            )
        tenants = [{"name": "mcp", "keys": access.keys}] if access.keys else []
        return Settings.model_validate(
            {"host": host, "port": port, "open": is_open, "allowed_hosts": access.allowed_hosts, "tenants": tenants}
        )
    except ValidationError as error:
        detail = first_of_each(error)[0]
        place = json_path(detail["loc"]) or "the table"
        raise ConfigError(explain(f"{path or 'an option'}, [{TABLE}], {place}", detail, McpAccess)) from None


class AccessGuard:
    """An ASGI application that checks host, origin and key of each request before `app` gets it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._guard, self._tenants = app, HostGuard(settings), Tenants(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or reject it."""
        if scope["type"] == "http":
            request = Request(scope)
            try:
                self._guard.check(request)
                self._tenants.find(request.headers.get("authorization", ""))
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def build_app(server: MCPServer[Any], settings: Settings) -> AccessGuard:
    """Return the server as a guarded ASGI application."""
    # The guard checks hosts itself: the package's own check knows no `allowed_hosts`, and is off beyond loopback.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return AccessGuard(server.streamable_http_app(host=settings.host, transport_security=unchecked), settings)


async def serve_http(server: MCPServer[Any], settings: Settings) -> None:
    """Serve until a signal."""
    app = build_app(server, settings)
    await uvicorn.Server(uvicorn.Config(app, host=settings.host, port=settings.port, log_level="error")).serve()


if TYPE_CHECKING:
    from ..settings import Settings


@common_options
def mcp(
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve HTTP at this address, path /mcp, and not stdio.")
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="With --http: allow other machines to connect without a key.")
    ] = False,
    planner: Planner = None,
    policies: Policies = None,
    tokens: Tokens = None,
    seconds: Seconds = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    *,
    common: Common,
) -> None:
    """Offer solve, vote and run_plan as tools of the Model Context Protocol, on standard streams or over HTTP.

    `--tokens` and `--seconds` bound each run, whatever a client asks for. An address that other machines reach needs
    `keys` in the table `mcp_server` of plait.toml, or --open.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError("the MCP server needs one more package: pip install 'plait[mcp]'")
    access = None
    if http is not None:
        from .http import load_access

        access = load_access(_address(http), common.config, open_)
    config = common.load(
        planner=planner,
        policies=policies or None,
        tokens=tokens,
        seconds=seconds,
        max_tokens=max_tokens,
        temperature=temperature,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(config, access))


async def _serve(config: Config, access: Settings | None) -> None:
    from ..settings import LOOPBACK
    from .jobs import Jobs
    from .server import build

    config, _ = joined(config)
    async with AsyncOrchestrator(config=config, on_ask="later", control=True) as orchestrator:
        server = build(Jobs(orchestrator, config.tokens, access is None or access.host in LOOPBACK))
        settle()
        if access is None:
            await server.run_stdio_async()
        else:
            from .http import serve_http

            await serve_http(server, access)


def _address(given: str) -> tuple[str, int]:
    """Return a host and a port. Raises `ConfigError` for anything else."""
    host, _, port = given.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--http {given!r:.80} is not an address. Example: 127.0.0.1:8200")
    return host.strip("[]") or "127.0.0.1", int(port)
