"""`plait mcp --http`: who may connect."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from plait import AsyncOrchestrator
from plait.core.errors import ConfigError
from plait.workers.scripted import Reply, Scripted
from plait_server.mcp.http import build_app, load_access
from plait_server.mcp.jobs import Jobs
from plait_server.mcp.server import build
from plait_server.tenants import hashed

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
EVIL = {"host": "evil.example"}
PAGE = {"origin": "http://evil.example"}
KEY = {"authorization": "Bearer plait-good"}


def _settings(tmp_path: Path, text: str) -> Path:
    (file := tmp_path / "plait.toml").write_text(text)
    return file


KEYS = f'[mcp_server]\nkeys = ["{hashed("plait-good")}"]\n'


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "::"])
def test_an_address_that_other_machines_reach_needs_keys_or_open(host: str, tmp_path: Path) -> None:
    nothing = _settings(tmp_path, "")
    with pytest.raises(ConfigError, match=r"--open") as error:
        load_access((host, 8200), nothing)
    assert "[mcp_server]" in str(error.value) and "--new-key" in str(error.value)
    assert load_access((host, 8200), nothing, is_open=True).open
    assert load_access((host, 8200), _settings(tmp_path, KEYS)).tenants


def test_loopback_needs_neither(tmp_path: Path) -> None:
    assert not load_access(("127.0.0.1", 8200), _settings(tmp_path, "")).open


@pytest.mark.parametrize(
    "text", ['[mcp_server]\nkeys = ["plait-a-key-itself"]', "[mcp_server]\nkey = 1", "mcp_server = 3"]
)
def test_a_wrong_table_is_rejected_and_no_key_is_printed(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_access(("127.0.0.1", 8200), _settings(tmp_path, text))
    assert "mcp_server" in str(error.value) and "a-key-itself" not in str(error.value)


CASES: list[tuple[str, str, bool, dict[str, str], int]] = [
    ("127.0.0.1", "", False, {}, 200),
    ("127.0.0.1", "", False, EVIL, 421),
    ("127.0.0.1", "", False, PAGE, 403),
    ("127.0.0.1", '[mcp_server]\nallowed_hosts = ["box.local"]', False, {"host": "box.local"}, 200),
    ("0.0.0.0", "", True, EVIL, 200),
    ("0.0.0.0", "", True, PAGE, 403),
    ("0.0.0.0", KEYS, False, {}, 401),
    ("0.0.0.0", KEYS, True, {}, 401),
    ("0.0.0.0", KEYS, False, {"authorization": "Bearer plait-bad"}, 401),
    ("0.0.0.0", KEYS, False, KEY, 200),
    ("0.0.0.0", KEYS + 'allowed_hosts = ["box.local"]', False, {**KEY, **EVIL}, 421),
    ("0.0.0.0", KEYS + 'allowed_hosts = ["box.local"]', False, {**KEY, "host": "box.local:8200"}, 200),
]


@pytest.mark.parametrize(("host", "text", "is_open", "headers", "status"), CASES)
async def test_requests_are_checked_as_plait_serve_checks_them(
    host: str, text: str, is_open: bool, headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    access = load_access((host, 8200), _settings(tmp_path, text), is_open)
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="hello")])], journal="off") as orchestrator:
        server = build(Jobs(orchestrator))
        app = build_app(server, access)
        async with (
            server.session_manager.run(),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1:8200") as client,
        ):
            accept = {"accept": "application/json, text/event-stream"}
            answer = await client.post("/mcp", json=INITIALIZE, headers={**accept, **headers})
            assert answer.status_code == status, answer.text
            assert ("serverInfo" in answer.text) == (status == 200)
