"""`plait serve`: the server as a command."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

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
from plait.core.errors import ConfigError
from plait.runtime.journal.location import Database

from .settings import Settings

_WHERE = "Server"


@common_options
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen at; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 8100 by default, 0 for any free.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Allow other machines although there are no tenants.")] = False,
    upstream: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="URL of an OpenAI-compatible server; repeatable.")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="NAME=MODEL", help="Another name of a model; repeatable.")
    ] = None,
    require_all: Annotated[bool, typer.Option("--require-all", help="Start only if all upstreams answer.")] = False,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate and chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key, PEM.")] = None,
    planner: Planner = None,
    policies: Policies = None,
    tokens: Tokens = None,
    seconds: Seconds = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check address, upstreams, tenants and journals, and exit.")
    ] = False,
    new_key: Annotated[bool, typer.Option("--new-key", help="Print a new API key and its hash, and exit.")] = False,
    *,
    common: Common,
) -> None:
    """Serve the OpenAI API: chat completions and responses, answered by planners.

    The model's name says how: `qwen3`, `plait/sample:n=16@qwen3`, or an alias. More settings, tenants among them, stand
    in the table `serve` of plait.toml.
    """
    if new_key:
        from .tenants import hashed, new_key as made

        key = made()
        typer.echo(f"key:  {key}\nhash: {hashed(key)}")
        return
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn", "prometheus_client")):
        raise ConfigError("the server needs more packages: pip install 'plait[serve]'")
    config = common.load(
        planner=planner,
        policies=policies or None,
        tokens=tokens,
        seconds=seconds,
        max_tokens=max_tokens,
        temperature=temperature,
    )
    if isinstance(config.journal, Database) and config.pool is None:
        config = config.model_copy(update={"pool": "serve"})
    settings = Settings.load(
        common.config,
        host=host,
        port=port,
        open=open_ or None,
        require_all=require_all or None,
        tls_cert=tls_cert,
        tls_key=tls_key,
        upstreams=[{"base_url": url} for url in upstream] if upstream else None,
    )
    if settings.log_json:
        for handler in logging.getLogger("plait").handlers:
            handler.setFormatter(JsonLines())
    settings = settings.model_copy(update={"aliases": {**settings.aliases, **_aliases(alias or [])}})
    if check:
        from .check import check as would_serve

        raise typer.Exit(0 if asyncio.run(would_serve(config, settings, typer.echo)) else 1)
    from .server import run

    asyncio.run(run(config, settings))


def _aliases(given: list[str]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given]
    for name, equals, model in pairs:
        if not (name and equals and model):
            raise ConfigError(f"--alias {name!r} is not NAME=MODEL: write fast=plait/sample:n=4")
    return {name: model for name, _, model in pairs}


class JsonLines(logging.Formatter):
    """Log lines as JSON. `run` and `step` of a record (`extra={"run": …}`) are fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("run", "step", "tenant", "status", "seconds", "endpoint"):
            if hasattr(record, name):
                fields[name] = getattr(record, name)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True, default=str)
