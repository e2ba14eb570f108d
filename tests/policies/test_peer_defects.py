"""What published systems get wrong about votes, prunings and stops: a directed test for each defect, named after it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from plait.core.call_config import CallConfig
from plait.core.events import Dispatch, Finish, Job, Stopped, Submitted, Succeeded, WorkerUp
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.core.task import Task
from plait.machine.machine import Machine
from plait.planners.votes.sample import Sample
from plait.policies.merge.votes import Majority, Weighted
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.simulator import Host, LatencyModel, simulate
from tests.planners.driving import Outcome, drive
from tests.policies.branches import branches, confident, voter


def plain(**options: str) -> Task:
    return Plugins().task(Plugin(name="plain", options=dict(options)), "q")


def vote(answers: Sequence[str], *policies: str, slots: int = 64, **options: object) -> Outcome:
    def model(prompt: list[str], job: Job) -> str | Failure:
        said = answers[int(job.step.rpartition("-")[2]) - 1]
        return Failure(kind="WorkerError", message="no") if said == "fail" else said

    planner = Sample.model_validate({"n": len(answers), **options})
    return drive(planner, Request(text="q", policies=tuple(map(Plugin.of, policies))), model, slots=slots)


# --- optillm ----------------------------------------------------------------------------------------------------------


def test_self_consistency_votes_on_answers_not_on_texts() -> None:
    """Three right ones in different words are one class; two texts that are nearly the same are two."""
    same = "First take the train to be at rest, then halve the distance and add four. So the answer is {}."
    made = branches(
        "By counting, the answer is 12.", "12 * 1 = 12, hence\nanswer: 12", r"It must be \boxed{12}",
        same.format(7), same.format(9),
    )  # fmt: skip
    verdict = Majority().merge(made, plain())
    assert plain().key(verdict.value) == "12" and verdict.why.startswith("3 of 5 votes, margin 2")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("A train covers 60 miles. The answer is B", "B"),
        ("Final answer: 12. No, wait.\nFinal answer: 15", "15"),
        (r"The answer is 3, or rather \boxed{4}", "4"),
        ("answer: 'User: hi'", "'User: hi'"),
    ],
)
def test_the_last_answer_counts_and_content_cuts_nothing(text: str, answer: str) -> None:
    assert plain().extract(text) == answer


def test_numbers_that_end_alike_are_not_the_same() -> None:
    task = plain()
    assert task.key("3.14") != task.key("2.14")
    assert Majority().merge(branches("answer: 3.14", "answer: 2.14", "answer: 2.14"), task).value == "2.14"


def test_one_outlier_does_not_beat_fifteen_that_agree() -> None:
    """By their rule, 0.7 times the mean confidence and 0.3 times the share, it does."""
    made = [voter("b0", "answer: B", signals=confident(90.0))]
    made += [voter(f"b{i}", "answer: A", signals=confident(8.0)) for i in range(1, 16)]
    assert 0.7 * 90.0 + 0.3 / 16 > 0.7 * 8.0 + 0.3 * 15 / 16
    assert Weighted(criterion="mean").merge(made, plain()).value == "A"


def test_sixteen_samples_take_as_long_as_one() -> None:
    hosts, latency = [Host("h", 16, decode_rate=100.0)], LatencyModel()
    times = [
        simulate(
            Request(text="q"), planner=Sample(n=n, answer=CallConfig(max_tokens=50)), hosts=hosts, latency=latency
        ).makespan
        for n in (1, 16)
    ]
    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_losers_are_neither_waited_for_nor_paid_for() -> None:
    """A thread pool's `break` waits for its losers all the same."""

    def outcome(job: Job, rng: object) -> Result:
        right = job.step.endswith("-1")
        steps = "11-7=4 ; 5*4=20 ; 20+4=24" if not right else "11-7=4 ; 4*5=20 ; 20+3=23"
        text = "<hit> 7 - 5 = 2 ; 11 + 2 = 13 ; 13 * 3 = 39" if right else f"<hit> {steps}"
        return Result(value=text, usage=Usage(completion=10 if right else 500))

    request = Request(text="3 5 7 11 -> 39", task=Plugin(name="countdown"))
    planner = Sample(n=8, merge=Plugin(name="best-of"), early=True)
    report = simulate(request, planner=planner, hosts=[Host("h", decode_rate=100.0)], outcome=outcome)
    assert report.result is not None and report.result.why.startswith("verified")
    assert report.makespan < 0.2 and report.usage.completion < 8 * 15


# --- its_hub ----------------------------------------------------------------------------------------------------------


