"""The merges that ask a model (`pairwise`, `judged`, `synthesis`, `map-reduce`), in the machine with a scripted one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, strategies as st

from plait.core.events import Job
from plait.core.interfaces import Merge
from plait.core.request import Request
from plait.core.result import Failure
from plait.core.states import State
from plait.planners.votes.sample import Sample
from plait.policies.merge import _model_merge
from plait.policies.merge.best import Judged, Pairwise
from plait.policies.merge.synthesis import MapReduce, Synthesis
from tests.planners.driving import Outcome, drive
from tests.policies.branches import LETTERS, branches, ended

Reply = Callable[[str], str | Failure]
FAILURE = Failure(kind="WorkerError", message="no")


def vote(answers: Sequence[str], merge: str, reply: Reply, **options: object) -> Outcome:
    """Let the samples give the answers, merged by a merge whose calls `reply` answers."""

    def model(prompt: list[str], job: Job) -> str | Failure:
        name = job.step.rpartition(":")[2]
        if re.fullmatch(r"sample-\d+", name):
            said = answers[int(name.rpartition("-")[2]) - 1]
            return FAILURE if said == "fail" else said
        return reply(" ".join(prompt))

    planner = Sample.model_validate({"n": len(answers), "merge": {"name": merge, "options": options}})
    return drive(planner, Request(text="Which letter?"), model)


def value(outcome: Outcome) -> object:
    assert outcome.finish.status == "done" and outcome.finish.result is not None, outcome.finish
    return outcome.finish.result.value


def why(outcome: Outcome) -> str:
    assert outcome.finish.result is not None
    return outcome.finish.result.why


def asked(outcome: Outcome) -> list[str]:
    """Prompts of the calls that the merge made, by step."""
    return [" ".join(words) for step, words in outcome.prompts.items() if "/" in step]


# --- pairwise ---------------------------------------------------------------------------------------------------------


def prefers(order: str) -> Reply:
    """A judge that prefers the letter that comes earlier in `order`."""

    def reply(prompt: str) -> str:
        a, b = re.findall(r"Answer [AB]: (\w)", prompt)
        return "I say A" if order.index(a) < order.index(b) else "B is better"

    return reply


def test_the_winner_of_every_match_wins() -> None:
    outcome = vote(["w", "x", "x", "y", "z", "fail"], "pairwise", prefers("zywx"))
    assert value(outcome) == "z" and why(outcome) == (
        "won all of 2 rounds; 4 different answers of 5 votes; not counted: sample-6 failed"
    )
    assert len(asked(outcome)) == 2 * 3, "three matches, each asked both ways"


def test_a_bias_to_a_place_leaves_the_majority() -> None:
    for said in ("A", "B", "neither", "A and B, no: A"):
        outcome = vote(["y", "x", "x", "z"], "pairwise", lambda prompt, said=said: said)
        assert value(outcome) == "x"


def test_a_judge_that_fails_leaves_the_majority() -> None:
    assert value(vote(["y", "x", "x"], "pairwise", lambda prompt: FAILURE)) == "x"


def test_when_all_agree_nobody_is_asked() -> None:
    outcome = vote(["x", "x", "x"], "pairwise", prefers("x"))
    assert value(outcome) == "x" and not asked(outcome)
    assert why(outcome) == "nothing to compare: 1 different answers of 3 votes"


@given(st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=9), st.permutations("uvwxyz"))
def test_a_consistent_judge_gets_its_favourite(answers: list[str], order: list[str]) -> None:
    outcome = vote(answers, "pairwise", prefers("".join(order)))
    assert value(outcome) == min(answers, key=order.index)
    assert len(asked(outcome)) == 2 * (len(set(answers)) - 1)


# --- judged -----------------------------------------------------------------------------------------------------------


def marks(by: dict[str, str]) -> Reply:
    def reply(prompt: str) -> str | Failure:
        (letter,) = re.findall(r"answer to this: (\w)", prompt)
        return FAILURE if by[letter] == "fail" else by[letter]

    return reply


def test_the_best_mark_wins() -> None:
    outcome = vote(["x", "x", "y", "z"], "judged", marks({"x": "3", "y": "I think 8/10.", "z": "7 out of 10"}))
    assert value(outcome) == "y" and len(asked(outcome)) == 3
    assert why(outcome) == "marked 8 of 10 (sample-1 3, sample-3 8, sample-4 7); 1 votes, margin 1"


def test_equal_marks_go_to_the_votes() -> None:
    assert value(vote(["y", "x", "x"], "judged", marks({"x": "5", "y": "5"}))) == "x"
    assert value(vote(["y", "x"], "judged", marks({"x": "5", "y": "5"}))) == "y"


@pytest.mark.parametrize("bad", ["fail", "none", "11", "-", "v1.2.3"])
def test_without_a_mark_an_answer_loses_to_any_that_has_one(bad: str) -> None:
    assert value(vote(["x", "x", "y"], "judged", marks({"x": bad, "y": "0"}))) == "y"
    assert value(vote(["y", "x", "x"], "judged", marks({"x": bad, "y": bad}))) == "x"


# --- synthesis --------------------------------------------------------------------------------------------------------


def test_the_synthesis_reads_all_drafts_and_is_the_answer() -> None:
    outcome = vote(["one", "fail", "two"], "synthesis", lambda prompt: "both")
    assert value(outcome) == "both"
    (prompt,) = asked(outcome)
    assert prompt.startswith("Which letter? Here are 2 drafts, written") and "Draft 1: one Draft 2: two Weigh" in prompt
    assert why(outcome).startswith("2 of 3 branches have text")


def test_a_synthesis_that_fails_leaves_the_vote() -> None:
    assert value(vote(["one", "two", "two"], "synthesis", lambda prompt: FAILURE)) == "two"


def test_one_draft_is_its_own_synthesis() -> None:
    outcome = vote(["one", "fail"], "synthesis", lambda prompt: "never")
    assert value(outcome) == "one" and not asked(outcome)


def test_a_long_draft_is_shown_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_model_merge, "EXCERPT_CHARS", 5)
    outcome = vote(["one two three", "four"], "synthesis", lambda prompt: "x")
    assert "Draft 1: […] three Draft 2: four" in asked(outcome)[0]


# --- map-reduce -------------------------------------------------------------------------------------------------------


def join_parts(prompt: str) -> str:
    body = prompt.partition("Part 1:")[2].partition("Combine")[0]
    return "+".join(part.strip() for part in re.split(r"Part \d+:", body))


@given(st.integers(1, 20), st.integers(2, 5))
def test_all_texts_are_read_in_order(n: int, fan_in: int) -> None:
    answers = [f"t{i}" for i in range(n)]
    outcome = vote(answers, "map-reduce", join_parts, fan_in=fan_in)
    assert value(outcome) == "+".join(answers)
    levels, left = 0, n
    while left > 1:
        levels, left = levels + 1, -(-left // fan_in)
    assert why(outcome).startswith(f"reduced in {levels} levels")
    assert all(len(re.findall(r"Part \d+:", prompt)) <= fan_in for prompt in asked(outcome))


def test_a_group_that_fails_is_left_out() -> None:
    outcome = vote(
        ["a", "b", "c", "d"], "map-reduce", lambda p: FAILURE if "Part 1: a" in p else join_parts(p), fan_in=2
    )
    assert value(outcome) == "c+d"


def test_if_all_of_a_level_fail_so_does_the_run() -> None:
    outcome = vote(["a", "b"], "map-reduce", lambda prompt: FAILURE)
    assert outcome.finish.status == "failed"


# --- alone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "merge", [Pairwise(), Judged(), Synthesis(), MapReduce()], ids=lambda each: type(each).__name__
)
def test_nobody_has_anything_to_say(merge: Merge) -> None:
    verdict = merge.merge([ended("b0", State.FAILED), *branches(None)], LETTERS)
    assert verdict.value is None and verdict.patch is None


@pytest.mark.parametrize(
    "merge", [Pairwise(), Judged(), Synthesis(), MapReduce()], ids=lambda each: type(each).__name__
)
def test_names_of_branches_are_not_taken(merge: Merge) -> None:
    made = branches("x", "y")
    taken = ["match-1a", "mark-1", "synthesis-call", "reduce-1", "round", "marks", "reduced", "synthesis-answer"]
    for name in taken:
        renamed = [
            each.__class__(name if i == 0 else each.name, each.step, *_rest(each)) for i, each in enumerate(made)
        ]
        patch = merge.merge(renamed, LETTERS.model_copy(update={"text": "q"})).patch
        assert patch is not None and name not in {step.name for step in patch.steps}


def _rest(each) -> tuple:
    return (each.state, each.result, each.failure, each.tokens)
