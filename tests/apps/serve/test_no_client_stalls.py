"""Innocent requests beside each of a hundred hostile bodies: what the event loop works until one of them is answered.

The server is a process of its own, and so is what answers for a model. Measured is the time that the server's main
thread has had a processor, from before an innocent request is sent until its answer is there: so it does not matter
what else this machine does. The bound is for the 99th percentile beside each body; those in `LATE` do not keep it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest

from plait.runtime.journal.directory import find
from tests.apps.serve.hostile_bodies import BODIES, Body
from tests.apps.serve.processes import serving, worked

BOUND = 0.05
"""Seconds of the loop, as the 99th percentile."""
FEWEST = 20
"""Innocent requests beside each body."""
INNOCENT = {"model": "q", "messages": [{"role": "user", "content": "hello"}]}


async def hostile(http: httpx.AsyncClient, made: bytes) -> int:
    """Send a body and leave when it takes long; return the status."""
    headers = {"content-type": "application/json"}
    try:
        said = await http.post("/v1/chat/completions", content=made, headers=headers, timeout=20)
    except httpx.TransportError:  # it closes connections whose bodies it does not read, and we leave
        return 0
    return said.status_code


async def beside(http: httpx.AsyncClient, pid: int, made: bytes) -> tuple[int, float, float]:
    """Send innocents one after another while a body is looked at; return its status, the 99th percentile of the loop's
    seconds, and of the seconds until the answer."""
    sent = asyncio.create_task(hostile(http, made))
    loop: list[float] = []
    wall: list[float] = []
    while not sent.done() or len(loop) < FEWEST:
        before, began = worked(pid), time.perf_counter()
        said = await http.post("/v1/chat/completions", json=INNOCENT, timeout=60)
        assert said.status_code == 200, said.text
        loop.append(worked(pid) - before)
        wall.append(time.perf_counter() - began)
    place = int(len(loop) * 0.99)
    return await sent, sorted(loop)[place], sorted(wall)[place]


async def tried(tmp_path: Path, bodies: dict[str, Body]) -> dict[str, tuple[int, float, float]]:
    """Try bodies one after another on a server."""
    found: dict[str, tuple[int, float, float]] = {}
    async with serving(tmp_path) as (server, url, _), httpx.AsyncClient(base_url=url) as http:
        for _ in range(3):  # what is loaded the first time
            await http.post("/v1/chat/completions", json=INNOCENT, timeout=60)
        for name, make in bodies.items():
            found[name] = await beside(http, server.pid, make())
            status, loop, wall = found[name]
            sys.stdout.write(f"{loop:7.3f} {wall:7.3f} {status:4} {name}\n")
            assert server.returncode is None, name
    return found


LATE = frozenset(
    (
        *("plan: 1,000 steps", "plan: priorities that fall", "plan: budgets within budgets"),
        *("planner: sample:n=256", "planner: think-summarize:n=200", "plan: a prompt of 10,000 values"),
    )
)
"""What keeps the bound only just: .043 to .060 s were measured on a machine with ten times its load. Each but the last
makes hundreds of model calls that are answered at once, 0.9 ms of the loop each (0.7 of them in the HTTP client), and
an innocent has its turns among these. The prompt of the last is put together in one piece."""
LATEST = 0.1
QUICK = ("messages: 200,000", "raw: 8 MB of [", "expression of a task: (a+)+$", "plan: doubles 40 times",
         "planner: sample:n=1000000000")  # fmt: skip


def slowest(found: dict[str, tuple[int, float, float]]) -> list[str]:
    """The bodies beside which innocents had to wait longer than they may."""
    return [
        f"{loop:.3f} s {name}" for name, (_, loop, _) in found.items() if loop > (LATEST if name in LATE else BOUND)
    ]


async def test_a_few_hostile_bodies_stall_nobody(tmp_path: Path) -> None:
    found = await tried(tmp_path, {name: BODIES[name] for name in QUICK})
    assert not slowest(found), slowest(found)
    assert {status // 100 for status, *_ in found.values()} >= {2, 4}  # some are answered and some refused


@pytest.mark.slow
@pytest.mark.timeout(3_600)
async def test_none_of_a_hundred_hostile_bodies_stalls_anybody(tmp_path: Path) -> None:
    assert len(BODIES) >= 100 and LATE <= BODIES.keys()
    found = await tried(tmp_path, BODIES)
    assert not slowest(found), slowest(found)


# -- SIGTERM -----------------------------------------------------------------------------------------------------------


async def stopped(tmp_path: Path, body: Body) -> str:
    """Send a signal to a server while it has a body and a run that waits; return how that run stands afterwards."""
    journal = tmp_path / "runs.plait"
    async with serving(tmp_path, str(journal)) as (server, url, _), httpx.AsyncClient(base_url=url) as http:
        waits = {"model": "q", "input": "WAIT:600:YAS", "background": True}
        said = await http.post("/v1/responses", json=waits, timeout=60)
        assert said.status_code == 200, said.text
        before = worked(server.pid)
        sent = asyncio.create_task(hostile(http, body()))
        while worked(server.pid) - before < 0.01 and not sent.done():  # it has begun with the body
            await asyncio.sleep(0.002)
        server.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.wait(), 120) == 0  # else it is killed, and this fails
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
    return find(journal, said.json()["id"].removeprefix("resp_")).status


SAMPLE = ("messages: 200,000", "choices: 128", "plan: 999 votes over long texts")
"""One that is read, one that is answered and one that runs; each starts a server of its own."""


@pytest.mark.parametrize("name", SAMPLE)
async def test_a_signal_is_obeyed_whatever_is_being_handled(tmp_path: Path, name: str) -> None:
    """The server ends after its time to drain, and the run that it gave up is told as cancelled."""
    assert await stopped(tmp_path, BODIES[name]) == "cancelled"
