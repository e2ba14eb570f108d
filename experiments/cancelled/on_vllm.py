"""The same on a real `vllm serve`: how many tokens does it still write after the answer is no longer needed?

    python -m experiments.cancelled.on_vllm --model FOLDER --gateways ENVIRONMENT/bin --rounds 5

The server's own counter of generated tokens is read every 50 ms. A row counts what it grows after the event, so it has
up to 50 ms of tokens from before it.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Sampling, Step
from plait.core.budget import Budget
from plait.core.errors import PlaitError
from plait.core.ops import Plugin
from plait.core.sampling import StructuredOutput

from .._tools.server import served
from .run import Event, client_events, gateways, started

MODEL = "smol"
ROWS = Path(__file__).parent / "data" / "vllm.jsonl"
POLL_S, SETTLE_S, LIMIT_S, LIMIT_TOKENS = 0.05, 4.0, 3.0, 100
LONG = Sampling(max_tokens=512, extra_body={"ignore_eos": True})
SHORT = Sampling(max_tokens=20, structured=StructuredOutput(kind="choice", spec=["The answer is 7."]))
_COUNTERS = re.compile(
    r"^vllm:(generation_tokens_total|num_requests_running|num_requests_waiting)(?:{.*})? (\S+)$", re.M
)
VOTES = Plan(
    steps=(
        *(Step(name=f"short-{n}", op=ModelCall(prompt="What is 3 + 4?", sampling=SHORT)) for n in range(5)),
        *(Step(name=f"long-{n}", op=ModelCall(prompt="Write a long text.", sampling=LONG)) for n in range(3)),
        Step(
            name="vote",
            op=Join(merge=Plugin(name="majority"), on_failure="best-effort", early=True),
            needs=tuple([f"short-{n}" for n in range(5)] + [f"long-{n}" for n in range(3)]),
        ),
    ),
    output="vote",
)


@dataclass
class Watch:
    """The counter of a server, read again and again."""

    root: str
    times: list[float] = field(default_factory=list[float])
    counts: list[int] = field(default_factory=list[int])
    requests: int = 0
    """Those that run or wait."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read the counter in the background."""
        reading = asyncio.ensure_future(self._read())
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                at = time.monotonic()
                async with session.get(f"{self.root}/metrics") as answer:
                    found = _COUNTERS.findall(await answer.text())
                self.times.append(at)
                self.counts.append(int(sum(float(value) for name, value in found if "generation" in name)))
                self.requests = int(sum(float(value) for name, value in found if "requests" in name))
                await asyncio.sleep(POLL_S)

    def count_at(self, at: float) -> int:
        """Return the tokens that had been written at a time."""
        return self.counts[max(bisect.bisect_right(self.times, at) - 1, 0)]

    async def wait_for_tokens(self, more: int) -> None:
        """Return when this number of further tokens is written."""
        limit = self.counts[-1] + more
        while self.counts[-1] < limit:  # noqa: ASYNC110  # another task reads
            await asyncio.sleep(POLL_S)


def sdk_events(orchestrator: AsyncOrchestrator, watch: Watch, base: str) -> dict[tuple[str, str], Event]:
    """Return the events of a program that uses the SDK, by situation and contender."""
    four: dict[str, Any] = {"planner": "sample:n=4,answer.temperature=1,answer.max_tokens=512"}

    async def vote() -> float:
        await orchestrator.run("q", plan=VOTES)
        return time.monotonic()

    async def cancel() -> float:
        handle = await orchestrator.submit("Write a long text.", **four)
        await watch.wait_for_tokens(40)
        cancelled = time.monotonic()
        handle.cancel()
        return cancelled

    async def time_limit() -> float:
        begun = time.monotonic()
        with contextlib.suppress(PlaitError):
            await orchestrator.run("Write a long text.", budget=Budget(seconds=LIMIT_S), **four)
        return begun + LIMIT_S

    async def token_limit() -> float:
        before = watch.counts[-1]
        with contextlib.suppress(PlaitError):
            await orchestrator.run("Write a long text.", budget=Budget(tokens=LIMIT_TOKENS), **four)
        await asyncio.sleep(SETTLE_S)
        reached = next(place for place, count in enumerate(watch.counts) if count >= before + LIMIT_TOKENS)
        return watch.times[reached]

    async def interrupt() -> float:
        words = ["-m", "plait", "run", "Write a long text.", "--planner", "sample:n=4", "--base-url", base]
        words += ["--model", MODEL, "--journal", "off"]
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        await watch.wait_for_tokens(40)
        interrupted = time.monotonic()
        process.send_signal(signal.SIGINT)
        await process.wait()
        return interrupted

    return {
        ("a vote of 8 is decided by 5", "plait, `early=true`"): vote,
        ("a run of 4 samples is cancelled", "plait"): cancel,
        (f"a time limit of {LIMIT_S:g} s ends 4 samples", "plait"): time_limit,
        (f"a limit of {LIMIT_TOKENS} tokens ends 4 samples", "plait"): token_limit,
        ("Ctrl-C ends 4 samples", "`plait run`"): interrupt,
    }


async def run(options: argparse.Namespace) -> None:
    """Start the servers and measure."""
    with tempfile.TemporaryDirectory() as scratch:
        async with contextlib.AsyncExitStack() as stack:
            log = Path(scratch, "vllm.log")
            settings = {"model": str(options.model), "served_model_name": MODEL, "dtype": "float32"}
            server = await stack.enter_async_context(served(log, **settings, max_num_seqs="16", max_model_len="1024"))
            watch = Watch(server.url.removesuffix("/v1"))
            events = client_events("no gateway", server.url, MODEL)
            found = gateways(options.gateways, server.url, Path(scratch), MODEL)
            for name, (command, base, model) in found.items():
                await stack.enter_async_context(
                    started(command, f"{base}/models", Path(scratch, f"{name.split()[0]}.log"))
                )
                events |= client_events(name, base, model)
            orchestrator = AsyncOrchestrator(base_url=server.url, model=MODEL, journal="off")
            await stack.enter_async_context(orchestrator)
            await stack.enter_async_context(watch.running())
            await asyncio.sleep(1)
            events |= sdk_events(orchestrator, watch, server.url)
            await measure(events, watch, options.rounds, options.kept)


async def measure(events: Mapping[tuple[str, str], Event], watch: Watch, rounds: int, out: Path) -> None:
    """Let each event happen in turn, and add what came of it to a file. What still runs is awaited."""
    for number in range(rounds):
        for (situation, contender), event in events.items():
            after = await event()
            await asyncio.sleep(SETTLE_S)
            late, left = watch.counts[-1] - watch.count_at(after), watch.requests
            row = {"situation": situation, "contender": contender, "late": late, "running": left}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "load": round(os.getloadavg()[0], 1)}) + "\n")
            sys.stderr.write(f"{number} {situation}, {contender}: {late} late, {left} still running\n")
            while watch.requests:  # noqa: ASYNC110  # another task reads
                await asyncio.sleep(POLL_S)


def read_rows() -> Sequence[Mapping[str, Any]]:
    """Return the kept rows."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()]


def main() -> None:
    """Measure; `python -m experiments cancelled --rounds 0` writes the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments.cancelled.on_vllm", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--gateways", type=Path, metavar="FOLDER", help="has `litellm` and `vllm-router`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kept", type=Path, default=ROWS, metavar="FILE", help="add the rows to this file")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
