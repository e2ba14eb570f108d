"""Requests about tokens: the upstream's own answer for `single`, a reason elsewhere, and the tenant's limits."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from plait.workers.http import Http
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key
from tests.conformance.__main__ import upstream

SAID = {"model": "q", "prompt": "SAY<one two>", "max_tokens": 5}


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=60)


async def both(http: httpx.AsyncClient, served: Any, base: str, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the answers of the upstream and of plait before it."""
    root = path if path.startswith("/v1") else f"{path}"
    answers = [await http.post(f"{url}{root}", json=body) for url in (base.removesuffix("/v1"), served.url)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[1].text
    return [answer.json() for answer in answers]


async def test_ids_log_probabilities_of_prompts_and_the_tokenizer_are_those_of_the_upstream(serve: Any) -> None:
    with upstream() as base:
        async with serve(workers=[Http(base_url=base)]) as served, client() as http:
            direct, through = await both(http, served, base, "/tokenize", {"prompt": "SAY<one two>", "model": "q"})
            assert direct == through and direct["tokens"]
            ids = direct["tokens"]
            direct, through = await both(http, served, base, "/detokenize", {"tokens": ids, "model": "q"})
            assert direct == through == {"prompt": "SAY<one two>"}
            direct, through = [(await http.get(f"{url}/tokenizer_info")).json() for url in (base[:-3], served.url)]
            assert direct == through and direct["eos_token"]
            harness = {"model": "q", "prompt": [ids, ids], "echo": True, "logprobs": 1, "max_tokens": 0}
            for body in (
                harness,
                {**SAID, "prompt": ids},
                {**SAID, "return_token_ids": True},
                {"model": "q", "messages": [{"role": "user", "content": "SAY<hi>"}], "return_token_ids": True},
            ):
                path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
                direct, through = await both(http, served, base, path, body)
                assert direct == through
                assert body is not harness or through["choices"][1]["logprobs"]["token_logprobs"][0] is None
                assert not body.get("return_token_ids") or through["choices"][0]["token_ids"]
            whole = await http.post(
                f"{served.url}/v1/completions", json={**SAID, "model": "plait/single@q", "prompt": ids}
            )
            assert whole.status_code == 200
            assert not served.service.live, "it is no run"


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"prompt": [1, 2], "model": "plait/sample:n=2@q"}, "prompt", "one model call"),
        ({"prompt": "a", "echo": True, "logprobs": 1, "plait": {"n": 2}}, "logprobs", "one model call"),
        ({"prompt": [1, 2], "stream": True}, "stream", "not streamed"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "at least one"),
        ({"prompt": [[1, 2], []]}, "prompt", "empty"),
    ],
)
async def test_what_no_upstream_can_answer_is_refused_with_the_reason(
    serve: Any, body: dict[str, Any], param: str, why: str
) -> None:
    with upstream() as base:
        async with serve(workers=[Http(base_url=base)]) as served, client() as http:
            answer = await http.post(f"{served.url}/v1/completions", json={"model": "q", **body})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert why in answer.json()["error"]["message"]


async def test_without_an_upstream_there_is_a_clear_refusal(serve: Any) -> None:
    async with serve("hi") as served, client() as http:
        for path, body in (
            ("/v1/completions", {"model": "scripted", "prompt": [1, 2]}),
            ("/tokenize", {"prompt": "a"}),
        ):
            answer = await http.post(f"{served.url}{path}", json=body)
            assert answer.status_code == 400 and "--upstream" in answer.json()["error"]["message"], answer.text
        answer = await http.post(
            f"{served.url}/v1/completions", json={"model": "scripted", "prompt": "a", "return_token_ids": True}
        )
        assert answer.status_code == 200 and answer.headers["x-plait-ignored"] == "return_token_ids"


async def test_the_upstreams_refusal_reaches_the_client(serve: Any) -> None:
    with upstream() as base:
        async with serve(workers=[Http(base_url=base)]) as served, client() as http:
            body = {"model": "q", "messages": [{"role": "user", "content": "a"}], "return_token_ids": True}
            answer = await http.post(f"{served.url}/v1/chat/completions", json={**body, "tools": [{"type": "odd"}]})
    assert answer.status_code == 400


async def test_the_tokens_count_for_the_tenants_day(serve: Any) -> None:
    key = new_key()
    tenants = [Tenant(name="ann", keys=(hashed(key),), tokens_per_day=5, salted=False, extra_body=("min_tokens",))]
    with upstream() as base:
        async with serve(workers=[Http(base_url=base)], tenants=tenants) as served, client() as http:
            url, headers = f"{served.url}/v1/completions", {"authorization": f"Bearer {key}"}
            body = {
                **SAID,
                "max_tokens": 900,
                "return_token_ids": True,
                "min_tokens": 1,
                "ignore_eos": True,
                "user": "u",
            }
            answer = await http.post(url, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            assert set(answer.headers["x-plait-ignored"].split(", ")) == {"ignore_eos", "user"}
            (sent,) = [each for each in (await http.get(f"{base[:-3]}/requests")).json() if each.get("min_tokens")]
            assert sent["max_tokens"] == 5, "no more than is left of the day"
            assert not {"ignore_eos", "user"} & sent.keys()
            user = served.service.tenants.users["ann"]
            assert user.used[0] == answer.json()["usage"]["completion_tokens"] > 0
            while user.used[0] < 5:
                assert (await http.post(url, json=body, headers=headers)).status_code == 200
            assert (await http.post(url, json=body, headers=headers)).status_code == 429


async def test_a_long_answer_is_awaited_as_long_as_a_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with upstream() as base:
        worker = Http(base_url=base, total_timeout=7.5)
        await worker.start()
        waited: list[float | None] = []

        async def post(path: str, fields: Any, seconds: float | None = None) -> dict[str, Any]:
            waited.append(seconds)
            return {}

        assert worker._sender is not None
        monkeypatch.setattr(worker._sender.server.connection, "post", post)
        assert await worker.forward("completions", {"prompt": [1]}) == {}
        await worker.close()
    assert waited == [7.5], "not the time of a response that is not generated"
