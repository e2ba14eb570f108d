"""pydantic-ai, over chat and over responses."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE, SUNNY, THREE, Count, Text, grows, is_rome
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from typing_extensions import TypedDict

VERSION = version("pydantic-ai-slim")


class City(BaseModel):
    name: str
    people: int


def of(base, model, kind=OpenAIChatModel):
    return kind(model, provider=OpenAIProvider(base_url=base, api_key="none"))


def with_weather(agent):
    @agent.tool_plain
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"sun in {city}"

    return agent


async def check_text(base, model):
    assert (await Agent(of(base, model)).run("hello")).output == FINE


async def check_streamed(base, model):
    async with Agent(of(base, model)).run_stream("hello") as said:
        assert "".join([each async for each in said.stream_text(delta=True)]) == FINE


async def check_tools(base, model):
    said = await with_weather(Agent(of(base, model))).run("the weather in Rome?")
    assert said.output == SUNNY


async def check_two_calls_at_once(base, model):
    said = await with_weather(Agent(of(base, model))).run("the weather in both?")
    assert said.output == SUNNY and sum(
        "tool-return" == part.part_kind for each in said.all_messages() for part in each.parts
    ) == Count(2)


async def check_default_output_type(base, model):
    assert is_rome((await Agent(of(base, model), output_type=City).run("a city")).output)


async def check_default_output_type_after_a_tool(base, model):
    assert (await with_weather(Agent(of(base, model), output_type=City)).run("the weather?")).output.people == THREE


async def check_native_and_prompted_output(base, model):
    assert is_rome((await Agent(of(base, model), output_type=NativeOutput(City)).run("a city")).output)
    prompted = Agent(of(base, model), output_type=PromptedOutput(City))
    assert is_rome((await prompted.run('SAY<{"name": "Rome", "people": 3}>')).output)


async def check_output_streamed(base, model):
    async with Agent(of(base, model), output_type=City).run_stream("a city") as said:
        assert is_rome([each async for each in said.stream_output()][-1])


class Trip(TypedDict, total=False):
    first: str
    second: str
    third: str
    fourth: str
    fifth: str
    sixth: str


async def check_partial_states(base, model):
    for kind in (Trip, NativeOutput(Trip)):
        async with Agent(of(base, model), output_type=kind).run_stream("SLOWLY a trip") as said:
            assert grows([each async for each in said.stream_output(debounce_by=None)]), kind


async def check_history(base, model):
    agent = Agent(of(base, model), instructions="Be brief.")
    first = await agent.run("hello")
    assert (await agent.run("SAY<again>", message_history=first.all_messages())).output == Text("again")


async def check_a_tool_that_asks_again(base, model):
    agent, tries = Agent(of(base, model), output_type=City), []

    @agent.output_validator
    def once_more(city: City) -> City:
        tries.append(city)
        if len(tries) < 2:
            raise ModelRetry("again, please")
        return city

    assert is_rome((await agent.run("a city")).output) and len(tries) == 2


async def check_responses(base, model):
    over = of(base, model, OpenAIResponsesModel)
    assert (await Agent(over).run("hello")).output == FINE
    assert (await with_weather(Agent(over)).run("the weather?")).output == SUNNY
    assert is_rome((await Agent(over, output_type=City).run("a city")).output)
