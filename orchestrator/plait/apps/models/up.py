"""`plait model up|down`: an engine that stays up, so that the next commands do not wait for one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.errors import UsageError, WorldError
from ...core.messages import did_you_mean
from ...runtime.client.config import Config
from ...runtime.journal.directory import default_folder
from ..common.options import Common, Json, common_options
from ..common.output import Output, opened
from ..common.session import refuse_model
from .standing import StandingEngine, began, make_folder, put, standing, take_down

_SLOTS = 128
"""Default number of requests that an engine decodes together, the same as the worker `engine`'s."""
_START_TIMEOUT_S = 600.0
"""Seconds for an engine to be ready, unless the settings have `start_timeout`."""
_SETTINGS = {
    "threads": "threads", "max_model_len": "max_model_len", "tensor_parallel": "tensor_parallel_size", "seed": "seed",
    "engine_args": "engine_args",
}  # fmt: skip
"""Settings that an engine has, and its own names for them."""


@common_options
def up(
    name: Annotated[
        str | None, typer.Argument(help="A model as --model takes it; that of --model or the settings if left out.")
    ] = None,
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Start an engine that stays up. `plait run`, `eval`, `repl`, `serve` and the like join it where they are asked for
    the same model and for no worker or engine of their own. Settings of the engine: `--set slots=64`, `threads`,
    `engine_args`, `max_model_len`, `kv_cache_mib`, and `start_timeout`, the seconds that it has to be ready."""
    if name is not None:
        if common.model not in (None, name):
            raise UsageError(f"one engine is started at a time: say {name} or --model {common.model}")
        common = dataclasses.replace(common, model=name)
    config = common.load()
    if config.worker not in ("ray", "engine"):
        raise UsageError(f"the worker {config.worker!r} has no engine of its own to keep up: leave --worker out")
    if any(engine.model == config.model for engine in standing()):
        raise UsageError(f"an engine of {config.model} is up already: see `plait plugins model`")
    refuse_model(config.model)
    with opened(as_json) as output:
        engine = _started(
            config, config.start_timeout if "start_timeout" in config.model_fields_set else _START_TIMEOUT_S, output
        )
        if as_json:
            output.result(_row(engine))
            return
        name = Path(engine.model).name
        output.people.print(
            f"{name} is up (process {engine.pid}): commands with this model join it until `plait model down`",
            markup=False,
            soft_wrap=True,
        )


def down(
    name: Annotated[str | None, typer.Argument(help="Its model; all engines by default.")] = None,
    as_json: Json = False,
) -> None:
    """End engines that were kept up."""
    engines = [engine for engine in standing() if name is None or name in (engine.model, Path(engine.model).name)]
    if name is not None and not engines:
        near = did_you_mean(name, [Path(engine.model).name for engine in standing()])
        raise UsageError(f"no engine of {name} is up{near}: see `plait plugins model`")
    with opened(as_json) as output:
        for engine in engines:
            take_down(engine)
            output.people.print(f"{Path(engine.model).name} is down", markup=False, soft_wrap=True)
        if as_json:
            output.result({"down": [_row(engine) for engine in engines]})
        elif not engines:
            output.people.print("no engine is up")


def _row(engine: StandingEngine) -> dict[str, Any]:
    return engine.model_dump(exclude={"key", "began"}) | {"base_url": engine.url}


def _started(config: Config, wait: float, output: Output) -> StandingEngine:
    """Start a server in a session of its own and return it when it answers. Raises `WorldError` with the end of its log
    if it ends, or is not ready in time."""
    options: dict[str, Any] = {"model": config.model, "slots": config.slots or _SLOTS}
    for setting, option in _SETTINGS.items():
        if setting in config.model_fields_set and getattr(config, setting) is not None:
            options[option] = getattr(config, setting)
    if config.kv_cache_mib is not None:
        options["kv_cache_memory_bytes"] = config.kv_cache_mib << 20
    sockets = make_folder()
    key = secrets.token_urlsafe(24)
    home = default_folder().parent / "engines"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = home / f"{os.getpid()}.log"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:  # noqa: PTH123
        process = subprocess.Popen(
            [sys.executable, "-m", "plait.workers.engine.server", str(sockets), json.dumps(options)],
            env=os.environ | {"VLLM_API_KEY": key},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    start = began(process.pid)
    engine = StandingEngine(
        model=config.model, key=key, pid=process.pid, began=-1.0 if start is None else start,
        since=time.time(), slots=options["slots"],
    )  # fmt: skip
    path = put(engine)
    name = Path(config.model).name
    output.progress.print(f"starting an engine of {name}, which takes half a minute or more …", markup=False)
    until = time.monotonic() + wait
    try:
        while not engine.is_ready:
            if process.poll() is not None or time.monotonic() > until:
                ended = "ended" if process.poll() is not None else f"was not ready within {wait:g} s"
                raise WorldError(f"the engine of {name} {ended}: {_last(log)}; its log is {log}")
            time.sleep(0.2)
    except BaseException:
        take_down(engine)
        path.unlink(missing_ok=True)
        raise
    process.returncode = 0  # it is no longer a child of this process: no warning when this object is deleted
    return engine


def _last(log: Path) -> str:
    """Return the last message of a server that names its error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    # pydantic ends with a line of its own, whose address has the word `errors` in it.
    errors = [line for line in lines if re.search("[Ee]rror", line) and "For further information visit" not in line]
    return (errors or lines or ["it said nothing"])[-1][:500]
