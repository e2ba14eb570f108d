"""LiteLLM as a library."""

from __future__ import annotations

from importlib.metadata import version

import litellm
from expected import FINE, THREE
from pydantic import BaseModel

VERSION = version("litellm")
ASK = [{"role": "user", "content": "hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}  # fmt: skip


class City(BaseModel):
    name: str
    people: int


def ask(base, model, provider="openai", **more):
    given = {"messages": ASK, "api_base": base, "api_key": "none", "max_retries": 0, **more}
    return litellm.completion(model=f"{provider}/{model}", **given)


def check_text(base, model):
    for provider in ("openai", "hosted_vllm", "litellm_proxy"):
        assert ask(base, model, provider).choices[0].message.content == FINE


def check_streamed(base, model):
    assert "".join(each.choices[0].delta.content or "" for each in ask(base, model, stream=True)) == FINE


def check_schema(base, model):
    assert City.model_validate_json(ask(base, model, response_format=City).choices[0].message.content).people == THREE


def check_tools(base, model):
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        said = ask(base, model, tools=[WEATHER], tool_choice=choice)
        assert said.choices[0].message.tool_calls[0].function.name == "weather"


def check_fields_of_vllm(base, model):
    assert ask(base, model, "hosted_vllm", top_k=3, min_p=0.1, ignore_eos=False).choices[0].message.content == FINE


async def check_async(base, model):
    said = await litellm.acompletion(model=f"openai/{model}", messages=ASK, api_base=base, api_key="none")
    assert said.choices[0].message.content == FINE


def check_errors(base, model):
    for kind, more in ((litellm.NotFoundError, {}), (litellm.BadRequestError, {"temperature": 9})):
        try:
            ask(base, "nobody" if not more else model, **more)
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__}")


def check_text_completion(base, model):
    said = litellm.text_completion(
        model=f"text-completion-openai/{model}", prompt="hello", api_base=base, api_key="none"
    )
    assert said.choices[0].text.strip() == FINE


def check_responses(base, model):
    said = litellm.responses(model=f"openai/{model}", input="hello", api_base=base, api_key="none")
    assert said.output_text == FINE


async def check_anthropic_messages(base, model):
    said = await litellm.anthropic_messages(
        model=f"hosted_vllm/{model}", messages=ASK, max_tokens=50, api_base=base, api_key="none"
    )
    assert said["content"][0]["text"] == FINE
