"""Behind vLLM's router, or placed by plait: how much is read twice?

Prompt tokens computed ÷ unique on two `vllm serve`: placed by plait, placed at random, and behind vLLM's own router.

    uv pip install vllm-router          # in an environment of its own, or python -m venv
    python -m experiments router --router ENVIRONMENT/bin/vllm-router

The workloads are those of `prefix_reuse` (votes, threads, turns), with new prompts for each contender and round.
Direct: the worker `http` has both addresses, with the policy `affinity` or `random`. Behind the router it has the
router's alone; `hints=auto` sends what the plan knows, `hints=none` nothing. Beside the ratio: the share of the
generated tokens that the less busy server made (.50: both the same). Without the router the other rows are measured,
and the table states it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
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
from plait.core.messages import pluralise
from plait.core.ops import Plugin

from .._tools.command import given_of, page_options
from .._tools.kept import add_row
from .._tools.measure import Spread, spread
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
    """Return the number of tokens that a server has generated so far, by its own metrics."""
    with urllib.request.urlopen(f"{server.url.removesuffix('/v1')}/metrics", timeout=10) as answer:
        said = answer.read().decode()
    return int(sum(map(float, re.findall(r"^vllm:generation_tokens_total{.*} (\S+)$", said, re.MULTILINE))))


async def contender(
    name: str, url: str, policies: list[str], hints: str, servers: Sequence[Server], rounds: int, runs: int, kept: Path
) -> None:
    """Measure one way: a row for each round."""
    given: Any = {"hints": hints, "policies": tuple(Plugin(name=each) for each in policies)}
    config = Config(journal="off", worker="http", base_url=url, **given)
    async with AsyncOrchestrator(config=config) as orchestrator:
        await orchestrator.start()
        for number in range(rounds):
            before, ratios = [generated(server) for server in servers], dict[str, float]()
            for workload, make in WORKLOADS.items():
                seed = SEED + sum(map(ord, name)) * 7919 + number * 1009 + len(workload) * 131_071
                ratios[workload] = await measured(orchestrator, [make(seed + place) for place in range(runs)])
            made = [generated(server) - was for server, was in zip(servers, before, strict=True)]
            row = {"way": name, "round": number, "runs": runs, "ratios": ratios, "generated": made,
                   "load": os.getloadavg()[0]}  # fmt: skip
            add_row(kept, row)
            print(json.dumps(row), flush=True)


async def measure(options: argparse.Namespace, kept: Path) -> None:
    """Measure all ways."""
    working = asyncio.current_task()
    assert working is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)  # so that the servers end too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with served(folder / "a") as first, served(folder / "b") as second:
            servers, counts = (first, second), (options.rounds, options.runs, kept)
            both = f"{first.url},{second.url}"
            await contender("direct, `affinity`", both, ["affinity"], "none", servers, *counts)
            await contender("direct, `random`", both, ["random"], "none", servers, *counts)
            if options.router is None:
                print("vLLM's router is not here (`vllm-router` of PyPI), so its rows are left out")
                return
            for policy in options.policies:
                for hints in ("none", "auto"):
                    async with routed(options.router, policy, servers, folder / "router") as url:
                        await contender(f"router `{policy}`, hints={hints}", url, [], hints, servers, *counts)


ABOUT = """# Who places the requests: plait, or vLLM's router

Prompt tokens computed ÷ unique on two `vllm serve` on CPUs: 1.00 means that nothing is read twice.

`python -m experiments router --router ENVIRONMENT/bin/vllm-router --rounds {number} --runs {runs}`

`vllm-router` of PyPI in an environment of its own. {rounds} of {runs} plans of each kind: 16 samples of one prompt
(votes), children that are forked and joined (threads), six turns with three branches each (turns). Median
(lowest–highest) over rounds. Counts of tokens do not depend on the load, which was {load:.0f} in the median.

| | votes | threads | turns | less busy server |
|---|---|---|---|---|"""


def page_of(lines: Sequence[str]) -> str:
    """Return the page as Markdown, made of the rows."""
    rows = [json.loads(line) for line in lines]
    by: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by.setdefault(row["way"], []).append(row)
    number, load = max(map(len, by.values())), statistics.median(row["load"] for row in rows)
    about = {"number": number, "rounds": pluralise(number, "round"), "runs": rows[0]["runs"], "load": load}
    lines_ = ABOUT.format(**about).splitlines()
    for way, mine in by.items():
        cells = [_two(spread([row["ratios"][name] for row in mine])) for name in WORKLOADS]
        cells.append(_two(spread([min(row["generated"]) / max(1, sum(row["generated"])) for row in mine])))
        lines_.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(
        [*lines_, "", "The last column is the share of the generated tokens that the less busy server made.", ""]
    )


def _two(found: Spread) -> str:
    low, high = f"{found.low:.2f}", f"{found.high:.2f}"
    return low if low == high else f"{found.median:.2f} ({low}–{high})"


def main() -> None:
    """Measure, write the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments router", description=__doc__)
    parser.add_argument("--router", default=shutil.which("vllm-router"), help="the program; that of PATH by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=12, help="plans of each workload in a round")
    parser.add_argument(
        "--policies", nargs="*", default=POLICIES, metavar="POLICY", help="of the router; all by default"
    )
    page_options(parser, "router")
    options = parser.parse_args()
    given = given_of(options, "router")
    kept = given.records / "router.jsonl"
    if not given.report:
        kept.unlink(missing_ok=True)
        asyncio.run(measure(options, kept))
    found = given.rows(kept)
    print(given.write(page_of(found.lines), found))
