"""Which step runs next, and where: priority, rank, arrival; slots; placement; workers that come, go and come back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from plait.core.budget import Budget
from plait.core.events import Dispatch, LoadShared
from plait.core.interfaces import Policy
from plait.core.plan import Step
from plait.machine import Node
from tests.machine.kit import World, call, join, think


class ByName(Policy):
    """Later letters first."""

    def rank(self, step, view):  # type: ignore[no-untyped-def]
        return (-ord(step.plan.name[0]),)


class ByDigit(Policy):
    """By the digit of the name."""

    def rank(self, step, view):  # type: ignore[no-untyped-def]
        return (float(step.plan.name[1:] or 0),)


class On(Policy):
    """On one worker, whatever its room."""

    worker: str

    def place(self, step, view):  # type: ignore[no-untyped-def]
        return self.worker


def order(world: World) -> list[str]:
    """In which order steps are started when one slot is given back at a time."""
    started = []
    while world.running():
        started.append(world.running()[0])
        world.succeed(started[-1])
    return started


def submit_all(world: World, *steps: Step, **options: object) -> None:
    world.submit(*steps, join("j", *(step.name for step in steps)), **options)  # type: ignore[arg-type]


def test_steps_start_in_order_of_arrival() -> None:
    world = World(slots=1)
    submit_all(world, *map(call, "abcd"))
    assert order(world) == ["a", "b", "c", "d"]


def test_priority_comes_before_rank_and_rank_before_arrival() -> None:
    world = World(slots=0, policies={"name": ByName()})
    world.down("w", returning=True)
    submit_all(world, call("a"), call("b"), call("c"), call("d", priority=1), call("e", priority=-1), policies=["name"])
    world.up("w", 1)
    assert order(world) == ["e", "c", "b", "a", "d"]


def test_between_runs_that_order_their_steps_and_runs_that_do_not_the_turn_goes_by_arrival() -> None:
    """Of one share. Ranks of one policy say nothing beside those of another, or beside none."""
    world = World(slots=0, policies={"name": ByName(), "digit": ByDigit()})
    world.down("w", returning=True)
    submit_all(world, call("x1"), call("x2"), run="plain", fairness_group="one")
    submit_all(world, *map(call, "abc"), run="named", policies=["name"], fairness_group="one")
    submit_all(world, call("y1"), run="later", fairness_group="one")
    submit_all(world, call("d2"), call("d1"), run="digits", policies=["digit"], fairness_group="one")
    submit_all(world, call("z"), run="named too", policies=["name"], fairness_group="one")
    submit_all(world, call("w", priority=-1), run="last", policies=["digit"], fairness_group="one")
    world.up("w", 1)
    turns = ["w", "x1", "x2", "z", "c", "b", "y1", "d1", "d2", "a"]
    assert [each.partition(":")[2] for each in order(world)] == turns
    assert not any(nodes for _, nodes in world.machine.queue.waiting())


def test_two_policies_of_one_name_are_two_orders() -> None:
    """As of two users who each hand over a function `rank`: the numbers of one say nothing beside the other's."""
    high = type("rank", (Policy,), {"rank": lambda self, step, view: (100.0 + ByDigit.rank(self, step, view)[0],)})
    low = type("rank", (Policy,), {"rank": ByDigit.rank})
    world = World(slots=0, policies={"alice": high(), "bob": low()})
    world.down("w", returning=True)
    submit_all(world, call("a2"), call("a1"), run="alice", policies=["alice"], fairness_group="one")
    submit_all(world, call("b2"), call("b1"), run="bob", policies=["bob"], fairness_group="one")
    world.up("w", 1)
    assert [each.partition(":")[2] for each in order(world)] == ["a1", "a2", "b1", "b2"], "bob's do not come first"


def test_a_turn_belongs_to_a_step_that_still_waits() -> None:
    """One that was given up does not let others of its order go ahead."""
    world = World(slots=0, policies={"name": ByName()})
    world.down("w", returning=True)
    submit_all(world, call("a"), run="given up", policies=["name"], fairness_group="one")
    submit_all(world, call("x"), run="plain", fairness_group="one")
    submit_all(world, call("b"), run="named", policies=["name"], fairness_group="one")
    world.cancel("given up")
    world.up("w", 1)
    assert [each.partition(":")[2] for each in order(world)] == ["x", "b"]


