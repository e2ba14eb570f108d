"""How much sooner do plans answer LLMCompiler's three sets than turns and parallel calls? Simulated.

    python -m experiments llmcompiler_sets [--clone FOLDER] [--report]

All 113 questions of ParallelQA, 500 of Movie and 1,487 of HotpotQA. The model is scripted: it makes the calls that a
question needs by rule (`questions.py`) and no mistake, so only time differs. A call takes .3 to 1 second (5 to 95 % of
a lognormal distribution), the same for all contenders. The authors' code runs from a clone beside ours.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.tools.tool import ToolSpec
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.planners.tools.react import React
from plait_research.simulation.latency import Host, LatencyModel
from plait_research.simulation.simulator import simulate

from .._tools.statistics import mean
from .questions import SETS, Question, read_questions

HERE = Path(__file__).parent
KEPT, PAGE = HERE / "data" / "seconds.jsonl.gz", HERE / "README.md"
DECODE = {"8 ms": 0.008, "20 ms": 0.02, "40 ms": 0.04}
"""Seconds of a token: an 8-billion model on an H100, a 70-billion one on four, a large one behind an API."""
PREFILL = 20_000.0
"""Tokens of a prompt that are read in a second."""
WAYS = ("turns", "native", "short", "react", "llmcompiler", "authors")
"""`native`: the calls of a wave in a turn, begun when it is written, as JSON; `short`: the same, if a call were as
short as a line of a plan; `react`: as JSON, each begun as soon as it is written."""
_TEXT = {"type": "string"}
TOOLS = (
    ToolSpec(name="search", parameters={"type": "object", "properties": {"entity": _TEXT}, "required": ["entity"]}),
    ToolSpec(
        name="math",
        parameters={
            "type": "object",
            "properties": {"problem": _TEXT, "context": {"type": "array"}},
            "required": ["problem"],
        },
    ),
)


def plan_of(question: Question) -> str:
    """Return the plan, in the language of LLMCompiler."""
    lines: list[str] = []
    for number, task in enumerate(question.tasks, 1):
        context = ", ".join(f'"${need + 1}"' for need in task.needs)
        lines.append(f"{number}. {task.tool}({json.dumps(task.text)}{f', [{context}]' if context else ''})")
    return "\n".join([*lines, f"{len(lines) + 1}. join()<END_OF_PLAN>"])


def conclusion(question: Question) -> str:
    """Return the thought before the answer, which all contenders write."""
    return f"I have read what was found about {len(question.tasks)} calls, and it answers the question.\n"


@dataclass
class Script:
    """The model and the tools of one question, for plait's planners."""

    question: Question
    together: bool
    """Whether a turn makes all calls that can be made, else one."""
    thinks: bool
    """Whether a turn begins with a thought (ReAct)."""
    short: bool = False
    """Whether a call takes as many tokens as its line in a plan."""

    def seconds(self, job: Job, rng: Random) -> float:
        """Return the seconds of a call."""
        assert isinstance(job.op, ToolCall)
        return self.question.seconds(self.place(job.op))

    def place(self, op: ToolCall) -> int:
        """Return which task a call is."""
        text = op.args.get("entity", op.args.get("problem"))
        return next(at for at, task in enumerate(self.question.tasks) if (task.tool, task.text) == (op.tool, text))

    def __call__(self, job: Job, rng: Random) -> Result:
        if isinstance(job.op, ToolCall):
            return Result(value=self.question.observation(self.place(job.op)))
        assert isinstance(job.op, ModelCall)
        name = job.step.rpartition("/")[2].rpartition(":")[2]
        if name.startswith("plan"):
            text = plan_of(self.question)
        elif name.startswith("joiner"):
            text = f"Thought: {conclusion(self.question)}Action: Finish({self.question.answer})"
        else:
            text = self.turn(job.op)
        prompt = sum(len(part.text) for part in job.op.parts if isinstance(part, Text)) // 4
        length = sum(map(len, plan_of(self.question).splitlines()[:-1])) if self.short and "<tool_call>" in text else 0
        calls = text.count("<tool_call>") / len(self.question.tasks)
        return Result(value=text, usage=Usage(prompt=prompt, completion=max(1, int(length * calls or len(text)) // 4)))

    def turn(self, op: ModelCall) -> str:
        """Return a turn: the next calls, or the answer."""
        read = sum(each.role == "tool" for each in op.messages)
        tasks = self.question.tasks
        if read == len(tasks):
            return f"{'Thought: ' if self.thinks else ''}{conclusion(self.question)}Answer: {self.question.answer}"
        waves = self.question.waves if self.together else [[place] for place in range(len(tasks))]
        starts = [0, *itertools.accumulate(map(len, waves))]
        wave = waves[starts.index(read)]
        thought = f"Thought: I need to find {tasks[wave[0]].text} next.\n" if self.thinks else ""
        return thought + "".join(self.native(place) for place in wave)

    def native(self, place: int) -> str:
        """Return a call as models write it."""
        task = self.question.tasks[place]
        args: dict[str, Any] = {"entity": task.text} if task.tool == "search" else {"problem": task.text}
        if task.needs:
            args["context"] = [self.question.observation(need) for need in task.needs if need in self.numbers]
        return f"<tool_call>{json.dumps({'name': task.tool, 'arguments': args})}</tool_call>\n"

    @property
    def numbers(self) -> list[int]:
        """Tasks whose results are numbers. A turn has read the paragraphs of the others and does not write them out."""
        return [place for place, task in enumerate(self.question.tasks) if task.tool == "math"]


def ours(question: Question, way: str, decode: float) -> float:
    """Run a question by one of plait's planners; return the seconds."""
    planner = {
        "turns": React(turn=CallConfig(stream=False), rounds=24),
        "native": React(turn=CallConfig(stream=False), rounds=24),
        "short": React(turn=CallConfig(stream=False), rounds=24),
        "react": React(rounds=24),
        "llmcompiler": LLMCompiler(),
    }[way]
    script = Script(question, together=way != "turns", thinks=way == "turns", short=way == "short")
    report = simulate(
        Request(text=question.text),
        planner=planner,
        hosts=[Host("host", decode_rate=1 / decode, prefill_rate=PREFILL, cache_tokens=100_000)],
        latency=LatencyModel(call=script.seconds, chunk=1),
        outcome=script,
        tools=TOOLS,
    )
    calls = sum(span.kind == "call" for span in report.spans)
    assert report.result is not None and calls == len(question.tasks), (question.id, way, report.failure)
    return report.makespan


def measure(clone: Path | None, sets: Sequence[str] = SETS, most: int | None = None) -> list[dict[str, Any]]:
    """Return a row for each question and speed: the seconds of each way."""
    rows: list[dict[str, Any]] = []
    for name in sets:
        asked = [each for each in read_questions() if each.set == name][:most]
        for label, decode in DECODE.items():
            for question in asked:
                row: dict[str, Any] = {"set": name, "id": question.id, "token": label}
                row |= {way: round(ours(question, way, decode), 4) for way in WAYS[:-1]}
                if clone is not None:
                    row["authors"] = round(theirs(clone, question, decode), 4)
                rows.append(row)
            sys.stderr.write(f"{name}, {label} a token: {len(asked)} questions\n")
    return rows


def theirs(clone: Path, question: Question, decode: float) -> float:
    """Run a question by the authors' code; return the seconds."""
    from . import authors

    with authors.imported(clone) as compiler:
        said = f"Thought: {conclusion(question)}Action: Finish({question.answer})"
        found, text = authors.answer(compiler, question, plan_of(question), said, decode, PREFILL, "Examples.\n")
    assert text == re.sub(r"\).*", "", question.answer), (question.id, text)
    return found


def times(rows: Sequence[Mapping[str, Any]], slow: str, fast: str) -> str:
    """Return the speed-up of one way over another, paired by question: geometric mean with its interval."""
    found = mean([float(np.log(row[slow] / row[fast])) for row in rows])
    return "{:.2f} ({:.2f}–{:.2f})".format(*np.exp(found))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page."""
    ways = [way for way in WAYS if way in rows[0]]
    beside = [way for way in ways if way != "llmcompiler"]
    head = ["set", "questions", "a token", *(f"{way}, s" for way in ways), *(f"{way} ÷ llmcompiler" for way in beside)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in SETS:
        for label in DECODE:
            mine = [row for row in rows if (row["set"], row["token"]) == (name, label)]
            if mine:
                cells = [name, f"{len(mine):,}", label]
                cells += [f"{statistics.fmean(row[way] for row in mine):.2f}" for way in ways]
                cells += [times(mine, way, "llmcompiler") for way in beside]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def read_rows() -> list[dict[str, Any]]:
    """Return the rows that are kept."""
    return [json.loads(line) for line in gzip.decompress(KEPT.read_bytes()).decode().splitlines()]


def page(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with the table of some rows."""
    head, _, rest = text.partition("\n| set |")
    return f"{head}\n{table(rows)}\n{rest.partition(chr(10) * 2)[2]}"


def main() -> None:
    """Measure, keep the rows, and write the table into the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments llmcompiler_sets", description=__doc__)
    parser.add_argument(
        "--clone", type=Path, help="files of SqueezeAILab/LLMCompiler; without it, not the authors' code"
    )
    parser.add_argument("--report", action="store_true", help="write the page of the rows that are kept")
    options = parser.parse_args()
    if not options.report:
        rows = measure(options.clone)
        KEPT.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode(), mtime=0))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read_rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
