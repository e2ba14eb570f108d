"""Behind vLLM's router, or placed by plait: how much is read twice?

Prompt tokens computed ÷ unique on two `vllm serve`: placed by plait, placed at random, and behind vLLM's own router.

    uv pip install vllm-router          # in an environment of its own, or python -m venv
    python -m experiments router --router ENVIRONMENT/bin/vllm-router

The workloads are those of `prefix_reuse` (votes, threads, turns), with new prompts for each contender and round.
Direct: the worker `http` has both addresses, with the policy `affinity` or `random`. Behind the router it has the
router's alone; `hints=auto` says what the plan knows, `hints=none` nothing. Beside the ratio: the share of the
generated tokens that the less busy server made (.50: both the same). Without the router the other rows are measured,
and it is said.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Config
from plait.core.ops import Plugin

from .._tools.reuse import WORKLOADS, measured
from .._tools.server import Server, served

POLICIES = ("round_robin", "cache_aware", "consistent_hash")
"""Of the router."""
SEED = 20_000


@contextlib.asynccontextmanager
async def routed(program: str, policy: str, servers: Sequence[Server], log: Path) -> AsyncIterator[str]:
    """Start the router before servers and yield its address when it answers for them."""
    ports: list[int] = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    workers = [server.url.removesuffix("/v1") for server in servers]
    words = [program, "--host=127.0.0.1", f"--port={ports[0]}", f"--prometheus-port={ports[1]}", f"--policy={policy}"]
    words += ["--worker-urls", *workers]
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out)  # noqa: ASYNC220
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/v1/models"))
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the router has not started: {log.read_text(errors='replace')[-2000:]}")  # noqa: ASYNC240
            await asyncio.sleep(0.3)
        yield f"http://127.0.0.1:{ports[0]}/v1"
    finally:
        process.terminate()
        process.wait(20)


def generated(server: Server) -> int:
    """Return how many tokens a server has generated so far, by its own metrics."""
    with urllib.request.urlopen(f"{server.url.removesuffix('/v1')}/metrics", timeout=10) as answer:
        said = answer.read().decode()
    return int(sum(map(float, re.findall(r"^vllm:generation_tokens_total{.*} (\S+)$", said, re.MULTILINE))))


async def contender(
    name: str, url: str, policies: list[str], hints: str, servers: Sequence[Server], rounds: int, runs: int
) -> None:
    """Measure one way and print its row."""
    found: dict[str, list[float]] = {each: [] for each in WORKLOADS}
    before = [generated(server) for server in servers]
    given: Any = {"hints": hints, "policies": tuple(Plugin(name=each) for each in policies)}
    config = Config(journal="off", worker="http", base_url=url, **given)
    async with AsyncOrchestrator(config=config) as orchestrator:
        await orchestrator.start()
        for number in range(rounds):
            for workload, make in WORKLOADS.items():
                seed = SEED + sum(map(ord, name)) * 7919 + number * 1009 + len(workload) * 131_071
                plans = [make(seed + place) for place in range(runs)]
                found[workload].append(await measured(orchestrator, plans))
    made = [generated(server) - was for server, was in zip(servers, before, strict=True)]
    cells = [f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in found.values()]
    print(f"| {name} | {' | '.join(cells)} | {min(made) / max(1, sum(made)):.2f} |", flush=True)


async def measure() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--router", default=shutil.which("vllm-router"), help="the program; that of PATH by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=12, help="plans of each workload in a round")
    parser.add_argument(
        "--policies", nargs="*", default=POLICIES, metavar="POLICY", help="of the router; all by default"
    )
    given = parser.parse_args()
    working = asyncio.current_task()
    assert working is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)  # so that the servers end too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with served(folder / "a") as first, served(folder / "b") as second:
            servers, counts = (first, second), (given.rounds, given.runs)
            both = f"{first.url},{second.url}"
            print(f"{given.rounds} rounds of {given.runs} plans, load {os.getloadavg()[0]:.1f}", flush=True)
            print(f"| | {' | '.join(WORKLOADS)} | less busy server |\n|---|---|---|---|---|", flush=True)
            await contender("direct, `affinity`", both, ["affinity"], "none", servers, *counts)
            await contender("direct, `random`", both, ["random"], "none", servers, *counts)
            if given.router is None:
                print("vLLM's router is not here (`vllm-router` of PyPI), so its rows are left out")
                return
            for policy in given.policies:
                for hints in ("none", "auto"):
                    async with routed(given.router, policy, servers, folder / "router") as url:
                        await contender(f"router `{policy}`, hints={hints}", url, [], hints, servers, *counts)


def main() -> None:
    """Measure and print."""
    asyncio.run(measure())
