"""`POST /runs/ID/feedback`: clients say how right answers were, and the server's planner learns from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.core.ops import Plugin
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key

ANN, BOB = ({"authorization": f"Bearer {new_key()}"} for _ in "ab")
ASK = {"model": "q", "messages": [{"role": "user", "content": "Why?"}]}


def learning(file: Path) -> dict[str, Any]:
    """Settings of a server whose planner learns."""
    options = {"candidates": ["single"], "path": str(file), "learn": True}
    named = [("ann", ANN), ("bob", BOB)]
    keys = {name: hashed(head["authorization"].removeprefix("Bearer ")) for name, head in named}
    return {
        "config": {"planner": Plugin(name="route-record", options=options)},
        "tenants": tuple(Tenant(name=name, keys=(key,)) for name, key in keys.items()),
    }


def counts(file: Path) -> dict[str, tuple[float, float]]:
    """Wins and losses, by tenant and task."""
    known = {key: plugin["options"]["candidates"][0] for key, plugin in json.loads(file.read_text()).items()}
    return {key: (tier.get("wins", 0.0), tier.get("losses", 0.0)) for key, tier in known.items()}


async def asked(http: httpx.AsyncClient, head: dict[str, str]) -> str:
    """Ask a question and return the id of its run."""
    answer = await http.post("/v1/chat/completions", json=ASK, headers=head)
    assert answer.status_code == 200, answer.text
    return answer.json()["plait"]["run"]


async def test_a_tenant_says_how_right_its_own_answers_were(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "arms.json"
    async with serve("Because.", **learning(file)) as served, httpx.AsyncClient(base_url=served.url) as http:

        async def say(run: str, right: Any, head: dict[str, str]) -> httpx.Response:
            return await http.post(f"/runs/{run}/feedback", json={"right": right}, headers=head)

        mine, others = await asked(http, ANN), await asked(http, BOB)
        for head, run in ((BOB, mine), (ANN, others), (ANN, "nobody")):
            refused = await say(run, 0.0, head)
            assert refused.status_code == 404, "another's run is as one that is not there"
            assert refused.json()["error"]["message"] == f"there is no run {run!r}"
        assert (await say(mine, 0.0, {})).status_code == 401
        assert not file.exists()

        answer = await say(mine, 0.75, ANN)
        assert (answer.status_code, answer.json()) == (200, {"run": mine, "learned": True})
        assert (await say(others, 0.0, BOB)).json()["learned"] is True
        assert counts(file) == {"ann/plain": (0.75, 0.25), "bob/plain": (0.0, 1.0)}

        again = await say(mine, 1.0, ANN)
        assert again.status_code == 400 and "is judged already" in again.json()["error"]["message"]
        assert counts(file)["ann/plain"] == (0.75, 0.25)


@pytest.mark.parametrize("body", [{}, {"right": 2}, {"right": -0.1}, {"right": "good"}, {"right": 1, "why": "x"}])
async def test_feedback_that_makes_no_sense_is_refused(serve: Any, tmp_path: Path, body: dict[str, Any]) -> None:
    file = tmp_path / "arms.json"
    async with serve("Because.", **learning(file)) as served, httpx.AsyncClient(base_url=served.url) as http:
        refused = await http.post(f"/runs/{await asked(http, ANN)}/feedback", json=body, headers=ANN)
        assert refused.status_code == 400 and refused.json()["error"]["param"] in ("right", "why")
        assert not file.exists()


async def test_a_run_of_a_planner_that_does_not_learn_takes_no_feedback(serve: Any) -> None:
    async with serve("Because.") as served, httpx.AsyncClient(base_url=served.url) as http:
        refused = await http.post(f"/runs/{await asked(http, {})}/feedback", json={"right": 1})
        assert refused.status_code == 400 and "whose planner learns" in refused.json()["error"]["message"]
