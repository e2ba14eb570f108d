"""The settings of the server: the table `[serve]` of `plait.toml`, and its overrides by the command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from plait.core.errors import ConfigError
from plait.core.messages import explain, first_of_each, json_path
from plait.core.values import Frozen
from plait.runtime.client.config import Config, table
from plait.runtime.client.worker_factory import build_workers, fit_model
from plait.runtime.plugins.loader import Plugins

OFFERED = (
    *("single", "sample", "adaptive", "route", "decompose", "llmcompiler", "refine", "skeleton"),
    *("skeleton-graph", "think-summarize", "threads", "route-features", "route-record"),
)
"""Planners that requests may name by default, of those that are installed."""
_HASH = r"^sha256:[0-9a-f]{64}$"


def _installed(planners: Collection[str]) -> tuple[str, ...]:
    there = Plugins().listed("planner")
    return tuple(name for name in planners if name in there)


class Upstream(Frozen):
    """What runs the model: one server, or engines of this machine."""

    name: str = ""
    """The worker's name in metrics and pictures; by default its kind and number."""
    worker: str | None = None
    """`http` (by default where there is a `base_url`), `ray`, `engine`, `scripted`, as in `plait run --worker`."""
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    script: Path | None = None
    slots: int | None = Field(default=None, ge=1)
    engines: int | None = Field(default=None, ge=1)

    def config(self, base: Config) -> Config:
        """Return the configuration of this upstream: its values override the common ones. Raises `ConfigError`."""
        own = {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}
        if self.base_url is not None and self.worker is None:
            own["worker"] = "http"
        if self.script is not None and self.worker is None:
            own["worker"] = "scripted"
        kept = base.model_dump(exclude_unset=True)
        if self.model is None and self.base_url is not None:
            kept.pop("model", None)  # the server has a model of its own
        try:
            return Config(**{**kept, **own})
        except ValidationError as error:
            detail = first_of_each(error)[0]
            raise ConfigError(explain(f"an upstream, at {json_path(detail['loc'])}", detail)) from None


