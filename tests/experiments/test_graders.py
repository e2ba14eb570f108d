"""Graders agree with the truth on pairs of answers that are made with it, and verify no wrong one."""

from __future__ import annotations

import pytest

from experiments.graders.by_others import OTHERS
from experiments.graders.by_task import TASKS
from experiments.graders.pairs import KINDS, pairs
from experiments.graders.run import FOR, MODES, by_mode, cases, graded

SEEDS = (1, 2)


def check(kind: str, count: int, seed: int) -> None:
    made = pairs(kind, count, seed)
    assert len(set(made)) == count and sum(pair.equal for pair in made) * 2 == count
    for mode in MODES:
        found = graded(made, by_mode(mode))
        assert not found.verified, f"{mode} takes different answers for equal"
        if mode == FOR.get(kind, "expression"):
            assert found.share >= 0.995, found.missed[:5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_pairs_of_each_kind_is_graded_as_it_is(kind: str) -> None:
    check(kind, 200, SEEDS[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_thousand_pairs_of_each_kind_are_graded_as_they_are(kind: str, seed: int) -> None:
    check(kind, 2_000, seed)


@pytest.mark.parametrize("task", TASKS)
def test_answers_that_tasks_verify_are_judged_as_they_are(task: str) -> None:
    answers, agree, wrong = TASKS[task](200, 3)
    assert (agree, wrong) == (answers, 0)


@pytest.mark.parametrize("mode", MODES)
def test_no_case_of_another_harness_that_differs_is_verified(mode: str) -> None:
    assert not graded(cases(), by_mode(mode)).verified


@pytest.mark.parametrize(("harness", "package"), [("BFCL", "bfcl_eval"), ("lm-eval", "plait")])
def test_answers_are_read_as_other_harnesses_read_them(harness: str, package: str) -> None:
    pytest.importorskip(package)
    _, answers, agree, missed, wrong = OTHERS[harness](200, 3)[0]
    assert int(answers) >= 150 and (agree[:7], missed, wrong) == ("100.00%", "0", "0")


# A package that one family reads its puzzles from leaves the file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_answers_of_all_families_of_reasoning_gym_are_graded_as_they_stand() -> None:
    pytest.importorskip("reasoning_gym")
    _, answers, agree, missed, wrong = OTHERS["Reasoning Gym"](200, 3)[0]
    assert int(answers) > 1_000 and (agree[:7], missed, wrong) == ("100.00%", "0", "0")
