"""Planner `workflow`: reading and checking plans, repairs, conditions and loops, reviews, many tools, a library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from plait import Orchestrator, tool
from plait.core.tools.tool import ToolSpec
from plait.workers.scripted import Reply
from plait.workers.tools.plan_library import plan_library
from plait_research.planners.workflow import Workflow, condition_holds
from plait_research.planners.workflow.plan import (
    WorkflowRef,
    abstract,
    apply_repair,
    fill,
    parse,
    references,
    walk_nodes,
)
from plait_research.planners.workflow.validation import find_faults
from tests.runtime.client.test_messages import Seen, said


class Flight(BaseModel):
    id: str
    price: float


class Page(BaseModel):
    rows: list[int]
    next: str | None


@tool
def flights(to: str) -> list[Flight]:
    """Find flights to a city."""
    return [Flight(id="f1", price=90), Flight(id="f2", price=120)] if to == "Oslo" else []


@tool
def seats(flight_id: str) -> int:
    """Count the seats that are left on a flight."""
    return 10 if flight_id == "f1" else 20


BOOKED: list[str] = []


@tool(side_effects=True)
def book(flight_id: str) -> str:
    """Book a seat."""
    BOOKED.append(flight_id)
    return f"booked {flight_id}"


@tool
def page(cursor: str | None = None) -> Page:
    """Read a page."""
    number = int(cursor or 0)
    return Page(rows=[number], next=str(number + 1))


@tool
def broken(x: str) -> str:
    """Fail."""
    raise ValueError("no luck")


TOOLS = [flights, seats, book, page, broken]
SPECS: dict[str, ToolSpec] = {each.name: each.spec for each in TOOLS}


def call(name: str, tool: str, /, **args: Any) -> dict[str, Any]:
    return {"id": name, "call": tool, "args": args}


FOUND = call("found", "flights", to="Oslo")


def ask(*says: Any, tools: list[Any] | None = None, on_ask: Any = None, **options: Any) -> tuple[Any, Seen]:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in says]
    worker = Seen(*[Reply(text=text, times=1) for text in texts])
    BOOKED.clear()
    with Orchestrator(workers=[worker], tools=tools or TOOLS, journal="off", on_ask=on_ask) as plait:
        return plait.run("Fly me to Oslo.", planner=Workflow(**options)), worker


def value(steps: list[Any], answer: Any, **options: Any) -> Any:
    found, _ = ask({"steps": steps, "answer": answer}, **options)
    assert found.status == "done", found.failure
    return found.value


# -- running -----------------------------------------------------------------------------------------------------------


def test_calls_run_when_what_they_refer_to_is_there_whatever_the_order_they_are_written_in():
    steps = [call("left", "seats", flight_id="$found.1.id"), FOUND]
    answer, _ = ask({"steps": steps, "answer": "There are {$left} seats for {$found[1].price}."})
    assert answer.value == "There are 20 seats for 120.0."
    rows = {row.name: row for row in answer.trace}
    assert [each.rpartition("/")[2] for each in rows["left"].needs] == ["found"]


def test_the_items_of_a_list_are_worked_on_side_by_side():
    each = {"id": "left", "foreach": "$found", "as": "one", "do": [call("n", "seats", flight_id="$one.id")]}
    assert value([FOUND, each], "$left") == [10, 20]
    empty = [call("found", "flights", to="Rome"), each]
    assert value(empty, "$left") == []


@pytest.mark.parametrize(("limit", "want"), [(100, "f1"), (50, None)])
def test_a_condition_decides_what_runs(limit: int, want: str | None):
    steps = [
        FOUND,
        {
            "id": "cheap",
            "if": {"all": [{"left": "$found.0.price", "op": "<", "right": limit}, {"not": False}]},
            "then": [call("b", "book", flight_id="$found.0.id")],
            "else": [],
        },
    ]
    assert value(steps, "$cheap") == (f"booked {want}" if want else None)
    assert [*BOOKED] == ([want] if want else [])


@pytest.mark.parametrize(("at_most", "rows"), [(5, [3]), (2, [1])])
def test_a_loop_goes_on_while_its_condition_holds_and_has_a_limit(at_most: int, rows: list[int]):
    pages = {
        "id": "pages",
        "while": {"left": "$got.next", "op": "!=", "right": "4"},
        "at_most": at_most,
        "do": [{"id": "more", "if": "$pages", "then": [call("b", "page", cursor="$pages.next")],
                "else": [call("a", "page")]},
               call("got", "page", cursor="$more.rows.0")],
    }  # fmt: skip
    # `more` reads the page after the last; `got` reads that page by its number
    pages["do"][1]["args"] = {"cursor": "{$more.rows.0}"}
    found = value([pages], "$pages")
    assert found["rows"] == rows


def test_a_review_asks_a_person_and_its_answer_decides():
    steps = [
        FOUND,
        {"id": "ok", "review": "Book it for {$found.0.price}?", "choices": ["yes", "no"]},
        {"id": "done", "if": {"left": "$ok", "op": "==", "right": "yes"},
         "then": [call("b", "book", flight_id="$found.0.id")], "else": []},
    ]  # fmt: skip
    asked: list[str] = []

    def says(verdict: str) -> Any:
        return lambda question: asked.append(question.text) or verdict

    assert value(steps, "$done", on_ask=says("yes")) == "booked f1"
    assert value(steps, "$done", on_ask=says("no")) is None
    assert asked == ["Book it for 90.0?"] * 2


def test_what_changes_the_world_keeps_its_order():
    steps = [
        FOUND,
        {"id": "all", "foreach": ["f3", "f2"], "as": "one", "do": [call("b", "book", flight_id="$one")]},
        call("last", "book", flight_id="f1"),
    ]
    value(steps, ["$found", "$all", "$last"])
    assert BOOKED == ["f3", "f2", "f1"]


def test_a_failure_spoils_what_needs_it_alone():
    steps = [call("bad", "broken", x="a"), FOUND]
    answer, _ = ask({"steps": steps, "answer": ["$bad", "$found"]})
    assert answer.status == "failed"
    assert "no luck" in answer.failure.message
    answer, worker = ask({"steps": steps}, "There are two.")
    assert answer.answer == "There are two."
    assert "bad: failed: " in said(worker.thinks[1])
    assert '"id":"f1"' in said(worker.thinks[1])
    assert said(worker.thinks[1]).startswith(said(worker.thinks[0])), "the conversation goes on"


def test_what_a_condition_cannot_compare_fails_in_words():
    steps = [FOUND, {"id": "c", "if": {"left": "$found", "op": "<", "right": 1}, "then": [], "else": []}]
    answer, _ = ask({"steps": steps, "answer": "$c"})
    assert "cannot be compared" in answer.failure.message


# -- checking ----------------------------------------------------------------------------------------------------------


FAULTS: list[tuple[str, list[Any], Any, str, str, str]] = [
    ("a", [call("a", "flihgts", to="x")], "$a", "tool", "no tool 'flihgts'", "flights"),
    ("a", [call("a", "flights", city="x", to="y")], "$a", "argument", "no argument 'city'", ""),
    ("a", [call("a", "flights", too="x")], "$a", "argument", "no argument 'too'", "to"),
    ("a", [call("a", "flights")], "$a", "missing", "needs the argument 'to'", ""),
    ("b", [FOUND, call("b", "seats")], ["$found", "$b"], "missing", "'flight_id'", "flights"),
    ("b", [FOUND, call("b", "seats", flight_id="$found.0.price")], "$b", "type", "takes string", ""),
    ("b", [FOUND, call("b", "seats", flight_id="$found.0.ids")], "$b", "part", "no part", "$found.0.id"),
    ("b", [FOUND, call("b", "seats", flight_id="$foud.0.id")], ["$found", "$b"], "reference", "refers to", "$found"),
    ("b", [FOUND, {"id": "b", "foreach": "$found.0.price", "do": [FOUND | {"id": "x"}]}], "$b", "type", "no list", ""),
    ("x", [{"id": "b", "foreach": [1], "do": [call("x", "seats", flight_id="$y")]}], "$b", "reference", "$y", ""),
    ("answer", [FOUND], ["$found", "$nobody"], "reference", "$nobody", ""),
    ("b", [FOUND, call("b", "seats", flight_id="x")], "$found", "unused", "its value is unused", ""),
    ("a", [call("a", "flights", to="$b.x"), call("b", "flights", to="$a.x")], "$b", "cycle", "a → b → a", ""),
    ("b", [FOUND, call("b", "book", flight_id="$found.0.id") | {"after": ["c"]}], "$b", "reference", "'c'", ""),
    ("", [FOUND, 3], "$found", "form", "3 is no step", ""),
    ("", [FOUND, {"call": "flights"}], "$found", "form", "needs an `id`", ""),
    ("b", [FOUND, {"id": "b", "call": "x", "if": True}], "$found", "form", "exactly one of", ""),
    ("b", [FOUND, {"id": "b", "while": "yes", "do": []}], "$found", "form", "is no condition", ""),
    ("b", [FOUND, {"id": "b", "if": {"left": 1, "op": "~", "right": 2}, "then": []}], "$found", "form", "'~'", ""),
    ("found", [FOUND, FOUND], "$found", "form", "2 steps have this id", ""),
    ("b", [FOUND, call("b", "book", flight_id="x") | {"do": []}], "$found", "form", "has no 'do'", ""),
]


@pytest.mark.parametrize(("node", "steps", "answer", "kind", "words", "near"), FAULTS)
def test_every_fault_is_found_with_candidates(
    node: str, steps: list[Any], answer: Any, kind: str, words: str, near: str
):
    faults = find_faults(parse({"steps": steps, "answer": answer}), SPECS)
    fault = next(each for each in faults if (each.node, each.kind) == (node, kind))
    assert words in fault.message
    assert not near or near in fault.candidates


def test_all_faults_are_told_at_once_and_a_good_plan_has_none():
    steps: list[Any] = [call("a", "flihgts", to="x"), call("b", "seats"), call("c", "seats", flight_id="$z")]
    kinds = [each.kind for each in find_faults(parse({"steps": steps, "answer": ["$a", "$b", "$c"]}), SPECS)]
    assert sorted(kinds) == ["missing", "reference", "tool"]
    good: list[Any] = [
        FOUND,
        {"id": "l", "foreach": "$found", "as": "f", "do": [call("n", "seats", flight_id="$f.id")]},
    ]
    assert find_faults(parse({"steps": good, "answer": "$l.0"}), SPECS) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["$a", "$b.x", "a", "b", "{$a} or", "flights"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from("id call args if then else foreach as do while at_most review after left op right".split()),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=4), JSON)
def test_any_words_of_a_model_make_a_plan_with_faults_or_one_that_can_be_checked(steps: list[Any], answer: Any):
    plan = parse({"steps": steps, "answer": answer})
    faults = find_faults(plan, SPECS)
    again = parse(plan.to_json())
    assert [each.id for each in walk_nodes(again.nodes)] == [each.id for each in walk_nodes(plan.nodes)]
    apply_repair(
        plan, {"replace": {each.node: steps for each in faults}, "answer": answer}, {each.node for each in faults}
    )
    abstract(plan)


def test_references_are_values_and_what_values_contain_is_no_reference():
    look = {WorkflowRef("a", ()): "$b", WorkflowRef("b", ("x",)): 3}
    assert fill({"k": ["$a", "n {$b.x}", "$$5", "$ 5", "5 $"]}, look) == {"k": ["$b", "n 3", "$5", "$ 5", "5 $"]}
    assert references("costs $a today") == []


@pytest.mark.parametrize(
    "condition",
    [
        {"left": "a", "op": "in", "right": "cat"},
        {"left": ["x"], "op": "contains", "right": "x"},
        {"any": [False, {"left": 1, "op": "!=", "right": 2}]},
        {"left": "a", "op": "<=", "right": "b"},
    ],
)
def test_conditions_that_hold(condition: Any):
    assert condition_holds(condition, {}) is True
    assert condition_holds({"not": condition}, {}) is False


# -- repairs -----------------------------------------------------------------------------------------------------------


BAD: Any = {
    "steps": [FOUND, call("b", "seat", flight_id="$found.0.id"), call("c", "seats", x=1)],
    "answer": ["$b", "$c"],
}


def test_a_repair_rewrites_the_steps_that_have_a_fault():
    mended = {"replace": {"b": call("b", "seats", flight_id="$found.0.id"), "found": call("found", "broken", x="x"),
                          "c": [call("d", "flights", to="Oslo"), call("c", "seats", flight_id="$d.1.id")]}}  # fmt: skip
    answer, worker = ask(BAD, mended)
    assert answer.value == [10, 20]
    prompt = said(worker.thinks[1])
    assert "- b: there is no tool 'seat' (perhaps seats)" in prompt
    assert "- c: seats has no argument 'x'" in prompt
    assert '{"name": "seats"' in prompt.rpartition("The plan cannot run")[2], "candidates are told with their arguments"


def test_a_repair_that_lowers_nothing_is_dropped_and_is_the_last():
    half = {"replace": {"b": call("b", "seats", flight_id="$found.0.id")}}
    answer, worker = ask(BAD, half, {"replace": {"c": call("c", "seats", y=1)}}, "never asked", repairs=5)
    assert answer.status == "failed"
    assert "c: seats has no argument 'x'" in answer.failure.message
    assert len(worker.thinks) == 3
    answer, worker = ask(BAD, "I cannot", repairs=5)
    assert len(worker.thinks) == 2
    assert "the plan cannot run: b: there is no tool 'seat'" in answer.failure.message


def test_a_plan_that_cannot_be_read_is_written_again():
    answer, worker = ask("Sure! First I look.", f"Here:\n```json\n{json.dumps({'steps': [FOUND]})}\n```", "two")
    assert answer.answer == "two"
    assert "cannot be read" in said(worker.thinks[1])


@pytest.mark.parametrize("reply", [{"answer": "x"}, {"steps": {}, "answer": 3}, {"replace": {}, "answer": "x"}, {}])
def test_json_without_steps_is_no_plan_and_no_answer(reply: Any):
    answer, worker = ask(*[reply] * 3)
    assert answer.answer is None
    assert 'the plan is no JSON object with "steps"' in answer.failure.message
    assert len(worker.thinks) == 2


def test_a_plan_whose_steps_cannot_be_read_is_written_again():
    answer, worker = ask({"steps": [{"id": "a"}], "answer": "$a"}, {"steps": [FOUND], "answer": "$found.0.id"})
    assert answer.value == "f1"
    assert "cannot be read" in said(worker.thinks[1])


def test_a_step_that_nobody_uses_is_left_out_if_nobody_mends_it():
    plan = {"steps": [FOUND, call("b", "broken", x="y")], "answer": "$found"}
    answer, worker = ask(plan, repairs=0)
    assert answer.status == "done"
    assert len(worker.thinks) == 1
    assert "b" not in [row.name for row in answer.trace]


# -- many tools, and a library -----------------------------------------------------------------------------------------


def test_of_many_tools_some_are_told_and_others_can_be_asked_for():
    others = [tool(name=f"other_{n}", description="Something else.")(lambda x: x) for n in range(30)]
    plan = {"steps": [FOUND, call("n", "seats", flight_id="$found.0.id")], "answer": "$n"}
    answer, worker = ask({"more_tools": "count seats left"}, plan, tools=[*others, flights, seats], max_tools=1)
    assert answer.value == 10
    first, second = map(said, worker.thinks)
    assert '{"name": "flights"' in first
    assert '{"name": "seats"' not in first
    assert "31 more can be found" in first
    assert '{"name": "seats"' in second


def test_plans_that_ran_are_kept_and_shown_for_questions_like_theirs(tmp_path: Path):
    file = tmp_path / "plans" / "kept.jsonl"
    plan = {"steps": [FOUND, call("n", "seats", flight_id="$found.0.id")], "answer": "$n"}
    answer, worker = ask(plan, tools=[*TOOLS, *plan_library(file)])
    assert answer.value == 10
    assert "keep_plan" not in said(worker.thinks[0])
    (row,) = map(json.loads, file.read_text().splitlines())
    assert row["intention"] == "Fly me to Oslo."
    assert row["plan"]["steps"][0]["args"] == {"to": "<to>"}
    assert row["plan"]["steps"][1]["args"] == {"flight_id": "$found.0.id"}
    _, worker = ask(plan, tools=[*TOOLS, *plan_library(file)])
    assert f"Its plan: {json.dumps(row['plan'])}" in said(worker.thinks[0])
    assert len(file.read_text().splitlines()) == 1, "the same plan is kept once"
    failing = {"steps": [call("b", "broken", x="y")]}
    ask(failing, "no", tools=[*TOOLS, *plan_library(file)])
    assert len(file.read_text().splitlines()) == 1, "a plan that failed is not kept"


def test_a_library_that_is_damaged_or_shared_still_serves(tmp_path: Path):
    file = tmp_path / "kept.jsonl"
    file.write_bytes(b'\xff\xfe\n[1]\n{"intention": 3, "plan": {}}\n' + b"[" * 5000 + b"\n")
    one, two = plan_library(file), plan_library(file)
    assert one[0]("book a flight") == []
    assert one[1]("book a flight", {"steps": []}) is True
    assert two[1]("book a flight", {"steps": []}) is False
    assert two[1]("rent a car", {"steps": [1]}) is True
    assert [row["intention"] for row in one[0]("the car")] == ["rent a car"]  # type: ignore[index]
    file.write_bytes(b"")
    assert one[0]("the car") == []
    file.unlink()
    assert two[0]("the car") == []
