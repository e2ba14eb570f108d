"""Keys, limits and secrecy: what a tenant may do, and that it sees nothing of another."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest

from plait.core.errors import FieldError
from plait.core.result import Price
from plait.workers.scripted import Reply, Scripted
from plait_server.command import JsonLines
from plait_server.settings import Settings, Tenant
from plait_server.tenants import Tenants, hashed, new_key

openai = pytest.importorskip("openai")

ANN, BOB, ROOT = new_key(), new_key(), new_key()
_ASK = {"model": "q", "messages": [{"role": "user", "content": "x"}]}


def tenants(**ann):
    return (
        Tenant(name="ann", keys=(hashed(ANN),), **ann),
        Tenant(name="bob", keys=(hashed(BOB),)),
        Tenant(name="root", keys=(hashed(ROOT),), admin=True),
    )


async def test_without_a_known_key_nothing_is_told(serve):
    async with serve(tenants=tenants()) as served, httpx.AsyncClient() as http:
        for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": ANN}, {"authorization": "Basic eA=="}):
            for path in ("/v1/models", "/v1/responses/x", "/metrics"):
                said = await http.get(served.url + path, headers=headers)
                assert said.status_code == 401 and said.json()["error"]["type"] == "authentication_error"
        assert (await http.get(f"{served.url}/healthz")).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            await served.client("nope").chat.completions.create(**_ASK)
        assert (await served.client(ANN).chat.completions.create(**_ASK)).choices[0].message.content == "fine"


async def test_a_tenant_sees_nothing_of_another(serve):
    class Seen(Scripted):
        salts: list[str] = []

        async def run(self, job):
            self.salts.append(job.op.salt)
            async for item in super().run(job):
                yield item

    worker = Seen([Reply(text="fine")])
    async with serve(workers=[worker], tenants=tenants()) as served:
        ann, bob = served.client(ANN), served.client(BOB)
        made = await ann.responses.create(model="q", input="secret")
        with pytest.raises(openai.NotFoundError):
            await bob.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await bob.responses.create(model="q", input="y", previous_response_id=made.id)
        await bob.responses.create(model="q", input="secret")
        await ann.responses.create(model="q", input="secret")
        assert worker.salts[0] == worker.salts[2] != worker.salts[1] and all(worker.salts)
        with pytest.raises(openai.PermissionDeniedError):
            await bob.get("../metrics", cast_to=str)


async def test_rates_runs_planners_models_and_the_days_tokens(serve):
    limits = {"requests_per_minute": 3, "planners": ("single",), "models": ("q", "other"), "tokens_per_day": 5}
    async with serve("one two three", tenants=tenants(**limits)) as served:
        client = served.client(ANN)
        with pytest.raises(openai.BadRequestError, match="not to be used here"):
            await client.chat.completions.create(**{**_ASK, "model": "plait/sample@q"})
        with pytest.raises(openai.NotFoundError, match="there are: q, other"):
            await client.chat.completions.create(**{**_ASK, "model": "secret"})
        assert (await client.chat.completions.create(**_ASK)).usage.completion_tokens == 3
        cut = await client.chat.completions.create(**_ASK)
        assert cut.usage.completion_tokens == 2 and cut.choices[0].finish_reason == "length"
        with pytest.raises(openai.RateLimitError, match="used up") as spent:
            await client.chat.completions.create(**_ASK)
        assert spent.value.code == "insufficient_quota" and int(spent.value.response.headers["retry-after"]) > 0
        assert (await served.client(BOB).chat.completions.create(**_ASK)).usage.completion_tokens == 3


def test_the_minute_and_the_day_pass():
    now = [1e9]
    settings = Settings(tenants=tenants(requests_per_minute=1, tokens_per_day=5))
    user = Tenants(settings, lambda: now[0]).users["ann"]
    with user.admitted():
        pass
    with pytest.raises(Exception, match="requests per minute: retry in"), user.admitted():
        pass
    now[0] += 61
    with user.admitted():
        pass
    assert user.used == (0, 0.0)
    user._tokens = 5
    with pytest.raises(Exception, match="used up"):
        user.tokens_left()
    now[0] += 86_400
    assert user.tokens_left() == 5


async def test_no_key_stands_in_any_log_and_the_audit_says_who_did_what(serve, tmp_path, caplog, capfd, monkeypatch):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="plait")  # whatever a command of another test set
    monkeypatch.setattr(logging.getLogger("plait"), "propagate", True)
    audit = tmp_path / "audit.jsonl"
    async with serve("text of the answer", tenants=tenants(), audit=audit) as served:
        await served.client(ANN).chat.completions.create(**_ASK)
        with pytest.raises(openai.AuthenticationError):
            await served.client(f"wrong-{BOB}").chat.completions.create(**_ASK)
        metrics = await served.client(ROOT).get("../metrics", cast_to=str)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["tenant"], line.get("status"), line.get("ended")) for line in lines] == [
        *(("ann", None, "done"), ("ann", 200, None), ("", 401, None)),
    ]
    ended, answered, _ = lines
    assert ended["run"] == answered["run"] and ended["completion_tokens"] == 4
    assert (audit.stat().st_mode & 0o777) == 0o600
    ours = [each for each in caplog.records if each.name.startswith(("plait", "uvicorn"))]
    shown = [JsonLines().format(each) for each in ours]
    written = "\n".join([*shown, audit.read_text(), *capfd.readouterr(), metrics])
    assert ANN not in written and BOB not in written and "text of the answer" not in audit.read_text()
    assert any(json.loads(line).get("run") == ended["run"] for line in shown)


def test_a_key_in_the_settings_is_refused_and_not_shown():
    with pytest.raises(FieldError) as refused:
        Tenant(name="ann", keys=(ANN,))
    assert "--new-key" in str(refused.value) and ANN not in str(refused.value)


async def test_the_metrics_count_requests_runs_steps_and_tokens(serve):
    async with serve("one two") as served, httpx.AsyncClient() as http:
        client = served.client()
        await client.chat.completions.create(**{**_ASK, "model": "plait/sample:n=2"})
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(**{**_ASK, "model": "plait/nobody"})
        said = (await http.get(f"{served.url}/metrics")).text
    for line in (
        'plait_requests_total{endpoint="chat",status="200"} 1.0',
        'plait_requests_total{endpoint="chat",status="400"} 1.0',
        'plait_runs_total{planner="sample",status="done"} 1.0',
        'plait_steps_total{end="done",kind="think"} 2.0',
        'plait_tokens_total{kind="completion"} 4.0',
        'plait_model_tokens_total{kind="completion",model="any"} 4.0',
        'plait_model_steps_waiting{model="any"} 0.0',
        'plait_worker_busy{worker="scripted"} 0.0',
        "plait_runs_live 0.0",
    ):
        assert line in said.splitlines(), line


async def test_what_an_autoscaler_needs_is_told_by_model(serve):
    class Named(Scripted):
        models = ("big",)

    worker = Named([Reply(text="one two", delay=30.0, times=2), Reply(text="one two three")], slots=2)
    config = {"prices": {"big": Price(output=1e6)}}  # 1 a token
    async with serve(workers=[worker], config=config) as served, httpx.AsyncClient() as http:
        client = served.client()
        asked = [asyncio.ensure_future(client.chat.completions.create(**{**_ASK, "model": "big"})) for _ in range(5)]
        while len(served.service.live) < 5 or served.worker.stats()["running"] < 2:
            await asyncio.sleep(0.005)
        said = (await http.get(f"{served.url}/metrics")).text
        assert 'plait_model_steps_waiting{model="big"} 3.0' in said.splitlines()
        for run in list(served.service.live.values())[:2]:
            run.handle.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, Exception) for each in answers) == 2
        said = (await http.get(f"{served.url}/metrics")).text
    for line in (
        'plait_model_steps_waiting{model="big"} 0.0',
        'plait_model_tokens_total{kind="completion",model="big"} 9.0',
        'plait_cost_total{model="big"} 9.0',
    ):
        assert line in said.splitlines(), line
