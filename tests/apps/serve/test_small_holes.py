"""Small things that a stranger found: what is another's is not there, and what is refused is told so."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from plait.workers.scripted import Reply
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key

ANN, BOB = new_key(), new_key()


async def over(served) -> None:
    """Give up what runs, and wait for its end."""
    for each in list(served.service.live.values()):
        each.handle.cancel()
    while served.service.live:
        await asyncio.sleep(0.01)


async def test_a_run_of_another_is_not_found_at_any_address(serve, tmp_path):
    tenants = (Tenant(name="ann", keys=(hashed(ANN),)), Tenant(name="bob", keys=(hashed(BOB),)))
    slow = Reply(text="word " * 200, tokens_per_second=50)
    async with serve(slow, tenants=tenants, journal=str(tmp_path / "j")) as served, httpx.AsyncClient() as http:
        ann, bob = ({"authorization": f"Bearer {key}"} for key in (ANN, BOB))
        body = {"model": "q", "input": "x", "background": True}
        await http.post(f"{served.base}/responses", json=body, headers=ann)
        run = next(iter(served.service.live))
        for name in (run, "0" * 32):
            for path in ("", "/events", "/data", "/page"):
                said = await http.get(f"{served.url}/runs/{name}{path}", headers=bob)
                assert said.status_code == 404, (path, said.text)
            said = await http.post(f"{served.url}/runs/{name}/cancel", headers=bob, json={})
            assert said.status_code == 404, said.text
        assert (await http.get(f"{served.url}/runs/{run}", headers=ann)).status_code == 200
        await over(served)


@pytest.mark.alone("it waits until the server has no connection")
@pytest.mark.parametrize("times", [2, 4])
async def test_who_sends_too_long_a_body_sees_that_it_is(serve, times: int):
    async with serve(body_bytes=1 << 20) as served, httpx.AsyncClient() as http:
        said = await http.post(f"{served.base}/chat/completions", content=b"x" * (times << 20),
                               headers={"content-type": "application/json"})  # fmt: skip
        assert said.status_code == 413 and said.json()["error"]["code"] == "body_too_long"
        while served.server._uvicorn.server_state.connections:
            await asyncio.sleep(0.01)


async def test_too_many_values_are_refused_while_they_arrive(serve):
    async with serve() as served, httpx.AsyncClient() as http:
        many = b'{"model":"q","messages":[' + b'{"role":"user","content":"x"},' * 60_000
        said = await http.post(f"{served.base}/chat/completions", content=many,
                               headers={"content-type": "application/json"})  # fmt: skip
        assert said.status_code == 413 and "values" in said.json()["error"]["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": "x"}] * 2_001},
        {"logit_bias": {str(at): 1 for at in range(4_001)}},
        {"stop": [str(at) for at in range(65)]},
        {"tools": [{"type": "function", "function": {"name": f"f{at}"}} for at in range(1_001)]},
        {"plait": {"plan": {"steps": [{"name": f"s{at}", "op": {"kind": "join"}} for at in range(1_001)],
                            "output": "s0"}}},
        {f"x{at}": 1 for at in range(300)},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
async def test_too_many_of_anything_is_refused(shared, more):
    body = {"model": "q", "messages": [{"role": "user", "content": "x"}], **more}
    async with httpx.AsyncClient() as http:
        said = await http.post(f"{shared.base}/chat/completions", json=body)
    assert said.status_code == 400, said.text[:300]
    assert len(said.text) < 3_000


async def test_a_plan_that_doubles_its_values_is_refused(serve):
    steps = [{"name": "s0", "op": {"kind": "think", "prompt": "x"}}]
    for at in range(1, 41):
        steps += [{"name": f"c{at}", "needs": [f"s{at - 1}"], "op": {"kind": "join"}},
                  {"name": f"s{at}", "needs": [f"s{at - 1}", f"c{at}"], "op": {"kind": "join"}}]  # fmt: skip
    async with serve() as served, httpx.AsyncClient() as http:
        body = {"model": "q", "input": "x", "plait": {"plan": {"steps": steps, "output": "s40"}}}
        said = await http.post(f"{served.base}/responses", json=body)
        assert said.status_code == 400 and "bytes" in said.json()["error"]["message"]
        assert not served.worker.counts["requests"]


async def test_a_plan_reserves_no_more_of_the_day_than_it_may_use(serve):
    tenant = Tenant(name="ann", keys=(hashed(ANN),), tokens_per_day=1_000)
    think = {"kind": "think", "prompt": "x", "thinking": "off", "sampling": {"max_tokens": 5}}
    body = {"model": "q", "background": True, "plait": {"plan": {"steps": [{"name": "a", "op": think}], "output": "a"}}}
    slow = Reply(text="word " * 5, tokens_per_second=20)
    async with serve(slow, tenants=(tenant,)) as served, httpx.AsyncClient() as http:
        for _ in range(4):
            said = await http.post(f"{served.base}/responses", json=body, headers={"authorization": f"Bearer {ANN}"})
            assert said.status_code == 200, said.text
        user = served.service.tenants.users["ann"]
        assert 0 < sum(each.held for each in user._allowances[0].holdings) <= 4 * 2 * 6 * 5
        await over(served)


async def test_new_names_in_each_request_make_no_new_series(serve):
    """A tenant chooses models' options, sessions, users, metadata and patterns: none is a label that stays."""
    async with serve() as served, httpx.AsyncClient() as http:

        async def series() -> set[str]:
            text = (await http.get(f"{served.url}/metrics")).text
            return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}

        async def ask(number: int) -> int:
            task = {"name": "plain", "options": {"pattern": f"a{number}+"}}
            body = {
                "model": "q", "messages": [{"role": "user", "content": f"q{number}"}], "user": f"u{number}",
                "metadata": {f"k{number}": "v"}, "prompt_cache_key": f"s{number}", "plait": {"task": task},
            }  # fmt: skip
            return (await http.post(f"{served.base}/chat/completions", json=body)).status_code

        assert await ask(0) == 200
        await series()  # which has a series of its own
        before = await series()
        assert before and {await ask(number) for number in range(1, 60)} == {200}
        added = await series() - before
        assert not added, added
