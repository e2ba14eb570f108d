"""A machine that follows recorded orders makes the same attempts; one that adopts a run goes on with it."""

from __future__ import annotations

from plait.core.budget import Budget
from plait.core.errors import Interrupted, NeverMade
from plait.core.events import Dispatch, Failed, Finish, ForeignEvent
from plait.core.interfaces import Policy
from plait.core.result import as_failure
from plait.core.states import State
from plait.machine.decision_replay import SendOrder
from plait.machine.machine import Machine
from plait.machine.views import MachineView, NodeView
from tests.machine.kit import Registry, World, call, join, orders_of, think


def sent(actions: list) -> list[tuple[str, int]]:
    return [(each.job.step, each.job.attempt) for each in actions if isinstance(each, Dispatch)]


def test_a_run_alone_is_followed_as_it_went_among_others() -> None:
    """Two runs share one slot; the second is followed in a machine that never hears of the first."""
    world = World(slots=1)
    world.submit(think("x"), think("y", "x"), run="other")
    world.submit(call("a"), call("b"), join("j", "a", "b"))
    while world.jobs:
        step = next(iter(world.jobs.values())).job.step
        world.succeed(step, step)
    alone = Machine(Registry())
    finish = None
    for event, actions in zip(world.events, world.answers, strict=True):
        own = [each for each in orders_of(actions) if each.step.startswith("r:")]
        foreign = getattr(event, "run", "r") == "other" or _step(world, event).startswith("other:")
        told = alone.follow(ForeignEvent(at=event.at) if foreign else event, own)
        assert sent(told) == [each for each in sent(actions) if each[0].startswith("r:")]
        finish = next((each for each in told if isinstance(each, Finish)), finish)
    assert finish == world.finishes["r"]
    assert [number for _, number in sent([each for answer in world.answers for each in answer])] == [1, 2, 3, 4]


def _step(world: World, event: object) -> str:
    number = getattr(event, "attempt", 0)
    steps = {job: step for answer in world.answers for step, job in sent(answer)}
    return steps.get(number, "")


def test_a_step_that_its_budget_refuses_is_refused_again() -> None:
    world = World(slots=1)
    world.submit(
        think("a", tokens=10), think("b", tokens=10), join("j", "a", "b", best_effort=True), budget=Budget(tokens=10)
    )
    follower = Machine(Registry())
    world.succeed("a", tokens=10)
    assert world.finish.status == "partial"
    assert [follower.follow(*each) for each in zip(world.events, world.orders, strict=True)] == world.answers


def test_an_order_that_cannot_be_followed_is_seen() -> None:
    world = World(slots=1)
    world.submit(think("a"))
    follower = Machine(Registry())
    follower.follow(world.events[0], [])
    assert sent(follower.follow(world.events[1], [SendOrder("r:b", "w", 1, 0, "")])) == []


def interrupted(world: World, *, made: bool = True) -> None:
    for number in list(world.machine.attempts):
        error = Interrupted("the process ended") if made else NeverMade("the process ended")
        world.events.append(Failed(at=world.now, attempt=number, failure=as_failure(error)))
        world.machine.follow(world.events[-1], [])


def test_an_adopted_run_goes_on_where_it_was() -> None:
    left = World(slots=2)
    left.submit(think("a"), call("pay", side_effects=True), join("j", "a", "pay"), budget=Budget(seconds=10))
    left.now = 4.0
    left.succeed("a", "done")
    interrupted(left, made=False)
    living = World(slots=1)
    living.submit(think("x"), run="other")
    living.succeed("other:x")
    living.submit(think("z"), run="third")
    living.now = 100.0
    living.machine.handle(ForeignEvent(at=100.0))
    assert sent(living.machine.adopt(left.machine, "r", 100.0)) == [], "the one slot is taken"
    node = living.machine.nodes["r:a"]
    assert node.state is State.DONE and node.story[0][0] == 96.0
    actions = living.succeed("third:z")
    assert sent(actions) == [("r:pay", 3)], "numbered after the last of both machines"
    assert living.job("pay").seconds == 6.0, "the time in between does not count"
    living.succeed("pay", 7)
    assert living.finish.result is not None and living.finish.result.value == ["done", 7]


def test_an_adopted_deadline_still_comes() -> None:
    left = World()
    left.submit(think("a"), think("b"), join("j", "a", "b", best_effort=True, deadline=5.0))
    left.now = 1.0
    left.succeed("a", "done")
    interrupted(left)
    living = World()
    living.now = 50.0
    actions = living.machine.adopt(left.machine, "r", 50.0)
    assert [each.at for each in actions if each.kind == "wake-at"] == [54.0]


def test_a_policy_that_raises_is_an_order_too() -> None:
    """Whoever follows asks no policies: it is told that the run was broken, and by what."""

    class Raising(Policy):
        def place(self, step: NodeView, view: MachineView) -> str:
            raise RuntimeError("where?")

    world = World(policies={"raising": Raising()})
    world.submit(call("a"), policies=["raising"])
    assert world.finish.failure is not None
    follower = Machine(Registry({"raising": Raising()}))
    told = [follower.follow(*each) for each in zip(world.events, world.orders, strict=True)]
    assert [each for each in told[-1] if isinstance(each, Finish)] == [world.finish]


def test_an_order_waits_until_its_step_is_ready() -> None:
    """Orders come with the event that they follow; what has ended spreads first."""
    world = World(slots=2)
    world.submit(call("a"), call("b", "a"))
    follower = Machine(Registry())
    follower.follow(world.events[0], [])
    follower.follow(world.events[1], [SendOrder("r:b", "w", 1, 0, "")])
    assert follower.nodes["r:b"].state is State.WAITING and not follower.attempts
