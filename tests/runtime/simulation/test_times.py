"""Virtual time, checked by hand: every number here can be worked out on paper from rates and latencies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from plait.core.budget import Budget
from plait.core.errors import ConfigError, PlanError
from plait.core.events import Job
from plait.core.ops import Join, ModelCall, Plugin, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request, Retries
from plait.core.result import Failure, Result, Usage
from plait.core.sampling import Sampling
from plait_research.simulation.simulator import Host, LatencyModel, SimReport, WorkerFault, simulate
from tests.machine.invariants import check_invariants

STEADY = Host("a", slots=4, decode_rate=100.0, prefill_rate=1e12)
"""100 tokens per second for each sequence, prompts for nothing."""


def call(name: str, *needs: str) -> Step:
    return Step(name=name, op=ToolCall(tool="f"), needs=needs)


def think(name: str, *needs: str, tokens: int = 100, stream: bool = False, after: str | None = None) -> Step:
    op = ModelCall(prompt="go on", after=after, sampling=Sampling(max_tokens=tokens), stream=stream)
    return Step(name=name, op=op, needs=needs)


def join(name: str, *needs: str, **options) -> Step:
    return Step(name=name, op=Join(**options), needs=needs)


def plan(*steps: Step) -> Plan:
    return Plan(steps=steps, output=steps[-1].name)


def spans(report: SimReport) -> dict[str, tuple[float, float]]:
    return {span.step.removeprefix("sim:"): pytest.approx((span.start, span.end)) for span in report.spans}


def seconds(**each: float) -> Callable[[Job, Random], float]:
    """How long each call takes, by the name of its step."""
    return lambda job, rng: each[job.step.removeprefix("sim:")]


def run(what: Plan | Request, **options) -> SimReport:
    options.setdefault("hosts", [STEADY])
    return simulate(what, check=check_invariants, **options)


# -- decoding ----------------------------------------------------------------------------------------------------------


def test_a_chain_takes_the_sum_of_its_steps() -> None:
    report = run(
        plan(think("a", tokens=100), think("b", "a", tokens=50), call("c", "b")), latency=LatencyModel(call=0.25)
    )
    assert spans(report) == {"a": (0, 1.0), "b": (1.0, 1.5), "c": (1.5, 1.75)}
    assert report.makespan == pytest.approx(1.75)
    assert report.status == "done"
    assert report.usage.completion == 150
    assert report.critical_path_tokens == 150
    assert [spell.step for spell in report.waited_for] == ["sim:a", "sim:b", "sim:c"]
    assert sum(spell.ran + spell.waited for spell in report.waited_for) == pytest.approx(report.makespan)


def test_what_is_independent_runs_together_as_far_as_slots_go() -> None:
    host = Host("a", slots=2, decode_rate=100.0, prefill_rate=1e12)
    report = run(plan(*(think(f"s{i}") for i in range(3)), join("out", "s0", "s1", "s2")), hosts=[host])
    assert spans(report) == {"s0": (0, 1), "s1": (0, 1), "s2": (1, 2)}
    assert report.busy == {"a": pytest.approx(3 / 4)}
    assert (report.wait_mean, report.wait_max) == (pytest.approx(1 / 3), pytest.approx(1.0))


def test_a_batch_slows_each_of_its_sequences() -> None:
    """At 100/n tokens per second each: 50 tokens shared by two take 1 s, the other 50 of the longer one 0.5 s alone."""
    host = Host("a", slots=2, decode_rate=lambda batch: 100.0 / batch, prefill_rate=1e12)
    report = run(plan(think("short", tokens=50), think("long", tokens=100), join("out", "short", "long")), hosts=[host])
    assert spans(report) == {"short": (0, 1.0), "long": (0, 1.5)}


def test_a_sequence_that_joins_later_slows_those_there() -> None:
    """`a` has 50 of its 100 tokens when `c` joins at 0.5 s; then both get 50/s: `a` ends at 1.5 s with `c` at 50
    of 100 tokens, which are done at 2.0 s."""
    host = Host("a", slots=2, decode_rate=lambda batch: 100.0 / batch, prefill_rate=1e12)
    tools = Host("t", slots=1, serves=("call",))
    p = plan(think("a"), call("b"), think("c", "b"), join("out", "a", "c"))
    report = run(p, hosts=[Host("a", 2, ("think",), 1e12, host.decode_rate), tools], latency=LatencyModel(call=0.5))
    assert spans(report) == {"a": (0, 1.5), "b": (0, 0.5), "c": (0.5, 2.0)}


def test_prompts_of_a_host_are_read_one_after_another() -> None:
    """A prompt of 400 characters is 100 tokens, 0.1 s; the second of two begins to decode after 0.2 s."""
    host = Host("a", slots=2, decode_rate=100.0, prefill_rate=1000.0)
    steps = [Step(name=n, op=ModelCall(prompt="x" * 400, sampling=Sampling(max_tokens=10))) for n in ("p", "q")]
    report = run(plan(*steps, join("out", "p", "q")), hosts=[host])
    assert spans(report) == {"p": (0, 0.2), "q": (0, 0.3)}
    assert report.usage == Usage(prompt=200, completion=20)


def test_latencies_of_dispatch_and_of_planning_are_added() -> None:
    report = run(plan(think("a", tokens=10), call("b", "a")), latency=LatencyModel(dispatch=0.5, call=1.0))
    assert spans(report) == {"a": (0, 0.6), "b": (0.6, 2.1)}


def test_a_reply_longer_than_allowed_is_cut() -> None:
    def outcome(job: Job, rng: Random) -> Result:
        return Result(value="x" * 400)  # 100 tokens

    report = run(plan(think("a", tokens=10)), outcome=outcome)
    assert report.result is not None
    assert (report.result.value, report.result.finish, report.usage.completion) == ("x" * 40, "length", 10)
    assert report.makespan == pytest.approx(0.1)


# -- joins and limits --------------------------------------------------------------------------------------------------


def test_a_quorum_closes_with_the_second_of_three_and_stops_the_third() -> None:
    latency = LatencyModel(abort_latency=0.01)
    p = plan(
        think("s0", tokens=100),
        think("s1", tokens=200),
        think("s2", tokens=1000),
        join("out", "s0", "s1", "s2", on_failure="quorum", quorum=2),
    )
    report = run(p, latency=latency)
    assert spans(report) == {"s0": (0, 1), "s1": (0, 2), "s2": (0, 2.01)}
    assert report.makespan == pytest.approx(2.01)
    assert report.usage == Usage(prompt=6, completion=100 + 200 + 201, cancelled=201)
    assert [span.end_in for span in report.spans] == ["done", "done", "stopped"]
    assert report.result is not None and len(report.result.value) == 3  # type: ignore[arg-type]


def test_a_deadline_closes_a_join_with_what_is_done() -> None:
    p = plan(
        think("a", tokens=100), think("b", tokens=900), join("out", "a", "b", on_failure="best-effort", deadline=3.0)
    )
    report = run(p, latency=LatencyModel(abort_latency=0.0))
    assert (report.status, report.makespan) == ("partial", pytest.approx(3.0))
    assert report.usage.completion == 400 and report.usage.cancelled == 300


def test_a_deadline_with_too_few_branches_fails_the_run() -> None:
    p = plan(
        think("a", tokens=900),
        think("b", tokens=900),
        join("out", "a", "b", on_failure="quorum", quorum=1, deadline=2.0),
    )
    report = run(p, latency=LatencyModel(abort_latency=0.0))
    assert report.makespan == pytest.approx(2.0)
    assert report.failure is not None and report.failure.kind == "DeadlineExceeded"


def test_a_budget_of_seconds_ends_the_run_in_time_with_what_is_done() -> None:
    p = plan(think("a", tokens=100), think("b", "a", tokens=900))
    report = run(Request(budget=Budget(seconds=2.5)), plan=p, latency=LatencyModel(abort_latency=0.0))
    assert (report.status, report.makespan) == ("partial", pytest.approx(2.5))
    assert report.failure is not None and report.failure.kind == "BudgetExceeded"
    assert report.usage == Usage(prompt=4, completion=250, cancelled=150)


def test_a_budget_of_width_makes_steps_wait() -> None:
    p = plan(*(think(f"s{i}") for i in range(3)), join("out", "s0", "s1", "s2"))
    report = run(Request(budget=Budget(width=1)), plan=p)
    assert spans(report) == {"s0": (0, 1), "s1": (1, 2), "s2": (2, 3)}


def test_a_failed_call_is_tried_again_after_its_backoff() -> None:
    tries: list[str] = []

    def outcome(job: Job, rng: Random) -> Result | Failure:
        tries.append(job.step)
        return Result(value=1) if len(tries) == 3 else Failure(kind="ToolError", message="down", retryable=True)

    request = Request(retries=Retries(call=2, backoff=1.0))
    report = run(request, plan=plan(call("a")), outcome=outcome, latency=LatencyModel(call=0.5))
    assert [(span.start, span.end, span.end_in) for span in report.spans] == [
        (0.0, 0.5, "failed"),
        (1.5, 2.0, "failed"),  # a second later
        (4.0, 4.5, "done"),  # two seconds later
    ]
    assert report.status == "done"


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_sends_its_text_in_chunks_when_their_tokens_are_there() -> None:
    text = "".join(f"{i:04}" for i in range(40))  # 40 tokens
    news: list[tuple[float, str, int]] = []

    def watch(event, actions) -> None:
        if event.kind == "progressed":
            news.append((pytest.approx(event.at), event.text, event.tokens))

    p = plan(think("a", tokens=100, stream=True))
    report = run(p, outcome=lambda job, rng: Result(value=text), latency=LatencyModel(chunk=16), watch=watch)
    assert news == [(0.16, text[:64], 16), (0.32, text[64:128], 16), (0.40, text[128:], 8)]
    assert report.result is not None and report.result.value == text
    assert report.makespan == pytest.approx(0.4)


def test_a_stream_takes_as_long_as_the_same_step_without() -> None:
    host = Host("a", slots=8)
    made = [
        run(
            plan(
                *(think(f"s{i}", tokens=50 + i, stream=s) for i in range(8)), join("out", *(f"s{i}" for i in range(8)))
            ),
            hosts=[host],
        )
        for s in (False, True)
    ]
    assert made[0].makespan == pytest.approx(made[1].makespan)
    assert made[0].events < made[1].events


# -- faults ------------------------------------------------------------------------------------------------------------


def test_work_of_a_lost_host_starts_over_on_another() -> None:
    hosts = [Host(name, 1, decode_rate=100.0, prefill_rate=1e12) for name in "ab"]
    report = run(plan(think("x", tokens=300)), hosts=hosts, faults=[WorkerFault(1.0, "a")])
    assert [(s.host, s.start, pytest.approx(s.end), s.end_in) for s in report.spans] == [
        ("a", 0.0, 1.0, "lost"),
        ("b", 1.0, 4.0, "done"),
    ]
    assert report.usage.completion == 300, "the machine never heard of the tokens that were lost"


def test_with_one_host_work_waits_until_it_is_back() -> None:
    report = run(plan(think("x", tokens=300)), faults=[WorkerFault(1.0, "a", down_for=5.0)])
    assert spans(report)["x"] == (6.0, 9.0)
    assert (report.status, report.spans[0].end_in, report.wait_max) == ("done", "lost", pytest.approx(5.0))


def test_with_no_host_left_the_run_fails() -> None:
    report = run(plan(think("x", tokens=300)), faults=[WorkerFault(1.0, "a")])
    assert report.makespan == pytest.approx(1.0)
    assert report.failure is not None and report.failure.kind == "NoWorker"


def test_lost_streams_give_the_tokens_that_were_heard_of() -> None:
    p = plan(think("x", tokens=300, stream=True))
    report = run(p, faults=[WorkerFault(1.0, "a", down_for=0.0)], latency=LatencyModel(chunk=30))
    used = report.usage
    assert (used.completion, used.cancelled, used.uncounted) == (90 + 300, 90, 300 - 90)
    assert (used.prompt, used.uncounted_prompt) == (2 + 2, 2), "of the one that was lost it is estimated"


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_clusters_that_make_no_sense_are_refused() -> None:
    p = plan(call("a"))
    with pytest.raises(ConfigError, match="needs hosts"):
        simulate(p, hosts=[])
    with pytest.raises(ConfigError, match="name of its own"):
        simulate(p, hosts=[STEADY, STEADY])
    with pytest.raises(ConfigError, match="'b', which is no host"):
        simulate(p, hosts=[STEADY], faults=[WorkerFault(0.0, "b")])
    with pytest.raises(ConfigError, match="down already"):
        simulate(plan(think("a")), hosts=[STEADY], faults=[WorkerFault(0.1, "a", 9.0), WorkerFault(0.2, "a", 9.0)])


def test_a_plan_is_checked_first() -> None:
    with pytest.raises(PlanError, match="cycle"):
        simulate(plan(call("a", "b"), call("b", "a")))


def test_a_request_brings_its_own_planner_and_policies() -> None:
    request = Request(
        text="x",
        planner=Plugin(name="sample", options={"n": 4, "answer": {"max_tokens": 100}}),
        policies=(Plugin(name="fifo"),),
    )
    report = run(request, outcome=lambda job, rng: Result(value="the answer: 7", usage=Usage(completion=100)))
    assert (report.steps, report.makespan) == (5, pytest.approx(1.0))
    assert report.result is not None and "7" in report.result.text
