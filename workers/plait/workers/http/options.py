"""The options of the worker `http`."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field

from plait.core.errors import ConfigError
from plait.core.values import Frozen

from .hints import Kind

WIDE = 256
"""Requests at the same time to a server that does not say how many it can do."""


class HttpOptions(Frozen):
    """The server, retries, and limits on time and size."""

    base_url: str = Field(description="The server's address, which ends in `/v1`.")
    model: str | None = Field(
        default=None, description="The model to ask; by default the first one that the server lists."
    )
    name: str = Field(default="http", description="Name of the worker.")
    slots: int | None = Field(
        default=None,
        ge=1,
        description="Most requests at the same time; fewer are sent while the server says that it is overloaded. By "
        "default a quarter more than the server generates for at a time, if it says so (vLLM's `/server_info` in "
        "development mode, llama.cpp's `/props`), so that it never waits for the next one; else 256.",
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
        description="How often a request is sent again if the server turned it away before it generated anything. "
        "An answer that breaks off later is a failed try of the step; `Retries.think` is the number of tries.",
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
        description="Most seconds until an answer begins. A whole answer (see `whole`) begins when it is complete.",
    )
    timeout: float = Field(
        default=120.0,
        gt=0,
        description="Most seconds between two tokens of an answer, however many bytes without text the server sends.",
    )
    total_timeout: float = Field(default=3600.0, gt=0, description="Most seconds for one answer.")
    line_bytes: int = Field(default=4 << 20, ge=1024, description="Longest line of a streamed answer, in bytes.")
    answer_bytes: int = Field(default=64 << 20, ge=1024, description="Longest answer, in bytes after decompression.")
    start_timeout: float = Field(default=30.0, gt=0, description="Most seconds for the start.")
    ping_every: float = Field(default=5.0, gt=0, description="Seconds between checks that the server is there.")
    hints: Kind = Field(
        default="auto",
        description="What the serving stack is told besides the request, so that it can place, order and keep: "
        "sessions, expected lengths, siblings, deadlines. `vllm`, `dynamo`, `llm-d`, `sglang`; `auto` looks at who "
        "owns the listed models; `none`: nothing.",
    )
    data_parallel: int = Field(
        default=1,
        ge=1,
        description="Replicas behind the address (`vllm serve --data-parallel-size`) with no router of prefixes "
        "before them: each line stays at one.",
    )
    kv_events: str | None = Field(
        default=None,
        description="Where vLLM publishes what its prefix cache stores and evicts (`vllm serve --kv-events-config "
        '\'{"publisher": "zmq", …}\'`), such as `tcp://host:5557`: steps are placed by what it really holds. For a '
        "server of one replica that takes token ids.",
    )
    kv_replay: str | None = Field(
        default=None, description="Where it repeats what was lost on the way (`replay_endpoint`)."
    )
    processed_logprobs: bool = Field(
        default=False,
        description="The server was started with `--logprobs-mode processed_logprobs`: it tells log-probabilities "
        "of the distribution that is drawn from, which rollouts need at a temperature other than 1.",
    )
    whole: int = Field(
        default=512,
        ge=0,
        description="A step of at most so many tokens whose text nobody follows gets its answer in one piece, which "
        "costs both sides less; 0 for none. The server never says how long such an answer was that is given up: its "
        "tokens are estimated (`Usage.uncounted` says by how many that may be wrong).",
    )


def check(base_url: str, api_key_env: str | None) -> None:
    """Raise `ConfigError` for an invalid address, and for a key in the place of its variable's name. The message does
    not repeat the value: it may be a secret."""
    try:
        parts = urlsplit(base_url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        parts, known = None, False
    if parts is None or not known:
        raise ConfigError("base_url is no address of a server: give one such as http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ConfigError("base_url holds more than an address: keys go into the environment (see api_key_env)")
    if api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", api_key_env):
        raise ConfigError(
            "api_key_env is not the name of an environment variable: put the key itself into one, and give its name"
        )
