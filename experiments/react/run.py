"""Questions that need several tools: `react` and `llmcompiler` beside one call a turn. In virtual time.

Questions that need several tools: `react` and `llmcompiler` against one call a turn, in virtual time.

100 generated questions of the kind of ParallelQA (arXiv 2312.04511): 2 to 5 facts are looked up and combined by sums in
a random tree. The model is scripted and the same for all: it thinks 30 tokens a turn, writes each call in full, and
takes numbers from what it has read; a plan has a line for each task. Each call takes 50 to 2,000 ms, the same for all
contenders. What is compared is the time of one run alone, question by question; quartiles are over the questions.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.tools.tool import ToolSpec
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.planners.tools.react import React
from plait_research.simulation.latency import Host, LatencyModel
from plait_research.simulation.simulator import SimReport, simulate

from .._tools.measure import Row

QUESTIONS, SEED = 100, 20
RATES = (30.0, 60.0, 120.0)
"""Tokens that the model writes in a second."""
MAIN = 60.0
THOUGHT = "I " + "think " * 28 + "so.\n"
_NUMBER = {"type": "number"}
TOOLS = (
    ToolSpec(name="search", parameters={"type": "object", "properties": {"fact": {"type": "string"}}}),
    ToolSpec(name="add", parameters={"type": "object", "properties": {"a": _NUMBER, "b": _NUMBER}}),
)


@dataclass(frozen=True)
class Task:
    """One call: a fact to look up, or the sum of two earlier tasks."""

    fact: str = ""
    of: tuple[int, int] | None = None


@dataclass(frozen=True)
class Question:
    """What is asked: tasks in order, the last one's result is the answer."""

    number: int
    tasks: tuple[Task, ...]
    values: tuple[int, ...]

    @property
    def waves(self) -> list[list[int]]:
        """The tasks that can be done side by side, wave after wave."""
        level: list[int] = []
        for task in self.tasks:
            level.append(0 if task.of is None else 1 + max(level[each] for each in task.of))
        return [[n for n, each in enumerate(level) if each == wave] for wave in range(max(level) + 1)]


def question(number: int, rng: Random) -> Question:
    """Return a question with 2 to 5 facts."""
    facts = rng.randint(2, 5)
    tasks = [Task(fact=f"height of mountain {number}-{n}") for n in range(facts)]
    values = [rng.randint(100, 9000) for _ in range(facts)]
    open_ = list(range(facts))
    while len(open_) > 1:
        a, b = rng.sample(open_, 2)
        open_ = [each for each in open_ if each not in (a, b)] + [len(tasks)]
        tasks.append(Task(of=(a, b)))
        values.append(values[a] + values[b])
    return Question(number, tuple(tasks), tuple(values))


