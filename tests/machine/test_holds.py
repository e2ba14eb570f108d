"""Policies that hold ready steps back, and how several policies of one run come to one decision."""

from __future__ import annotations

import pytest

from plait.core.budget import Budget
from plait.core.events import PRIORITY_STEP, Dispatch
from plait.core.interfaces import Defer, Pin, Policy
from plait.machine.views import MachineView, NodeView
from tests.machine.kit import World, call, join, think


class AtMost(Policy):
    """At most so many steps of the run at a time; the rest waits behind the first letter of its name."""

    most: int = 1
    asked: list[str] = []

    def place(self, step: NodeView, view: MachineView) -> Defer | None:
        self.asked.append(step.plan.name)
        running = sum(each.worker is not None for each in view.steps(step.run))
        return Defer(f"{running} run already", behind=step.plan.name[0]) if running >= self.most else None


class Never(Policy):
    """Holds everything."""

    def place(self, step: NodeView, view: MachineView) -> Defer:
        return Defer("never")


class On(Policy):
    """On one worker, and why."""

    worker: str

    def place(self, step: NodeView, view: MachineView) -> Pin:
        return Pin(self.worker, f"{self.worker} is best")


class Raising(Policy):
    """Cannot say."""

    def place(self, step: NodeView, view: MachineView) -> str:
        raise RuntimeError("where?")


def test_a_held_step_waits_in_our_queue_says_why_and_starts_when_something_has_ended() -> None:
    world = World(policies={"at-most": AtMost(most=2)})
    world.submit(call("a1"), call("a2"), call("a3"), join("j", "a1", "a2", "a3"), policies=["at-most"])
    assert world.running() == ["a1", "a2"]
    assert world.states("a3") == ["ready"]
    assert NodeView(world.node("a3")).held == "2 run already"
    world.succeed("a1")
    assert world.running() == ["a2", "a3"]
    assert NodeView(world.node("a3")).held == ""


def test_of_those_that_wait_behind_one_name_only_the_next_is_asked_about() -> None:
    policy = AtMost(most=1)
    world = World(slots=64, policies={"at-most": policy}, checked=False)
    names = [f"a{i}" for i in range(200)]
    world.submit(*map(call, names), join("j", *names), policies=["at-most"])
    while "r" not in world.finishes:
        world.succeed(world.running()[0])
    assert len(policy.asked) <= 3 * 200


def test_each_name_has_its_own_queue() -> None:
    class OnlyB(Policy):
        def place(self, step: NodeView, view: MachineView) -> Defer | None:
            busy = any(each.worker for each in view.steps(step.run) if each.plan.name[0] == step.plan.name[0])
            return Defer("one of each", behind=step.plan.name[0]) if busy else None

    world = World(slots=64, policies={"only": OnlyB()})
    names = ["a1", "a2", "a3", "b1", "b2"]
    world.submit(*map(call, names), join("j", *names), policies=["only"])
    assert world.running() == ["a1", "b1"]
    world.succeed("b1")
    assert world.running() == ["a1", "b2"]


def test_a_policy_that_holds_everything_only_makes_it_one_after_another() -> None:
    world = World(policies={"never": Never()})
    world.submit(call("a"), call("b"), call("c", "b"), join("j", "a", "c"), policies=["never"])
    order = []
    while world.running():
        assert len(world.running()) == 1
        order.append(world.running()[0])
        world.succeed(order[-1])
    assert order == ["a", "b", "c"]
    assert world.finish.status == "done"


def test_a_held_step_can_be_given_up() -> None:
    world = World(policies={"never": Never()})
    world.submit(call("a"), call("b"), join("j", "a", "b"), policies=["never"])
    world.cancel()
    world.stopped("a")
    assert world.finish.status == "cancelled"


def test_what_is_held_still_waits_for_a_worker_that_comes_back() -> None:
    world = World(slots=1, policies={"never": Never()})
    world.submit(call("a"), call("b"), join("j", "a", "b"), policies=["never"])
    world.down(returning=True)
    assert world.states("a", "b") == ["ready", "ready"]
    world.up()
    assert world.running() == ["b"] or world.running() == ["a"]
    world.succeed(world.running()[0])
    world.succeed(world.running()[0])
    assert world.finish.status == "done"


def test_the_last_that_waits_behind_a_name_may_be_let_out_while_no_worker_is_there() -> None:
    world = World(slots=1, policies={"at-most": AtMost(most=1)})
    world.submit(call("a1"), call("a2"), join("j", "a1", "a2"), policies=["at-most"])
    world.down(returning=True)
    world.up("w", 1)
    world.succeed("a1")
    world.succeed("a2")
    assert world.finish.status == "done"