class Tenant(Frozen):
    """Who may use the server, for what and how much."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    keys: tuple[str, ...] = ()
    """Hashes of its API keys, as `plait serve --new-key` prints them; never the keys themselves."""
    fairness_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Its share of the slots when tenants compete, relative to the others' weights."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    runs: int | None = Field(default=None, ge=1)
    """Runs at the same time. By default its part of the server's `runs` by weight, and beyond that as many as there are
    free places left for others: a tenant alone gets half."""
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Maximum number of generated tokens per day (from midnight UTC). Running runs share the remainder: a run is
    stopped before it would exceed the limit."""
    cost_per_day: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Maximum cost per day, in the unit that the workers report. Shared like tokens if a worker has a price. Without a
    price, the cost of a run is known only at its end, and runs that are then running continue."""
    tokens_per_run: int | None = Field(default=None, ge=1)
    planners: tuple[str, ...] | None = None
    """Names of the planners it may use; the server's by default."""
    models: tuple[str, ...] | None = None
    """Names of models and aliases it may ask for; all by default."""
    tools: bool = True
    """Whether its plans may call the server's tools."""
    approves: bool = False
    """Whether it may approve calls of tools with `approve=True` in runs of other tenants. It sees the runs that wait
    for approval. A tenant cannot approve the calls of its own runs."""
    extra_body: tuple[str, ...] | None = None
    """Fields that `extra_body` of its plans and prompts may set; the server's by default."""
    image_hosts: tuple[str, ...] | None = None
    """Hosts from which its images may be fetched. Default: the server's."""
    salted: bool = True
    """Whether its prefix cache is isolated, so that other tenants cannot find its prompts by timing. A model server
    without cache salts rejects its requests; set `false` if that server isolates its clients itself."""
    admin: bool = False
    """Whether it sees the runs of all tenants, and the metrics."""

    @field_validator("keys")
    @classmethod
    def _hashed(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        import re

        for key in keys:
            if not re.fullmatch(_HASH, key):  # not shown: it may be the key
                raise ValueError("this is not the hash of a key; `plait serve --new-key` prints a key and its hash")
        return keys


LOOPBACK = ("127.0.0.1", "localhost", "::1")


class OfferSettings(Frozen):
    """Where the server listens, whom it serves, and what it offers."""

    host: str = "127.0.0.1"
    """Where it listens. Another than a loopback address needs tenants, or `open`."""
    open: bool = False
    """Whether a server without tenants may listen on an address that other machines reach. Anyone who reaches it may
    use it."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names (header `Host`, without ports) that the server accepts in addition to those of this machine. Without
    tenants it accepts no other host, unless `open` is set and this list is empty: then it accepts all."""
    port: int = Field(default=8100, ge=0, le=65535)
    """0: any free one."""
    tls_cert: Path | None = None
    """A file with the certificate and its chain, PEM."""
    tls_key: Path | None = None
    require_all: bool = False
    """Whether the server starts only if all upstreams answer. By default it starts with those that do, and takes the
    others in when they come."""
    upstream_wait: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """Seconds for which requests wait for an upstream that does not answer, if no other has their model; then they get
    503."""
    upstreams: tuple[Upstream, ...] = ()
    """What runs the model, in place of `worker`, `model` and `base_url`."""
    aliases: dict[str, str] = {}
    """Names of models that stand for others: `fast = "plait/sample:n=4@qwen3"`."""
    planners: tuple[str, ...] = Field(default_factory=lambda: _installed(OFFERED))
    """Planners that requests may name. `fixed`, which reads a file, is not among them by default."""
    extra_body: tuple[str, ...] = ("bad_words", "ignore_eos", "min_tokens")
    """Fields of requests to an upstream that plans and prompts of tenants may set by themselves (`extra_body`). Without
    tenants: any, but those that the server sets. `user`, `safety_identifier` and `prompt_cache_key` are passed on if
    they are named here."""
    strict: bool = False
    """Whether a body with a field that would be ignored, and that OpenAI does not have, is refused. By default the
    answer's header `x-plait-ignored` names it."""
    image_hosts: tuple[str, ...] | None = None
    """Hosts from which the upstream may fetch images; inline images (`data:`) are always allowed. Names,
    `*.example.org` for all subdomains, `*` for all except this machine and private networks. Default: none; without
    tenants `*`."""
    tenants: tuple[Tenant, ...] = ()
    """Tenants and their keys. Without tenants, anyone who reaches the server may use it."""
    audit: Path | None = None
    """A file to which one JSON line is added for each request: who, what, how it ended, what it took; no texts, no
    keys."""
    log_json: bool = False
    """Whether the log is JSON, one object per line, with the ids of run and step if there are any."""


class LimitSettings(OfferSettings):
    """Limits of runs, connections and bodies."""

    tokens_per_run: int = Field(default=1_000_000, ge=1)
    """Maximum number of tokens that one run may generate."""
    seconds_per_run: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    width: int = Field(default=256, ge=1)
    """Maximum number of branches, rounds and the like that a request may ask a planner for."""
    runs: int = Field(default=4096, ge=1)
    """Runs at the same time; further requests are turned away (429)."""
    connections: int = Field(default=16_384, ge=1)
    """Connections at the same time; further ones wait until one ends. Never more than three quarters of the open files
    that the process may have: `plait serve` raises its limit as far as it may. A tenant may have half as many requests
    at the same time."""
    connections_per_address: int | None = Field(default=None, ge=1)
    """Connections of one address (of IPv6, one /64); further ones are closed. By default half of all, so that one
    machine cannot take every place and yet a proxy, which is one address for all its clients, has thousands. Where all
    clients come through proxies, set it to as many as `connections`."""
    body_bytes: int = Field(default=8 << 20, ge=1024)
    """Longest body of a request."""
    body_bytes_per_tenant: int = Field(default=256 << 20, ge=1024)
    """Bytes of the bodies of one tenant's requests and runs that have not ended; beyond that, requests get 429."""
    value_bytes_per_run: int = Field(default=16 << 20, ge=1024)
    """Maximum size in bytes of the values that one run may assemble in joins, prompts and arguments."""
    body_seconds: float = Field(default=30.0, gt=0)
    """Maximum time in seconds for a body to arrive."""
    header_seconds: float = Field(default=10.0, gt=0)
    """Maximum time in seconds for the head of a request to arrive."""
    stalled_seconds: float = Field(default=30.0, gt=0)
    """Maximum time in seconds for which a client may leave sent data unread."""


class Settings(LimitSettings):
    """The table `[serve]`: what the server offers, its limits, and what it stores."""

    keep_responses: int = Field(default=1000, ge=0)
    """Responses that are kept in memory for `previous_response_id` and `GET /v1/responses/ID`; the oldest of the tenant
    that has most go first."""
    keep_bytes: int = Field(default=64 << 20, ge=0)
    """Bytes of them, about."""
    store_responses: int = Field(default=100_000, ge=0)
    """Responses that are kept beside the journals, where runs are written down; the oldest of the tenant that has most
    go first."""
    store_bytes_per_tenant: int = Field(default=1 << 30, ge=0)
    """Bytes of one tenant's stored responses, and as many of its stored completions; beyond that its oldest go. They
    may take an eighth more until the oldest are looked for."""
    journal_bytes_per_tenant: int = Field(default=16 << 30, ge=1024)
    """Bytes that one tenant's runs may write to journals per day (from midnight UTC); beyond that its new runs get 429.
    Processes with one database count together: each knows what the others have counted when a run of its own ends."""
    drain_seconds: float = Field(default=30.0, gt=0)
    """Maximum time in seconds for running runs to end when the server stops."""

    @model_validator(mode="after")
    def _not_open_unsaid(self) -> Settings:
        if self.host not in LOOPBACK and not self.tenants and not self.open:
            raise ValueError(
                f"other machines reach {self.host}, and without tenants anyone there may use the server: name tenants "
                "(`plait serve --new-key`), or say open (--open)"
            )
        return self

    @classmethod
    def load(cls, file: str | Path | None = None, **flags: Any) -> Settings:
        """Return the settings: `flags` (those that are not `None`) over the table `[serve]` of the file. Raises
        `ConfigError`."""
        path, values = table("serve", file)
        given: Mapping[str, Any] = {key.replace("-", "_"): value for key, value in values.items()}
        try:
            return cls.model_validate({**given, **{key: value for key, value in flags.items() if value is not None}})
        except ValidationError as error:
            detail = first_of_each(error)[0]
            place = json_path(detail["loc"]) or "the table"
            raise ConfigError(explain(f"{path or 'an option'}, [serve], {place}", detail, cls)) from None


def workers_of(config: Config, settings: Settings) -> list[Any]:
    """Return the workers of all upstreams, not started."""
    made: list[Any] = []
    for place, upstream in enumerate(settings.upstreams or (Upstream(),), 1):
        served = build_workers(fit_model(upstream.config(config)), Plugins())
        for worker in served:
            if len(served) == 1 and (upstream.name or any(worker.name == other.name for other in made)):
                worker.name = upstream.name or f"{worker.name}-{place}"
            if hasattr(worker, "allow_unreachable"):
                setattr(worker, "allow_unreachable", not settings.require_all)  # noqa: B010  (only servers have it)
        made += served
    return made