RUNS = st.lists(
    st.tuples(st.sampled_from(["", "name", "digit"]), st.lists(st.integers(0, 9), min_size=1, max_size=5)),
    min_size=1,
    max_size=8,
)


@given(RUNS, st.sets(st.integers(0, 7)))
def test_each_order_has_its_turns_by_arrival_and_fills_them_by_rank(
    runs: list[tuple[str, list[int]]], given_up: set[int]
) -> None:
    world = World(slots=0, policies={"name": ByName(), "digit": ByDigit()})
    world.down("w", returning=True)
    arrived: list[tuple[str, tuple[float, int], str]] = []  # order, key within it, step
    for i, (policy, digits) in enumerate(runs):
        names = [f"{'abcde'[k]}{digit}" for k, digit in enumerate(digits)]
        submit_all(world, *map(call, names), run=f"r{i}", policies=[policy] if policy else [], fairness_group="one")
        for name in names:
            rank = {"": 0.0, "name": -float(ord(name[0])), "digit": float(name[1:])}[policy]
            if i not in given_up:
                arrived.append((policy, (rank, len(arrived)), f"r{i}:{name}"))
    for i in given_up & set(range(len(runs))):
        world.cancel(f"r{i}")
    world.up("w", 1)
    queues = {order: sorted(each for each in arrived if each[0] == order) for order, _, _ in arrived}
    expected = [queues[order].pop(0)[2] for order, _, _ in arrived]
    assert order(world) == expected


def test_ranks_of_several_policies_are_taken_one_after_the_other() -> None:
    world = World(slots=0, policies={"name": ByName(), "digit": ByDigit()})
    world.down("w", returning=True)
    submit_all(world, *map(call, ["a1", "b2", "b1", "a2"]), policies=["digit", "name"])
    world.up("w", 1)
    assert order(world) == ["b1", "a1", "b2", "a2"]


def test_kinds_that_share_a_worker_share_the_order() -> None:
    world = World(slots=1)
    submit_all(world, call("a"), think("b"), call("c"), think("d"), call("e", priority=-1))
    assert order(world) == ["e", "a", "b", "c", "d"]


def test_a_kind_without_room_does_not_hold_up_another() -> None:
    world = World(slots=1, serves=("think",))
    world.up("tools", 2, ("call",))
    submit_all(world, think("a"), think("b"), call("c"), call("d"))
    assert world.running() == ["a", "c", "d"]


def test_slots_are_never_exceeded_and_the_least_loaded_worker_is_taken() -> None:
    world = World(slots=2)
    world.up("v", 3)
    submit_all(world, *map(call, "abcdefg"))
    assert [each.worker for each in world.jobs.values()] == ["v", "w", "v", "w", "v"]


def test_a_policy_places_a_step_where_there_is_room_and_else_it_goes_elsewhere() -> None:
    world = World(slots=1, policies={"on-w": On(worker="w"), "full": On(worker="full")})
    world.up("full", 0)
    world.up("v", 9)
    submit_all(world, *map(call, "abc"), policies=["full", "on-w"])
    assert [each.worker for each in world.jobs.values()] == ["w", "v", "v"]


@pytest.mark.parametrize("serves", ["think", "call"])
def test_a_policy_cannot_place_a_step_on_a_worker_that_does_not_serve_it(serves: str) -> None:
    world = World(slots=1, policies={"on-v": On(worker="v")})
    world.up("v", 9, (serves,))  # type: ignore[arg-type]
    submit_all(world, call("a"), policies=["on-v"])
    assert [each.worker for each in world.jobs.values()] == ["v" if serves == "call" else "w"]


def test_without_a_worker_that_serves_it_a_step_fails_and_says_so() -> None:
    world = World(serves=("think",))
    world.submit(think("a"), call("b", "a"))
    world.succeed("a")
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "NoWorker"
    assert "no worker serves call steps" in world.finish.failure.message


def test_a_worker_that_is_coming_back_is_waited_for() -> None:
    world = World()
    world.submit(call("a"), call("b", "a"))
    world.down(returning=True)
    assert world.state("a") == "ready"
    world.up()
    assert world.state("a") == "running"
    world.succeed("a")
    world.succeed("b")
    assert world.finish.status == "done"


