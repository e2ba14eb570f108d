"""Agno."""

from __future__ import annotations

from importlib.metadata import version

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from expected import FINE, SUNNY, called, is_rome
from pydantic import BaseModel

VERSION = version("agno")


class City(BaseModel):
    name: str
    people: int


def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


def of(base, model, **options):
    return Agent(model=OpenAILike(id=model, base_url=base, api_key="none"), telemetry=False, **options)


def check_text(base, model):
    assert of(base, model).run("hello").content == FINE


def check_streamed(base, model):
    pieces = of(base, model).run("hello", stream=True)
    assert "".join(str(piece.content or "") for piece in pieces if piece.event == "RunContent") == FINE


def check_tools(base, model):
    run = of(base, model, tools=[weather]).run("the weather in Rome?")
    assert called(run.tools) and run.content == SUNNY


def check_tools_streamed(base, model):
    events = list(of(base, model, tools=[weather]).run("the weather in Rome?", stream=True, stream_events=True))
    assert called([event for event in events if event.event == "ToolCallCompleted"])
    assert "".join(str(event.content or "") for event in events if event.event == "RunContent") == SUNNY


async def check_asynchronous(base, model):
    assert (await of(base, model).arun("hello")).content == FINE


def check_output_schema(base, model):
    assert is_rome(of(base, model, output_schema=City).run("a city").content)
    assert is_rome(of(base, model, output_schema=City, use_json_mode=True).run("a city").content)
