"""A sandbox's program, limits and outcome."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import Field

from plait.core.values import Frozen

UNLIMITED_MIB = 1 << 27
"""A `SandboxLimits.memory` that limits nothing; `total_memory` then limits all processes together."""


class SandboxLimits(Frozen):
    """The limits of a program."""

    seconds: float = Field(default=10.0, gt=0)
    """Wall-clock time; then it is killed with all it started."""
    cpu: int = Field(default=10, ge=1)
    """Seconds of processor time of each process."""
    memory: int = Field(default=512, ge=32)
    """MiB of address space of each process."""
    total_memory: int = Field(default=2048, ge=32)
    """MiB that all its processes may use together, or `memory` if that is more. `container` enforces it with its files
    on top; in the others, plait looks every 50 ms and kills a program that uses more."""
    file: int = Field(default=16, ge=0)
    """MiB that one file may have."""
    disk: int = Field(default=64, ge=1)
    """MiB that its files may have: in the sandbox `process` together, where the kernel gives it a `/tmp` of its own; in
    `bubblewrap` and `container` in each of `/work`, `/tmp` and `/dev/shm`."""
    processes: int = Field(default=32, ge=1)
    """Processes and threads at a time."""
    output: int = Field(default=65_536, ge=0)
    """Bytes of output, and of error output, that are kept; a program that writes ten times as much is killed."""
    network: bool = False
    """Whether it may use the network."""

    @property
    def together(self) -> int:
        """MiB that all its processes may use together."""
        return max(self.total_memory, self.memory % UNLIMITED_MIB)


class Program(Frozen):
    """A program and its input."""

    code: str = ""
    """Source text. Python is run by this interpreter, without site packages; shell by `sh`."""
    language: Literal["python", "shell"] = "python"
    stdin: str = ""
    files: dict[str, str] = {}
    """Files in its folder, by name."""
    limits: SandboxLimits = SandboxLimits()


class ProgramOutcome(Frozen):
    """What came of a program."""

    status: Literal["done", "failed", "timeout", "output", "memory", "broken"]
    """`done`: exit code 0. `failed`: another, or a signal. `timeout`, `output`, `memory`: killed at that limit.
    `broken`: the sandbox itself did not work; `stderr` says why."""
    code: int = 0
    """Exit code; 128 and the signal's number for a program that was killed by one."""
    stdout: str = ""
    stderr: str = ""
    cut: bool = False
    """Output was left out."""
    seconds: float = 0.0


class Backend(Protocol):
    """A backend that isolates programs. A third party's (a remote sandbox) has these two names and methods, too."""

    name: str
    isolates: bool
    """Whether it is a security boundary, or only limits what a well-meant program can break."""

    async def run(self, program: Program) -> ProgramOutcome:
        """Run a program to its end. Raises nothing for what the program does."""
        ...

    async def close(self) -> None:
        """End everything. May be called twice."""
        ...
