"""Creates the workers of a configuration: each constructor gets the settings for its keywords.

The factory does not interpret the settings.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...core.errors import ConfigError, EngineError, NoCluster, UsageError
from ...core.interfaces import Worker
from ...core.request import as_tuple
from ..driver.autoscaler import Bounds, Elastic
from ..driver.driver import Driver
from ..plugins.loader import Plugins
from .config import Config
from .models import CHAT, NO_MODEL, fetched

log = logging.getLogger("plait.client")

RAY_START_TIMEOUT_S = 20.0
"""Start timeout of Ray in seconds, if one engine in this process could replace it."""
_NEEDS_RAY = ("worker", "engines", "max_engines", "cpus", "gpus", "placement")
"""Settings that each require engines in Ray actors."""


def does_without_ray(config: Config) -> bool:
    """Return whether an engine in this process can replace one in a Ray actor: the settings ask neither for Ray nor for
    one of its features, and vLLM is installed here."""
    asked = config.model_fields_set.intersection(_NEEDS_RAY) or config.tensor_parallel > 1
    here = "RAY_ADDRESS" not in os.environ and importlib.util.find_spec("vllm") is not None
    return config.worker == "ray" and not asked and here


async def started(make: Callable[[Config], Driver], config: Config, is_own: bool) -> tuple[Driver, Config]:
    """Start a driver and return it with its configuration, which differs from the given one if Ray does not start and
    one engine in this process replaces it. With `is_own`, the workers are the configuration's, and at least one of
    several servers must answer. Raises what `Driver.start` raises."""
    driver = make(config)
    try:
        await driver.start()
    except NoCluster as error:
        if not does_without_ray(config):
            raise
        log.warning("%s: one engine runs in this process instead (--worker engine)", error)
        config = config.model_copy(update={"worker": "engine"})
        driver = make(config)
        await driver.start()
    servers = [worker for worker in driver.workers if hasattr(worker, "has_answered")]
    if is_own and servers and not any(getattr(worker, "has_answered") for worker in servers):  # noqa: B009
        await driver.close()
        raise EngineError(f"none of the servers answers ({config.base_url}): start one, or correct base_url")
    return driver, config


def lacks_model(config: Config) -> bool:
    """Return whether the worker loads a model and none is named."""
    return config.worker in ("ray", "engine") and "model" not in config.model_fields_set


def fit_model(config: Config) -> Config:
    """Return the configuration with the fetched chat model, if it lacks a model and a chat model exists."""
    folder = fetched(CHAT) if lacks_model(config) else None
    return config if folder is None else config.model_copy(update={"model": str(folder)})


def build_workers(config: Config, plugins: Plugins) -> list[Worker]:
    """Return the model workers of a configuration that has a model, not started. Raises `ConfigError`."""
    if lacks_model(config):  # the bundled models solve puzzles: they answer a question with `<none>`
        raise ConfigError(NO_MODEL)
    return workers(config, plugins)


def workers(config: Config, plugins: Plugins, *, processed: bool = False) -> list[Worker]:
    """Return the model workers of a configuration, not started. With `processed`, engines report log-probabilities of
    the sampled distribution.

    `ray` hosts one engine in each of `engines` Ray actors; any other name is a worker plugin that runs in this process.
    """
    _check_server_settings(config, plugins)
    options, urls = settings(config), tuple(dict.fromkeys(config.base_urls))
    # A server's kind of log-probabilities is known only to its operator.
    if processed and config.worker != "http":
        options["processed_logprobs"] = True
    if config.worker == "ray":
        pool = importlib.import_module("plait.workers.ray").pool
        engine = _accepted(plugins.worker_class("engine"), options)
        most = max(config.engines, config.max_engines or 1)
        patience = RAY_START_TIMEOUT_S if does_without_ray(config) else None
        return list(
            pool(most, "plait.workers.engine:Engine", engine, least=config.engines, patience=patience, **room(config))
        )
    _check_ray_settings(config)
    if config.engines > 1:  # of the worker `engine`, each with its own GPUs
        width = config.tensor_parallel
        return [
            plugins.worker("engine", **options | {"name": f"engine-{i + 1}", "process": "own", "engine_args": {
                "device_ids": [*range(i * width, i * width + width)], **config.engine_args}})
            for i in range(config.engines)
        ]  # fmt: skip
    if config.worker == "http" and len(urls) > 1:
        addresses = config.event_addresses or (None,) * len(urls)
        named = (
            {**options, "base_url": url, "name": f"http-{i}", "kv_events": address}
            for i, (url, address) in enumerate(zip(urls, addresses, strict=True), 1)
        )
        servers = [plugins.worker("http", **_accepted(plugins.worker_class("http"), fields)) for fields in named]
        for server in servers:
            setattr(server, "allow_unreachable", True)  # noqa: B010  (only servers have it)
            if config.share_load:
                getattr(server, "follow_prompts")(servers)  # noqa: B009
        return servers
    return [plugins.worker(config.worker, **_accepted(plugins.worker_class(config.worker), options))]


def _check_server_settings(config: Config, plugins: Plugins) -> None:
    urls = dict.fromkeys(config.base_urls)
    if config.event_addresses and (config.worker != "http" or len(config.event_addresses) != len(urls)):
        raise ConfigError("kv_events: give an address for each server in base_url (worker `http`), in the same order")
    if config.adapters and config.worker not in ("ray", "engine"):
        cls = plugins.worker_class(config.worker)
        if "lora" not in inspect.signature(cls).parameters:
            raise ConfigError(
                f"adapters are loaded by engines (workers `ray` and `engine`), and {config.worker!r} loads none: leave "
                "adapters out, and name as the model what the server calls the adapter"
            )


def _check_ray_settings(config: Config) -> None:
    """Raise `ConfigError` for a setting that only the worker `ray` uses."""
    if config.max_engines is not None:
        raise ConfigError(f"engines come and go (max_engines) with the worker `ray`; {config.worker!r} has one")
    for name in ("cpus", "gpus", "placement"):
        if name in config.model_fields_set and getattr(config, name) is not None:
            raise ConfigError(
                f"{name} is what engines reserve on a Ray cluster, with the worker `ray`; {config.worker!r} has no "
                "use for it: leave it out"
            )
    if config.engines > 1 and (config.worker != "engine" or config.engine_process == "shared"):
        raise ConfigError(f"{config.engines} engines need the worker `ray`, or `engine` with engine_process=own")


def handed_over(given: object) -> list[Worker] | None:
    """Return the caller's workers as a list; `None` if omitted. With an empty list, the orchestrator runs only tools.

    Raises `UsageError`.
    """
    if given is None:
        return None
    made = as_tuple("workers", given, "workers=[Scripted([…])]")
    instances: list[Worker] = []
    for worker in made:
        if isinstance(worker, type) or not isinstance(worker, Worker):
            written = reprlib.repr(worker)
            raise UsageError(f"workers: {written} is no worker: give instances, such as workers=[Scripted([…])]")
        instances.append(worker)
    return instances


def tools(config: Config, plugins: Plugins, functions: Iterable[Any]) -> Worker:
    """Return the tool worker, not started, for some functions and the configuration's tools. With `tool_actors`, the
    file's tools run in this number of Ray actors. Raises `ConfigError` without a file.
    """
    given = {"tools": functions, "file": config.tools, "mcp": config.mcp}
    if not config.tool_actors:
        return plugins.worker("tools", **given)
    if config.tools is None:
        raise ConfigError(
            f"tool_actors={config.tool_actors} are to run the tools of a file: name one in `tools`, or leave "
            "tool_actors out"
        )
    return plugins.worker("tool-actors", **given, actors=config.tool_actors, start_timeout=config.start_timeout)


def bound_load(driver: Driver, pool: Sequence[Worker], config: Config) -> None:
    """Set a driver's limit of waiting runs and its autoscaling of engines, before its start."""
    driver.admission.most = config.max_waiting
    if config.max_engines is not None:
        bounds = Bounds(least=config.engines, most=config.max_engines, cool_down=config.cool_down)
        driver.elastic = Elastic(driver, pool, bounds)


