"""`plait model up|down`: an engine that stays up, so that the next commands do not wait for one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from ...core.errors import UsageError, WorldError
from ...core.messages import did_you_mean
from ...runtime.client.config import Config
from ...runtime.control.socket import folder, is_private
from ...runtime.journal.directory import default_folder
from ..common.options import Common, Json, common_options
from ..common.output import Output, opened
from ..common.session import refuse_model

# Engines that stay up between commands: a file for each has its model, its address and its key.
#
# The files and the engines' Unix sockets are in the folder of the control sockets, which only their user can enter: no
# other user can listen in an engine's place, before or after it. An engine is identified by its
# process id and the start time of that process, so that a later process with the same id is not mistaken for it.


KEY = "WARM_ENGINE_KEY"
"""The variable of this process's environment that holds the key of the engine that was joined."""
_OWN = ("ray", "engine")
_OTHER_ENGINE = (
    "adapters", "cpus", "engines", "gpus", "kv_cache_mib", "kv_events", "max_engines", "max_model_len", "placement",
    "slots", "tensor_parallel", "threads",
)  # fmt: skip
"""Settings that ask for an engine of one's own: who sets one of them joins none."""


class StandingEngine(BaseModel):
    """An engine that is up, or about to be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Its folder, or its id on a hub: the name that it is served under."""
    key: str
    pid: int
    began: float
    """When its process began, in ticks of the kernel's clock."""
    since: float
    """Seconds since 1970."""
    slots: int

    @property
    def socket(self) -> Path:
        """Its Unix socket."""
        return kept() / f"{self.pid}.sock"

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http+unix://{quote(str(self.socket), safe='')}/v1"

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        asked = HTTPConnection("localhost")
        asked.sock = socket.socket(socket.AF_UNIX)
        try:
            asked.sock.settimeout(2)
            asked.sock.connect(str(self.socket))
            asked.request("GET", "/health")
            return asked.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            asked.close()


def kept() -> Path:
    """Return the folder of the files."""
    return folder() / "engines"


def make_folder() -> Path:
    """Create the folder of the files and return it. Raises `WorldError` if others can enter it."""
    home = kept()
    for place in (home.parent, home):  # `parents=True` would leave the first open to others
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(place):
            raise WorldError(f"{place} belongs to another user or is open to others: set XDG_RUNTIME_DIR to your own")
    return home


def put(engine: StandingEngine) -> Path:
    """Write the file of an engine, for this user alone."""
    path = make_folder() / f"{engine.pid}.json"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:  # noqa: PTH123
        out.write(engine.model_dump_json())
    return path


def standing() -> Iterator[StandingEngine]:
    """Yield the engines whose processes live, the newest first. Files of others are removed."""
    home = kept()
    if not (is_private(home.parent) and is_private(home)):
        return
    live: list[StandingEngine] = []
    for path in home.glob("*.json"):
        with contextlib.suppress(OSError, ValidationError):
            engine = StandingEngine.model_validate_json(path.read_bytes())
            if began(engine.pid) == engine.began:
                live.append(engine)
                continue
        path.unlink(missing_ok=True)
        path.with_suffix(".sock").unlink(missing_ok=True)
    yield from sorted(live, key=lambda engine: -engine.since)


def began(pid: int) -> float | None:
    """Return the start time of a process, in ticks of the kernel's clock; `None` if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else float(fields[19])


def joined(config: Config) -> tuple[Config, StandingEngine | None]:
    """Return the configuration whose model steps go to the engine that is up for its model; as it is where there is
    none, or where it asks for another worker or for an engine of its own."""
    own = config.model_fields_set & {"worker", *_OTHER_ENGINE}
    if own or config.worker not in _OWN:
        return config, None
    engine = next((engine for engine in standing() if engine.model == config.model and engine.is_ready), None)
    if engine is None:
        return config, None
    os.environ[KEY] = engine.key
    settings = {
        "worker": "http", "base_url": engine.url, "api_key_env": KEY, "model": engine.model, "slots": engine.slots,
    }  # fmt: skip
    return config.model_copy(update=settings), engine


def take_down(engine: StandingEngine, seconds: float = 20.0) -> None:
    """End an engine and wait until it has exited. After `seconds` it is killed."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        if began(engine.pid) != engine.began:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, number)
        until = time.monotonic() + patience
        while began(engine.pid) == engine.began and time.monotonic() < until:
            time.sleep(0.1)
    (kept() / f"{engine.pid}.json").unlink(missing_ok=True)
    engine.socket.unlink(missing_ok=True)


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
        raise UsageError(f"an engine of {config.model} is up already: see `plait model list`")
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
        raise UsageError(f"no engine of {name} is up{near}: see `plait model list`")
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
