"""What do changes of a running plan save beside whole second plans? Simulated, with a script.

    python -m experiments replan_each

The plans have the shapes of LLMCompiler's three sets: HotpotQA has two searches, Movie eight, ParallelQA three searches
and two calculations of their results. In a chain of four, each search needs the result before it. A share of the
searches misses, as its observation reports; the corrected search hits. ToolBench has the shapes and misses of 15
recorded solutions. A search takes .3 to 1 second, or ten times that where it is slow, and the model writes 50 tokens a
second. All ways get the same misses and the same seconds a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from plait.core.events import Job
from plait.core.interfaces import Planner
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.tools.tool import ToolSpec
from plait.planners.tools.llmcompiler import LLMCompiler
from plait_research.planners.workflow import Workflow
from plait_research.simulation.latency import Host, LatencyModel
from plait_research.simulation.simulator import Check, SimReport, simulate

SHAPES: dict[str, dict[str, tuple[str, ...]]] = {
    "HotpotQA": {"s1": (), "s2": ()},
    "Movie": {f"s{number}": () for number in range(1, 9)},
    "ParallelQA": {"s1": (), "s2": (), "s3": (), "c4": ("s1", "s2"), "c5": ("c4", "s3")},
    "chain of 4": {"s1": (), "s2": ("s1",), "s3": ("s2",), "s4": ("s3",)},
    "chain of 4, slow": {"s1": (), "s2": ("s1",), "s3": ("s2",), "s4": ("s3",)},
}
"""Tasks by shape, each with the tasks that it needs. `s` is a search, `c` a calculation."""
PAGE = Path(__file__).with_name("README.md")
KEPT = PAGE.parent / "data" / "rows.jsonl"
RECORDINGS = "ToolBench, recorded"
RECORDED = [json.loads(line) for line in PAGE.with_name("data").joinpath("toolbench.jsonl").read_text().splitlines()]
"""Tasks of recorded solutions (`toolbench.py`): what each needs, and whether it missed."""
MISSES, QUESTIONS, PLANS = (0.0, 0.1, 0.3), 100, 9
_ARGS = {"id": {"type": "string"}, "of": {"type": "array"}}
TOOLS = [ToolSpec(name="work", parameters={"type": "object", "properties": _ARGS, "required": ["id"]})]
_TASK = re.compile(r'^(\d+)\. work\("(\w+)(!?)"[^\n]*\)(?:\nObservation: (\w+))?', re.MULTILINE)


class Row(NamedTuple):
    """Means of one way in one situation."""

    right: float
    tools: float
    models: float
    written: float
    seconds: float


WAYS: dict[str, Planner] = {
    "`whole`": LLMCompiler(replan="whole", rounds=PLANS),
    "`each`": LLMCompiler(replan="each", rounds=PLANS),
    "`workflow`, `each`": Workflow(replan="each"),
}


class Written(NamedTuple):
    """A task as it was written last, and the first word of its observation."""

    number: int
    sign: str
    observed: str


class Script:
    """The model and the tools of one question."""

    def __init__(self, tasks: Mapping[str, Sequence[str]], missed: set[str], rng: Random, scale: float = 1.0) -> None:
        self.tasks, self.missed = tasks, missed
        self.waits = {(task, sign): scale * rng.uniform(0.3, 1.0) for task in self.tasks for sign in ("", "!")}

    @classmethod
    def of_shape(cls, shape: str, misses: float, seed: int) -> Script:
        """Return the script of a question of LLMCompiler's sets."""
        rng = Random(f"{shape} {misses} {seed}")
        tasks = SHAPES[shape]
        missed = {task for task in tasks if rng.random() < misses and task[0] == "s"}
        return cls(tasks, missed, rng, 10.0 if "slow" in shape else 1.0)

    @classmethod
    def of_recording(cls, seed: int) -> Script:
        """Return the script of a recorded solution."""
        row = RECORDED[seed % len(RECORDED)]["tasks"]
        tasks = {f"s{place + 1}": [f"s{need + 1}" for need in needs] for place, (needs, _) in enumerate(row)}
        return cls(tasks, {f"s{place + 1}" for place, (_, missed) in enumerate(row) if missed}, Random(f"{seed}"))

    def seconds(self, job: Job, rng: Random) -> float:
        """Return the seconds of a call."""
        assert isinstance(job.op, ToolCall)
        task = str(job.op.args["id"])
        return self.waits[task[:2], task[2:]] if task[0] == "s" else 0.01

    def outcome(self, job: Job, rng: Random) -> Result:
        """Return the result of a call, or the model's text."""
        if isinstance(job.op, ToolCall):
            hit = job.op.args["id"] not in self.missed and "bad" not in json.dumps(job.op.args.get("of"))
            return Result(value="good" if hit else "bad")
        assert isinstance(job.op, ModelCall)
        text = self.write("".join(part.text for part in job.op.prompt if isinstance(part, Text)))
        return Result(value=text, usage=Usage(completion=max(1, len(text) // 4)))

    def write(self, prompt: str) -> str:
        """Return the model's text for a prompt."""
        latest: dict[str, Written] = {}
        for number, task, sign, observed in _TASK.findall(prompt.partition("Question:")[2]):
            latest[task] = max(latest.get(task, Written(0, "", "")), Written(int(number), sign, observed))
        if "Finish(" in prompt:
            right = all(latest[task].observed == "good" for task in self.tasks)
            asks = not right and "Replan(" in prompt
            return f"Thought: read.\nAction: {'Finish(right)' if right else 'Replan(x)' if asks else 'Finish(wrong)'}"
        if latest:
            return self.correct(latest, "is running" in prompt)
        first = {task: Written(number, "", "") for number, task in enumerate(self.tasks, 1)}
        return self.lines(first, first)

    def correct(self, latest: dict[str, Written], running: bool) -> str:
        """Return the tasks that correct what was missed, and those that need them."""
        again: dict[str, Written] = {}
        new = max(row.number for row in latest.values())
        for task, needs in self.tasks.items():
            row = latest[task]
            failed = row.observed not in ("", "good")
            below = any(need in again for need in needs)
            if below or (failed and all(latest[need].observed == "good" for need in needs)):
                sign = "!" if failed and not below and task in self.missed else row.sign
                replaces = running and not row.observed
                new += not replaces
                again[task] = Written(row.number if replaces else new, sign, "")
        return self.lines(again, {**latest, **again})

    def lines(self, tasks: dict[str, Written], known: dict[str, Written]) -> str:
        """Return tasks in the language of plans."""
        written: list[str] = []
        for task, row in tasks.items():
            needs = ", ".join(f"${known[need].number}" for need in self.tasks[task])
            written.append(f'{row.number}. work("{task}{row.sign}"{f", [{needs}]" if needs else ""})')
        return "\n".join([*written, f"{max(row.number for row in known.values()) + 1}. join()<END_OF_PLAN>"])


class JsonScript(Script):
    """The same in the language of `workflow`: it remembers what it wrote, as the model's conversation does."""

    def __init__(self, tasks: Mapping[str, Sequence[str]], missed: set[str], rng: Random, scale: float = 1.0) -> None:
        super().__init__(tasks, missed, rng, scale)
        self.written = {task: (task, "") for task in tasks}
        """By task: the step's id, and its sign."""
        self.before = self.written
        self.observed: dict[str, str] = {}

    def write(self, prompt: str) -> str:
        """Return the model's text for a message."""
        if "The plan is running" not in prompt:
            return json.dumps({"steps": [self.step(task) for task in self.tasks], "answer": self.answer()})
        results, _, rest = prompt.partition("Steps that have not begun: ")
        self.observed |= dict(re.findall(r"^(\w+): (\w+)", results, re.MULTILINE))
        if "Your last change was not made" in rest:
            self.written = self.before
        self.before, self.written = self.written, dict(self.written)
        waiting = rest.partition("\n")[0].split(", ")
        again: dict[str, Any] = {}
        for task, needs in self.tasks.items():
            name, sign = self.written[task]
            below = any(self.written[need][0] in again for need in needs)
            failed = self.observed.get(name) == "bad"
            if below or (failed and all(self.observed.get(self.written[need][0]) == "good" for need in needs)):
                sign = "!" if failed and not below and task in self.missed else sign
                self.written[task] = (name if name in waiting else f"{name}x", sign)
                again[self.written[task][0]] = self.step(task)
        return json.dumps({"replace": again, "answer": self.answer()} if again else {})

    def step(self, task: str) -> dict[str, Any]:
        """Return a step of the plan."""
        name, sign = self.written[task]
        needs = [f"${self.written[need][0]}" for need in self.tasks[task]]
        return {"id": name, "call": "work", "args": {"id": f"{task}{sign}", **({"of": needs} if needs else {})}}

    def answer(self) -> list[str]:
        """Return the plan's answer: all values."""
        return [f"${name}" for name, _ in self.written.values()]


def play(shape: str, misses: float, seed: int, way: str, check: Check | None = None) -> SimReport:
    """Run one question."""
    kind = JsonScript if "workflow" in way else Script
    script = kind.of_recording(seed) if shape == RECORDINGS else kind.of_shape(shape, misses, seed)
    return simulate(
        Request(text="Which?"),
        planner=WAYS[way],
        hosts=[Host("host", slots=16, prefill_rate=5000.0, decode_rate=50.0)],
        latency=LatencyModel(call=script.seconds, chunk=1),
        outcome=script.outcome,
        tools=TOOLS,
        seed=seed,
        check=check,
    )


def is_right(report: SimReport) -> bool:
    """Return whether all tasks of the answer hit."""
    value = report.result.value if report.result is not None else None
    return value == "right" or (isinstance(value, list) and set(value) == {"good"})


def measure(shape: str, misses: float, way: str, questions: int = QUESTIONS) -> Row:
    """Return the means over the questions of a situation."""
    rows: list[Row] = []
    for seed in range(questions):
        report = play(shape, misses, seed, way)
        kinds = [span.kind for span in report.spans]
        written = report.usage.completion
        rows.append(Row(is_right(report), kinds.count("call"), kinds.count("think"), written, report.makespan))
    return Row(*map(fmean, zip(*rows, strict=True)))


def situations(questions: int = QUESTIONS) -> list[dict[str, Any]]:
    """Return the rows of all situations."""
    missed = [miss for row in RECORDED for _, miss in row["tasks"]]
    shapes = [*product(SHAPES, MISSES), (RECORDINGS, sum(missed) / len(missed))]
    return [
        {"shape": shape, "misses": misses, "replan": way, **measure(shape, misses, way, questions)._asdict()}
        for (shape, misses), way in product(shapes, WAYS)
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page's table."""
    head = ("shape", "searches that miss", "replan", "right", "tool calls", "model calls", "tokens written", "seconds")
    form = (
        "| {shape} | {misses:.0%} | {replan} | {right:.0%} | {tools:.2f} | {models:.2f} "
        "| {written:.0f} | {seconds:.2f} |"
    )
    return (
        "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(form.format(**row) for row in rows)]) + "\n"
    )


def main() -> None:
    """Measure all situations, keep the rows, and write the table into the page."""
    rows = situations()
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    head, _, rest = PAGE.read_text(encoding="utf-8").partition("\n| shape |")
    PAGE.write_text(f"{head}\n{table(rows)}\n{rest.partition(chr(10) * 2)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
