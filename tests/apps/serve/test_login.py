"""Browsers that log in: from our own page, with a short body, each tenant for itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from plait_server import tenants
from plait_server.runs import LOGIN_BYTES
from plait_server.settings import Settings, Tenant
from plait_server.tenants import SESSION_LIFETIME_S, Tenants, hashed, new_key

ANN, BOB = new_key(), new_key()
TENANTS = (Tenant(name="ann", keys=(hashed(ANN),)), Tenant(name="bob", keys=(hashed(BOB),)))
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example", "content-type": "text/plain", "sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://evil.example", **JSON}, 403),
        ({"origin": "null", **JSON}, 403),
        ({"content-type": "text/plain"}, 415),
        ({}, 415),
        (JSON, 200),
        ({"origin": "https://proxy.example", "sec-fetch-site": "same-origin", **JSON}, 200),
    ],
)
async def test_only_our_page_logs_a_browser_in(serve: Any, headers: dict[str, str], status: int) -> None:
    async with serve(tenants=TENANTS) as served, httpx.AsyncClient() as http:
        given = await http.post(f"{served.url}/login", content=json.dumps({"key": ANN}), headers=headers)
    assert given.status_code == status, given.text
    assert ("set-cookie" in given.headers) == (status == 200)


async def test_a_long_body_is_refused_before_it_is_read(serve: Any) -> None:
    async with serve(tenants=TENANTS) as served, httpx.AsyncClient() as http:
        for content in (b" " * (LOGIN_BYTES + 1), b" " * 1_000_000):
            given = await http.post(f"{served.url}/login", content=content, headers=JSON)
            assert given.status_code == 413 and str(LOGIN_BYTES) in given.json()["error"]["message"]

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b" " * 2000

        assert (await http.post(f"{served.url}/login", content=pieces(), headers=JSON)).status_code == 413


async def test_logout_ends_the_session(serve: Any) -> None:
    async with serve(tenants=TENANTS) as served, httpx.AsyncClient(base_url=served.url) as http:
        assert (await http.post("/login", json={"key": ANN})).is_success
        cookie = dict(http.cookies)
        assert (await http.get("/runs")).json()["session"] is True
        foreign = await http.post("/logout", json={}, headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403 and (await http.get("/runs")).status_code == 200
        assert (await http.post("/logout", json={})).is_success and not http.cookies
        http.cookies.update(cookie)  # whoever kept a copy of it
        assert (await http.get("/runs")).status_code == 401


def test_the_logins_of_one_tenant_end_no_session_of_another(monkeypatch: Any) -> None:
    monkeypatch.setattr(tenants, "MAX_SESSIONS_PER_TENANT", 3)
    all_of_them = Tenants(Settings(tenants=TENANTS))
    of_bob = all_of_them.login(BOB)
    of_ann = [all_of_them.login(ANN) for _ in range(5)]
    assert all_of_them.of_session(of_bob) is all_of_them.users["bob"]
    found = [all_of_them.of_session(token) for token in of_ann]
    assert found == [None, None, *[all_of_them.users["ann"]] * 3]


def test_a_session_expires() -> None:
    now = [1e9]
    all_of_them = Tenants(Settings(tenants=TENANTS), lambda: now[0])
    token = all_of_them.login(ANN)
    now[0] += SESSION_LIFETIME_S - 1
    assert all_of_them.of_session(token) is all_of_them.users["ann"]
    now[0] += 1
    assert all_of_them.of_session(token) is None
