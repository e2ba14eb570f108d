"""Traces of the outliner are what the planner `scale` asks for; both tokenizers cut them alike; its tables."""

from __future__ import annotations

import random

import pytest

from plait.planners._shared.steps import NO_THINKING
from plait_bench.tasks.brackets import Brackets, read
from plait_research.planners._sub_problems import GraphText
from plait_research.planners.scale import _DIFFICULT, _FINAL, _OWN, _PICK, _PLAN
from training.outline import evaluate, vocab
from training.outline.generate import MIXTURE, Case, draw_case, draw_trace, is_test, mark, outline, parts, spoiled
from training.trades import TRADES

WORDS = ["(", "14", "-", "3", "*", "4", ")", "*", "2", "+", "(", "7", "+", "5", ")"]


@pytest.mark.parametrize("mode", list(MIXTURE))
def test_traces_are_words_of_the_vocabulary_and_both_tokenizers_cut_them_alike(mode: str) -> None:
    rng, tokenizer = random.Random(mode), TRADES["outline"].tokenizer()
    for _ in range(30):
        trace = draw_trace(rng, mode)
        text = vocab.decode(trace.ids)
        assert len(trace.ids) == len(trace.weights) < 600 and trace.weights[-1] > 0
        assert vocab.encode(text) == trace.ids == tokenizer.encode(text, add_special_tokens=False).ids


def test_the_planners_prompts_come_to_the_marks_of_the_traces() -> None:
    case, rng = Case(WORDS), random.Random(1)
    tokenizer = TRADES["outline"].tokenizer()
    done = f"{case.text}\n\nDone: a = 14 - 3 * 4\n{case.full(case.steps[0])}"
    known = f"{case.text}<done>a = 14 - 3 * 4\n3 * 4 = 12; 14 - 12 = 2; 2"
    own = _OWN.format(text="c = a * 2 + b")
    plans = "Plan 1\n1. a = 7 + 5\n\nPlan 2\n1. a = 7 - 5"
    for prompt, short in (
        (_PLAN.format(question=case.text, most=8), f"{case.text}<outline>"),
        (done + own, f"{known}<do>c = a * 2 + b\n"),
        (done + own + _DIFFICULT, f"{known}<do>c = a * 2 + b<difficult>"),
        (case.text + own + NO_THINKING, f"{case.text}<do>c = a * 2 + b<at-once>"),
        (done + _FINAL, f"{known}<answer>"),
        (_PICK.format(question=case.text, plans=plans), f"{case.text}<pick>{plans}<go>"),
    ):  # fmt: skip
        assert vocab.encode(prompt) == vocab.encode(short) == tokenizer.encode(prompt, add_special_tokens=False).ids
    assert parts(rng, case, "outline")[0] == f"{case.text}<outline>"


def test_outlines_are_read_as_they_are_meant_and_answers_are_right() -> None:
    rng = random.Random(2)
    for _ in range(50):
        case = draw_case(rng)
        graph = GraphText(8)
        graph.feed(outline(case.steps))
        found = list(graph.parts.values())
        assert not graph.repairs and [each.text for each in found] == [step.text for step in case.steps]
        assert [each.needs for each in found] == [tuple(need + 1 for need in step.needs) for step in case.steps]
        right = Brackets(text=case.text).right()
        assert parts(rng, case, "whole")[1].endswith(f"; {right}") and parts(rng, case, "answer")[1] == str(right)
        assert spoiled(rng, case.steps) != case.steps
        assert all(0 <= mark(step) <= 9 for step in case.steps)
        assert evaluate.same_plan(outline(case.steps), case) and not evaluate.same_plan("1. [difficulty 1] 3", case)


def test_training_never_draws_from_the_test_split() -> None:
    rng = random.Random(3)
    seen = {draw_case(rng, test).text for test in (False, True) for _ in range(40)}
    assert len(seen) > 60
    for text in {draw_case(rng).text for _ in range(60)}:
        assert not is_test(read(text))
