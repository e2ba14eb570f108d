"""The planner `fixed`: plans from files and inline, placeholders, and where a mistake is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pydantic import JsonValue

from plait.core.errors import PlanError
from plait.core.interfaces import PlanningContext
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.request import Request
from plait.planners.tools.fixed import Fixed
from plait.tasks.plain import Plain
from plait_bench.tasks.countdown import Countdown

BRIEF = PlanningContext(Request(text="a {{prompt}} b"), Plain(text="a {{prompt}} b"))
PLAN: dict[str, JsonValue] = {
    "steps": [{"name": "ask", "op": {"kind": "think", "prompt": "Say: {{request}}!"}}],
    "output": "ask",
}
TOML = """
output = "both"

[[steps]]
name = "one"
op = { kind = "think", prompt = "{{prompt}}" }

[[steps]]
name = "two"
op = { kind = "call", tool = "search", args = { query = "{{request}}", n = 3 } }

[[steps]]
name = "both"
needs = ["one", "two"]
op = { kind = "join" }
"""


def test_inline_with_the_request_put_in_once() -> None:
    (step,) = Fixed(graph=PLAN).start(BRIEF).steps
    assert isinstance(step.op, ModelCall) and step.op.prompt == (Text(text="Say: a {{prompt}} b!"),)


def test_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(TOML)
    text = "3 5 7 11 -> 24"
    plan = Fixed(path=str(path)).start(PlanningContext(Request(text=text), Countdown(text=text)))
    one, two, both = plan.steps
    assert isinstance(one.op, ModelCall) and one.op.prompt == (Text(text="<serial> 8 T24 11 7 5 3 <go>"),)
    assert isinstance(two.op, ToolCall) and two.op.args == {"query": text, "n": 3}
    assert both.needs == ("one", "two") and plan.output == "both"


def test_json_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    assert Fixed(path=str(path)).start(BRIEF) == Fixed(graph=PLAN).start(BRIEF)


def test_an_empty_request_is_fine_where_no_prompt_is_asked_for() -> None:
    assert Fixed(graph=PLAN).start(PlanningContext(Request(), Plain(text=""))).output == "ask"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("plan.json", "{", "is not JSON"),
        ("plan.toml", "a = ", "is not TOML"),
        ("plan.yaml", "", "ends in .json or .toml"),
        ("plan.json", None, "cannot be read"),
        ("plan.json", "[" * 100_000, "nested too deeply"),
        ("plan.json", "[1]", "$: "),
        ("plan.json", '{"steps": [], "stesp": 1}', "$.stesp: "),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(PlanError) as caught:
        Fixed(path=str(path)).start(BRIEF)
    assert said in str(caught.value) and str(path) in str(caught.value)


def broken(**step: JsonValue) -> dict[str, JsonValue]:
    return {"steps": [{"name": "a", "op": {"kind": "think", "prompt": "x"}}, {"name": "b", **step}], "output": "b"}


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        (
            broken(op={"kind": "think", "prompt": "x", "sampling": {"max_tokens": 0}}),
            "$.steps[1].op.think.sampling.max",
        ),
        (broken(op={"kind": "dream"}), "$.steps[1].op: "),
        (broken(op={"kind": "call"}), "$.steps[1].op.call.tool: "),
        (broken(), "$.steps[1].op: "),
        ({**PLAN, "output": None}, "$.output: missing"),
        ({**PLAN, "steps": 3}, "$.steps: "),
        (
            {"steps": [{"name": "a", "op": {"kind": "think", "prompt": "x"}, "expands": True}], "output": "a"},
            "$.steps[0]",
        ),
    ],
)
def test_the_place_of_a_mistake(plan: dict[str, JsonValue], place: str) -> None:
    with pytest.raises(PlanError) as caught:
        Fixed(graph=plan).start(BRIEF)
    assert place in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"path": "x.json", "graph": {}}])
def test_one_source(options: dict[str, JsonValue]) -> None:
    with pytest.raises(PlanError, match="one of them"):
        Fixed.model_validate(options).start(BRIEF)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["steps", "op", "name", "x"]), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["steps", "output", "budget"]), JSON))
def test_garbage_is_a_plan_error(plan: dict[str, JsonValue]) -> None:
    try:
        Fixed(graph=plan).start(BRIEF)
    except PlanError:
        return
    assert plan["steps"] == [], "only a plan without steps could be made of that"