def room(config: Config) -> dict[str, Any]:
    """Return the reservation of each engine on a Ray cluster. Raises `ConfigError` for too few GPUs."""
    gpus, together = config.gpus, config.tensor_parallel
    if gpus is None and together > 1:
        gpus = together
    if gpus is not None and together > 1 and gpus < together:
        raise ConfigError(
            f"tensor_parallel={together} spreads a model over {together} GPUs, and gpus={gpus:g} reserves fewer: leave "
            "gpus out"
        )
    if config.max_engines is not None and config.placement is not None:
        raise ConfigError("placement reserves the room of all engines at once, so none can come or go: give it or "
                          "max_engines, not both")  # fmt: skip
    return {
        "num_cpus": config.cpus,
        "num_gpus": gpus,
        "strategy": config.placement,
        "start_timeout": config.start_timeout,
    }


def settings(config: Config) -> dict[str, Any]:
    """Return a model worker's options from the configuration."""
    options: dict[str, Any] = {
        "model": config.model,
        "lora": config.adapters or None,
        "script": config.script,
        "slots": config.slots,
        "threads": config.threads,
        "max_model_len": config.max_model_len,
        "kv_cache_memory_bytes": None if config.kv_cache_mib is None else config.kv_cache_mib << 20,
        "tensor_parallel_size": config.tensor_parallel if config.tensor_parallel > 1 else None,
        "seed": config.seed,
        "api_key_env": config.api_key_env,
        "stream_above_tokens": config.stream_above_tokens,
        "hints": config.hints,
        "data_parallel": config.data_parallel,
        "kv_events": config.kv_events,
        "process": config.engine_process,
        "engine_args": config.engine_args or None,
    }
    if config.worker == "http":
        if config.base_url is None:
            raise ConfigError(
                "the worker `http` needs the address of a server: set base_url (PLAIT_BASE_URL) to one such as "
                "http://localhost:8000/v1"
            )
        options["base_url"] = config.base_url
        if "model" not in config.model_fields_set:
            del options["model"]  # a server has its own model and ignores the bundled model's folder
    return {key: value for key, value in options.items() if value is not None}


def _accepted(cls: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(cls).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(options)
    return {key: value for key, value in options.items() if key in parameters}
