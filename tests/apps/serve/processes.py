"""A server as a process of its own, over a server of models that is one too, and what its main thread has worked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from scripts.checkout import python_path

SETTINGS = """
[serve]
drain_seconds = 0.5
planners = ["single", "sample", "adaptive", "route", "decompose", "deepprune", "llmcompiler", "refine", "skeleton",
            "skeleton-graph", "think-summarize", "threads"]
"""
Child = tuple[asyncio.subprocess.Process, str, list[str]]
"""A process, the line in which it says where it serves, and the lines that it says after that."""


@contextlib.asynccontextmanager
async def child(*command: str, cwd: Path, stream: str, speaks: bool = True) -> AsyncIterator[Child]:
    """Start Python with these words. `stream`: on which of its streams it speaks, where it says that it serves."""
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": python_path(root)}
    pipes = dict.fromkeys(("stdout", "stderr"), asyncio.subprocess.DEVNULL) | {stream: asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=cwd, env=env, **pipes)  # type: ignore[arg-type]
    pipe = process.stdout if stream == "stdout" else process.stderr
    assert pipe is not None
    told: list[str] = []
    rest: asyncio.Task[None] | None = None

    async def listen() -> None:
        async for line in pipe:
            told.append(line.decode(errors="replace"))

    try:
        line = ""
        while speaks and not (re.search(r"serves http", line) or line.strip().isdigit()):
            line = (await pipe.readline()).decode()
            assert line, f"{command} has ended"
        rest = asyncio.create_task(listen())
        yield process, line.strip(), told
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if rest is not None:
            await rest


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, journal: str = "off", settings: str = "") -> AsyncIterator[Child]:
    """`plait serve`, its address, and what it says. `settings`: more lines of plait.toml, in its table `serve`."""
    (tmp_path / "plait.toml").write_text(SETTINGS + settings)
    upstream = str(Path(__file__).with_name("upstream_child.py"))
    async with child(upstream, cwd=tmp_path, stream="stdout") as (_, port, _):
        there = ("--port", "0", "--upstream", f"http://127.0.0.1:{port}/v1", "--journal", journal)
        async with child("-m", "plait", "serve", *there, cwd=tmp_path, stream="stderr") as (server, line, told):
            yield server, re.findall(r"http://[\d.:]+", line)[0], told


def worked(pid: int) -> float:
    """Seconds for which the main thread of a process has had a processor."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
