"""`plait mcp --http`: who may connect, by the rule of `plait serve`.

A loopback address answers this machine's programs, and no page of the web (`Host` and `Origin` are checked). Any other
address needs keys, or `--open`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from plait.core.errors import ConfigError
from plait.core.messages import explain, first_of_each, json_path
from plait.core.values import Frozen
from plait.runtime.client.config import table

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
