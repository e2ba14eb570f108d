"""`plait serve --check` says what would keep a server from serving, and its status says whether anything does."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from plait.runtime.client.config import Config
from plait_server.check import check
from plait_server.settings import Settings, Tenant, Upstream
from plait_server.tenants import hashed
from tests.workers.http.fake_server import FakeServer

ANN = Tenant(name="ann", keys=(hashed("x"),))


async def checked(journal: str, **settings: Any) -> tuple[bool, list[str]]:
    lines: list[str] = []
    would = await check(Config(journal=journal), Settings(**{"port": 0, **settings}), lines.append)
    return would, [line for line in lines if line.startswith("fail")]


async def test_a_server_that_would_serve(tmp_path: Path) -> None:
    async with FakeServer() as server:
        upstreams = (Upstream(base_url=server.url), Upstream(base_url="http://127.0.0.1:9/v1"))
        would, failed = await checked(str(tmp_path / "runs.db"), upstreams=upstreams, tenants=(ANN,))
        assert would and len(failed) == 1 and "127.0.0.1:9" in failed[0]  # one upstream is enough
        would, _ = await checked(str(tmp_path / "runs.db"), upstreams=upstreams, require_all=True)
        assert not would


@pytest.mark.parametrize("wrong", ["upstream", "salt", "journal", "port", "certificate"])
async def test_a_server_that_would_not(tmp_path: Path, wrong: str) -> None:
    async with FakeServer(ids=wrong != "salt") as server:
        upstreams = (Upstream(base_url="http://127.0.0.1:9/v1" if wrong == "upstream" else server.url),)
        settings: dict[str, Any] = {"upstreams": upstreams, "tenants": (ANN,)}
        with socket.create_server(("127.0.0.1", 0)) as taken:
            if wrong == "port":
                settings["port"] = taken.getsockname()[1]
            if wrong == "certificate":
                settings |= {"tls_cert": tmp_path / "none.pem", "tls_key": tmp_path / "none.pem"}
            where = tmp_path / ("none/there" if wrong == "journal" else "runs.db")
            if wrong == "journal":
                (tmp_path / "none").write_text("a file where a folder should be")
            would, failed = await checked(str(where), **settings)
    assert not would and len(failed) == 1, failed
    assert wrong != "salt" or "salted = false" in failed[0]


async def test_a_folder_that_the_first_run_makes_is_no_fault(tmp_path: Path) -> None:
    """A new home has no journals yet."""
    async with FakeServer() as server:
        would, lines = await checked(f"{tmp_path}/state/plait/runs/", upstreams=({"base_url": server.url},))
    assert would, lines
