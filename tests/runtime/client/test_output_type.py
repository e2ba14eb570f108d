"""Typed answers: asked for in words and of the engine, read, repaired once, refused in words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from plait import Orchestrator, Plan, Step, ToolCall
from plait.core.errors import FieldError, PlaitError, UsageError
from plait.core.form import Form, json_in
from plait.workers.scripted import Reply
from tests.runtime.client.test_messages import Seen, TwoTurns, said


class City(BaseModel):
    name: str
    people: int


@dataclass
class Point:
    x: float
    y: float


class Pair(TypedDict):
    left: str
    right: str


ROME = '{"name": "Rome", "people": 2800000}'


def ask(worker: Seen, kind: Any, **options: Any) -> Any:
    with Orchestrator(workers=[worker], journal="off") as plait:
        return plait.run("The capital of Italy?", output=kind, **options)


@pytest.mark.parametrize(
    ("kind", "text", "output"),
    [
        (City, ROME, City(name="Rome", people=2800000)),
        (City, f"<think>hm {{}}</think>It is\n```json\n{ROME}\n```", City(name="Rome", people=2800000)),
        (Point, 'At {"x": 1, "y": 2.5}.', Point(1.0, 2.5)),
        (Pair, '{"left": "a", "right": "b"}', {"left": "a", "right": "b"}),
        (list[City], f'{{"value": [{ROME}]}}', [City(name="Rome", people=2800000)]),
        (list[City], f"[{ROME}]", [City(name="Rome", people=2800000)]),
        (int, '{"value": 42}', 42),
        (Literal["yes", "no"], '{"value": "yes"}', "yes"),
        (int | None, '{"value": null}', None),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a": 1}', {"a": 1}),
    ],
)
def test_the_answer_is_of_the_type(kind: Any, text: str, output: Any):
    worker = Seen(Reply(text=text))
    answer = ask(worker, kind)
    assert answer.failure is None
    assert answer.output == output
    assert type(answer.output) is type(output)
    (think,) = worker.thinks
    assert think.sampling.structured is not None
    assert not think.sampling.structured.required
    assert json.dumps(think.sampling.structured.spec) in said(think)


def test_a_vote_is_over_values_not_over_texts():
    spaced = json.dumps(json.loads(ROME), indent=1)
    worker = Seen(Reply(text='{"name": "Milan", "people": 1}', times=1), Reply(text=ROME, times=1), Reply(text=spaced))
    answer = ask(worker, City, planner="sample:n=3")
    assert answer.output == City(name="Rome", people=2800000)
    assert answer.why.startswith("2 of 3")


def test_what_does_not_fit_is_repaired_once():
    worker = Seen(Reply(when="cannot be used", text=ROME), Reply(text='{"name": "Rome", "people": "many"}'))
    answer = ask(worker, City)
    assert answer.output == City(name="Rome", people=2800000)
    assert len(worker.thinks) == 2
    assert worker.thinks[1].sampling.max_tokens == worker.thinks[0].sampling.max_tokens
    asked = said(worker.thinks[1])
    assert "at $.people" in asked
    assert "many" in asked


def test_a_flow_is_typed_too():
    worker = Seen(Reply(when="cannot be used", text=ROME), Reply(text="Rome, I think."))
    answer = ask(worker, City, planner=TwoTurns)
    assert answer.output.people == 2800000


def test_a_second_misfit_fails_in_words():
    answer = ask(Seen(Reply(text="no JSON")), City)
    assert answer.status == "failed"
    assert "does not have the form" in answer.failure.message
    assert "no JSON object" in answer.failure.message
    assert answer.output is None


def test_an_answer_that_is_cut_fails_with_the_limit_to_raise_and_is_not_repaired():
    worker = Seen(Reply(text=ROME))
    answer = ask(worker, City, generation={"max_tokens": 2})
    assert (answer.status, answer.failure.code, answer.output) == ("failed", "cut-in-form", None)
    assert "raise max_tokens" in answer.failure.message and len(worker.thinks) == 1
    assert list(answer.partial.values()) == ['{"name": "Rome",']


def test_a_validator_of_the_type_is_heard_before_the_repair():
    class Large(BaseModel):
        people: int

        @field_validator("people")
        @classmethod
        def _large(cls, people: int) -> int:
            if people < 1000:
                raise ValueError("too few people")
            return people

    worker = Seen(Reply(when="too few people", text='{"people": 5000}'), Reply(text='{"people": 5}'))
    assert ask(worker, Large).output.people == 5000


@pytest.mark.parametrize("kind", ["City", object(), lambda: 3, {"a": 1}, {"type": "nonsense"}, {1: 2}, 7])
def test_what_is_no_type_is_refused_in_words(kind: Any):
    with pytest.raises(PlaitError, match="output"):
        ask(Seen(), kind)


def test_it_does_not_go_with_a_plan():
    plan = Plan(steps=(Step(name="a", op=ToolCall(tool="x")),), output="a")
    with Orchestrator(workers=[], journal="off") as plait, pytest.raises(UsageError, match="needs a planner"):
        plait.run(plan=plan, output=City)


def test_a_schema_is_not_fetched():
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/secret.json"}}}
    with pytest.raises(FieldError, match="not in it"):
        ask(Seen(Reply(text='{"a": 1}')), schema)


@given(st.text(st.sampled_from('{}[]",:a1 \n`<think>/NaN'), max_size=80))
def test_any_text_is_read(text: str):
    value = json_in(text)
    json.dumps(value, allow_nan=False)
    form, _ = Form.of(list[int])
    said, wrong = form.read(text, lambda value: "" if isinstance(value, dict) and "value" in value else "no value")
    assert bool(wrong) == (said is None)
