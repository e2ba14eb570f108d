"""`Request`: read from what callers write, written as JSON, and refused by name where it makes no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait import Budget, Orchestrator, Plugin, Request
from plait.core.errors import PluginError, UsageError
from plait.core.sampling import Generation
from plait.planners.votes.sample import Sample
from plait.workers.scripted import Reply, Scripted

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3 + 1?"},
]
CALLED = [
    TALK[1],
    {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "4"},
]
SEES = [{"role": "user", "content": ["What is it?", {"type": "image_url", "image_url": {"url": "https://x.y/z.png"}}]}]


def test_a_plugin_is_given_as_text_as_itself_or_as_its_class() -> None:
    one = Request(planner="sample:n=8")
    assert (
        one
        == Request(planner=Plugin(name="sample", options={"n": 8}))
        == Request(planner={"name": "sample", "options": {"n": 8}})
    )  # type: ignore[arg-type]
    assert one.planner == Plugin.of("sample:n=8")
    assert Request(planner=Sample).planner.name == "sample"  # type: ignore[arg-type]
    assert Request(planner=Sample(n=8)).planner.options == {"n": 8}  # type: ignore[arg-type]
    assert Request(policies=["affinity", "fifo"]).policies == (Plugin(name="affinity"), Plugin(name="fifo"))  # type: ignore[arg-type]
    assert Plugin.of("llmcompiler:plan.max_tokens=9,plan.stop=x").options == {"plan": {"max_tokens": 9, "stop": "x"}}
    with pytest.raises(PluginError, match="whole and in parts"):
        Plugin.of("llmcompiler:plan=1,plan.max_tokens=9")


def test_limits_of_the_budget_may_stand_alone() -> None:
    assert Request(budget="cost=2", tokens=5).budget == Budget(cost=2, tokens=5)  # type: ignore[arg-type,call-arg]
    assert Request(seconds=3, budget=Budget(seconds=9, width=2)).budget == Budget(seconds=3, width=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("messages", [TALK, CALLED, SEES])
def test_a_conversation_that_was_read_reads_the_same_again(messages: list[Any]) -> None:
    request = Request.of({"messages": messages})
    assert request.text in ("And 3 + 1?", "2 + 2?", "What is it?")
    assert Request.of(json.loads(request.model_dump_json())) == request
    if request.messages[-1].role != "tool":  # there a text is one more message of the user's
        assert request.updated({"text": request.text}) == request


def test_updating_names_what_changes_and_keeps_the_rest_open() -> None:
    request = Request.of({"text": "a", "planner": "sample"})
    other = request.updated({"text": "b", "seed": 3})
    assert (other.text, other.seed, other.planner.name) == ("b", 3, "sample")
    assert other.model_fields_set == {"text", "seed", "planner"}
    assert other.updated({"planner": None}).model_fields_set == {"text", "seed"}
    assert request.updated({"messages": TALK}).text == "And 3 + 1?", "messages bring the text that is asked"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"planer": "x"}, "`planer`.*did you mean 'planner'"),
        ({"max_tokens": 5}, "generation={'max_tokens': 5}"),
        ({"planner": "sample:n=1,n=2"}, "given twice"),
        ({"planner": 3}, "planner.*is no plugin"),
        ({"text": b"x"}, "bytes: give a conversation as messages"),
        ({"fairness_weight": 0}, "weight.*greater"),
        ({"generation": {"temperature": -1}}, r"generation\.temperature"),
        ({"metadata": {"a": 1}}, r"metadata\.a"),
    ],
)
def test_a_mistake_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Request.of(fields)


PLUGINS = st.builds(
    Plugin,
    name=st.sampled_from(["sample", "single", "their.mod:Class"]),
    options=st.dictionaries(st.sampled_from(["n", "a"]), st.integers() | st.text(max_size=5) | st.none(), max_size=2),
)
REQUESTS = st.builds(
    Request,
    text=st.text(max_size=20),
    planner=PLUGINS,
    policies=st.lists(PLUGINS, max_size=2).map(tuple),
    generation=st.builds(
        Generation,
        temperature=st.none() | st.floats(0, 2),
        stop=st.lists(st.text(min_size=1, max_size=3), max_size=2).map(tuple),
        extra_body=st.dictionaries(st.text(max_size=3), st.integers() | st.booleans(), max_size=2),
    ),
    budget=st.builds(Budget, tokens=st.none() | st.integers(0, 99), strict=st.booleans()),
    metadata=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    priority=st.integers(-5, 5),
    session=st.text(max_size=5),
)


@given(REQUESTS)
def test_it_is_written_and_read_as_json(request: Request) -> None:
    assert Request.model_validate_json(request.model_dump_json()) == request
    assert Request.of(request.model_dump(mode="json", exclude_unset=True)) == request


def test_a_request_can_be_submitted_as_it_is_and_what_it_leaves_open_is_the_settings() -> None:
    worker = Scripted([Reply(text="answer: 4")])
    with Orchestrator(workers=[worker], journal="off", planner="sample:n=2", tokens=90) as plait:
        open_ = Request(text="2 + 2?")
        assert len(plait.run(open_).trace) == 3
        named = Request(text="2 + 2?", planner="single", generation={"temperature": 0.5, "max_tokens": 7})  # type: ignore[arg-type]
        (step,) = plait.run(named, seed=5).plan.steps  # type: ignore[union-attr]
        assert (step.op.sampling.temperature, step.op.sampling.max_tokens) == (0.5, 7)  # type: ignore[union-attr]
        made = plait._inner.brief(open_, n=4, generation={"temperature": 0.2}).request
        assert made.planner.options["n"] == 4 and made.budget.tokens == 90
        assert (made.n, made.merge, made.generation) == (None, None, Generation())
        assert plait._inner.brief(made).request == made, "a complete request says all of itself"
