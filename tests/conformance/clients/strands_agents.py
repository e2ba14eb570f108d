"""Strands Agents."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE, SUNNY, called, is_rome
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel

VERSION = version("strands-agents")


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


def of(base, model, **options):
    served = OpenAIModel(client_args={"base_url": base, "api_key": "none"}, model_id=model)
    return Agent(model=served, callback_handler=None, **options)


def check_text(base, model):
    assert str(of(base, model)("hello")).strip() == FINE


async def check_streamed(base, model):
    events = [event async for event in of(base, model).stream_async("hello")]
    assert "".join(event["data"] for event in events if "data" in event) == FINE


def check_tools(base, model):
    agent = of(base, model, tools=[weather])
    answer = agent("the weather in Rome?")
    assert called([part for message in agent.messages for part in message["content"] if "toolResult" in part])
    assert str(answer).strip() == SUNNY


def check_structured_output(base, model):
    assert is_rome(of(base, model)("a city", structured_output_model=City).structured_output)


def check_history(base, model):
    agent = of(base, model)
    agent("hello")
    assert str(agent("hello again")).strip() == FINE and len(agent.messages) == 4
