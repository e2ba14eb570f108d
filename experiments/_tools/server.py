"""An OpenAI-compatible server of vLLM's own for benchmarks: started, awaited, read out, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.runtime.client.config import BUNDLED_MODEL
from plait.workers._shared.resources import cpu_dtype
from scripts.checkout import python_path

SETTINGS = {
    "dtype": cpu_dtype("auto"), "max-num-seqs": "256", "block-size": "32", "kv-cache-memory-bytes": str(512 << 20),
    "served-model-name": "countdown", "model": str(BUNDLED_MODEL),
}  # fmt: skip
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


ROOT = Path(__file__).parents[2]
START, END = 300, 20
"""Seconds that a server has to begin to answer, and to end."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    """Of its API, with `/v1`."""
    group: int
    """Its group of processes, which is its own."""

    def generated(self) -> int:
        """Return the number of tokens it has generated so far, by its own metrics."""
        said = _get(f"{self.url.removesuffix('/v1')}/metrics")
        found = re.findall(r"^vllm:generation_tokens_total(?:{.*})? (\S+)$", said, re.MULTILINE)
        return int(sum(map(float, found)))

    def watched(self) -> dict[str, float]:
        """Return its observations of its clients since the last call (`watch`)."""
        return json.loads(_get(f"{self.url.removesuffix('/v1')}/watch"))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let none of its processes run: on a CPU they spin although there is nothing to do."""
        os.killpg(self.group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.group, signal.SIGCONT)


@contextlib.asynccontextmanager
async def served(log: Path, **settings: str) -> AsyncIterator[Server]:
    """Start a server and yield it when it answers; `settings` (`model="…"`) in the place of those of `SETTINGS`. It
    notes what it sees of its clients (`watch`), and takes the last message of a chat as a prompt. Raises `RuntimeError`
    with the end of its log if it does not start within `START` seconds."""
    port = _free_port()
    given = SETTINGS | {name.replace("_", "-"): value for name, value in settings.items()}
    flags = [f"--{name}={value}" for name, value in given.items()]
    words = ["vllm.entrypoints.openai.api_server", f"--port={port}", "--host=127.0.0.1", *flags]
    words += ["--enforce-eager", "--enable-prompt-tokens-details", "--middleware=experiments._tools.watch.Watch"]
    words += ["--chat-template={{ messages[-1].content }}", "--disable-uvicorn-access-log"]
    async with _started(words, port, log) as server:
        yield server


@contextlib.asynccontextmanager
async def scripted(log: Path, *options: str) -> AsyncIterator[Server]:
    """Start a server without a model (`scripted_server`) with these options; as `served` in all else."""
    port = _free_port()
    async with _started(["experiments._tools.scripted_server", str(port), *options], port, log) as server:
        yield server


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.asynccontextmanager
async def _started(words: Sequence[str], port: int, log: Path) -> AsyncIterator[Server]:
    """Run a module that serves at a port, and end it."""
    path = python_path(ROOT, *filter(None, [os.environ.get("PYTHONPATH")]))
    with log.open("wb") as out:
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": path}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *words, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    root = f"http://127.0.0.1:{port}"
    try:
        began = time.monotonic()
        while True:
            if process.returncode is not None or time.monotonic() - began > START:
                said = await asyncio.to_thread(log.read_text, errors="replace")
                raise RuntimeError(f"the server has not started within {START} s; its log ends with: {said[-2000:]}")
            with contextlib.suppress(OSError):
                await asyncio.to_thread(_get, f"{root}/health")
                break
            await asyncio.sleep(0.3)
        yield Server(f"{root}/v1", process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END)
        with contextlib.suppress(ProcessLookupError):  # while it starts it may not heed the signal
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()