class Model:
    """The scripted model and the tools, for one question: what it says depends on what it has read alone."""

    def __init__(self, asked: Question, together: bool) -> None:
        """`together`: it writes all calls that need nothing more in one turn, else one call a turn."""
        self._asked = asked
        self.turns = 0
        self._waves = asked.waves if together else [[n] for n in range(len(asked.tasks))]

    def __call__(self, job: Job, rng: Random) -> Result:
        if isinstance(job.op, ToolCall):
            return Result(value=self._tool(job.op.tool, job.op.args))
        assert isinstance(job.op, ModelCall)
        self.turns += 1
        name = job.step.rpartition("/")[2].rpartition(":")[2]
        text = self._plan(name, job.op) if name.startswith(("plan", "joiner")) else self._turn(job.op)
        return Result(value=text, usage=Usage(completion=max(1, len(text) // 4)))

    def seconds(self, job: Job, rng: Random) -> float:
        """Return how long a call takes: it depends on the call alone."""
        assert isinstance(job.op, ToolCall)
        return Random(f"{self._asked.number} {json.dumps(job.op.args, sort_keys=True)}").uniform(0.05, 2.0)

    def _tool(self, name: str, args: Mapping[str, Any]) -> int:
        if name == "add":
            return int(args["a"]) + int(args["b"])
        return next(v for t, v in zip(self._asked.tasks, self._asked.values, strict=True) if t.fact == args["fact"])

    def _turn(self, op: ModelCall) -> str:
        """Return a turn of `react`: the next wave of calls, with the numbers that were observed."""
        seen = [int(each.text) for each in op.messages if each.role == "tool"]
        if len(seen) == len(self._asked.tasks):
            return f"{THOUGHT}Answer: {seen[-1]}"
        done, order = 0, [n for wave in self._waves for n in wave]
        for wave in self._waves:
            if done == len(seen):
                known = dict(zip(order, seen, strict=False))
                return THOUGHT + "".join(self._native(self._asked.tasks[n], known) for n in wave)
            done += len(wave)
        raise AssertionError("it read results of calls that it had not made")

    @staticmethod
    def _native(task: Task, known: Mapping[int, int]) -> str:
        name = "search" if task.of is None else "add"
        args = {"fact": task.fact} if task.of is None else {"a": known[task.of[0]], "b": known[task.of[1]]}
        return f"<tool_call>{json.dumps({'name': name, 'arguments': args})}</tool_call>\n"

    def _plan(self, name: str, op: ModelCall) -> str:
        """Return the plan of `llmcompiler`, or its joiner's decision."""
        if name.startswith("plan"):
            lines = [
                f'{n}. search("{task.fact}")' if task.of is None else f"{n}. add(${task.of[0] + 1}, ${task.of[1] + 1})"
                for n, task in enumerate(self._asked.tasks, 1)
            ]
            return "\n".join([*lines, f"{len(lines) + 1}. join()"]) + "<END_OF_PLAN>"
        read = "".join(part.text for part in op.prompt if isinstance(part, Text))
        last = re.findall(r"-?\d+", read.rpartition("Observation")[2])
        return f"Thought: {THOUGHT}Action: Finish({last[0] if last else '?'})"


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    seconds: float
    turns: int
    tokens: int
    right: bool


CONTENDERS = {
    "one call a turn": (React(turn=CallConfig(stream=False)), False),
    "react, calls of whole turns": (React(turn=CallConfig(stream=False)), True),
    "react": (React(), True),
    "llmcompiler": (LLMCompiler(), True),
}


def answered(asked: Question, name: str, rate: float) -> Outcome:
    """Run one question through one contender."""
    planner, together = CONTENDERS[name]
    model = Model(asked, together)
    report: SimReport = simulate(
        Request(text=f"What is the sum? (question {asked.number})"),
        planner=planner,
        hosts=[Host("host", decode_rate=rate, prefill_rate=5000.0, cache_tokens=100_000)],
        latency=LatencyModel(call=model.seconds, chunk=1),
        outcome=model,
        tools=TOOLS,
    )
    said = "" if report.result is None else report.result.text
    right = re.findall(r"\d+", said)[-1:] == [str(asked.values[-1])]
    return Outcome(report.makespan, model.turns, report.usage.completion, right)


def measured(rate: float, questions: int = QUESTIONS) -> dict[str, list[Outcome]]:
    """Return every contender's result, question by question."""
    rng = Random(SEED)
    asked = [question(number, rng) for number in range(questions)]
    return {name: [answered(each, name, rate) for each in asked] for name in CONTENDERS}


def quartiles(values: Sequence[float]) -> str:
    """Return the median, with the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


async def run() -> list[Row]:
    """Return the rows: seconds at each rate, then turns, tokens and right answers."""
    rows: list[Row] = []
    goals = {"llmcompiler": "≥ 1.8", "react": "≥ 1.35"}
    for rate in RATES:
        found = measured(rate)
        base = found["one call a turn"]
        for name, outcomes in found.items():
            if outcomes is base:
                continue
            faster = [b.seconds / a.seconds for a, b in zip(outcomes, base, strict=True)]
            ours = f"{statistics.mean(each.seconds for each in outcomes):.2f} s"
            against = f"{statistics.mean(each.seconds for each in base):.2f} s"
            what = f"{name}, {rate:.0f} tokens/s (baseline: one call a turn; times faster)"
            rows.append(Row(what, ours, against, quartiles(faster), goals.get(name, "")))
        if rate != MAIN:
            continue
        for name, outcomes in found.items():
            turns, tokens = (statistics.mean(getattr(each, what) for each in outcomes) for what in ("turns", "tokens"))
            right = sum(each.right for each in outcomes)
            base_tokens = statistics.mean(each.tokens for each in base)
            words = f"{turns:.1f} turns, {tokens:.0f} tokens, {right} of {len(outcomes)} right"
            rows.append(
                Row(
                    f"{name}: turns, tokens, answers", words, f"{base_tokens:.0f} tokens", f"{tokens / base_tokens:.2f}"
                )
            )
    return rows
