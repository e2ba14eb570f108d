"""The planner `skeleton_graph`: lines become calls while they are written, results go on to those that need them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.call_config import CallConfig
from plait.core.ops import ModelCall, Text
from plait.core.plan import Plan
from plait.core.result import Result
from plait.workers.scripted import Reply
from plait_research.planners._sub_problems import HARDEST, GraphText, Part
from plait_research.planners.skeleton_graph import SkeletonGraph
from tests.planners.scripted_runs import ask, brief, checked, labels, named, prompt, read, states

PLAN = """\
1. [difficulty 1; needs none] List the quantities
2. [difficulty 2; needs none] State the law
3. [difficulty 5; needs 1, 2] Solve for x
"""
ASKED = "Split the work"


def parsed(text: str, size: int | None = None, most: int = 10, cut: bool = False) -> tuple[list[Part], list[str]]:
    reader = GraphText(most)
    pieces = [text] if size is None else [text[at : at + size] for at in range(0, len(text), size)]
    found = [part for piece in pieces for part in reader.feed(piece)]
    return found + list(reader.close(cut)), reader.repairs


# --- what is read ----------------------------------------------------------------------------------------------------


def test_a_list_as_it_is_asked_for() -> None:
    found, repairs = parsed(PLAN)
    assert found == [
        Part(1, "List the quantities", 1, ()),
        Part(2, "State the law", 2, ()),
        Part(3, "Solve for x", 5, (1, 2)),
    ]
    assert repairs == []


@pytest.mark.parametrize(
    ("line", "difficulty", "needs"),
    [
        ("3. Solve (difficulty: 4, depends on: 1 and 2)", 4, (1, 2)),
        ("3) [needs 1 & 2, level 3] Solve", 3, (1, 2)),
        ("**3.** [Difficulty: 2/5 | Dependencies: #1, #2] Solve", 2, (1, 2)),
        ("- 3. (hard problem) Solve [difficulty hard; after: 2]", 5, (2,)),
        ("3. [difficulty: easy] [requires: $2] Solve", 1, (2,)),
        ("3. [needs: 2, 2, 2; difficulty 3] Solve", 3, (2,)),
        ("3. [difficulty 3; needs nothing] Solve", 3, ()),
        ("3. [difficulty 3] Solve for level 2 of (needs 1)", 3, (1,)),
    ],
)
def test_other_ways_to_write_a_line(line: str, difficulty: int, needs: tuple[int, ...]) -> None:
    found, _ = parsed("1. [difficulty 1] a\n2. [difficulty 1] b\n" + line)
    assert (found[2].number, found[2].difficulty, found[2].needs) == (3, difficulty, needs)
    assert "Solve" in found[2].text and "ifficulty" not in found[2].text


def test_nonsense_is_noted_and_left_out() -> None:
    found, repairs = parsed("1. [difficulty 99999999999; needs 1, 7] a\n1. [difficulty 1] again\n2. b\n2.5 c\n0. d")
    assert found == [Part(1, "a", HARDEST, ()), Part(2, "b", HARDEST, ())]
    assert repairs == [
        "sub-problem 1 has no difficulty from 1 to 5: it counts as 5",
        "sub-problem 1 needs 1, which does not come before it",
        "sub-problem 1 needs 7, which does not come before it",
        "a second line with the number 1 is left out",
        "sub-problem 2 has no difficulty from 1 to 5: it counts as 5",
        "a second line with the number 0 is left out",
    ]


def test_reasoning_before_the_list_is_not_the_list() -> None:
    found, _ = parsed("<think>\n1. [difficulty 1] no\n</think>\n1. [difficulty 2] yes")
    assert found == [Part(1, "yes", 2, ())]


def test_a_line_that_was_cut_off_is_left_out() -> None:
    found, repairs = parsed("1. [difficulty 1] a\n2. [difficulty 1] b and c and", cut=True)
    assert [part.number for part in found] == [1] and repairs == ["the last line was cut off"]


def test_ten_thousand_lines_are_ten() -> None:
    found, repairs = parsed("".join(f"{i}. [difficulty 1; needs {i - 1}] x\n" for i in range(1, 1000)))
    assert len(found) == 10 and found[-1].needs == (9,)
    assert repairs[-1] == "sub-problems after the first 10 are left out" and len(repairs) == 2
    _, repairs = parsed("1. x\n" * 10_000)
    assert len(repairs) == 100


@given(st.integers(1, 40))
def test_the_same_for_every_chunking(size: int) -> None:
    text = "<think>\nhm\n</think>\r\n" + PLAN + "4. [needs 3; difficulty 2] Check\n"
    assert parsed(text, size) == parsed(text)


@given(st.text(alphabet="123. [](;,)\nneedsdifficulty:<think>/$#-\x00", max_size=300), st.integers(1, 50))
def test_anything_can_be_read_and_gives_a_dag(text: str, size: int) -> None:
    found, _ = parsed(text, size)
    assert (found, _) == parsed(text)
    seen: set[int] = set()
    for part in found:
        assert 1 <= part.difficulty <= HARDEST and set(part.needs) <= seen and part.number not in seen
        seen.add(part.number)


# --- plans and patches -----------------------------------------------------------------------------------------------


def patches(said: str | Result, **options: Any) -> list[Plan]:
    planner = SkeletonGraph(**options)
    return list(read(planner, planner.start(brief()).steps[0], said, brief()))


def test_the_first_plan() -> None:
    plan = checked(SkeletonGraph(max_branches=7).start(brief()))
    assert [step.name for step in plan.steps] == ["graph", "answer"]
    op = plan.steps[0].op
    assert isinstance(op, ModelCall) and op.stream and "2 to 7 sub-problems" in prompt(plan.steps[0])


def test_each_line_is_a_patch_and_results_go_to_those_that_need_them() -> None:
    made = patches(PLAN)
    assert [[step.name for step in patch.steps] for patch in made] == [["part-1"], ["part-2"], ["part-3"], ["text"]]
    assert [patch.output for patch in made] == [None, None, None, "text"]
    last = made[2].steps[0]
    assert "1. List the quantities\n<part-1>" in prompt(last) and "2. State the law\n<part-2>" in prompt(last)
    assert "Your part: Solve for x" in prompt(last)
    assert "part-" not in prompt(made[0].steps[0])
    heads = [step.op.prompt[0] for patch in made for step in patch.steps if isinstance(step.op, ModelCall)]
    assert len(set(heads)) == 1 and isinstance(heads[0], Text)
    assert made[3].steps[0].label == "3 sub-problems in 2 waves"


def test_difficulty_chooses_the_model_and_the_tokens() -> None:
    made = patches(
        PLAN,
        threshold=0.25,
        part=CallConfig(model="small", max_tokens=11, template="Your part: {text} /no_think"),
        hard=CallConfig(model="large", max_tokens=99, template="Your part: {text} /think"),
    )
    ops = [patch.steps[0].op for patch in made[:3]]
    assert [op.model for op in ops if isinstance(op, ModelCall)] == ["small", "small", "large"]
    assert [op.sampling.max_tokens for op in ops if isinstance(op, ModelCall)] == [11, 11, 99]
    assert prompt(made[0].steps[0]).endswith(" /no_think") and prompt(made[2].steps[0]).endswith(" /think")
    assert "difficulty 1, small" in made[0].steps[0].label


def test_the_threshold_is_on_the_difficulty_between_0_and_1() -> None:
    def hard(threshold: float) -> list[bool]:
        said = "".join(f"{i}. [difficulty {i}] x\n" for i in range(1, 6))
        made = patches(said, threshold=threshold, hard=CallConfig(max_tokens=999))
        ops = [patch.steps[0].op for patch in made[:5]]
        return [op.sampling.max_tokens == 999 for op in ops if isinstance(op, ModelCall)]

    assert hard(0.5) == [False, False, False, True, True]
    assert hard(1.0) == [False] * 5
    assert hard(0.0) == [False, True, True, True, True]


@pytest.mark.parametrize("said", ["", "no list", "1. only one", "\x00" * 100])
def test_too_few_sub_problems_are_one_call(said: str) -> None:
    last = patches(said)[-1]
    assert [step.name for step in last.steps][-2:] == ["direct", "alone"] and last.output == "alone"


@given(st.text(alphabet="123. [](;,)\nneedsdifficulty:<think>/$#-", max_size=200), st.sampled_from(["stop", "length"]))
def test_whatever_the_model_says_the_patches_fit_together(said: str, finish: str) -> None:
    steps = []
    made = patches(Result(value=said, finish=finish))
    for patch in made:
        names = tuple(step.name for step in steps)
        checked(patch, outside=("", *names))
        steps += patch.steps
    whole = [step.name for step in steps]
    assert len(set(whole)) == len(whole) and made[-1].output == whole[-1]


# --- end to end ------------------------------------------------------------------------------------------------------

PARTS = (
    Reply(when="Your part: List", text="x and y"),
    Reply(when="Your part: State", text="x = 2y"),
    Reply(when="Your part: Solve", text="x is 4"),
)


async def test_parts_are_worked_on_and_put_together() -> None:
    answer, worker = await ask("skeleton_graph", "What is x?", Reply(when=ASKED, text=PLAN), *PARTS)
    assert answer.value == "x and y\n\nx = 2y\n\nx is 4"
    assert answer.why == "3 sub-problems in 2 waves; 3 of 3 parts"
    (solve,) = worker.asked("Your part: Solve")
    assert "1. List the quantities\nx and y" in solve and "2. State the law\nx = 2y" in solve


async def test_a_part_starts_while_the_list_is_still_being_written() -> None:
    plan = PLAN + "\n" + "and so on " * 20
    answer, _ = await ask("skeleton_graph", "What is x?", Reply(when=ASKED, text=plan, tokens_per_second=200), *PARTS)
    rows = {row.name: row for row in answer.report.steps}
    times = (rows["part-1"].ended_at, rows["part-3"].ready_at, rows["graph"].ended_at)
    assert sorted(each for each in times if each is not None) == list(times)


async def test_a_synthesis_at_the_end() -> None:
    replies = (Reply(when=ASKED, text=PLAN), *PARTS, Reply(when="The parts of the work are done", text="Therefore 4."))
    answer, worker = await ask("skeleton_graph", "What is x?", *replies, options={"answer_from": "summary"})
    assert answer.value == "Therefore 4." and "a synthesis" in answer.why
    assert "3. Solve for x\nx is 4" in worker.asked("The parts of the work are done")[0]
    broken = (*replies[:-1], Reply(when="The parts of the work are done", text="x", finish="error"))
    answer, _ = await ask("skeleton_graph", "What is x?", *broken, options={"answer_from": "summary"})
    assert answer.status == "done" and str(answer.value).endswith("3. Solve for x\nx is 4")
    assert "the synthesis failed" in answer.why


async def test_a_part_that_fails() -> None:
    replies = (
        Reply(when=ASKED, text=PLAN),
        Reply(when="Your part: List", text="x", finish="error"),
        *PARTS[1:],
        Reply(text="It is 4."),
    )
    answer, _ = await ask("skeleton_graph", "What is x?", *replies)
    assert answer.value == "It is 4." and "one call instead" in answer.why and "part-1" in answer.why
    answer, _ = await ask("skeleton_graph", "What is x?", *replies, options={"on_failure": "best-effort"})
    assert answer.value == "x = 2y" and states(answer)["part-3"] == "failed"
    assert "1 of 3 parts; missing: part-1 failed" in answer.why


async def test_repairs_are_on_the_label() -> None:
    plan = "1. [difficulty 1; needs 9] List the quantities\n2. [difficulty 2; needs none] State the law"
    answer, _ = await ask("skeleton_graph", "What is x?", Reply(when=ASKED, text=plan), *PARTS)
    assert "sub-problem 1 needs 9, which does not come before it" in labels(answer)["text"]


async def test_the_list_cannot_be_written() -> None:
    answer, _ = await ask(
        "skeleton_graph", "What is x?", Reply(when=ASKED, text="x", finish="error"), Reply(text="It is 4.")
    )
    assert answer.value == "It is 4." and "EngineError" in answer.why


def test_parts_stand_in_the_order_of_their_numbers() -> None:
    made = patches("2. [difficulty 1] b\n1. [difficulty 1; needs 2] a\n")
    join = named(made[-1], "text")
    assert join.needs == ("part-1", "part-2")
    assert "<part-2>" in prompt(made[1].steps[0])
    assert all(a.output is None for a, _ in pairwise(made))
