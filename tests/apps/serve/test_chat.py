"""Chat completions as the `openai` client asks for them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pydantic
import pytest
from hypothesis import assume, given, strategies as st

from plait.core.chat import assistant_message
from plait.core.result import Failure
from plait.runtime.client.answer import Answer
from plait.workers.scripted import Reply, Scripted
from plait_server.errors import ApiError
from plait_server.stream_events import check_answer
from plait_server.text_splitter import TextSplitter

openai = pytest.importorskip("openai")


async def test_a_completion_has_text_and_usage(serve):
    async with serve("The answer is 42.") as served:
        said = await served.client().chat.completions.create(
            model="qwen", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 × 7?"}]
        )
    assert said.choices[0].message.content == "The answer is 42." and said.choices[0].finish_reason == "stop"
    assert said.usage.completion_tokens == 4 and said.usage.total_tokens == said.usage.prompt_tokens + 4
    assert said.usage.prompt_tokens_details.cached_tokens == 0 and said.model == "qwen"
    assert type(said).model_validate(said.model_dump(), strict=True)


async def test_text_is_streamed_while_it_is_written(serve):
    slow = Reply(text="one two three four", tokens_per_second=50)
    async with serve(slow) as served:
        stream = await served.client().chat.completions.create(
            model="qwen",
            messages=[{"role": "user", "content": "count"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == "one two three four" and len(texts) > 1
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == 4 and not chunks[-1].choices


async def test_the_models_name_chooses_planner_policies_and_budget(serve):
    replies = [Reply(when="", text=f"answer: {n}", times=1) for n in (4, 4, 5)]
    async with serve(*replies, Reply(text="answer: 4"), aliases={"voted": "plait/sample:n=4"}) as served:
        client = served.client()
        said = await client.chat.completions.create(
            model="plait/sample:n=3+consensus", messages=[{"role": "user", "content": "2 + 2?"}],
            extra_body={"plait": {"steps": True}},
        )  # fmt: skip
        assert said.choices[0].message.content == "4" or said.choices[0].message.content == "answer: 4"
        steps = said.model_extra["plait"]["steps"]
        assert [step["name"] for step in steps] == ["sample-1", "sample-2", "sample-3"]
        assert steps[0]["text"] == "answer: 4" and steps[0]["id"] == said.model_extra["plait"]["run"] + ":sample-1"
        voted = await client.chat.completions.create(model="voted", messages=[{"role": "user", "content": "2 + 2?"}])
        assert "of 4 votes" in voted.model_extra["plait"]["why"]
        cut = await client.chat.completions.create(
            model="qwen",
            messages=[{"role": "user", "content": "2 + 2?"}],
            extra_body={"plait": {"budget": {"tokens": 1}}},
        )
        assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 1


@pytest.mark.parametrize(
    "limit",
    [
        {"total_tokens": 500}, {"prompt_tokens": 500}, {"turns": 3}, {"depth": 2}, {"strict": True},
        {"tokens": 400, "seconds": 9.0, "attempts": 5, "width": 2, "steps": 9, "total_tokens": 900, "strict": True},
    ],
)  # fmt: skip
async def test_every_limit_may_be_asked_for(serve, limit):
    async with serve(Reply(text="answer: 4")) as served:
        said = await served.client().chat.completions.create(
            model="qwen", messages=[{"role": "user", "content": "2 + 2?"}], extra_body={"plait": {"budget": limit}}
        )
        assert "4" in said.choices[0].message.content


async def test_a_limit_that_is_asked_for_holds_beside_the_servers(serve):
    ask = {"model": "qwen", "messages": [{"role": "user", "content": "2 + 2?"}]}
    async with serve(Reply(text="one two three four five six"), tokens_per_run=4) as served:
        client = served.client()
        told = [
            (await client.chat.completions.create(**ask, extra_body={"plait": {"budget": limit}})).usage
            for limit in ({"turns": 1}, {"tokens": 2, "turns": 1}, {"tokens": 900, "turns": 1})
        ]
    assert [each.completion_tokens for each in told] == [4, 2, 4]


async def test_branches_are_streamed_with_their_steps(serve):
    async with serve(Reply(text="a b answer: 1")) as served:
        stream = await served.client().chat.completions.create(
            model="plait/sample:n=2", messages=[{"role": "user", "content": "?"}], stream=True,
            extra_body={"plait": {"steps": True}},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    heard: dict[str, str] = {}
    for chunk in chunks:
        delta = chunk.choices[0].delta.model_extra.get("reasoning_content") if chunk.choices else None
        if delta:
            step = chunk.model_extra["plait"]["step"]["id"]
            heard[step] = heard.get(step, "") + delta
    assert sorted(each.partition(":")[2] for each in heard) == ["sample-1", "sample-2"]
    assert set(heard.values()) == {"a b answer: 1"}


_ASK = {"model": "q", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"messages": []}, "missing_required_parameter", "model"),
        ({"model": "q"}, "missing_required_parameter", "messages"),
        ({"model": "q", "messages": [{"role": "king", "content": "x"}]}, "usage-error", "messages[0]"),
        ({"model": "q", "messages": [{"role": "user", "content": ""}]}, "usage-error", "messages"),
        ({**_ASK, "temperature": 9}, "invalid_value", "temperature"),
        ({**_ASK, "model": "plait/nobody"}, "planner_not_found", "model"),
        ({**_ASK, "model": "plait/sample:n=x"}, "plugin-error", None),
        ({**_ASK, "model": "plait/fixed:path=/etc/passwd"}, "planner_not_found", "model"),
        ({**_ASK, "model": "plait/os:system"}, "planner_not_found", "model"),
        ({**_ASK, "plait": {"planer": "x"}}, "unknown_parameter", "plait.planer"),
        ({**_ASK, "plait": {"task": "plain:where=function,function=os:getcwd"}}, "task-error", None),
    ],
)
async def test_bodies_are_refused_in_openais_form(serve, body, code, param):
    async with serve() as served, httpx.AsyncClient() as http:
        said = await http.post(f"{served.base}/chat/completions", json=body)
        assert said.status_code == 400, said.text
        error = said.json()["error"]
        assert error["type"] == "invalid_request_error" and error["message"] and error["code"] == code
        assert error["param"] == param or param is None
        assert served.worker.counts["requests"] == 0


async def test_errors_are_the_clients_exceptions(serve):
    broken = Reply(when="broken", text="no memory", finish="error")
    async with serve(broken, "fine") as served:
        client = served.client()
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="plait/nobody", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="q", messages=[{"role": "user", "content": "broken"}])
        assert "the model's server failed" in str(failed.value) and failed.value.code == "engine-error"
        stream = await client.chat.completions.create(
            model="q", messages=[{"role": "user", "content": "broken"}], stream=True
        )
        with pytest.raises(openai.APIError, match="the model's server failed"):
            _ = [chunk async for chunk in stream]
        with pytest.raises(openai.NotFoundError):
            await client.files.list()


async def test_models_are_listed_and_found(serve):
    async with serve(aliases={"fast": "plait/sample:n=2"}, planners=("single", "sample")) as served:
        client = served.client()
        names = [each.id async for each in client.models.list()]
        assert names == ["fast", "plait/single", "plait/sample"]
        assert (await client.models.retrieve("fast")).id == "fast"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_stops_the_engine(serve, stream):
    """At most two tokens late."""
    async with serve(Reply(text="word " * 5000, tokens_per_second=100)) as served, httpx.AsyncClient() as http:
        body = {"model": "q", "messages": [{"role": "user", "content": "x"}], "stream": stream, "max_tokens": 5000}
        asking = asyncio.ensure_future(_read(http, f"{served.base}/chat/completions", body))
        while served.worker.counts["generated"] < 5:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        then = served.worker.counts["generated"]
        while served.worker.stats()["running"] or served.service.live:
            await asyncio.sleep(0.001)
        assert served.worker.counts["generated"] - then <= 2


async def _read(http, url, body):
    async with http.stream("POST", url, json=body) as answer:
        async for _ in answer.aiter_bytes():
            pass


async def test_health_and_readiness(serve):
    async with serve() as served, httpx.AsyncClient() as http:
        assert (await http.get(f"{served.url}/healthz")).text == "ok"
        assert (await http.get(f"{served.url}/readyz")).status_code == 200
        served.service.closing = True
        assert (await http.get(f"{served.url}/readyz")).status_code == 503
        said = await http.post(
            f"{served.base}/chat/completions", json={"model": "q", "messages": [{"role": "user", "content": "x"}]}
        )
        assert said.status_code == 503 and said.json()["error"]["type"] == "server_error"


_CALLS = 'I look it up. <tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
_TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_are_called_by_the_client_and_their_results_go_on(serve, stream):
    replies = [Reply(when="(?s)sunny", text="It is sunny."), Reply(text=f"<think>hm</think>{_CALLS}")]
    async with serve(*replies) as served:
        client = served.client()
        messages = [{"role": "user", "content": "the weather in Rome?"}]
        said = await client.chat.completions.create(model="q", messages=messages, tools=_TOOLS, stream=stream)
        if stream:
            deltas = [chunk.choices[0] async for chunk in said]
            begun, *rest = [call for each in deltas for call in each.delta.tool_calls or ()]
            for piece in rest:
                assert (piece.index, piece.id) == (begun.index, None)
                begun.function.arguments += piece.function.arguments
            calls = [begun]
            text = "".join(each.delta.content or "" for each in deltas)
            thought = "".join(each.delta.model_extra.get("reasoning_content", "") for each in deltas)
            finish = deltas[-1].finish_reason
        else:
            message, finish = said.choices[0].message, said.choices[0].finish_reason
            calls, text, thought = message.tool_calls, message.content, message.model_extra["reasoning_content"]
        assert (text, thought, finish, len(calls)) == ("I look it up.", "hm", "tool_calls", 1)
        assert calls[0].function.name == "weather" and json.loads(calls[0].function.arguments) == {"city": "Rome"}
        call = {"id": calls[0].id, "type": "function", "function": calls[0].function.model_dump()}
        messages += [
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"},
        ]
        said = await client.chat.completions.create(model="q", messages=messages, tools=_TOOLS)
        assert said.choices[0].message.content == "It is sunny."


@pytest.mark.parametrize("model", ["q", "plait/sample:n=2"])
async def test_a_call_that_the_limit_cuts_is_a_call_whole_and_streamed(serve, model):
    """Both end with `length`, and the arguments are what was written of them, as OpenAI's are."""
    ask = {"model": model, "messages": [{"role": "user", "content": "the weather?"}], "tools": _TOOLS}
    half = 'I look it up. <tool_call>{"name": "weather", "arguments": {"city": "Ro'
    async with serve(Reply(text=half, finish="length")) as served:
        client = served.client()
        choice = (await client.chat.completions.create(**ask)).choices[0]
        deltas = [chunk.choices[0] async for chunk in await client.chat.completions.create(**ask, stream=True)]
    pieces = [call.function for each in deltas for call in each.delta.tool_calls or ()]
    streamed = ("".join(each.delta.content or "" for each in deltas), deltas[-1].finish_reason, pieces[0].name,
                "".join(piece.arguments for piece in pieces))  # fmt: skip
    assert choice.message.tool_calls, choice.message.content
    call = choice.message.tool_calls[0].function
    whole = (choice.message.content, choice.finish_reason, call.name, call.arguments)
    assert whole == streamed == ("I look it up.", "length", "weather", '{"city": "Ro')


