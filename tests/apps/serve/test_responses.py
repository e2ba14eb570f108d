"""Responses as the `openai` client asks for them."""

from __future__ import annotations

import asyncio

import pytest

from plait.workers.scripted import Reply

openai = pytest.importorskip("openai")


async def test_a_response_has_text_and_usage(serve):
    async with serve("The answer is 42.") as served:
        client = served.client()
        said = await client.responses.create(model="qwen", instructions="Be brief.", input="6 × 7?")
        assert said.output_text == "The answer is 42." and said.status == "completed"
        assert said.usage.output_tokens == 4 and said.usage.input_tokens_details.cached_tokens == 0
        assert type(said).model_validate(said.model_dump(mode="json"))
        again = await client.responses.retrieve(said.id)
        assert again.output_text == said.output_text
        items = await client.responses.input_items.list(said.id)
        assert items.data[0].content == "6 × 7?"
        await client.responses.delete(said.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(said.id)


async def test_events_come_in_openais_order(serve):
    async with serve("one two three") as served:
        stream = await served.client().responses.create(model="qwen", input="count", stream=True)
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert events[-1].response.output_text == "one two three" and events[0].response.output == []


async def test_branches_are_reasoning_items_on_request(serve):
    async with serve("a answer: 1") as served:
        client = served.client()
        asked = {"model": "plait/sample:n=2", "input": "?"}
        plain = await client.responses.create(**asked)
        assert [item.type for item in plain.output] == ["message"]
        for stream in (False, True):
            said = await client.responses.create(**asked, stream=stream, extra_body={"plait": {"steps": True}})
            if stream:
                events = [event async for event in said]
                deltas = [event for event in events if event.type == "response.reasoning_text.delta"]
                assert {each.item_id.partition(":")[2] for each in deltas} == {"sample-1", "sample-2"}
                said = events[-1].response
            kinds = sorted(item.type for item in said.output)
            assert kinds == ["message", "reasoning", "reasoning"]
            branch = next(item for item in said.output if item.type == "reasoning")
            assert branch.content[0].text == "a answer: 1"
            assert branch.model_extra["plait"]["id"] == branch.id.removeprefix("rs_")


async def test_a_conversation_goes_on_from_a_response(serve):
    async with serve(Reply(when="(?s)my name is Ada.*Hello.*what is", text="Ada"), Reply(text="Hello")) as served:
        client = served.client()
        first = await client.responses.create(model="q", input="my name is Ada")
        then = await client.responses.create(model="q", input="what is it?", previous_response_id=first.id)
        assert then.output_text == "Ada" and then.previous_response_id == first.id
        gone = await client.responses.create(model="q", input="x", store=False)
        for unknown in (gone.id, "resp_nothing"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(model="q", input="y", previous_response_id=unknown)


async def test_in_the_background_it_runs_on_and_can_be_followed_and_cancelled(serve):
    async with serve(Reply(text="word " * 500, tokens_per_second=200)) as served:
        client = served.client()
        begun = await client.responses.create(model="q", input="x", background=True, max_output_tokens=500)
        assert begun.status == "queued" and begun.output == []
        stream = await client.responses.retrieve(begun.id, stream=True, starting_after=2)
        async for event in stream:
            assert event.sequence_number >= 3
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        await asyncio.sleep(0.05)
        assert (await client.responses.retrieve(begun.id)).status == "in_progress", "a follower's leaving stops nothing"
        ended = await client.responses.cancel(begun.id)
        assert ended.status == "cancelled" and 0 < ended.usage.output_tokens < 500
        assert (await client.responses.cancel(begun.id)).status == "cancelled"
        rest = [event async for event in await client.responses.retrieve(begun.id, stream=True)]
        assert rest[0].type == "response.created" and rest[-1].response.status == "cancelled"
        done = await client.responses.create(model="q", input="x", background=True, max_output_tokens=3)
        while (now := await client.responses.retrieve(done.id)).status in ("queued", "in_progress"):
            await asyncio.sleep(0.005)
        assert now.status == "incomplete" and now.incomplete_details.reason == "max_output_tokens"


async def test_a_client_that_leaves_a_stream_stops_it(serve):
    async with serve(Reply(text="word " * 500, tokens_per_second=100)) as served:
        stream = await served.client().responses.create(model="q", input="x", stream=True, max_output_tokens=500)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        then = served.worker.counts["generated"]
        while served.worker.stats()["running"] or served.service.live:
            await asyncio.sleep(0.001)
        assert served.worker.counts["generated"] - then <= 2


async def test_the_oldest_responses_go(serve):
    async with serve("fine", keep_responses=2) as served:
        client = served.client()
        made = [await client.responses.create(model="q", input=str(number)) for number in range(4)]
        assert len(served.service.responses) == 2
        await client.responses.retrieve(made[-1].id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made[0].id)


async def test_a_failed_run_is_an_error(serve):
    async with serve(Reply(text="no memory", finish="error")) as served:
        client = served.client()
        with pytest.raises(openai.InternalServerError, match="the model's server failed"):
            await client.responses.create(model="q", input="x")
        events = [event async for event in await client.responses.create(model="q", input="x", stream=True)]
        assert events[-1].type == "response.failed" and "the model's server failed" in events[-1].response.error.message
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="q", input=[{"type": "computer_call", "id": "1"}])
        assert refused.value.param == "input[0].type" and refused.value.code == "unsupported_parameter"


@pytest.mark.parametrize("stream", [False, True])
async def test_functions_are_called_and_their_outputs_go_on(serve, stream):
    call = 'I look. <tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    async with serve(Reply(when="sunny", text="It is sunny."), Reply(text=call)) as served:
        client = served.client()
        tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]
        said = await client.responses.create(model="q", input="weather in Rome?", tools=tools, stream=stream)
        if stream:
            events = [event async for event in said]
            said = events[-1].response
            done = next(each for each in events if each.type == "response.function_call_arguments.done")
            assert done.arguments == '{"city": "Rome"}'
        assert [item.type for item in said.output] == ["message", "function_call"] and said.output_text == "I look."
        asked = said.output[1]
        then = await client.responses.create(
            model="q", previous_response_id=said.id, tools=tools,
            input=[{"type": "function_call_output", "call_id": asked.call_id, "output": "sunny"}],
        )  # fmt: skip
        assert then.output_text == "It is sunny."


async def test_what_is_asked_of_thoughts_is_told_again(serve):
    async with serve("4") as served:
        client = served.client()
        said = await client.responses.create(model="q", input="?", reasoning={"effort": "low"})
        assert said.reasoning.effort == "low"
        assert (await client.responses.create(model="q", input="?")).reasoning.effort is None


async def test_structured_responses_and_thoughts(serve):
    async with serve('<think>let me see</think>{"a": 1}') as served:
        client = served.client()
        form = {
            "type": "json_schema",
            "name": "x",
            "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        }
        said = await client.responses.create(model="q", input="?", text={"format": form})
        assert said.output_text.replace(" ", "") == '{"a":1}'
        stream = await client.responses.create(model="q", input="?", stream=True)
        last = [event async for event in stream][-1].response
        assert [item.type for item in last.output] == ["reasoning", "message"]
        assert last.output[0].content[0].text == "let me see"
