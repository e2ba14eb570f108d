"""Do planners with tools work on a shell and a database, with scripted models, graded by state?

The task `bash-sql`: planners with tools over scripted models, on generated problems, graded by state.

    python -m experiments bash_sql --problems 60

A problem's script is made of its known solution, behind a first move that leads nowhere and a command that fails. So
the figures say whether a planner gets its model's commands carried out, and how many calls its way of asking takes;
nothing about any model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from plait import AsyncOrchestrator
from plait.core.interfaces import Worker
from plait.core.ops import Plugin
from plait.tasks.bash_sql.problems import SqlProblem, drawn
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.environments.bash_sql import BashSqlEnvironment

__all__ = ["PLANNERS", "Solved", "attempt", "page", "reply_to", "script"]

PLANNERS = {
    "react": Plugin(name="react"),
    "tree:dfs": Plugin(
        name="tree",
        options={
            "search": {"name": "dfs", "options": {"branch": 3, "back": 1}},
            "step": {"stop": [], "form": "calls"},
            "until": "done",
            "give_up": "give up",
        },
    ),
    "llmcompiler": Plugin(name="llmcompiler"),
}
Move = tuple[str, str]
"""A tool and its one argument."""
_FIRST: tuple[Move, ...] = (("look", "cat notes.txt"), ("shell", "ls"), ("query", "select * from items"))
"""Moves that lead nowhere: a file that is not there, a tool that is not there, a table that is not there."""
_NUMBER = 21
"""Of the first task of a second plan."""


@dataclass(frozen=True, slots=True)
class Solved:
    """One problem, worked on by one planner."""

    kind: str
    right: bool
    model: int
    """Calls of the model."""
    tools: int
    """Calls of tools that were there."""
    changes: int
    """Those of them that change the state."""
    seconds: float


def script(problems: Sequence[SqlProblem], planner: str) -> list[Reply]:
    """Return the replies of a model that solves the problems with a planner, after some wrong moves."""
    made = _plans if planner == "llmcompiler" else _steps
    return [reply for i, problem in enumerate(problems) for reply in made(problem, i, planner == "tree:dfs")]


def reply_to(replies: Sequence[Reply], prompt: str) -> str:
    """Return what a script without `times` answers to a prompt, as the worker `scripted` does; else an empty text."""
    found = (each.text for each in replies if re.search(each.when or "", prompt, re.MULTILINE | re.DOTALL))
    return next(found, "")


async def attempt(problem: SqlProblem, planner: str, worker: Worker, sandbox: str = "process") -> Solved:
    """Work on a problem and grade what has become of its files and tables."""
    place = BashSqlEnvironment(text=problem.text, sandbox=sandbox)
    begun = time.monotonic()
    async with AsyncOrchestrator(workers=[worker], journal=None) as orchestrator:
        answer = await orchestrator.run(
            problem.text, task="bash-sql", planner=PLANNERS[planner], tools=list(place.tools())
        )
    kinds = [each.kind for each in answer.trace]
    return Solved(
        problem.kind,
        await place.grade(answer.answer, problem.wanted),
        kinds.count("think"),
        kinds.count("call"),
        len(place.made),
        time.monotonic() - begun,
    )


def _broken(move: Move) -> Move:
    """Return a command with a fault that keeps all of it from being run."""
    tool, command = move
    return (tool, f"fi; {command}") if tool == "bash" else (tool, command[:3] + command[4:])


def _look(problem: SqlProblem) -> Move:
    return ("query", "select * from goods") if problem.solution[0][0] == "sql" else ("look", "head *")


def _argument(move: Move) -> str:
    return "statement" if move[0] in ("sql", "query") else "command"


def _asked(problem: SqlProblem) -> str:
    """Return an expression for what is asked, up to the call that is looked for, in what a branch itself has done."""
    return re.escape(json.loads(problem.text)["prompt"]) + r"(?:(?!tried here).)*"


def _steps(problem: SqlProblem, number: int, search: bool) -> list[Reply]:
    """Return replies for planners that see each result: a wrong move, a look, a command that fails, the solution.

    A search gives the wrong move up and tries another; without one the model goes on behind it.
    """
    moves = [_FIRST[number % len(_FIRST)], _look(problem), _broken(problem.solution[0]), *problem.solution]
    texts = [
        f"<tool_call>{json.dumps({'name': move[0], 'arguments': {_argument(move): move[1]}})}</tool_call>"
        for move in moves
    ]
    seen = [_asked(problem) + re.escape(text) for text in texts]
    replies = [Reply(when=when, text=text) for when, text in zip(seen, [*texts[1:], "It is done."], strict=True)]
    if search:
        replies[0] = Reply(when=seen[0], text="I give up.")
        replies.insert(0, Reply(when=_asked(problem) + "tried here.*" + re.escape(texts[0]), text=texts[1]))
        replies.sort(key=lambda reply: "tried here.*" in (reply.when or ""))
    return [*reversed(replies), Reply(when=_asked(problem), text=texts[0])]


def _plans(problem: SqlProblem, number: int, search: bool) -> list[Reply]:
    """Return replies for plans: one that looks and has a fault, and behind its results one that solves the problem."""
    first = [_FIRST[number % len(_FIRST)], _look(problem)]
    asked = re.escape(json.loads(problem.text)["prompt"])
    last = re.escape(_tasks(problem.solution, _NUMBER).splitlines()[-1])
    return [
        Reply(when=f"^Answer a question.*{asked}.*{last}", text="Thought: It is changed.\nAction: Finish(done)"),
        Reply(when=f"^Answer a question.*{asked}", text="Thought: I have seen it.\nAction: Replan(the change)"),
        Reply(when=f"{asked}.*could not be run", text=f"Thought: I look.\n{_tasks(first[1:], 11)}\n12. join()\n"),
        Reply(when=f"{asked}.*Current Plan", text=f"Thought: I change it.\n{_tasks(problem.solution, _NUMBER)}\n"
              f"{_NUMBER + len(problem.solution)}. join()\n"),
        Reply(when=asked, text=f"{_tasks(first, 1)}\n3. join()\n"),
    ]  # fmt: skip


def _tasks(moves: Sequence[Move], number: int) -> str:
    """Return lines of a plan. `$2` would be the result of task 2 there, so the `$2` of awk is written `$$2`."""
    written = [json.dumps(re.sub(r"\$(?=[0-9])", "$$", given)) for _, given in moves]
    return "\n".join(
        f"{i}. {move[0]}({_argument(move)}={each})"
        for i, (move, each) in enumerate(zip(moves, written, strict=True), number)
    )


async def solved(count: int, seed: int, planner: str, sandbox: str) -> list[Solved]:
    """Work on generated problems, one after another."""
    problems = drawn(count, seed)
    replies = script(problems, planner)
    return [await attempt(problem, planner, Scripted(replies), sandbox) for problem in problems]


def page(rows: dict[str, list[Solved]]) -> str:
    """Return the table as Markdown; calls and seconds are means of a problem."""
    lines = [
        "| planner | solved | model calls | tool calls | changes | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for planner, found in rows.items():
        means = [fmean(getattr(each, name) for each in found) for name in ("model", "tools", "changes", "seconds")]
        shown = " | ".join(f"{mean:.2f}" for mean in means)
        lines.append(f"| {planner} | {sum(each.right for each in found)} of {len(found)} | {shown} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run it, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sandbox", default="process")
    given = parser.parse_args()
    print(page({name: asyncio.run(solved(given.problems, given.seed, name, given.sandbox)) for name in PLANNERS}))
