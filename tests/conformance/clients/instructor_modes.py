"""instructor, by its modes."""

from __future__ import annotations

from importlib.metadata import version

import instructor
import openai
from expected import THREE, grows
from pydantic import BaseModel

VERSION = version("instructor")
ASK = [{"role": "user", "content": "a city"}]


class City(BaseModel):
    name: str
    people: int


def of(base, mode):
    return instructor.from_openai(openai.OpenAI(base_url=base, api_key="none", max_retries=0), mode=mode)


def made(base, model, mode, messages=ASK):
    return of(base, mode).chat.completions.create(model=model, response_model=City, messages=messages, max_retries=0)


def check_tools_the_default(base, model):
    assert made(base, model, instructor.Mode.TOOLS).people == THREE


def check_tools_strict(base, model):
    assert made(base, model, instructor.Mode.TOOLS_STRICT).people == THREE


def check_json(base, model):
    assert made(base, model, instructor.Mode.JSON).people == THREE


def check_json_schema(base, model):
    assert made(base, model, instructor.Mode.JSON_SCHEMA).people == THREE


def check_md_json(base, model):
    said = [{"role": "user", "content": 'SAY<```json\n{"name": "Rome", "people": 3}\n```>'}]
    assert made(base, model, instructor.Mode.MD_JSON, said).people == THREE


def check_parallel_tools(base, model):
    from collections.abc import Iterable

    said = of(base, instructor.Mode.PARALLEL_TOOLS).chat.completions.create(
        model=model,
        response_model=Iterable[City],
        messages=[{"role": "user", "content": "the weather in both"}],
        max_retries=0,
    )
    assert [each.people for each in said] == [THREE, THREE]


def check_partial(base, model):
    pieces = of(base, instructor.Mode.TOOLS).chat.completions.create_partial(
        model=model, response_model=City, messages=ASK
    )
    assert list(pieces)[-1].people == THREE


class Trip(BaseModel):
    first: str
    second: str
    third: str
    fourth: str
    fifth: str
    sixth: str


def check_partial_states(base, model):
    """A form shows each field as it is written."""
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        pieces = of(base, mode).chat.completions.create_partial(
            model=model, response_model=Trip, messages=[{"role": "user", "content": "SLOWLY a trip"}]
        )
        assert grows([piece.model_dump() for piece in pieces]), mode


def check_responses_tools(base, model):
    assert made(base, model, instructor.Mode.RESPONSES_TOOLS).people == THREE
