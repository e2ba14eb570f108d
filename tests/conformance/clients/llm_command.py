"""`llm`, Simon Willison's."""

from __future__ import annotations

from importlib.metadata import version

import llm
from expected import FINE, SUNNY, THREE, Text
from llm.default_plugins.openai_models import Chat
from pydantic import BaseModel

VERSION = version("llm")


class City(BaseModel):
    name: str
    people: int


def of(base, model, **options):
    return Chat(model, model_name=model, api_base=base, key="none", **options)


def check_prompt(base, model):
    assert of(base, model).prompt("hello", stream=False, key="none").text() == FINE
    assert of(base, model).prompt("hello", key="none").text() == FINE


def check_schema(base, model):
    said = of(base, model, supports_schema=True).prompt("a city", schema=City, key="none").text()
    assert City.model_validate_json(said).people == THREE


def check_functions(base, model):
    def weather(city: str) -> str:
        """Tell the weather."""
        return "sun"

    said = of(base, model, supports_tools=True).chain("the weather?", tools=[weather], key="none")
    assert SUNNY.within(said.text())


def check_conversation(base, model):
    talk = llm.Conversation(model=of(base, model))
    assert talk.prompt("hello", key="none").text() == FINE
    assert talk.prompt("SAY<again>", key="none").text() == Text("again")
