"""What the end of our own process does to a step: it is tried again, however often, and real losses count as before."""

from __future__ import annotations

from plait.core.errors import Interrupted, WorkerLost
from plait.core.events import Dispatch, Failed, Submitted, WorkerUp
from plait.core.ops import ModelCall, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request, Retries
from plait.core.result import as_failure
from plait.machine.machine import Machine
from plait.runtime.plugins.loader import Plugins


def started(step: Step) -> tuple[Machine, int]:
    machine = Machine(Plugins())
    machine.handle(WorkerUp(at=0.0, worker="w", slots=1, serves=("think", "call")))
    plan = Plan(steps=(step,), output=step.name)
    request = Request(retries=Retries(lost=2))
    return machine, attempt(machine.handle(Submitted(at=0.0, run="r", request=request, plan=plan)))


def attempt(actions: list) -> int:
    (dispatch,) = [action for action in actions if isinstance(action, Dispatch)]
    return dispatch.job.attempt


def test_interruptions_are_not_counted_among_losses() -> None:
    machine, live = started(Step(name="s", op=ModelCall(prompt="p")))
    for at in range(10):
        live = attempt(machine.handle(Failed(at=float(at), attempt=live, failure=as_failure(Interrupted("killed")))))
    for at in range(10, 12):
        live = attempt(machine.handle(Failed(at=float(at), attempt=live, failure=as_failure(WorkerLost("gone")))))
    (finish,) = machine.handle(Failed(at=12.0, attempt=live, failure=as_failure(WorkerLost("gone"))))
    assert finish.kind == "finish" and finish.status == "failed"
    assert finish.failure is not None and "after 13 tries" in finish.failure.message


def test_a_side_effect_is_not_made_again_for_it() -> None:
    machine, live = started(Step(name="s", op=ToolCall(tool="pay"), side_effects=True))
    actions = machine.handle(Failed(at=1.0, attempt=live, failure=as_failure(Interrupted("killed"))))
    assert [action.kind for action in actions] == ["finish"]
    assert "unknown" in actions[0].failure.message
