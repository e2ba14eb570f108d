"""Plans and take-overs: LLMCompiler's parser, ATTS' decision."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait.planners.tools.llmcompiler.binding import bind
from plait.planners.tools.llmcompiler.parser import PlanText
from plait_research.planners.takeover import Takeover
from tests.oracles.harness import Oracle, take

COMPILER = ("SqueezeAILab/LLMCompiler", "a00c9d35507507da70e8c637eee64efc8c1857ae", "MIT")
ATTS = ("menik1126/Asynchronous-Test-Time-Scaling", "bedf81d7369af3ea811875feefc5a903e97766ab", "none given")

TOOLS = ("search", "math", "fly")
WORDS = (
    "Ronaldo",
    "age of the Nile",
    "3 + 4",
    "Austin's (old) town",
    "a, b",
    "max($1, $2)",
    "$1 and ${2}",
    "50% of $1",
)


def _plans(random: Random) -> Iterator[str]:
    """Plans as models write them: thoughts, strings in either quotes, numbers, lists, references, a join at the end."""

    def argument(number: int) -> str:
        match random.randrange(6):
            case 0:
                return str(random.randint(-9, 99))
            case 1:
                return f"[{', '.join(repr(f'${random.randint(1, number)}') for _ in range(random.randint(1, 2)))}]"
            case 2:
                return repr(f"${random.randint(1, number)}")
            case _:
                text = random.choice(WORDS)
                return f'"{text}"' if "'" in text or random.random() < 0.7 else f"'{text}'"

    while True:
        lines: list[str] = []
        count = random.randint(1, 5)
        for number in range(1, count + 1):
            if random.random() < 0.3:
                lines.append(f"Thought: {random.choice(('first look', 'then count'))}")
            arguments = ", ".join(argument(number) for _ in range(random.randint(1, 3)))
            lines.append(f"{number}. {random.choice(TOOLS)}({arguments})")
        lines.append(f"{count + 1}. join()<END_OF_PLAN>")
        yield "\n".join(lines) + "\n"


def plan_theirs(clone: Path) -> Callable[[Any], Any]:
    names = (
        "THOUGHT_PATTERN", "ACTION_PATTERN", "ID_PATTERN", "END_OF_PLAN", "default_dependency_rule",
        "_parse_llm_compiler_action_args", "_find_tool", "_get_dependencies_from_graph", "instantiate_task",
        "LLMCompilerPlanParser.parse",
    )  # fmt: skip
    code = clone / "src/llm_compiler/output_parser.py"
    space = take(code, *names, re=re, ast=ast, Task=lambda **fields: SimpleNamespace(**fields))
    tools = [SimpleNamespace(name=name, func=None, stringify_rule=None) for name in TOOLS]

    def run(text: str) -> list[dict[str, Any]]:
        made = space["parse"](SimpleNamespace(tools=tools), text)
        return [
            {"id": task.idx, "tool": task.name, "args": list(task.args), "needs": task.dependencies,
             "thought": task.thought}
            for task in made.values()
        ]  # fmt: skip

    return run


def plan_ours(text: str) -> list[dict[str, Any]]:
    reader = PlanText()
    tasks = [*reader.feed(text), *reader.close()]
    out: list[dict[str, Any]] = []
    for task in tasks:
        known = {number: str(number) for number in range(1, task.id)}
        needs = sorted(known if task.is_join else {int(name) for name in bind(task, known, None).needs})
        args = [item.value for item in task.arguments.items]
        out.append({"id": task.id, "tool": task.tool, "args": args, "needs": needs, "thought": task.thought})
        if task.is_join:
            break
    return out


def _segments(random: Random) -> Iterator[dict[str, Any]]:
    """Perplexities of calibration, that of a segment, and the rank from which the target takes over."""
    while True:
        known = [round(random.lognormvariate(1, 0.6), 3) for _ in range(random.choice([1, 4, 16]))]
        value = random.choice([round(random.lognormvariate(1, 0.6), 3), random.choice(known)])
        yield {"known": known, "value": value, "threshold": random.choice([0.4, 0.5, 0.6])}


def takeover_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    file = clone / "ATTS/ref_async_budget_prediction_per_question.py"

    def run(case: dict[str, Any]) -> bool:
        given = {"ppl_array": {0: case["known"]}, "percentile_threshold": case["threshold"]}
        space = take(file, "should_takeover_based_on_percentile", np=np, **given)
        with contextlib.redirect_stdout(io.StringIO()):
            return bool(space["should_takeover_based_on_percentile"](case["value"], 0))

    return run


def takeover_ours(case: dict[str, Any]) -> bool:
    """A score is better the higher it is, so it is minus the perplexity; `threshold` is what the rank leaves above."""
    planner = Takeover(records=(tuple(-each for each in case["known"]),), threshold=round(1 - case["threshold"], 9))
    return planner.takes_over(-case["value"], 0)


ORACLES = [
    Oracle(
        "llmcompiler-plans", *COMPILER, "src/llm_compiler/output_parser.py LLMCompilerPlanParser.parse", _plans,
        plan_theirs, plan_ours, number=200, differs="a call with one list is given the list; theirs takes it apart",
    ),
    Oracle(
        "atts-takeover", *ATTS, "ATTS/ref_async_budget_prediction_per_question.py should_takeover_based_on_percentile",
        _segments, takeover_theirs, takeover_ours, number=200, through="planner",
        differs="ours counts the segment itself, (1 + #) / (m + 1), so that it never takes over more than the share "
        "that is asked for; theirs #/m takes over more where few scores are known",
    ),
]  # fmt: skip
