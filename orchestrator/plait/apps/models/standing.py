"""Engines that stay up between commands: a file for each has its model, its address and its key.

The files and the engines' Unix sockets are in the folder of the control sockets, which only their user can enter: no
other user can listen in an engine's place, before or after it. An engine is identified by its
process id and the start time of that process, so that a later process with the same id is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from ...core.errors import WorldError
from ...runtime.client.config import Config
from ...runtime.control.socket import folder, is_private

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
    """Write the file of an engine, readable by this user only."""
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
