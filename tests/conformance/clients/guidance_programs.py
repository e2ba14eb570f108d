"""guidance."""

from __future__ import annotations

from importlib.metadata import version

import guidance
from expected import FINE, is_rome
from guidance import assistant, gen, json as schema_of, system, user
from pydantic import BaseModel

VERSION = version("guidance")


class City(BaseModel):
    name: str
    people: int


def of(base, model):
    return guidance.models.OpenAI(model, base_url=base, api_key="none", echo=False)


def program(lm, question, asked):
    with system():
        lm += "Be brief."
    with user():
        lm += question
    with assistant():
        lm += asked
    return lm


def check_text(base, model):
    assert program(of(base, model), "hello", gen("answer"))["answer"] == FINE


def check_limit(base, model):
    assert len(program(of(base, model), "hello", gen("answer", max_tokens=2))["answer"]) <= len("All is fine.")


def check_turns(base, model):
    first = program(of(base, model), "hello", gen("first"))
    with user():
        first += "hello again"
    with assistant():
        first += gen("second")
    assert first["first"] == FINE and first["second"] == FINE


@guidance.guidance
def greeting(lm):
    with user():
        lm += "hello"
    with assistant():
        lm += gen("answer")
    return lm


def check_streamed(base, model):
    states = [state["answer"] for state in of(base, model).stream() + greeting() if "answer" in state]
    assert states[-1] == FINE


def check_json(base, model):
    answer = program(of(base, model), "a city", schema_of("answer", schema=City))["answer"]
    assert is_rome(City.model_validate_json(answer))