def test_cancelling_those_that_wait_leaks_no_permit() -> None:
    """A hundred votes on four slots, each decided while most of its samples wait: in the end all slots are free."""
    plugins = Plugins()
    machine = Machine(plugins)
    machine.handle(WorkerUp(at=0, worker="w", slots=4, serves=("think",)))
    for i in range(100):
        request = Request(text="q", policies=(Plugin(name="consensus"), Plugin(name="esc")))
        planner = Sample(n=40, answer=CallConfig(temperature=1.0))
        task = plugins.task(request.task, "q")
        plan = planner.start(_brief(request, task))
        todo = list(machine.handle(Submitted(at=0, run=f"r{i}", request=request, plan=plan)))
        finished = False
        while todo:
            match todo.pop(0):
                case Dispatch(job=job):
                    result = Result(value="answer: A", usage=Usage(completion=1))
                    todo += machine.handle(Succeeded(at=0, attempt=job.attempt, result=result))
                case Finish(status=status):
                    finished = status == "done"
                case action if action.kind == "cancel" and action.attempt is not None:
                    todo += machine.handle(Stopped(at=0, attempt=action.attempt))
                case _:
                    pass
        assert finished
        assert not machine.attempts and not machine.nodes
        (host,) = machine.workers.values()
        assert host.running == 0 and host.free == 4 and host.load == 0


def _brief(request: Request, task: Task):
    from plait.core.interfaces import PlanningContext

    return PlanningContext(request, task)


@pytest.mark.parametrize("policy", ["adaptive-consistency", "consensus", "esc:window=3", "saturation"])
def test_one_sample_that_fails_neither_raises_nor_leaves_the_rest_running(policy: str) -> None:
    outcome = vote(["A", "fail", *["A"] * 12], policy)
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == "A"
    assert len(outcome.contexts) + len(outcome.cancelled) == 13


def test_all_fail_and_that_is_said_not_raised() -> None:
    """Others divide by the number of beams that completed."""
    outcome = vote(["fail"] * 3, "adaptive-consistency", "deepconf-consensus")
    assert outcome.finish.status == "failed" and outcome.finish.failure is not None
    assert "WorkerError" in outcome.finish.failure.message


# --- deepconf ---------------------------------------------------------------------------------------------------------


def recorded(answers: str, confidence: float):
    def outcome(job: Job, rng: object) -> Result:
        i = int(job.step.rpartition("-")[2]) - 1
        return Result(value=f"answer: {answers[i % len(answers)]}", usage=Usage(completion=40))

    return {"outcome": outcome, "confidence": lambda job, result, rng: [confidence] * 40}


def test_consensus_stops_what_has_not_started() -> None:
    """Their online mode always launches the whole budget; here a warm-up that agrees is enough."""
    planner = Sample(n=64, answer=CallConfig(temperature=1.0, logprobs=20, window=8), merge=Plugin(name="weighted"))
    policies = [Plugins().policy(Plugin.of(each)) for each in ("deepconf", "deepconf-consensus")]
    report = simulate(
        Request(text="q"), planner=planner, policies=policies, hosts=[Host("h", 64)], **recorded("A", 8.0)
    )
    assert report.result is not None and report.result.why.startswith("tail confidence")
    assert len(report.spans) == 16, "the warm-up, and nothing after it"


def test_the_warm_up_need_not_be_a_barrier() -> None:
    planner = Sample(n=12, answer=CallConfig(temperature=1.0, logprobs=20, window=8), merge=Plugin(name="weighted"))
    starts = {}
    for wait in ("true", "false"):
        policy = Plugins().policy(Plugin.of(f"deepconf:warmup=4,hold={wait}"))
        report = simulate(
            Request(text="q"), planner=planner, policies=[policy], hosts=[Host("h", 64)], **recorded("AB", 8.0)
        )
        starts[wait] = max(span.start for span in report.spans)
    assert starts["false"] == 0.0 < starts["true"]


def test_answers_need_no_box_and_no_equal_spelling() -> None:
    made = branches("the answer is 1,000.0", r"\boxed{1000}", "answer: 2000/2", r"\boxed{7}", r"\boxed{7}")
    assert Majority().merge(made, plain()).why.startswith("3 of 5 votes")


# --- dspy and others --------------------------------------------------------------------------------------------------


def test_a_policy_that_was_used_before_is_as_good_as_new() -> None:
    """Others keep counts on the object between calls."""
    policies = [Plugins().policy(Plugin.of(each)) for each in ("deepconf:warmup=3,eta=50", "redundant:steps=1", "esc")]
    planner = Sample(n=9, answer=CallConfig(temperature=1.0, logprobs=20, window=8, stream=True))
    reports = [
        simulate(
            Request(text="q"), planner=planner, policies=policies, hosts=[Host("h", 9)], seed=1, **recorded("ABA", 8.0)
        )
        for _ in range(3)
    ]
    assert reports[0] == reports[1] == reports[2]


def test_a_weight_that_is_no_number_is_left_out() -> None:
    made = [voter("b0", "answer: A", logprob=math.nan), voter("b1", "answer: B", logprob=-1.0)]
    merge = Plugins().merge(Plugin(name="best-scored"))
    assert merge.merge(made, plain()).value == "B"
