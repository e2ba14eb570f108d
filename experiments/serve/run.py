"""What does the server add to the upstream's time, how many clients does it bear, does its memory grow?

What the server adds to the upstream's time, how many clients it bears at once, and whether its memory grows.

    python -m experiments serve            # all, on this machine's cores
    python -m experiments serve --only token --rounds 5

`added`: the same client asks (a) an upstream, (b) a bare starlette pass-through in front of it (httpx, streams the
bytes through) and (c) `plait serve` in front of it (worker `http`), in turns within one run, at 32 clients. The
upstream is a process of its own that streams a chat completion of 32 tokens, 20 ms apart. Reported: the time added at
p50 and p99, and c's over b's, by round; and the CPU time of either proxy for a request, which a busy machine spoils
less. `token`: the CPU time of either proxy for one more token of an answer, the difference of long and short answers.
`clients`: 256 and 500 at once, before either, in turns. `memory`: the server over a scripted worker, its resident
memory over the requests, and the slope in bytes a request of the second half.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.tenants_in_situations import KEY, SITUATIONS, Situation, others, settings

from .._tools.command import given_of, page_options
from .._tools.kept import add_row, lines_of, pack
from .page import page_of

TOKENS, EVERY = 32, 0.02
SHARES = (("p50", 0.5), ("p99", 0.99))
HEADERS = {"authorization": f"Bearer {KEY}"}
SITUATION: list[Situation] = ["open"]
"""In which the server is measured; those with keys have records of their own, beside those of the page."""
BODY: dict[str, Any] = {
    "model": "fake",
    "messages": [{"role": "user", "content": "count"}],
    "stream": True,
    "max_tokens": TOKENS,
}


def upstream_app() -> Any:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        said = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "fake"}
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return f"data: {json.dumps({**said, 'choices': choices})}\n\n".encode()

    async def chat(request: Any) -> Any:
        asked = await request.json()
        count = asked.get("max_tokens") or asked.get("max_completion_tokens") or TOKENS
        usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
        if not asked.get("stream"):
            await asyncio.sleep(EVERY * count)
            choice = {"index": 0, "message": {"role": "assistant", "content": " w" * count}, "finish_reason": "length"}
            said = {"id": "c", "object": "chat.completion", "created": 0, "model": "fake"}
            return JSONResponse({**said, "choices": [choice], "usage": usage})

        async def events() -> AsyncIterator[bytes]:
            yield chunk({"role": "assistant", "content": ""})
            for _ in range(count):
                await asyncio.sleep(EVERY)
                yield chunk({"content": " w"})
            yield chunk({}, "length")
            said = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "fake", "choices": []}
            yield f"data: {json.dumps({**said, 'usage': usage})}\n\n".encode()
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def models(_: Any) -> Any:
        return JSONResponse({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    return Starlette(
        routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)],
    )


def pass_app() -> Any:
    """The least that a proxy can do."""
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    client = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))
    target = os.environ["UPSTREAM"]

    async def chat(request: Any) -> Any:
        body = await request.body()
        asked = client.build_request(
            "POST", f"{target}/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        answer = await client.send(asked, stream=True)
        return StreamingResponse(answer.aiter_raw(), answer.status_code, {"content-type": "text/event-stream"})

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def started(words: list[str], port: int, **environment: str) -> Iterator[tuple[str, int]]:
    process = subprocess.Popen([sys.executable, *words], env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1", process.pid
    finally:
        process.terminate()
        process.wait(30)


def app(name: str, **environment: str) -> Any:
    """Start an app on the loop that `plait serve` has."""
    port = free_port()
    words = ["-m", "uvicorn", "--factory", f"experiments.serve.run:{name}", "--port", str(port), "--log-level", "error"]
    return started([*words, "--loop", "asyncio"], port, **environment)


@contextlib.contextmanager
def plait(*words: str) -> Iterator[tuple[str, int]]:
    """Start `plait serve` in the situation that was asked for: without keys, with, or among others."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        (config := Path(folder, "plait.toml")).write_text(settings(SITUATION[0]), encoding="utf-8")
        command = ["-m", "plait", "serve", "--port", str(port), "--journal", "off", "--config", str(config), *words]
        address, pid = stack.enter_context(started(command, port))
        if SITUATION[0] == "busy":
            stack.enter_context(others(address, BODY["model"]))
        yield address, pid


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[float, bool]:
    """Return the seconds of one request, and whether it was answered whole."""
    began = time.perf_counter()
    try:
        async with client.stream("POST", f"{url}/chat/completions", json=body, headers=HEADERS) as answer:
            said = b"".join([piece async for piece in answer.aiter_raw()])
        whole = answer.status_code == 200 and (b"[DONE]" in said if body.get("stream") else b"choices" in said)
    except httpx.HTTPError:
        whole = False
    return time.perf_counter() - began, whole


async def burst(url: str, clients: int, each: int, body: dict[str, Any]) -> tuple[list[float], int]:
    """Return the times of `clients` that ask `each` times one after another, and how many requests failed."""
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:

        async def one() -> list[tuple[float, bool]]:
            return [await ask(client, url, body) for _ in range(each)]

        found = [pair for pairs in await asyncio.gather(*(one() for _ in range(clients))) for pair in pairs]
    return [seconds for seconds, _ in found], sum(not whole for _, whole in found)


