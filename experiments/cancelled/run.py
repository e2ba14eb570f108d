"""How many tokens does a server still write after the answer is no longer needed?

Tokens that a server of models writes after a request has lost its reader: the client disconnects, a vote is decided, a
run is cancelled, Ctrl-C, a time limit, a token limit. The server writes a token every 10 ms and stops when a connection
closes, as `vllm serve` does, and notes the time of each token; so the count is what the layers before it let pass.
Beside plait stand LiteLLM's proxy, vLLM's router and clients by hand, each in the situations that it knows.

    pip install "litellm[proxy]" vllm-router          # in an environment of their own
    python -m experiments cancelled --gateways ENVIRONMENT/bin --rounds 20
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import openai

from plait import AsyncOrchestrator
from plait.core.budget import Budget
from plait.core.errors import PlaitError

from .._tools.machine import machine
from .._tools.measure import spread
from .upstream import DECIDING, MODEL, TOKEN_S, VOTE

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("README.md")
ROWS = Path(__file__).parent / "data" / "rows.jsonl"
VLLM_ROWS = ROWS.with_name("vllm.jsonl")
"""Written by `on_vllm`."""
START_S, SETTLE_S, READ_PIECES, WHOLE_S = 90, 1.5, 20, 0.3
SAMPLES, LIMIT_S, LIMIT_TOKENS = 8, 0.5, 200
NO_KEY = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
MAX_SAMPLE_TOKENS = 512
"""As of plait's samples."""
SAY = "Write a long text."
Event = Callable[[], Awaitable[float]]
"""Makes a request, takes its reader away, and returns when that was, by the monotonic clock."""


def free_port() -> int:
    """Return a port that no process listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.asynccontextmanager
async def started(words: Sequence[str], health: str, log: Path) -> AsyncIterator[None]:
    """Run a server, wait until it answers, and end it. Raises `RuntimeError` with its log if it does not start."""
    with log.open("wb") as out:
        environment = os.environ | NO_KEY
        process = subprocess.Popen(words, stdout=out, stderr=out, cwd=ROOT, env=environment)  # noqa: ASYNC220
    try:
        until = time.monotonic() + START_S
        async with aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(health) as answer:
                        if answer.status < 500:
                            break
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{words[0]} has not started: {log.read_text(errors='replace')[-1500:]}")  # noqa: ASYNC240
                await asyncio.sleep(0.2)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


async def leave_while_streaming(base: str, model: str) -> float:
    """Read some pieces of a stream, and leave."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": SAY}]}
    async with aiohttp.ClientSession() as session, session.post(f"{base}/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        pieces = 0
        async for line in answer.content:
            pieces += line.startswith(b"data: ")
            if pieces == READ_PIECES:
                break
        left = time.monotonic()
        answer.close()
    return left


async def leave_while_waiting(base: str, model: str, streamed: bool = False) -> float:
    """Ask for a whole answer, or a stream that has nothing to read yet, and leave before it comes."""
    body = {"model": model, "stream": streamed, "messages": [{"role": "user", "content": SAY}]}
    async with aiohttp.ClientSession() as session:

        async def ask() -> None:
            async with session.post(f"{base}/chat/completions", json=body) as answer:
                await answer.read()

        asking = asyncio.ensure_future(ask())
        await asyncio.sleep(WHOLE_S)
        left = time.monotonic()
        asking.cancel()
        await asyncio.wait([asking])
    return left


async def vote_by_hand(base: str, cancels: bool) -> None:
    """Vote with the `openai` client: wait for all, or cancel what is left once the vote is decided."""
    client = openai.AsyncOpenAI(base_url=base, api_key="none")

    async def sample() -> str:
        messages: Any = [{"role": "user", "content": VOTE}]
        answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=MAX_SAMPLE_TOKENS)
        return (answer.choices[0].message.content or "").split()[-1]

    asking = [asyncio.ensure_future(sample()) for _ in range(SAMPLES)]
    counts: dict[str, int] = {}
    for done in asyncio.as_completed(asking):
        answer = await done
        counts[answer] = counts.get(answer, 0) + 1
        if cancels and max(counts.values()) > SAMPLES // 2:
            break
    for each in asking:
        each.cancel()
    await asyncio.wait(asking)


class Upstream:
    """The server of models, by its address."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.base = f"{root}/v1"

    async def get(self) -> list[dict[str, Any]]:
        """Return the requests since the last reset."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.root}/requests") as answer:
            return await answer.json()

    async def reset(self) -> None:
        """Forget the requests."""
        async with aiohttp.ClientSession() as session, session.post(f"{self.root}/reset"):
            pass

    async def wait_for_tokens(self, count: int) -> None:
        """Return when four requests have written some tokens: without those that ask what the server can do."""
        # another process writes them
        while sum(len(each["stamps"]) >= count for each in await self.get()) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def decided_at(requests: Sequence[Mapping[str, Any]]) -> float:
    """Return when the last of the deciding answers had ended."""
    return sorted(each["ended"] for each in requests if each["ended"] is not None)[DECIDING - 1]


