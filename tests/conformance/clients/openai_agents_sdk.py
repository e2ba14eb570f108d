"""The OpenAI Agents SDK."""

from __future__ import annotations

from importlib.metadata import version

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from expected import FINE, SUNNY, THREE, called, is_rome
from openai import AsyncOpenAI
from pydantic import BaseModel

VERSION = version("openai-agents")
set_tracing_disabled(True)


class City(BaseModel):
    name: str
    people: int


@function_tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


def of(base, model, kind=OpenAIChatCompletionsModel, **options):
    inner = kind(model=model, openai_client=AsyncOpenAI(base_url=base, api_key="none", max_retries=0))
    return Agent(name="a", instructions="Be brief.", model=inner, **options)


async def check_text(base, model):
    assert (await Runner.run(of(base, model), "hello")).final_output == FINE


async def check_streamed(base, model):
    running = Runner.run_streamed(of(base, model), "hello")
    events = [each.data async for each in running.stream_events() if each.type == "raw_response_event"]
    assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == FINE


async def check_tools(base, model):
    assert (await Runner.run(of(base, model, tools=[weather]), "the weather?")).final_output == SUNNY


async def check_a_tool_that_is_required(base, model):
    agent = of(
        base, model, tools=[weather], model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=False)
    )
    assert (await Runner.run(agent, "hello")).final_output == SUNNY


async def check_typed(base, model):
    assert is_rome((await Runner.run(of(base, model, output_type=City), "a city")).final_output)


async def check_handoff(base, model):
    other = of(base, model, handoff_description="knows the weather")
    other.name = "b"
    said = await Runner.run(of(base, model, handoffs=[other]), "the weather?")
    assert called(said.last_agent is other)


async def check_settings(base, model):
    settings = ModelSettings(
        temperature=0, top_p=0.9, max_tokens=50, store=False, extra_body={"top_k": 3}, verbosity="low"
    )
    assert (await Runner.run(of(base, model, model_settings=settings), "hello")).final_output == FINE


async def check_responses(base, model):
    kind = OpenAIResponsesModel
    assert (await Runner.run(of(base, model, kind), "hello")).final_output == FINE
    assert (await Runner.run(of(base, model, kind, tools=[weather]), "the weather?")).final_output == SUNNY
    assert (await Runner.run(of(base, model, kind, output_type=City), "a city")).final_output.people == THREE
