"""Conversations over HTTP: what is sent, what is kept apart, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait.core.chat import Message, assistant_message, user
from plait.core.events import Job
from plait.core.ops import Function, ModelCall, Tokens
from plait.core.result import Failure, Result
from plait.core.sampling import Sampling, StructuredOutput
from plait.workers.http import Http

from .fake_server import FakeServer, Fault
from .http_kit import serving

TALK = (Message(role="system", content="Be brief."), user("2 + 2?"), Message(role="assistant", content="4"))


async def ends(worker: Http, think: ModelCall) -> Result | Failure:
    job = Job(attempt=1, run="r", step="r:s", op=think)
    return [each async for each in worker.run(job)][-1]  # pyright: ignore[reportReturnType]


async def test_messages_are_sent_as_they_are():
    image = {"type": "image_url", "image_url": {"url": "https://x.y/z.png"}}
    look = Message.model_validate({"role": "user", "content": [image]})
    async with serving() as (server, worker):
        await ends(worker, ModelCall(messages=(*TALK, look), prompt="What is it?", chat=True))
        sent = server.asked()[-1]
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]},
    ]


async def test_settings_pass_through():
    think = ModelCall(
        prompt="x",
        chat=True,
        sampling=Sampling(
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"7": -100},
            reasoning_effort="high",
            chat_template_kwargs={"enable_thinking": False},
            extra_body={"thinking_token_budget": 10},
        ),
        tools=[Function(name="look")],
        tool_choice="auto",
    )
    async with serving() as (server, worker):
        await ends(worker, think)
        sent = server.asked()[-1]
    assert (sent["presence_penalty"], sent["frequency_penalty"], sent["logit_bias"]) == (0.5, -0.5, {"7": -100})
    assert (sent["reasoning_effort"], sent["thinking_token_budget"]) == ("high", 10)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent["tool_choice"] == "auto"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chat": True, "extra_body": {"stream": False}}, "may not set stream"),
        ({"chat": True, "extra_body": {"messages": []}}, "may not set messages"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ],
)
async def test_what_a_server_cannot_do_is_refused(fields: dict[str, Any], words: str):
    async with serving() as (server, worker):
        before = len(server.asked())
        end = await ends(worker, ModelCall(prompt="x", **fields))
        assert len(server.asked()) == before
    assert isinstance(end, Failure)
    assert words in end.message


async def test_reasoning_is_kept_apart():
    async def answer(writer: Any, body: dict[str, Any]) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for delta in ({"reasoning_content": "two"}, {"reasoning": " and two"}, {"content": "4"}):
            choice = {"index": 0, "delta": delta, "finish_reason": "stop" if "content" in delta else None}
            writer.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())

    async with serving() as (server, worker):
        server.wild = answer
        end = await ends(worker, ModelCall(prompt="2 + 2?", chat=True, sampling=Sampling(max_tokens=8)))
    assert isinstance(end, Result)
    assert (end.reasoning, end.value) == ("two and two", "4")


async def test_a_server_that_writes_the_conversation_anew_is_found_out():
    async with serving() as (_, worker):
        first = await ends(worker, ModelCall(prompt="alpha beta", chat=True))
        assert isinstance(first, Result)
        known = first.prompt_ids + first.token_ids
        talk = (user("alpha beta"), assistant_message(first.text), user("more"))
        same = ModelCall(messages=talk, chat=True).model_copy(update={"heard": 2, "context": (Tokens(ids=known[:2]),)})
        other = same.model_copy(update={"context": (Tokens(ids=(99, 98, 97)),)})
        ends_same, ends_other = await ends(worker, same), await ends(worker, other)
    assert isinstance(ends_same, Result)
    assert isinstance(ends_other, Result)
    assert ends_same.anew == ""
    assert ends_other.anew == "the server wrote the conversation in another way from token 0 of 3 on"


async def test_a_server_without_a_template_gets_a_transcript():
    async with serving(FakeServer(template=False)) as (server, worker):
        await ends(worker, ModelCall(messages=TALK, prompt="And 3 + 3?", chat=True))
        sent = server.asked()[-1]
    text = server.decode(sent["prompt"]) if isinstance(sent["prompt"], list) else sent["prompt"]
    assert text.split() == "System: Be brief. User: 2 + 2? Assistant: 4 User: And 3 + 3? Assistant:".split()


async def test_a_form_that_is_not_required_is_left_out_where_it_cannot_be():
    form = StructuredOutput(kind="json", spec={"type": "object"}, required=False)
    async with serving() as (_, worker):
        end = await ends(worker, ModelCall(prompt="x", sampling=Sampling(structured=form)))
        must = await ends(
            worker, ModelCall(prompt="x", sampling=Sampling(structured=form.model_copy(update={"required": True})))
        )
    assert isinstance(end, Result)
    assert isinstance(must, Failure)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(send='data: {"error": {"message": "Internal server error", "code": 500}}\n\n'),
        Fault(status=500, message="Internal server error"),
        Fault(status=400, message="this schema is not supported"),
    ],
)
async def test_a_form_that_the_model_cannot_be_kept_to_is_left_out_or_named(fault: Fault):
    form = StructuredOutput(kind="json", spec={"type": "object"}, required=False)
    async with serving(FakeServer(forms=("structured_outputs",)), retries=0) as (server, worker):
        await ends(
            worker, ModelCall(prompt="x", sampling=Sampling(structured=form))
        )  # finds out how forms are asked for
        server.faults.append(fault)
        end = await ends(worker, ModelCall(prompt="x", sampling=Sampling(structured=form)))
        *_, refused, again = server.asked()
        server.faults.append(fault)
        must = form.model_copy(update={"required": True})
        failed = await ends(worker, ModelCall(prompt="x", sampling=Sampling(structured=must)))
    assert isinstance(end, Result) and end.text.split() == ["alpha", "beta", "gamma", "delta"]
    assert "structured_outputs" in refused and "structured_outputs" not in again
    assert isinstance(failed, Failure) and "the form 'json'" in failed.message


async def test_each_message_of_a_conversation_is_written_once_not_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    as_json, written = Message.as_json, list[Message]()

    def counted(message: Message) -> dict[str, Any]:
        written.append(message)
        return as_json(message)

    monkeypatch.setattr(Message, "as_json", counted)
    talk = tuple(user(f"number {i}") if i % 2 else assistant_message(f"turn {i}") for i in range(40))
    async with serving() as (server, worker):
        for turn in range(1, 40, 2):
            await ends(worker, ModelCall(messages=talk[:turn], prompt="and?", chat=True))
            sent = server.asked()[-1]["messages"]
            assert sent == [as_json(each) for each in talk[:turn]] + [{"role": "user", "content": "and?"}]
    assert len([each for each in written if any(each is known for known in talk)]) == 39


async def test_the_names_of_functions_that_a_server_is_told_otherwise_are_in_no_other_request() -> None:
    call = assistant_message('<tool_call>{"name": "mul.add", "arguments": {}}</tool_call>')
    talk = (user("go"), call, Message(role="tool", content="1", name="mul.add", tool_call_id=call.tool_calls[0].id))
    tools = [Function(name=name, description="") for name in ("mul.add", "mul_add")]
    names = list[str]()
    async with serving() as (server, worker):
        for told in (tools, tools[:1], tools):
            await ends(worker, ModelCall(messages=talk, prompt="and?", chat=True, tools=told))
            names.append(server.asked()[-1]["messages"][1]["tool_calls"][0]["function"]["name"])
    assert names == ["mul_add_2", "mul_add", "mul_add_2"]