def count_late(requests: Sequence[Mapping[str, Any]], after: float) -> tuple[int, int]:
    """Return the tokens after a time, and the requests that still run."""
    late = sum(stamp > after for each in requests for stamp in each["stamps"])
    return late, sum(each["ended"] is None for each in requests)


def gateways(
    folder: Path | None, base: str, scratch: Path, model: str = MODEL
) -> dict[str, tuple[list[str], str, str]]:
    """Return the servers to put before the upstream: their command, address and model's name, by name."""
    ports = {name: free_port() for name in ("plait", "litellm", "router", "metrics")}
    address = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    plait = [sys.executable, "-m", "plait", "serve", f"--port={ports['plait']}", "--upstream", base, "--journal", "off"]
    found = {"plait serve": (plait, f"{address['plait']}/v1", model)}
    if folder is not None:
        config = scratch / "litellm.yaml"
        params = {"model": f"openai/{model}", "api_base": base, "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": model, "litellm_params": params}]}))
        litellm = [str(folder / "litellm"), f"--config={config}", f"--port={ports['litellm']}", "--host=127.0.0.1"]
        router = [str(folder / "vllm-router"), "--host=127.0.0.1", f"--port={ports['router']}"]
        router += [f"--prometheus-port={ports['metrics']}", "--worker-urls", base.removesuffix("/v1")]
        found["LiteLLM's proxy"] = (litellm, f"{address['litellm']}/v1", model)
        found["vLLM's router"] = (router, f"{address['router']}/v1", model)
    return found


async def interrupt_command(upstream: Upstream) -> float:
    """Send SIGINT to `plait run` with four samples."""
    words = ["-m", "plait", "run", SAY, "--planner", "sample:n=4", "--base-url", upstream.base, "--model", MODEL]
    quiet = subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, "--journal", "off", stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )
    await upstream.wait_for_tokens(READ_PIECES)
    interrupted = time.monotonic()
    process.send_signal(signal.SIGINT)
    await process.wait()
    return interrupted


def sdk_events(orchestrator: AsyncOrchestrator, upstream: Upstream) -> dict[tuple[str, str], Event]:
    """Return the events of a program that uses the SDK, by situation and contender."""

    async def vote(early: str) -> float:
        await orchestrator.run(VOTE, planner=f"sample:n={SAMPLES},answer.temperature=1,early={early}")
        return decided_at(await upstream.get())

    async def vote_without_client(cancels: bool) -> float:
        limit = 3 if cancels else 60  # waiting for all takes as long as the longest answer
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(vote_by_hand(upstream.base, cancels), limit)
        return decided_at(await upstream.get())

    async def cancel() -> float:
        handle = await orchestrator.submit(SAY, planner="sample:n=4,answer.temperature=1")
        await upstream.wait_for_tokens(READ_PIECES)
        cancelled = time.monotonic()
        handle.cancel()
        return cancelled

    async def time_limit() -> float:
        begun = time.monotonic()
        with contextlib.suppress(PlaitError):
            await orchestrator.run(SAY, planner="sample:n=4,answer.temperature=1", budget=Budget(seconds=LIMIT_S))
        return begun + LIMIT_S

    async def token_limit() -> float:
        with contextlib.suppress(PlaitError):
            await orchestrator.run(SAY, planner="sample:n=4,answer.temperature=1", budget=Budget(tokens=LIMIT_TOKENS))
        stamps = sorted(stamp for each in await upstream.get() for stamp in each["stamps"])
        return stamps[LIMIT_TOKENS - 1]

    return {
        ("a vote of 8 is decided by 5", "plait, `early=true`"): lambda: vote("true"),
        ("a vote of 8 is decided by 5", "plait, which waits by default"): lambda: vote("false"),
        ("a vote of 8 is decided by 5", "by hand, which cancels"): lambda: vote_without_client(True),
        ("a vote of 8 is decided by 5", "by hand, which waits"): lambda: vote_without_client(False),
        ("a run of 4 samples is cancelled", "plait"): cancel,
        ("a time limit of .5 s ends 4 samples", "plait"): time_limit,
        ("a limit of 200 tokens ends 4 samples", "plait"): token_limit,
        ("Ctrl-C ends 4 samples", "`plait run`"): lambda: interrupt_command(upstream),
    }


def client_events(name: str, base: str, model: str) -> dict[tuple[str, str], Event]:
    """Return the events of a client of a server, by situation and contender."""
    return {
        ("the client of a stream disconnects", name): lambda: leave_while_streaming(base, model),
        ("the client of a whole answer disconnects", name): lambda: leave_while_waiting(base, model),
    }


async def measure(events: Mapping[tuple[str, str], Event], upstream: Upstream, rounds: int, out: Path) -> None:
    """Let each event happen in turn, and add what came of it to a file."""
    for number in range(rounds):
        for (situation, contender), event in events.items():
            if "waits" in contender and number >= 3:  # 20 s each, and always the same
                continue
            await upstream.reset()
            after = await event()
            await asyncio.sleep(SETTLE_S)
            late, running = count_late(await upstream.get(), after)
            row = {"situation": situation, "contender": contender, "late": late, "running": running}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "load": round(os.getloadavg()[0], 1)}) + "\n")
            sys.stderr.write(f"{number} {situation}, {contender}: {late} late, {running} still running\n")


