"""Outlines, over `openai` and over vLLM's own fields."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Literal

import outlines
from expected import FINE, is_rome
from openai import AsyncOpenAI, OpenAI
from outlines.inputs import Chat
from outlines.types import CFG, Regex
from pydantic import BaseModel

VERSION = version("outlines")


class City(BaseModel):
    name: str
    people: int


def of(base, model, make=outlines.from_openai, kind=OpenAI):
    return make(kind(base_url=base, api_key="none", max_retries=0), model)


def check_text(base, model):
    assert of(base, model)("hello") == FINE


def check_streamed(base, model):
    assert "".join(of(base, model).stream("hello")) == FINE


async def check_asynchronous(base, model):
    assert await of(base, model, kind=AsyncOpenAI)("hello") == FINE


def check_chat(base, model):
    assert of(base, model)(Chat([{"role": "user", "content": "hello"}])) == FINE


def check_schema(base, model):
    assert is_rome(City.model_validate_json(of(base, model)("a city", City)))
    assert is_rome(City.model_validate_json(of(base, model, outlines.from_vllm)("a city", City)))


def check_schema_streamed(base, model):
    text = "".join(of(base, model, outlines.from_vllm).stream("a city", City))
    assert is_rome(City.model_validate_json(text)) and json.loads(text)


def check_choice(base, model):
    assert of(base, model, outlines.from_vllm)("which?", Literal["yes", "no"]) in ("yes", "no")


def check_regular_expression(base, model):
    answer = of(base, model, outlines.from_vllm)("a word", Regex("ab"))
    assert answer == "ab"


def check_grammar(base, model):
    assert of(base, model, outlines.from_vllm)("a word", CFG('root ::= "x"')) == "x"