def test_a_worker_that_is_gone_for_good_fails_what_only_it_could_do() -> None:
    world = World(serves=("think",))
    world.up("tools", 1, ("call",))
    world.submit(think("a"), call("b"), join("j", "a", "b", best_effort=True))
    world.down("w")
    assert world.states("a", "b") == ["failed", "running"]
    world.down("tools", returning=True)
    world.down("tools")
    assert world.finish.status == "failed"


def test_a_worker_may_be_announced_again_with_more_or_fewer_slots() -> None:
    world = World(slots=3)
    submit_all(world, *map(call, "abcdef"))
    assert world.running() == ["a", "b", "c"]
    world.up("w", 1)
    world.succeed("a")
    world.succeed("b")
    assert world.running() == ["c"]
    world.up("w", 4)
    assert world.running() == ["c", "d", "e", "f"]


def test_a_worker_with_work_out_comes_back_with_its_slots_free() -> None:
    world = World(slots=1)
    submit_all(world, call("a"), call("b"))
    world.down(returning=True)
    world.up("w", 1)
    assert world.running() == ["a"]
    assert len(world.machine.attempts) == 1


def test_runs_share_the_slots_in_order_of_priority_and_arrival() -> None:
    world = World(slots=1)
    world.submit(call("a"), call("b"), join("j", "a", "b"))
    world.submit(call("a", priority=-1), run="s")
    world.succeed("a")
    assert world.state("s:a") == "running"


def test_a_step_that_waits_for_a_slot_does_not_keep_another_kind_behind_a_budget() -> None:
    world = World(slots=1, serves=("think",))
    world.up("tools", 1, ("call",))
    world.submit(think("busy"), run="s")
    world.submit(call("a"), think("b"), call("c"), join("j", "a", "b", "c"), budget=Budget(width=1))
    world.submit(think("also"), run="t")
    assert world.running() == ["s:busy", "a"]
    world.succeed("a")
    assert world.running() == ["s:busy", "c"]


# -- cost of the machine's own books -----------------------------------------------------------------------------------


def test_a_narrow_budget_over_many_steps_asks_about_few_of_them_at_a_time() -> None:
    """One slot given back lets one held step be asked about, not all of them."""
    n = 3_000
    world = World(slots=64, checked=False)
    asked = 0
    push = world.machine.queue.push

    def counted(node: Node) -> None:
        nonlocal asked
        asked += 1
        push(node)

    world.machine.queue.push = counted  # type: ignore[method-assign]
    submit_all(world, *(call(f"s{i}") for i in range(n)), budget=Budget(width=8))
    while "r" not in world.finishes:
        (attempt, *_) = world.jobs
        world.succeed(world.jobs[attempt].job.step)
    assert asked < 3 * n


def test_queues_and_timers_do_not_grow_with_what_is_over() -> None:
    world = World(slots=5, lease=1_000.0, checked=False)
    world.up("idle", 5, ("think", "call"))
    world.submit(call("a"), run="first", budget=Budget(seconds=9))
    for i in range(2_000):
        world.submit(call("a"), run=f"r{i}", budget=Budget(seconds=3600))
        world.succeed(f"r{i}:a")
    queue = world.machine.queue
    assert not any(nodes for _, nodes in queue.waiting())
    assert max(len(pool.heap) for pool in queue._pools.values()) < 100
    assert max(len(lane.heap) for lane in queue._lanes.values()) < 100
    assert len(world.machine.timers.heap) < 200
    assert not [said for said in world.last if isinstance(said, Dispatch)]


@given(st.lists(st.tuples(st.sampled_from(["one", "two"]), st.integers(0, 6), st.booleans()), max_size=12))
def test_a_step_goes_where_all_processes_together_run_the_fewest(reports: list[tuple[str, int, bool]]) -> None:
    world = World(slots=0)
    world.up("one", 4)
    world.up("two", 4)
    elsewhere = {"one": 0, "two": 0}
    for number, (worker, attempts, ends) in enumerate(reports):
        elsewhere[worker] = attempts
        world.send(LoadShared(world.now, {name: count for name, count in elsewhere.items() if count} | {"gone": 3}))
        if ends and world.running():
            world.succeed(world.running()[0])
        own = {name: known.running for name, known in world.machine.workers.items()}
        free = [name for name in own if own[name] < 4]
        world.submit(call("a"), run=f"r{number}")
        if free:
            best = min(free, key=lambda name: (own[name] + elsewhere[name], name))
            assert world.machine.workers[best].running == own[best] + 1
