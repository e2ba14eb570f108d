"""The HTTP worker and a server that fails: what is tried again, what is said, and what never leaves (the key)."""

from __future__ import annotations

import asyncio
import logging
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from plait.core.errors import ConfigError, EngineError
from plait.core.result import Failure, Result
from plait.core.sampling import StructuredOutput
from plait.workers.http import Http

from .fake_server import FakeServer, Fault
from .http_kit import SECRET, ask, eventually, fails, items, job, serving


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)


# --- trouble ---


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_passing_troubles_are_tried_again(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, logger="plait.http")  # whatever a command of another test set
    async with serving() as (server, worker):
        server.faults += [Fault(status), Fault(status)]
        assert (await ask(worker)).value == " alpha beta gamma delta"
        assert len(server.asked()) == 3
        assert worker.stats()["retries"] == 2
        told = [record for record in caplog.records if "httpx" not in record.name]
        assert [record.name for record in told] == ["plait.http"] * 2 and str(status) in told[0].getMessage()


async def test_a_trouble_that_does_not_pass() -> None:
    async with serving(retries=2) as (server, worker):
        server.faults += [Fault(500, message="out of luck")] * 10
        failure = await fails(worker)
        assert (failure.kind, failure.retryable, failure.lost) == ("EngineError", False, False), (
            "the worker has tried it"
        )
        assert "500" in failure.message and "out of luck" in failure.message
        assert len(server.asked()) == 3


@pytest.mark.parametrize("as_date", [False, True])
async def test_retry_after_is_honoured(as_date: bool) -> None:
    async with serving() as (server, worker):
        # a date has whole seconds, so it may name a time up to one second earlier
        value = format_datetime(datetime.now(UTC) + timedelta(seconds=2.0), usegmt=True) if as_date else "0.4"
        server.faults.append(Fault(429, {"retry-after": value}))
        await ask(worker)
        first, second = server.times
        assert second - first >= (0.9 if as_date else 0.4)


async def test_a_wait_longer_than_the_time_left_is_not_begun() -> None:
    async with serving() as (server, worker):
        server.faults.append(Fault(429, {"retry-after": "30"}))
        failure = await asyncio.wait_for(fails(worker, seconds=25.0), 25.0)
        assert not failure.retryable and "429" in failure.message and "asks to wait for 30 s" in failure.message
        assert len(server.asked()) == 1


@pytest.mark.parametrize("status", [400, 422])
async def test_a_rejected_request_is_not_tried_again(status: int) -> None:
    async with serving() as (server, worker):
        server.faults.append(Fault(status, message="temperature must be lower"))
        failure = await fails(worker)
        assert "temperature must be lower" in failure.message and not failure.retryable
        assert len(server.asked()) == 1


async def test_a_connection_lost_before_the_first_token_is_tried_again() -> None:
    async with serving() as (server, worker):
        server.faults.append(Fault(send="\n"))
        assert (await ask(worker)).value == " alpha beta gamma delta"
        assert len(server.asked()) == 2


BROKEN = pytest.mark.parametrize("fault", [Fault(after=2), Fault(after=2, send="\n")], ids=["dropped", "ended"])


def going_on(prompt: str) -> str:
    """What is left of the reply after what the prompt has of it already."""
    words = "alpha beta gamma delta".split()
    return " ".join(words[sum(word in words for word in prompt.split()) :])


@BROKEN
@pytest.mark.parametrize("stream", [False, True])
async def test_a_truncated_stream(fault: Fault, stream: bool) -> None:
    async with serving(FakeServer(delay=0.01, ids=False)) as (server, worker):
        server.faults.append(fault)
        *news, last = await items(worker, job(stream=stream))
        assert isinstance(last, Failure) and last.retryable and not last.lost
        assert "answer" in last.message and server.url in last.message
        assert len(server.asked()) == 1, "what a reader has seen is not said again"
        assert bool(news) == stream


@BROKEN
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
async def test_a_truncated_stream_goes_on_from_its_ids(fault: Fault, stream: bool, chat: bool) -> None:
    async with serving(FakeServer(delay=0.01, reply=going_on, cached=1)) as (server, worker):
        whole = await ask(worker, logprobs=4, max_tokens=9)
        server.requests.clear()
        server.faults += [fault, Fault(503)]
        *news, last = await items(worker, job(stream=stream, chat=chat, logprobs=4, max_tokens=9))
        assert isinstance(last, Result)
        assert (last.value, last.prompt_ids, last.token_ids) == (whole.value, whole.prompt_ids, whole.token_ids)
        assert last.usage.completion == whole.usage.completion, "as if it had not been interrupted"
        assert (last.usage.prompt, last.usage.cached) == (2 + 4, 1), "the second request read what the first generated"
        begun, refused, further = server.asked()
        assert further["prompt"] == refused["prompt"] == server.encode("one two alpha beta"), "also what was a chat"
        assert (begun["max_tokens"], further["max_tokens"]) == (9, 7)
        assert "".join(each.text for each in news) == (last.value if stream else "")
        assert sum(each.tokens for each in news) == (5 if stream else 0)
        assert last.signals is not None and last.signals.k == 4


async def test_a_stream_that_is_truncated_again_is_the_machines_matter() -> None:
    async with serving(FakeServer(reply=going_on)) as (server, worker):
        server.faults += [Fault(after=1), Fault(after=1)]
        failure = await fails(worker)
        assert failure.retryable and len(server.asked()) == 2


