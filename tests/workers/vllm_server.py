"""A vLLM server of a small model in a process of its own, with a worker that was started on it, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from subprocess import Popen

from plait.core.errors import EngineError
from plait.workers._shared.resources import cpu_dtype
from plait.workers.http import Http

# vLLM 0.32 computes attention on AMX in a process that never asked the kernel for it, and dies (SIGILL). Only our own
# engine can choose another kernel, so a server on such a processor keeps to float32.
SERVER_DTYPE = "float32" if "amx_tile" in Path("/proc/cpuinfo").read_text() else cpu_dtype("auto")

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@contextlib.contextmanager
def vllm_process(
    model: Path, name: str, log: Path, *flags: str, **others: object
) -> Iterator[tuple[str, Popen[bytes]]]:
    """Start a server and give its address at once, and its process; end it afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "model": model, "served-model-name": name, "host": "127.0.0.1", "port": port, "dtype": SERVER_DTYPE,
        "max-num-seqs": 16, "block-size": 32, "kv-cache-memory-bytes": 32 << 20, **others,
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [*(f"--{key}={value}" for key, value in settings.items()), *flags]
    command += ["--enforce-eager", "--distributed-executor-backend=uni"]
    with log.open("wb") as out:
        process = Popen(command, env=os.environ | ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(300)


@contextlib.asynccontextmanager
async def vllm_server(
    model: Path, name: str, log: Path, *flags: str, kv_events: str | None = None, **others: object
) -> AsyncIterator[Http]:
    """Start the server, wait for it, and end it. `kv_events`: where it publishes the news of its prefix cache,
    an address of 127.0.0.1."""
    if kv_events is not None:
        publishing = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": kv_events.replace("127.0.0.1", "*"),
        }
        others = {**others, "kv-events-config": json.dumps(publishing)}
    with vllm_process(model, name, log, *flags, "--enable-prompt-tokens-details", **others) as (address, process):
        worker = Http(f"{address}/v1", slots=16, kv_events=kv_events)
        while True:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]  # noqa: ASYNC240
            try:
                await worker.start()
                break
            except EngineError:
                await asyncio.sleep(1.0)
        yield worker
        await worker.close()
