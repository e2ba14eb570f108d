"""Backend `container`: a container for each program."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError

from .local import SOURCE, UNPRIVILEGED_UID, Local, Warm
from .program import SandboxLimits

START_TIMEOUT_S = 5.0
"""Seconds that docker's daemon has to answer."""


class Container(Local):
    """`podman` or `docker`: one container a program, without network, capabilities or a writable root. `image` has
    Python. `runtime` is the OCI runtime, if not the program's own: `runsc` is gVisor, a kernel of its own. A container
    has at most 64 processes, whatever `SandboxLimits.processes` says. Its `/work`, `/tmp` and `/dev/shm` are in memory,
    each of at most `SandboxLimits.disk`; the memory of all its processes and files together is limited, too."""

    name = "container"
    isolates = True
    apart = False
    source = SOURCE

    def __init__(
        self,
        image: str = "python:3-slim",
        program: str | None = None,
        runtime: str | None = None,
        warm: int = 0,
    ) -> None:
        self.program, self.image, self.runtime = program or _find_runtime(), image, runtime
        super().__init__(warm)

    def command(self, folder: Path, limits: SandboxLimits) -> list[str]:
        """Return the command that runs a container which removes itself. Its name is the folder's."""
        podman = Path(self.program).name == "podman"
        runtime = ["--runtime", self.runtime] if self.runtime else []
        user = f"{UNPRIVILEGED_UID}:{UNPRIVILEGED_UID}" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}"
        mapped = ["--userns", "keep-id"] if podman and os.getuid() else []
        # podman's read-only containers have a /run, /tmp and /var/tmp without a size
        unsized = ["--read-only-tmpfs=false"] if podman else []
        size, memory = f"size={limits.disk}m", f"{limits.together + 3 * limits.disk}m"
        return [
            self.program, *(runtime if podman else []), "run", *([] if podman else runtime),
            "--name", folder.name, "--rm", "--interactive", "--init",
            "--network", "bridge" if limits.network else "none",
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", *unsized,
            "--tmpfs", f"/tmp:{size},mode=1777", "--tmpfs", f"/work:{size},mode=1777,exec",
            "--shm-size", f"{limits.disk}m", "--memory", memory, "--memory-swap", memory, "--pids-limit", "64",
            "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096",
            "--user", user, *mapped, "--volume", f"{folder}:{SOURCE}:ro", "--workdir", "/work", self.image, "python",
        ]  # fmt: skip

    def inside(self, folder: Path) -> str:
        """Return the folder that the launcher fills."""
        return "/work"

    def started_as(self) -> dict[str, Any]:
        """Return no wrapper: what makes containers has to run as the calling user, in that user's environment."""
        return {}

    def limited(self, limits: SandboxLimits) -> dict[str, int]:
        """Return the limits but that of processes: it would count those of all containers of a user."""
        return {name: value for name, value in super().limited(limits).items() if name != "RLIMIT_NPROC"}

    async def _end(self, warm: Warm) -> None:
        """Also kill a container whose client was killed: it lives on without."""
        whole = warm.process.returncode is not None and warm.process.returncode >= 0
        await super()._end(warm)
        if not whole:
            for words in (("kill",), ("rm", "--force")):
                await _silently(self.program, *words, warm.folder.name)


def _find_runtime() -> str:
    """Return the first program that can make containers. Raises `ConfigError`."""
    if shutil.which("podman"):
        return "podman"
    docker = shutil.which("docker")
    if docker is None:
        raise ConfigError("the sandbox 'container' needs podman or docker: install one, or use 'bubblewrap'")
    if not _answers(docker):
        raise ConfigError(
            f"docker is installed, but its daemon did not answer within {START_TIMEOUT_S:g} s (`docker version`): "
            "start it, or use podman or 'bubblewrap'"
        )
    return "docker"


@cache
def _answers(docker: str) -> bool:
    """Whether docker's daemon answers. Asked once in a process."""
    try:
        return (
            subprocess.run([docker, "version"], check=False, capture_output=True, timeout=START_TIMEOUT_S).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


async def _silently(*command: str) -> None:
    """Run a command to its end, whatever comes of it."""
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    await process.wait()
