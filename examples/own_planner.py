"""A planner of your own: the model's first answer is read line by line, and each line becomes a step while it is still
being written."""

from __future__ import annotations

from collections.abc import Sequence

from plait import Join, Orchestrator, Plan, Planner, Sampling, Step, Think
from plait.core import Brief, Reader, Result
from plait.workers.scripted import Reply, Scripted


class Outline(Planner):
    """Skeleton of thought (Ning et al., arXiv 2307.15337): an outline first, then every point at the same time."""

    point_tokens: int = 64
    """Most tokens of a point."""

    def start(self, brief: Brief) -> Plan:
        """Ask for the outline; the step expands into the rest."""
        prompt = f"Outline an answer, a point a line: {brief.task.render()}"
        outline = Step(name="outline", op=Think(prompt=prompt, stream=True), expands=True)
        return Plan(steps=(outline,), output="outline")

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return what reads the outline."""
        return Points(self)


class Points:
    """Turns each whole line into a step."""

    def __init__(self, planner: Outline) -> None:
        self._tokens = planner.point_tokens
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
        op = Think(prompt=f"Write about: {line.strip()}", sampling=Sampling(max_tokens=self._tokens))
        return Step(name=self._names[-1], op=op, label=line.strip())


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
