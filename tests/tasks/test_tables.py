"""Questions over tables: reading and writing, the rule-based plan, slots, the tools, hostile text."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, strategies as st
from pydantic import JsonValue

from plait.core.errors import TaskError, ToolError
from plait_bench.tasks.tables import Tables
from plait_bench.tasks.tables.language import read, slots, words
from plait_bench.tasks.tables.questions import Facts, answer, carry_out
from training.tables.questions import Argument, CallRef, calls, draw, held_out, is_test


def carried_out(text: str, facts: Facts, meaning: dict[str, str]) -> JsonValue:
    """The last result of the rule-based plan."""
    done: list[JsonValue] = []

    def given_(argument: Argument) -> JsonValue:
        if isinstance(argument, CallRef):
            return done[argument.index]
        if isinstance(argument, tuple):
            return [given_(each) for each in argument]
        value = meaning.get(argument, argument)
        return int(value) if value.isdigit() else value

    for call in calls(read(text)):
        done.append(carry_out(call.tool, [given_(arg) for arg in call.args], facts))
    return done[-1]


@given(st.integers(0, 10**9))
def test_a_question_is_read_as_it_was_written_and_its_plan_gives_the_answer(seed: int) -> None:
    rng = random.Random(seed)
    question = draw(rng, rng.randint(1, 8))
    text, facts = words(question), Facts(seed)
    assert read(text) == question
    shown, meaning = slots(text)
    right = answer(question, facts)
    assert carried_out(text, facts, {}) == carried_out(shown, facts, meaning) == right
    assert answer(read(shown), facts, meaning) == right
    task = Tables(text=text, seed=seed)
    assert task.verify(right) and task.verify(task.key(right)) and task.render() == shown
    assert not task.verify("Nobody") and not task.verify(None)


def test_slots_are_numbered_by_first_appearance_and_equal_words_share_one() -> None:
    text = "if the age of Brelom is above 40 then 40 else the sum of Ardan's age and the debt of Brelom's twin?"
    shown, meaning = slots(text)
    assert shown == "if s0's age is above n0 then n0 else the sum of s1's age and s0's twin's debt?"
    assert meaning == {"s0": "Brelom", "n0": "40", "s1": "Ardan"}


def test_the_split_does_not_depend_on_names_and_numbers() -> None:
    found = held_out(40)
    assert len(set(found)) == 40 and all(map(is_test, found))
    for text in found:
        shown, meaning = slots(text)
        other = text
        for old, new in zip(
            sorted(set(meaning.values())), "Ardan Brefik Corlom Dalmer Erinos Fenpet".split(), strict=False
        ):
            if old[0].isalpha() and new not in meaning.values():
                other = other.replace(old, new)
        assert slots(other)[0] == shown and is_test(other)


@pytest.mark.parametrize(
    "text",
    [
        "", "?", "what", "what is the age of", "what is the age of Ardan and?", "who is the the of Ardan?",
        "is the age of Ardan above", "which of Ardan has the best age?", "what is the age of Nobody?",
        "what is " + "the sum of " * 200 + "1 and 2?", "x" * 5000, "what is the age of Ardan; rm -rf /", "$1", "{}",
        "what is the sum of the age of Ardan, the age of Brefik?", "what is Ardan's?", "who is Ardan's age?",
        "what is Ardan's age's owner?", "'s", "is Ardan above Brefik?",
    ],
)  # fmt: skip
def test_text_outside_the_language_is_refused_in_words(text: str) -> None:
    with pytest.raises(TaskError) as error:
        Tables(text=text)
    assert len(str(error.value)) < 300


@given(st.text(max_size=80))
def test_any_other_text_is_refused_and_nothing_else_is_raised(text: str) -> None:
    with pytest.raises(TaskError):
        Tables(text=text)


def test_answers_stand_at_the_end_of_a_text() -> None:
    task = Tables(text="what is the age of Ardan?")
    assert task.extract("the sum is -12") == -12
    assert task.extract("true") is True and task.extract("<failed>") is None
    assert task.extract("Action: Finish(Gorvik)") == "Gorvik"
    assert task.key(True) != task.key(1)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("untrue", None), ("not true", False), ("it isn't false", True), ("4.5", None), ("1e4", None), ("x45", None),
     ("−12", -12), ("it is 45.", 45), ("so: true.", True), ("1,045", None)],
)  # fmt: skip
def test_words_and_numbers_are_read_whole(text: str, answer: object) -> None:
    found = Tables(text="what is the age of Ardan?").extract(text)
    assert found == answer and type(found) is type(answer)


def test_tools_read_slots_and_names_and_fail_once_where_they_fail() -> None:
    text = "is the age of the owner of Ardan above 40?"
    by_name = {tool.name: tool for tool in Tables(text=text, seed=3, latency=(0.0, 0.0)).tools()}
    facts = Facts(3)

    async def looked(field: str, name: str) -> object:
        return await by_name["lookup"](field, name)

    assert asyncio.run(looked("owner", "s0")) == asyncio.run(looked("owner", "Ardan")) == facts.lookup("owner", "Ardan")
    assert by_name["above"]("n0", 39) is True and by_name["add"](1, "n0") == 41
    for wrong in (("colour", "s0"), ("age", "Nobody")):
        with pytest.raises(ToolError):
            asyncio.run(looked(*wrong))
    with pytest.raises(ToolError):
        by_name["add"]("s0", 1)
    failing = {tool.name: tool for tool in Tables(text=text, latency=(0.0, 0.0), failing=1.0).tools()}

    async def twice() -> object:
        with pytest.raises(ToolError):
            await failing["lookup"]("age", "s0")
        return await failing["lookup"]("age", "s0")

    assert asyncio.run(twice()) == Facts(0).lookup("age", "Ardan")
