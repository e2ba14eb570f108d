"""`plait demo`: the same puzzles by one line of reasoning, by a vote and by threads, on a real engine."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from plait.apps.common.interrupt import run_stoppable
from plait.apps.common.options import Common, Json, common_options
from plait.apps.common.output import opened

from ..countdown import draw
from .puzzles import close_puzzles, solve_puzzles, ways

__all__ = ["demo"]


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
