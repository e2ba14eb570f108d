"""Backends on this machine: each starts the launcher, wrapped in what isolates it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
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

from .launcher import BEGUN, SHARED
from .memory import exceed_memory
from .program import UNLIMITED_MIB, Program, ProgramOutcome, SandboxLimits

log = logging.getLogger("plait.sandbox")
_LAUNCHER = Path(__file__).with_name("launcher.py").read_text(encoding="utf-8")
UNPRIVILEGED_UID = 65534
SOURCE = "/plait-in"
"""Where backends with a file system of their own see the program's files, before they are copied."""
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Warm:
    """A sandbox that has started and waits for its program."""

    folder: Path
    process: asyncio.subprocess.Process
    limits: SandboxLimits
    """Limits at its start; disk and network, which are in its command line, can no longer be changed."""


class Local:
    """Runs programs on this machine, each in a folder of its own that is removed afterwards.

    As root, programs run as the user `nobody`. `warm` sandboxes are started ahead, since starting takes most of the
    time of a short program; their owner has to call `close`.
    """

    name: ClassVar[str]
    isolates: ClassVar[bool]
    apart: ClassVar[bool]
    """Whether the launcher has to leave the namespaces itself."""
    source: ClassVar[str] = ""
    """Where the program sees the folder of this machine, read-only, that the launcher copies into the program's own."""

    def __init__(self, warm: int = 0) -> None:
        self._most = warm
        self._warm: deque[Warm] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def command(self, folder: Path, limits: SandboxLimits) -> list[str]:
        """Return the command line in front of the interpreter's options."""
        raise NotImplementedError

    def inside(self, folder: Path) -> str:
        """Return the program's folder as it sees it."""
        return str(folder)

    def started_as(self) -> dict[str, Any]:
        """Return the user and the environment that the command is started with."""
        as_nobody: dict[str, Any] = {"user": UNPRIVILEGED_UID, "group": UNPRIVILEGED_UID, "extra_groups": []}
        return {"env": _ENV, **(as_nobody if os.getuid() == 0 else {})}

    def limited(self, limits: SandboxLimits) -> dict[str, int]:
        """Return the resource limits that the launcher sets, by their names."""
        mib = 1 << 20
        return {
            "RLIMIT_CPU": limits.cpu,
            "RLIMIT_AS": limits.memory * mib if limits.memory < UNLIMITED_MIB else resource.RLIM_INFINITY,
            "RLIMIT_FSIZE": limits.file * mib,
            "RLIMIT_NPROC": limits.processes,
            "RLIMIT_CORE": 0,
        }

    async def run(self, program: Program) -> ProgramOutcome:
        """Run a program to its end."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # warm ones belong to a closed loop
            self._warm.clear()
            self._loop = loop
        started = time.monotonic()
        waiting = self._warm_for(program.limits)
        outcome = await self._run_in(waiting or await self._start(program.limits), program)
        if waiting is not None and outcome.status == "broken":  # killed while it waited; its end was not known yet
            outcome = await self._run_in(await self._start(program.limits), program)
        return outcome.model_copy(update={"seconds": time.monotonic() - started})

    async def _run_in(self, warm: Warm, program: Program) -> ProgramOutcome:
        """Run a program in a sandbox, and start another ahead meanwhile."""
        ahead = None
        if len(self._warm) < self._most:
            ahead = asyncio.create_task(self._ahead(program.limits.model_copy(update={"network": False})))
        try:
            self._fill(warm.folder, program)
            return await self._follow(warm, program)
        finally:
            await self._end(warm)
            if ahead is not None:
                await ahead

    async def close(self) -> None:
        """End the warm sandboxes."""
        while self._warm:
            await self._end(self._warm.popleft())

    def _warm_for(self, limits: SandboxLimits) -> Warm | None:
        """Take a warm sandbox whose disk and network are those of the limits, if there is one that lives."""
        for warm in list(self._warm):
            if warm.process.returncode is not None:  # killed while it waited, for want of memory, say
                self._warm.remove(warm)
                shutil.rmtree(warm.folder, ignore_errors=True)
            elif (warm.limits.disk, warm.limits.network) == (limits.disk, limits.network):
                self._warm.remove(warm)
                return warm
        return None

    async def _ahead(self, limits: SandboxLimits) -> None:
        self._warm.append(await self._start(limits))

    async def _start(self, limits: SandboxLimits) -> Warm:
        folder = Path(tempfile.mkdtemp(prefix="plait-sandbox-"))
        if os.getuid() == 0:
            os.chown(folder, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        process = await asyncio.create_subprocess_exec(
            *self.command(folder, limits),
            "-I",
            "-S",
            "-c",
            _LAUNCHER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            **self.started_as(),
        )
        return Warm(folder, process, limits)

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

    async def _follow(self, warm: Warm, program: Program) -> ProgramOutcome:
        """Hand the job over, read what the program writes, and kill it at a limit."""
        limits, process = program.limits, warm.process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        inside = self.inside(warm.folder)
        job = {
            "apart": self.apart,
            "parent": os.getpid(),
            "network": limits.network,
            "folder": inside,
            "source": self.source,
            "stdin": f"{inside}/.stdin",
            "env": _ENV,
            "argv": [] if program.language == "python" else ["sh", "main.sh"],
            "limits": self.limited(limits),
            "disk": limits.disk,
        }
        with contextlib.suppress(ConnectionError):
            process.stdin.write(ascii(job).encode() + b"\n")
            await process.stdin.drain()
        most = limits.output * 10
        over = asyncio.create_task(exceed_memory(process.pid, limits.together << 20))
        over.add_done_callback(lambda _: _kill(process))  # at its end nothing is left to kill
        reads = asyncio.gather(_read(process.stdout, most + len(BEGUN), warm), _read(process.stderr, most, warm))
        status = ""
        try:
            async with asyncio.timeout(limits.seconds):
                stdout, stderr = await asyncio.shield(reads)
                code = await process.wait()
        except TimeoutError:
            _kill(process)
            status = "timeout"
            stdout, stderr = await reads
            code = await process.wait()
        finally:
            over.cancel()
        if over.done():  # not by the line above, which takes a turn of the loop
            status = "memory"
        if stdout.startswith(SHARED):
            _warn_shared()
        begun, stdout = stdout.startswith((BEGUN, SHARED)), stdout[len(BEGUN) :]
        if not status:
            flooded = len(stdout) > most or len(stderr) > most
            status = "output" if flooded else "broken" if not begun else "done" if code == 0 else "failed"
        if status == "broken" and not stderr:
            stderr = f"the sandbox ended before the program began, with the code {code}".encode()
        return ProgramOutcome.model_validate(
            {
                "status": status,
                "code": 128 - code if code < 0 else code,
                "stdout": stdout[: limits.output].decode(errors="replace"),
                "stderr": stderr[: limits.output].decode(errors="replace"),
                "cut": len(stdout) > limits.output or len(stderr) > limits.output,
            }
        )

    async def _end(self, warm: Warm) -> None:
        process = warm.process
        _kill(process)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await process.stdin.wait_closed()
        await asyncio.gather(process.stdout.read(), process.stderr.read(), process.wait())
        shutil.rmtree(warm.folder, ignore_errors=True)


@lru_cache(maxsize=1)
def _warn_shared() -> None:
    log.warning(
        "this kernel does not let the sandbox give programs a /tmp and a /proc of their own: they can fill the "
        "machine's /tmp, and read the command lines of its processes; use bubblewrap or container"
    )


class Process(Local):
    """Limits only: namespaces of processes, network and mounts where the kernel allows them (a `/tmp` of a size, a
    `/proc` of its own; where not, that is logged), resource limits, an empty environment, a user without rights where
    plait runs as root. It can read whatever that user can read, so it is no security boundary."""

    name = "process"
    isolates = False
    apart = True

    def command(self, folder: Path, limits: SandboxLimits) -> list[str]:
        """Return the interpreter."""
        return [interpreter()]


class Bubblewrap(Local):
    """`bwrap`: namespaces of users, processes, network and files. The program sees the system's libraries, read-only,
    and a `/work`, a `/tmp` and a `/dev/shm` of its own, in memory, each of at most `SandboxLimits.disk`. Needs bwrap
    0.5 or later."""

    name = "bubblewrap"
    isolates = True
    apart = False
    source = SOURCE

    def __init__(self, warm: int = 0) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise ConfigError("the sandbox 'bubblewrap' needs the program bwrap: install the package bubblewrap")
        self._program = program  # whole: it is started with another PATH
        super().__init__(warm)

    def command(self, folder: Path, limits: SandboxLimits) -> list[str]:
        """Return bwrap with what the program may see."""
        seen = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/alternatives"]
        if not Path(interpreter()).is_relative_to("/usr"):
            seen.append(str(Path(interpreter()).parent.parent))
        binds = [word for path in dict.fromkeys(seen) for word in ("--ro-bind-try", path, path)]
        share = ["--share-net"] if limits.network else []
        size = ["--size", str(limits.disk << 20), "--tmpfs"]
        return [
            self._program, "--unshare-all", *share, "--die-with-parent", "--new-session", "--clearenv",
            "--hostname", "sandbox", *binds, "--proc", "/proc", "--dev", "/dev", *size, "/dev/shm", *size, "/tmp",
            *size, "/work", "--ro-bind", str(folder), SOURCE,
            # bwrap's own root and /dev are in memory, too, writable, and without a size
            "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/work", interpreter(),
        ]  # fmt: skip

    def inside(self, folder: Path) -> str:
        """Return the folder that the launcher fills."""
        return "/work"


@lru_cache(maxsize=1)
def interpreter() -> str:
    """Return the Python that runs programs: this one, or as root the first that the user `nobody` may run.

    Raises `ConfigError` without one.
    """
    own = Path(sys.base_prefix) / "bin" / f"python{sysconfig.get_config_var('VERSION')}"
    here = own if own.exists() else Path(sys.executable).resolve()
    if os.getuid():
        return str(here)
    for path in (here, Path("/usr/bin/python3"), Path("/usr/local/bin/python3")):
        real = path.resolve()
        if real.exists() and all(folder.stat().st_mode & 0o5 in (1, 5) for folder in (real, *real.parents)):
            return str(real)
    raise ConfigError(f"the user nobody may not run {here}: install a Python in /usr/bin, or do not run plait as root")


async def _read(stream: asyncio.StreamReader, most: int, warm: Warm) -> bytes:
    """Read to the end; kill a program that writes more than `most` bytes, and keep few beyond them."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        if len(kept) <= most:
            kept += chunk
        if len(kept) > most:
            _kill(warm.process)
    return bytes(kept)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the launcher: what it runs is tied to its life. Not by `process.kill`, which polls, and so takes the child's
    end away from the event loop."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
