"""LlamaIndex."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE, SUNNY, is_rome
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

VERSION = f"{version('llama-index-core')}, {version('llama-index-llms-openai-like')}"


class City(BaseModel):
    """A city."""

    name: str
    people: int


def of(base, model, **options):
    given = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0, "temperature": 0, **options}
    return OpenAILike(model=model, api_base=base, api_key="none", **given)


def check_complete_and_chat(base, model):
    llm = of(base, model)
    assert llm.complete("hello").text == FINE
    assert llm.chat([ChatMessage(role="user", content="hello")]).message.content == FINE


def check_streamed(base, model):
    assert "".join(each.delta for each in of(base, model).stream_complete("hello")) == FINE


def check_structured(base, model):
    assert is_rome(of(base, model).as_structured_llm(City).complete("a city").raw)


async def check_function_agent(base, model):
    def weather(city: str) -> str:
        """Tell the weather."""
        return "sun"

    agent = FunctionAgent(tools=[weather], llm=of(base, model))
    assert SUNNY.within(str(await agent.run("the weather in Rome?")))


def check_text_completion(base, model):
    assert of(base, model, is_chat_model=False).complete("hello").text.strip() == FINE