async def test_a_call_that_is_required_and_does_not_come_is_an_error(serve):
    async with serve("no call") as served:
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            with pytest.raises(openai.InternalServerError, match="called no function"):
                await served.client().chat.completions.create(
                    model="q", messages=[{"role": "user", "content": "?"}], tools=_TOOLS, tool_choice=choice
                )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("planner", ["single", "sample:n=2"])
async def test_what_a_client_demands_of_its_functions_reaches_the_calls_that_answer(serve, choice, planner):
    asked: list[Any] = []

    class Noting(Scripted):
        async def run(self, job):
            asked.append(job.op)
            async for item in super().run(job):
                yield item

    async with serve(workers=[Noting([Reply(text="no call")])]) as served:
        with pytest.raises(openai.InternalServerError, match="called no function"):
            await served.client().chat.completions.create(
                model="q",
                messages=[{"role": "user", "content": "?"}],
                tools=_TOOLS,
                tool_choice=choice,
                parallel_tool_calls=False,
                extra_body={"plait": {"planner": planner}},
            )
        assert len(asked) == (1 if planner == "single" else 2)
        for op in asked:
            assert op.tool_choice == ("required" if choice == "required" else "weather")
            assert op.parallel_tool_calls is False and [each.name for each in op.tools] == ["weather"]


