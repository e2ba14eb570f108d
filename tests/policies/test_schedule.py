"""Policies that place and order, on simulated engines: where steps go, what waits, what is hedged, and why."""

from __future__ import annotations

import functools
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments._tools.trie_order import ADDRESS as TRIE_ORDER, TrieOrder
from plait.core.events import Job, Progressed
from plait.core.interfaces import Policy
from plait.core.ops import Join, ModelCall, Plugin, Ref, Text, Tokens, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.sampling import Sampling
from plait.machine.records import Node
from plait.machine.views import NodeView
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.simulator import (
    Host,
    LatencyModel,
    SimReport,
    Span,
    Throttle,
    WorkerFault,
    simulate,
    varied,
    whole,
)
from plait_research.simulation.workload import WorkloadReport, simulate_workload
from tests.machine.invariants import check_invariants

PLACING = (
    "affinity", TRIE_ORDER, "waves", "breadth-first", "hedge", "random", "round-robin", "least-loaded",
    "critical-path",
)  # fmt: skip


def text(name: str, tokens: int) -> Text:
    """A text of so many simulated tokens (four characters each), its own from the first one on."""
    return Text(text="".join(f"{name[-2:]:>2}{i:02x}"[:4] for i in range(tokens)).ljust(4 * tokens, "."))


def think(name: str, *prompt: Text | Ref, after: str | None = None, tokens: int = 50, stream: bool = False) -> Step:
    op = ModelCall(prompt=prompt, after=after, sampling=Sampling(max_tokens=tokens), stream=stream)
    return Step(name=name, op=op)


def joined(*steps: Step, needs: tuple[str, ...] = ()) -> Plan:
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=needs or tuple(s.name for s in steps))), output="all")


def votes(*problems: str, width: int = 4, prompt: int = 64, **options) -> Plan:
    return joined(*(think(f"{p}{i}", text(p, prompt), **options) for p in problems for i in range(width)))


def turns(problems: int, width: int = 4, rounds: int = 2) -> Plan:
    """Parents that spawn children after them and go on after themselves with what came of these."""
    steps: list[Step] = []
    for p in range(problems):
        steps.append(think(f"p{p}-0", text(f"p{p}", 64)))
        for r in range(1, rounds + 1):
            names = tuple(f"p{p}-{r}-{i}" for i in range(width))
            steps += [think(name, text(name, 8), after=f"p{p}-{r - 1}") for name in names]
            steps.append(Step(name=f"j{p}-{r}", op=Join(), needs=names))
            steps.append(think(f"p{p}-{r}", Ref(step=f"j{p}-{r}"), after=f"p{p}-{r - 1}"))
    return joined(*steps, needs=tuple(f"p{p}-{rounds}" for p in range(problems)))


def cluster(engines: int, **options) -> list[Host]:
    options = {"slots": 32, "cache_tokens": 50_000, "tells_ids": True} | options
    return [Host(f"e{i:04}", **options) for i in range(engines)]


def run(plan: Plan, *policies: str | Plugin, hosts: list[Host] | None = None, **options) -> SimReport:
    specs = tuple(Plugin(name=each) if isinstance(each, str) else each for each in policies)
    options.setdefault("check", check_invariants)
    report = simulate(Request(policies=specs), plan=plan, hosts=hosts or cluster(2), **options)
    assert report.status == "done", report.failure
    return report


def option(name: str, **options) -> Plugin:
    return Plugin(name=name, options=options)


def spans(report: SimReport) -> dict[str, Span]:
    return {span.step.removeprefix("sim:"): span for span in report.spans if span.end_in == "done"}


def where(report: SimReport) -> dict[str, str]:
    return {name: span.host for name, span in spans(report).items()}


# -- all of them, at every size ----------------------------------------------------------------------------------------


@functools.cache
def unplaced(engines: int) -> SimReport:
    """The run without a policy, which every policy is compared with."""
    return run(turns(12), hosts=cluster(engines), outcome=varied(), check=None)


