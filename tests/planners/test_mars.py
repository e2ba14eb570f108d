"""The planner `mars`: its rule against the formulas written out, and whole runs in the machine."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from plait.core.events import Job
from plait.core.request import Request
from plait.core.result import Failure
from plait_research.planners.mars import LineLooks, Look, Mars, Switching, calibrate, is_safe
from tests.planners.driving import Outcome, drive


def cost(key: str | None, first: str, other: str, gamma: float) -> float:
    if key is None:
        return 0.0
    return -1.0 if key == other else 2 * gamma if key == first else gamma


def test_safe_is_the_margin_over_the_expected_damage_to_each_challenger() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        active = [(rng.choice(["A", "B", "C", None]), rng.random() * rng.random()) for _ in range(rng.randint(0, 8))]
        votes = Counter([key for key, _ in active if key] + [rng.choice("AAAB") for _ in range(rng.randint(0, 12))])
        gamma = rng.choice([0.5, 0.8, 1.0])
        if not votes:
            assert not is_safe(votes, active, gamma)
            continue
        first = max(votes, key=lambda key: votes[key])
        others = [key for key in votes if key != first] + ["nobody's"]
        wanted = all(
            votes[first] - votes[other] - sum(q * cost(key, first, other, gamma) for key, q in active) > 1e-12
            for other in others
        )
        assert is_safe(votes, active, gamma) == wanted


def test_what_surely_does_not_switch_is_safe_and_what_may_switch_is_not() -> None:
    votes = Counter("AAAB")
    assert is_safe(votes, [])
    assert is_safe(votes, [("A", 0.01)] * 3)
    assert not is_safe(votes, [("A", 0.5)] * 3)
    assert not is_safe(Counter("AB"), [])
    assert not is_safe(Counter("AA"), [("A", 0.5)] * 2), "answers that nobody has given yet count as well"
    assert is_safe(Counter("A"), [(None, 0.6)] * 2), "a line without an answer takes none away"


def test_the_chances_of_switching_are_learnt() -> None:
    rng = random.Random(2)
    lines: list[LineLooks] = []
    for _ in range(200):  # an unsure look is a wrong one, and the last looks are sure
        final = rng.choice("AB")
        looks = [
            Look(final if (sure := rng.random() < 0.2 + 0.2 * at) else "Z", -0.1 if sure else -2.0) for at in range(4)
        ]
        lines.append(LineLooks(looks, final))
    model = Switching(lines)
    assert model.of(LineLooks([Look("A", -2.0)])) > 0.9 > 0.1 > model.of(LineLooks([Look("A", -0.1)]))
    assert Switching([LineLooks([Look("A", 0.0)] * 3, "A")] * 4).of(LineLooks([Look("B", -5.0)])) == pytest.approx(
        1 / 14
    )
    assert Switching([]).of(LineLooks([])) == 0.5
    assert np.isfinite(model.of(LineLooks([Look(None, -1e9), Look("A", 1e9)])))


def test_gamma_is_between_a_half_and_one() -> None:
    sure = [LineLooks([Look("A", 0.0)] * 3, "A")] * 9 + [LineLooks([Look("B", 0.0)] * 3, "B")]
    assert calibrate(sure) == 0.5, "nothing switches: the grid is walked to 0, then the floor"
    fickle = [LineLooks([Look("B", 0.0)], "A")] * 5 + [LineLooks([Look("B", 0.0)], "B")] * 4
    assert calibrate(fickle) == 1.0
    assert calibrate([]) == 1.0 and calibrate(sure[:3]) == 1.0, "fewer than four lines teach nothing"


def solve(says: list[list[str]], finals: list[str], **options: object) -> Outcome:
    """Samples of as many parts as they are asked for their answer, and one more; `fail` is a part that fails."""

    def model(prompt: list[str], job: Job) -> str | Failure:
        kind, number, *part = job.step.rpartition("/")[2].split("-")
        i, k = int(number) - 1, int(part[0]) if part else 1
        if kind == "probe":
            return f"so answer: {says[i][k - 1]}"
        if k > len(says[i]):
            return Failure(kind="WorkerError", message="no") if finals[i] == "fail" else f"so answer: {finals[i]}"
        return "thoughts that go on and on and on"

    fields = {
        "n": len(finals),
        "draft": {"max_tokens": 3},
        "answer": {"max_tokens": 60},
        "probe": {"template": " so far"},
        **options,
    }
    return drive(Mars.model_validate(fields), Request(text="q"), model)


def parts(outcome: Outcome) -> int:
    return sum("sample-" in step for step in outcome.prompts)


def test_lines_that_do_not_change_their_answers_end_early() -> None:
    says, finals = [["a"] * 6] * 20, ["a"] * 20
    outcome = solve(says, finals, warmup=4)
    assert outcome.finish.result is not None and outcome.finish.result.value == "a"
    assert parts(outcome) == 4 * 7 + 16, "the warm-up to its ends, one part of the others"


def test_thoughts_are_ended_before_the_question_and_what_it_opens_is_read() -> None:
    def model(prompt: list[str], job: Job) -> str:
        kind, _, *part = job.step.rpartition("/")[2].split("-")
        if kind == "probe":
            assert prompt[-2:] == ["</think>", "\\boxed{"], "a box is opened outside the thoughts"
            return "42}.\n\nExplanation"
        return "<think>it may be 41 or" if not part else " 42</think>\n\n\\boxed{42}"

    fields = {"n": 12, "warmup": 4, "draft": {"max_tokens": 3}, "answer": {"max_tokens": 60}}
    outcome = drive(Mars.model_validate(fields), Request(text="q"), model)
    assert outcome.finish.result is not None and outcome.finish.result.value == "42"
    assert parts(outcome) == 4 * 2 + 8, "the probe's answer is the final one, so the others stop at their first look"


def test_lines_that_may_change_run_to_their_ends() -> None:
    says, finals = [["b", "b", "b"]] * 12, ["a"] * 12
    outcome = solve(says, finals, warmup=4)
    assert outcome.finish.result is not None and outcome.finish.result.value == "a"
    assert parts(outcome) == 12 * 4


def test_a_sample_that_fails_votes_with_what_it_said_before_or_not_at_all() -> None:
    outcome = solve([["a"], ["a"], ["a"], []], ["a", "a", "fail", "fail"], warmup=2)
    assert outcome.finish.result is not None and outcome.finish.result.value == "a"
    assert outcome.finish.status == "done"


def test_a_steady_vote_ends_and_gives_up_lines_that_leave_it() -> None:
    says = [["a"] * 12] * 6 + [["b"] * 12] * 2
    outcome = solve(says, ["a"] * 6 + ["b"] * 2, criterion="steady")
    assert outcome.finish.result is not None and outcome.finish.result.value == "a"
    assert "steady" in outcome.finish.result.why or parts(outcome) < 8 * 13
    assert parts(outcome) == 8 * 5, "it was first at the last three of five looks, of which four are warm-up"
    changes = [["a", "b"] * 6] * 5 + [["c"] * 12] * 2
    outcome = solve(changes, ["a"] * 5 + ["c"] * 2, criterion="steady")
    asked = [step for step in outcome.prompts if step.rpartition("/")[2].startswith("sample-7")]
    assert len(asked) == 6, "given up after two looks behind the warm-up"
