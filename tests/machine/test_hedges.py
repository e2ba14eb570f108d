"""A second attempt at a step that runs: who may have one, who wins, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from plait.core.budget import Budget
from plait.core.events import Cancel, Dispatch, Event, Expand
from plait.core.interfaces import Hedge, Policy, ReviewAt, Stop
from plait.core.ops import ModelCall
from plait.core.plan import Step
from plait.core.planning import derive
from plait.core.request import Retries
from plait.core.result import Usage
from plait.core.sampling import Sampling
from plait.machine.views import MachineView
from tests.machine.kit import World, call, fail_with, join, think


class Always(Policy):
    """Hedges whatever runs when it is woken, which it is every second."""

    worker: str | None = None

    def review(self, event: Event, view: MachineView) -> Sequence[Stop | Hedge | ReviewAt]:
        running = [each for each in view.steps(view.run) if each.worker]
        hedges = [Hedge(each.id, f"slow on {each.worker}", self.worker) for each in running if event.kind == "tick"]
        return [*hedges, ReviewAt(view.now + 1.0)]


def hedging(*steps: Step, worker: str | None = None, slots: int = 1, **options) -> World:
    """A world of two workers whose steps have been sent out to `w` and `v`, one slot each unless said otherwise."""
    world = World(slots=0, policies={"always": Always(worker=worker)}, lease=options.pop("lease", None))
    world.down("w", returning=True)
    world.down("v", returning=True)
    world.submit(*steps, policies=["always"], **options)
    world.up("v", slots)
    world.up("w", slots)
    return world


def both(world: World, step: str = "a") -> list[Dispatch]:
    """The attempts at a step that have not been told to stop, the older first."""
    return [
        each for number, each in world.jobs.items() if each.job.step == f"r:{step}" and number not in world.stopping
    ]


def hedge(world: World, step: str = "a") -> tuple[int, int]:
    """Let a step that runs be hedged; return its two attempts."""
    attempt = world.attempt(step)
    world.send(progressed(world, attempt, ids=[]))
    world.tick(world.now + 1.0)
    first, second = both(world, step)
    assert first.job.attempt == attempt
    assert first.worker != second.worker
    return attempt, second.job.attempt


def progressed(world: World, attempt: int, ids: Sequence[int]):
    from plait.core.events import Progressed

    return Progressed(at=world.now, attempt=attempt, tokens=len(ids), ids=tuple(ids))


def succeed(world: World, attempt: int, ids: Sequence[int], new: int):
    from plait.core.events import Succeeded
    from plait.core.result import Result

    world._answered(attempt)
    result = Result(value="v", token_ids=tuple(ids), usage=Usage(completion=new))
    return world.send(Succeeded(at=world.now, attempt=attempt, result=result))


def stopped(world: World, attempt: int, tokens: int) -> None:
    from plait.core.events import Stopped
    from plait.core.result import Result

    world._answered(attempt)
    world.send(Stopped(at=world.now, attempt=attempt, result=Result(usage=Usage(completion=tokens))))


def test_the_second_attempt_goes_on_from_the_first_ones_ids_on_another_worker_and_says_why() -> None:
    world = hedging(think("a", tokens=10))
    world.progress("a", ids=[1, 2])
    hedge(world)
    first, second = both(world)
    assert second.job.generated == (1, 2)
    assert second.reason == f"slow on {first.worker}"
    assert world.state("a") == "running"


def test_the_second_attempt_at_a_sampled_step_does_not_repeat_the_firsts_seed() -> None:
    sampling = Sampling(max_tokens=10, temperature=1.0, seed=7)
    world = hedging(Step(name="a", op=ModelCall(prompt="p", sampling=sampling)))
    world.progress("a", ids=[1, 2])
    hedge(world)
    first, second = (each.job.op for each in both(world))
    assert isinstance(first, ModelCall) and isinstance(second, ModelCall)
    assert first.sampling.seed == 7
    assert second.sampling.seed == derive(7, "after", 2)


def test_the_first_result_wins_and_the_other_attempt_is_stopped_for_real() -> None:
    world = hedging(think("a", tokens=10))
    world.progress("a", ids=[1, 2])
    slow, quick = hedge(world)
    world.send(progressed(world, slow, [3]))
    succeed(world, quick, [1, 2, 7, 8], new=2)
    (cancel,) = world.said(Cancel)
    assert isinstance(cancel, Cancel)
    assert (cancel.attempt, cancel.cause) == (slow, "superseded")
    assert world.state("a") == "done"
    assert "r" not in world.finishes, "a slot is held until its worker has answered"
    stopped(world, slow, tokens=4)
    assert world.finish.usage == Usage(completion=6, cancelled=2), "two of the four of the loser were gone on from"
    assert world.finish.critical_path_tokens == 4


def test_when_the_first_attempt_is_first_all_of_the_second_is_cancelled() -> None:
    world = hedging(think("a", tokens=10))
    world.progress("a", ids=[1, 2])
    slow, quick = hedge(world)
    world.send(progressed(world, quick, [9]))
    succeed(world, slow, [1, 2, 3], new=3)
    stopped(world, quick, tokens=1)
    assert world.finish.usage == Usage(completion=4, cancelled=1)


def test_a_step_is_hedged_once() -> None:
    world = hedging(think("a", tokens=10), slots=3)
    hedge(world)
    for _ in range(3):
        world.tick(world.now + 1.0)
    assert len(both(world)) == 2


@pytest.mark.parametrize("which", [0, 1])
def test_when_one_of_two_is_lost_the_other_goes_on_and_nothing_is_tried_again(which: int) -> None:
    world = hedging(think("a", tokens=10))
    world.progress("a", ids=[1])
    attempts = hedge(world)
    world.down(world.jobs[attempts[which]].worker)
    (left,) = both(world)
    assert left.job.attempt == attempts[1 - which]
    assert not world.said(Dispatch)
    succeed(world, left.job.attempt, [1, 2], new=2 if which else 1)
    assert world.finish.status == "done"


def test_when_both_are_lost_the_next_one_goes_on_from_the_longer_text() -> None:
    world = hedging(think("a", tokens=10), retries=Retries(deaths=3))
    world.progress("a", ids=[1])
    slow, quick = hedge(world)
    world.send(progressed(world, quick, [2, 3]))
    world.up("u", 1)
    world.down(world.jobs[quick].worker)
    world.down(world.jobs[slow].worker)
    (left,) = both(world)
    assert (left.worker, left.job.generated) == ("u", (1, 2, 3))


@pytest.mark.parametrize("which", [0, 1])
def test_a_failure_of_one_of_two_is_no_failure_of_the_step(which: int) -> None:
    from plait.core.events import Failed

    world = hedging(think("a", tokens=10))
    attempts = hedge(world)
    world._answered(attempts[which])
    world.send(Failed(at=world.now, attempt=attempts[which], failure=fail_with()))
    assert world.state("a") == "running"
    world._answered(attempts[1 - which])
    world.send(Failed(at=world.now, attempt=attempts[1 - which], failure=fail_with("the second")))
    assert world.finish.failure is not None
    assert "the second" in world.finish.failure.message


def test_a_silent_one_of_two_is_given_up_alone() -> None:
    world = hedging(think("a", tokens=10), lease=5.0)
    slow, quick = hedge(world)
    while slow not in world.stopping:
        world.send(progressed(world, quick, []))
        world.tick(world.now + 1.0)
    assert [each.job.attempt for each in both(world)] == [quick]


def test_giving_the_step_up_stops_both() -> None:
    world = hedging(think("a", tokens=10))
    slow, quick = hedge(world)
    world.cancel()
    assert world.stopping == [slow, quick]
    stopped(world, slow, tokens=1)
    assert "r" not in world.finishes
    stopped(world, quick, tokens=1)
    assert world.finish.usage == Usage(completion=2, cancelled=2)


@pytest.mark.parametrize(
    "step",
    [call("a", side_effects=True), think("a", stream=True, expands=True)],
    ids=["side effects", "a reader that follows its text"],
)
def test_some_steps_are_never_tried_twice_at_a_time(step: Step) -> None:
    world = hedging(step)
    world.tick(world.now + 1.0) if world.wake else None
    world.progress("a")
    world.tick(world.now + 1.0)
    assert len(both(world)) == 1


def test_a_call_without_side_effects_is_hedged_too() -> None:
    world = hedging(call("a"))
    slow, quick = hedge(world)
    succeed(world, quick, [], new=0)
    stopped(world, slow, tokens=0)
    assert world.finish.status == "done"


def test_what_waits_comes_before_a_second_attempt() -> None:
    world = hedging(think("a"), think("b"), think("c"), join("j", "a", "b", "c"))
    world.progress("a")
    world.tick(world.now + 1.0)
    assert world.running() == ["a", "b"]
    world.succeed("b")
    world.tick(world.now + 1.0)
    assert world.running() == ["a", "c"]
    world.succeed("c")
    world.tick(world.now + 1.0)
    assert world.running() == ["a", "a"]


@pytest.mark.parametrize(
    ("budget", "attempts"),
    [
        (Budget(width=1), 1),
        (Budget(attempts=1), 1),
        (Budget(tokens=15), 1),
        (Budget(tokens=20), 2),
        (Budget(width=2, attempts=2), 2),
    ],
)
def test_a_second_attempt_needs_the_whole_of_what_it_asks_for(budget: Budget, attempts: int) -> None:
    world = hedging(think("a", tokens=10), budget=budget)
    world.progress("a")
    world.tick(world.now + 1.0)
    assert len(both(world)) == attempts


@pytest.mark.parametrize("worker", ["nobody", "v", "w", "tools"])
def test_a_policy_may_say_where_and_is_not_obeyed_where_that_cannot_be(worker: str) -> None:
    world = hedging(think("a"), worker=worker)
    world.up("tools", 9, ("call",))
    first = world.jobs[world.attempt("a")].worker
    world.progress("a")
    world.tick(world.now + 1.0)
    wanted = 2 if worker in ("v", "w") and worker != first else 1
    assert len(both(world)) == wanted


def test_an_expanding_step_that_does_not_stream_is_read_once_whoever_wins() -> None:
    world = hedging(think("a", expands=True, tokens=10))
    slow, quick = hedge(world)
    succeed(world, quick, [1], new=1)
    fed = [each for each in world.said(Expand) if isinstance(each, Expand)]
    assert [each.attempt for each in fed] == [slow], "one reader, made for the first attempt, which it has not heard of"
    stopped(world, slow, tokens=0)
    world.expand("a")
    assert world.finish.result is not None
    assert world.finish.result.text == "v"


class Eager(Policy):
    """Always wants to be woken at once."""

    def review(self, event: Event, view: MachineView) -> Sequence[ReviewAt]:
        return [ReviewAt(view.now - 5.0), ReviewAt(view.now)]


def test_a_policy_that_always_wants_to_be_woken_now_does_not_stop_the_world() -> None:
    world = World(policies={"eager": Eager()})
    world.submit(think("a"), policies=["eager"])
    world.progress("a")
    for _ in range(5):
        before = world.now
        world.tick()
        assert world.now >= before + 0.001 - 1e-12


def test_a_tick_reviews_only_the_runs_whose_policies_asked() -> None:
    seen: list[str] = []

    class Note(Policy):
        def review(self, event: Event, view: MachineView) -> Sequence[ReviewAt]:
            if event.kind == "tick":
                assert view.subject is None
                seen.append(view.run)
            return [ReviewAt(view.now + 1.0)] if view.run == "s" else ()

    world = World(policies={"note": Note()})
    world.submit(think("a"), policies=["note"])
    world.submit(think("a"), policies=["note"], run="s")
    world.progress("a")
    world.progress("s:a")
    world.tick()
    world.tick()
    assert seen == ["s", "s"]


class Watching(Always):
    needs_counts: ClassVar[bool] = True


@pytest.mark.parametrize(("policy", "report"), [(Watching(), True), (Always(), False)])
def test_a_policy_that_reads_counts_has_them_reported(policy: Policy, report: bool) -> None:
    world = World(policies={"watching": policy})
    world.submit(think("a"), join("all", "a"), policies=["watching"])
    assert world.job("a").report is report
