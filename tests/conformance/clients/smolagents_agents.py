"""smolagents."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE, called
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

VERSION = version("smolagents")


@tool
def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: where.
    """
    return "sun"


def of(base, model):
    return OpenAIServerModel(model_id=model, api_base=base, api_key="none")


def check_model(base, model):
    said = of(base, model).generate([{"role": "user", "content": [{"type": "text", "text": "hello"}]}])
    assert said.content == FINE


def check_streamed(base, model):
    pieces = of(base, model).generate_stream([{"role": "user", "content": [{"type": "text", "text": "hello"}]}])
    assert "".join(each.content or "" for each in pieces) == FINE


def check_tool_calling_agent(base, model):
    agent = ToolCallingAgent(tools=[weather], model=of(base, model), max_steps=3, verbosity_level=0)
    assert agent.run("the weather in Rome?")
    assert called(any(getattr(step, "tool_calls", None) for step in agent.memory.steps))
