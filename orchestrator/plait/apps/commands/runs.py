"""`plait runs show|resume|replay`: running runs, and runs in journals."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.addresses import allow
from ...core.errors import UsageError
from ...core.events import Finish
from ...core.messages import pluralise
from ...core.result import Usage
from ...runtime.client.answer import Answer
from ...runtime.client.client import read_answer
from ...runtime.client.config import Config
from ...runtime.control.socket import Peer
from ...runtime.control.verbs import VERBS
from ...runtime.journal.code_trust import refuse_names
from ...runtime.journal.directory import RunEntry, entries, find
from ...runtime.journal.replay import ReplayReport, replay as replayed
from ...runtime.journal.resume import Rebuilt, rebuild, settings_of
from ...runtime.plugins.loader import Plugins
from ..common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ..common.journals import Place, place_of
from ..common.options import Allow, Common, Json, common_options
from ..common.output import Output, opened
from ..common.session import opened_session
from ..common.tree import StepTree
from ..control.command import RunUnderWay, find as find_under_way, follow as follow_run, row_of, steer
from ..control.distant import Distant
from .listing import STYLES, about
from .run import exit_code, name_why, show as show_answer

_REACHING = ("worker", "tools", "mcp", "base_url", "api_key_env")
"""Settings of a run that choose code to run, or where prompts and keys are sent."""
_OF_THE_REQUEST = ("planner", "policies", "merge", "n", "tokens", "seconds")
"""Settings that a run has in its own request."""


def show(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's id or a unique prefix of it; by default the only running run, else the newest.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow a running run to its end.")] = False,
    place: Place = None,
    allowed: Allow = None,
    as_json: Json = False,
) -> None:
    """Show a run: its steps, questions of its tools and, if it has ended, its answer. Starts nothing."""
    if follow:
        follow_run(run, as_json)
        return
    allow(*(allowed or ()))
    with opened(as_json) as output:
        under_way = _shown_under_way(run) if place is None else None
        if under_way is not None:
            _show_under_way(row_of(*under_way), output)
            return
        where = place_of(place)
        entry = find(where, run) if run is not None else next(entries(where), None)
        if entry is None:
            raise UsageError(f"there is no run in {where} yet")
        refuse_names(entry.path, entry.run)
        rebuilt = rebuild(entry.path, entry.run, Plugins())
        answer = _answer(rebuilt)
        if as_json:
            steps = [row.row() for row in answer.report.steps]
            output.result({**answer.summary(), "status": _status(rebuilt, entry), **about(entry), "steps": steps})
            return
        request = rebuilt.submitted.request
        if rebuilt.record.finish is not None:
            show_answer(answer, request.text, request.task.name, output, steps=True)
            name_why(answer, output)
            return
        output.people.print(
            StepTree.of_report(answer.report, title=request.text).renderable(output.people.width), soft_wrap=True
        )
        remedy = f": `plait runs resume {entry.run}` finishes it" if entry.status == "interrupted" else ""
        output.people.print(f"{entry.status}{remedy}", style=STYLES.get(entry.status, ""), markup=False)


def _shown_under_way(run: str | None) -> tuple[Peer | Distant, str] | None:
    """Return the running run to show, or `None` for a run of the journal, such as the newest if no run is named and
    several are running."""
    try:
        return find_under_way(run, changes=False)
    except UsageError:
        if run is None:
            return None
        raise


def _show_under_way(row: dict[str, Any], output: Output) -> None:
    lines = [f"run {row['run']}: {row['status']}, {row['tokens']} tokens, {row['seconds']:.1f} s", row["text"]]
    lines += [f"asks {question['id']}: {question['text']}" for question in row["questions"]]
    for step in row["steps"]:
        tokens, reason = step["tokens"], step["reason"]
        lines.append(f"  {step['name']} {step['state']}" + (f", {tokens} tokens" if tokens else "")
                     + (f": {reason}" if reason else ""))  # fmt: skip
    output.report(row, *lines)


def _named(run: str | None) -> str:
    if run is None:
        raise UsageError("no run is running: name one that `plait runs list` shows")
    return run


@common_options
def resume(
    run: RunUnderWay = None,
    place: Place = None,
    force: Annotated[
        bool, typer.Option("--force", help="Resume although models or tools differ from those at the start.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Steps of the run, after its end.")] = False,
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Resume a run. A paused run starts steps again, in its process. An interrupted run is finished in this process,
    without repeating finished steps, and its answer is printed.

    Model, worker and tools are those of the run unless you give others. A journal named by --from may come from another
    person: give the tools, servers and keys that it names again.
    """
    paused = find_under_way(run) if place is None else None
    if paused is not None and row_of(*paused)["status"] != "interrupted":
        steer(VERBS["resume"], *paused)
        with opened(as_json) as output:
            output.report({"run": paused[1], "done": "resume"}, f"resume: run {paused[1]}")
        return
    entry = find(place_of(place), _named(run), changes=True)
    stored = {key: value for key, value in settings_of(entry).items() if key not in _OF_THE_REQUEST}
    if place is not None:
        _refuse_settings(stored, common, entry)
    ours = {field.name for field in dataclasses.fields(Common)}
    given = {key: value for key, value in stored.items() if key in ours and getattr(common, key, None) is None}
    config = dataclasses.replace(common, **given).load(**{k: v for k, v in stored.items() if k not in ours})
    with opened(as_json) as output:
        refuse_names(entry.path, entry.run)
        rebuilt = rebuild(entry.path, entry.run, Plugins())
        if rebuilt.record.finish is not None:
            answer = _answer(rebuilt)
        else:
            alone = all("think" not in host.serves for host in rebuilt.machine.workers.values())
            answer = run_stoppable(lambda stopper: _resume(config, entry, (alone, force), output, stopper))
        request = rebuilt.submitted.request
        if as_json:
            output.result(answer.summary())
        else:
            show_answer(answer, request.text, request.task.name, output, verbose)
            name_why(answer, output)
    code = exit_code(answer)
    if code:
        raise typer.Exit(code)


