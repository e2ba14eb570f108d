"""The planner `deepprune` and the merge `distinct`, in the machine."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, strategies as st

from orchestrator.core.events import Job
from orchestrator.core.ir import Failure, Request
from planners.deepprune import DeepPrune
from tests.planners.driving import Outcome, drive

TASK = "q"


def solve(probes: Sequence[str], finals: Sequence[str], short: Sequence[int] = (), **options: object) -> Outcome:
    """Samples whose beginnings are probed to `probes` and that would end in `finals`; `short` end by themselves."""

    def model(prompt: list[str], job: Job) -> str | Failure:
        kind, _, number = job.step.rpartition("-")
        i = int(number) - 1
        if kind.endswith("probe"):
            said = probes[i]
            return Failure(kind="WorkerError", message="no") if said == "fail" else f"answer: {said}"
        if kind.endswith("rest"):
            return f"and so answer: {finals[i]}"
        return f"answer: {finals[i]}" if i in short else "some thoughts that go on and on"

    planner = DeepPrune.model_validate({"n": len(probes), "prefix": 3, "max_tokens": 20, "probe": " so far", **options})
    return drive(planner, Request(text="q"), model)


def went_on(outcome: Outcome) -> list[str]:
    return sorted(step.rpartition("/")[2] for step in outcome.prompts if "rest-" in step)


def test_one_of_each_cluster_goes_on_and_votes_for_all_of_it() -> None:
    outcome = solve(["a", "b", "a", "a", "c"], ["x", "y", "?", "?", "y"])
    assert went_on(outcome) == ["rest-1", "rest-2", "rest-5"]
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == "x", "three beginnings against two"
    assert outcome.finish.result.why.startswith("3 of 5 votes, margin 1")


def test_what_goes_on_continues_its_own_context() -> None:
    outcome = solve(["a", "b"], ["x", "y"])
    (first,) = (words for step, words in outcome.contexts.items() if step.endswith("rest-1"))
    assert first == ["q", "some", "thoughts", "that", "and", "so", "answer:", "x"]


def test_a_sample_that_ended_by_itself_represents_its_cluster() -> None:
    outcome = solve(["x", "never read", "z"], ["?", "x", "z"], short=[1])
    assert went_on(outcome) == ["rest-3"]
    assert outcome.finish.result is not None and outcome.finish.result.value == "x"


def test_a_probe_that_fails_prunes_nothing() -> None:
    outcome = solve(["fail", "fail", "a"], ["x", "x", "y"])
    assert went_on(outcome) == ["rest-1", "rest-2", "rest-3"]
    assert outcome.finish.result is not None and outcome.finish.result.value == "x"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.booleans())
def test_if_probes_tell_the_truth_the_vote_is_that_of_all(answers: list[str], early: bool) -> None:
    outcome = solve(answers, answers, early=early)
    assert outcome.finish.result is not None
    best = max(answers.count(each) for each in answers)
    assert answers.count(str(outcome.finish.result.value)) == best
    assert len(went_on(outcome)) == len(set(answers))
