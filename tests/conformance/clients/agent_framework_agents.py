"""Microsoft's Agent Framework, over chat and over responses."""

from __future__ import annotations

from importlib.metadata import version

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from expected import FINE, SUNNY, called, is_rome
from pydantic import BaseModel

VERSION = version("agent-framework-core")


class City(BaseModel):
    name: str
    people: int


def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


def of(base, model, client=OpenAIChatCompletionClient, **options):
    return Agent(client=client(model=model, base_url=base, api_key="none"), **options)


def results_of(answer):
    return [part for message in answer.messages for part in message.contents if part.type == "function_result"]


async def check_text(base, model):
    assert (await of(base, model).run("hello")).text == FINE


async def check_streamed(base, model):
    pieces = [piece.text or "" async for piece in of(base, model).run("hello", stream=True)]
    assert "".join(pieces) == FINE


async def check_tools(base, model):
    answer = await of(base, model, tools=[weather]).run("the weather in Rome?")
    assert called(results_of(answer)) and answer.text == SUNNY


async def check_tools_streamed(base, model):
    stream = of(base, model, tools=[weather]).run("the weather in Rome?", stream=True)
    text = "".join([piece.text or "" async for piece in stream])
    assert called(results_of(await stream.get_final_response())) and text == SUNNY


async def check_response_format(base, model):
    answer = await of(base, model).run("a city", options={"response_format": City})
    assert is_rome(answer.value)


async def check_responses(base, model):
    agent = of(base, model, OpenAIChatClient, tools=[weather])
    answer = await agent.run("the weather in Rome?")
    assert called(results_of(answer)) and answer.text == SUNNY


async def check_responses_streamed(base, model):
    stream = of(base, model, OpenAIChatClient).run("hello", stream=True)
    pieces = [piece.text async for piece in stream if piece.text]
    answer = (await stream.get_final_response()).text  # the last event, with the whole text, replaces the pieces
    assert answer == FINE and len(pieces) > 1
