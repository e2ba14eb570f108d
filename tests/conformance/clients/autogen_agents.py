"""AutoGen."""

from __future__ import annotations

from importlib.metadata import version

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, ToolCallExecutionEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from expected import FINE, SUNNY, called, is_rome
from pydantic import BaseModel

VERSION = version("autogen-agentchat")
ABLE = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown", "structured_output": True}


class City(BaseModel):
    name: str
    people: int


async def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


def of(base, model):
    return OpenAIChatCompletionClient(model=model, base_url=base, api_key="none", model_info=ABLE, max_retries=0)


async def check_text(base, model):
    answer = await of(base, model).create([UserMessage(content="hello", source="user")])
    assert answer.content == FINE


async def check_streamed(base, model):
    agent = AssistantAgent("helper", model_client=of(base, model), model_client_stream=True)
    events = [event async for event in agent.run_stream(task="SLOWLY hello")]
    pieces = [event.content for event in events if isinstance(event, ModelClientStreamingChunkEvent)]
    assert "".join(pieces) == FINE and len(pieces) > 1


async def check_tools(base, model):
    agent = AssistantAgent("helper", model_client=of(base, model), tools=[weather], reflect_on_tool_use=True)
    messages = (await agent.run(task="the weather in Rome?")).messages
    assert called([message for message in messages if isinstance(message, ToolCallExecutionEvent)])
    assert messages[-1].content == SUNNY


async def check_output_content_type(base, model):
    agent = AssistantAgent("helper", model_client=of(base, model), output_content_type=City)
    assert is_rome((await agent.run(task="a city")).messages[-1].content)


async def check_team(base, model):
    agents = [AssistantAgent(name, model_client=of(base, model)) for name in ("first", "second")]
    team = RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3))
    messages = (await team.run(task="hello")).messages
    assert [message.source for message in messages] == ["user", "first", "second"]
    assert messages[1].content == FINE and messages[2].content == FINE
