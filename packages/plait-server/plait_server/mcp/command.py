"""`plait mcp`: plait as tools of a client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

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
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait.runtime.driver.garbage_collection import settle

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
