"""Votes under every stop rule and pruning at once, in simulation: no slot leaks, no vote is lost, replay is identical.

Each scenario is a simulated vote drawn from one seed: samples that write steps and are more or less sure of them, hosts
that die, a user who gives up, a policy that prunes by mood. After every event the machine's invariants hold.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest

from plait.core.budget import Budget
from plait.core.errors import ConfigError
from plait.core.events import Action, Dispatch, Event, Failed, Finish, Job, Progressed, Stopped, Submitted, Succeeded
from plait.core.interfaces import Policy
from plait.core.ops import Join, ModelCall, Plugin
from plait.core.plan import Plan, Step
from plait.core.request import Request, Retries
from plait.core.result import Failure, Result, Usage
from plait.core.sampling import Sampling
from plait.core.states import State
from plait.machine.machine import Machine
from plait.machine.records import Node, Run
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.confidence import SimTrace
from plait_research.simulation.latency import priced
from plait_research.simulation.simulator import (
    Confidence,
    GiveUp,
    Host,
    LatencyModel,
    SimReport,
    WorkerFault,
    simulate,
    synthetic,
)
from tests.machine.invariants import check_invariants
from tests.runtime.simulation.test_interleavings import Given, Moody

PRUNINGS = [
    "deepconf:warmup=2,eta=50", "deepconf:warmup=3,hold=false,eta=10",
    "redundant:steps=2,threshold=0.6", "redundant:steps=1,criterion=ngrams,threshold=0.9",
]  # fmt: skip
STOPS = [
    "consensus", "adaptive-consistency", "esc:window=2", "semantic-entropy", "saturation:min_votes=2,epsilon=0.05",
    "semantic-entropy:rule=secretary,window=2", "deepconf-consensus:min_votes=3,tau=0.7",
]  # fmt: skip
MERGES = ["majority", "weighted", "weighted:criterion=lowest,cap=2", "inverse-entropy"]


def written(job: Job, rng: Random) -> Result | Failure:
    """Some steps out of a few, then perhaps an answer; seldom a failure."""
    if rng.random() < 0.06:
        return Failure(kind="EngineError", message="down", retryable=rng.random() < 0.5)
    lines = [rng.choice(["add", "halve", "guess", "check"]) for _ in range(rng.randint(1, 6))]
    said = rng.choice(["A", "A", "B", "C", ""])
    text = "\n".join([*lines, rf"so \boxed{{{said}}}"])
    return Result(value=text, usage=Usage(completion=rng.randint(8, 60)))


class Played:
    """One seed, played."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = Random(seed)
        names = rng.sample(PRUNINGS, rng.randint(0, 3)) + rng.sample(STOPS, rng.randint(0, 2))
        names += rng.sample(["waves:n=3", "hedge", "affinity"], rng.randint(0, 1))
        rng.shuffle(names)
        self.merge = rng.choice(MERGES)
        options = {
            "n": rng.randint(1, 9),
            "answer": {"temperature": 1.0, "stream": True, "max_tokens": 64, "logprobs": 20,
                       "window": rng.choice([4, 8, 16])},
            "merge": Plugin.of(self.merge).model_dump(),
            "early": self.merge == "majority" and rng.random() < 0.2,
        }  # fmt: skip
        self.early = bool(options["early"])
        self.given = Given(Moody(prune=rng.choice([0, 0, 0, 11]), hold=rng.choice([0, 0, 3])))
        request = Request(
            text="?",
            task=Plugin(name="plain", options={"where": "boxed"}),
            planner=Plugin(name="sample", options=options),
            policies=(*map(Plugin.of, names), Plugin(name="moody")),
            budget=rng.choice([Budget(), Budget(), Budget(tokens=200), Budget(width=3)]),
            retries=Retries(think=1, lost=2, backoff=0.05),
        )
        hosts = [
            Host(f"e{i}", rng.randint(1, 4), ("think",), prefill_rate=2_000.0, decode_rate=rng.choice([60.0, 100.0]),
                 tells_ids=rng.random() < 0.6)
            for i in range(rng.randint(1, 3))
        ]  # fmt: skip
        faults: list[WorkerFault | GiveUp] = [
            WorkerFault(rng.uniform(0.0, 1.0), host.name, rng.choice([None, 0.1]))
            for host in hosts[1:]
            if rng.random() < 0.3
        ]
        if rng.random() < 0.05:
            faults.append(GiveUp(rng.uniform(0.0, 1.0)))
        self.log: list[tuple[Event, list[Action]]] = []
        self.jobs: dict[int, str] = {}
        self.happened: Counter[str] = Counter()
        self.report = simulate(
            request, hosts=hosts, faults=faults, outcome=written, confidence=synthetic(spread=2.0), plugins=self.given,
            latency=LatencyModel(chunk=rng.choice([1, 4, 16]), abort_latency=rng.choice([0.0, 0.05])), seed=seed,
            grace=5.0, check=check_invariants, watch=self.watch,
        )  # fmt: skip

    def watch(self, event: Event, actions: list[Action]) -> None:
        self.log.append((event, actions))
        if isinstance(event, Succeeded | Failed | Stopped):
            del self.jobs[event.attempt]
        if event.kind == "worker-down":
            self.jobs = {number: worker for number, worker in self.jobs.items() if worker != event.worker}
        for action in actions:
            if isinstance(action, Dispatch):
                self.jobs[action.job.attempt] = action.worker
            elif action.kind == "cancel":
                for what in ("decided", "below", "like", "pruned"):
                    self.happened[what] += what in action.about
            elif isinstance(action, Finish):
                assert not self.jobs, "a slot has leaked: workers still have jobs of a run that is over"
                self.happened[action.status] += 1

    def replayed(self) -> None:
        """The same events into a fresh machine with fresh policies: the same actions, and nothing is left."""
        given = Given(self.given._policy.model_copy())
        machine, run = Machine(given, cancel_timeout=5.0), None
        for event, actions in self.log:
            assert machine.handle(event) == actions
            if isinstance(event, Submitted) and machine.runs:
                (run,) = machine.runs.values()
        assert not machine.runs and not machine.attempts
        assert all(host.running == host.load == 0 for host in machine.workers.values()), "a slot has leaked"
        if run is not None:
            self.counted(run)

    def counted(self, run: Run) -> None:
        """The verdict is made of exactly the votes that were cast, and of those that go with them."""
        (vote,) = (node for node in run.nodes if node.merge is not None)
        assert all(node.ended for node in run.nodes)
        if vote.outcome.own is None or self.early:
            return
        cast = {dep.id: 0 for dep in vote.deps if dep.state is State.DONE and run.task.extract(dep.outcome.result.text)}  # type: ignore[union-attr]
        for dep in vote.deps:
            end = last_of(dep, {each.id: each for each in vote.deps})
            if end.id in cast:
                cast[end.id] += 1
                self.happened["went with another"] += end is not dep
        found = re.search(r"(\d+) of (\d+) votes", vote.outcome.own.why)
        assert (int(found[2]) if found else 0) == sum(cast.values()), f"a vote was lost: {vote.outcome.own.why}"
        if not self.merge.startswith("majority"):
            return
        answers = Counter[object]()
        for step, count in cast.items():
            answers[run.task.extract(next(dep.outcome.result.text for dep in vote.deps if dep.id == step))] += count  # type: ignore[union-attr]
        assert not cast or answers[vote.outcome.own.value] == max(answers.values()), "the verdict is not the majority's"