@pytest.mark.parametrize(
    ("engines", "times"), [(4, 2), (64, 2), (1024, 1), pytest.param(1024, 2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("policy", PLACING)
def test_the_same_policies_run_unchanged_at_every_size(policy: str, engines: int, times: int) -> None:
    """The answer, and what each step generates, do not depend on the policy; neither does a second run."""
    plan = turns(12)
    made = [
        run(plan, policy, hosts=cluster(engines), outcome=varied(), check=check_invariants if engines == 4 else None)
        for _ in range(times)
    ]
    assert made[0] == made[-1]
    both = (made[0], unplaced(engines))
    tokens = [sorted((name, span.tokens) for name, span in spans(report).items()) for report in both]
    assert policy == "hedge" or tokens[0] == tokens[1]


@pytest.mark.parametrize("policy", PLACING)
def test_under_deaths_and_throttling_every_run_still_ends_and_no_slot_is_lost(policy: str) -> None:
    strikes = [
        WorkerFault(0.2, "e0001", 0.5),
        WorkerFault(0.35, "e0002"),
        Throttle(0.1, "e0003", 0.25),
        Throttle(0.6, "e0003", 1.0),
    ]
    report = run(turns(6), policy, hosts=cluster(4, slots=3), outcome=varied(), faults=strikes)
    assert "lost" in {span.end_in for span in report.spans}


# -- affinity ----------------------------------------------------------------------------------------------------------


def test_affinity_samples_a_prompt_where_it_is_cached_and_spreads_the_problems() -> None:
    report = run(votes("aa", "bb", width=6), "affinity")
    by_problem = {
        name[:2]: {where(report)[each] for each in where(report) if each[:2] == name[:2]} for name in where(report)
    }
    assert sorted(map(len, by_problem.values())) == [1, 1]
    assert by_problem["aa"] != by_problem["bb"]
    assert {span.reason for span in report.spans} == {
        "",
        "e0000 has its context cached",
        "e0001 has its context cached",
    }


def test_affinity_continues_a_context_where_it_ran_turn_after_turn() -> None:
    report = run(turns(4, rounds=3), "affinity", hosts=cluster(4))
    homes = where(report)
    for p in range(4):
        assert {host for name, host in homes.items() if name.startswith(f"p{p}-")} == {homes[f"p{p}-0"]}
    assert len(set(homes.values())) == 4


def test_affinity_leaves_a_worker_that_is_overloaded_by_the_stated_factor() -> None:
    plan = votes("aa", width=20)
    assert len(set(where(run(plan, "affinity")).values())) == 1
    report = run(plan, option("affinity", overload=1.0, slack=4))
    counts = Counter(where(report).values())
    assert counts["e0000"] - counts["e0001"] <= 5
    assert len(counts) == 2


def test_a_beginning_that_many_runs_want_is_replicated_before_its_worker_is_full() -> None:
    """With three quarters of the slots, as for a run's own siblings, the p99 was 1.5 times that of load alone."""
    request = Request(
        text="h" * 8_000,
        planner=Plugin(name="single", options={"answer": {"max_tokens": 100}}),
        policies=(Plugin(name="affinity"),),
    )
    hosts = [Host(f"e{i}", 32, cache_tokens=16_000) for i in range(4)]
    report = simulate_workload(request, [0.0, *(0.5 + 0.001 * i for i in range(48))], hosts=hosts)
    assert 0 < report.idlest <= report.busiest
    assert report.prompt_computed < 5 * 2_000


def test_affinity_waits_for_a_full_worker_or_does_not_as_it_is_told() -> None:
    hosts = cluster(2, slots=4)
    plan = votes("aa", width=6)
    waiting = run(plan, option("affinity", slack=4), hosts=hosts)
    assert set(where(waiting).values()) == {"e0000"}
    assert waiting.wait_max > 0
    going = run(plan, option("affinity", wait=False), hosts=hosts)
    assert Counter(where(going).values()) == {"e0000": 4, "e0001": 2}


def test_affinity_goes_elsewhere_when_the_worker_is_gone() -> None:
    plan = turns(1, rounds=2)
    report = run(plan, "affinity", faults=[WorkerFault(0.4, "e0000")])
    assert {span.host for span in report.spans if span.end_in == "done" and span.start > 0.4} == {"e0001"}


# -- order of the trie -------------------------------------------------------------------------------------------------


def test_trie_order_takes_groups_one_after_the_other_even_if_they_come_mixed() -> None:
    steps = [think(f"{p}{i}", text(p, 64)) for i in range(4) for p in ("aa", "bb", "cc")]
    report = run(joined(*steps), TRIE_ORDER, hosts=cluster(1, slots=2))
    order = [span.step[4:6] for span in sorted(report.spans, key=lambda span: span.attempt)]
    assert order == [p for p in dict.fromkeys(order) for _ in range(4)]


def test_trie_order_takes_the_groups_with_more_to_decode_first() -> None:
    steps = [think(f"aa{i}", text("aa", 400), tokens=10) for i in range(3)]
    steps += [think(f"bb{i}", text("bb", 40), tokens=100) for i in range(3)]
    report = run(joined(*steps), TRIE_ORDER, hosts=cluster(1, slots=1))
    order = [span.step[4:6] for span in sorted(report.spans, key=lambda span: span.attempt)]
    assert order == ["bb"] * 3 + ["aa"] * 3


def test_trie_order_walks_prompts_that_share_only_their_beginning_depth_first() -> None:
    system = text("ss", 64)
    names = [f"{p}{i}" for i in range(3) for p in ("aa", "bb", "cc")]
    steps = [think(name, system, text(name[:2], 64), text(name, 8)) for name in names]
    report = run(joined(*steps), TRIE_ORDER, hosts=cluster(1, slots=1))
    order = [span.step[4:6] for span in sorted(report.spans, key=lambda span: span.attempt)]
    assert order == [p for p in dict.fromkeys(order) for _ in range(3)]


def rank(part: Text | Tokens, siblings: int = 1, prompt: int = 8, shared: int = 0, tokens: int = 8) -> list[float]:
    """What `trie-order` ranks a step by that begins a context."""
    plan = SimpleNamespace(op=ModelCall(prompt=(part,), sampling=Sampling(max_tokens=tokens)))
    step = SimpleNamespace(kind="think", after=None, plan=plan, siblings=range(siblings))
    step.prompt_tokens, step.shared_tokens, step.max_tokens = prompt, shared, tokens
    return list(TrieOrder().rank(cast(Any, step), cast(Any, None)))


def test_a_groups_place_is_what_it_generates_for_a_token_of_its_prompts() -> None:
    assert rank(Text(text="x"), 3, 14, 10, 5)[0] == -0.625  # 3 · 5 tokens for 10 + 3 · 4: 0.68, in eighths
    assert rank(Text(text="x"), 3, 10, 10, 5)[0] == -1.5  # what all share is read once
    assert rank(Text(text="x"), 3, 10, 0, 5)[0] == -0.5  # what none shares is read by each
    assert rank(Text(text="x"), 1, 0, 0, 2)[0] == -2  # no prompt counts as a token


def test_prompts_of_token_ids_share_the_beginning_of_their_keys_as_far_as_they_are_equal() -> None:
    begun = (70_000,) * 32  # two pieces of sixteen ids
    one, other, whole = (rank(Tokens(ids=ids)) for ids in ((*begun, 1), (*begun, 2), begun))
    assert len(one) == len(other) == 4 and one[:3] == other[:3] == whole and one[3] != other[3]
    assert whole[1] != whole[2], "a key says all up to there, and not a piece alone"


def test_a_cache_that_holds_one_group_serves_the_trie_in_order_and_not_mixed() -> None:
    steps = [think(f"{p}{i}", text(p, 256), tokens=16) for i in range(6) for p in ("aa", "bb", "cc", "dd")]
    host = cluster(1, slots=2, cache_tokens=512)
    ordered, mixed = run(joined(*steps), TRIE_ORDER, hosts=host), run(joined(*steps), hosts=host)
    assert ordered.prompt_computed < 1.5 * ordered.prompt_unique
    assert mixed.prompt_computed > 3 * mixed.prompt_unique


def test_groups_in_flight_are_bounded_by_the_cache() -> None:
    host = cluster(1, slots=64, cache_tokens=1_024)
    steps = [think(f"{p}{i}", text(p, 400), tokens=50) for p in ("aa", "bb", "cc", "dd") for i in range(2)]
    report = run(joined(*steps), TRIE_ORDER, hosts=host)
    events = sorted({span.start for span in report.spans})
    for at in events:
        live = [span for span in report.spans if span.start <= at < span.end]
        groups = {span.step[4:6] for span in live}
        assert 400 * len(groups) + 50 * len(live) <= 1_024
    assert report.wait_max > 0


# -- waves -------------------------------------------------------------------------------------------------------------


def in_flight(report: SimReport, prefix: str) -> int:
    """Most branches of a join at a time."""
    these = [span for span in report.spans if span.step.startswith(f"sim:{prefix}")]
    return max(sum(other.start <= span.start < other.end for other in these) for span in these)


def test_waves_keep_so_many_branches_of_each_join_in_flight() -> None:
    steps: list[Step] = []
    for p in ("aa", "bb"):
        names = tuple(f"{p}{i}" for i in range(10))
        steps += [think(name, text(p, 16)) for name in names]
        steps.append(Step(name=f"j-{p}", op=Join(), needs=names))
    plan = joined(*steps, needs=("j-aa", "j-bb"))
    report = run(plan, option("waves", n=3), hosts=cluster(1), outcome=varied())
    assert (in_flight(report, "aa"), in_flight(report, "bb")) == (3, 3)
    assert (in_flight(run(plan, hosts=cluster(1)), "aa")) == 10


def test_what_waves_hold_back_is_never_started_once_the_vote_is_decided() -> None:
    def same(job: Job, rng: object) -> Result:
        return Result(value="42", usage=Usage(completion=40))

    steps = [think(f"a{i}", text("aa", 16)) for i in range(15)]
    vote = Join(merge=Plugin(name="majority"), on_failure="best-effort")
    plan = Plan(steps=(*steps, Step(name="vote", op=vote, needs=tuple(s.name for s in steps))), output="vote")
    report = run(plan, option("waves", n=4), "consensus", outcome=same)
    free = run(plan, "consensus", outcome=same)
    assert len(report.spans) <= 11 < len(free.spans) == 15
    assert report.result is not None
    assert report.result.value == "42"


def test_a_branch_that_expands_is_in_flight_until_its_expansion_is_over() -> None:
    """The policy reads states, so a plan by hand will do: two branches, of which one waits for its expansion."""
    from plait.policies.schedule.simple import Waves
    from tests.machine.kit import World, join, think as step

    world = World(policies={"waves": Waves(n=1)})
    world.submit(step("a", expands=True), step("b"), join("j", "a", "b"), policies=["waves"])
    assert world.running() == ["a"]
    world.succeed("a")
    world.expand("a", step("x"))
    assert world.running() == ["a/x"]
    world.succeed("a/x")
    assert world.running() == ["b"]


# -- breadth-first -----------------------------------------------------------------------------------------------------


def two_votes() -> Plan:
    steps: list[Step] = []
    for p in ("aa", "bb"):
        names = tuple(f"{p}{i}" for i in range(6))
        steps += [think(name, text(p, 16)) for name in names]
        merge = Join(merge=Plugin(name="majority"), on_failure="best-effort")
        steps.append(Step(name=f"j-{p}", op=merge, needs=names))
    return joined(*steps, needs=("j-aa", "j-bb"))


def started(report: SimReport) -> list[str]:
    return [span.step.removeprefix("sim:") for span in sorted(report.spans, key=lambda span: (span.start, span.step))]


def test_breadth_first_starts_the_first_branches_of_all_before_the_second_of_any() -> None:
    report = run(two_votes(), "breadth-first", hosts=cluster(1, slots=2))
    assert started(report) == [f"{p}{i}" for i in range(6) for p in ("aa", "bb")]
    plain = run(two_votes(), hosts=cluster(1, slots=2))
    assert started(plain)[:6] == [f"aa{i}" for i in range(6)]


def test_breadth_first_leaves_no_slot_empty_and_what_is_decided_is_never_started() -> None:
    def same(job: Job, rng: object) -> Result:
        return Result(value="42", usage=Usage(completion=40))

    lone = run(two_votes(), "breadth-first", hosts=cluster(1, slots=12))
    assert {span.start for span in lone.spans} == {lone.spans[0].start}
    spans = {order: len(run(two_votes(), *order, hosts=cluster(1, slots=3), outcome=same).spans)
             for order in (("consensus",), ("consensus", "breadth-first"))}  # fmt: skip
    assert spans["consensus", "breadth-first"] < spans["consensus",]


def test_breadth_first_lets_a_step_that_feeds_no_join_go_ahead() -> None:
    steps = [*(think(f"a{i}", text("aa", 16)) for i in range(3)), think("lone", text("lo", 16))]
    vote = Step(name="vote", op=Join(), needs=("a0", "a1", "a2"))
    end = Step(name="end", op=Join(), needs=("vote", "read"))
    plan = Plan(steps=(*steps, Step(name="read", op=ModelCall(prompt=(Ref(step="lone"),))), vote, end), output="end")
    report = run(plan, "breadth-first", hosts=cluster(1, slots=1))
    assert started(report)[0] == "lone"


# -- hedge -------------------------------------------------------------------------------------------------------------


def coming(problems: int, width: int = 4, every: int = 1) -> tuple[Plan, LatencyModel]:
    """Votes that come one after another, and the latency that makes them."""
    steps = [Step(name=f"come-{p}", op=ToolCall(tool="wait")) for p in range(problems)]
    for p in range(problems):
        for i in range(width):
            each = think(f"p{p}-{i}", text(f"{p:02}", 32), tokens=100)
            steps.append(each.model_copy(update={"needs": (f"come-{p}",)}))
    latency = LatencyModel(call=lambda job, rng: 0.5 * int(job.step.rpartition("-")[2]), chunk=8)
    return joined(*steps), latency


def hedged(report: SimReport) -> list[Span]:
    return [span for span in report.spans if "others like it took" in span.reason]


def test_hedge_rescues_what_a_slow_engine_has_and_generates_the_rest_only() -> None:
    plan, latency = coming(20)
    hosts = [*cluster(3, serves=("think",)), Host("tools", 99, ("call",))]
    slow = [Throttle(0.0, "e0002", 0.1)]
    options = {"hosts": hosts, "latency": latency, "faults": slow, "outcome": varied(0.5)}
    off, on = run(plan, "least-loaded", **options), run(plan, "least-loaded", "hedge", **options)
    second = hedged(on)
    assert second
    assert {span.host for span in second} <= {"e0000", "e0001"}
    assert on.makespan < off.makespan
    lost = on.usage.cancelled / on.usage.completion
    assert lost < 0.15
    per_step = Counter(span.step for span in second)
    assert set(per_step.values()) == {1}, "once a step"


def test_a_hedge_that_is_predicted_to_save_too_little_is_not_made() -> None:
    plan, latency = coming(20)
    hosts = [*cluster(3, serves=("think",)), Host("tools", 99, ("call",))]
    options = {"hosts": hosts, "latency": latency, "faults": [Throttle(0.0, "e0002", 0.4)], "outcome": varied(0.5)}
    usual = hedged(run(plan, "least-loaded", "hedge", **options))
    assert any("predicted to end in" in span.reason for span in usual)
    strict = hedged(run(plan, "least-loaded", option("hedge", gain=0.9), **options))
    assert not any("predicted to end in" in span.reason for span in strict)
    assert len(strict) < len(usual)


def test_hedge_leaves_long_steps_alone_that_are_as_quick_as_others() -> None:
    plan, latency = coming(20)

    def some_long(job: Job, rng: object) -> Result:
        if job.op.kind == "call":
            return Result()
        tokens = 100 if job.step.endswith("-3") and int(job.step[5:].split("-")[0]) % 5 == 0 else 15
        return Result(value="", usage=Usage(completion=tokens), finish="stop")

    hosts = [*cluster(3, serves=("think",)), Host("tools", 99, ("call",))]
    report = run(plan, "hedge", hosts=hosts, latency=latency, outcome=some_long)
    assert not hedged(report)


def test_hedge_does_less_while_the_other_engines_are_busy() -> None:
    plan, latency = coming(20)
    hosts = [*cluster(2, serves=("think",)), Host("tools", 99, ("call",))]
    slow = [Throttle(0.0, "e0001", 0.1)]
    options = {"hosts": hosts, "latency": latency, "faults": slow, "outcome": varied(0.5)}
    busy = think("busy", text("zz", 8), tokens=9_000)  # on the quick engine all the time
    plan = joined(busy, *plan.steps[:-1])
    options["outcome"] = lambda job, rng: (whole if job.step == "sim:busy" else varied(0.5))(job, rng)
    assert hedged(run(plan, "round-robin", "hedge", **options))
    assert not hedged(run(plan, "round-robin", option("hedge", low=0.0), **options))


def test_hedge_needs_no_news_of_tokens() -> None:
    plan, latency = coming(20)
    hosts = [*cluster(3, serves=("think",), tells_ids=False), Host("tools", 99, ("call",))]
    report = run(plan, "round-robin", "hedge", hosts=hosts, latency=latency, faults=[Throttle(0.0, "e0002", 0.1)])
    assert {span.host for span in hedged(report)} <= {"e0000", "e0001"}
    assert hedged(report)


# -- baselines ---------------------------------------------------------------------------------------------------------


def test_random_is_spread_by_its_seed_and_repeats_itself() -> None:
    plan = votes("aa", width=30)
    placed = [where(run(plan, option("random", seed=seed), hosts=cluster(3))) for seed in (0, 0, 1)]
    assert placed[0] == placed[1] != placed[2]
    assert min(Counter(placed[0].values()).values()) >= 3


def test_round_robin_takes_the_workers_in_turn_and_passes_over_those_without_room() -> None:
    report = run(votes("aa", width=6), "round-robin", hosts=cluster(3))
    assert list(where(report).values()) == ["e0000", "e0001", "e0002"] * 2
    hosts = [*cluster(2, slots=1), Host("e0002", 9, cache_tokens=99)]
    report = run(votes("aa", width=6), "round-robin", hosts=hosts)
    assert Counter(where(report).values()) == {"e0000": 1, "e0001": 1, "e0002": 4}


@pytest.mark.parametrize("choices", [0, 2])
def test_least_loaded_counts_tokens_where_the_machine_counts_attempts(choices: int) -> None:
    steps = [think("big", text("aa", 8), tokens=500), *(think(f"s{i}", text("bb", 8), tokens=50) for i in range(9))]
    placed = where(run(joined(*steps), option("least-loaded", choices=choices), hosts=cluster(2)))
    assert {placed[f"s{i}"] for i in range(9)} == {"e0001"}
    plain = where(run(joined(*steps), hosts=cluster(2)))
    assert len({plain[f"s{i}"] for i in range(9)}) == 2


# -- together ----------------------------------------------------------------------------------------------------------


def test_policies_stack_holds_ranks_places_and_reviews() -> None:
    class Note(Policy):
        def review(self, event, view):  # type: ignore[no-untyped-def]
            if isinstance(event, Progressed):
                seen.append(event.attempt)
            return ()

    seen: list[int] = []
    registry = Plugins()
    given = [registry.policy(option("waves", n=2)), registry.policy(Plugin(name="affinity")), Note()]
    given.append(registry.policy(Plugin(name="critical-path")))
    report = simulate(votes("aa", "bb", width=4), policies=given, hosts=cluster(2), check=check_invariants)
    assert report.status == "done"
    assert seen
    assert in_flight(report, "") == 2
    assert len({where(report)[f"aa{i}"] for i in range(4)}) == 1


# -- what policies cost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["waves", "hedge"])
def test_what_a_policy_looks_at_grows_with_the_steps_and_not_with_their_square(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def init(self: NodeView, node: Node) -> None:
        nonlocal made
        made += 1
        self._node = node

    monkeypatch.setattr(NodeView, "__init__", init)
    counts = list[int]()
    for width in (50, 200):
        made = 0
        run(votes("p", width=width), policy, check=None)
        counts.append(made)
    assert counts[1] <= 5 * counts[0] + 100


def test_hedge_looks_rarely_at_a_run_whose_steps_take_long() -> None:
    """Four hundred and fifty runs with a look every 50 ms each would leave an event loop nothing else to do."""
    ticks = 0

    def count(event, actions) -> None:
        nonlocal ticks
        ticks += event.kind == "tick"

    report = run(votes("p", width=8, tokens=4000), "hedge", watch=count, check=None)
    assert report.makespan > 10
    assert ticks <= 40 + 2 * report.makespan, f"{ticks} looks in {report.makespan:.0f} s"


HEADER = "You are an assistant that answers shortly. " * 40


def requests(headers: int, runs: int, policy: str, times: int = 1, tokens: int = 512) -> list[Request]:
    texts = [f"{i % headers}{HEADER * times}{i}?" for i in range(runs)]
    planner = Plugin(name="single", options={"answer": {"max_tokens": tokens}})
    return [Request(text=each, planner=planner, policies=(Plugin(name=policy),)) for each in texts]


def test_runs_with_a_common_header_share_a_worker_until_it_is_overloaded() -> None:
    hosts = cluster(4, cache_tokens=200_000)
    few = simulate_workload(requests(1, 8, "affinity"), [0.0] * 8, hosts=hosts, check=check_invariants)
    assert few.prompt_computed < 1.3 * few.prompt_unique
    assert few.idlest == 0.0
    many = simulate_workload(requests(1, 100, "affinity"), [0.0] * 100, hosts=hosts, check=check_invariants)
    assert many.idlest > 0.5 * many.busiest, "the header that all want is replicated"


def test_a_step_waits_for_the_worker_that_has_its_header_if_that_is_quicker_than_reading_it_again() -> None:
    hosts = cluster(4, slots=4, cache_tokens=8_000)

    def play(policy: str, tokens: int) -> WorkloadReport:
        asked = requests(9, 63, policy, times=3, tokens=tokens)
        return simulate_workload(asked, [0.0] * 63, hosts=hosts, check=check_invariants)

    short, blind = play("affinity", 20), play("least-loaded", 20)
    assert short.prompt_computed < 0.6 * blind.prompt_computed
    assert short.makespan < 0.8 * blind.makespan
    long, blind = play("affinity", 512), play("least-loaded", 512)
    assert long.makespan < 1.05 * blind.makespan
