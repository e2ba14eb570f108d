"""The planner `decompose`: what it asks a model about at all, which splits it takes, what becomes of pieces."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.call_config import CallConfig
from plait.core.ops import Join, ModelCall, Text
from plait.core.plan import Plan
from plait.core.result import Result
from plait.core.sampling import StructuredOutput
from plait.planners._shared.json_text import read_object
from plait.planners.split.decompose import Decompose, Split, choose_tier, find_faults, find_signals, read_split
from plait.workers.scripted import Reply
from tests.planners.scripted_runs import ask, brief, checked, labels, made, prompt

TRANSLATE = "Translate to German:\n1. Good day.\n2. Good night.\n3. Good luck."
SPLIT: dict[str, Any] = {
    "template": "Translate to German: {data}",
    "context": None,
    "data": ["Good day.", "Good night.", "Good luck."],
    "n": None,
    "category": "Translation",
}
RIDDLES = "Write 3 riddles about rain"
RIDDLE: dict[str, Any] = {"template": "Write a riddle about rain", "n": 3, "category": "Repeated Generation"}
ASKED = "can be split"


# --- the gate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Why is the sky blue?",
        "What is 6 times 7?",
        "Explain quantum computing.",
        "Prove that the square root of two is irrational.",
        "Write a story about a dog and a cat.",
        "Fix this code: def f(x): return x+1",
        "Hi",
        "",
    ],
)
def test_prompts_that_cannot_be_split(text: str) -> None:
    assert find_signals(text) == frozenset()


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        (RIDDLES, "count"),
        ("Give me ten different titles for a book.", "count"),
        (TRANSLATE, "items"),
        ("Do this:\n- one\n- two", "items"),
        ("Who was Bach? Who was Mozart?", "questions"),
        ("Correct each sentence.", "multiple"),
        ("Say something nice for every guest", "each"),
        ("Classify the sentiment: good, bad, ugly", "commas"),
        ("Define these terms: entropy", "plural"),
        ("Summarize this: It was cold. We left. Nobody came.", "pieces"),
    ],
)
def test_signs_of_several_pieces(text: str, sign: str) -> None:
    assert sign in find_signals(text)


@pytest.mark.parametrize(
    "text",
    ["a," * 30_000, "translate" + "\n" * 39_000, "5 a b c " * 5_000, "as " * 13_000, "- x\n" * 10_000, "? " * 20_000],
)
def test_the_gate_is_cheap_for_any_prompt(text: str) -> None:
    began = time.process_time()
    find_signals(text)
    assert time.process_time() - began < 2.0, "linear: a quadratic pattern takes many seconds here"


async def test_no_model_is_asked_about_a_prompt_that_cannot_be_split() -> None:
    answer, worker = await ask("decompose", "Why is the sky blue?", Reply(text="Scattering."))
    assert answer.value == "Scattering." and answer.why == "one call: no sign of several pieces"
    assert worker.prompts == ["Why is the sky blue?"]


# --- the rules -------------------------------------------------------------------------------------------------------


def split(**fields: Any) -> Split:
    made = read_split({**SPLIT, **fields})
    assert isinstance(made, Split), made
    return made


def test_a_sound_split() -> None:
    assert find_faults(split(), TRANSLATE, 64) == []
    riddle = read_split(RIDDLE)
    assert isinstance(riddle, Split) and find_faults(riddle, RIDDLES, 64) == []
    assert find_faults(riddle, "Write three riddles about rain", 64) == [], "a number may be a word"


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"n": 2}, "both data and n"),
        ({"data": None}, "either data or n"),
        ({"data": ["Good day."]}, "1 pieces, not two"),
        ({"template": "Translate"}, "no {data}"),
        ({"template": "{context} {data}"}, "has {context}, but there is none"),
        ({"template": "  "}, "template is empty"),
        ({"data": ["Good day.", " "]}, "a piece is empty"),
        ({"data": ["Good day.", "Good day."]}, "there twice"),
        ({"data": ["Good day.", "something entirely made up"]}, "a piece is not from the prompt"),
        (
            {"context": "nothing of this was ever said", "template": "{context} {data}"},
            "context is not from the prompt",
        ),
    ],
)
def test_splits_that_are_not_sound(fields: dict[str, Any], fault: str) -> None:
    assert fault in "; ".join(find_faults(split(**fields), TRANSLATE, 64))


@pytest.mark.parametrize(
    ("fields", "text", "fault"),
    [
        ({"n": 1}, "Write 1 riddle", "n is 1, not two"),
        ({"n": 5}, RIDDLES, "the prompt does not say 5"),
        ({"n": -3}, RIDDLES, "n is -3"),
        ({"n": 10**18}, RIDDLES, "does not say"),
        ({"n": 1000}, "Write 1000 riddles", "1000 pieces are more than 64"),
        ({"template": "Write {n} riddles"}, RIDDLES, "has {data} or {n} in it"),
    ],
)
def test_repeated_generation_that_is_not_sound(fields: dict[str, Any], text: str, fault: str) -> None:
    made = read_split({**RIDDLE, **fields})
    assert isinstance(made, Split) and fault in "; ".join(find_faults(made, text, 64))


def test_tiers_of_confidence() -> None:
    two = split(data=["Good day.", "Good night."], category="Other")
    assert (
        choose_tier(two, {"count"})
        == choose_tier(two, {"items"})
        == choose_tier(two, {"questions"})
        == choose_tier(two, {"multiple"})
        == "high"
    )
    assert choose_tier(two, {"commas"}) == choose_tier(two, {"each"}) == choose_tier(two, {"plural"}) == "medium"
    assert choose_tier(two, {"pieces"}) == "low"
    assert choose_tier(split(data=["Good day.", "Good night."]), set()) == "medium", (
        "translation is done piece by piece"
    )
    assert choose_tier(split(category="Other"), set()) == "medium", "three pieces"


def test_what_models_write_in_place_of_the_schema() -> None:
    assert split(data=[1, 2.5, "x"]).data == ("1", "2.5", "x")
    assert split(n=0).n is None and split(n="2").n == 2
    assert split(n=3).n is None, "data and how many there are"
    assert read_split([SPLIT]) == split()
    assert read_split({"Template ": "a {data}", "DATA": ["x", "y"]}) == Split(template="a {data}", data=("x", "y"))
    assert read_split({**RIDDLE, "n": "3"}) == read_split(RIDDLE)
    for said in (
        None,
        [],
        "x",
        5,
        {},
        {"template": None},
        {"parallel": False, "template": "x"},
        {"template": 3, "n": 2},
    ):
        assert isinstance(read_split(said), str)
    assert isinstance(read_split({**SPLIT, "data": [{"text": "x"}]}), str)
    assert isinstance(read_split({**SPLIT, "data": [True, None]}), str)


def test_fields_are_put_in_once() -> None:
    made = Split(
        template="{context}\n\nQuestion: {data} {data}", context="The {data} of {n}", data=("a {context}", "b")
    )
    shared, own = made.piece("a {context}")
    assert shared == "The {data} of {n}\n\nQuestion: "
    assert own == "a {context} a {context}"
    assert Split(template="{data}?", context="All", data=("a", "b")).piece("a") == ("All\n\n", "a?")


def test_json_in_other_words() -> None:
    text = json.dumps(SPLIT)
    for said in (
        text,
        f"Sure!\n```json\n{text}\n```\nDone.",
        f"<think>{{}}</think>{text}",
        text[:-1] + ",}",
        text + ' as in "this"',
        text.replace('"', "'"),
        text.replace("null", "None"),
    ):
        value = read_object(said)
        assert isinstance(value, dict) and value["template"] == SPLIT["template"], said
        assert value["data"] == SPLIT["data"]
    slow = (
        '{"a' * 20_000,
        "{" + '"a' * 30_000,
        '"' + '\\"' * 30_000,
        "{" + "'a" * 30_000,
    )  # minutes, if they were repaired
    for said in (*slow, "", "no", "[1, 2]", "}{", '"', "{" * 50_000, "[" * 50_000, '{"a":' * 20_000, "\\" * 10_000):
        assert not isinstance(read_object(said), dict) or read_object(said) == {}


@given(st.text(alphabet="{}[]\":,'\\ntdaemplc 123\n`<>/", max_size=200))
def test_json_is_read_or_not_but_nothing_raises(text: str) -> None:
    value = read_object(text)
    assert value is None or isinstance(value, dict)
    json.dumps(value)
    made = read_split(value)
    if isinstance(made, Split):
        find_faults(made, TRANSLATE, 64)


# --- plans and patches -----------------------------------------------------------------------------------------------


def patch(said: str | Result, text: str = TRANSLATE, **options: Any) -> Plan:
    planner = Decompose(**options)
    result = Result(value=said) if isinstance(said, str) else said
    return checked(made(planner, brief(text), {"extract": result}))


def test_the_first_plan_asks_for_the_split() -> None:
    plan = checked(made(Decompose(), brief(TRANSLATE)))
    assert [step.name for step in plan.steps] == ["extract"]
    op = plan.steps[0].op
    assert (
        isinstance(op, ModelCall)
        and op.sampling.temperature == 0
        and isinstance(op.sampling.structured, StructuredOutput)
    )
    assert op.sampling.structured.kind == "json" and not op.sampling.structured.required
    assert TRANSLATE in prompt(plan.steps[0])
    op = made(Decompose(plan=CallConfig(form=None)), brief(TRANSLATE)).steps[0].op
    assert isinstance(op, ModelCall) and op.sampling.structured is None


def test_pieces_share_what_stands_before_them() -> None:
    text = "Here is a poem about rain and rivers. Questions: 1. Who? 2. Where? 3. When?"
    said = {
        "template": "{context} Answer this: {data}",
        "context": "Here is a poem about rain and rivers.",
        "data": ["Who?", "Where?", "When?"],
    }
    plan = patch(json.dumps(said), text)
    assert [step.name for step in plan.steps] == ["item-1", "item-2", "item-3", "text"]
    ops = [step.op for step in plan.steps if isinstance(step.op, ModelCall)]
    assert {op.prompt[0] for op in ops} == {Text(text="Here is a poem about rain and rivers. Answer this: ")}
    assert [op.prompt[1] for op in ops] == [Text(text="Who?"), Text(text="Where?"), Text(text="When?")]
    assert len({op.sampling.seed for op in ops}) == 3
    plan = patch(json.dumps(said), text, part=CallConfig(template="In one word. {piece}"))
    assert prompt(plan.steps[1]) == f"In one word. {said['context']} Answer this: Where?"


def test_what_is_written_several_times_is_varied() -> None:
    plan = patch(json.dumps(RIDDLE), RIDDLES)
    prompts = [prompt(step) for step in plan.steps[:-1]]
    assert len(set(prompts)) == 3 and all(each.startswith("Write a riddle about rain") for each in prompts)
    assert "one of 3 independent answers" in prompts[0] and "number 2" in prompts[1]
    ops = [step.op for step in plan.steps if isinstance(step.op, ModelCall)]
    assert len({op.sampling.seed for op in ops}) == 3 and None not in {op.sampling.seed for op in ops}


@pytest.mark.parametrize("said", ["", "no", "{}", '{"template": null}', json.dumps({**SPLIT, "data": ["x"]})])
def test_a_split_that_is_none_is_one_call(said: str) -> None:
    plan = patch(said, answer=CallConfig(max_tokens=55))
    assert [step.name for step in plan.steps] == ["direct", "alone"]
    assert prompt(plan.steps[0]) == TRANSLATE
    assert plan.steps[0].op.sampling.max_tokens == 55


def test_an_extraction_that_was_cut_off_is_not_taken_for_the_whole() -> None:
    whole = json.dumps({"template": SPLIT["template"], "data": SPLIT["data"]})
    half = whole[: whole.index(', "Good luck')]
    assert patch(Result(value=half)).output == "text", "by itself it could be all"
    assert patch(Result(value=half, finish="length")).output == "alone"


def test_less_sure_than_wanted_is_one_call() -> None:
    text = "Translate this text, sentence by sentence. Good day. Good night."
    said = json.dumps({**SPLIT, "data": ["Good day.", "Good night."], "category": "Language work"})
    assert patch(said, text).output == "alone"
    assert patch(said, text, threshold=0.0).output == "text"
    assert patch(json.dumps(SPLIT), threshold=1.0).output == "text"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "template": st.sampled_from([None, "", "{data}", "{context}{data}", "{n}", "x {{data}}", 5]),
            "context": st.sampled_from([None, "", "Good", {"a": 1}]),
            "data": st.one_of(
                st.none(), st.lists(st.sampled_from(["Good day.", "Good night.", "", "{data}", 3, None]))
            ),
            "n": st.one_of(st.none(), st.integers(), st.text(max_size=3), st.floats(allow_nan=False)),
            "category": st.one_of(st.none(), st.text(max_size=5), st.lists(st.integers(), max_size=1)),
        },
    )
)
def test_any_json_gives_a_plan(said: dict[str, Any]) -> None:
    plan = patch(json.dumps(said), threshold=0.0)
    assert plan.output in ("text", "alone")


# --- end to end ------------------------------------------------------------------------------------------------------

PIECES = (
    Reply(when=ASKED, text=json.dumps(SPLIT)),
    Reply(when="^Translate to German: Good day", text="Guten Tag.", delay=0.05),
    Reply(when="^Translate to German: Good night", text="Gute Nacht."),
)


async def test_pieces_are_answered_at_the_same_time_and_stand_in_order() -> None:
    answer, _ = await ask("decompose", TRANSLATE, *PIECES, Reply(text="Viel Glück."))
    assert answer.value == "1. Guten Tag.\n\n2. Gute Nacht.\n\n3. Viel Glück."
    assert answer.why == "3 pieces, high confidence, Translation; 3 of 3 parts"
    assert labels(answer)["item-2"] == "Good night."
    answer, _ = await ask(
        "decompose", TRANSLATE, *PIECES, Reply(text="Viel Glück."), options={"numbered": False, "separator": "\n"}
    )
    assert answer.value == "Guten Tag.\nGute Nacht.\nViel Glück."


LUCKLESS = (
    *PIECES,
    Reply(when="^Translate to German: Good luck", text="x", finish="error"),
    Reply(when="^Translate to German:\n1", text="All of it."),
)


async def test_a_piece_that_fails_is_noted() -> None:
    answer, _ = await ask("decompose", TRANSLATE, *LUCKLESS)
    assert answer.value.startswith("1. Guten Tag.\n\n2. Gute Nacht.\n\n3. (no answer: failed: EngineError")
    assert answer.status == "done" and "2 of 3 parts; missing: item-3" in answer.why


async def test_a_piece_that_fails_is_one_call() -> None:
    answer, _ = await ask("decompose", TRANSLATE, *LUCKLESS, options={"on_failure": "all"})
    assert answer.value == "All of it." and "one call instead" in answer.why


async def test_an_extraction_that_fails_is_one_call() -> None:
    answer, _ = await ask("decompose", TRANSLATE, Reply(when=ASKED, text="x", finish="error"), Reply(text="All of it."))
    assert answer.value == "All of it." and answer.status == "done"


def test_the_join_says_how_failures_are_taken() -> None:
    for on_failure in ("best-effort", "all"):
        op = patch(json.dumps(SPLIT), on_failure=on_failure).steps[-1].op
        assert isinstance(op, Join) and op.on_failure == on_failure
