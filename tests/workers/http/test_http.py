"""The HTTP worker against a server of our own: what it sends, what it makes of answers, how it gives up."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator
from plait.core.errors import ConfigError
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import ModelCall, Text, Tokens, ToolCall
from plait.core.result import Failure, Result
from plait.core.sampling import Sampling
from plait.workers.http import Http
from plait.workers.http.flow_control import ConcurrencyLimiter
from plait.workers.http.request_body import ServerDialect
from plait.workers.http.response_parser import ResponseParser
from tests.planners import countdown_model

from .fake_server import FakeServer
from .http_kit import SECRET, ask, counting, eventually, fails, items, job, serving


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)


# --- what it is ---


def test_it_is_a_worker() -> None:
    worker = Http("http://localhost:1/v1")
    assert isinstance(worker, Worker)
    assert (worker.name, worker.serves) == ("http", ("think",))


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://host/v1", "", "http://", "http://host:port/v1"])
def test_an_address_must_be_one(address: str) -> None:
    with pytest.raises(ConfigError, match="http://localhost:8000/v1"):
        Http(address)


def test_keys_do_not_go_into_the_address() -> None:
    with pytest.raises(ConfigError, match="environment") as caught:
        Http(f"http://user:{SECRET}@host/v1")
    assert SECRET not in str(caught.value)


def test_options_must_make_sense() -> None:
    with pytest.raises(ConfigError, match="option 'slots' should be greater than or equal to 1"):
        Http("http://host/v1", slots=0)


# --- what it sends and reads ---


async def test_a_server_that_takes_ids() -> None:
    async with serving(FakeServer(cached=1)) as (server, worker):
        result = await ask(worker, "one two")
        assert result.value == " alpha beta gamma delta"
        assert result.prompt_ids == tuple(server.encode("one two"))
        assert result.token_ids == tuple(server.encode("alpha beta gamma delta")), "without the end token"
        assert (result.finish, result.usage.prompt, result.usage.cached, result.usage.completion) == ("stop", 2, 1, 5)
        assert server.asked()[-1]["prompt"] == "one two", "one piece of text is the server's to tokenise"


async def test_a_context_goes_on_as_ids() -> None:
    async with serving() as (server, worker):
        first = await ask(worker, "one two")
        context = Tokens(ids=first.prompt_ids + first.token_ids)
        second = await ask(worker, (context, Text(text=" and then")))
        assert server.asked()[-1]["prompt"] == [*context.ids, *server.encode("and then")]
        assert second.prompt_ids == (*context.ids, *server.encode("and then"))
        await ask(worker, (context, Text(text=" and then")))
        assert sum(path == "/tokenize" for path, _ in server.requests) == 1, "pieces of text are tokenised once"
        await ask(worker, (Text(text="one "), Text(text="two")))
        opening = [body["add_special_tokens"] for path, body in server.requests if path == "/tokenize"]
        assert opening == [False, True, False], "special tokens open a prompt and nothing else"


async def test_a_context_goes_on_as_text() -> None:
    async with serving(FakeServer(ids=False)) as (server, worker):
        first = await ask(worker, "one two")
        assert (first.prompt_ids, first.token_ids) == ((), ())
        assert (first.usage.prompt, first.usage.completion) == (2, 5)
        await ask(worker, (Text(text="one two"), Text(text=first.text), Text(text=" and")))
        assert server.asked()[-1]["prompt"] == "one two alpha beta gamma delta and"
        failure = await fails(worker, (Tokens(ids=(1, 2)),))
        assert "takes no token ids" in failure.message and not failure.retryable


async def test_sampling_settings_are_sent() -> None:
    async with serving() as (server, worker):
        await ask(worker, max_tokens=3, temperature=0.5, top_p=0.9, top_k=7, seed=11, stop=("zeta",))
        sent = server.asked()[-1]
        assert [sent[key] for key in ("max_tokens", "temperature", "top_p", "top_k", "seed")] == [3, 0.5, 0.9, 7, 11]
        assert (sent["stop"], sent["model"], sent["stream"]) == (["zeta"], "fake-model", True)


async def test_a_strict_server_gets_no_fields_of_vllm() -> None:
    async with serving(FakeServer(ids=False, strict=True)) as (server, worker):
        await ask(worker, top_k=7)
        assert "top_k" not in server.asked()[-1]


async def test_the_limit_on_tokens() -> None:
    async with serving() as (_, worker):
        result = await ask(worker, max_tokens=2)
        assert (result.value, result.finish, result.usage.completion) == (" alpha beta", "length", 2)


async def test_deltas_are_for_steps_that_stream() -> None:
    async with serving(FakeServer(delay=0.01)) as (_, worker):
        *news, last = await items(worker, job(stream=True))
        assert "".join(each.text for each in news if isinstance(each, Progress)) == " alpha beta gamma delta"
        assert sum(each.tokens for each in news if isinstance(each, Progress)) == 5
        assert len(news) > 1 and isinstance(last, Result)
        assert len(await items(worker, job(stream=False))) == 1


@pytest.mark.parametrize("chat", [False, True])
async def test_log_probabilities(chat: bool) -> None:
    async with serving(FakeServer(completions=not chat)) as (_, worker):
        result = await ask(worker, logprobs=True)
        assert result.logprob == pytest.approx(-0.75), "the mean of -0.25, -0.5, … -1.25"
        assert (await ask(worker)).logprob is None


async def test_a_server_without_log_probabilities() -> None:
    async with serving(FakeServer(logprobs=False)) as (_, worker):
        failure = await fails(worker, logprobs=True)
        assert "gives no log-probabilities" in failure.message and not failure.retryable


@pytest.mark.parametrize(
    "server",
    [
        FakeServer(),
        FakeServer(ids=False),
        FakeServer(ids=False, stop_reason=False),
        FakeServer(completions=False, stop_reason=False),
    ],
    ids=["vllm", "says the stop text", "silent", "chat"],
)
async def test_the_stop_text_is_kept_or_not(server: FakeServer) -> None:
    server.reply = counting("alpha beta <wait>tail delta")
    async with serving(server) as (_, worker):
        *news, last = await items(worker, job(stop=("<wait>",), keep_stop=True, stream=True))
        assert isinstance(last, Result) and last.finish == "stop"
        assert last.value == " alpha beta <wait>"
        assert "".join(each.text for each in news if isinstance(each, Progress)) == last.value
        assert (await ask(worker, stop=("<wait>",))).value == " alpha beta "


async def test_a_stop_text_spread_over_pieces_is_found_here() -> None:
    server = FakeServer(ids=False, stop_reason=False, reply=counting("a b c d e"))
    async with serving(server) as (_, worker):
        assert (await ask(worker, stop=("b c", "zzz"), keep_stop=True)).value == " a b c"
        assert (await ask(worker, stop=("e f",), keep_stop=True)).value == " a b c d e", "what only began as one"


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_however_the_text_is_cut_into_pieces_the_same_stop_text_ends_it(pieces: list[str], stops: list[str]) -> None:
    think = ModelCall(prompt=(Text(text="p"),), sampling=Sampling(stop=tuple(stops), keep_stop=True))
    reading = ResponseParser(ServerDialect(), think)
    shown = ""
    for place, piece in enumerate([*pieces, ""]):
        finish = "length" if place == len(pieces) else None
        progress = reading.feed({"choices": [{"text": piece, "finish_reason": finish}]})
        shown += progress.text if progress else ""
        if reading.found_stop:
            break
    text = "".join(pieces)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    assert shown == reading.text == text[: min(ends, default=len(text))]
    assert reading.finish == ("stop" if ends else "length")


_PARTS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<",
    "stop",
    "st",
    "a",
    " ",
    "\n",
    "é",
    "\U0001f600",
    "\U0001f44d\U0001f3fd",
]


@given(
    st.lists(st.sampled_from(_PARTS), max_size=12).map("".join),
    st.lists(st.integers(1, 7), max_size=12),
    st.sampled_from([(), ("stop",), ("</tool_call>", "\U0001f600")]),
    st.sampled_from(["completions", "chat/completions"]),
)
def test_a_text_that_is_streamed_is_that_of_one_piece(
    text: str, sizes: list[int], stops: tuple[str, ...], endpoint: str
) -> None:
    """Cut anywhere, within characters too, as servers do that count in UTF-16."""
    units = text.encode("utf-16-le")
    pieces, at = list[str](), 0
    for size in [*sizes, len(text) + 1]:
        pieces.append(units[2 * at : 2 * (at + size)].decode("utf-16-le", "surrogatepass"))
        at += size
    pieces.append(units[2 * at :].decode("utf-16-le", "surrogatepass"))
    streamed, whole = (_read(each, stops, endpoint) for each in (pieces, [text]))
    assert streamed == whole


def _read(pieces: list[str], stops: tuple[str, ...], endpoint: Any) -> tuple[str, Any]:
    think = ModelCall(prompt=(Text(text="p"),), sampling=Sampling(stop=stops, keep_stop=True))
    reading, shown = ResponseParser(ServerDialect(endpoint), think), ""
    for place, piece in enumerate(pieces):
        said = {"text": piece} if endpoint == "completions" else {"delta": {"content": piece}}
        progress = reading.feed({"choices": [said | {"finish_reason": "stop" if place == len(pieces) - 1 else None}]})
        shown += progress.text if progress else ""
        if reading.found_stop:
            break
    assert stops or reading.usage.tokens == sum(map(bool, pieces))
    return shown, reading.close("stop")


async def test_ids_without_the_stop_text_that_was_cut() -> None:
    async with serving(FakeServer(reply=counting("alpha beta <wait> delta"))) as (server, worker):
        cut = await ask(worker, stop=("<wait>", "two words"))
        assert server.asked()[-1]["stop_token_ids"] == server.encode("<wait>"), "what is one token stops as a token"
        assert cut.value == " alpha beta"
        assert cut.token_ids == tuple(server.encode("alpha beta")) and cut.usage.completion == 3
        kept = await ask(worker, stop=("<wait>",), keep_stop=True)
        assert kept.token_ids == tuple(server.encode("alpha beta <wait>"))


async def test_chat() -> None:
    async with serving() as (server, worker):
        await ask(worker, (Text(text="one "), Text(text="two")), chat=True)
        path, sent = server.requests[-1]
        assert path == "/v1/chat/completions"
        assert sent["messages"] == [{"role": "user", "content": "one two"}]


async def test_a_model_without_a_chat_template_gets_the_prompt_as_text() -> None:
    async with serving(FakeServer(template=False)) as (server, worker):
        assert (await ask(worker, "one two", chat=True)).value == " alpha beta gamma delta"
        assert server.requests[-1][0] == "/v1/completions"
        server.requests.clear()
        await ask(worker, "one two", chat=True)
        assert [path for path, _ in server.requests] == ["/v1/completions"], "it asks once"


async def test_a_server_with_chat_alone() -> None:
    async with serving(FakeServer(completions=False, ids=False, strict=True)) as (server, worker):
        result = await ask(worker, "one two")
        assert (result.value, result.usage.completion) == (" alpha beta gamma delta", 5)
        assert server.requests[-1][0] == "/v1/chat/completions"


async def test_a_server_that_says_no_usage() -> None:
    async with serving(FakeServer(ids=False, usage=False)) as (_, worker):
        assert (await ask(worker)).usage.completion == 4, "a token a piece"


async def test_a_server_that_does_not_stream() -> None:
    async with serving(FakeServer(ids=False, streams=False)) as (_, worker):
        assert (await ask(worker)).value == " alpha beta gamma delta"


async def test_an_address_without_v1() -> None:
    async with FakeServer() as server:
        worker = Http(server.url.removesuffix("/v1"))
        await worker.start()
        assert (await ask(worker)).value == " alpha beta gamma delta"
        await worker.close()


async def test_connections_are_kept() -> None:
    async with serving() as (server, worker):
        for _ in range(10):
            await ask(worker)
        assert len(server.asked()) == 10
        assert server.connections == 1


async def test_it_serves_think_steps_alone() -> None:
    async with serving() as (_, worker):
        (last,) = await items(worker, Job(attempt=1, run="r", step="s", op=ToolCall(tool="t")))
        assert isinstance(last, Failure) and "not 'call' steps" in last.message


# --- giving up ---


@pytest.mark.parametrize("stream", [False, True])
async def test_cancel_closes_the_connection(stream: bool) -> None:
    async with serving(FakeServer(delay=0.05, reply=counting("word " * 500))) as (server, worker):
        task = asyncio.create_task(items(worker, job(stream=stream, attempt=7)))
        await eventually(lambda: 7 in worker._live and (read := worker._live[7].response) and read.usage.tokens >= 2)
        await worker.cancel(7)
        last = (await asyncio.wait_for(task, 300))[-1]
        assert isinstance(last, Result) and last.finish == "cancelled"
        assert last.text.startswith(" word word") and 2 <= last.usage.completion < 100
        assert len(last.token_ids) == last.usage.completion
        await eventually(lambda: server.disconnects == 1 and server.running == 0)
        server.delay = 0.0
        assert (await ask(worker, max_tokens=1)).value == " word", "and the worker goes on"


async def test_cancel_before_anything_came() -> None:
    async with serving(FakeServer(delay=0.01, reply=counting("word " * 500)), slots=1) as (_, worker):
        first = asyncio.create_task(items(worker, job(attempt=1)))
        second = asyncio.create_task(items(worker, job(attempt=2)))
        await eventually(lambda: len(worker._live) == 2 and worker.counts["requests"] == 1)
        await worker.cancel(2)
        assert (await asyncio.wait_for(second, 300)) == [Result(value="", finish="cancelled")]
        await worker.cancel(1)
        await first
        await worker.cancel(99)
        assert worker._limiter.running == 0 and worker.stats()["running"] == 0


async def test_a_reader_that_leaves_frees_the_server() -> None:
    async with serving(FakeServer(delay=0.01, reply=counting("word " * 500))) as (server, worker):
        async with contextlib.aclosing(worker.run(job(stream=True))) as news:
            async for _ in news:
                break
        await eventually(lambda: server.disconnects == 1)
        assert worker._limiter.running == 0


async def test_close_ends_everything() -> None:
    async with serving(FakeServer(delay=0.01, reply=counting("word " * 500))) as (server, worker):
        task = asyncio.create_task(items(worker, job()))
        await eventually(lambda: server.running == 1)
        await worker.close()
        (last,) = await task
        assert isinstance(last, Result) and last.finish == "cancelled"
        await eventually(lambda: server.running == 0)
        (late,) = await items(worker, job())
        assert isinstance(late, Failure) and late.lost
        await worker.close()


# --- how many at a time ---


async def test_slots_are_not_exceeded() -> None:
    async with serving(FakeServer(delay=0.005), slots=3) as (server, worker):
        await asyncio.gather(*(items(worker, job(attempt=each)) for each in range(12)))
        assert server.most == 3


async def test_an_overloaded_server_gets_fewer_requests() -> None:
    async with serving(FakeServer(delay=0.005), slots=16, retries=50) as (server, worker):
        server.crowd = 4
        ends = await asyncio.gather(*(items(worker, job(attempt=each)) for each in range(40)))
        assert all(isinstance(end[-1], Result) for end in ends)
        assert worker.counts["overloaded"] > 0 and worker.stats()["limit"] < 16
        server.crowd = 1000
        for _ in range(10):
            await asyncio.gather(*(items(worker, job(attempt=each)) for each in range(16)))
        assert worker.stats()["limit"] > 10, "and more again when it can"


async def test_the_limiter_halves_once_a_round_and_lets_in_the_first_who_came() -> None:
    limiter = ConcurrencyLimiter(8)
    rounds = [await limiter.acquire() for _ in range(8)]
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    for each in rounds[:4]:
        limiter.release(each, "overloaded")
    assert limiter.limit == 4 and limiter.running == 4, "four turned away together are one sign"
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    limiter.release(rounds[4], "neither")
    assert await waiting[1] == 1 and not waiting[2].done()
    limiter.release(1, "overloaded")
    assert limiter.limit == 2
    for each in rounds[5:]:
        limiter.release(each, "served")
    assert await waiting[2] == 2 and 3 < limiter.limit < 4
    limiter.release(2, "neither")
    assert limiter.running == 0


# --- whole runs ---


@pytest.mark.parametrize("ids", [True, False])
async def test_a_vote_and_reasoning_threads_end_to_end(
    ids: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    journal = tmp_path / "journal.db"
    server = FakeServer(ids=ids, key=SECRET)
    async with (
        server,
        AsyncOrchestrator(worker="http", base_url=server.url, slots=8, journal=journal) as orchestrator,
    ):
        server.requests.clear()
        server.reply = lambda prompt: countdown_model.answer(prompt.split())
        answer = await orchestrator.run("14 10 8 3 -> 36", task="countdown", planner="threads", n=4)
        assert (answer.status, answer.verified) == ("done", True), answer
        asked = [body["prompt"] for body in server.asked()]
        contexts = [server.decode(prompt) if ids else prompt for prompt in asked if ids == isinstance(prompt, list)]
        assert sum("<wait>" in each and each.startswith("<parent>") for each in contexts) >= 4, "contexts go on"
        server.reply = lambda prompt: "answer: 4"
        vote = await orchestrator.run("two and two?", planner="sample", n=5)
        assert (vote.status, vote.answer) == ("done", "4") and "5 of 5" in vote.why
        assert vote.usage.completion == 5 * 3
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240
    assert b"countdown" in written and SECRET.encode() not in written


# --- health ---


async def test_health_follows_the_server() -> None:
    async with serving(FakeServer(delay=0.01, reply=counting("word " * 500)), ping_every=0.05) as (server, worker):
        health = worker.health()
        assert await anext(health) is True
        task = asyncio.create_task(items(worker, job()))
        await eventually(lambda: server.running == 1)
        await server.shut()
        assert await asyncio.wait_for(anext(health), 300) is False
        (last,) = await asyncio.wait_for(task, 300)
        assert isinstance(last, Failure) and (last.retryable or last.lost)
        await server.open()
        assert await asyncio.wait_for(anext(health), 300) is True
        assert (await ask(worker, max_tokens=1)).value == " word"
        await worker.close()
        with pytest.raises(StopAsyncIteration):
            await anext(health)


async def test_a_server_that_is_gone_behind_its_proxy_takes_its_jobs_with_it() -> None:
    async with serving(ping_every=0.05) as (server, worker):
        server.delay = 30.0
        health = worker.health()
        assert await anext(health) is True
        task = asyncio.create_task(items(worker, job()))
        await eventually(lambda: server.running == 1)
        server.away = True
        assert await asyncio.wait_for(anext(health), 300) is False
        (last,) = await asyncio.wait_for(task, 300)
        assert isinstance(last, Failure) and last.lost
        await health.aclose()


async def test_a_job_that_finds_nobody_is_lost_and_says_so() -> None:
    async with serving(retries=1, ping_every=60.0) as (server, worker):
        health = worker.health()
        assert await anext(health) is True
        down = asyncio.ensure_future(anext(health))
        await asyncio.sleep(0)
        await server.shut()
        (last,) = await items(worker, job())
        assert isinstance(last, Failure) and last.lost and last.kind == "WorkerLost"
        assert await asyncio.wait_for(down, 30) is False, "a job that finds nobody makes it look at once"
        await health.aclose()


INFO, PROPS = "/server_info?config_format=json", "/props"


@pytest.mark.parametrize(
    ("says", "slots"),
    [
        ({INFO: {"vllm_config": {"scheduler_config": {"max_num_seqs": 64}}}}, 80),
        ({PROPS: {"total_slots": 1}}, 2),
        ({INFO: {"vllm_config": {"scheduler_config": {"max_num_seqs": 100_000}}}}, 256),
        ({INFO: {"vllm_config": "text"}, PROPS: {"total_slots": "many"}}, 256),
        ({INFO: "<html>", PROPS: {"total_slots": -3}}, 256),
        ({}, 256),
    ],
)
async def test_slots_are_a_quarter_more_than_the_server_generates_for_at_a_time(says: dict, slots: int) -> None:
    async with serving(FakeServer(says=says)) as (_, worker):
        assert worker.slots == slots
    async with serving(FakeServer(says=says), slots=7) as (_, worker):
        assert worker.slots == 7, "what is given counts"


async def test_cached_results_of_one_key_are_not_given_to_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with FakeServer() as server:

        async def asked(key: str, **options: object) -> int:
            monkeypatch.setenv("TENANT_KEY", key)
            given = {"base_url": server.url, "api_key_env": "TENANT_KEY", "cache": tmp_path / "c", "journal": "off"}
            async with AsyncOrchestrator(worker="http", **given) as plait:  # type: ignore[arg-type]
                return (await plait.run("one two", **options)).usage.reused  # type: ignore[arg-type]

        assert not await asked("alice")
        assert await asked("alice")
        assert not await asked("bob"), "another key is another tenant"
        assert not await asked("alice", salt="team 2"), "and so is another salt"
