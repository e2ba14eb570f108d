"""A vote in the machine, with the workers' news made by hand: what runs, what waits, what was given up."""

from __future__ import annotations

from plait.core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
    Expand,
    Failed,
    Finish,
    Progressed,
    Stopped,
    Submitted,
    Succeeded,
    WorkerUp,
)
from plait.core.interfaces import PlanningContext
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.result import Failure, Result, Signals, Usage
from plait.machine.machine import Machine
from plait.machine.views import NodeView
from plait.planners.votes.sample import Sample
from plait.runtime.driver.expander import Expander
from plait.runtime.plugins.loader import Plugins
from tests.machine.invariants import check_invariants


class Bench:
    """Samples 1 … n and their vote, under policies. Samples are told apart by their numbers."""

    def __init__(
        self, n: int, *policies: str, slots: int = 64, text: str = "?", task: str = "plain", **options: object
    ) -> None:
        plugins = Plugins()
        self.machine = Machine(plugins)
        self.task = plugins.task(Plugin(name=task), text)
        self.live: dict[int, int] = {}
        """Attempts that run, by sample."""
        self.given_up: dict[int, str] = {}
        """Reasons, by sample."""
        self.finish: Finish | None = None
        self.expanded: list[Expand] = []
        request = Request(text=text, task=Plugin(name=task), policies=tuple(map(Plugin.of, policies)))
        asked = {name: options.pop(name) for name in ("stream", "logprobs", "window") if name in options}
        planner = Sample.model_validate({"n": n, "answer": {"temperature": 1.0, **asked}, **options})
        brief = PlanningContext(request, self.task)
        self._expander = Expander()
        self.take(WorkerUp(at=0, worker="w", slots=slots, serves=("think",)))
        self.take(self._expander.start("r", planner, brief, 0.0))

    def take(self, event: Event) -> list[Action]:
        actions = self.machine.handle(event)
        check_invariants(self.machine)
        follow: list[Event] = []
        for action in actions:
            match action:
                case Dispatch(job=job):
                    self.live[_number(job.step)] = job.attempt
                case Cancel(step=step, attempt=attempt):
                    self.given_up[_number(step)] = action.about
                    self.live.pop(_number(step), None)
                    if attempt is not None:
                        follow.append(Stopped(at=0, attempt=attempt))
                case Expand():
                    follow += self._expander.expand(action, self.machine, 0.0)
                case Finish():
                    self.finish = action
                case _:
                    pass
        for each in follow:
            self.take(each)
        return actions

    def progress(
        self, sample: int, tokens: int = 1, text: str = "", group: float | None = None, lowest: float | None = None
    ) -> None:
        """A sample that runs writes on."""
        attempt = self.live[sample]
        self.take(Progressed(at=0, attempt=attempt, text=text, tokens=tokens, group=group, lowest=lowest))

    def done(self, sample: int, answer: str = "A", signals: Signals | None = None, tokens: int = 10) -> None:
        """A sample that runs ends in an answer."""
        result = Result(value=answer, signals=signals, usage=Usage(completion=tokens))
        self.take(Succeeded(at=0, attempt=self.live.pop(sample), result=result))

    def fail(self, sample: int) -> None:
        """A sample that runs fails for good."""
        failure = Failure(kind="WorkerError", message="no")
        self.take(Failed(at=0, attempt=self.live.pop(sample), failure=failure))

    def step(self, name: str) -> NodeView:
        found = self.machine.view().step(f"r:{name}")
        assert found is not None
        return found


def _number(step: str) -> int:
    tail = step.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


__all__ = ["Bench", "Submitted"]