def test_a_step_that_a_policy_holds_does_not_keep_others_behind_a_budget() -> None:
    class HoldsB(Policy):
        def place(self, step: NodeView, view: MachineView) -> Defer | None:
            return Defer("not b") if step.plan.name == "b" else None

    world = World(policies={"b": HoldsB()})
    names = ["a", "b", "c", "d"]
    world.submit(*map(call, names), join("j", *names), policies=["b"], budget=Budget(width=1))
    order = []
    while world.running():
        order.append(world.running()[0])
        world.succeed(order[-1])
    assert order == ["a", "c", "d", "b"]


# -- several policies --------------------------------------------------------------------------------------------------


def test_a_hold_of_any_policy_holds_whatever_the_others_say() -> None:
    world = World(policies={"on-w": On(worker="w"), "at-most": AtMost(most=1)})
    world.submit(call("a"), call("b"), join("j", "a", "b"), policies=["on-w", "at-most"])
    assert world.running() == ["a"]


def test_the_first_policy_that_names_a_worker_with_room_places_and_its_reason_is_kept() -> None:
    policies: dict[str, Policy] = {each: On(worker=each) for each in ("x", "w", "v")}
    world = World(slots=1, policies=policies)
    world.up("x", 0)
    world.up("v", 9)
    world.submit(call("a"), call("b"), join("j", "a", "b"), policies=["x", "w", "v"])
    sent = [each for each in world.jobs.values() if isinstance(each, Dispatch)]
    assert [(each.worker, each.reason) for each in sent] == [("w", "w is best"), ("v", "v is best")]


def test_without_an_opinion_there_is_no_reason() -> None:
    world = World()
    world.submit(call("a"))
    assert [each.reason for each in world.jobs.values()] == [""]


class Nowhere(Policy):
    """Places steps on a worker that is not there."""

    def place(self, step, view):  # type: ignore[no-untyped-def]
        return Pin("nowhere")


def test_a_place_that_names_no_worker_fails_the_run_in_words() -> None:
    world = World(policies={"nowhere": Nowhere()})
    world.submit(call("a"), policies=["nowhere"])
    assert world.finish.failure is not None
    said = "Nowhere raised PluginError: it places a step on 'nowhere', which does not exist (workers: w)"
    assert world.finish.failure.message == said


def test_a_policy_that_raises_ends_its_run_and_not_the_machine() -> None:
    world = World(policies={"raising": Raising()})
    world.submit(call("a"), policies=["raising"])
    assert world.finish.failure is not None
    assert "Raising raised RuntimeError: where?" in world.finish.failure.message


# -- models and priorities ---------------------------------------------------------------------------------------------


def test_a_step_that_names_a_model_goes_only_where_that_is_served() -> None:
    world = World(slots=0)
    world.up("big", 1, models=("big", "lora"))
    world.up("small", 9, models=("small",))
    world.submit(
        think("a", model="big"), think("b", model="lora"), think("c", model="small"), think("d"), call("e"),
        join("j", "a", "b", "c", "d", "e"),
    )  # fmt: skip
    where = {each.job.step[2:]: each.worker for each in world.jobs.values()}
    assert where == {"a": "big", "c": "small", "d": "small", "e": "small"}
    assert world.job("a").op.model == "big"  # type: ignore[union-attr]
    world.succeed("a")
    assert world.jobs[world.attempt("b")].worker == "big"


def test_a_worker_that_names_no_models_serves_any() -> None:
    world = World()
    world.submit(think("a", model="whatever"))
    assert world.running() == ["a"]


def test_a_model_is_kept_when_a_prompt_is_put_together() -> None:
    world = World()
    world.submit(think("a"), think("b", after="a", model="m"))
    world.succeed("a", "x", prompt_ids=[1], token_ids=[2])
    assert world.job("b").op.model == "m"  # type: ignore[union-attr]


def test_a_model_that_nobody_serves_is_a_clear_failure() -> None:
    world = World(slots=0)
    world.up("v", 9, models=("small", "tiny"))
    world.submit(think("a", model="big"))
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "NoWorker"
    assert "no worker serves the model 'big' (models: 'small', 'tiny')" in world.finish.failure.message


def test_a_model_whose_worker_comes_back_is_waited_for_and_a_policy_cannot_place_elsewhere() -> None:
    world = World(slots=0, policies={"on-v": On(worker="v")})
    world.up("w", 1, models=("big",))
    world.up("v", 9, models=("small",))
    world.down("w", returning=True)
    world.submit(think("a", model="big"), policies=["on-v"])
    assert world.state("a") == "ready"
    world.up("w", 1, models=("big",))
    assert [each.worker for each in world.jobs.values()] == ["w"]