def last_of(node: Node, by_id: dict[str, Node]) -> Node:
    """The one with which a branch's vote goes, its own or another's."""
    for _ in by_id:
        if node.outcome.merged_into is None:
            break
        node = by_id[node.outcome.merged_into]
    return node


def play(seeds: range) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        played = Played(seed)
        played.replayed()
        happened += played.happened
    return happened


@pytest.mark.parametrize("block", range(4))
def test_votes_under_all_rules_end_whole(block: int) -> None:
    happened = play(range(75 * block, 75 * (block + 1)))
    for what in ("done", "decided", "below", "like", "pruned", "went with another"):
        assert happened[what], f"75 votes without one {what!r}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(20))
def test_ten_thousand_votes_under_all_rules_end_whole(block: int) -> None:
    play(range(10_000 + 500 * block, 10_000 + 500 * (block + 1)))


@pytest.mark.parametrize("seed", range(8))
def test_the_same_seed_gives_the_same_report(seed: int) -> None:
    assert Played(seed).report == Played(seed).report


# --- confidence -------------------------------------------------------------------------------------------------------


def vote(n: int, **sampling: object) -> Plan:
    given = Sampling.model_validate({"max_tokens": 40, "logprobs": 20, "window": 4, **sampling})
    samples = [Step(name=f"s{i}", op=ModelCall(prompt="x", sampling=given)) for i in range(n)]
    join = Join(merge=Plugin(name="majority"), on_failure="best-effort")
    return Plan(steps=(*samples, Step(name="vote", op=join, needs=tuple(s.name for s in samples))), output="vote")


def forty(job: Job, rng: Random) -> Result:
    return Result(value="A", usage=Usage(completion=40))


def recorded(**series: list[float]) -> Confidence:
    return lambda job, result, rng: series[job.step.removeprefix("sim:")]


def test_news_tells_the_group_and_the_lowest_as_numpy_has_them() -> None:
    series = [float((7 * i) % 11) for i in range(40)]
    told: list[Progressed] = []
    simulate(
        vote(1), outcome=forty, confidence=recorded(s0=series),
        watch=lambda event, actions: told.append(event) if isinstance(event, Progressed) else None,
    )  # fmt: skip
    groups = [sum(series[end - 4 : end]) / 4 for end in range(4, 41)]
    upto = 0
    for news in told:
        upto += news.tokens
        if upto < 4:
            assert news.group is None and news.lowest is None
        else:
            assert news.group == pytest.approx(groups[upto - 4])
            assert news.lowest == pytest.approx(min(groups[: upto - 3]))
    assert upto == 40 and len(told) == 40, "an eighth of four tokens is one"


