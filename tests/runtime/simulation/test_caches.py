"""Prefix caches, ids that outlive an engine, and changes of speed in the simulator: numbers worked out by hand."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given, strategies as st

from plait.core.events import Action, Dispatch, Event, Progressed
from plait.core.ops import Join, ModelCall, Text
from plait.core.plan import Plan, Step
from plait.core.prefix_index import BYTES_A_TOKEN, PrefixIndex
from plait.core.request import Request, Retries
from plait.core.result import Result, Usage
from plait.core.sampling import Sampling
from plait_research.simulation.latency import LatencyModel
from plait_research.simulation.simulator import Host, SimReport, Throttle, WorkerFault, simulate, varied
from plait_research.simulation.tokens import PrefixCache
from tests.machine.invariants import check_invariants

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=24), max_size=12)


# -- the cache and the trie --------------------------------------------------------------------------------------------


def test_only_full_blocks_are_cached_and_never_the_last_token_of_a_prompt() -> None:
    cache = PrefixCache(tokens=1_000, block=4)
    prompt = list(range(10))
    assert cache.cached(prompt) == 0
    cache.add(prompt)
    assert cache.cached(prompt) == 8
    assert cache.cached(prompt[:8]) == 4, "the last token has to be computed, so its block is"
    assert cache.cached(prompt[:9]) == 8
    assert cache.cached([*prompt[:6], 99, 99, 99]) == 4
    assert cache.cached([99, *prompt[1:]]) == 0


def test_generated_tokens_are_cached_too() -> None:
    cache = PrefixCache(tokens=1_000, block=4)
    cache.add([1, 2, 3])
    cache.add([1, 2, 3, 7, 7, 7, 7, 7])
    assert cache.cached([1, 2, 3, 7, 7, 7, 7, 7, 5]) == 8


def test_what_was_least_recently_used_is_dropped_first_and_an_end_before_its_beginning() -> None:
    cache = PrefixCache(tokens=16, block=4)
    cache.add([1] * 8)
    cache.add([2] * 8)
    assert cache.cached([1] * 9) == 8  # used again
    cache.add([3] * 4)
    assert (cache.cached([2] * 9), cache.cached([1] * 9), len(cache)) == (4, 8, 4)


def test_a_context_longer_than_the_cache_keeps_its_beginning() -> None:
    cache = PrefixCache(tokens=8, block=4)
    cache.add(list(range(100)))
    assert (cache.cached(list(range(100))), len(cache)) == (8, 2)


@given(SEQUENCES, st.integers(1, 5))
def test_a_cache_without_end_finds_the_longest_common_prefix_in_blocks(contexts: list[list[int]], block: int) -> None:
    cache = PrefixCache(tokens=10_000, block=block)
    for i, context in enumerate(contexts):
        common = max((_common(context, each) // block * block for each in contexts[:i]), default=0)
        most = (len(context) - 1) // block * block if context else 0
        assert cache.cached(context) == min(common, most)
        cache.add(context)


@given(SEQUENCES)
def test_an_index_counts_the_tokens_that_no_earlier_context_begins_with(contexts: list[list[int]]) -> None:
    index, seen = PrefixIndex(), set[tuple[int, ...]]()
    for context in contexts:
        prefixes = {tuple(context[: i + 1]) for i in range(len(context))}
        had = index.record_sent("all", None, array("i", context).tobytes()) // BYTES_A_TOKEN
        assert len(context) - had == len(prefixes - seen)
        seen |= prefixes


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# -- in a run ----------------------------------------------------------------------------------------------------------


def think(name: str, tokens: int, *, after: str | None = None, stream: bool = False, own: int = 20) -> Step:
    """A think step with 100 tokens of prompt of its own, or as many as said after another."""
    prompt = Text(text=f"{name[0]:.>4}" * (own if after else 100))
    op = ModelCall(prompt=(prompt,), after=after, sampling=Sampling(max_tokens=tokens), stream=stream)
    return Step(name=name, op=op)


def joined(*steps: Step) -> Plan:
    join = Step(name="all", op=Join(on_failure="best-effort"), needs=tuple(step.name for step in steps))
    return Plan(steps=(*steps, join), output="all")


def engine(name: str = "a", **options) -> Host:
    options = {"prefill_rate": 100.0, "decode_rate": 100.0, "cache_tokens": 10_000, "block": 10} | options
    return Host(name, 8, **options)


def spans(report: SimReport) -> dict[str, tuple[float, float]]:
    return {s.step.removeprefix("sim:"): (s.start, s.end) for s in report.spans if s.end_in == "done"}


def test_a_cached_prefix_is_not_read_again() -> None:
    """100 tokens at 100 a second; the same prompt again has 90 of them cached, so 0.1 s more."""
    report = simulate(joined(think("a1", 10), think("a2", 10)), hosts=[engine()], check=check_invariants)
    assert spans(report) == {"a1": pytest.approx((0, 1.1)), "a2": pytest.approx((0, 1.2))}
    assert (report.prompt_computed, report.prompt_unique) == (110, 100)
    assert report.usage == Usage(prompt=200, cached=90, completion=20)
    assert [(span.prompt, span.cached) for span in report.spans] == [(100, 0), (100, 90)]


def test_what_was_generated_is_cached_for_those_that_come_after() -> None:
    """`b` has 100 + 50 tokens of context and 20 of its own: 20 to read, for the 150 are 15 full blocks."""
    report = simulate(joined(think("a", 50), think("b", 10, after="a")), hosts=[engine()], check=check_invariants)
    assert report.spans[1].prompt == 170
    assert report.spans[1].cached == 150
    assert (report.prompt_computed, report.prompt_unique) == (120, 120)


def test_without_a_cache_everything_is_read() -> None:
    plan = joined(think("a1", 10), think("a2", 10))
    report = simulate(plan, hosts=[engine(cache_tokens=0)], check=check_invariants)
    assert spans(report) == {"a1": pytest.approx((0, 1.1)), "a2": pytest.approx((0, 2.1))}
    assert report.usage.cached == 0


def test_on_two_engines_a_prompt_is_read_twice() -> None:
    report = simulate(
        joined(think("a1", 10), think("a2", 10)), hosts=[engine("a"), engine("b")], check=check_invariants
    )
    assert (report.prompt_computed, report.prompt_unique) == (200, 100)


def test_a_step_whose_engine_dies_goes_on_from_its_ids_elsewhere() -> None:
    """1 s to read, then 100 tokens a second in news of 10; at 1.57 s 50 are known. The other engine reads 100 + 50
    tokens and generates the other 50: 1.57 + 1.5 + 0.5 s."""
    hosts = [engine("a", tells_ids=True), engine("b", tells_ids=True)]
    report = simulate(
        joined(think("a", 100)),
        hosts=hosts,
        faults=[WorkerFault(1.57, "a")],
        latency=LatencyModel(chunk=10),
        check=check_invariants,
    )
    assert report.makespan == pytest.approx(3.57)
    assert (report.usage.completion, report.usage.cancelled) == (100, 0)
    assert report.usage.prompt - report.usage.uncounted_prompt == 150, "that of the lost one is estimated"
    assert report.critical_path_tokens == 100
    assert [(span.tokens, span.end_in) for span in report.spans] == [(57, "lost"), (50, "done")]
    assert report.prompt_unique == 100


def test_an_engine_that_tells_no_ids_begins_again() -> None:
    hosts = [engine("a"), engine("b")]
    report = simulate(joined(think("a", 100)), hosts=hosts, faults=[WorkerFault(1.57, "a")], check=check_invariants)
    assert report.makespan == pytest.approx(1.57 + 1.0 + 1.0)
    assert report.usage.completion == 100, "of those 57 nobody was told"


def test_a_lost_step_meets_the_fate_that_it_would_have_met() -> None:
    def fate(job, rng: Random) -> Result:
        return Result(value="one two three four", usage=Usage(completion=rng.randint(40, 90)), finish="stop")

    hosts = [engine(name, tells_ids=True) for name in "abc"]
    latency = LatencyModel(chunk=10)
    plan = joined(think("a", 100, stream=True))
    calm = simulate(plan, hosts=hosts, outcome=fate, latency=latency)
    struck = simulate(
        Request(retries=Retries(deaths=3)),
        plan=plan,
        hosts=hosts,
        outcome=fate,
        latency=latency,
        faults=[WorkerFault(1.2, "a"), WorkerFault(2.5, "b")],
        check=check_invariants,
    )
    assert calm.usage.completion == struck.usage.completion
    assert struck.usage.cancelled == 0
    assert calm.result == struck.result


def test_the_text_goes_on_where_it_was() -> None:
    texts: dict[int, str] = {}
    given: list[int] = []

    def watch(event: Event, actions: list[Action]) -> None:
        if isinstance(event, Progressed):
            texts[event.attempt] = texts.get(event.attempt, "") + event.text
        given.extend(len(action.job.generated) for action in actions if isinstance(action, Dispatch))

    def fate(job, rng: Random) -> Result:
        return Result(value="0123456789" * 10, usage=Usage(completion=100))

    hosts = [engine(name, tells_ids=True) for name in "ab"]
    plan, latency = joined(think("a", 100, stream=True)), LatencyModel(chunk=10)
    simulate(
        plan,
        hosts=hosts,
        outcome=fate,
        latency=latency,
        faults=[WorkerFault(1.57, "a")],
        check=check_invariants,
        watch=watch,
    )
    assert given == [0, 50]
    assert "".join(texts.values()) == "0123456789" * 10


def test_a_throttled_engine_is_slower_from_then_on_and_may_recover() -> None:
    """1 s to read, 20 tokens till 1.2 s, 20 at a quarter of the speed till 2.0 s, and 60 till 2.6 s."""
    strikes = [Throttle(1.2, "a", 0.25), Throttle(2.0, "a", 1.0)]
    report = simulate(joined(think("a", 100)), hosts=[engine()], faults=strikes, check=check_invariants)
    assert report.makespan == pytest.approx(2.6)


def test_a_host_that_serves_a_model_gets_the_steps_that_name_it() -> None:
    step = think("a", 10)
    named = step.model_copy(update={"name": "b", "op": step.op.model_copy(update={"model": "big"})})
    report = simulate(joined(step, named), hosts=[engine("a", models=("small",)), engine("b", models=("big",))])
    assert [span.host for span in report.spans if span.step == "sim:b"] == ["b"]


def test_caches_of_many_engines_stay_apart_and_a_run_repeats_itself() -> None:
    plan = joined(*(think(f"{p}{i}", 30) for p in "abcdef" for i in range(5)))
    hosts = [engine(f"h{i}", tells_ids=True, cache_tokens=200) for i in range(3)]
    made = [
        simulate(
            plan, hosts=hosts, outcome=varied(), faults=[WorkerFault(0.5, "h1", 0.5)], seed=3, check=check_invariants
        )
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert made[0].prompt_computed >= made[0].prompt_unique
