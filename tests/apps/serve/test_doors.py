"""The other doors: completions, Anthropic's messages, counting, and what the server says of itself."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply

openai: Any = pytest.importorskip("openai")
WEATHER = {
    "name": "weather",
    "description": "Tell the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
COUNT = " ".join(map(str, range(40)))
CALL = 'Let me look. <tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


@pytest.fixture
def claude(request: pytest.FixtureRequest) -> Any:
    """Make a client of Anthropic's for a server."""
    anthropic: Any = pytest.importorskip("anthropic")

    def of(served: Any, **options: Any) -> Any:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key=served.key, max_retries=0, **options)
        served.clients.push_async_callback(client.close)
        return client

    return of


# -- completions -------------------------------------------------------------------------------------------------------


async def test_a_completion_goes_on_from_its_text(serve: Any) -> None:
    async with serve(Reply(when=r"\AOnce upon\Z", text=" a time there was")) as served:
        said = await served.client().completions.create(model="q", prompt="Once upon", max_tokens=2, echo=True)
        (choice,) = said.choices
        assert choice.text == "Once upon a time" and choice.finish_reason == "length"
        assert said.object == "text_completion" and said.usage.completion_tokens == 2
        assert type(said).model_validate(said.model_dump(), strict=True)


async def test_a_completion_without_a_limit_has_sixteen_tokens(serve: Any) -> None:
    async with serve("w " * 40) as served:
        said = await served.client().completions.create(model="q", prompt="x")
        assert said.usage.completion_tokens == 16 and said.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_each_prompt_has_its_choices(serve: Any, stream: bool) -> None:
    replies = [Reply(when=f"prompt {letter}", text=f" said {letter}") for letter in "abc"]
    async with serve(*replies) as served:
        prompts = ["prompt a", "prompt b", "prompt c"]
        said = await served.client().completions.create(model="q", prompt=prompts, n=2, stream=stream)
        texts = [""] * 6
        for choice in [c async for chunk in said for c in chunk.choices] if stream else said.choices:
            texts[choice.index] += choice.text
        assert texts == [f" said {letter}" for letter in "aabbcc"]


async def test_thoughts_and_calls_are_text_in_a_completion(serve: Any) -> None:
    text = "<think>so</think> yes <tool_call>{}</tool_call>"
    async with serve(Reply(text=text)) as served:
        client = served.client()
        assert (await client.completions.create(model="q", prompt="x")).choices[0].text == text
        stream = await client.completions.create(model="q", prompt="x", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == text


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"prompt": [1, 2]}, "prompt"), ({"prompt": ""}, "prompt"), ({"suffix": "z"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": ["a"] * 100, "n": 2}, "n"), ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"tool_choice": "auto"}, "tool_choice"), ({"stream_options": {}}, "stream_options"),
    ],
)  # fmt: skip
async def test_what_a_completion_cannot_have_is_refused(serve: Any, field: Any, param: str) -> None:
    async with serve() as served, httpx.AsyncClient() as http:
        said = await http.post(f"{served.base}/completions", json={"model": "q", "prompt": "x", **field})
        assert said.status_code == 400 and said.json()["error"]["param"] == param, said.text
        assert served.worker.counts["requests"] == 0


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_a_message_has_its_blocks_and_usage(serve: Any, claude: Any) -> None:
    async with serve("<think>6 times 7</think>42.") as served:
        said = await claude(served).messages.create(
            model="q", max_tokens=50, system="Be brief.", messages=[{"role": "user", "content": "6 × 7?"}]
        )
        thought, text = said.content
        assert thought.type == "thinking" and thought.thinking == "6 times 7" and text.text == "42."
        assert said.stop_reason == "end_turn" and said.role == "assistant" and said.model == "q"
        assert said.usage.input_tokens > 0 and said.usage.output_tokens == 3
        assert type(said).model_validate(said.model_dump(), strict=True)


async def test_a_message_that_was_cut_says_so(serve: Any, claude: Any) -> None:
    async with serve("one two three") as served:
        said = await claude(served).messages.create(
            model="q", max_tokens=2, messages=[{"role": "user", "content": "?"}]
        )
        assert said.stop_reason == "max_tokens" and said.content[0].text == "one two"


async def test_a_message_is_streamed_while_it_is_written(serve: Any, claude: Any) -> None:
    async with serve(Reply(text=f"<think>hm hm</think>{COUNT}", tokens_per_second=100)) as served:
        async with claude(served).messages.stream(
            model="q", max_tokens=90, messages=[{"role": "user", "content": "count"}]
        ) as stream:
            events = [event async for event in stream]
        said = await stream.get_final_message()
        deltas = [
            event.delta.text
            for event in events
            if event.type == "content_block_delta" and event.delta.type == "text_delta"
        ]
        assert "".join(deltas) == COUNT and len(deltas) > 1
        assert [block.type for block in said.content] == ["thinking", "text"] and said.content[0].thinking == "hm hm"
        assert said.stop_reason == "end_turn" and said.usage.input_tokens > 0 and said.usage.output_tokens == 41


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_called_and_its_result_is_read(serve: Any, claude: Any, stream: bool) -> None:
    async with serve(Reply(when="sunny, 20", text="It is sunny."), Reply(text=CALL)) as served:
        client, asked = claude(served), [{"role": "user", "content": "The weather in Rome?"}]
        for _ in range(2):
            if stream:
                async with client.messages.stream(model="q", max_tokens=99, tools=[WEATHER], messages=asked) as events:
                    said = await events.get_final_message()
            else:
                said = await client.messages.create(model="q", max_tokens=99, tools=[WEATHER], messages=asked)
            if said.stop_reason != "tool_use":
                break
            text, call = said.content
            assert text.text == "Let me look." and (call.name, call.input) == ("weather", {"city": "Rome"})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny, 20"}]}
            asked += [{"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
        assert said.content[0].text == "It is sunny." and served.worker.counts["requests"] == 2


async def test_what_the_user_says_beside_a_result_is_read(serve: Any, claude: Any) -> None:
    """As Claude Code sends it: a result, and a reminder behind it in the same message."""
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "sunny", "is_error": True}
    async with serve(Reply(when=r"Error: sunny(.|\n)*and quickly", text="both"), Reply(text="not both")) as served:
        said = await claude(served).messages.create(
            model="q", max_tokens=9, tools=[WEATHER],
            messages=[
                {"role": "user", "content": "The weather?"},
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result, {"type": "text", "text": "and quickly"}]},
            ],
        )  # fmt: skip
        assert said.content[0].text == "both"


