"""A door of the server costs by the messages or choices that it is asked for, and not by the runs that there were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.complexity.counted import EXPONENT, counting, exponent

pytest.importorskip("uvicorn", reason="the server's packages are not installed: pip install 'plait[serve]'")

from plait_server.app import build
from tests.apps.serve.conftest import Served, _starting

Body = Callable[[int], dict[str, Any]]


def messages(n: int) -> list[dict[str, str]]:
    """A conversation of so many turns."""
    return [{"role": ("user", "assistant")[i % 2], "content": f"turn {i}"} for i in range(2 * n - 1)]


DOORS: dict[str, Body] = {
    "/agui": lambda n: {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": str(place), **message} for place, message in enumerate(messages(n))],
    },
    "/v1/chat/completions": lambda n: {"model": "q", "messages": messages(n)},
    "/v1/completions": lambda n: {"model": "q", "prompt": "go on " * n},
    "/v1/messages": lambda n: {"model": "q", "max_tokens": 8, "messages": messages(n)},
    "/v1/messages/count_tokens": lambda n: {"model": "q", "messages": messages(n)},
    "/v1/responses": lambda n: {"model": "q", "input": messages(n)},
    "/v1/responses/compact": lambda n: {"model": "q", "input": messages(n)},
    "/v1/responses/input_tokens": lambda n: {"model": "q", "input": messages(n)},
    "/runs": lambda n: {"text": "go on " * n, "planner": "single"},
}
OF_A_RUN = ("/runs/{run}/data", "/runs/{run}/page")
LISTS = ("/runs", *OF_A_RUN, "/metrics", "/v1/models", "/health", "/runs/new")


async def cost(served: Served, path: str, body: dict[str, Any] | None) -> int:
    """The calls of one request, the client's among them."""
    async with httpx.AsyncClient(base_url=served.url) as http:
        with counting() as counter:
            reply = await (http.get(path) if body is None else http.post(path, json=body))
        assert reply.status_code < 300, reply.text
        while served.service._work:  # it ends before the next begins
            await asyncio.sleep(0.001)
        return counter.calls


def grown(path: str, body: Body) -> float:
    """The power with which a door's cost grows."""

    async def costs(n: int) -> int:
        async with _starting()("fine") as served:
            await cost(served, path, body(1))
            return await cost(served, path, body(n))

    return exponent(lambda n: asyncio.run(costs(n)), 8)


@pytest.mark.parametrize("path", DOORS)
def test_a_door_costs_by_what_it_is_sent(path: str) -> None:
    power = grown(path, DOORS[path])
    assert power <= EXPONENT, f"n^{power:.2f}"


def test_choices_cost_by_their_number() -> None:
    power = grown("/v1/chat/completions", lambda n: {"model": "q", "messages": messages(1), "n": n})
    assert power <= EXPONENT, f"n^{power:.2f}"


@pytest.mark.parametrize("path", LISTS)
async def test_a_page_costs_the_same_beside_many_runs(path: str, tmp_path: Path) -> None:
    async def beside(runs: int) -> int:
        async with _starting()("fine", journal=str(tmp_path / f"{runs}")) as served:
            async with httpx.AsyncClient(base_url=served.url) as http:
                for _ in range(runs):
                    await http.post("/v1/chat/completions", json=DOORS["/v1/chat/completions"](1))
                listed = (await http.get("/runs?limit=5")).json()
            run = [*listed["now"], *listed["past"]][0]["run"]
            where = path.format(run=run) + ("?limit=5" if path == "/runs" else "")
            await cost(served, where, None)
            return await cost(served, where, None)

    few, many = await beside(8), await beside(64)
    assert many <= 1.3 * few, f"{few:,} calls beside 8 runs, {many:,} beside 64"


async def test_every_door_has_a_case() -> None:
    async with _starting()("fine") as served:
        routes: Any = build(served.service).routes
        sent = {route.path for route in routes if "POST" in (getattr(route, "methods", None) or ())}
    rest = {path for path in sent if path not in DOORS}
    others = ("/login", "/logout", "/tokenize", "/detokenize")  # the last two only pass on what they get
    assert not {path for path in rest if "{" not in path and path not in others}, "add it to DOORS"
