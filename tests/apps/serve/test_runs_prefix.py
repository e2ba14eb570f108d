"""A prefix of a run's id that changes the run has to be long enough to say which."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from plait.core.errors import UsageError
from plait.runtime.journal.directory import check_run_id
from plait_server import runs


@pytest.mark.parametrize(("method", "changes"), [("GET", False), ("POST", True)])
async def test_an_order_for_a_run_of_another_process_needs_more_of_its_id(
    serve: Any, monkeypatch: Any, method: str, changes: bool
) -> None:
    asked: list[bool] = []

    def find(place: object, run: str, *, changes: bool = False) -> Any:
        asked.append(changes)
        check_run_id(run, changes=changes)
        raise UsageError("no such run")

    monkeypatch.setattr(runs, "find", find)
    async with serve(journal="off") as served, httpx.AsyncClient() as http:
        monkeypatch.setattr(runs.RunsApi, "_place", lambda _: None)
        served.service.store = object()  # as if journals were in PostgreSQL, where other processes have runs
        path = "/runs/ab/cancel" if method == "POST" else "/runs/ab"
        answer = await http.request(method, served.url + path, json={} if method == "POST" else None)
        served.service.store = None
    assert answer.status_code == 404 and asked == [changes]
    assert ("too short" in answer.text) == changes
