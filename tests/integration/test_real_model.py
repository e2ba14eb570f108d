"""A chat model that others made, SmolLM2-135M-Instruct, on a real engine: chat, stream, votes, typed answers, prefixes.

`make test` fetches it once (`plait model get smollm2`); it is kept in the user's cache.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from plait import AsyncOrchestrator, Plan, Step, tool
from plait.apps.common.session import preflight
from plait.core import ModelCall, Text
from plait.core.budget import Budget
from plait.core.call_config import CallConfig
from plait.core.ops import Plugin
from plait.core.sampling import Sampling
from plait.planners.votes.sample import Sample
from plait.runtime.client.models import fetched
from plait.runtime.plugins.loader import Plugins
from plait.workers.engine import Engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.own_engine,
    pytest.mark.asyncio(loop_scope="module"),
    # The engine runs in this process, and its libraries warn of one another; a warning that is raised there would make
    # vLLM give up its structured output.
    pytest.mark.filterwarnings("ignore"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plait() -> AsyncIterator[AsyncOrchestrator]:
    assert fetched("smollm2"), "fetch the model first: plait model get smollm2"
    async with AsyncOrchestrator(model="smollm2", worker="engine", journal="off") as orchestrator:
        yield orchestrator


async def test_it_answers_a_question(plait: AsyncOrchestrator) -> None:
    answer = await plait.run("What is the capital of France?")
    assert answer.status == "done" and "Paris" in answer.text


async def test_a_conversation_is_put_through_its_own_template(plait: AsyncOrchestrator) -> None:
    talk = [
        {"role": "user", "content": "What is the capital of Italy?"},
        {"role": "assistant", "content": "The capital of Italy is Rome."},
        {"role": "user", "content": "And of Spain?"},
    ]
    assert "Madrid" in (await plait.run(messages=talk)).text


async def test_what_is_streamed_is_what_is_answered(plait: AsyncOrchestrator) -> None:
    pieces: list[str] = []
    answer = None
    async for news in plait.stream("Name three colours.", modes=["text", "answer"]):
        match news.kind:
            case "text":
                pieces.append(news.text)
            case "answer":
                answer = news.answer
    assert answer is not None and len(pieces) > 3
    assert "".join(pieces).strip() == str(answer.answer).strip()


async def test_its_own_end_is_no_text_where_stops_are_kept(plait: AsyncOrchestrator) -> None:
    # 2 is its `<|im_end|>`. Planners whose lines go on keep the text that stopped one, and met that in answers.
    asked: dict[str, Any] = {"max_tokens": 5, "keep_stop": True, "logit_bias": {"2": 100.0}}
    for stop, text in ((), ""), ((2,), "<|im_end|>"):
        op = ModelCall(prompt=(Text(text="Hello"),), sampling=Sampling(stop=("\n",), stop_ids=stop, **asked))
        for stream in (False, True):
            step = Step(name="a", op=op.model_copy(update={"stream": stream}))
            answer = await plait.run(plan=Plan(steps=(step,), output="a"))
            assert answer.text == text and answer.usage.completion == 1


async def test_samples_share_their_prompt_and_vote(plait: AsyncOrchestrator) -> None:
    question = "What is the capital of Italy? Answer with one word. " + "Think of its history before you answer. " * 12
    answer = await plait.run(question, planner=Sample(n=8, answer=CallConfig(temperature=0.7, max_tokens=16)))
    assert answer.status == "done" and answer.usage.cached > 0, "the prompt is read once, not eight times"


async def test_a_typed_answer_has_its_form(plait: AsyncOrchestrator) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = await plait.run("John Smith is 42 years old. Give name and age as JSON.", output=schema)
    assert answer.status == "done", answer.failure
    said = answer.output if isinstance(answer.output, dict) else json.loads(str(answer.output))
    assert said["age"] == 42 and "John" in said["name"]


WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TIME = {"name": "get_time", "description": "The time.", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("choice", ["required", "get_time"])
async def test_a_call_that_must_come_comes(plait: AsyncOrchestrator, choice: str) -> None:
    fields = {"tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": False}
    answer = await plait.run("What is the weather in Rome?", **fields)
    (call,) = answer.message.tool_calls
    assert call.function.name == ("get_weather" if choice == "required" else "get_time")
    if choice == "required":
        assert "Rome" in json.loads(call.function.arguments)["city"]


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


async def test_a_plan_is_written_in_its_language(plait: AsyncOrchestrator) -> None:
    answer = await plait.run("What is the weather in Rome and in Oslo?", planner="llmcompiler", tools=[weather, add])
    assert answer.status == "done", answer.failure
    calls = [row.label for row in answer.trace if row.kind == "call" and row.state == "done"]
    assert 'weather(city="Rome")' in calls and 'weather(city="Oslo")' in calls
    assert not [row.name for row in answer.trace if "repair" in row.name], "every line can be read"
    engine = next(each for each in plait.workers if isinstance(each, Engine))
    before = engine.stats()
    await plait.run("What is the weather in Bonn?", planner="llmcompiler", tools=[weather, add])
    after = engine.stats()
    assert after["forms"] == before["forms"] + 1, "the plan alone has a form"
    assert before["form_ms"] > 0, "its compiling is counted"


@pytest.mark.parametrize("dialect", ["multiverse", "threadweaver"])
async def test_it_is_said_that_it_was_never_trained_to_spawn_threads(dialect: str) -> None:
    model = fetched("smollm2")
    assert model is not None
    said = preflight(Plugins().planner(Plugin.of(f"threads:dialect={dialect}")), str(model))
    assert any("was probably not trained on it and will not spawn" in each for each in said), said


async def test_a_budget_of_tokens_ends_a_run(plait: AsyncOrchestrator) -> None:
    answer = await plait.run("Tell me a long story.", budget=Budget(tokens=20))
    assert answer.usage.completion <= 20


async def test_an_engine_in_a_ray_actor_answers_as_one_in_this_process(plait: AsyncOrchestrator) -> None:
    asked = "What is the capital of Italy?"
    here = await plait.run(asked)
    async with AsyncOrchestrator(model="smollm2", worker="ray", journal="off") as other:
        there = await other.run(asked)
        choice = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        called = (await other.run("What is the weather in Rome?", **choice)).message.tool_calls
    assert there.text == here.text and [each.function.name for each in called or ()] == ["get_weather"]


async def test_a_run_that_is_given_up_leaves_the_engine(plait: AsyncOrchestrator) -> None:
    handle = await plait.submit("Tell me a very long story.", planner="single:answer.max_tokens=2000", watch=["text"])
    async for _ in handle.news(["text"]):  # it writes by now
        handle.cancel("enough")
        break
    answer = await handle
    assert answer.status == "cancelled" and answer.usage.completion < 1000
    assert "Paris" in (await plait.run("What is the capital of France?")).text
