"""Whom trouble is reported to: what only the operator can solve is 503, not ready, a metric and one log line."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.core.errors import ConfigError, EngineError, RunTaken
from plait.runtime.client.config import Config
from plait.runtime.journal import sqlite
from plait.workers.http import Http
from plait.workers.scripted import Reply
from plait_server import documents, health
from plait_server.errors import of_error
from plait_server.settings import Settings, Tenant, Upstream, workers_of
from plait_server.tenants import hashed, new_key
from tests.workers.http.fake_server import FakeServer, Fault

KEY = new_key()
HEADERS = {"authorization": f"Bearer {KEY}"}
ASK = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}]}
TENANTS = (Tenant(name="ann", keys=(hashed(KEY),), admin=True),)


@pytest.fixture
def warnings(monkeypatch: Any, caplog: Any) -> Any:
    monkeypatch.setattr(logging.getLogger("plait"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="plait")
    return lambda text: [record.getMessage() for record in caplog.records if text in record.getMessage()]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def upstream(server: FakeServer, name: str = "http", **options: Any) -> Http:
    worker = Http(server.url, name=name, backoff=0.001, ping_every=0.05, **options)
    worker.allow_unreachable = True
    return worker


async def until(http: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    async with asyncio.timeout(60):
        while (answer := await http.get(path)).status_code != status:
            await asyncio.sleep(0.01)
        return answer


def value_of(text: str, metric: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{metric} ")]
    return float(line.split()[-1])


async def test_an_upstream_that_is_away_makes_the_server_not_ready_and_requests_fail_after_the_wait(
    serve: Any, warnings: Any
) -> None:
    async with FakeServer() as server:
        worker = upstream(server)
        config = {"worker_wait": 0.3}
        async with serve(workers=[worker], config=config) as served, httpx.AsyncClient(base_url=served.url) as http:
            assert (await http.get("/readyz")).text == "ready"
            assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 200
            await server.shut()
            not_ready = await until(http, "/readyz", 503)
            assert not_ready.text == "not ready: no upstream answers" and int(not_ready.headers["retry-after"]) > 0
            assert (await http.get("/health")).status_code == 503 and (await http.get("/healthz")).status_code == 200
            failed = await http.post("/v1/chat/completions", json=ASK, timeout=60)
            assert failed.status_code == 503 and int(failed.headers["retry-after"]) > 0, failed.text
            assert failed.json()["error"]["type"] == "server_error" and "127.0.0.1" not in failed.text
            metrics = (await http.get("/metrics")).text
            assert value_of(metrics, 'plait_worker_up{worker="http"}') == 0 and value_of(metrics, "plait_ready") == 0
            await server.open()
            await until(http, "/readyz", 200)
            assert (await http.post("/v1/chat/completions", json=ASK, timeout=60)).status_code == 200
            assert value_of((await http.get("/metrics")).text, 'plait_worker_up{worker="http"}') == 1
    assert len(warnings("upstream http does not answer")) == 1 and len(warnings("upstream http answers again")) == 1


async def test_requests_wait_for_an_upstream_that_comes_back_in_time(serve: Any) -> None:
    async with FakeServer() as server:
        config = {"worker_wait": 60.0}
        async with (
            serve(workers=[upstream(server)], config=config) as served,
            httpx.AsyncClient(base_url=served.url) as http,
        ):
            await server.shut()
            await until(http, "/readyz", 503)
            asked = asyncio.ensure_future(http.post("/v1/chat/completions", json=ASK, timeout=60))
            await asyncio.sleep(0.2)
            assert not asked.done()
            await server.open()
            assert (await asked).status_code == 200


async def test_a_server_starts_with_the_upstreams_that_answer_and_takes_the_others_in_later(
    serve: Any, warnings: Any
) -> None:
    late = FakeServer(port=free_port(), models=["late-model"])
    async with FakeServer() as server:
        workers = [upstream(server), upstream(late, "late")]
        async with serve(workers=workers) as served, httpx.AsyncClient(base_url=served.url) as http:
            assert (await http.get("/readyz")).status_code == 200
            assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 200
            metrics = (await http.get("/metrics")).text
            assert value_of(metrics, 'plait_worker_up{worker="late"}') == 0
            body = {**ASK, "model": "late-model"}
            unknown = await http.post("/v1/chat/completions", json=body)
            assert unknown.status_code == 503 and int(unknown.headers["retry-after"]) > 0, unknown.text
            await late.open()
            async with asyncio.timeout(60):
                while (await http.post("/v1/chat/completions", json=body)).status_code != 200:
                    await asyncio.sleep(0.01)
            assert (await http.post("/v1/chat/completions", json={**body, "model": "typo"})).status_code == 404
            assert value_of((await http.get("/metrics")).text, 'plait_worker_up{worker="late"}') == 1
        await late.shut()
    assert len(warnings("late does not answer yet")) == 1


async def test_without_allow_unreachable_a_dead_server_ends_the_start() -> None:
    worker = Http(f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(EngineError, match="cannot be reached"):
        await worker.start()


def test_require_all_is_the_old_way() -> None:
    dead = Upstream(base_url="http://127.0.0.1:9/v1")
    for require_all in (False, True):
        (worker,) = workers_of(Config(), Settings(upstreams=(dead,), require_all=require_all))
        assert worker.allow_unreachable is not require_all


async def test_an_upstream_without_salts_is_the_operators_problem(serve: Any, warnings: Any) -> None:
    async with FakeServer(ids=False) as server:
        for salted in (True, False):
            tenants = (TENANTS[0].model_copy(update={"salted": salted}),)
            async with (
                serve(workers=[upstream(server)], tenants=tenants) as served,
                httpx.AsyncClient(base_url=served.url, headers=HEADERS) as http,
            ):
                answer = await http.post("/v1/chat/completions", json=ASK)
                ready = await http.get("/readyz")
                if salted:
                    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0, answer.text
                    assert "salt" not in answer.text and ready.status_code == 503
                else:
                    assert answer.status_code == 200 and ready.status_code == 200
    assert len(warnings("salted = false")) == 1


async def test_a_store_that_cannot_be_written_is_503_and_not_ready_while_it_lasts(
    serve: Any, tmp_path: Path, monkeypatch: Any, warnings: Any
) -> None:
    full = [False]
    monkeypatch.setattr(health, "PROBE_INTERVAL_S", 0.02)
    real, writable = documents.Documents.put, health.is_writable

    def put(*given: Any) -> None:
        if full[0]:
            raise ConfigError(f"{tmp_path}/server.documents cannot be used: disk is full; check space")
        real(*given)

    monkeypatch.setattr(documents.Documents, "put", put)
    monkeypatch.setattr(health, "is_writable", lambda store: not full[0] and writable(store))
    body = {"model": "q", "input": "x", "background": True}
    async with (
        serve("fine", journal=str(tmp_path / "runs.db"), tenants=TENANTS) as served,
        httpx.AsyncClient(base_url=served.url, headers=HEADERS) as http,
    ):
        assert (await http.post("/v1/responses", json=body)).status_code == 200
        full[0] = True
        for _ in range(3):
            failed = await http.post("/v1/responses", json=body)
            assert failed.status_code == 503 and int(failed.headers["retry-after"]) > 0, failed.text
            assert str(tmp_path) not in failed.text and failed.json()["error"]["code"] == "server_unavailable"
        assert (await until(http, "/readyz", 503)).text == "not ready: requests cannot be stored"
        full[0] = False
        await until(http, "/readyz", 200)
        assert (await http.post("/v1/responses", json=body)).status_code == 200
    assert len(warnings("requests fail and the server is not ready")) == 1
    assert len(warnings("can be stored again")) == 1


def test_a_run_that_another_process_took_over_is_the_operators_problem() -> None:
    """A server that is cut off from its store loses its runs; that was a 409 with the store's address."""
    failure = of_error(RunTaken("postgresql://db:5432/plait#7: this process had said nothing for too long"))
    assert failure.status == 503 and int(failure.headers["retry-after"]) > 0
    assert "db" not in failure.message


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
async def test_a_stream_whose_journal_breaks_ends_with_a_reason(
    serve: Any, tmp_path: Path, monkeypatch: Any, path: str
) -> None:
    """It was a broken connection and a traceback in the log."""
    real, events = sqlite.SqliteFile.write, [0]

    def write(self: Any, batch: Any, sync: bool) -> None:
        events[0] += len(batch.events)
        if events[0] > 4:
            raise ConfigError(f"{tmp_path}/runs.db cannot be used: disk is full; check space")
        real(self, batch, sync)

    monkeypatch.setattr(sqlite.SqliteFile, "write", write)
    asked = {"completions": {"prompt": "x"}, "responses": {"input": "x"}}.get(path, {"messages": ASK["messages"]})
    body = {"model": "q", "stream": True, **asked, **({"max_tokens": 400} if path == "messages" else {})}
    reply = Reply(text="word " * 300, tokens_per_second=100)
    async with (
        serve(reply, journal=str(tmp_path / "runs.db")) as served,
        httpx.AsyncClient(base_url=served.url, timeout=30) as http,
    ):
        said = await http.post(f"/v1/{path}", json=body)
    assert said.status_code == 200 and "send the request again in" in said.text, said.text[-500:]
    assert "word" in said.text and str(tmp_path) not in said.text and "[DONE]" not in said.text.rpartition("again")[2]