def test_a_model_without_room_does_not_hold_up_another_behind_a_budget() -> None:
    world = World(slots=0)
    world.up("big", 1, models=("big",))
    world.up("small", 4, models=("small",))
    world.submit(think("busy", model="big"), run="s")
    world.submit(
        think("a", model="small"), think("b", model="big"), think("c", model="small"), join("j", "a", "b", "c"),
        budget=Budget(width=1),
    )  # fmt: skip
    assert world.running() == ["s:busy", "a"]
    world.succeed("a")
    assert world.running() == ["s:busy", "c"]


class Ranked(Policy):
    """The number in the step's name, or worse."""

    def rank(self, step: NodeView, view: MachineView) -> tuple[float, ...]:
        return (float(step.plan.name[1:].replace("_", "-")), 7.0)


@pytest.mark.parametrize(
    ("name", "priority", "sent"),
    [
        ("a5", 0, 5),
        ("a5", 2, 2 * PRIORITY_STEP + 5),
        ("a_5.9", -1, -PRIORITY_STEP - 5),
        ("a1e99", 0, PRIORITY_STEP // 2 - 1),
        ("ainf", 1, PRIORITY_STEP + PRIORITY_STEP // 2 - 1),
        ("a_inf", 0, 1 - PRIORITY_STEP // 2),
        ("anan", 3, 3 * PRIORITY_STEP),
    ],
)
def test_priority_and_rank_are_handed_down_as_one_number(name: str, priority: int, sent: int) -> None:
    world = World(policies={"ranked": Ranked()})
    world.submit(think(name, priority=priority), policies=["ranked"])
    assert world.job(name).priority == sent


def test_without_a_rank_the_priority_is_the_steps_alone() -> None:
    world = World()
    world.submit(think("a", priority=-2))
    assert world.job("a").priority == -2 * PRIORITY_STEP


def test_a_blocked_step_says_by_what_since_when_and_behind_which_key() -> None:
    world = World(slots=64, policies={"at-most": AtMost(most=1)})
    world.now = 2.0
    world.submit(call("a1"), call("a2"), join("j", "a1", "a2"), policies=["at-most"])
    blocked = world.node("a2").place.blocked
    assert blocked is not None and (blocked.by, blocked.since, blocked.key) == ("policy", 2.0, "a")
    world.now = 3.0
    world.submit(call("b1"), call("b2"), join("k", "b1", "b2"), run="narrow", budget=Budget(width=1))
    blocked = world.node("narrow:b2").place.blocked
    assert blocked is not None and (blocked.by, blocked.since, blocked.key) == ("budget", 3.0, "call")
    world.pause(run="narrow")
    world.now = 4.0
    world.succeed("narrow:b1")
    blocked = world.node("narrow:b2").place.blocked
    assert blocked is not None and (blocked.by, blocked.since) == ("pause", 4.0)
    world.now = 5.0
    world.pause(on=False, run="narrow")
    assert world.node("narrow:b2").place.blocked is None and world.state("narrow:b2").value == "running"


class Only(Policy):
    """On one worker; waits for it when it is full."""

    worker: str

    def place(self, step: NodeView, view: MachineView) -> Pin | Defer:
        worker = view.worker(self.worker)
        if worker is not None and worker.free > 0:
            return Pin(self.worker)
        return Defer(f"waits for {self.worker}", worker=self.worker)


def test_a_step_waits_for_a_worker_that_another_run_fills() -> None:
    world = World(slots=1, policies={"only": Only(worker="w")})
    world.up("v", 4)
    world.submit(call("a"), run="one", policies=["only"])
    world.submit(call("b"), run="two", policies=["only"])
    world.submit(call("c"), run="three", policies=["only"])
    assert world.running() == ["one:a"]
    world.succeed("one:a")
    assert world.running() == ["two:b"]
    assert NodeView(world.node("three:c")).held == "waits for w"
    world.succeed("two:b")
    assert world.running() == ["three:c"]


def test_a_step_waits_no_longer_for_a_worker_that_is_gone() -> None:
    world = World(slots=1, policies={"only": Only(worker="w")})
    world.up("v", 4)
    world.submit(call("a"), run="one", policies=["only"])
    world.submit(call("b"), run="two", policies=["only"])
    world.down("w")
    assert sorted(world.running()) == ["one:a", "two:b"]
    assert {world.node(name).attempts.ran_on for name in ("one:a", "two:b")} == {"v"}


def test_a_step_that_waits_for_a_worker_can_be_given_up() -> None:
    world = World(slots=1, policies={"only": Only(worker="w")})
    world.submit(call("a"), run="one", policies=["only"])
    world.submit(call("b"), run="two", policies=["only"])
    world.cancel("two")
    world.succeed("one:a")
    assert world.running() == []
