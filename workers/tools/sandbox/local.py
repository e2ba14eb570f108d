"""Backends on this machine: each starts the launcher, wrapped in what isolates it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from plait.core.errors import ConfigError

from .program import Limits, Outcome, Program

__all__ = ["Bubblewrap", "Container", "Local", "Process"]

_LAUNCHER = Path(__file__).with_name("launcher.py").read_text(encoding="utf-8")
_NOBODY = 65534
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class _Warm:
    """A sandbox that has started and waits for its program."""

    folder: Path
    process: asyncio.subprocess.Process


class Local:
    """Runs programs on this machine, each in a folder of its own that is removed afterwards.

    As root, programs run as the user `nobody`. `warm` sandboxes are started ahead, since starting takes most of the
    time of a short program; whoever asks for them has to `close`.
    """

    name: ClassVar[str]
    isolates: ClassVar[bool]
    apart: ClassVar[bool]
    """Whether the launcher has to leave the namespaces itself."""

    def __init__(self, warm: int = 0) -> None:
        self._most = warm
        self._warm: deque[_Warm] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def command(self, folder: Path, network: bool) -> list[str]:
        """Return the command line in front of the interpreter's options."""
        raise NotImplementedError

    def inside(self, folder: Path) -> str:
        """Return the program's folder as it sees it."""
        return str(folder)

    async def run(self, program: Program) -> Outcome:
        """Run a program to its end."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # warm ones belong to a loop that is gone
            self._warm.clear()
            self._loop = loop
        started = time.monotonic()
        limits = program.limits
        warm = self._warm.popleft() if self._warm and not limits.network else await self._start(limits.network)
        ahead = None
        if len(self._warm) < self._most:
            ahead = loop.create_task(self._ahead())
        try:
            self._fill(warm.folder, program)
            outcome = await self._follow(warm, program)
        finally:
            await self._end(warm)
            if ahead is not None:
                await ahead
        return outcome.model_copy(update={"seconds": time.monotonic() - started})

    async def close(self) -> None:
        """End the warm sandboxes."""
        while self._warm:
            await self._end(self._warm.popleft())

    async def _ahead(self) -> None:
        self._warm.append(await self._start(False))

    async def _start(self, network: bool) -> _Warm:
        folder = Path(tempfile.mkdtemp(prefix="plait-sandbox-"))
        as_nobody: dict[str, Any] = {}
        if os.getuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
            as_nobody = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        process = await asyncio.create_subprocess_exec(
            *self.command(folder, network),
            "-I",
            "-S",
            "-c",
            _LAUNCHER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_ENV,
            cwd="/",
            start_new_session=True,
            **as_nobody,
        )
        return _Warm(folder, process)

    def _fill(self, folder: Path, program: Program) -> None:
        """Write the program and its files; nothing outside the folder."""
        files = {**program.files, "main.py" if program.language == "python" else "main.sh": program.code}
        for name, text in {**files, ".stdin": program.stdin}.items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(f"the file {name!r} would lie outside the sandbox: give a name without '..'")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")
            path.chmod(0o644)

    async def _follow(self, warm: _Warm, program: Program) -> Outcome:
        """Hand the job over, read what the program writes, and kill it at a limit."""
        limits, process = program.limits, warm.process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        inside = self.inside(warm.folder)
        job = {
            "apart": self.apart,
            "network": limits.network,
            "folder": inside,
            "stdin": f"{inside}/.stdin",
            "env": _ENV,
            "argv": [] if program.language == "python" else ["sh", "main.sh"],
            "limits": _rlimits(limits),
        }
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            await process.stdin.drain()
        reads = asyncio.gather(_read(process.stdout, limits.output, warm), _read(process.stderr, limits.output, warm))
        status = ""
        try:
            async with asyncio.timeout(limits.seconds):
                (stdout, cut), (stderr, errors_cut) = await asyncio.shield(reads)
                code = await process.wait()
        except TimeoutError:
            _kill(process)
            status = "timeout"
            (stdout, cut), (stderr, errors_cut) = await reads
            code = await process.wait()
        if not status:
            flooded = len(stdout) > limits.output * 10 or len(stderr) > limits.output * 10
            status = "output" if flooded else "broken" if code == 125 else "done" if code == 0 else "failed"
        return Outcome.model_validate(
            {
                "status": status,
                "code": 128 - code if code < 0 else code,
                "stdout": stdout[: limits.output].decode(errors="replace"),
                "stderr": stderr[: limits.output].decode(errors="replace"),
                "cut": cut or errors_cut,
            }
        )

    async def _end(self, warm: _Warm) -> None:
        process = warm.process
        _kill(process)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await process.stdin.wait_closed()
        await asyncio.gather(process.stdout.read(), process.stderr.read(), process.wait())
        shutil.rmtree(warm.folder, ignore_errors=True)


class Process(Local):
    """Limits only: namespaces of processes and network where the kernel allows them, resource limits, an empty
    environment, a user without rights where plait runs as root. It can read whatever that user can read, so it is no
    security boundary."""

    name = "process"
    isolates = False
    apart = True

    def command(self, folder: Path, network: bool) -> list[str]:
        """Return the interpreter."""
        return [interpreter()]


class Bubblewrap(Local):
    """`bwrap`: namespaces of users, processes, network and files. The program sees the system's libraries, read-only,
    and its own folder."""

    name = "bubblewrap"
    isolates = True
    apart = False

    def __init__(self, warm: int = 0) -> None:
        if shutil.which("bwrap") is None:
            raise ConfigError("the sandbox 'bubblewrap' needs the program bwrap: install the package bubblewrap")
        super().__init__(warm)

    def command(self, folder: Path, network: bool) -> list[str]:
        """Return bwrap with what the program may see."""
        seen = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/alternatives"]
        if not Path(interpreter()).is_relative_to("/usr"):
            seen.append(str(Path(interpreter()).parent.parent))
        binds = [word for path in dict.fromkeys(seen) for word in ("--ro-bind-try", path, path)]
        share = ["--share-net"] if network else []
        return [
            "bwrap", "--unshare-all", *share, "--die-with-parent", "--new-session", "--clearenv",
            "--hostname", "sandbox", *binds, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
            "--bind", str(folder), "/work", "--chdir", "/work", interpreter(),
        ]  # fmt: skip

    def inside(self, folder: Path) -> str:
        """Return the folder as it is bound."""
        return "/work"


class Container(Local):
    """`podman` or `docker`: one container a program, without network, capabilities or a writable root. `image` has
    Python."""

    name = "container"
    isolates = True
    apart = False

    def __init__(self, image: str = "python:3-slim", program: str | None = None, warm: int = 0) -> None:
        found = program or next((each for each in ("podman", "docker") if shutil.which(each)), None)
        if found is None:
            raise ConfigError("the sandbox 'container' needs podman or docker: install one, or use 'bubblewrap'")
        self.program, self.image = found, image
        super().__init__(warm)

    def command(self, folder: Path, network: bool) -> list[str]:
        """Return the command that runs a container which removes itself."""
        user = f"{_NOBODY}:{_NOBODY}" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}"
        return [
            self.program, "run", "--rm", "--interactive", "--init", "--network", "bridge" if network else "none",
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp",
            "--pids-limit", "256", "--memory", "2g", "--user", user, "--volume", f"{folder}:/work",
            "--workdir", "/work", self.image, "python",
        ]  # fmt: skip

    def inside(self, folder: Path) -> str:
        """Return the folder as it is mounted."""
        return "/work"


@lru_cache(maxsize=1)
def interpreter() -> str:
    """Return the Python that runs programs: this one, or as root the first that the user `nobody` may run.

    Raises `ConfigError` if there is none.
    """
    own = Path(sys.base_prefix) / "bin" / f"python{sysconfig.get_config_var('VERSION')}"
    here = own if own.exists() else Path(sys.executable).resolve()
    if os.getuid():
        return str(here)
    for path in (here, Path("/usr/bin/python3"), Path("/usr/local/bin/python3")):
        real = path.resolve()
        if real.exists() and all(each.stat().st_mode & 0o5 in (1, 5) for each in (real, *real.parents)):
            return str(real)
    raise ConfigError(f"the user nobody may not run {here}: install a Python in /usr/bin, or do not run plait as root")


def _rlimits(limits: Limits) -> dict[str, int]:
    mib = 1 << 20
    return {
        "RLIMIT_CPU": limits.cpu,
        "RLIMIT_AS": limits.memory * mib,
        "RLIMIT_FSIZE": limits.file * mib,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_CORE": 0,
    }


async def _read(stream: asyncio.StreamReader, most: int, warm: _Warm) -> tuple[bytes, bool]:
    """Read to the end; keep ten times `most` bytes, and kill a program that writes more."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        if len(kept) <= most * 10:
            kept += chunk
        if len(kept) > most * 10:
            _kill(warm.process)
    return bytes(kept), len(kept) > most


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the launcher: what it runs is tied to its life. Not by `process.kill`, which polls, and so takes the child's
    end away from the event loop."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
