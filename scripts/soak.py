"""Sends many requests to a `plait serve`, gives some up in the middle, and looks whether it stays as it is.

    python scripts/soak.py [--requests 100000] [--cancels 10000] [--at-once 32]

The server is a process of its own over scripted answers. After each tenth its memory, descriptors and threads are
read when no request is in flight. They have to be flat from the second tenth on. Prints a line of JSON for each tenth;
exits with 1 if something grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

GROWS = {"mib": 24.0, "descriptors": 8, "threads": 4}
"""By how much the last tenth may be above the second. What is kept of past runs and prompts takes about 20 MiB, and is
full after some 20,000 requests."""
SCRIPT = {"replies": [{"when": "slowly", "text": "word " * 400, "tokens_per_second": 100}, {"text": "fine"}]}
SETTINGS = "[serve]\nkeep_responses = 50\nstore_responses = 100\n"


def state(pid: int) -> dict[str, float]:
    """Return a process's memory in MiB, threads and descriptors."""
    said = Path(f"/proc/{pid}/status").read_text()
    found = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", said, re.M))
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return {"mib": round(int(found["VmRSS"]) / 1024, 1), "threads": int(found["Threads"]), "descriptors": descriptors}


async def one(http: httpx.AsyncClient, number: int, gives_up: bool) -> None:
    """Send a request: a chat, a response, a vote or a stream; leave it in the middle, or cancel it."""
    body: dict[str, Any] = {"model": ("q", "plait/sample:n=3@q")[number % 2]}
    words = f"{'slowly' if gives_up else 'now'} {number}"
    if number % 3 == 0:
        body |= {"input": words, "background": gives_up}
        said = await http.post("/v1/responses", json=body)
        if gives_up:
            await http.post(f"/v1/responses/{said.json()['id']}/cancel")
        assert said.status_code == 200, said.text
        return
    body |= {"messages": [{"role": "user", "content": words}], "stream": gives_up or number % 3 == 1}
    async with http.stream("POST", "/v1/chat/completions", json=body) as said:
        assert said.status_code == 200, await said.aread()
        async for _ in said.aiter_bytes():
            if gives_up:
                return


async def idle(http: httpx.AsyncClient) -> None:
    """Wait until no request is in flight."""
    while (await http.get("/runs?past=false")).json()["now"]:  # noqa: ASYNC110  the runs are another process's
        await asyncio.sleep(0.05)


async def soak(requests: int, cancels: int, at_once: int) -> list[dict[str, float]]:
    """Run it all; return the server's memory and descriptors after each tenth."""
    with tempfile.TemporaryDirectory(prefix="plait-soak-") as folder:
        home = Path(folder)
        (home / "script.json").write_text(json.dumps(SCRIPT))
        (home / "plait.toml").write_text(SETTINGS)
        command = ["-m", "plait", "serve", "--port", "0", "--script", "script.json", "--journal", "off"]
        serves = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=home, stderr=asyncio.subprocess.PIPE
        )
        try:
            assert serves.stderr is not None
            url = ""
            while not url:
                line = (await serves.stderr.readline()).decode()
                assert line, "the server has ended"
                url = next(iter(re.findall(r"http://[\d.:]+", line)), "")
            rest = asyncio.create_task(serves.stderr.read())
            rows = await drive(url, serves.pid, requests, cancels, at_once)
            serves.terminate()
            await serves.wait()
            await rest
            return rows
        finally:
            if serves.returncode is None:
                serves.kill()
                await serves.wait()


async def drive(url: str, pid: int, requests: int, cancels: int, at_once: int) -> list[dict[str, float]]:
    """Send the requests in ten parts; return the server's memory and descriptors after each."""
    given_up = set(random.Random(0).sample(range(requests), cancels))
    rows: list[dict[str, float]] = []
    numbers = iter(range(requests))
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=at_once)) as http:

        async def client(last: int) -> None:
            for number in numbers:
                await one(http, number, number in given_up)
                if number >= last:
                    return

        for part in range(1, 11):
            await asyncio.gather(*(client(requests * part // 10 - 1) for _ in range(at_once)))
            await idle(http)
            rows.append({"requests": requests * part // 10, **state(pid)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def grown(rows: list[dict[str, float]]) -> list[str]:
    """Return the fields that grew from the second row to the last beyond their limit."""
    first, last = rows[1], rows[-1]
    return [f"{name}: {first[name]} → {last[name]}" for name, each in GROWS.items() if last[name] - first[name] > each]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("--requests", 100_000), ("--cancels", 10_000), ("--at-once", 32)):
        parser.add_argument(name, type=int, default=default)
    asked = parser.parse_args()
    grows = grown(asyncio.run(soak(asked.requests, asked.cancels, asked.at_once)))
    for each in grows:
        print(f"grows: {each}", file=sys.stderr)
    return 1 if grows else 0


if __name__ == "__main__":
    sys.exit(main())