async def test_an_error_of_settings_alone_does_not_take_the_server_out_of_service(
    serve: Any, tmp_path: Path, monkeypatch: Any, warnings: Any
) -> None:
    def put(*_: Any) -> None:
        raise ConfigError("a setting makes no sense")

    monkeypatch.setattr(documents.Documents, "put", put)
    async with (
        serve("fine", journal=str(tmp_path / "runs.db")) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        for _ in range(5):
            failed = await http.post("/v1/responses", json={"model": "q", "input": "x", "background": True})
            assert failed.status_code == 503 and "setting" not in failed.text
            assert (await http.get("/readyz")).status_code == 200
        async with asyncio.timeout(30):
            while not warnings("a setting makes no sense"):
                await asyncio.sleep(0.01)
    assert len(warnings("a request has failed: a setting makes no sense")) == 1


async def test_attempts_and_errors_of_upstreams_are_counted(serve: Any) -> None:
    async with FakeServer() as server:
        worker = upstream(server, retries=0)
        async with serve(workers=[worker]) as served, httpx.AsyncClient(base_url=served.url) as http:
            server.faults.append(Fault(status=500, message="CUDA out of memory"))
            for status in (500, 200):
                assert (await http.post("/v1/chat/completions", json=ASK, timeout=60)).status_code == status
            metrics = (await http.get("/metrics")).text
    assert value_of(metrics, 'plait_attempts_total{end="failed"}') == 1
    assert value_of(metrics, 'plait_attempts_total{end="succeeded"}') == 1
    assert value_of(metrics, 'plait_upstream_errors_total{kind="EngineError",worker="http"}') == 1


@pytest.mark.parametrize(
    ("status", "options", "expected"),
    [
        (429, {}, 503),
        (503, {}, 503),
        (500, {}, 500),
        (401, {}, 500),
        (429, {"plait": {"budget": {"seconds": 0.5}}}, 500),
        (429, {"plait": {"planner": "sample:n=3"}}, 503),
        (422, {}, 400),
    ],
)
async def test_the_log_has_the_cause_of_an_upstreams_failure_and_the_client_no_address(
    status: int, options: Any, expected: int, serve: Any, warnings: Any
) -> None:
    async with FakeServer() as server:
        limits = {"retries": 50 if options.get("plait", {}).get("budget") else 0}
        async with (
            serve(workers=[upstream(server, **limits)]) as served,
            httpx.AsyncClient(base_url=served.url) as http,
        ):
            server.faults.extend(Fault(status=status, message=f"quota at {server.url}/inner") for _ in range(60))
            for _ in range(2):
                failed = await http.post("/v1/chat/completions", json=ASK | options, timeout=60)
                assert failed.status_code == expected, failed.text
                assert "127.0.0.1" not in failed.text and "localhost" not in failed.text, failed.text
                assert ("retry-after" in failed.headers) == (expected == 503)
    assert len(warnings("a request to an upstream has failed")) == int(expected != 400)


async def test_a_retried_stream_does_not_repeat_its_text(serve: Any) -> None:
    """The client has text of an attempt that failed: the rest of the next attempt comes if it continues that text."""
    first = "alpha beta gamma delta"
    for second, error in ((first, False), ("something else", True)):
        async with FakeServer(ids=False) as server:
            async with serve(workers=[upstream(server, retries=0)]) as served, httpx.AsyncClient() as http:
                answers = iter([first, second])
                server.reply = lambda _, answers=answers: next(answers)
                server.faults.append(Fault(after=2))
                body = {**ASK, "stream": True}
                streamed = await http.post(f"{served.base}/chat/completions", json=body, timeout=60)
        text = "".join(part.split('"')[0] for part in streamed.text.split('"content":"')[1:])
        assert text.count("alpha") == 1 and ("answer_begun_anew" in streamed.text) == error, streamed.text
        assert error or text.strip() == second
