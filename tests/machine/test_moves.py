"""The table of legal moves: each is made by some event, every other raises with its story; errors can be pickled."""

from __future__ import annotations

import inspect
import itertools
import pickle

import pytest
from pydantic import ValidationError

from plait.core import errors
from plait.core.budget import Budget
from plait.core.errors import InvalidTransition, PlaitError
from plait.core.events import Dispatch, Job, action_adapter
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.request import Retries
from plait.core.result import Failure, as_failure
from plait.core.states import MOVES, State
from plait.machine.records import Node, Records
from tests.machine.kit import World, call, fail_with, join, think

LEGAL = {(start, finish) for start, finishes in MOVES.items() for finish in finishes}


def made_by_events() -> set[tuple[str, str]]:
    """The moves of a few short stories that between them make every legal one."""
    made: set[tuple[str, str]] = set()

    def note(world: World) -> None:
        made.update((start, finish) for _, _, start, finish, _ in world.machine.moves)

    class Noted(World):
        def send(self, event):  # type: ignore[no-untyped-def]
            actions = super().send(event)
            note(self)
            return actions

    world = Noted()  # waiting: ready, done (join), failed, cancelled; ready: running; running: done, failed, cancelled
    world.submit(
        call("a"), call("b", "a"), call("x"), call("y", "x"), join("k", "x", "y", quorum=1), join("j", "b", "k")
    )
    world.succeed("x")
    world.stop_all()
    world.fail("a")
    world = Noted()  # waiting, running: expanding; expanding: expanded, done; running: waiting; expanded: done
    world.submit(call("a"), join("j", "a", expands=True), think("e", "j", expands=True), retries=Retries(backoff=0.5))
    world.fail("a", fail_with(retryable=True))
    world.tick()
    world.succeed("a")
    world.expand("j", output=None)
    world.succeed("e")
    world.expand("e", call("t"))
    world.succeed("e/t")
    world = Noted(slots=3)  # expanding, expanded: failed, cancelled; ready: failed, cancelled; waiting: cancelled
    names = ["e1", "e2", "e3", "e4"]
    world.submit(*(call(name, expands=True) for name in names), call("z", *names))
    for name in names:
        world.succeed(name)
    world.expand("e1", call("t"), call("u", "t"), output="u")
    world.expand("e2", call("t"))
    world.fail_expansion("e3")
    world = Noted(slots=1)
    world.submit(call("e", expands=True), call("w"), call("v"), join("j", "e", "w", "v", best_effort=True))
    world.succeed("e")
    world.expand("e", call("t"))
    world.down()
    world = Noted(slots=0)
    world.down("w", returning=True)
    world.submit(call("a"), call("e"), join("j", "a", "e", quorum=1))
    world.cancel()
    world = Noted()
    world.submit(call("a"), join("j", "a"))
    world.cancel()
    return made


def test_every_legal_move_is_made() -> None:
    assert {(start.value, finish.value) for start, finish in LEGAL} - made_by_events() == set()


def a_node() -> Node:
    world = World()
    world.submit(call("a"), call("b", "a"))
    return world.node("b")


@pytest.mark.parametrize(("start", "finish"), sorted(set(itertools.product(State, State)) - LEGAL))
def test_every_other_move_raises_with_the_story(start: State, finish: State) -> None:
    node = a_node()
    records = Records(now=1.5)
    node.move(State.READY, records, "for the story")
    node.state = start
    with pytest.raises(InvalidTransition) as caught:
        node.move(finish, records)
    assert node.state is start
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.step, again.start, again.finish) == ("r:b", start, finish)
    assert str(again) == str(caught.value)
    assert "1.500000 waiting -> ready (for the story)" in str(again)


def test_ended_means_that_no_move_is_left() -> None:
    assert [state for state in State if state.ended] == [State.DONE, State.FAILED, State.CANCELLED]


EXAMPLES: dict[type[PlaitError], tuple[object, ...]] = {
    errors.RunFailed: (Failure(kind="ToolError", message="it broke"),),
    errors.InvalidTransition: ("r:a", "done", "ready", ("0.0 waiting -> done",)),
}


@pytest.mark.parametrize(
    "kind", [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, PlaitError)]
)
def test_every_error_survives_pickling_and_becomes_data(kind: type[PlaitError]) -> None:
    error = kind(*EXAMPLES.get(kind, ("what and why",)))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, str(again)) == (kind, error.args, str(error))
    failure = as_failure(error)
    assert (failure.kind, failure.message) == (kind.__name__, str(error))
    assert failure.lost == isinstance(error, errors.WorkerLost)
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("op", [ToolCall(tool="f", args={"x": 1}), ModelCall(prompt=(Text(text="p"),))])
def test_an_action_is_written_in_the_order_of_its_fields_and_read_again(op: ToolCall | ModelCall) -> None:
    job = Job(3, "r", "r:a", op, seconds=2.5, generated=(7, 8), priority=-2)
    action = Dispatch("w", job, reason="cached there")
    written = action_adapter.dump_python(action)
    assert list(written) == ["kind", "worker", "job", "reason"]
    assert list(written["job"]) == [
        "attempt",
        "run",
        "step",
        "op",
        "seconds",
        "generated",
        "priority",
        "report",
        "hints",
        "trace",
        "tenant",
    ]
    assert action_adapter.validate_json(action_adapter.dump_json(action)) == action
    assert pickle.loads(pickle.dumps(action)) == action
    with pytest.raises(ValidationError):
        action_adapter.validate_python({**written, "unknown": 1})


def test_the_story_of_a_step_is_told_in_order() -> None:
    world = World()
    world.submit(call("a"), budget=Budget(seconds=9))
    world.now = 2.5
    world.fail("a")
    (run,) = world.machine.retired
    assert [(at, start, finish) for at, _, start, finish, _ in run.nodes[0].story] == [
        (0.0, "waiting", "ready"),
        (0.0, "ready", "running"),
        (2.5, "running", "failed"),
    ]


def test_time_does_not_run_backwards() -> None:
    world = World()
    world.tick(5)
    world.now = 1
    world.submit(call("a"))
    assert world.machine.now == 5
