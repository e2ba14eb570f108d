"""A server among others: ids of requests, traces that join, fields that gateways account by, streams that stay open."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from plait import tool
from plait.core.tools.calls import call_text
from plait.workers.http import Http
from plait.workers.scripted import Reply
from plait_server import http as server_http
from tests.conformance.__main__ import upstream

ASK = {"model": "q", "messages": [{"role": "user", "content": "hi"}]}


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=60)


async def test_the_id_of_a_request_is_echoed_and_logged(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plait.serve")
    async with serve() as served, client() as http:
        url = f"{served.url}/v1/chat/completions"
        for body in (ASK, {**ASK, "stream": True}, {"model": "plait/nobody"}):
            answer = await http.post(url, json=body, headers={"x-request-id": "from-a-gateway-1"})
            assert answer.headers.get_list("x-request-id") == ["from-a-gateway-1"]
        odd = await http.post(url, json=ASK, headers={"x-request-id": "a b"})
        assert odd.headers["x-request-id"] == odd.json()["plait"]["run"], "no id that a log cannot hold"
    logged = [getattr(record, "request", None) for record in caplog.records if record.getMessage().startswith("POST")]
    assert logged.count("from-a-gateway-1") == 3


@pytest.mark.parametrize("named", [False, True])
async def test_the_fields_that_gateways_account_by_are_passed_on_by_a_setting(serve: Any, named: bool) -> None:
    with upstream() as base:
        settings = {"extra_body": ("user", "prompt_cache_key")} if named else {}
        async with serve(workers=[Http(base_url=base)], **settings) as served, client() as http:
            body = {**ASK, "user": "ann", "prompt_cache_key": "k", "safety_identifier": "s"}
            answer = await http.post(f"{served.url}/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            sent = (await http.get(f"{base[:-3]}/requests")).json()[-1]
    assert (sent.get("user"), sent.get("prompt_cache_key")) == (("ann", "k") if named else (None, None))
    ignored = answer.headers["x-plait-ignored"]
    assert ignored == ("safety_identifier" if named else "user, safety_identifier, prompt_cache_key")


@tool(approve=True)
def book(city: str) -> str:
    """Book a city."""
    return "booked"


async def test_a_silent_stream_sends_comments(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_http, "PING_S", 0.05)
    replies = (Reply(when="booked", text="It is done."), Reply(text=call_text("book", '{"city": "Rome"}')))
    async with serve(*replies, tools=[book], planners=["react"]) as served, client() as http:
        body = {**ASK, "model": "plait/react@scripted", "stream": True}
        asking = asyncio.ensure_future(http.post(f"{served.url}/v1/chat/completions", json=body))
        while not (asked := [each for live in served.service.live.values() for each in live.handle.questions]):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        (live,) = served.service.live.values()
        live.handle.answer(asked[0].id, "yes")
        blocks = (await asking).text.split("\n\n")
    assert blocks.count(": ping") >= 2 and blocks[-2] == "data: [DONE]"
    assert all(block in ("", ": ping") or block.startswith("data: ") for block in blocks)


async def test_the_callers_span_is_the_parent(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with serve(config={"telemetry": True}) as served, client() as http:
        for headers in ({"traceparent": f"00-{trace}-{parent}-01"}, {}):
            answer = await http.post(f"{served.url}/v1/chat/completions", json=ASK, headers=headers)
            assert answer.status_code == 200, answer.text
    runs = [span for span in exporter.get_finished_spans() if span.name.startswith("invoke_workflow")]
    joined, alone = (span for span in exporter.get_finished_spans() if span in runs)
    assert (f"{joined.context.trace_id:032x}", f"{joined.parent.span_id:016x}") == (trace, parent)
    assert alone.parent is None and alone.context.trace_id != joined.context.trace_id
