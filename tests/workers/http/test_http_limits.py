"""What the HTTP worker takes of a server that keeps no limit: bytes, tokens, time, counts, addresses, the key."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config
from plait.core.errors import ConfigError
from plait.core.interfaces import Progress
from plait.core.ops import Tokens
from plait.core.result import Result
from plait.workers.http import Http
from plait.workers.http.options import HttpOptions

from .fake_server import FakeServer, Fault
from .http_kit import SECRET, ask, at_a_crawl, eventually, fails, items, job, serving

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
Wild = Callable[[asyncio.StreamWriter, dict[str, Any]], Awaitable[None]]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)


def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Wild:
    """An answer that has no end."""

    async def write(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return write


def once(*pieces: bytes) -> Wild:
    async def write(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return write


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "finish_reason": None, **choice}]}).encode() + b"\n\n"


def config(server: FakeServer) -> Config:
    return Config(worker="http", base_url=server.url, journal="off")


# --- bytes ---


@pytest.mark.parametrize(
    ("wild", "said"),
    [
        (endless(STREAM, b"data: " + b"x" * 65536), "a line of more than 1,000,000 bytes: raise `line_bytes`"),
        (endless(JSON, b'{"a": 1, ' + b" " * 65536), "an answer of more than 3,000,000 bytes: raise `answer_bytes`"),
        (endless(STREAM, b": nothing\n\n" * 6000), "an answer of more than 3,000,000 bytes: raise `answer_bytes`"),
    ],
    ids=["line", "json", "comments"],
)
async def test_an_answer_without_end_is_cut_off(wild: Wild, said: str) -> None:
    async with serving(line_bytes=1_000_000, answer_bytes=3_000_000) as (server, worker):
        server.wild = wild
        failure = await asyncio.wait_for(fails(worker), 300)
        assert said in failure.message and not failure.retryable
        assert len(server.asked()) == 1
        await eventually(lambda: server.running == 0)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_a_bomb_is_not_unpacked(coding: bytes) -> None:
    head = JSON[:-2] + b"content-encoding: " + coding + b"\r\n\r\n"
    zeros = gzip.compress(b" " * (1 << 28))
    async with serving(answer_bytes=1_000_000) as (server, worker):
        server.wild = once(head, zeros if coding == b"gzip" else b"\x78\x9c" + zeros[10:-8])
        tracemalloc.start()
        failure = await fails(worker)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "more than 1,000,000 bytes" in failure.message and most < 1 << 26


async def test_an_encoding_that_was_not_asked_for_is_refused() -> None:
    async with serving() as (server, worker):
        server.wild = once(JSON[:-2] + b"content-encoding: br\r\n\r\n", b"anything")
        assert "encoding 'br', which was not asked for" in (await fails(worker)).message


async def test_an_error_without_end_is_read_as_far_as_needed() -> None:
    async with serving() as (server, worker):
        server.wild = endless(b"HTTP/1.1 400 Bad\r\ncontent-type: text/plain\r\n\r\n", b"no " * 30_000)
        failure = await asyncio.wait_for(fails(worker), 300)
        assert "rejected the request (400): no no" in failure.message and len(failure.message) < 700


async def test_line_ends_of_unicode_are_text() -> None:
    text = "one\u2028two\u2029three\u0085four"
    said = b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}, ensure_ascii=False).encode()
    async with serving(FakeServer(ids=False)) as (server, worker):
        server.wild = once(STREAM, said[:20], said[20:] + b"\r\n\r\n", b"data: [DONE]\n\n")
        assert (await ask(worker)).value == text


async def test_half_a_character_becomes_text_that_a_file_can_hold() -> None:
    async with serving(FakeServer(ids=False)) as (server, worker):
        server.wild = once(STREAM, event(text="a\ud83d"), event(text="b", finish_reason="stop"), b"data: [DONE]\n\n")
        assert (await ask(worker)).value == "a\ufffdb"


# --- time ---


async def test_bytes_without_tokens_do_not_count_as_news() -> None:
    async with serving(timeout=0.4) as (server, worker):
        begun = endless(STREAM + event(text="one"), b":\n", 0.05)
        server.wild = begun
        failure = await asyncio.wait_for(fails(worker), 300)
        assert "sent no token for 0.4 s within an answer" in failure.message and failure.retryable
        assert failure.usage.completion == 1


async def test_a_stream_of_tokens_has_an_end_too() -> None:
    async with serving(timeout=30, total_timeout=0.4) as (server, worker):
        server.wild = endless(STREAM, event(text="one "), 0.05)
        failure = await asyncio.wait_for(fails(worker), 300)
        assert "took more than 0.4 s: raise `total_timeout`" in failure.message
        assert 0 < failure.usage.completion < 30


async def test_a_server_that_hangs_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("plait.workers.http.request_sender.SLOW_RESPONSE_S", 0.05)
    caplog.set_level(logging.WARNING, logger="plait.http")
    async with serving(first_timeout=0.3, stream_above_tokens=16) as (server, worker):
        server.delay = 30.0
        await fails(worker, max_tokens=16)
        ours = [record for record in caplog.records if record.name.startswith("plait")]
        assert not ours, "nothing can be seen of an answer in one piece"
        await fails(worker, max_tokens=17)
        await fails(worker, max_tokens=17, attempt=2)
    assert [record.levelname for record in caplog.records if "has not begun to answer" in record.getMessage()] == [
        "WARNING"
    ]
    assert HttpOptions(base_url="x").first_timeout < 600, "there is a default"


# --- tokens ---


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_server_that_ignores_max_tokens_is_cut(ids: bool, stream: bool) -> None:
    async with serving(FakeServer(ids=ids)) as (server, worker):
        token = {"text": " w", "token_ids": [1], "prompt_token_ids": [1]} if ids else {"text": " w"}
        server.wild = endless(STREAM, event(**token))
        *news, end = await asyncio.wait_for(items(worker, job(max_tokens=100, stream=stream)), 300)
        assert isinstance(end, Result)
        assert (end.value, end.finish) == (" w" * 100, "length")
        assert 100 <= end.usage.completion <= 101
        assert len(end.token_ids) == (100 if ids else 0)
        assert "".join(each.text for each in news if isinstance(each, Progress)) == (end.value if stream else "")
        await eventually(lambda: server.running == 0)


async def test_a_whole_answer_that_is_too_long_is_charged_and_the_next_is_streamed() -> None:
    async with serving(FakeServer(ids=False), stream_above_tokens=512) as (server, worker):
        said = {"choices": [{"text": "w " * 5000, "finish_reason": "stop"}], "usage": {"completion_tokens": 5000}}
        server.wild = once(JSON + json.dumps(said).encode())
        end = await ask(worker, max_tokens=100)
        assert end.finish == "length" and len(end.text) <= 4 * 100 and end.usage.completion == 5000
        server.wild = None
        await ask(worker, max_tokens=100)
        assert [body["stream"] for body in server.asked()] == [False, True]


async def test_a_server_that_is_found_to_ignore_max_tokens_is_never_asked_for_whole_answers() -> None:
    server = FakeServer(ids=False)
    server.wild = endless(STREAM, event(text=" w"))
    async with serving(server, stream_above_tokens=512) as (_, worker):
        end = await ask(worker, max_tokens=10)
        assert end.value == " w" * 10
        assert [body["stream"] for body in server.asked()] == [True]


async def test_a_run_stays_within_its_budget_of_tokens() -> None:
    server = FakeServer()
    server.wild = endless(STREAM, event(text=" w", token_ids=[1], prompt_token_ids=[1]))
    async with server, AsyncOrchestrator(config=config(server)) as plait:
        answer = await asyncio.wait_for(plait.run("go on", tokens=100), 300)
    assert 100 <= answer.usage.completion <= 101


# --- counts ---


@pytest.mark.parametrize("said", [-5, 10**30, 1e300, "many", None, True, {"a": 1}])
@pytest.mark.parametrize("whole", [0, 512])
async def test_counts_that_cannot_be_true(said: Any, whole: int) -> None:
    usage = {"prompt_tokens": said, "completion_tokens": said, "prompt_tokens_details": {"cached_tokens": said}}
    last = {"choices": [{"text": " a b", "finish_reason": "stop"}], "usage": usage}
    async with serving(FakeServer(ids=False), stream_above_tokens=whole) as (server, worker):
        body = json.dumps(last).encode()
        server.wild = once(JSON + body if whole else STREAM + b"data: " + body + b"\n\ndata: [DONE]\n\n")
        used = (await ask(worker, max_tokens=20)).usage
        assert 0 <= used.prompt <= 2 and 0 <= used.cached <= used.prompt and 1 <= used.completion <= 20


async def test_every_failure_says_what_it_used() -> None:
    """A stream breaks after 9 of 10 tokens: the worker does not ask again, and the run counts all that it took."""
    text = " ".join("abcdefghij")
    async with serving(FakeServer(ids=False, reply=lambda prompt: text)) as (server, worker):
        server.faults.append(Fault(after=9))
        failure = await fails(worker, max_tokens=10)
        assert failure.retryable and failure.usage.completion == 9
        assert len(server.asked()) == 1


async def test_a_budget_counts_streams_that_break() -> None:
    server = FakeServer(ids=False, reply=lambda prompt: " ".join(["w"] * 100))
    async with server, AsyncOrchestrator(config=config(server)) as plait:
        await plait.run("go on", planner="single:answer.max_tokens=700")  # its server counts a token a piece
        server.requests.clear()
        server.faults += [Fault(after=60)] * 20
        answer = await plait.run("go on", planner="single:answer.max_tokens=100", tokens=100)
    assert answer.status != "done" and 60 <= answer.usage.completion <= 100
    first, second = server.asked()
    assert first["max_tokens"] == 100
    assert 10 < second["max_tokens"] < 40, "what was left, less what the server may have made on the way"


async def test_a_proxy_that_cuts_whole_answers_is_asked_a_few_times_and_all_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_a_crawl(monkeypatch)
    server = FakeServer(ids=False)
    async with server, AsyncOrchestrator(config=config(server)) as plait:
        await plait.start()
        server.requests.clear()
        server.faults += [Fault(after=1)] * 30
        answer = await plait.run("go on", planner="sample:n=1,answer.max_tokens=100")
    assert answer.status == "failed"
    assert len(server.asked()) <= 6
    assert answer.usage.completion >= len(server.asked())
    assert answer.usage.completion + answer.usage.uncounted == 100 * len(server.asked())


async def test_refusals_are_tried_again_by_the_worker_alone() -> None:
    server = FakeServer(ids=False)
    async with server, AsyncOrchestrator(config=config(server)) as plait:
        await plait.start()
        server.requests.clear()
        server.faults += [Fault(503, {"retry-after": "0"})] * 30
        answer = await plait.run("go on", planner="single:answer.max_tokens=100")
    assert answer.status == "failed" and answer.usage.completion == 0
    assert len(server.asked()) == 6


async def test_a_long_retry_after_is_one_request() -> None:
    server = FakeServer()
    async with server, AsyncOrchestrator(config=config(server)) as plait:
        await plait.start()
        server.requests.clear()
        server.faults += [Fault(429, {"retry-after": "7200"})] * 10
        answer = await plait.run("go on")
    assert answer.failure is not None and "it asks to wait for 7200 s" in answer.failure.message
    assert len(server.asked()) == 1


async def test_retry_after_holds_for_the_requests_beside_it() -> None:
    async with serving() as (server, worker):
        server.faults.append(Fault(429, {"retry-after": "0.4"}))
        first = asyncio.create_task(items(worker, job()))
        await eventually(lambda: worker.counts["overloaded"] == 1)
        await ask(worker, attempt=2)
        await first
        refused, *later = server.times
        assert all(each - refused >= 0.4 for each in later)


@pytest.mark.parametrize("body", [b'data: {"choices": []}\n\ndata: [DONE]\n\n', b'data: {"choices": []}\n\n'])
async def test_a_server_without_choices_is_told_of_at_once(body: bytes) -> None:
    async with serving() as (server, worker):
        server.wild = once(STREAM, body)
        failure = await asyncio.wait_for(fails(worker), 300)
        assert "`choices`" in failure.message and not failure.retryable
        assert len(server.asked()) == 1


async def test_an_answer_given_up_unseen_is_estimated_by_the_pace_of_the_others() -> None:
    words = [10]
    async with serving(FakeServer(delay=0.02, reply=lambda prompt: "w " * words[-1]), stream_above_tokens=512) as (
        server,
        worker,
    ):
        for attempt in range(3):
            await ask(worker, max_tokens=10, attempt=attempt)
        assert worker._sender is not None and 10 < worker._sender.throughput.tokens_per_s < 52
        words.append(400)
        running = asyncio.create_task(items(worker, job(max_tokens=400, attempt=9)))
        await eventually(lambda: server.running == 1)
        await asyncio.sleep(0.5)
        await worker.cancel(9)
        (end,) = await running
        assert isinstance(end, Result) and 5 < end.usage.completion < 200
        assert end.usage.completion + end.usage.uncounted == 400


# --- addresses and the key ---


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_prompt_is_not_sent_on_to_another_address(status: int) -> None:
    async with FakeServer() as other, serving() as (server, worker):
        other.requests.clear()
        head = f"HTTP/1.1 {status} X\r\nlocation: {other.url}/completions\r\ncontent-length: 0\r\n\r\n"
        server.wild = once(head.encode())
        failure = await fails(worker)
        assert "give that one as base_url if it is the right one" in failure.message and not failure.retryable
        assert f"http://127.0.0.1:{other.port}" in failure.message
        assert other.requests == []


async def test_a_redirect_at_the_same_address_is_followed() -> None:
    async with serving() as (server, worker):
        place = f"{server.url}/completions"
        server.faults.append(Fault(307, {"location": place}))
        assert (await ask(worker)).value == " alpha beta gamma delta"
        assert len(server.asked()) == 2
        server.faults += [Fault(307, {"location": place})] * 10
        assert "redirects in circles" in (await fails(worker)).message


@pytest.mark.parametrize("whole", [0, 512])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_key_that_the_server_repeats_is_not_in_the_result(
    whole: int, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    half = len(SECRET) // 2
    pieces = ["your key ", SECRET[:half], SECRET[half:] + " is", " fine", ""]
    async with serving(stream_above_tokens=whole) as (server, worker):
        events = [event(text=each, token_ids=[n + 1], prompt_token_ids=[1]) for n, each in enumerate(pieces[:-1])]
        last = event(text="", token_ids=[0], finish_reason="stop")
        whole_body = {"choices": [{"text": "".join(pieces), "finish_reason": "stop"}]}
        if whole and not stream:
            server.wild = once(JSON + json.dumps(whole_body).encode())
        else:
            server.wild = once(STREAM, *events, last, b"data: [DONE]\n\n")
        *news, end = await items(worker, job(stream=stream))
        assert isinstance(end, Result) and end.value == "your key *** is fine"
        assert end.token_ids == (), "the ids would say it again"
        assert "".join(each.text for each in news if isinstance(each, Progress)) == (end.value if stream else "")


# --- a server that comes back ---


async def test_a_server_that_comes_back_with_another_model_gets_no_ids() -> None:
    async with serving(ping_every=0.05) as (server, worker):
        health = worker.health()
        assert await anext(health) is True
        before = await ask(worker)
        assert before.token_ids and "fake-model" in worker.identity
        await server.shut()
        assert await asyncio.wait_for(anext(health), 300) is False
        server.root = "/models/another"
        await server.open()
        assert await asyncio.wait_for(anext(health), 300) is True
        assert "/models/another" in worker.identity
        after = await ask(worker, attempt=2)
        assert after.value == before.value and after.token_ids == ()
        failure = await fails(worker, (Tokens(ids=before.prompt_ids),), attempt=3)
        assert "takes no token ids" in failure.message
        await health.aclose()


async def test_a_server_that_comes_back_as_it_was_goes_on_with_ids() -> None:
    async with serving(ping_every=0.05) as (server, worker):
        health = worker.health()
        assert await anext(health) is True
        await server.shut()
        assert await asyncio.wait_for(anext(health), 300) is False
        await server.open()
        assert await asyncio.wait_for(anext(health), 300) is True
        assert (await ask(worker)).token_ids
        await health.aclose()


async def test_who_answers_is_known_after_the_start() -> None:
    async with FakeServer(models=["a", "b"], root="/models/x") as one, FakeServer(models=["a", "b"]) as two:
        said: list[str] = []
        for server, model in ((one, None), (one, "b"), (two, None)):
            worker = Http(server.url, model=model)
            assert worker.identity == ""
            await worker.start()
            said.append(worker.identity)
            await worker.close()
    assert len(set(said)) == 3


# --- defaults ---


async def test_by_default_a_server_gets_as_many_requests_as_there_are() -> None:
    """Thirty-two at a time halved the rate of a server that takes 256."""
    async with serving() as (server, worker):
        server.delay = 60.0
        waiting = [asyncio.create_task(items(worker, job(attempt=each))) for each in range(150)]
        await eventually(lambda: server.running == 150)
        for attempt in range(150):
            await worker.cancel(attempt)
        await asyncio.gather(*waiting)


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="there is no option 'slot'; did you mean 'slots'"):
        Http("http://host/v1", slot=3)


async def test_the_result_cache_tells_one_server_from_another(tmp_path: Path) -> None:
    """Without `model` in the configuration each server answers with its own."""
    said: list[str] = []
    for text in ("alpha", "beta"):
        async with FakeServer(reply=lambda prompt, text=text: text) as server:
            given = config(server).model_copy(update={"cache": tmp_path / "results.sqlite"})
            async with AsyncOrchestrator(config=given) as plait:
                said.append((await plait.run("who are you?")).text.strip())
    assert said == ["alpha", "beta"]
