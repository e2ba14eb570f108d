"""Runs programs that a model wrote: apart from this process, under limits, without network."""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import JsonValue

from plait.core.errors import ConfigError
from plait.core.messages import did_you_mean
from plait.core.tools.tool import Tool, tool

from .compiled import build_program_tool
from .container import Container
from .local import Bubblewrap, Process
from .program import Backend, Program, ProgramOutcome, SandboxLimits

__all__ = [
    "Backend",
    "Bubblewrap",
    "Container",
    "Process",
    "Program",
    "ProgramOutcome",
    "Sandbox",
    "SandboxLimits",
    "shared",
]


class Sandbox:
    """A place where programs are run. `tools()` gives it to a model or a planner.

    | `backend` | what it is |
    |---|---|
    | `bubblewrap` | namespaces of users, processes, network and files, by `bwrap` |
    | `container` | a container for each program, by podman or docker |
    | `process` | limits only; no security boundary, so it has to be asked for by name |
    | an object | a third party's, with the methods of `Backend` |

    By default the first of `bubblewrap` and `container` that is installed (docker: whose daemon answers). Raises
    `ConfigError` without any.
    """

    def __init__(
        self,
        backend: str | Backend = "auto",
        *,
        limits: SandboxLimits | None = None,
        at_once: int | None = None,
        **options: Any,
    ) -> None:
        self.backend = _backend(backend, options) if isinstance(backend, str) else backend
        self.limits = limits or SandboxLimits()
        self._at_once = at_once or max(2, os.cpu_count() or 2)
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        """One of each event loop: a semaphore that has made somebody wait belongs to that loop."""

    async def run(self, program: Program) -> ProgramOutcome:
        """Run a program to its end; in an event loop at most `at_once` at a time (as many as cores)."""
        async with self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._at_once)):
            return await self.backend.run(program)

    async def close(self) -> None:
        """End warm sandboxes."""
        await self.backend.close()

    def tools(self, *languages: str) -> list[Tool[..., Any]]:
        """Return the tools `run_python` and `run_shell`, and `run_program` for languages (`c`, `cpp`, `openmp`, `rust`,
        `go`). Each call has a fresh folder, so it has no side effects."""

        @tool
        async def run_python(code: str, stdin: str = "") -> dict[str, JsonValue]:
            """Run a Python program (standard library only) and return its output.

            Args:
                code: the program.
                stdin: what it reads.
            """
            return await self._run_to_json(Program(code=code, stdin=stdin, limits=self.limits))

        @tool
        async def run_shell(command: str, stdin: str = "") -> dict[str, JsonValue]:
            """Run a shell command in an empty folder and return its output.

            Args:
                command: the command line.
                stdin: what it reads.
            """
            return await self._run_to_json(Program(code=command, language="shell", stdin=stdin, limits=self.limits))

        compiled = [build_program_tool(self.run, languages, self.limits)] if languages else []
        return [run_python, run_shell, *compiled]

    async def _run_to_json(self, program: Program) -> dict[str, JsonValue]:
        return (await self.run(program)).model_dump(mode="json", exclude={"seconds"})


@lru_cache
def shared(backend: str) -> Sandbox:
    """Return the sandbox of this process with a backend, for those who make one for each question."""
    return Sandbox(backend)


def _backend(name: str, options: dict[str, Any]) -> Backend:
    kinds: dict[str, type[Bubblewrap | Container | Process]] = {
        "bubblewrap": Bubblewrap,
        "container": Container,
        "process": Process,
    }
    if name in kinds:
        return kinds[name](**options)
    if name != "auto":
        near = did_you_mean(name, kinds)
        raise ConfigError(f"there is no sandbox {name!r}{near}: there are auto, {', '.join(kinds)}")
    why: list[str] = []
    for kind in (Bubblewrap, Container):
        try:
            return kind(**options)
        except ConfigError as error:
            why.append(str(error))
    raise ConfigError(
        "no sandbox that isolates is there: install bubblewrap, podman or docker, or allow limits only with "
        f'Sandbox("process") ({"; ".join(why)})'
    )