async def test_a_turn_that_is_begun_is_gone_on_from(serve: Any, claude: Any) -> None:
    async with serve(Reply(when=r"The answer is\Z", text=" 42"), Reply(text="anew")) as served:
        said = await claude(served).messages.create(
            model="q", max_tokens=9,
            messages=[{"role": "user", "content": "6 × 7?"}, {"role": "assistant", "content": "The answer is"}],
        )  # fmt: skip
        assert said.content[0].text == " 42"


async def test_branches_are_blocks_of_thoughts(serve: Any, claude: Any) -> None:
    async with serve("a b answer: 1") as served:
        async with claude(served).messages.stream(
            model="plait/sample:n=2", max_tokens=50, messages=[{"role": "user", "content": "?"}],
            extra_body={"plait": {"steps": True}},
        ) as stream:  # fmt: skip
            said = await stream.get_final_message()
        *thoughts, text = said.content
        assert [block.thinking for block in thoughts] == ["a b answer: 1"] * 2 and text.text == "1"


@pytest.mark.parametrize(
    ("field", "status", "kind"),
    [
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, 400, "invalid_request_error"),
        ({"max_tokens": None}, 400, "invalid_request_error"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            400,
            "invalid_request_error",
        ),
        ({"tool_choice": {"type": "tool", "name": "f"}}, 400, "invalid_request_error"),
        ({"mcp_servers": [{"type": "url"}]}, 400, "invalid_request_error"),
        ({"model": "plait/nobody"}, 400, "invalid_request_error"),
    ],
)
async def test_mistakes_are_told_in_anthropics_form(serve: Any, field: Any, status: int, kind: str) -> None:
    ask = {"model": "q", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    async with serve() as served, httpx.AsyncClient() as http:
        said = await http.post(f"{served.base}/messages", json={**ask, **field})
        assert said.status_code == status, said.text
        assert (
            said.json()["type"] == "error" and said.json()["error"]["type"] == kind and said.json()["error"]["message"]
        )
        assert served.worker.counts["requests"] == 0


async def test_errors_are_anthropics_exceptions(serve: Any, claude: Any) -> None:
    import anthropic

    ask: Any = {"model": "q", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    async with serve(Reply(text="no memory", finish="error")) as served:
        client = claude(served)
        with pytest.raises(anthropic.InternalServerError, match="the model's server failed"):
            await client.messages.create(**ask)
        with pytest.raises(anthropic.APIError, match="the model's server failed"):
            async with client.messages.stream(**ask) as stream:
                await stream.get_final_message()


async def test_anthropics_key_is_a_tenants_key(serve: Any) -> None:
    from plait_server.tenants import hashed

    tenants = ({"name": "ann", "keys": (hashed("secret"),)},)
    ask = {"model": "q", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    async with serve(tenants=tenants) as served, httpx.AsyncClient() as http:
        address = f"{served.base}/messages"
        assert (await http.post(address, json=ask, headers={"x-api-key": "secret"})).status_code == 200
        wrong = await http.post(address, json=ask, headers={"x-api-key": "other"})
        assert wrong.status_code == 401 and wrong.json()["error"]["type"] == "authentication_error"


# -- counting, and the server itself -----------------------------------------------------------------------------------


async def test_tokens_are_counted_before_anything_runs(serve: Any, claude: Any) -> None:
    async with serve() as served:
        count = await claude(served).messages.count_tokens(model="q", messages=[{"role": "user", "content": "a b c d"}])
        responses = await served.client().responses.input_tokens.count(model="q", input="a b c d")
        assert count.input_tokens == responses.input_tokens == 4
        assert served.worker.counts["requests"] == 0


async def test_tokens_that_nobody_can_count_are_estimated(serve: Any) -> None:
    async with serve() as served, httpx.AsyncClient() as http:
        served.worker.counts_tokens = False
        said = await http.post(f"{served.base}/responses/input_tokens", json={"model": "q", "input": "x" * 401})
        assert said.json() == {"object": "response.input_tokens", "input_tokens": 101, "estimated": True}


async def test_health_version_and_interface(serve: Any) -> None:
    import plait

    async with serve() as served, httpx.AsyncClient(base_url=served.url) as http:
        health = await http.get("/health")
        assert health.status_code == 200 and not health.content
        assert (await http.get("/version")).json() == {"version": plait.__version__}
        said = (await http.get("/openapi.json")).json()
        asked = {f"{method} {path}" for path, methods in said["paths"].items() for method in methods}
        assert {"post /v1/chat/completions", "post /v1/messages", "get /v1/responses/{id}", "get /metrics"} <= asked
        schema = said["paths"]["/v1/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        name = schema["$ref"].rpartition("/")[2]
        assert {"model", "messages"} <= set(said["components"]["schemas"][name]["required"])
        assert "#/$defs/" not in json.dumps(said)
        served.service.closing = True
        assert (await http.get("/health")).status_code == 503