async def _resume(config: Config, entry: RunEntry, how: tuple[bool, bool], output: Output, stopper: Stopper) -> Answer:
    """Finish a run. `how`: without any worker of a model, and whatever it began with."""
    alone, force = how
    try:
        async with opened_session(config, output, stopper, [] if alone else None, start=False) as session:
            handle = await session.orchestrator.reopen(entry.run, path=entry.path, force=force)
            stopper.then(handle.cancel)
            return await handle
    except CommandInterrupted:
        return Answer(run=entry.run, status="cancelled", why="given up before anything ran")


def _answer(rebuilt: Rebuilt) -> Answer:
    """Return the answer of a run that has ended, or what there is of it."""
    run = rebuilt.record
    if run.finish is None:
        usage = run.records.meter.usage() if run.records is not None else Usage()
        run = dataclasses.replace(run, finish=Finish(run=run.id, status="cancelled", usage=usage))
    return read_answer(run, Plugins().task(run.request.task, run.request.text))


def _refuse_settings(stored: dict[str, Any], common: Common, entry: RunEntry) -> None:
    """Raise `UsageError` for settings of a journal that choose code to run or where prompts and keys are sent, unless
    the command names them too."""
    flags: list[str] = []
    for key in _REACHING:
        value = stored.get(key)
        # What the caller names again is the caller's own choice, even in a journal of another person.
        if not value or getattr(common, key) is not None or (key == "worker" and ":" not in str(value)):
            continue
        values = value if isinstance(value, list) else [value]
        flags += [f"--{key.replace('_', '-')} {shlex.quote(str(value))}" for value in values]
    if flags:
        raise UsageError(
            f"{entry.path.name} names tools or servers, and a journal that --from names may be a stranger's: if they "
            f"are meant, add {' '.join(flags)}"
        )


def _status(rebuilt: Rebuilt, entry: RunEntry) -> str:
    return rebuilt.record.finish.status if rebuilt.record.finish is not None else entry.status


_SHOWN = 600


def replay(
    file: Annotated[Path, typer.Argument(help="Journal file that `--journal` wrote.")],
    until: Annotated[int | None, typer.Option(min=1, help="Number of the last event to replay.")] = None,
    allowed: Allow = None,
    as_json: Json = False,
) -> None:
    """Feed a journal's events to a new machine and compare what it does; exit code 1 if that differs.

    No worker is started.
    """
    allow(*Config.load().allow, *(allowed or ()))
    refuse_names(file)
    with opened(as_json) as output:
        report = replayed(file, Plugins(), until=until)
        divergence = report.divergence
        if as_json:
            output.result(
                {
                    "identical": divergence is None,
                    "events": report.events,
                    "sessions": report.sessions,
                    "recomputed": report.recomputed,
                    "runs": [{"run": end.run, "status": end.status} for end in report.finished],
                    "divergence": None
                    if divergence is None
                    else {
                        "event": divergence.index,
                        "what": json.loads(divergence.event),
                        "recorded": divergence.recorded,
                        "replayed": divergence.replayed,
                    },
                }
            )
        else:
            head, *rest = describe_report(report)
            output.people.print(head, style="red" if divergence is not None else None, markup=False, soft_wrap=True)
            for line in rest:
                output.people.print(line, markup=False, soft_wrap=True)
    if divergence is not None:
        raise typer.Exit(1)


def describe_report(report: ReplayReport) -> list[str]:
    """Return the findings of a replay, as lines of text."""
    divergence = report.divergence
    if divergence is None:
        ends = ", ".join(f"{end.run} {end.status}" for end in report.finished[:8]) or "no run ended"
        more = f" and {len(report.finished) - 8} more" if len(report.finished) > 8 else ""
        lost = f"{report.recomputed} events had no recorded actions: the writer had crashed"
        return [
            f"identical: {pluralise(report.events, 'event')} in {pluralise(report.sessions, 'session')} ({ends}{more})",
            *([lost] if report.recomputed else []),
        ]
    sides = {
        "event": divergence.event,
        "recorded": divergence.recorded or "nothing",
        "replayed": divergence.replayed,
    }
    cut = {name: text if len(text) <= _SHOWN else text[:_SHOWN] + "…" for name, text in sides.items()}
    return [f"diverged at event {divergence.index}", *(f"  {name:<9} {text}" for name, text in cut.items())]
