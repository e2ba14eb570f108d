"""The settings by topic, each with what it takes in the place of its value."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ...core.budget import Budget
from ...core.errors import FieldError, PluginError, UsageError
from ...core.ops import Plugin
from ...core.result import Price
from ...core.sampling import Thinking
from ...core.value_sizes import MOST_BYTES
from ..journal.location import SCHEMES, Database, located
from ..plugins.spec import own_code, typed
from .models import BUNDLED

BUNDLED_MODEL = BUNDLED / "countdown"
"""Folder of the model that comes with the package."""
PREFIX = "PLAIT_"
OFF_WORDS = ("off", "none", "no", "false", "0")
ON_WORDS = ("on", "yes", "true", "1")


def _plugin(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return Plugin.of(typed(value))
    except (PluginError, UsageError) as error:
        raise ValueError(str(error)) from None


def _address(value: object) -> object:
    """Take `FILE.py:NAME` for a name of Python code too."""
    try:
        return own_code(value) if isinstance(value, str) else value
    except UsageError as error:
        raise ValueError(str(error)) from None


def _plugins(value: object) -> object:
    """Take plugins as a list, or as one text: JSON, or names between white space."""
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise ValueError(f"not JSON: {error}") from None
        else:
            value = value.split()
    if isinstance(value, list | tuple):
        return tuple(map(_plugin, cast("list[object]", value)))
    return value


def _adapters(value: object) -> object:
    """Take adapters as texts, alone or in a list: `NAME=FOLDER`, or the folder, whose name it then has."""
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            try:
                return json.loads(value)
            except ValueError as error:
                raise ValueError(f"not JSON: {error}") from None
        value = value.split()
    if not isinstance(value, list | tuple):
        return value
    folders: dict[str, str] = {}
    for given in map(str, cast("list[object]", value)):
        name, equals, folder = given.partition("=")
        name, folder = (name, folder) if equals else (Path(given).name, given)
        if not name or not folder or name in folders:
            raise ValueError(f"{given!r} is no adapter: write NAME=FOLDER or FOLDER, each name once")
        folders[name] = folder
    return folders


def _budget(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return Budget.of(value)
    except FieldError as error:
        raise ValueError(str(error)) from None


def lower(value: object) -> object:
    """Return a text in lower case; other values as they are."""
    return value.lower() if isinstance(value, str) else value


def _off(value: object) -> object:
    """Take the words for no in place of a path."""
    if value is False or (isinstance(value, str) and value.lower() in OFF_WORDS):
        return "off"
    if isinstance(value, str) and value.startswith(SCHEMES):
        return located(value)
    return None if value is True or (isinstance(value, str) and value.lower() in ON_WORDS) else value


def _on(value: object) -> object:
    """Take the words for yes and no in place of a path."""
    if value is True or (isinstance(value, str) and value.lower() in ON_WORDS):
        return "on"
    return None if value is False or (isinstance(value, str) and value.lower() in OFF_WORDS) else value


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", value):  # not shown: it may be the key
        raise ValueError("this is not the name of an environment variable; put the key into one, and give its name")
    return value


Address = Annotated[str, BeforeValidator(_address), Field(pattern=r"^[\w.]+:\w+$")]
OnePlugin = Annotated[Plugin, BeforeValidator(_plugin), NoDecode]
File = Annotated[Path, AfterValidator(Path.expanduser)]


class _Settings(BaseSettings):
    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,
        env_prefix=PREFIX,
        env_ignore_empty=True,
    )


class WorkerSettings(_Settings):
    """Which model and tools the steps run on."""

    model: str = Field(
        default=str(BUNDLED_MODEL),
        description="Folder of the model, the name of a bundled one (`countdown`, `countdown-large`, `tables`, "
        "`arithmetic`), or an id on a hub; by default the chat model that `plait model get smollm2` fetched.",
    )
    worker: Annotated[str, BeforeValidator(_address)] = Field(
        default="ray",
        description="What runs the model: `ray` (engines in Ray actors), `engine` (in this process), `http` (a "
        "server of your own), `scripted`, `pkg.mod:Class`. By default `http` where `base_url` is set, `scripted` "
        "where `script` is, else `ray`.",
    )
    adapters: Annotated[dict[str, str], BeforeValidator(_adapters), NoDecode] = Field(
        default={},
        description="LoRA adapters of the model, folder by name, as `peft` writes them (workers `ray` and "
        "`engine`): a table, or texts `NAME=FOLDER` or `FOLDER`. A request or a step names one as its model; the "
        "first answers where none is named, and the model itself by its folder's name.",
    )
    base_url: str | None = Field(
        default=None,
        description="Address of an OpenAI-compatible server, for the worker `http`, such as "
        "`http://localhost:8000/v1`. Several, with commas between them, are servers of one model that share the work.",
    )
    hints: Literal["auto", "vllm", "dynamo", "llm-d", "sglang", "none"] | None = Field(
        default=None,
        description="Scheduling hints for that server's stack, sent with each request (sessions, expected lengths, "
        "siblings, deadlines). By default `auto`, which reads the owner of the listed models.",
    )
    data_parallel: int | None = Field(
        default=None,
        ge=1,
        description="Replicas behind that address with no router of prefixes before them: each line stays at one.",
    )
    kv_events: str | None = Field(
        default=None,
        description="Where that server publishes what its prefix cache stores and evicts (`vllm serve "
        "--kv-events-config`), such as `tcp://localhost:5557`; of several servers their addresses in the same order, "
        "with commas between them. Steps are then placed by what caches really hold.",
    )
    api_key_env: Annotated[str, AfterValidator(_variable)] | None = Field(
        default=None,
        description="Name of the environment variable that holds that server's key, never the key itself; "
        "OPENAI_API_KEY by default.",
    )
    stream_above_tokens: int | None = Field(
        default=None,
        ge=0,
        description="Tokens. A step with a token limit up to this, and without a reader of its text, gets that "
        "server's answer in one piece, which is much cheaper than streaming. Its length is unknown if it is cancelled "
        "(`Usage.uncounted`). By default 512, and 0 (always stream) where tokens are measured, in `plait eval` and the "
        "experiments.",
    )
    script: File | None = Field(default=None, description="JSON file of replies for the scripted worker.")
    tools: File | None = Field(
        default=None, description="FILE.py whose `@tool` functions plans may call; FILE.py:NAME is one of them."
    )
    allow: tuple[Address, ...] = Field(
        default=(),
        description="Functions and classes, `pkg.mod:name`, that plans, rows and journals may name. A name among a "
        "command's own options (or the SDK's arguments) is allowed by that.",
    )
    mcp: tuple[str, ...] = Field(
        default=(),
        description="MCP servers whose tools plans may call: URLs, or command lines of programs that speak it on "
        "their standard streams.",
    )


class EngineSettings(_Settings):
    """Engines in this process or on a Ray cluster: how many, and what each reserves."""

    engines: int = Field(default=1, ge=1, description="Engines, each in a Ray actor or process of its own.")
    max_engines: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of engines. plait scales between `engines` and this with the load (worker `ray`); "
        "by default it does not scale.",
    )
    cool_down: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds for which fewer engines must have been enough before one of them goes (`max_engines`). "
        "Its running steps get ten seconds to end; the others continue from their tokens on another engine.",
    )
    cpus: float = Field(
        default=1.0, ge=0, allow_inf_nan=False, description="CPUs that the actor of an engine reserves (worker `ray`)."
    )
    gpus: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="GPUs that it reserves; a part of one, such as 0.5, is shared. By default as many as hold one "
        "copy of the model, on a cluster that has GPUs.",
    )
    tensor_parallel: int = Field(
        default=1, ge=1, description="GPUs that hold one copy of the model together (workers `ray` and `engine`)."
    )
    placement: Annotated[Literal["pack", "spread", "strict-pack", "strict-spread"] | None, BeforeValidator(lower)] = (
        Field(
            default=None,
            description="Reserves the room of all engines together: on as few nodes of the cluster as can be (`pack`), "
            "on as many, on one, or each on one of its own (`strict-spread`). By default they find room one by one.",
        )
    )
    start_timeout: float = Field(
        default=180.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds for the cluster to find room for an actor and for what it runs to start (worker "
        "`ray`); a large model takes longer to load.",
    )
    tool_actors: int = Field(
        default=0,
        ge=0,
        description="Ray actors that run the tools of the file `tools`, each reserving one CPU; with 0 they run in "
        "this process.",
    )
    slots: int | None = Field(
        default=None, ge=1, description="Requests that one engine decodes together; the worker's default by default."
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="Compute threads of one engine on a CPU; by default half of the cores, and one for a very small "
        "model.",
    )
    kv_cache_mib: int | None = Field(
        default=None,
        ge=1,
        description="Memory for the key-value cache of one engine, in MiB; what its slots need by default.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of a prompt and its output together; what the model allows by default.",
    )
    engine_process: Literal["auto", "own", "shared"] | None = Field(
        default=None,
        description="Process of vLLM's scheduler and model: its `own`, or `shared` with plait. By default its own on a "
        "GPU.",
    )
    engine_args: dict[str, Any] = Field(
        default={},
        description="Further arguments of vLLM's engine (`EngineArgs`), such as `max_num_batched_tokens`, "
        "`quantization` or `speculative_config`.",
    )


class StoreSettings(_Settings):
    """Where runs and results are kept, and with whom they are shared."""

    journal: Annotated[Literal["off"] | Database | File | None, BeforeValidator(_off)] = Field(
        default=None,
        description="Where runs are written, so that they can be shown and resumed: one file for all, however large "
        "it grows; a folder with a file for each session, and another after 64 MiB; a store for many processes, "
        "`postgresql://user@host/database`; or `off`. By default the folder `plait/runs` under `XDG_STATE_HOME` "
        "(`~/.local/state`).",
    )
    pool: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = Field(
        default=None,
        description="Processes that share a store and name the same pool take over one another's runs: a run whose "
        "process has died is finished by another. They need the same workers and tools.",
    )
    pool_lease: float = Field(
        default=10.0,
        ge=0.5,
        allow_inf_nan=False,
        description="Seconds for which a process of a store may say nothing before it counts as dead.",
    )
    share_slots: bool = Field(
        default=False,
        description="The processes of the pool divide the slots of the servers that they share: `slots` is the total "
        "of all processes. Each process gets an equal part, and the slots that others do not need; a dead process "
        "loses its part after `pool_lease`.",
    )
    share_load: bool = Field(
        default=False,
        description="The processes of the pool tell one another how many steps each runs on each model worker, and "
        "with `kv_events` look their prompts up in the caches of all servers. The policy `affinity` goes by both.",
    )
    cache: Annotated[Literal["on"] | File | None, BeforeValidator(_on)] = Field(
        default=None,
        description="Where results of the model are kept, to be used again for the same model, prompt, sampling and "
        "sample: a file, or `on` for `plait/results.sqlite` under `XDG_CACHE_HOME` (`~/.cache`); off by default.",
    )
    on_uncertain_side_effect: Literal["fail", "ask", "retry"] = Field(
        default="fail",
        description="What becomes, in a resumed run, of a tool call with side effects whose outcome is unknown: its "
        "step fails, a person is asked, or it is made again.",
    )


class RequestSettings(_Settings):
    """What requests that leave it out are given, and the limits of all of them."""

    planner: OnePlugin = Field(
        default=Plugin(name="single"),
        description="How work is split: a planner, with options as in `sample:n=8,answer.temperature=0.7`.",
    )
    policies: Annotated[tuple[Plugin, ...], BeforeValidator(_plugins), NoDecode] = Field(
        default=(),
        description="Policies that order, place and prune steps; the first that has an opinion counts. By default "
        "`affinity` with several engines or servers, which sends a step where its context is cached, and `working-set` "
        "with plait's own engines, which runs as many agents at once as their caches hold.",
    )
    merge: Annotated[Plugin | None, BeforeValidator(_plugin), NoDecode] = Field(
        default=None,
        description="How branches become one answer, for planners that have the choice; the planner's default by "
        "default.",
    )
    n: int | None = Field(
        default=None,
        ge=1,
        description="Samples or threads, for planners that have the choice; the planner's default by default.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Token limit of the call that writes the answer, without its thoughts, if the request sets none "
        "and the planner has such an option; by default the planner's.",
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Temperature of that call; 0 is greedy. By default the planner's, then the model's own "
        "`generation_config`.",
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Probability mass of the tokens that this call samples from (top-p)."
    )
    thinking: Annotated[Thinking, BeforeValidator(lower)] = Field(
        default="auto",
        description="Whether a model that can think before it answers shall in that call, likewise: `on`, `off`, or "
        "as it likes.",
    )
    tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens that a run may generate; by default `default_token_limit` keeps it.",
    )
    default_token_limit: int = Field(
        default=500_000,
        ge=1,
        description="Token limit of a run that limits neither tokens nor cost itself, so that every run ends.",
    )
    value_bytes: int = Field(
        default=MOST_BYTES,
        ge=1,
        description="Most bytes of values that a run may put together, in its joins and in what it asks: so that no "
        "plan fills the memory by doubling them.",
    )
    seconds: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Most seconds that a run may take; no limit by default."
    )
    budget: Annotated[Budget, BeforeValidator(_budget), NoDecode] = Field(
        default=Budget.model_construct(),
        description="Limits of each run: a table, or a text such as `total_tokens=20000,cost=0.5`. A request's own "
        "go before.",
    )
    max_waiting: int | None = Field(
        default=None,
        ge=1,
        description="Runs that may wait for a slot. One more is refused (`Overloaded`) with an estimate of its "
        "wait, rather than make all of them late; no limit by default. For what asks from outside: `plait eval`, "
        "`batch` and the like have no such limit.",
    )
    prices: dict[str, Price] = Field(
        default={},
        description="What models cost, by name of the model or of its worker; `default` for all others. `input`, "
        "`cached` and `output` are per million tokens, `hour` is what one slot of an engine costs an hour.",
    )
    lease: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that a worker may say nothing about an attempt before that is taken for lost and its "
        "slot for free. By default 900 for model steps, and a day for calls without a timeout of their own. A shorter "
        "one is for workers that tell how far they are: engines in Ray do, every few steps.",
    )
    worker_wait: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Seconds for which steps wait for a worker that went away and may come back; then they fail "
        "(`NoWorker`). By default they wait for as long as their run may last; `plait serve` sets `upstream_wait`.",
    )
    seed: int = Field(default=0, description="Of all sampling.")
