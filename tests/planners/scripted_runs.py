"""Runs a planner end to end through the SDK on the scripted worker, and plans and patches without any machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plait.core.events import Expanded
from plait.core.flow import Flow
from plait.core.interfaces import Planner, PlanningContext
from plait.core.ops import ModelCall, Plugin, Ref, Text
from plait.core.plan import Plan, Step, validate
from plait.core.request import Request
from plait.core.result import Result
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.driver.flows import End, RunningFlow
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted


class Prompts(Scripted):
    """The scripted worker, which also notes what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(replies)
        self.prompts: list[str] = []
        self.ops: dict[str, ModelCall] = {}

    async def run(self, job):
        self.ops[job.step.rsplit("/", 1)[-1].rpartition(":")[2]] = job.op
        self.prompts.append("".join(part.text for part in job.op.prompt if isinstance(part, Text)))
        async for said in super().run(job):
            yield said

    def asked(self, what: str) -> list[str]:
        """The prompts in which a text is found."""
        return [prompt for prompt in self.prompts if what in prompt]


async def ask(
    planner: str, text: str, *replies: Reply, task: str = "plain", options: dict[str, Any] | None = None, **more: Any
) -> tuple[Answer, Prompts]:
    worker = Prompts(*replies)
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        spec = Plugin(name=planner, options=options or {})
        return await orchestrator.run(text, planner=spec, task=task, **more), worker


def states(answer: Answer) -> dict[str, str]:
    """How each step ended, by its name."""
    return {row.name: row.state for row in answer.report.steps}


def labels(answer: Answer) -> dict[str, str]:
    return {row.name: row.label for row in answer.report.steps}


def brief(text: str = "How does a plant live?", task: str = "plain", seed: int = 0) -> PlanningContext:
    request = Request(text=text, task=Plugin(name=task), seed=seed)
    return PlanningContext(request, Plugins().task(request.task, text))


def prompt(step: Step) -> str:
    """The prompt of a step, with references as `<name>`."""
    assert isinstance(step.op, ModelCall)
    parts = [
        part.text if isinstance(part, Text) else f"<{part.step}>" for part in step.op.prompt if part.kind != "tokens"
    ]
    return "".join(parts)


def named(plan: Plan, name: str) -> Step:
    return next(step for step in plan.steps if step.name == name)


def checked(plan: Plan | None, outside: tuple[str, ...] = ()) -> Plan:
    """A patch, as the machine would check it: a DAG whose names are there. `outside`: steps of the scopes around it."""
    assert plan is not None
    names = {step.name for step in plan.steps}
    for step in plan.steps:
        assert set(step.references()) <= names | set(outside), step
        if isinstance(step.op, ModelCall):
            refs = [part.step for part in step.op.prompt if isinstance(part, Ref)]
            assert set(refs) <= names | set(outside)
        else:
            Plugins().merge(step.op.merge)
    if not outside:
        validate(plan)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    return plan


def made(flow: Flow, about: PlanningContext, ends: dict[str, Result] | None = None) -> Plan:
    """The steps that a flow makes first, or, after `ends` of steps (by name), those that it makes then."""
    running = RunningFlow(flow, about, "r:flow", 1, lambda plan, brief: plan)
    events = running.begin(0.0, 0.0)
    if ends is not None:
        events = running.handle_ends([End(f"r:flow/{name}", result, None) for name, result in ends.items()], 0.0, 0.0)
    running.close()
    patches = [event.patch for event in events if isinstance(event, Expanded) and event.patch is not None]
    steps = tuple(step for patch in patches for step in patch.steps)
    return Plan(steps=steps, output=patches[-1].output or steps[-1].name)


def read(planner: Planner, step: Step, said: Result | str, about: PlanningContext) -> Iterator[Plan]:
    """The patches that a step's reader gives when its text is streamed in pieces, and at its end."""
    result = Result(value=said) if isinstance(said, str) else said
    reader = planner.reader(step, about)
    text = result.text if isinstance(step.op, ModelCall) and step.op.stream else ""
    for at in range(0, len(text), 7):
        yield from reader.feed(text[at : at + 7])
    last = reader.close(result)
    if last is not None:
        yield last