async def run(options: argparse.Namespace) -> None:
    """Start the servers and measure."""
    with tempfile.TemporaryDirectory() as scratch:
        root = f"http://127.0.0.1:{(port := free_port())}"
        words = [sys.executable, "-m", "experiments.cancelled.upstream", str(port)]
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(started(words, f"{root}/health", Path(scratch, "upstream.log")))
            upstream = Upstream(root)
            events = client_events("no gateway", upstream.base, MODEL)
            for name, (command, base, model) in gateways(options.gateways, upstream.base, Path(scratch)).items():
                log = Path(scratch, f"{name.split()[0]}.log")
                await stack.enter_async_context(started(command, f"{base}/models", log))
                events |= client_events(name, base, model)
                if name == "plait serve":
                    votes = f"plait/sample:n=4@{model}"
                    events["the client of a whole answer disconnects", "plait serve, 4 samples"] = partial(
                        leave_while_waiting, base, votes
                    )
                    events["the client of a stream disconnects", "plait serve, 4 samples"] = partial(
                        leave_while_waiting, base, votes, streamed=True
                    )
            orchestrator = AsyncOrchestrator(base_url=upstream.base, model=MODEL, journal="off")
            await stack.enter_async_context(orchestrator)
            events |= sdk_events(orchestrator, upstream)
            await measure(events, upstream, options.rounds, options.kept)


ABOUT = """# Does the server stop when the answer is no longer needed?

Tokens that a server of models writes after a request has lost its reader. The server writes a token every
{token_ms:.0f} ms for each request and stops when the connection closes, streamed or not, as `vllm serve` does; it notes
the time of each token. So a row counts what the layers before the server let pass, and one token is {token_ms:.0f} ms.
The count ends {settle} s after the event: a request that still wrote then was not stopped. A vote is decided when the
server has written the last token of the fifth equal answer.

`python -m experiments cancelled --gateways ENVIRONMENT/bin --rounds {rounds}`: {machine} Other work ran beside it
(load {load}), which delays all rows. Each round is in [rows.jsonl](data/rows.jsonl).

- LiteLLM's proxy lets a server write a whole answer to its end after the client has disconnected; it stops streams.
  The other layers stop both.
- `sample` waits for all its samples by default, each at most 512 tokens long, as a client by hand does that gathers
  them. With `early=true` or the policy `consensus` the rest stop as soon as they cannot change the verdict.
- A token limit stops later than the other events: a worker reports every 16 tokens of each sample.
"""
HEAD = """
| what happens | who stands before the server | tokens afterwards: median (lowest–highest) | requests |
|---|---|---|---|
"""
SERVED = """
## On `vllm serve`

SmolLM2-135M-Instruct on vLLM 0.32.0, on the CPU. The server's counter of generated tokens is read every 50 ms; a row
counts what it grows after the event, with up to 50 ms of tokens from before it, and one step of the engine writes a
token of each request that runs. The vote ends when the program has its verdict. The count ends 4 s after the event.

`python -m experiments.cancelled.on_vllm --model FOLDER --gateways ENVIRONMENT/bin` (load {load}, so a step takes long);
each round is in [vllm.jsonl](data/vllm.jsonl).
"""


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each situation and contender."""
    lines: list[str] = []
    for key in sorted({(row["situation"], row["contender"]) for row in rows}):
        mine = [row for row in rows if (row["situation"], row["contender"]) == key]
        still = sum(row["running"] > 0 for row in mine)
        says = f"not stopped in {still} of {len(mine)}" if still else f"stopped in all {len(mine)}"
        late = spread([row["late"] for row in mine])
        lines.append(f"| {key[0]} | {key[1]} | {late.median:,.0f} ({late.low:,}–{late.high:,}) | {says} |\n")
    return HEAD + "".join(lines)


def load(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the lowest and the highest load of the machine."""
    return f"{min(row['load'] for row in rows)}–{max(row['load'] for row in rows)}"


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of rows."""
    rounds = max(sum(row["contender"] == "plait" for row in rows) // 3, 1)
    about = ABOUT.format(token_ms=1000 * TOKEN_S, settle=SETTLE_S, rounds=rounds, machine=machine(), load=load(rows))
    served = [json.loads(line) for line in VLLM_ROWS.read_text().splitlines()]
    return about + table(rows) + SERVED.format(load=load(served)) + table(served)


def main() -> None:
    """Measure, and write the page from the kept rows."""
    parser = argparse.ArgumentParser(prog="python -m experiments cancelled", description=__doc__)
    parser.add_argument("--gateways", type=Path, metavar="FOLDER", help="has `litellm` and `vllm-router`")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kept", type=Path, default=ROWS, metavar="FILE", help="add the rows to this file")
    options = parser.parse_args()
    asyncio.run(run(options))
    rows = [json.loads(line) for line in options.kept.read_text().splitlines()]
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
