"""`plait demo`: puzzles by one line of reasoning, by a vote and by threads; questions whose tools a plan calls side by
side; a request that is split into its pieces; plain questions, where a chat model was fetched. All on real engines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from plait.apps.common.interrupt import CommandInterrupted, Stopper, run_stoppable
from plait.apps.common.options import Common, Json, common_options
from plait.apps.common.output import Output, opened
from plait.runtime.client.config import Config

from ..countdown import CountdownProblem, draw
from .plain import ask_plainly, chat_of
from .puzzles import Way, close_puzzles, solve_puzzles, ways
from .questions import DemoFigures, ask_questions, close_questions, family_of

__all__ = ["demo"]


@common_options
def demo(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of puzzles.")] = 5,
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Solve puzzles by threads, answer questions by plans of tool calls, split a request; all on real engines."""
    config = common.load()
    config = config.model_copy(update={"model": config.model})  # the puzzles' model, unless another is named
    with opened(as_json) as output:
        began = time.monotonic()
        compared = ways()
        problems = draw(limit, config.seed)
        cancelled, start, asked = run_stoppable(lambda stopper: _show(config, problems, compared, output, stopper))
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
                    **{name: {way.key: way.summary() for way in ways} for name, ways in asked.items()},
                    "start_seconds": round(start, 3),
                    "seconds": round(seconds, 3),
                }
            )
        failures = [way.tally.first_failure for way in compared] + [
            way.failure for ways in asked.values() for way in ways
        ]
        failure = next(filter(None, failures), "")
        if failure:
            output.progress.print(f"error: {failure}", markup=False, soft_wrap=True)
    if cancelled:
        raise typer.Exit(130)
    if failure:
        raise typer.Exit(1)


async def _show(
    config: Config, problems: Sequence[CountdownProblem], compared: Sequence[Way], output: Output, stopper: Stopper
) -> tuple[bool, float, dict[str, Any]]:
    """Return whether the user gave up, how long the first start took, and what the questions took."""
    cancelled, start = await solve_puzzles(config, problems, compared, output, stopper)
    close_puzzles(compared, output.people)
    family = family_of(config)
    asked: dict[str, list[DemoFigures]] = {}
    if family is not None and not cancelled:
        try:
            questions, asked["split"] = await ask_questions(family, output, stopper)
            asked["questions"] = questions
            close_questions(questions, output.people)
            if (chat := chat_of(config)) is not None and not stopper.requested:
                asked["plain"] = [await ask_plainly(chat, output, stopper)]
        except CommandInterrupted:
            cancelled = True
    return cancelled or stopper.requested, start, asked
