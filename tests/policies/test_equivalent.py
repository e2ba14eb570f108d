"""The merge `equivalent`, in the machine with a tool, an embedding or a model, and the tool `math_equal`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from pydantic import JsonValue

from plait.core.call_config import CallConfig
from plait.core.errors import ToolError
from plait.core.events import Job
from plait.core.request import Request
from plait.core.result import Failure, Result
from plait.core.states import State
from plait.core.view import Branch
from plait.planners.votes.sample import Sample
from plait.policies.merge.votes import Equivalent
from plait.workers.tools import math_equal
from tests.planners.driving import drive
from tests.policies.branches import LETTERS, branches, ended


def after(values: list[str], said: JsonValue, state: State = State.DONE) -> tuple[object, str]:
    """What a vote comes to when the tool has said something."""
    made = branches(*values)
    first = Equivalent().merge(made, LETTERS)
    assert first.patch is not None
    call, join = first.patch.steps
    assert call.op.kind == "call" and join.op.kind == "join" and join.needs[0] == call.name
    result = Result(value=said) if state is State.DONE else None
    called = Branch(call.name, "r:call", state, result, None, 0)
    merge = Equivalent.model_validate(join.op.merge.options)
    verdict = merge.merge([called, *made], LETTERS)
    return verdict.value, verdict.why


def test_votes_are_counted_by_the_tools_classes() -> None:
    assert after(["a", "b", "b", "c", "a", "d"], [0, 1, 0, 1]) == (
        "a",
        "3 of 6 votes, margin 0, a tie settled by order; 4 answers in 2 classes",
    )
    assert after(["b", "b", "a", "c", "d"], [0, 1, 1, 1])[0] == "a"


def test_each_different_answer_is_asked_about_once() -> None:
    verdict = Equivalent(tool="same").merge([*branches("b", "a", "b", "?"), ended("b5", State.FAILED)], LETTERS)
    assert verdict.patch is not None
    op = verdict.patch.steps[0].op
    assert op.kind == "call" and op.tool == "same" and op.args == {"answers": ["b", "a"]}


def test_one_answer_is_not_asked_about() -> None:
    verdict = Equivalent().merge(branches("a", "a"), LETTERS)
    assert (verdict.value, verdict.patch) == ("a", None)


@pytest.mark.parametrize("said", [None, [0], [0, 2], [1, 1], [0, True], ["0", "1"], {"0": 0}, [0, -1]])
def test_classes_that_make_no_sense_do_not_count(said: JsonValue) -> None:
    value, why = after(["a", "b", "b"], said)
    assert value == "b" and "math_equal gave no classes" in why


def test_a_tool_that_fails_leaves_the_tasks_equality() -> None:
    assert after(["a", "b", "b"], None, State.FAILED)[0] == "b"


# --- embeddings -------------------------------------------------------------------------------------------------------


def embedded(values: list[str], said: JsonValue, state: State = State.DONE, **options: object) -> tuple[object, str]:
    """What a vote comes to when an embedding has given vectors for its different answers, most votes first."""
    made = branches(*values)
    merge = Equivalent.model_validate({"ask": "embedding", **options})
    first = merge.merge(made, LETTERS)
    assert first.patch is not None
    call, join = first.patch.steps
    assert call.op.kind == "call" and call.op.tool == "embed" and join.op.kind == "join"
    assert len(call.op.args["texts"]) == len(set(values))  # type: ignore[arg-type]
    result = Result(value=said) if state is State.DONE else None
    verdict = Equivalent.model_validate(join.op.merge.options).merge(
        [Branch(call.name, "r:call", state, result, None, 0), *made], LETTERS
    )
    return verdict.value, verdict.why


def test_answers_whose_embeddings_point_the_same_way_vote_together() -> None:
    vectors: JsonValue = [[0.0, 1.0], [1.0, 0.0], [2.0, 0.1]]  # of b, a, c
    value, why = embedded(["b", "a", "b", "a", "c"], vectors)
    assert (value, why) == ("a", "3 of 5 votes, margin 1; 3 answers in 2 classes")
    assert embedded(["b", "a", "b", "a", "c"], vectors, threshold=1.0)[0] == "b", "a tie settled by order"


def test_an_outlier_is_in_nobodys_class() -> None:
    """Far away, enormous, or no direction at all: it neither wins nor joins."""
    for outlier in ([-1e9, 1e9], [0.0, 0.0]):
        value, why = embedded(["d", "a", "b", "c", "a"], [[1.0, 1.0], outlier, [1.0, 1.0], [1.0, 0.9]])  # of a, d, b, c
        assert value == "a" and why == "4 of 5 votes, margin 3; 4 answers in 2 classes"


@pytest.mark.parametrize(
    "said",
    [None, "no", [[1.0]], [[1.0], [2.0], [3.0]], [[1.0], [1.0, 2.0]], [[1.0], [float("nan")]], [[1.0], [True]],
     [[1.0], ["1"]], [[], []], [0, 1]],
)  # fmt: skip
def test_vectors_that_make_no_sense_do_not_count(said: JsonValue) -> None:
    value, why = embedded(["a", "b", "b"], said)
    assert value == "b" and "embed gave no vectors, so the task's own equality counts" in why
    assert "2 of 3 votes" in why


def test_an_embedding_that_fails_leaves_the_tasks_equality() -> None:
    value, why = embedded(["a", "b", "b"], None, State.FAILED)
    assert value == "b" and "embed gave no vectors" in why


def test_similarity_does_not_chain() -> None:
    """The third is like the second and not like the first, which stands for both."""
    turn = [[math.cos(angle), math.sin(angle)] for angle in (0.0, 0.4, 0.8)]
    assert embedded(["a", "b", "c"], turn)[1].endswith("3 answers in 2 classes")


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=2, max_size=7), st.floats(0.05, 0.999))
def test_classes_of_embeddings_are_numpys(rows: list[list[float]], threshold: float) -> None:
    names = [chr(ord("a") + i) for i in range(len(rows))]
    matrix = np.array(rows)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    unit = np.divide(matrix, norms, out=np.zeros_like(matrix), where=norms > 0)
    likeness = unit @ unit.T
    assume(np.abs(likeness - threshold).min() > 1e-9)
    heads: list[int] = []
    size: dict[int, int] = {}
    for i in range(len(rows)):
        best = max(heads, key=lambda head, i=i: likeness[i, head], default=None)
        own = best is None or likeness[i, best] < threshold
        if own:
            heads.append(i)
        assert own or np.sum(np.abs(likeness[i, heads] - likeness[i, best]) < 1e-9) >= 1
        size[i if own else best] = size.get(i if own else best, 0) + 1
    top = max(size.values())
    _, why = embedded(names, rows, threshold=threshold)
    assert why.startswith(f"{top} of {len(rows)} votes") and f" in {len(heads)} classes" in why


# --- a model ----------------------------------------------------------------------------------------------------------


def asked_model(
    values: Sequence[str], say: Callable[[str, str], str | Failure], **options: object
) -> tuple[object, str, int]:
    """What a vote comes to when a model says of pairs whether they are the same, and how often it was asked."""

    def model(prompt: list[str], job: Job) -> str | Failure:
        words = " ".join(prompt)
        if "same-" not in job.step:
            said = values[int(job.step.rpartition("-")[2]) - 1]
            return f"answer: {said}"
        (a, b) = re.findall(r"\b[AB]: (\w+)", words)
        return say(a, b)

    merge = {"name": "equivalent", "options": {"ask": "model", **options}}
    outcome = drive(Sample.model_validate({"n": len(values), "merge": merge}), Request(text="q"), model)
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    calls = sum("same-" in step for step in outcome.prompts)
    return outcome.finish.result.value, outcome.finish.result.why, calls


def same_letter(a: str, b: str) -> str:
    return "I say yes" if a[0] == b[0] else "Yes? No."


def test_answers_that_a_model_finds_the_same_vote_together() -> None:
    value, why, calls = asked_model(["b1", "a1", "b1", "a2", "a3", "c"], same_letter)
    assert (value, why) == ("a1", "3 of 6 votes, margin 1; 5 answers in 3 classes")
    assert calls == 4 + 3 + 0 or calls == 4 + 3 + 1


def test_one_answer_is_shown_to_no_model() -> None:
    assert asked_model(["a", "a"], same_letter)[2] == 0


def test_an_answer_like_no_other_stays_alone() -> None:
    value, why, _ = asked_model(["z", *(f"a{i}" for i in range(15))], same_letter)
    assert value == "a0" and why.startswith("15 of 16 votes, margin 14; 16 answers in 2 classes")


@pytest.mark.parametrize("said", ["maybe", "", "yesterday I know", Failure(kind="WorkerError", message="no")])
def test_a_judge_that_fails_or_talks_nonsense_leaves_the_tasks_equality(said: str | Failure) -> None:
    value, why, _ = asked_model(["a", "b", "b"], lambda a, b: said)
    assert (value, why) == (
        "b", "2 of 3 votes, margin 1; 2 answers in 2 classes; 1 comparisons came to nothing and count as no",
    )  # fmt: skip


def test_no_more_answers_are_compared_than_asked_for() -> None:
    value, why, calls = asked_model(["c", "b", "b", "a", "a", "d"], lambda a, b: "yes", max_prompt_items=2)
    assert calls == 1 and value == "b" and why.startswith("4 of 6 votes")
    assert why.endswith("4 answers in 3 classes; 2 of the answers were not compared")


def test_equal_counts_go_to_the_earliest_voter() -> None:
    value, why, _ = asked_model(["b1", "a1", "a2", "b2"], same_letter)
    assert value == "b1" and "a tie settled by order" in why


@pytest.mark.parametrize(
    ("text", "logprob", "threshold", "same"),
    [("yes", -0.1, None, True), ("yes", -1.0, None, False), ("no", -0.1, None, False), ("no", -1.0, None, True),
     ("yes", -0.1, 0.95, False), ("no", -4.0, 0.95, True), ("yes", None, None, True), ("no", None, None, False)],
)  # fmt: skip
def test_a_graded_judge_is_taken_by_its_probability(
    text: str, logprob: float | None, threshold: float | None, same: bool
) -> None:
    merge = Equivalent(ask="model", threshold=threshold, judge=CallConfig(logprobs=1, form="choice"))
    made = branches("a", "b")
    patch = merge.merge(made, LETTERS).patch
    assert patch is not None
    call, join = patch.steps
    assert call.op.kind == "think" and call.op.sampling.logprobs == 1 and join.op.kind == "join"
    assert call.op.sampling.structured is not None and call.op.sampling.structured.spec == ["yes", "no"]
    said = Branch(call.name, "r:call", State.DONE, Result(value=text, logprob=logprob), None, 1)
    verdict = Equivalent.model_validate(join.op.merge.options).merge([said, *made], LETTERS)
    assert verdict.why.startswith("2 of 2 votes" if same else "1 of 2 votes")


@given(st.lists(st.sampled_from(["a1", "a2", "b1", "b2", "c1", "?"]), min_size=1, max_size=8))
def test_a_judge_that_is_right_gives_the_vote_of_the_classes(values: list[str]) -> None:
    made = branches(*values)
    by_name = {each.name: each for each in made}
    merge, extra, calls = Equivalent(ask="model"), [], 0
    for _ in range(10):
        verdict = merge.merge([*extra, *made], LETTERS)
        if verdict.patch is None:
            break
        *steps, join = verdict.patch.steps
        assert join.op.kind == "join" and join.needs == (*(step.name for step in steps), *by_name)
        merge = Equivalent.model_validate(join.op.merge.options)
        extra = []
        for step in steps:
            first, second = step.label.split(" and ")
            said = "yes" if by_name[first].text[0] == by_name[second].text[0] else "no"
            extra.append(Branch(step.name, f"r:{step.name}", State.DONE, Result(value=said), None, 1))
        calls += len(extra)
    counts = Counter(value[0] for value in values if value != "?")
    if not counts:
        assert verdict.value is None
        return
    k = len(set(values) - {"?"})
    if k > 1:  # else nobody is asked, and the reason speaks of that
        top = max(counts.values())
        assert counts[str(verdict.value)[0]] == top and verdict.why.startswith(f"{top} of {sum(counts.values())} votes")
    assert calls <= k * (k - 1) // 2


# --- the tool ---------------------------------------------------------------------------------------------------------


@pytest.mark.engine
def test_math_verify_says_what_is_the_same() -> None:
    pytest.importorskip("math_verify")
    answers = [r"\frac{1}{2}", "0.5", "2x+2", "2(x+1)", r"\sin^2 x + \cos^2 x", "1", "no math at all"]
    assert math_equal.math_equal(answers) == [0, 0, 2, 2, 4, 4, 6]


def test_what_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs, pid = tmp_path / "hangs", tmp_path / "pid"
    hangs.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(math_equal, "SECONDS", 0.5)
    monkeypatch.setattr(math_equal.sys, "executable", str(hangs))
    with pytest.raises(ToolError, match="was not done with 1 answers"):
        math_equal.math_equal(["9^9^9^9"])
    assert not Path(f"/proc/{pid.read_text().strip()}").exists(), "it is gone"
