"""Votes, pruning, cancelling, hedging and holding in any order, under dying and slow engines: nothing leaks or is lost.

Each scenario is a simulated run drawn from one seed. After every event the machine's invariants hold (slots, accounts,
queues, attempts); at the end no attempt is left, the answer is made of exactly the votes that were cast, and the same
events give a fresh machine the same actions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from experiments._tools.trie_order import ADDRESS as TRIE_ORDER
from plait.core.budget import Budget
from plait.core.events import Action, Dispatch, Event, Failed, Finish, Job, Stopped, Submitted, Succeeded
from plait.core.interfaces import Defer, Hedge, Pin, Policy, ReviewAt, Stop
from plait.core.ops import Join, ModelCall, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.request import Request, Retries
from plait.core.result import Failure, Result, Usage
from plait.core.sampling import Sampling
from plait.core.view import StepView, View
from plait.machine.machine import Machine
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.simulator import GiveUp, Host, LatencyModel, Throttle, WorkerFault, simulate
from tests.machine.invariants import check_invariants


class Moody(Policy):
    """Holds, places, prunes and hedges by turns that depend on step and time alone."""

    hold: int = 0
    prune: int = 0
    hedge: int = 0

    def place(self, step: StepView, view: View) -> Pin | Defer | None:
        turn = int(view.now * 50) + len(step.id)
        if self.hold and turn % self.hold == 0:
            return Defer("in no mood", behind=step.plan.name[0])
        return Pin(view.workers[turn % len(view.workers)].name, "in the mood") if turn % 3 else None

    def review(self, event: Event, view: View) -> Sequence[Stop | Hedge | ReviewAt]:
        wishes: list[Stop | Hedge | ReviewAt] = [ReviewAt(view.now + 0.05)]
        for i, step in enumerate(view.steps(view.run)):
            if self.prune and step.plan.name[0] != "j" and (i + int(view.now * 20)) % self.prune == 0:
                wishes.append(Stop(step.id, "pruned"))
            if self.hedge and step.worker and (i + int(view.now * 20)) % self.hedge == 0:
                wishes.append(Hedge(step.id, "hedged"))
        return wishes


class Given:
    """The registry, and one policy that is already there."""

    def __init__(self, policy: Policy) -> None:
        self._registry = Plugins()
        self.merge, self.task, self._policy = self._registry.merge, self._registry.task, policy

    def policy(self, spec: Plugin) -> Policy:
        return self._policy if spec.name == "moody" else self._registry.policy(spec)


def vote_of(job: Job, rng: Random) -> Result | Failure:
    """A vote for one of three answers, seldom a failure; a value that nobody else's vote has is its step's name."""
    if rng.random() < 0.08:
        return Failure(kind="EngineError", message="down", retryable=rng.random() < 0.5)
    op = job.op
    assert isinstance(op, ModelCall)
    tokens = rng.randint(1, op.sampling.max_tokens)
    return Result(value=f"{rng.choice('AAB')}", usage=Usage(completion=tokens))


def plan_of(rng: Random) -> Plan:
    """Votes of one or two rounds; the second round comes after votes of the first."""
    steps: list[Step] = []

    def think(name: str, after: str | None) -> Step:
        prompt = Text(text=f"{name[0]:.>4}" * rng.choice([4, 30]))
        op = ModelCall(
            prompt=(prompt,), after=after, sampling=Sampling(max_tokens=rng.randint(1, 60)), stream=rng.random() < 0.3
        )
        return Step(name=name, op=op, priority=rng.choice([0, 0, 1]))

    first = [f"a{i}" for i in range(rng.randint(2, 8))]
    steps += [think(name, None) for name in first]
    joins = []
    groups = [first]
    if rng.random() < 0.5:
        second = [f"b{i}" for i in range(rng.randint(1, 5))]
        steps += [think(name, rng.choice(first)) for name in second]
        groups.append(second)
    for i, group in enumerate(groups):
        merge = Plugin(name=rng.choice(["majority", "collect"]))
        steps.append(
            Step(name=f"j{i}", op=Join(merge=merge, on_failure="any-end", early=rng.random() < 0.4), needs=tuple(group))
        )
        joins.append(f"j{i}")
    steps.append(Step(name="j", op=Join(on_failure="any-end"), needs=tuple(joins)))
    return Plan(steps=tuple(steps), output="j")


def scenario(seed: int) -> Counter[str]:
    """Play one seed; return what happened in it."""
    rng = Random(seed)
    moody = Moody(hold=rng.choice([0, 0, 2, 3]), prune=rng.choice([0, 0, 5, 9]), hedge=rng.choice([0, 1, 2, 3]))
    names = rng.sample(["consensus", "waves", "hedge", "affinity", TRIE_ORDER], rng.randint(0, 3))
    request = Request(
        policies=(*(Plugin(name=name) for name in names), Plugin(name="moody")),
        budget=rng.choice(
            [Budget(), Budget(), Budget(tokens=150, strict=rng.random() < 0.5), Budget(width=3), Budget(seconds=1.0)]
        ),
        retries=Retries(think=1, lost=2, backoff=0.05),
    )
    hosts = [
        Host(
            f"e{i}", rng.randint(1, 4), ("think",), prefill_rate=2_000.0,
            decode_rate=rng.choice([60.0, 100.0, lambda batch: 150.0 / batch]),
            cache_tokens=rng.choice([0, 256, 4_096]), tells_ids=rng.random() < 0.7,
        )
        for i in range(rng.randint(1, 4))
    ]  # fmt: skip
    strikes: list[WorkerFault | Throttle | GiveUp] = []
    for host in hosts[1:]:
        if rng.random() < 0.3:
            strikes.append(WorkerFault(rng.uniform(0.0, 1.0), host.name, rng.choice([None, 0.1])))
        elif rng.random() < 0.3:
            strikes.append(Throttle(rng.uniform(0.0, 1.0), host.name, 0.25))
    if rng.random() < 0.1:
        strikes.append(GiveUp(rng.uniform(0.0, 1.0)))
    events: list[Event] = []
    answers: list[list[Action]] = []
    happened: Counter[str] = Counter()
    jobs: dict[int, Dispatch] = {}

    def watch(event: Event, actions: list[Action]) -> None:
        events.append(event)
        answers.append(actions)
        if isinstance(event, Succeeded | Failed | Stopped):
            del jobs[event.attempt]
        if event.kind == "worker-down":
            for number in [number for number, job in jobs.items() if job.worker == event.worker]:
                del jobs[number]
        for action in actions:
            if isinstance(action, Dispatch):
                happened["continued"] += bool(action.job.generated)
                happened["hedged"] += action.reason == "hedged" or "others like it" in action.reason
                jobs[action.job.attempt] = action
            elif action.kind == "cancel":
                happened[action.cause] += 1
            elif isinstance(action, Finish):
                assert not jobs, "the run finished while workers still had jobs of it"
                happened[action.status] += 1

    plan = plan_of(rng)
    given = Given(moody)
    report = simulate(
        request, plan=plan, hosts=hosts, faults=strikes, outcome=vote_of, plugins=given, watch=watch,
        check=check_invariants, latency=LatencyModel(chunk=rng.choice([4, 16]), abort_latency=rng.choice([0.0, 0.05])),
        seed=seed, grace=5.0,
    )  # fmt: skip
    replayed(given, events, answers)
    assert 0 <= report.usage.cancelled <= report.usage.completion
    limit = request.budget.tokens
    passed = (
        0 if request.budget.strict else sum(host.slots for host in hosts) * (16 + 8)
    )  # a report, and the way to stop
    told = all(host.tells_ids for host in hosts)
    assert limit is None or report.usage.completion <= limit + passed or not told
    return happened


def replayed(given: Given, events: list[Event], answers: list[list[Action]]) -> None:
    """The same events into a fresh machine: the same actions, and joins over exactly the votes that were cast."""
    machine = Machine(given, cancel_timeout=5.0)
    run = None
    for event, actions in zip(events, answers, strict=True):
        assert machine.handle(event) == actions
        if isinstance(event, Submitted) and machine.runs:
            (run,) = machine.runs.values()
    assert not machine.runs
    assert not machine.attempts
    assert all(host.running == host.load == host.context == 0 for host in machine.workers.values())
    if run is None:
        return
    for node in run.nodes:
        assert node.ended
        assert node.attempts.live is None
        assert node.attempts.hedge is None
        if node.outcome.own is not None and node.merge is not None and node.step.op.merge.name == "collect":  # type: ignore[union-attr]
            early = node.step.op.early  # type: ignore[union-attr]
            done = [
                dep.outcome.result.value
                for dep in node.deps
                if dep.outcome.result is not None and dep.outcome.result.value is not None
            ]
            cast = [value for value in node.outcome.own.value if value is not None]  # type: ignore[union-attr]
            assert cast == done or early, "a vote was lost"
    for group in run.prefix_groups.values():
        assert not group.live


@pytest.mark.parametrize("block", range(10))
def test_a_thousand_interleavings(block: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(100 * block, 100 * (block + 1)):
        happened += scenario(seed)
    for what in ("done", "hedged", "continued", "pruned", "superseded"):
        assert happened[what], f"a hundred scenarios without one {what!r}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(20))
def test_ten_thousand_interleavings(block: int) -> None:
    for seed in range(10_000 + 500 * block, 10_000 + 500 * (block + 1)):
        scenario(seed)
