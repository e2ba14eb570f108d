"""The server as an application of Ray Serve, which starts as many replicas as requests need:

serve run plait_server.ray_serve:app config=plait.toml upstream=http://localhost:8000/v1 max_replicas=8
"""
# No `from __future__ import annotations`: Ray Serve reads the annotation of `app` to check its arguments.

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from plait.core.errors import ConfigError
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait.runtime.journal.location import Database

from .app import build
from .service import Service
from .settings import Settings, workers_of

_AFTER = 10.0
"""Seconds that a replica has beyond `drain_seconds` to close its workers."""


class DeployArguments(BaseModel):
    """The arguments of the application: `name=value` behind `serve run`, or `args` in a file of `serve deploy`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)
    name: str = "plait"
    config: Path | None = None
    """A `plait.toml` that every node has; its table [serve] holds the server's settings."""
    settings: dict[str, Any] = {}
    """Fields of the table [serve], over the file's: `{upstreams: [{base_url: …}]}`."""
    options: dict[str, Any] = {}
    """Fields of a configuration, over the file's: `{journal: "postgresql://…"}`."""
    upstream: str | None = None
    """Addresses of OpenAI-compatible servers, with commas between them."""
    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(default=4, ge=1)
    ongoing: float = Field(default=64.0, gt=0)
    """Target number of running requests per replica: with more, Ray Serve starts another replica."""
    max_ongoing: int = Field(default=512, ge=1)
    """Maximum number of running requests per replica; further ones wait in the queue of Ray Serve."""
    max_queued: int = Field(default=-1, ge=-1)
    """Maximum number of requests in that queue; further ones get status 503. -1: no limit."""
    upscale_seconds: float = Field(default=10.0, ge=0)
    """For so long there must be too many requests before replicas are added."""
    downscale_seconds: float = Field(default=300.0, ge=0)
    """For so long there must be too few before replicas are taken away."""
    cpus: float = Field(default=1.0, ge=0)
    """CPUs that a replica reserves: it is one event loop. The models run elsewhere, or reserve their own."""


def app(args: DeployArguments) -> Any:
    """Return the application, to be run by Ray Serve. Raises `ConfigError` for settings that make no sense.

    Only the replica that made it knows a response or a running run, unless all replicas share a store in PostgreSQL
    (`journal`). Without such a store, only chat completions work with several replicas.
    """
    try:
        import ray.serve as serve
    except ImportError as error:
        raise ConfigError(f"Ray Serve is not installed ({error}): pip install 'plait[ray-serve]'") from None
    config, settings = _read(args)
    deployment = serve.deployment(
        name=args.name,
        max_ongoing_requests=args.max_ongoing,
        max_queued_requests=args.max_queued,
        graceful_shutdown_timeout_s=settings.drain_seconds + _AFTER,
        ray_actor_options={"num_cpus": args.cpus},
        autoscaling_config={
            "min_replicas": args.min_replicas,
            "max_replicas": max(args.min_replicas, args.max_replicas),
            "target_ongoing_requests": args.ongoing,
            "upscale_delay_s": args.upscale_seconds,
            "downscale_delay_s": args.downscale_seconds,
        },
    )

    def replica() -> Any:
        workers = workers_of(config, settings)
        return build(Service(AsyncOrchestrator(config=config, workers=workers, control=True), settings, workers))

    return deployment(serve.ingress(replica)()).bind()


def _read(args: DeployArguments) -> tuple[Config, Settings]:
    config = Config.load(args.config, **args.options)
    if isinstance(config.journal, Database) and config.pool is None:
        config = config.model_copy(update={"pool": args.name})
    settings = args.settings
    if args.upstream:
        settings = {**settings, "upstreams": [{"base_url": url} for url in args.upstream.split(",")]}
    return config, Settings.load(args.config, **settings)
