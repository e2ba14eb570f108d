"""Declare and check the options of the worker `http`."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field

from plait.core.errors import ConfigError
from plait.core.values import Frozen

from .routing_hints import ServingStack

DEFAULT_SLOTS = 256
"""Concurrent requests to a server that does not report its slots: vLLM's default `max_num_seqs`."""


class HttpOptions(Frozen):
    """The server, retries, and limits on time and size."""

    base_url: str = Field(
        description="Address of the server, ending in `/v1`; for a Unix socket `http+unix://%2Frun%2Fvllm.sock/v1`."
    )
    model: str | None = Field(
        default=None, description="Name of the model; by default the first one that the server lists."
    )
    name: str = Field(default="http", description="Name of the worker.")
    slots: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of concurrent requests; fewer are sent while the server reports an overload. By "
        "default a quarter more than its slots, if it reports them (vLLM's `/server_info` in development mode, "
        "llama.cpp's `/props`), so that it never waits for the next request; else 256.",
    )
    api_key_env: str | None = Field(
        default=None,
        description="Environment variable that holds the key; by default OPENAI_API_KEY, which need not be set.",
    )
    endpoint: Literal["auto", "chat"] = Field(
        default="auto",
        description="`auto` asks the server for a token or two to find the richest form of request that it takes; "
        "`chat` asks nothing beforehand and sends chat completions, as to a server that records or bills every "
        "request.",
    )
    retries: int = Field(
        default=5,
        ge=0,
        description="Maximum number of retries of a request that the server rejected before it generated anything. A "
        "response that breaks off later fails the attempt; `Retries.think` limits the attempts of a step.",
    )
    backoff: float = Field(
        default=0.25,
        ge=0,
        allow_inf_nan=False,
        description="Seconds before the first retry, doubled for each further one. A `Retry-After` of the server "
        "counts if it is longer.",
    )
    first_timeout: float = Field(
        default=300.0,
        gt=0,
        description="Timeout in seconds for the first token. A whole response (see `stream_above_tokens`) begins with "
        "its end.",
    )
    timeout: float = Field(
        default=120.0,
        gt=0,
        description="Timeout in seconds between two tokens; keep-alive bytes without text do not reset it.",
    )
    total_timeout: float = Field(default=3600.0, gt=0, description="Timeout in seconds for one response.")
    line_bytes: int = Field(default=4 << 20, ge=1024, description="Maximum length of a line of a stream, in bytes.")
    answer_bytes: int = Field(
        default=64 << 20, ge=1024, description="Maximum size of a response, in bytes after decompression."
    )
    start_timeout: float = Field(default=30.0, gt=0, description="Timeout in seconds for the start.")
    ping_every: float = Field(default=5.0, gt=0, description="Seconds between health checks.")
    hints: ServingStack = Field(
        default="auto",
        description="Serving stack that gets routing hints (sessions, expected lengths, siblings, deadlines): `vllm`, "
        "`vllm-router`, `dynamo`, `llm-d`, `sglang`, `openai`; `auto` detects it by the host and by the owner of the "
        "listed models; `none` sends no hints.",
    )
    data_parallel: int = Field(
        default=1,
        ge=1,
        description="Replicas behind the address (`vllm serve --data-parallel-size`) without a prefix-aware router: "
        "each trajectory stays at one.",
    )
    kv_events: str | None = Field(
        default=None,
        description="Where vLLM publishes what its prefix cache stores and evicts (`vllm serve --kv-events-config "
        '\'{"publisher": "zmq", …}\'`), such as `tcp://host:5557`: steps are placed by what it really holds. For a '
        "server of one replica that takes token ids.",
    )
    processed_logprobs: bool = Field(
        default=False,
        description="The server was started with `--logprobs-mode processed_logprobs`: it tells log-probabilities "
        "of the distribution that is drawn from, which rollouts need at a temperature other than 1.",
    )
    stream_above_tokens: int = Field(
        default=512,
        ge=0,
        description="Token limit up to which a step without readers gets its response in one piece, which costs both "
        "sides less; 0: always stream. The server never reports the length of such a response if it is cancelled: its "
        "tokens are estimated (`Usage.uncounted` bounds the error).",
    )


def check_address(base_url: str, api_key_env: str | None) -> None:
    """Raise `ConfigError` for an invalid address, and for a key in place of its variable's name."""
    # The messages do not repeat the value: after a mix-up of the two, the key would be in a log.
    try:
        parts = urlsplit(base_url)
        is_url = parts.scheme in ("http", "https", "http+unix") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is not a number
        parts, is_url = None, False
    if parts is None or not is_url:
        raise ConfigError("base_url is not a URL. Example: http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ConfigError("base_url holds more than an address. Put keys into the environment (see api_key_env).")
    if api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", api_key_env):
        raise ConfigError(
            "api_key_env is not the name of an environment variable. Put the key itself into one, and give its name."
        )
