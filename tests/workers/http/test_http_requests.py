"""What a think step may ask of an OpenAI-compatible server beyond text, and what is said where a server cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config
from plait.core.errors import ConfigError, EngineError
from plait.core.interfaces import Progress
from plait.core.result import Failure, Result
from plait.core.sampling import StructuredOutput
from plait.workers._shared.confidence import ConfidenceTrace, add_position
from plait.workers.http import Http

from .fake_server import FakeServer
from .http_kit import SECRET, ask, counting, fails, items, job, serving
from .test_http_trouble import going_on


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)


# --- settings ---


async def test_a_vllm_server_gets_all_settings() -> None:
    async with serving() as (server, worker):
        await ask(worker, min_p=0.1, stop_ids=(77,), salt="tenant", priority=-3, stop=("zeta",))
        sent = server.asked()[-1]
        assert [sent[key] for key in ("min_p", "cache_salt", "priority")] == [0.1, "tenant", -3]
        assert sent["stop_token_ids"][0] == 77 and server.encode("zeta")[0] in sent["stop_token_ids"]
        await ask(worker)
        assert not {"min_p", "stop_token_ids", "cache_salt", "priority"} & server.asked()[-1].keys()


@pytest.mark.parametrize(("option", "value"), [("min_p", 0.1), ("stop_ids", (3,)), ("salt", "tenant")])
async def test_what_a_server_would_ignore_is_refused(option: str, value: Any) -> None:
    async with serving(FakeServer(ids=False, strict=True)) as (server, worker):
        failure = await fails(worker, **{option: value})
        assert f"does not take the option '{option}'" in failure.message and not failure.retryable
        assert not server.asked()


async def test_a_server_without_priorities_is_not_sent_any() -> None:
    async with serving(FakeServer(fcfs=True)) as (server, worker):
        assert (await ask(worker, priority=4)).token_ids, "it takes ids all the same"
        assert "priority" not in server.asked()[-1]


@pytest.mark.parametrize("keep", [True, False])
async def test_a_stop_id_is_kept_or_not(keep: bool) -> None:
    async with serving() as (server, worker):
        stop = server.encode("beta")[0]
        result = await ask(worker, stop_ids=(stop,), keep_stop=keep)
        assert (result.finish, result.usage.completion) == ("stop", 2)
        assert result.token_ids == tuple(server.encode("alpha beta" if keep else "alpha"))
        assert result.text == (" alpha beta" if keep else " alpha")


async def test_the_models_that_a_server_lists_can_be_asked_for() -> None:
    async with serving(FakeServer(models=["small", "large"])) as (server, worker):
        assert worker.models == ("small", "large")
        await ask(worker, model="large")
        assert server.asked()[-1]["model"] == "large"
        failure = await fails(worker, model="huge")
        assert "no model 'huge' (it has: small, large)" in failure.message
    async with serving(FakeServer(models=None, prefix="/v1"), model="any") as (server, worker):
        assert worker.models == ()
        await ask(worker, model="other")
        assert server.asked()[-1]["model"] == "other"


async def test_a_server_that_counts_every_request_is_asked_nothing_beforehand() -> None:
    async with FakeServer(completions=False, models=["any"]) as server:
        worker = Http(server.url, endpoint="chat", model="any", stream_above_tokens=0)
        await worker.start()
        assert server.requests == []
        assert (await ask(worker, "one", chat=True)).text.split() == ["alpha", "beta", "gamma", "delta"]
        assert len(server.asked()) == 1
        await worker.close()
        with pytest.raises(EngineError, match="name its model"):
            await Http(server.url, endpoint="chat").start()


# --- the key ---


async def test_the_variable_of_the_key_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    monkeypatch.setenv("PLAIT_API_KEY_ENV", "SOME_KEY")
    async with FakeServer(key=SECRET) as server:
        config = Config.load(worker="http", base_url=server.url, journal=tmp_path / "journal.db")
        async with AsyncOrchestrator(config=config) as orchestrator:
            assert (await orchestrator.run("two and two?")).status == "done"
        assert SECRET not in repr(config)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())  # noqa: ASYNC240
    assert written and SECRET.encode() not in written


def test_a_key_in_place_of_the_variables_name_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="name of an environment variable") as caught:
        Config.load(api_key_env=SECRET)
    assert SECRET not in str(caught.value)


# --- signals ---


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("k", [2, 5])
async def test_signals(chat: bool, k: int) -> None:
    expected = ConfidenceTrace(k, 2)
    for place in range(5):
        add_position(expected, FakeServer.top_logprobs(place)[:k])
    async with serving(FakeServer(completions=not chat)) as (server, worker):
        result = (await items(worker, job(logprobs=k, window=2)))[-1]
        assert isinstance(result, Result)
        assert result.signals == expected.signals() and result.logprob == pytest.approx(-0.75)
        sent = server.asked()[-1]
        assert (sent["top_logprobs"] if chat else sent["logprobs"]) == k
        assert (await ask(worker, logprobs=1)).signals is None


async def test_groups_are_told_while_it_runs() -> None:
    async with serving(FakeServer(reply=counting("word " * 40), delay=0.002)) as (_, worker):
        *news, last = await items(worker, job(logprobs=3, window=8, max_tokens=40))
        told = [each for each in news if isinstance(each, Progress)]
        assert isinstance(last, Result) and len(told) >= 10 and not any(each.text for each in told)
        assert all(each.group is not None and each.lowest is not None for each in told)
        assert all(len(each.ids) == each.tokens for each in told) and sum(each.tokens for each in told) <= 40


async def test_a_server_that_says_the_sampled_token_alone() -> None:
    async with serving(FakeServer(tops=False)) as (_, worker):
        failure = await fails(worker, logprobs=5)
        assert "the sampled token alone" in failure.message and "logprobs=1" in failure.message
        assert (await ask(worker, logprobs=1)).logprob is not None


# --- forms ---

FORMS = {
    "json": ({"type": "object"}, ' {"n": 1}'),
    "regex": ("ab|cd", " ab|cd"),
    "grammar": ('root ::= "x"', " x"),
    "choice": (["yes", "no"], " yes"),
}


@pytest.mark.parametrize(
    ("kind", "field", "strict"),
    [
        *((kind, "structured_outputs", False) for kind in FORMS),
        *((kind, f"guided_{kind}", False) for kind in FORMS),
        ("json", "response_format", True),
        ("regex", "regex", False),
        ("grammar", "grammar", False),
        ("grammar", "ebnf", False),
        ("choice", "regex", False),
        ("choice", "grammar", False),
    ],
)
async def test_a_form_is_asked_for_as_the_server_takes_it(kind: Any, field: str, strict: bool) -> None:
    spec, text = FORMS[kind]
    form = StructuredOutput(kind=kind, spec=spec)
    async with serving(FakeServer(forms=(field,), ids=not strict, strict=strict)) as (server, worker):
        ends = await asyncio.gather(*(items(worker, job(structured=form, attempt=n)) for n in range(3)))
        assert all(isinstance(end, Result) and end.text == text for (end,) in ends)
        before = len(server.asked())
        assert before <= 3 + 5, "the way is looked for once"
        await ask(worker, structured=form)
        assert len(server.asked()) == before + 1
        assert field in server.asked()[-1]


async def test_a_server_that_ignores_forms_says_so() -> None:
    async with serving() as (_, worker):
        failure = await fails(worker, structured=StructuredOutput(kind="choice", spec=["yes", "no"]))
        assert (
            "does not support structured output of the kind 'choice'" in failure.message
            and "structured_outputs" in failure.message
        )
        assert not failure.retryable
        assert (await ask(worker)).value == " alpha beta gamma delta"
        bad = await fails(worker, structured=StructuredOutput(kind="choice", spec="yes"))
        assert "a list of texts" in bad.message


# --- going on from ids ---


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("done", [1, 3])
async def test_a_lost_attempt_is_gone_on_with(stream: bool, done: int) -> None:
    async with serving(FakeServer(reply=going_on)) as (server, worker):
        whole = await ask(worker, max_tokens=4)
        past = whole.token_ids[:done]
        *news, last = await items(worker, job(stream=stream, generated=past, max_tokens=4))
        assert isinstance(last, Result)
        assert (last.value, last.token_ids, last.prompt_ids) == (whole.value, whole.token_ids, whole.prompt_ids)
        assert last.usage.completion == 4 - done
        assert (
            server.asked()[-1]["prompt"] == [*whole.prompt_ids, *past] and server.asked()[-1]["max_tokens"] == 4 - done
        )
        told = [each for each in news if isinstance(each, Progress)]
        assert bool(told) == stream and (not stream or last.text.endswith("".join(each.text for each in told)))
        assert not stream or tuple(token for each in told for token in each.ids) == whole.token_ids[done:]


@pytest.mark.parametrize("keep", [True, False])
async def test_what_had_ended_already_is_not_gone_on_with(keep: bool) -> None:
    async with serving(FakeServer(reply=going_on)) as (server, worker):
        past = tuple(server.encode("alpha beta gamma"))
        by_length = await ask(worker, generated=past, max_tokens=3)
        assert (by_length.finish, by_length.text, by_length.token_ids) == ("length", " alpha beta gamma", past)
        for stop in ({"stop": ("gamma",)}, {"stop_ids": past[-1:]}, {"stop": ("beta gamma",)}):
            cut = await ask(worker, generated=past, keep_stop=keep, **stop)
            kept = 3 if keep else 1 if stop == {"stop": ("beta gamma",)} else 2
            assert cut.finish == "stop" and cut.text.split() == ["alpha", "beta", "gamma"][:kept]
            assert cut.token_ids == past[:kept] and cut.usage.completion == 0
        assert not server.asked()


@pytest.mark.parametrize("server", [FakeServer(ids=False), FakeServer(completions=False)], ids=["text", "chat"])
async def test_a_server_without_ids_starts_from_the_beginning(server: FakeServer) -> None:
    async with serving(server) as (_, worker):
        *news, last = await items(worker, job(stream=True, generated=(1, 2)))
        assert isinstance(last, Result) and last.value == " alpha beta gamma delta"
        assert not any(each.ids for each in news if isinstance(each, Progress))


async def test_where_a_stop_text_may_have_begun_it_starts_from_the_beginning() -> None:
    async with serving(FakeServer(reply=going_on)) as (server, worker):
        past = tuple(server.encode("alpha beta"))
        *news, last = await items(worker, job(stream=True, generated=past, stop=("beta gamma",), keep_stop=True))
        assert not isinstance(last, Failure) and isinstance(server.asked()[-1]["prompt"], str)
        assert not any(each.ids for each in news if isinstance(each, Progress)), "or it would pass for going on"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"temperature": 0.0}, {"temperature": 0.0, "top_p": 1.0}),
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
    ],
)
async def test_a_server_samples_in_its_own_way_where_nobody_says_how(
    given: dict[str, float], sent: dict[str, float]
) -> None:
    async with serving() as (server, worker):
        await ask(worker, **given)
        ((_, body),) = server.requests
    assert {name: body[name] for name in ("temperature", "top_p") if name in body} == sent
