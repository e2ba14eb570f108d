"""Engines that stay up between commands: a file for each says which model it has, where it is reached, and its key.

The files stand in the folder of the control sockets, which only their user can enter. An engine is known by its
process and by when that began, so that another process that got the same id later is not taken for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ...runtime.client.config import Config
from ...runtime.control.socket import folder, is_private

__all__ = ["StandingEngine", "began", "joined", "kept", "put", "standing", "take_down"]

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
    port: int
    key: str
    pid: int
    began: float
    """When its process began, in ticks of the kernel's clock."""
    since: float
    """Seconds since 1970."""
    slots: int

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        asked = HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            asked.request("GET", "/health")
            return asked.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            asked.close()


def kept() -> Path:
    """Return the folder of the files."""
    return folder() / "engines"


def put(engine: StandingEngine) -> Path:
    """Write the file of an engine, for this user alone."""
    home = kept()
    for place in (home.parent, home):  # `parents=True` would leave the first open to others
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / f"{engine.pid}.json"
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
    yield from sorted(live, key=lambda engine: -engine.since)


def began(pid: int) -> float | None:
    """Return when a process began, in ticks of the kernel's clock; `None` if there is none."""
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
    """End an engine and wait until it is gone; by force after so many seconds."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        if began(engine.pid) != engine.began:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, number)
        until = time.monotonic() + patience
        while began(engine.pid) == engine.began and time.monotonic() < until:
            time.sleep(0.1)
    (kept() / f"{engine.pid}.json").unlink(missing_ok=True)