@pytest.mark.parametrize(
    "sampling", [{"stop": ("beta gamma",)}, {"structured": StructuredOutput(kind="regex", spec="a")}]
)
async def test_what_cannot_go_on_from_its_ids_is_not_tried_to(sampling: dict[str, Any]) -> None:
    async with serving(FakeServer(reply=going_on, forms=("structured_outputs",))) as (server, worker):
        if "structured" in sampling:
            await ask(worker, **sampling)
            server.requests.clear()
        server.faults.append(Fault(after=1 if "structured" in sampling else 2))
        failure = await fails(worker, **sampling)
        assert (
            failure.retryable and "broke an answer off" in failure.message
        ) or "closed the connection" in failure.message
        assert len(server.asked()) == 1


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ("data: {oops\n\n", "invalid JSON"),
        ("data: [1]\n\n", "not a JSON object"),
        ('data: {"id": 1}\n\n', "no `choices`"),
        ('data: {"choices": [3]}\n\n', "no objects"),
        ('data: {"choices": [{"text": 3}]}\n\n', "text is a int"),
        ('data: {"error": {"message": "CUDA went away", "code": 400}}\n\n', "CUDA went away"),
        ('data: {"choices": [{"text": "", "finish_reason": "content_filter"}]}\n\n', "content filter"),
    ],
)
async def test_nonsense_in_a_stream(sent: str, said: str) -> None:
    async with serving() as (server, worker):
        server.faults.append(Fault(after=1, send=sent))
        failure = await fails(worker)
        assert said in failure.message and not failure.retryable and not failure.lost
        assert len(server.asked()) == 1


async def test_a_server_that_falls_silent() -> None:
    async with serving(FakeServer(ids=False), first_timeout=0.3, stream_above_tokens=512) as (server, worker):
        server.delay = 30.0
        failure = await fails(worker)
        assert "did not answer for 0.3 s: it hangs, or needs a longer `first_timeout`" in failure.message
        assert not failure.retryable and len(server.asked()) == 1 and failure.usage.uncounted > 0
        await eventually(lambda: server.running == 0)


async def test_an_unreachable_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        worker = Http(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        with pytest.raises(EngineError, match=r"cannot be reached.*start the server"):
            await asyncio.wait_for(worker.start(), 300)
        await worker.close()


async def test_a_server_that_never_answers() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        worker = Http(f"http://127.0.0.1:{mute.getsockname()[1]}/v1", start_timeout=0.3)
        with pytest.raises(EngineError, match=r"did not answer within 0\.3 s"):
            await worker.start()
        await worker.close()


async def test_a_server_that_is_no_openai_server() -> None:
    async with FakeServer(models=None, completions=False, chat=False) as server:
        worker = Http(server.url)
        with pytest.raises(EngineError, match="lists no models"):
            await worker.start()
        worker = Http(server.url, model="m")
        with pytest.raises(EngineError, match="neither completions nor chat completions"):
            await worker.start()


async def test_an_unknown_model() -> None:
    async with FakeServer(models=["small", "large"]) as server:
        worker = Http(server.url, model="huge")
        with pytest.raises(EngineError, match=r"no model 'huge' \(it has: small, large\)"):
            await worker.start()
        worker = Http(server.url)
        await worker.start()
        assert (await ask(worker)).finish == "stop" and server.asked()[-1]["model"] == "small"
        server.models = ["large"]
        failure = await fails(worker)
        assert "404" in failure.message and "small" in failure.message and not failure.retryable
        await worker.close()


async def test_a_server_that_is_overloaded_at_the_start() -> None:
    server = FakeServer()
    server.faults += [Fault(503), Fault(429)]
    async with serving(server) as (_, worker):
        assert (await ask(worker)).finish == "stop"


# --- keys ---


async def test_the_key_is_the_environments(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    async with serving(FakeServer(key=SECRET)) as (server, worker):
        assert (await ask(worker)).finish == "stop"
        server.faults.append(Fault(500, message=f"your key {SECRET} broke me"))
        await ask(worker)
        server.faults.append(Fault(400, message=f"your key {SECRET} broke me"))
        failure = await fails(worker)
        assert "broke me" in failure.message
        server.faults.append(Fault(after=1, send=f'data: {{"error": {{"message": "{SECRET}", "code": 400}}}}\n\n'))
        broken = await fails(worker)
        for shown in (
            failure.message,
            broken.message,
            repr(worker),
            str(vars(worker)),
            str(worker.stats()),
            caplog.text,
        ):
            assert SECRET not in shown
        assert not any(SECRET in str(record.__dict__) for record in caplog.records)


async def test_a_wrong_key_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    async with FakeServer(key="another") as server:
        with pytest.raises(EngineError, match=r"refused access \(401\).*MY_KEY") as caught:
            await Http(server.url, api_key_env="MY_KEY").start()
        assert SECRET not in str(caught.value)
        assert len(server.requests) == 1, "it is not tried again"
        with pytest.raises(EngineError, match="set the key in the environment variable OPENAI_API_KEY"):
            await Http(server.url).start()
        with pytest.raises(EngineError, match="NO_SUCH_KEY is not set"):
            await Http(server.url, api_key_env="NO_SUCH_KEY").start()


async def test_a_wrong_key_where_the_models_are_public() -> None:
    async with FakeServer(key="another", public=True) as server:
        with pytest.raises(EngineError, match=r"refused access \(401\)"):
            await Http(server.url).start()
        assert len(server.asked()) == 1, "no other form of request is tried"


async def test_a_key_that_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    async with serving(FakeServer(key=SECRET)) as (server, worker):
        server.key = "another"
        failure = await fails(worker)
        assert "401" in failure.message and not failure.retryable and SECRET not in failure.message
        assert len(server.asked()) == 1


@pytest.mark.parametrize("given", [SECRET, "Bearer abc", "", "x" * 65])
def test_a_key_in_place_of_its_variables_name(given: str) -> None:
    with pytest.raises(ConfigError, match="name of an environment variable") as caught:
        Http("http://host/v1", api_key_env=given)
    assert not given or given not in str(caught.value)
