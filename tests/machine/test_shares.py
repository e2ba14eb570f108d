"""How runs divide slots: by what they have been served, by weight, by priority; nobody saves up slots by being idle."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from plait.core.budget import Budget
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.result import Usage
from plait.core.states import State
from plait.machine.machine import Machine
from plait_research.simulation.latency import Host, varied
from plait_research.simulation.workload import at_rate, simulate_workload
from tests.machine.kit import Registry, World, call, join, think


def many(world: World, run: str, count: int, **options: object) -> None:
    """A run of `count` thinks side by side."""
    names = [f"t{i}" for i in range(count)]
    world.submit(*map(think, names), join("j", *names), run=run, **options)  # type: ignore[arg-type]


def serve(world: World, tokens: dict[str, int], turns: int, prompt: int = 0) -> Counter[str]:
    """End the attempt that runs longest, `turns` times; return the tokens that each run was given."""
    served: Counter[str] = Counter()
    for _ in range(turns):
        step = world.running()[0]
        run = step.partition(":")[0] if ":" in step else "r"
        served[run] += tokens[run]
        world.succeed(step, usage=Usage(completion=tokens[run], prompt=prompt))
    return served


def test_one_step_waits_for_one_slot_beside_a_run_of_eight_hundred() -> None:
    world = World(slots=8, checked=False)
    many(world, "big", 800)
    serve(world, {"big": 50}, 100)
    world.submit(think("only"), run="small")
    assert "small:only" not in world.running(), "nothing that runs is taken away"
    serve(world, {"big": 50}, 1)
    assert "small:only" in world.running(), "the next slot that is free is its"


def test_slots_are_divided_by_tokens_and_not_by_steps() -> None:
    world = World(slots=4, checked=False)
    many(world, "long", 600)
    many(world, "short", 600)
    served = serve(world, {"long": 100, "short": 10}, 440)
    assert served["long"] == pytest.approx(served["short"], rel=0.1)


def test_a_run_of_twice_the_weight_gets_twice_the_tokens() -> None:
    world = World(slots=4, checked=False)
    many(world, "one", 600)
    many(world, "two", 600, fairness_weight=2.0)
    served = serve(world, {"one": 20, "two": 20}, 300)
    assert served["two"] == pytest.approx(2 * served["one"], rel=0.05)


def test_prompts_that_no_cache_held_count_half() -> None:
    world = World(slots=2, checked=False)
    many(world, "r", 10)
    share = world.node("r:t0").run.share
    world.succeed("r:t0", usage=Usage(prompt=100, cached=40, completion=5))
    assert share.think.served == 2 * 5 + 60


def test_runs_of_one_share_get_what_one_run_gets_and_go_in_order_of_arrival() -> None:
    world = World(slots=2, checked=False)
    many(world, "a1", 100, fairness_group="team a")
    many(world, "a2", 100, fairness_group="team a")
    many(world, "b", 100)
    served = serve(world, dict.fromkeys(("a1", "a2", "b"), 10), 100)
    assert served["b"] == pytest.approx(served["a1"], rel=0.1)
    assert not served["a2"]


def test_priority_is_above_it() -> None:
    world = World(slots=1)
    many(world, "first", 20)
    many(world, "urgent", 3, priority=-1)
    many(world, "late", 3, priority=1)
    world.submit(think("step", priority=-3), run="planned", priority=1)
    order = [world.running()[0].partition(":")[0]]
    while len(order) < 26:
        world.succeed(world.running()[0], tokens=7)
        order.append(world.running()[0].partition(":")[0])
    assert order[0] == "first", "it ran before the others came"
    assert order[1:5] == ["planned", "urgent", "urgent", "urgent"]
    assert order[24:] == ["late"] * 2, "nothing else waits by then"


def test_who_comes_back_has_saved_nothing_up() -> None:
    """A run that was idle while others were served many tokens does not get all slots until it has had as many."""
    world, names = World(slots=1, checked=False), [f"t{i}" for i in range(50)]
    world.submit(think("a0"), think("b0", "a0"), *(think(name, "b0") for name in names), join("j", *names), run="idle")
    many(world, "busy", 300)
    world.succeed("idle:a0", tokens=10)
    while "idle:b0" not in world.running():
        world.succeed(world.running()[0], tokens=10)
    attempt = world.attempt("idle:b0")
    world.up("second", 1)
    for _ in range(200):  # its only step takes long: meanwhile the other run has the second worker
        other = [step for step in world.running() if step != "idle:b0"]
        world.succeed(other[0], tokens=10)
    assert world.attempt("idle:b0") == attempt
    world.succeed("idle:b0", tokens=10)
    served = serve(world, {"idle": 10, "busy": 10}, 40)
    assert abs(served["idle"] - served["busy"]) <= 40


def test_calls_are_counted_apart_from_tokens() -> None:
    """A run that has generated much does not wait for all the calls of one that has not."""
    world = World(slots=1, serves=("think",), checked=False)
    world.up("tools", 1, ("call",))
    world.submit(think("t"), call("c", "t"), run="thinker")
    world.succeed("thinker:t", tokens=100_000)
    names = [f"c{i}" for i in range(50)]
    world.submit(*map(call, names), join("j", *names), run="caller")
    world.submit(think("t"), call("c", "t"), run="other")
    world.succeed("other:t", tokens=100_000)
    world.succeed("thinker:c")
    world.succeed("caller:c0")
    assert "other:c" in world.running()


def test_a_new_run_is_not_behind_those_that_wait_for_another_worker() -> None:
    world = World(slots=0, checked=False)
    world.up("x", 1, ("think",), ("x",))
    world.up("y", 1, ("think",), ("y",))
    for run, model, tokens in (("much", "x", 10_000), ("little", "y", 10)):
        names = [f"t{i}" for i in range(20)]
        world.submit(*(think(name, model=model) for name in names), join("j", *names), run=run)
        for i in range(5):
            world.succeed(f"{run}:t{i}", tokens=tokens)
    world.submit(think("t", model="y"), run="new")
    world.succeed("little:t5", tokens=10)
    assert "new:t" in world.running()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fairness_weight", 0),
        ("fairness_weight", -1),
        ("fairness_weight", float("nan")),
        ("priority", 10**9),
        ("fairness_group", 3),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Request.model_validate({field: value})


RUNS = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from([1.0, 2.0, 0.5]), st.sampled_from(["", "", "s"]), st.integers(1, 60)),
    min_size=2,
    max_size=6,
)


@given(RUNS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_no_run_gets_ahead_by_more_than_what_runs_at_once(
    runs: list[tuple[int, float, str, int]], slots: int, random: Random
) -> None:
    """While two shares have steps that wait, what they have been served, by weight, differs by no more than what all
    slots hold: the bound of the paper. Reports may come as one or in pieces."""
    world = World(slots=slots)
    waiting: dict[str, float] = {}
    for i, (count, weight, share, _) in enumerate(runs):
        many(world, f"r{i}", count, fairness_weight=weight, fairness_group=share)
    most = max(tokens for *_, tokens in runs)
    lightest = min(weight for _, weight, *_ in runs)
    while world.running():
        step = random.choice(world.running())
        tokens = runs[int(step[1 : step.index(":")])][3]
        told = random.randrange(tokens + 1)
        if told:
            world.progress(step, "x", tokens=told)
        world.succeed(step, tokens=tokens)
        waiting.clear()
        for _, nodes in world.machine.queue.waiting():
            shares = [node.run.share for node in nodes if node.state is State.READY]
            waiting |= {share.name: share.think.counter for share in shares}
        if len(waiting) > 1:
            assert max(waiting.values()) - min(waiting.values()) <= 2 * 2 * most * (slots + 1) / lightest


def test_shares_and_lanes_are_forgotten_with_their_runs() -> None:
    world = World(slots=2, checked=False)
    for i in range(500):
        world.submit(think("t", model=f"model {i}"), run=f"r{i}", budget=Budget(seconds=60))
        world.succeed(f"r{i}:t", tokens=5)
    queue = world.machine.queue
    assert not queue.shares
    assert len(queue._lanes) < 100, "a lane for every model that was ever named would be a leak"


def waits() -> list[float]:
    """How many times its time alone a run of one step takes, in virtual time: forty of them, at odd times, beside a run
    of eight hundred on eight slots whose steps take as long as theirs, give or take a half."""
    random = Random(7)
    world = World(slots=0, checked=False)
    world.machine = Machine(Registry())
    world.up("w", 8)
    many(world, "big", 800)
    arrivals = [(random.uniform(0.3, 3.0) + 0.1 * i, f"s{i}") for i in range(40)]
    ends: list[tuple[float, str, float]] = []
    came, took, known = dict[str, float](), list[float](), set[int]()
    todo = sorted(arrivals)
    while ends or world.jobs or todo:
        for attempt, order in world.jobs.items():
            if attempt not in known:
                known.add(attempt)
                seconds = random.uniform(0.025, 0.075)
                heapq.heappush(ends, (world.now + seconds, order.job.step, seconds))
        if todo and (not ends or todo[0][0] <= ends[0][0]):
            world.now, run = todo.pop(0)
            came[run] = world.now
            world.submit(think("only"), run=run)
        elif ends:
            world.now, step, seconds = heapq.heappop(ends)
            world.succeed(step, tokens=int(1000 * seconds))
            run = step.partition(":")[0]
            if run in came:
                took.append((world.now - came[run]) / 0.05)
    return took


def test_a_run_of_one_step_takes_at_most_three_times_its_time_alone() -> None:
    assert max(waits()) <= 3


@pytest.mark.parametrize("seed", range(4))
def test_steps_that_a_policy_let_go_are_not_forgotten_when_their_run_was_dropped_from_the_queue(seed: int) -> None:
    """Runs share two small engines, and `affinity` holds steps back: a run has moments in which nothing of it waits."""
    request = Request(
        text="q",
        planner=Plugin(name="sample", options={"n": 6, "answer": {"max_tokens": 60}}),
        policies=(Plugin(name="affinity"),),
        seed=seed * 1_000_000,
    )
    hosts = [Host(f"h{i}", 4, decode_rate=100.0) for i in range(2)]
    report = simulate_workload(request, at_rate(6, 4.0, seed=seed), hosts=hosts, outcome=varied(0.5), seed=seed)
    assert report.done == 6
