"""`plait run --detach`: the same command in a process of its own, which continues when the terminal is closed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.errors import WorldError
from ...runtime.control.socket import peers
from ...runtime.journal.directory import default_folder


def detached(words: Sequence[str], seconds: float = 300.0) -> dict[str, Any]:
    """Start a command, wait until its run has started, and return run, process, socket, and the file of its output. A
    run that has ended by then has no socket.

    Raises `WorldError` with the command's output if it fails before.
    """
    folder = default_folder().parent / "detached"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}.out"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:  # noqa: PTH123
        process = subprocess.Popen(
            [sys.executable, "-m", "plait", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        launch: dict[str, Any] = {"event": "launch", "pid": process.pid, "output": str(path)}
        for peer in peers():
            if peer.path.name.startswith(f"{process.pid}-"):
                for row in _rows(peer):
                    process.returncode = (
                        0  # it is no longer a child of this process: no warning when this object is deleted
                    )
                    return {**launch, "run": row["run"], "socket": str(peer.path)}
        code = process.poll()
        if code == 0:
            return {**launch, "run": None, "socket": None}
        if code is not None:
            raise WorldError(f"the command ended with code {code}: {_tail(path)}")
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise WorldError(f"no run started within {seconds:g} s: {_tail(path)}")


def _rows(peer: Any) -> list[dict[str, Any]]:
    try:
        return list(peer.ask("list"))
    except OSError:
        return []


def _tail(path: Path) -> str:
    return path.read_text(errors="replace").strip()[-500:] or "it said nothing"
