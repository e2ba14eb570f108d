"""Makes the workers that a configuration asks for: each is given those settings that its constructor has a keyword for.

Does not know what workers do with them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..core.base import Worker
from ..core.errors import ConfigError
from .config import Config
from .plugins import Plugins


def workers(config: Config, plugins: Plugins) -> list[Worker]:
    """Return the model workers of a configuration, not started.

    `ray` hosts one engine in each of `engines` Ray actors; any other name is a worker plugin that runs in this process.
    """
    options = settings(config)
    if config.worker == "ray":
        pool = importlib.import_module("workers.ray_pool").pool
        engine = _accepted(plugins.worker_class("engine"), options)
        return list(pool(config.engines, "workers.engine:Engine", engine))
    if config.engines != 1:
        raise ConfigError(f"{config.engines} engines need the worker `ray`; {config.worker!r} runs one in this process")
    return [plugins.worker(config.worker, **_accepted(plugins.worker_class(config.worker), options))]


def settings(config: Config) -> dict[str, Any]:
    """Return the options of a model worker that the configuration sets."""
    options: dict[str, Any] = {
        "model": config.model,
        "script": config.script,
        "slots": config.slots,
        "threads": config.threads,
        "max_model_len": config.max_model_len,
        "kv_cache_memory_bytes": None if config.kv_cache_mib is None else config.kv_cache_mib << 20,
        "seed": config.seed,
        "api_key_env": config.api_key_env,
    }
    if config.worker == "http":
        if config.base_url is None:
            raise ConfigError(
                "the worker `http` needs the address of a server: set base_url (PLAIT_BASE_URL) to one such as "
                "http://localhost:8000/v1"
            )
        options["base_url"] = config.base_url
        if "model" not in config.model_fields_set:
            del options["model"]  # the bundled model's folder says nothing to a server, which has one of its own
    return {key: value for key, value in options.items() if value is not None}


def _accepted(cls: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(cls).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(options)
    return {key: value for key, value in options.items() if key in parameters}
