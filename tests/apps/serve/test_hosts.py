"""A server without keys is for this machine, and not for pages of the web."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from plait.core.errors import ConfigError
from plait_server.settings import Settings

BODY = {"model": "scripted", "input": "hello"}
FOREIGN: list[tuple[dict[str, str], int, str]] = [
    ({"host": "evil.example"}, 421, "host_not_allowed"),
    ({"host": "evil.example:8100"}, 421, "host_not_allowed"),
    ({"host": "[::1"}, 421, "host_not_allowed"),
    ({"origin": "http://evil.example"}, 403, "origin_not_allowed"),
    ({"origin": "null"}, 403, "origin_not_allowed"),
    ({"content-type": "text/plain"}, 415, "not_json"),
    ({"content-type": "application/x-www-form-urlencoded"}, 415, "not_json"),
]


async def posted(url: str, headers: dict[str, str], path: str = "/v1/responses") -> httpx.Response:
    async with httpx.AsyncClient() as client:
        kind = {"content-type": "application/json"}
        return await client.post(url + path, content=json.dumps(BODY), headers={**kind, **headers})


@pytest.mark.without_keys("with keys a foreign page has no key, and hosts are free")
@pytest.mark.parametrize(("headers", "status", "code"), FOREIGN)
async def test_what_a_page_of_the_web_can_send_is_turned_away(
    serve: Any, headers: dict[str, str], status: int, code: str
) -> None:
    async with serve("fine") as served:
        answer = await posted(served.url, headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        async with httpx.AsyncClient() as client:
            seen = await client.get(served.url + "/runs", headers=headers)
        assert seen.status_code == (200 if status == 415 else status)  # a GET has no body


async def test_this_machine_is_answered_and_so_are_hosts_that_are_named(serve: Any) -> None:
    async with serve("fine", allowed_hosts=["box.local"]) as served:
        port = httpx.URL(served.url).port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "BOX.local"):
            answer = await posted(served.url, {"host": host, "origin": f"http://{host}"})
            assert answer.status_code == 200, (host, answer.text)
        assert (await posted(served.url, {"host": "evil.example"})).status_code == 421


@pytest.mark.without_keys("with keys a foreign page has no key, and hosts are free")
async def test_an_open_server_answers_for_every_host_but_not_for_foreign_pages(serve: Any) -> None:
    async with serve("fine", host="0.0.0.0", open=True) as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        assert (await posted(url, {"host": "box.local"})).status_code == 200
        assert (await posted(url, {"origin": "http://evil.example"})).status_code == 403


def test_an_address_that_others_reach_needs_keys_or_a_word() -> None:
    with pytest.raises(ConfigError, match="--open"):
        Settings.load(host="0.0.0.0")
    assert Settings.load(host="0.0.0.0", open=True).open
    tenants = [{"name": "a", "keys": ["sha256:" + "0" * 64]}]
    with pytest.raises(ConfigError) as told:
        Settings.load(host="192.168.1.2")
    assert "tenants" in str(told.value)
    assert Settings.load(host="0.0.0.0", tenants=tenants).tenants
