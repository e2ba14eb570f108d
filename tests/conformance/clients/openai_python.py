"""The `openai` package."""

from __future__ import annotations

import json

import openai
from expected import FINE, SUNNY, THREE, Text, called, is_rome
from pydantic import BaseModel

VERSION = openai.__version__
ASK = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    name: str
    people: int


def of(base):
    return openai.OpenAI(base_url=base, api_key="none", max_retries=0)


def check_chat(base, model):
    said = of(base).chat.completions.create(model=model, messages=ASK)
    choice = said.choices[0]
    assert choice.message.content == FINE and choice.finish_reason == "stop" and said.usage.completion_tokens > 0


def check_chat_streamed(base, model):
    stream = of(base).chat.completions.create(
        model=model, messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == FINE
    assert (
        chunks[-1].usage.completion_tokens > 0
        and [each for each in chunks if each.choices][-1].choices[0].finish_reason == "stop"
    )


def check_parts_and_system(base, model):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    talk = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": "ann"}]
    assert of(base).chat.completions.create(model=model, messages=talk).choices[0].message.content == FINE


def check_stop_and_length(base, model):
    client = of(base).chat.completions
    whole = client.create(model=model, messages=ASK).choices[0].message.content
    stop = f" {whole.split()[-1]}"
    stopped = client.create(model=model, messages=ASK, stop=stop).choices[0]
    assert stopped.message.content == whole.partition(stop)[0] and stopped.finish_reason == "stop"
    cut = client.create(model=model, messages=ASK, max_tokens=1).choices[0]
    assert cut.finish_reason == "length" and cut.message.content == whole[: len(cut.message.content)] != whole
    assert client.create(model=model, messages=ASK, max_completion_tokens=1).choices[0].finish_reason == "length"


def check_n_choices(base, model):
    said = of(base).chat.completions.create(model=model, messages=ASK, n=3)
    assert [choice.index for choice in said.choices] == [0, 1, 2] and said.choices[2].message.content == FINE


def check_n_choices_streamed(base, model):
    texts = {}
    for chunk in of(base).chat.completions.create(model=model, messages=ASK, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {0: FINE, 1: FINE}


def check_logprobs(base, model):
    said = of(base).chat.completions.create(model=model, messages=ASK, logprobs=True, top_logprobs=2)
    tokens = said.choices[0].logprobs.content
    text = said.choices[0].message.content
    assert text == FINE and "".join(each.token for each in tokens).startswith(text)
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 2 for each in tokens)


def check_tools_two_turns(base, model):
    client, talk = of(base).chat.completions, [{"role": "user", "content": "the weather in Rome?"}]
    first = client.create(model=model, messages=talk, tools=[WEATHER]).choices[0]
    call = called(first.message.tool_calls)[0]
    assert call.function.name == "weather" and call.function.arguments and first.finish_reason == "tool_calls"
    talk += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    assert client.create(model=model, messages=talk, tools=[WEATHER]).choices[0].message.content == SUNNY
    talk += [{"role": "assistant", "content": SUNNY}, {"role": "user", "content": "SAY<thanks>"}]
    assert client.create(model=model, messages=talk, tools=[WEATHER]).choices[0].message.content == Text("thanks")


def check_user_speaks_after_a_tool(base, model):
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    talk = [
        {"role": "user", "content": "the weather?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "sun"},
        {"role": "user", "content": "SAY<two>"},
    ]
    assert of(base).chat.completions.create(model=model, messages=talk).choices[0].message.content == Text("two")


def check_tools_required_and_named(base, model):
    client = of(base).chat.completions
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        said = client.create(model=model, messages=ASK, tools=[WEATHER], tool_choice=choice).choices[0]
        assert [call.function.name for call in said.message.tool_calls] == ["weather"]


def check_tools_streamed(base, model):
    name = arguments = ""
    talk = [{"role": "user", "content": "the weather in Rome?"}]
    for chunk in of(base).chat.completions.create(model=model, messages=talk, tools=[WEATHER], stream=True):
        for call in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            name, arguments = name + (call.function.name or ""), arguments + (call.function.arguments or "")
    assert called(name) == "weather" and "city" in arguments


def check_tools_and_a_form(base, model):
    client, talk = of(base).chat.completions, [{"role": "user", "content": "the weather in Rome?"}]
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    said = client.parse(model=model, messages=talk, tools=[strict], response_format=City).choices[0].message
    assert {call.function.name for call in called(said.tool_calls)} == {"weather"}
    talk += [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "sun"}]
    answer = client.parse(model=model, messages=talk, tools=[], response_format=City).choices[0].message
    assert answer.parsed.people == THREE


def check_parallel_calls(base, model):
    talk = [{"role": "user", "content": "the weather in both?"}]
    for parallel, many in ((True, 2), (False, 1)):
        said = of(base).chat.completions.create(
            model=model, messages=talk, tools=[WEATHER], parallel_tool_calls=parallel
        )
        calls = called(said.choices[0].message.tool_calls)
        assert len({call.id for call in calls}) == len(calls) == (many if parallel else 1)


def check_ids_of_calls_differ_between_turns(base, model):
    client, talk, ids = of(base).chat.completions, [{"role": "user", "content": "the weather in Rome?"}], []
    for _ in range(2):
        said = client.create(model=model, messages=talk, tools=[WEATHER], tool_choice="required").choices[0].message
        ids.append(said.tool_calls[0].id)
        talk += [said, {"role": "tool", "tool_call_id": ids[-1], "content": "sun"}]
    assert len(set(ids)) == 2


def check_parse(base, model):
    said = of(base).chat.completions.parse(model=model, messages=ASK, response_format=City)
    assert is_rome(said.choices[0].message.parsed)


def check_json_object(base, model):
    said = of(base).chat.completions.create(model=model, messages=ASK, response_format={"type": "json_object"})
    assert isinstance(json.loads(said.choices[0].message.content), dict)


def check_parse_cut_at_its_length(base, model):
    try:
        of(base).chat.completions.parse(model=model, messages=ASK, response_format=City, max_tokens=1)
    except openai.LengthFinishReasonError:
        return
    raise AssertionError("no LengthFinishReasonError")


def check_structured_outputs_of_vllm(base, model):
    more = {"structured_outputs": {"choice": ["yes", "no"]}}
    said = of(base).chat.completions.create(model=model, messages=ASK, extra_body=more).choices[0].message.content
    assert said in ("yes", "no") and said == Text("yes")


def check_fields_of_vllm(base, model):
    more = {"min_tokens": 1, "ignore_eos": False, "stop_token_ids": [7], "top_k": 3, "min_p": 0.1, "cache_salt": "x",
            "repetition_penalty": 1.1, "skip_special_tokens": True, "priority": 0, "add_generation_prompt": True,
            "chat_template_kwargs": {"enable_thinking": False}, "vllm_xargs": {"a": 1}, "nvext": {}}  # fmt: skip
    said = of(base).chat.completions.create(model=model, messages=ASK, extra_body=more, user="ann", seed=1)
    assert said.choices[0].message.content == FINE


def check_the_stop_text_is_kept(base, model):
    more = {"include_stop_str_in_output": True}
    client = of(base).chat.completions
    whole = client.create(model=model, messages=ASK).choices[0].message.content
    stop = whole.split()[1]
    said = client.create(model=model, messages=ASK, stop=[stop], extra_body=more)
    assert said.choices[0].message.content == whole.partition(stop)[0] + stop


def check_continue_final_message(base, model):
    talk = [*ASK, {"role": "assistant", "content": "SAY<and more>"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    said = of(base).chat.completions.create(model=model, messages=talk, extra_body=more)
    assert said.choices[0].message.content == Text("and more")


def check_the_assistant_spoke_last(base, model):
    talk = [*ASK, {"role": "assistant", "content": "hm"}]
    assert of(base).chat.completions.create(model=model, messages=talk).choices[0].message.content == FINE


def check_errors_have_their_classes(base, model):
    client = of(base)
    for kind, fields in (
        (openai.NotFoundError, {"model": "nobody", "messages": ASK}),
        (openai.BadRequestError, {"model": model, "messages": []}),
        (openai.BadRequestError, {"model": model, "messages": ASK, "temperature": 9}),
    ):
        try:
            client.chat.completions.create(**fields)
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__}")


def check_models(base, model):
    client = of(base)
    assert model in [each.id for each in client.models.list()] and client.models.retrieve(model).id == model


def check_text_completion(base, model):
    said = of(base).completions.create(model=model, prompt="hello", max_tokens=9)
    assert said.choices[0].text.strip() == FINE and said.usage.completion_tokens > 0


def check_text_completion_streamed(base, model):
    stream = of(base).completions.create(model=model, prompt="hello", stream=True)
    assert "".join(each.choices[0].text for each in stream if each.choices).strip() == FINE


def check_responses(base, model):
    said = of(base).responses.create(model=model, input="hello", instructions="Be brief.")
    assert said.output_text == FINE and said.status == "completed"
    again = of(base).responses.create(model=model, input="SAY<again>", previous_response_id=said.id)
    assert again.output_text == Text("again")


def check_responses_streamed(base, model):
    kinds, text = [], ""
    for event in of(base).responses.create(model=model, input="hello", stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == FINE and kinds[0] == "response.created" and kinds[-1] == "response.completed"


def check_responses_tools_and_parse(base, model):
    client, tool = of(base).responses, {"type": "function", **WEATHER["function"], "strict": False}
    said = client.create(model=model, input="the weather in Rome?", tools=[tool])
    call = called([each for each in said.output if each.type == "function_call"])[0]
    told = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    assert client.create(model=model, input=[told], previous_response_id=said.id, tools=[tool]).output_text == SUNNY
    assert is_rome(client.parse(model=model, input="a city", text_format=City).output_parsed)


def check_custom_tool(base, model):
    tool = {"type": "custom", "custom": {"name": "weather", "description": "Tell it."}}
    talk = [{"role": "user", "content": "the weather?"}]
    client = of(base).chat.completions
    message = client.create(model=model, messages=talk, tools=[tool]).choices[0].message
    call = called(message.tool_calls)[0]
    assert call.type == "custom" and call.custom.name == "weather" and call.custom.input
    talk += [message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    assert client.create(model=model, messages=talk, tools=[tool]).choices[0].message.content == SUNNY


def check_responses_custom_tool(base, model):
    tool = {"type": "custom", "name": "weather", "description": "Tell it."}
    output = of(base).responses.create(model=model, input="the weather?", tools=[tool]).output
    call = called([item for item in output if item.type != "message"])[0]
    assert call.type == "custom_tool_call" and call.name == "weather" and call.input


def check_allowed_tools(base, model):
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    named = [{"type": "function", "function": {"name": "other"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    answer = of(base).chat.completions.create(model=model, messages=ASK, tools=[WEATHER, other], tool_choice=choice)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["other"]


def check_stored_completions(base, model):
    client = of(base).chat.completions
    made = client.create(model=model, messages=ASK, store=True, metadata={"for": "conformance"})
    assert client.retrieve(made.id).choices[0].message.content == made.choices[0].message.content
    assert made.id in [kept.id for kept in client.list(metadata={"for": "conformance"})]
    assert client.messages.list(made.id).data[0].content == "hello"
    assert client.delete(made.id).deleted


async def check_async_client_many_at_once(base, model):
    import asyncio

    async with openai.AsyncOpenAI(base_url=base, api_key="none") as client:
        asked = [client.chat.completions.create(model=model, messages=ASK) for _ in range(20)]
        assert all(answer.choices[0].message.content == FINE for answer in await asyncio.gather(*asked))