def test_results_have_the_signals_of_their_tokens() -> None:
    series = [float((7 * i) % 11) for i in range(40)]
    ends: list[Succeeded] = []
    simulate(
        vote(1), outcome=forty, confidence=recorded(s0=series),
        watch=lambda event, actions: ends.append(event) if isinstance(event, Succeeded) else None,
    )  # fmt: skip
    signals = ends[0].result.signals
    groups = [sum(series[end - 4 : end]) / 4 for end in range(4, 41)]
    assert signals is not None and (signals.k, signals.window) == (20, 4)
    assert signals.confidence == pytest.approx(sum(series) / 40) and signals.tail == pytest.approx(groups[-1])
    assert signals.lowest == pytest.approx(min(groups))
    assert signals.bottom == pytest.approx(sum(sorted(groups)[:3]) / 3)


def stopped(report: SimReport) -> dict[str, int]:
    return {span.step.removeprefix("sim:"): span.tokens for span in report.spans if span.end_in == "stopped"}


def test_deepconf_stops_whom_it_should_when_it_should() -> None:
    series = {"s0": [6.0] * 40, "s1": [8.0] * 40, "s2": [9.0] * 20 + [1.0] * 20, "s3": [9.0] * 40}
    policy: Policy = Plugins().policy(Plugin.of("deepconf:warmup=2,eta=50"))  # the threshold is 7
    report = simulate(
        vote(4), hosts=[Host("h", decode_rate=100.0)], outcome=forty, confidence=recorded(**series), policies=[policy],
        latency=LatencyModel(abort_latency=0.0),
    )  # fmt: skip
    assert stopped(report) == {"s2": 22}, "with two of the window's four tokens at 1 its mean falls below 7"
    assert report.result is not None and report.result.why.startswith("3 of 3 votes")


@pytest.mark.parametrize(
    ("sampling", "confidence"), [({}, None), ({"logprobs": 1}, synthetic()), ({"logprobs": 0}, synthetic())]
)
def test_without_confidence_or_without_asking_for_it_nothing_is_told(
    sampling: dict[str, object], confidence: Confidence | None
) -> None:
    news: list[Event] = []
    report = simulate(
        vote(2, **sampling), outcome=forty, confidence=confidence, watch=lambda event, actions: news.append(event)
    )
    assert report.status == "done" and not any(isinstance(event, Progressed) for event in news)


def test_an_attempt_that_goes_on_is_as_sure_as_the_one_before_it() -> None:
    """Its statistics are of its own tokens, which are those that the lost attempt would have gone on with."""
    series = [float(i) for i in range(40)]
    hosts = [Host("a", 1, decode_rate=100.0, tells_ids=True), Host("b", 1, decode_rate=100.0, tells_ids=True)]
    ends: list[Succeeded] = []
    simulate(
        vote(1), hosts=hosts, outcome=forty, confidence=recorded(s0=series), faults=[WorkerFault(0.2, "a")],
        watch=lambda event, actions: ends.append(event) if isinstance(event, Succeeded) else None,
    )  # fmt: skip
    signals = ends[0].result.signals
    own = ends[0].result.usage.completion
    assert signals is not None and 0 < own < 40
    assert signals.confidence == pytest.approx(sum(series[-own:]) / own)


def test_too_few_confidences_are_an_error_with_the_step() -> None:
    with pytest.raises(ConfigError, match="gave 3 figures for the 40 tokens of sim:s0"):
        simulate(vote(1), outcome=forty, confidence=recorded(s0=[1.0] * 3))


def test_synthetic_confidences_have_the_level_that_was_asked_for() -> None:
    job = Job(attempt=1, run="r", step="r:s", op=ModelCall(prompt="x", sampling=Sampling(max_tokens=5000)))
    result = priced(job, Result(usage=Usage(completion=5000)))
    series = synthetic(level=10.0, spread=0.0, noise=1.0, memory=0.5)(job, result, Random(3))
    trace = SimTrace.of(series, Sampling(logprobs=20, window=50))
    signals = trace.signals(20)
    assert signals is not None and signals.confidence == pytest.approx(10.0, abs=0.2)
    assert signals.lowest < signals.confidence and 0.0 <= signals.entropy < 3.0
    assert series == synthetic(level=10.0, spread=0.0, noise=1.0, memory=0.5)(job, result, Random(3))
    flat = SimTrace.of([2.0, 2.0], Sampling(logprobs=20, window=50)).signals(20)
    assert flat is not None and flat.lowest == flat.tail == flat.bottom == 2.0, "one group where there is no window"
    assert SimTrace.of([], Sampling(logprobs=20)).signals(20) is None
