"""Runs an experiment's conditions on held-out Countdown problems, on the local engine, resumably, and writes its page.

Decides what the written page looks like. It does not know what an experiment asks, nor how a puzzle is solved.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.apps.common.interrupt import CommandInterrupted, Stopper, run_stoppable
from plait.apps.common.output import CommandCancelled, Output, opened
from plait.apps.common.progress import for_each
from plait.apps.common.session import opened_session
from plait.core.errors import UsageError
from plait_bench.countdown import CountdownProblem, draw

from .base import Keeper, record_of
from .machine import machine, usable_cores
from .page import contents, put
from .store import Store

if TYPE_CHECKING:
    from plait.runtime.client.client import AsyncOrchestrator
    from plait.runtime.client.config import Config

    from .base import Condition, Findings, Study
    from .command import Given

__all__ = ["run_study", "write"]


def run_study(made: Study, given: Given) -> str:
    """Run what is missing of a study, and write its page from what is there. Raises `UsageError`."""
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        raise UsageError(f"experiments need {error.name}: pip install 'plait[study]'") from None
    conditions = made.conditions()
    unknown = [name for name in given.only if not any(fnmatchcase(each.key, name) for each in conditions)]
    if unknown:
        known = ", ".join(each.key for each in conditions)
        raise UsageError(f"the experiment {made.name} has no condition {unknown[0]!r}; it has {known}")
    config = given.common.load()
    fixed: dict[str, Any] = {} if made.engines is None else {"engines": made.engines}
    if config.journal is None:
        fixed["journal"] = "off"  # the records are all that is kept
    fixed |= {
        "cache": None,
        "stream_above_tokens": config.stream_above_tokens or 0,
    }  # what is not generated, or not reported, cannot be counted
    config = config.model_copy(update=fixed)
    problems = draw(given.problems, config.seed)
    header = {"study": made.name, "seed": config.seed, "model": config.model, "worker": config.worker}
    with contextlib.closing(Store(given.records / f"{made.name}.jsonl", header, given.fresh)) as store:
        stopped = False
        if not given.report:
            wanted = [
                each
                for each in conditions
                if (not given.only or any(fnmatchcase(each.key, name) for name in given.only))
                and (given.size is None or each.model == given.size)
            ]
            with opened(False) as output:
                stopped = run_stoppable(
                    lambda stopper: _run(config, wanted, problems, given.concurrency, store, output, stopper)
                )
        page = ""
        if not given.collect:
            if isinstance(made, Keeper):
                made.kept = given.records / f"{made.name}.computed.jsonl"
            found = made.findings(store.records(given.problems), problems, given.processes)
            command = (
                f"python -m experiments {made.name} --problems {given.problems} --seed {config.seed} "
                f"--engines {config.engines}"
            )
            page = write(made, found, given.out, command, given.problems, store.machines).read_text(encoding="utf-8")
    if stopped:
        raise CommandCancelled
    return page


async def _run(
    config: Config,
    conditions: Sequence[Condition],
    problems: Sequence[CountdownProblem],
    concurrency: int,
    store: Store,
    output: Output,
    stopper: Stopper,
) -> bool:
    """Run what is missing; return whether the user gave up. Each model's engines are started once."""
    missing = [
        (each, [place for place in range(min(len(problems), each.problems or len(problems)))
                if not store.has(each.key, place)])
        for each in conditions
    ]  # fmt: skip
    todo = sorted((pair for pair in missing if pair[1]), key=lambda pair: pair[0].model != "small")
    if todo:
        store.ran_on(machine())
    try:
        for model, group in groupby(todo, key=lambda pair: pair[0].model):
            settings = config.model_copy(update={"model": str(folder_of(config, model))})
            async with opened_session(settings, output, stopper) as session:
                for condition, places in group:
                    await _condition(
                        session.orchestrator, condition, problems, places, concurrency, store, output, stopper
                    )
    except CommandInterrupted:
        return True
    return stopper.requested


def folder_of(config: Config, size: str) -> Path:
    """Return the folder of a model of the configured family: `NAME` is the small one, `NAME-large` the larger."""
    folder = Path(config.model)
    return folder if size == "small" else folder.with_name(f"{folder.name}-{size}")


async def _condition(
    orchestrator: AsyncOrchestrator,
    condition: Condition,
    problems: Sequence[CountdownProblem],
    places: Sequence[int],
    concurrency: int,
    store: Store,
    output: Output,
    stopper: Stopper,
) -> None:
    from plait.core.ops import Plugin
    from plait.core.record import StepRecord
    from plait.runtime.client.answer import RunEnded, StepEvent

    width = condition.concurrency or concurrency
    with _progress(output, condition.label, len(places)) as advance:

        async def solve(place: int) -> None:
            problem = problems[place]
            seed = orchestrator.config.seed * 1_000_003 + place
            options: Any = {"task": "countdown", "seed": seed, **condition.request}
            handle = await orchestrator.submit(problem.text, watch=condition.branches, **options)
            revoke = stopper.then(handle.cancel)
            branches: dict[str, StepRecord] = {}
            try:
                if condition.branches:
                    async for news in handle.news():
                        if isinstance(news, StepEvent):
                            record = news.record
                            if record.state == "done" and record.name.startswith("sample-"):
                                branches[record.name] = record
                        elif isinstance(news, RunEnded):
                            break
                answer = await handle
            finally:
                revoke()
            if answer.status == "cancelled":
                return
            task = orchestrator.plugins.task(Plugin(name="countdown"), problem.text)
            ordered = [branches[name] for name in sorted(branches, key=lambda name: int(name.rpartition("-")[2]))]
            record = record_of(problem, answer, ordered if condition.branches else None, task, condition.steps)
            conditions = {"concurrency": width, "cores": usable_cores(), "load": round(os.getloadavg()[0], 2)}
            store.add(condition.key, place, {**record, **conditions})
            advance()

        await for_each(places, solve, min(width, len(places)), stopper)


@contextlib.contextmanager
def _progress(output: Output, label: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how far a condition is: a bar on a terminal, a few lines elsewhere."""
    console = output.progress
    if not console.is_terminal:
        done = itertools.count(1)

        def say() -> None:
            number = next(done)
            if number % max(1, total // 4) == 0 or number == total:
                console.print(f"{label}: {number} of {total}", markup=False)

        yield say
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    left = TimeRemainingColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(label, total=total)
        yield lambda: progress.advance(bar)


def write(made: Study, found: Findings, out: Path, command: str, problems: int, machines: Sequence[str] = ()) -> Path:
    """Write `README.md`, and `data/NAME.json`, which it is made of, with the plots, into a folder; return the page.
    `machines` say where it ran, by default here."""
    from .plots import save

    (out / "data").mkdir(parents=True, exist_ok=True)
    for stem, _, figure in found.plots:
        save(figure, out / "data" / f"{stem}.png")
    said = contents(
        name=made.name,
        title=made.title,
        question=made.question,
        command=command,
        machine=machines or [machine()],
        about=f"Up to {problems} held-out problems a condition; 95 % bootstrap intervals in brackets.",
        claims=found.claims,
        tables=found.tables,
        plots=[(stem, caption) for stem, caption, _ in found.plots],
        theirs=made.theirs,
        figures=found.figures,
    )
    return put(said, out)
