"""Do planners with tools work on a shell and a database, with scripted models, graded by state?

The task `bash-sql`: planners with tools over scripted models, on generated problems, graded by state.

    python -m experiments bash_sql --problems 60

A problem's script is made of its known solution, behind a first move that leads nowhere and a command that fails. So
the figures say whether a planner gets its model's commands carried out, and how many calls its way of asking takes;
nothing about any model.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plait import AsyncOrchestrator
from plait.core.interfaces import Worker
from plait.core.ops import Plugin
from plait.runtime.client.config import Config
from plait.workers.scripted import Reply, Scripted
from plait_bench.environments.bash_sql import BashSqlEnvironment
from plait_bench.tasks.bash_sql.problems import SqlProblem, drawn

from .._tools.command import Given, command, command_of
from .._tools.kept import lines_of
from .._tools.statistics import mean, share

__all__ = ["PLANNERS", "Solved", "attempt", "by_planner", "page", "reply_to", "script"]

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
"""Moves that lead nowhere: a missing file, a missing tool, a missing table."""
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
    """Return the reply of a script without `times` to a prompt, as the worker `scripted` does; else an empty text."""
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

    A search gives the wrong move up and tries another; without one the model continues after it.
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
        Reply(when=f"{asked}.*{last}.*^Answer the question from", text="Thought: It is changed.\nAction: Finish(done)"),
        Reply(when=f"{asked}.*^Answer the question from", text="Thought: I have seen it.\nAction: Replan(the change)"),
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


async def solve_all(config: Config, count: int, kept: Path, sandbox: str = "process") -> None:
    """Work on generated problems, one after another, where that has not been done; each row is written at once."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["planner"], row["place"]) for row in map(json.loads, lines_of(kept))}
    problems = drawn(count, config.seed)
    with kept.open("a", encoding="utf-8") as out:
        for planner in PLANNERS:
            replies = script(problems, planner)
            for place, problem in enumerate(problems):
                if (planner, place) not in done:
                    row = await attempt(problem, planner, Scripted(replies), sandbox)
                    out.write(json.dumps({"planner": planner, "place": place, **asdict(row)}) + "\n")
                    out.flush()


def page(rows: Mapping[str, Sequence[Solved]], command: str) -> str:
    """Return the page as Markdown."""
    count = max((len(found) for found in rows.values()), default=0)
    lines = [
        "# Planners with tools on `bash-sql`", "",
        f"{count} generated problems, each worked on by {len(rows)} planners over a scripted model, graded by what has "
        "become of files and tables. A problem's script is made of its known solution. Before it come a move that "
        "leads nowhere (a missing file, tool or table), a look, and a command with a fault. So the table "
        "shows that the planners carry out their model's commands, each change once, and how many calls their way "
        "of asking takes. It says nothing about any model. Calls are means of a problem with 95 % intervals, problems "
        "resampled.", "", f"`{command}`", "",
        "| planner | solved | model calls | tool calls | changes |", "|---" * 5 + "|",
    ]  # fmt: skip
    for planner, found in rows.items():
        means = [mean([float(getattr(row, name)) for row in found]).number() for name in ("model", "tools", "changes")]
        right = share([row.right for row in found]).percent()
        lines.append(f"| {planner} | {right} | {' | '.join(means)} |")
    return "\n".join([*lines, ""])


def by_planner(lines: Sequence[str]) -> dict[str, list[Solved]]:
    """Return the rows of lines of JSON, by planner."""
    found: dict[str, list[Solved]] = {planner: [] for planner in PLANNERS}
    for row in map(json.loads, lines):
        found[row.pop("planner")].append(Solved(**{key: value for key, value in row.items() if key != "place"}))
    return found


def run(given: Given) -> str:
    """Work on what has not been worked on, write the page, and return it."""
    config = given.common.load()
    path = given.kept("bash_sql", config.seed)
    if not given.report:
        asyncio.run(solve_all(config, given.problems, path))
    found = given.rows(path)
    return given.write(page(by_planner(found.lines), command_of("bash_sql", config, given.problems)), found)


def main() -> None:
    """Work on them in the sandbox `process`, and write the page."""
    command("bash_sql", run, problems=60)