def at(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def added(kept: Path, rounds: int, clients: int = 32, each: int = 10) -> None:
    with (
        app("upstream_app") as (up, _),
        app("pass_app", UPSTREAM=up) as (bare, low),
        plait("--upstream", up) as (own, high),
    ):
        for url in (up, bare, own):
            asyncio.run(burst(url, clients, 2, BODY))
        for number in range(rounds):
            order = [up, bare, own] if number % 2 == 0 else [own, bare, up]
            before = {low: cpu(low), high: cpu(high)}
            times = {url: asyncio.run(burst(url, clients, each, BODY)) for url in order}
            spent = {pid: (cpu(pid) - before[pid]) / clients / each for pid in before}
            for name, url, pid in (("pass-through", bare, low), ("plait", own, high)):
                more = {part: at(times[url][0], share) - at(times[up][0], share) for part, share in SHARES}
                tell(kept, what="added", through=name, clients=clients, round=number, CPU=spent[pid],
                     failed=times[url][1], **more)  # fmt: skip


def token(kept: Path, rounds: int, clients: int = 16, short: int = 16, long: int = 272) -> None:
    """Measure the CPU time of a streamed token in either proxy, by round."""
    with (
        app("upstream_app") as (up, _),
        app("pass_app", UPSTREAM=up) as bare,
        plait("--upstream", up) as own,
    ):
        for url, _ in (bare, own):
            asyncio.run(burst(url, clients, 1, BODY))
        for number in range(rounds):
            sides = [("pass-through", *bare), ("plait", *own)]
            for name, url, pid in sides if number % 2 == 0 else reversed(sides):
                spent: list[float] = []
                for tokens in (short, long):
                    before = cpu(pid)
                    _, failed = asyncio.run(burst(url, clients, 1, BODY | {"max_tokens": tokens}))
                    assert not failed
                    spent.append(cpu(pid) - before)
                cost = (spent[1] - spent[0]) / clients / (long - short)
                tell(kept, what="token", through=name, clients=clients, round=number, CPU=cost)


def crowd(kept: Path, clients: int, rounds: int, each: int = 4) -> None:
    """Measure the times of many clients at once and the CPU time of a request, before a pass-through and before plait,
    in turns. Both are asked a little first: what they import late is not of these."""
    with app("upstream_app") as (up, _), app("pass_app", UPSTREAM=up) as bare, plait("--upstream", up) as own:
        for url, _ in (bare, own):
            asyncio.run(burst(url, 16, 2, BODY))
        for number in range(rounds):
            sides = [("pass-through", *bare), ("plait", *own)]
            for name, url, pid in sides if number % 2 == 0 else reversed(sides):
                before = cpu(pid)
                times, failed = asyncio.run(burst(url, clients, each, BODY))
                spent = (cpu(pid) - before) / len(times)
                tell(kept, what="clients", through=name, clients=clients, round=number, CPU=spent, failed=failed,
                     requests=len(times), **{part: at(times, share) for part, share in SHARES})  # fmt: skip


def tell(kept: Path, **row: Any) -> None:
    """Keep a row, and say it. Times are in seconds."""
    row["load"] = os.getloadavg()[0]
    add_row(kept, row)
    print(json.dumps(row), flush=True)


def cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(kept: Path, requests: int, clients: int = 16) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps({"replies": [{"text": "one two three four"}]}))
        body = {**BODY, "stream": False}
        with plait("--script", str(script)) as (own, pid):
            done = 0
            while done < requests:
                part = min(requests - done, max(clients, requests // 20 // clients * clients))
                _, failed = asyncio.run(burst(own, clients, part // clients, body))
                done += part // clients * clients
                tell(kept, what="memory", requests=done, bytes=resident(pid), failed=failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("added", "token", "clients", "memory"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--situation", choices=SITUATIONS, default="open", help="without keys, with, among others")
    parser.add_argument("--requests", type=int, default=100_000)
    page_options(parser, "serve")
    options = parser.parse_args()
    SITUATION[0] = options.situation
    given = given_of(options, "serve")
    files = {name: given.records / ("serve.jsonl" if name == "open" else f"serve-{name}.jsonl") for name in SITUATIONS}
    kept = files[options.situation]

    def wanted(part: str) -> bool:
        """Whether a part is to be measured: what was there of it before is thrown away."""
        if given.report or options.only not in (None, part):
            return False
        rest = [line for line in lines_of(kept) if json.loads(line)["what"] != part]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("".join(f"{line}\n" for line in rest), encoding="utf-8")
        return True

    if wanted("added"):
        added(kept, options.rounds)
    if wanted("token"):
        token(kept, options.rounds)
    if wanted("clients"):
        for clients in (256, 500):
            crowd(kept, clients, options.rounds)
    if wanted("memory"):
        memory(kept, options.requests)
    found = {name: given.rows(file, "rows" if name == "open" else f"situation-{name}") for name, file in files.items()}
    with_keys = {name: rows for name, rows in found.items() if name != "open" and rows.lines}
    for name, rows in with_keys.items():
        pack(rows, given.out / "data" / f"situation-{name}.jsonl.gz")
    page = page_of(found["open"].lines, {name: rows.lines for name, rows in with_keys.items()})
    print(given.write(page, found["open"]))
