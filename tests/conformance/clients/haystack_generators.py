"""Haystack."""

from __future__ import annotations

import os
from importlib.metadata import version

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from expected import FINE, SUNNY, called, is_rome
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from pydantic import BaseModel

VERSION = version("haystack-ai")


class City(BaseModel):
    name: str
    people: int


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


def of(base, model, **options):
    return OpenAIChatGenerator(model=model, api_base_url=base, max_retries=0, **options)


def ask(generator, text):
    return generator.run([ChatMessage.from_user(text)])["replies"][0].text


def check_text(base, model):
    assert ask(of(base, model), "hello") == FINE


def check_streamed(base, model):
    pieces = []
    reply = ask(of(base, model, streaming_callback=lambda chunk: pieces.append(chunk.content)), "hello")
    assert "".join(pieces) == FINE and reply == FINE


def check_agent_with_a_tool(base, model):
    messages = Agent(chat_generator=of(base, model), tools=[weather]).run(
        messages=[ChatMessage.from_user("the weather in Rome?")]
    )["messages"]
    assert called([message for message in messages if message.tool_call_result])
    assert messages[-1].text == SUNNY


def check_agent_streamed(base, model):
    pieces = []
    agent = Agent(chat_generator=of(base, model), tools=[weather])
    question = [ChatMessage.from_user("the weather in Rome?")]
    answer = agent.run(messages=question, streaming_callback=lambda chunk: pieces.append(chunk))["messages"][-1].text
    assert called([piece for piece in pieces if piece.tool_call_result])
    assert answer == SUNNY


def check_response_format(base, model):
    reply = ask(of(base, model, generation_kwargs={"response_format": City}), "a city")
    assert is_rome(City.model_validate_json(reply))


def check_pipeline(base, model):
    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder([ChatMessage.from_user("{{word}}")], required_variables="*"))
    pipeline.add_component("model", of(base, model))
    pipeline.connect("prompt", "model")
    assert pipeline.run({"prompt": {"word": "hello"}})["model"]["replies"][0].text == FINE
