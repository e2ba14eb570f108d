"""Semantic Kernel."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE, SUNNY, called, is_rome
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

VERSION = version("semantic-kernel")


class City(BaseModel):
    name: str
    people: int


class Weather:
    """A plugin that notes what it was asked."""

    def __init__(self):
        self.cities = []

    @kernel_function(description="Tell the weather.")
    def weather(self, city: str) -> str:
        self.cities.append(city)
        return f"sun in {city}"


def of(base, model):
    client = AsyncOpenAI(base_url=base, api_key="none", max_retries=0)
    return OpenAIChatCompletion(ai_model_id=model, async_client=client)


def history(text):
    chat = ChatHistory()
    chat.add_user_message(text)
    return chat


def with_weather():
    kernel, plugin = Kernel(), Weather()
    kernel.add_plugin(plugin, "sky")
    settings = OpenAIChatPromptExecutionSettings(function_choice_behavior=FunctionChoiceBehavior.Auto())
    return kernel, plugin, settings


async def check_text(base, model):
    settings = OpenAIChatPromptExecutionSettings()
    assert str(await of(base, model).get_chat_message_content(history("hello"), settings)) == FINE


async def check_streamed(base, model):
    settings = OpenAIChatPromptExecutionSettings()
    pieces = of(base, model).get_streaming_chat_message_content(history("hello"), settings)
    assert "".join([str(piece) async for piece in pieces]) == FINE


async def check_functions(base, model):
    kernel, plugin, settings = with_weather()
    chat = history("the weather in Rome?")
    answer = await of(base, model).get_chat_message_content(chat, settings, kernel=kernel)
    assert called(plugin.cities) and str(answer) == SUNNY


async def check_functions_streamed(base, model):
    kernel, plugin, settings = with_weather()
    chat = history("the weather in Rome?")
    pieces = of(base, model).get_streaming_chat_message_content(chat, settings, kernel=kernel)
    text = "".join([str(piece) async for piece in pieces])
    assert called(plugin.cities) and text == SUNNY


async def check_response_format(base, model):
    settings = OpenAIChatPromptExecutionSettings(response_format=City)
    answer = await of(base, model).get_chat_message_content(history("a city"), settings)
    assert is_rome(City.model_validate_json(str(answer)))


async def check_agent(base, model):
    plugin = Weather()
    agent = ChatCompletionAgent(service=of(base, model), name="helper", plugins=[plugin])
    answer = await agent.get_response(messages="the weather in Rome?")
    assert called(plugin.cities) and str(answer) == SUNNY
