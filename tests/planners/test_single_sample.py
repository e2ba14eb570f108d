"""The planners `single` and `sample`: prompts, sampling, seeds, and how a vote is closed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.interfaces import PlanningContext
from plait.core.ops import Join, ModelCall, Plugin, Text
from plait.core.request import Request
from plait.core.result import Failure
from plait.planners.votes.sample import Sample, Single
from plait.tasks.plain import Plain
from plait_bench.tasks.countdown import Countdown
from tests.planners.driving import drive

PUZZLE = "3 5 7 11 -> 24"
RIGHT = "<serial> <go> <hit> 11 - 7 = 4 ; 5 + 3 = 8 ; 8 * 4 = 32 <end>"


def brief(seed: int = 0) -> PlanningContext:
    return PlanningContext(Request(text=PUZZLE, task=Plugin(name="countdown"), seed=seed), Countdown(text=PUZZLE))


def thinks(plan) -> list[ModelCall]:
    return [step.op for step in plan.steps if isinstance(step.op, ModelCall)]


def test_single_is_one_call() -> None:
    plan = Single(answer=CallConfig(max_tokens=33), width=4).start(brief())
    (op,) = thinks(plan)
    assert op.prompt == (Text(text="<serial> 4 T24 11 7 5 3 <go>"),) and not op.chat
    assert op.sampling.max_tokens == 33 and op.sampling.temperature is None
    assert plan.output == "think"


def test_single_direct_and_chat() -> None:
    (op,) = thinks(Single(style="direct", answer=CallConfig(temperature=0.5)).start(brief()))
    assert op.prompt == (Text(text="<direct> T24 11 7 5 3 <go>"),) and op.sampling.seed is not None
    (op,) = thinks(Single().start(PlanningContext(Request(text="Why?"), Plain(text="Why?"))))
    assert op.chat and op.prompt == (Text(text="Why?"),)


def test_sample_is_n_calls_and_a_vote() -> None:
    plan = Sample(n=3, early=True).start(brief())
    vote = plan.steps[-1]
    assert [step.name for step in plan.steps] == ["sample-1", "sample-2", "sample-3", "vote"]
    assert vote.needs == ("sample-1", "sample-2", "sample-3") and plan.output == "vote"
    assert isinstance(vote.op, Join) and vote.op.early and vote.op.on_failure == "best-effort"
    assert vote.op.merge == Plugin(name="majority")
    assert all(op.sampling.temperature == 1.0 for op in thinks(plan))


def test_seeds_are_distinct_follow_the_request_and_not_n() -> None:
    def seeds(n: int, seed: int) -> list[int | None]:
        return [op.sampling.seed for op in thinks(Sample(n=n).start(brief(seed)))]

    many = seeds(2000, 1)
    assert len(set(many)) == 2000 and None not in many
    assert seeds(3, 1) == many[:3]
    assert not set(seeds(100, 2)) & set(many)


def test_the_merge_by_name_or_with_options() -> None:
    assert Sample.model_validate({"merge": "best-of"}).merge == Plugin(name="best-of")
    spec = {"name": "my.mod:Merge", "options": {"x": 1}}
    assert Sample.model_validate({"merge": spec}).merge.options == {"x": 1}
    with pytest.raises(ValidationError):
        Sample.model_validate({"n": 0})


def request(**more: object) -> Request:
    return Request.model_validate({"text": PUZZLE, "task": {"name": "countdown"}, **more})


def say(answers: list[str | Failure]):
    def model(prompt: list[str], job: Job) -> str | Failure:
        return answers[int(job.step.rsplit("-", 1)[1]) - 1]

    return model


A, B, NONE = (f"<hit> {text} <end>" for text in ("11 - 7 = 4 ; 5 - 3 = 2", "7 - 5 = 2 ; 11 + 3 = 14", "?"))


def test_failed_and_silent_samples_are_left_out() -> None:
    failed = Failure(kind="WorkerError", message="no")
    outcome = drive(Sample(n=4), request(), say([failed, NONE, B, B]))
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == ["7-5=2", "11+3=14"]
    assert outcome.finish.result.why == ("2 of 2 votes, margin 2; no answer in sample-2; not counted: sample-1 failed")


def test_only_failures_fail_the_run() -> None:
    outcome = drive(Sample(n=2), request(), say([Failure(kind="WorkerError", message="no")] * 2))
    assert outcome.finish.status == "failed" and outcome.finish.failure is not None


@pytest.mark.parametrize("how", ["early", "consensus"])
def test_a_decided_vote_stops_the_rest(how: str) -> None:
    policies = [{"name": "consensus"}] if how == "consensus" else []
    outcome = drive(Sample(n=8, early=how == "early"), request(policies=policies), say([A, A, B, A, A, A, B, B]))
    assert outcome.finish.result is not None and outcome.finish.result.value == ["11-7=4", "5-3=2"]
    # A A B A A leaves three out at a lead of three; the sixth sample decides.
    assert sorted(outcome.cancelled) == ["r:sample-7", "r:sample-8"]
    assert len(outcome.contexts) == 6


def test_without_either_all_samples_run() -> None:
    outcome = drive(Sample(n=8), request(), say([A, A, B, A, A, A, B, B]))
    assert not outcome.cancelled and len(outcome.contexts) == 8


def test_best_of_takes_what_the_verifier_finds_right() -> None:
    right = "<hit> 7 - 3 = 4 ; 11 - 5 = 6 ; 6 * 4 = 24 <end>"
    outcome = drive(Sample(n=5, merge=Plugin(name="best-of"), early=True), request(), say([A, NONE, right, A, A]))
    assert outcome.finish.result is not None
    assert outcome.finish.result.value == ["7-3=4", "11-5=6", "6*4=24"]
    assert sorted(outcome.cancelled) == ["r:sample-4", "r:sample-5"]