async def test_structured_answers_have_their_form(serve):
    class City(pydantic.BaseModel):
        name: str
        people: int

    async with serve('{"name": "Rome", "people": 3}') as served:
        said = await served.client().chat.completions.parse(
            model="q", messages=[{"role": "user", "content": "a city"}], response_format=City
        )
        assert said.choices[0].message.parsed == City(name="Rome", people=3)


def test_an_answer_that_is_cut_within_its_thoughts_is_no_error():
    answer = Answer(run="r", status="failed", failure=Failure(kind="CutInThoughts", message="raise thinking_tokens"))
    check_answer(answer)
    assert answer.cut and answer.message.text == ""
    with pytest.raises(ApiError):
        check_answer(answer.model_copy(update={"failure": Failure(kind="EngineError", message="no memory")}))


async def all_of(events: Any) -> None:
    async with events as stream:
        async for _ in stream:
            pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_form_that_is_cut_at_the_clients_limit_is_no_error(serve, stream):
    class City(pydantic.BaseModel):
        name: str
        people: int

    ask = {"model": "q", "messages": [{"role": "user", "content": "a city"}], "max_completion_tokens": 2}
    async with serve('{"name": "Rome", "people": 2}') as served:
        client = served.client()
        if stream:
            events = client.chat.completions.stream(**ask, response_format=City)
            with pytest.raises(openai.LengthFinishReasonError):
                await all_of(events)
            return
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(**ask, response_format=City)
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": City.model_json_schema()}}
        said = await client.chat.completions.create(**ask, response_format=schema)
        assert said.choices[0].finish_reason == "length" and said.choices[0].message.content == '{"name": "Rome",'
        assert said.usage.completion_tokens == 2, "no repair, which would be cut too"
        form = {"type": "json_schema", "name": "a", "schema": City.model_json_schema()}
        cut = await client.responses.create(model="q", input="a city", max_output_tokens=2, text={"format": form})
        assert cut.status == "incomplete" and cut.output_text == '{"name": "Rome",'


CALL = '{"name": "f", "arguments": {}}'
PIECES = ["<tool_call>", "</tool_call>", f"<tool_call>{CALL}</tool_call>", CALL, "<think>", "</think>", "<", "think>",
          "tool_call>", "</", " ", "\n", "a", "b c", "\U0001f600", "é"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.lists(st.integers(1, 9)))
def test_what_is_told_in_pieces_is_the_content_of_the_whole_answer(text, sizes):
    """However the text is cut. Not of a thought that its template has begun: that is known at its end alone."""
    whole = assistant_message(text)
    assume("</think>" not in text or text.lstrip().startswith("<think>"))
    parts, found, rest = TextSplitter(), [], text
    for size in sizes:
        found += parts.feed(rest[:size])
        rest = rest[size:]
    found += parts.close(rest, whole.text)
    assert "".join(piece for kind, piece in found if kind == "text") == whole.text
    assert "".join(piece for kind, piece in found if kind == "reasoning").strip() == whole.reasoning
