"""A planner of your own: the model's first answer is read line by line, and each line becomes a step while it is still
being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from plait import CallConfig, Join, Orchestrator, Plan, Planner, Step
from plait.core import PlanningContext, Reader, Result
from plait.planning import Uses, call_model
from plait.workers.scripted import Reply, Scripted


class Outline(Planner):
    """Skeleton of thought (Ning et al., arXiv 2307.15337): an outline first, then every point at the same time."""

    outline: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=256, stream=True),
        description="Asks for the `{question}`'s outline, a point a line.",
    )
    point: Annotated[CallConfig, Uses("point")] = Field(
        default=CallConfig(max_tokens=64), description="Writes about one `{point}`."
    )

    def start(self, brief: PlanningContext) -> Plan:
        """Ask for the outline; the step expands into the rest."""
        pieces = self.outline.parts("Outline an answer, a point a line: {question}", question=brief.task.render())
        step = call_model(brief, "outline", "outline", pieces, self.outline, expands=True)
        return Plan(steps=(step,), output="outline")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of the outline."""
        return Points(self, brief)


class Points:
    """Turns each whole line into a step."""

    def __init__(self, planner: Outline, brief: PlanningContext) -> None:
        self._prompt, self._brief = planner.point, brief
        self._rest = ""
        self._names: list[str] = []

    def feed(self, delta: str) -> Sequence[Plan]:
        *lines, self._rest = (self._rest + delta).split("\n")
        return [Plan(steps=(self._point(line),)) for line in lines if line.strip()]

    def close(self, result: Result) -> Plan | None:
        last = (self._point(self._rest),) if self._rest.strip() else ()
        if not self._names:
            return None  # no points: the outline itself is the answer
        return Plan(steps=(*last, Step(name="all", op=Join(), needs=tuple(self._names))), output="all")

    def _point(self, line: str) -> Step:
        self._names.append(f"point-{len(self._names) + 1}")
        pieces = self._prompt.parts("Write about: {point}", point=line.strip())
        return call_model(self._brief, "outline", self._names[-1], pieces, self._prompt, label=line.strip())


def main() -> None:
    model = Scripted(
        [
            Reply(when="Outline", text="roots\nstem\nleaves", tokens_per_second=20),
            Reply(when="roots", text="They drink."),
            Reply(when="stem", text="It carries."),
            Reply(when="leaves", text="They eat light."),
        ]
    )
    with Orchestrator(workers=[model]) as plait:
        answer = plait.run("How does a plant live?", planner="own_planner:Outline")
    print(answer.unwrap())
    steps = {step.name: step for step in answer.report.steps}
    first, outline = steps["point-1"], steps["outline"]
    print("a point was written before the outline was:", (first.ended_at or 0.0) < (outline.ended_at or 0.0))


if __name__ == "__main__":
    main()

# prints "['They drink.', 'It carries.', 'They eat light.']"
# prints "before the outline was: True"
