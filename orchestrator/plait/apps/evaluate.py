"""`plait.evaluate`: strategies on rows with right answers, in one table. `plait eval` counts by the same code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, UsageError
from ..core.ops import Plugin
from ..core.request import Request
from ..runtime.client.client import AsyncOrchestrator
from ..runtime.client.loop_thread import LoopThread
from ..runtime.client.single_run import split_options
from .commands.eval import Comparison, EvalCounts, compared, requests_of, solve_all
from .common.dataset import DatasetQuestion, question_reader, read_questions
from .common.interrupt import Stopper

Strategies = Iterable[str] | Mapping[str, Mapping[str, Any]]


def evaluate(
    rows: str | Path | Iterable[Mapping[str, Any]],
    strategies: Strategies,
    *,
    task: str | Plugin = "plain",
    text: str = "text",
    want: str = "want",
    limit: int | None = None,
    concurrency: int = 16,
    **options: Any,
) -> Comparison:
    """Run each strategy on all rows and return a table that shows itself, with `to_markdown()` and `to_latex()`.

    `rows`: a file (JSON lines, CSV, Parquet), or mappings; `text` and `want` name their fields, `task` grades.
    `strategies`: planners with the policies behind them, as in `plait eval --planner`, or fields of a request by name;
    the first is the one that the others are compared with. `limit`: number of rows; `concurrency`: rows in flight.
    `options` are arguments of `AsyncOrchestrator` and of its `submit`.

    Raises `ConfigError` for rows that are no questions, `UsageError` without rows or strategies.

    >>> import plait
    >>> from plait.workers.scripted import Reply, Scripted
    >>> rows = [{"text": "2 + 2?", "want": "4"}, {"text": "3 + 3?", "want": "6"}]
    >>> four = Scripted([Reply(text="answer: 4")])
    >>> found = plait.evaluate(rows, ["single", "sample:n=3"], workers=[four], journal="off")
    >>> [(row.name, row.solved, row.tokens) for row in found], found.recommended.name
    ([('single', 0.5, 2.0), ('sample:n=3', 0.5, 6.0)], 'single')
    """
    settings, fields = split_options({"stream_above_tokens": 0, **options})
    problems = _problems(rows, Plugin.of(task) if isinstance(task, str) else task, text, want, limit)
    request = Request.model_validate({"task": task, **fields})
    if isinstance(strategies, Mapping):
        asked = {name: request.updated(dict(given)) for name, given in strategies.items()}
    else:
        asked = requests_of([strategies] if isinstance(strategies, str) else strategies, request, request.planner.name)
    if not problems or not asked:
        raise UsageError(f"evaluate needs rows and strategies, got {len(problems)} and {len(asked)}")
    orchestrator = AsyncOrchestrator(**settings)
    thread = LoopThread(orchestrator.close)
    try:
        tallies = thread.do(_tallies(orchestrator, problems, asked, concurrency))
    finally:
        thread.close()
    return compared({name: tally.records.values() for name, tally in tallies.items()})


def _problems(rows: Any, task: Plugin, text: str, want: str, limit: int | None) -> list[DatasetQuestion]:
    if isinstance(rows, str | Path):
        return read_questions(Path(rows), task, text, want, limit=limit)
    read = question_reader(task, text, want)
    problems: list[DatasetQuestion] = []
    for number, row in enumerate(islice(rows, limit), 1):
        try:
            problems.append(read(row))
        except ValueError as error:
            raise ConfigError(f"row {number} {error}") from None
    return problems


async def _tallies(
    orchestrator: AsyncOrchestrator, problems: list[DatasetQuestion], asked: Mapping[str, Request], concurrency: int
) -> dict[str, EvalCounts]:
    await orchestrator.start()
    tallies = {name: EvalCounts() for name in asked}
    stopper = Stopper(asyncio.get_running_loop())
    for name, request in asked.items():
        await solve_all(orchestrator, problems, request, concurrency, tallies[name], stopper, lambda: None)
    return tallies
