"""`plait demo`: the same puzzles by one line of reasoning, by a vote and by threads, on a real engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plait.apps.commands.eval import EvalCounts
from plait.apps.common.interrupt import CommandInterrupted, Stopper, run_stoppable
from plait.apps.common.options import Common, Json, common_options
from plait.apps.common.output import Output, opened
from plait.apps.common.session import opened_session
from plait.apps.common.tree import follow
from plait.core.ops import Plugin
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config

from ..countdown import CountdownProblem, draw

__all__ = ["demo"]


_WIDE = 80


@dataclass(slots=True)
class Way:
    """One way to solve the puzzles."""

    key: str
    title: str
    planner: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    keep_tree: bool = False
    """Whether the tree of its first solved puzzle stays on the screen."""
    tally: EvalCounts = field(default_factory=EvalCounts)

    def plugin(self) -> Plugin:
        """Return the planner with its options."""
        return Plugin(name=self.planner, options=self.options)


def ways() -> list[Way]:
    """Return the compared strategies."""
    vote = {"n": 8, "merge": {"name": "best-of"}, "early": True, "answer": {"stream": True}}
    return [
        Way("single", "one line of reasoning", "single"),
        Way("sample", "a vote: the best of 8 samples, by a verifier", "sample", vote),
        Way(
            "threads",
            "threads: the model spawns and joins them itself",
            "threads",
            {"answer": {"stream": True}, "part": {"stream": True}},
            keep_tree=True,
        ),
    ]


async def solve_puzzles(
    config: Config, problems: Sequence[CountdownProblem], compared: Sequence[Way], output: Output, stopper: Stopper
) -> tuple[bool, float]:
    """Return whether the user gave up, and how long the start took."""
    console = output.people
    console.print(
        f"{len(problems)} Countdown puzzles that the model has never seen: all four numbers, one target.",
        markup=False,
    )
    try:
        async with opened_session(config, output, stopper) as session:
            for way in compared:
                console.print()
                console.print(way.title, style="bold")
                began = time.monotonic()
                for place, problem in enumerate(problems):
                    if stopper.requested:
                        break
                    await _solve(session.orchestrator, way, place, problem, console, stopper)
                way.tally.seconds = time.monotonic() - began
            return stopper.requested, session.start_seconds
    except CommandInterrupted:
        return True, 0.0


async def _solve(
    orchestrator: AsyncOrchestrator, way: Way, place: int, problem: CountdownProblem, console: Console, stopper: Stopper
) -> None:
    """Solve one puzzle one way, with its tree shown while it runs."""
    handle = await orchestrator.submit(problem.text, task="countdown", planner=way.plugin(), policies=[], watch=True)
    revoke = stopper.then(handle.cancel)
    tree = await follow(handle, console, problem.text, keep=False)
    answer = await handle
    revoke()
    if answer.status == "cancelled":
        return
    solved = way.tally.add(place, problem, answer)
    if solved and way.keep_tree and way.tally.solved == 1:
        console.print(tree)
    _say(problem, answer, solved, console)


def _say(problem: CountdownProblem, answer: Answer, solved: bool, console: Console) -> None:
    """Print a puzzle's end in one line."""
    text = "no answer" if answer.answer is None else _pretty(answer.answer) + ("" if solved else "  (wrong)")
    mark = ("✓", "green") if solved else ("✗", "red")
    cost = f"{answer.total_tokens:>5} tok {answer.seconds:>5.1f} s"
    line = Text.assemble(mark, " ", f"{problem.text:<18}")
    room = min(console.width, _WIDE + 20) - line.cell_len - len(cost) - 3
    text = text if len(text) <= room else text[: max(1, room - 1)] + "…"
    line.append("  ").append(text.ljust(room), "" if solved else "dim").append(f" {cost}", "dim")
    console.print(line, no_wrap=True, overflow="ellipsis")


def _pretty(answer: Any) -> str:
    steps = answer if isinstance(answer, list) else [answer]
    return ", ".join(str(step) for step in steps).translate(str.maketrans("-*/", "−×÷"))


def close_puzzles(compared: Sequence[Way], console: Console) -> None:
    """Print the table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column("")
    for name in ("solved", "critical path", "total tokens", "cached", "seconds"):
        table.add_column(name, justify="right")
    for way in compared:
        tally = way.tally
        count = max(1, tally.n)
        table.add_row(
            way.key,
            f"{tally.solved}/{tally.n}",
            f"{tally.critical / count:.0f}",
            f"{tally.usage.completion / count:.0f}",
            str(tally.usage.cached),
            f"{tally.seconds:.1f}",
        )
    console.print()
    console.print(table)
    console.print(
        "tokens and critical path (those generated one after another): means a puzzle; "
        "cached: tokens of all prompts that the engine had read before",
        style="dim",
        markup=False,
    )


@common_options
def demo(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of puzzles.")] = 5,
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Solve puzzles by one line of reasoning, by a vote and by threads, on a real engine."""
    config = common.load()
    config = config.model_copy(update={"model": config.model})  # the puzzles' model, unless another is named
    with opened(as_json) as output:
        began = time.monotonic()
        compared = ways()
        problems = draw(limit, config.seed)
        cancelled, start = run_stoppable(lambda stopper: solve_puzzles(config, problems, compared, output, stopper))
        close_puzzles(compared, output.people)
        seconds = time.monotonic() - began
        if cancelled:
            output.people.print("status: cancelled", style="yellow")
        if not as_json or output.progress.is_terminal:
            engine = f", {start:.1f} s of it to start the first engine" if start else ""
            output.people.print(f"{seconds:.1f} s in all{engine}", style="dim")
        if as_json:
            output.result(
                {
                    "status": "cancelled" if cancelled else "done",
                    "puzzles": [problem.text for problem in problems],
                    "ways": {way.key: way.tally.summary() for way in compared},
                    "answers": {way.key: list(way.tally.records.values()) for way in compared},
                    "start_seconds": round(start, 3),
                    "seconds": round(seconds, 3),
                }
            )
        failure = next((way.tally.first_failure for way in compared if way.tally.first_failure), "")
        if failure:
            output.progress.print(f"error: {failure}", markup=False, soft_wrap=True)
    if cancelled:
        raise typer.Exit(130)
    if failure:
        raise typer.Exit(1)
