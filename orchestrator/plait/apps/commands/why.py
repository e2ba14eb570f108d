"""`plait why`: the cause of a failed run and its remedy; of a run that succeeded, where its time went."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.addresses import allow
from ...core.errors import PlaitError, UsageError, code_of
from ...core.messages import pluralise
from ...core.record import StepRecord
from ...core.tools.context import GivenAnswer
from ...runtime.client.config import Config
from ...runtime.journal.code_trust import refuse_names
from ...runtime.journal.directory import RunEntry, entries, find
from ...runtime.journal.journal import Journal
from ...runtime.journal.resume import rebuild, settings_of
from ...runtime.plugins.loader import Plugins
from ..common.journals import Place, place_of
from ..common.options import Allow, Json
from ..common.output import opened
from ..doctor.checks import Check, all_checks
from ..trace.read import read_trace
from ..trace.time_shares import USES, TimeShares, time_shares

_FOLLOWS = ("dependency-failed", "run-failed", "step-failed", "cancelled")
"""Codes of what fails because something else did."""
_REMEDIES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
REMEDIES = {code: (str(row["remedy"]), tuple[str, ...](row.get("checks", ()))) for code, row in _REMEDIES.items()}
"""By code of an error: what to do, and which checks of `plait doctor` look at its usual causes."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What one or several steps failed of."""

    code: str
    message: str
    """The original message of the engine, the server or the tool."""
    steps: tuple[str, ...]
    frames: str = ""
    """Where code of the user's raised."""
    remedy: str = ""


def reasons(steps: Sequence[StepRecord]) -> list[Reason]:
    """Return the original failures of steps, the most frequent first, without the failures that followed from them."""
    by_cause: dict[tuple[str, str], list[StepRecord]] = {}
    for step in steps:
        if step.failure is not None and step.failure.code not in _FOLLOWS:
            by_cause.setdefault((step.failure.code, step.failure.message), []).append(step)
    return [
        Reason(code, message, tuple(step.name for step in those),
               next((step.failure.frames for step in those if step.failure and step.failure.frames), ""))
        for (code, message), those in sorted(by_cause.items(), key=lambda item: -len(item[1]))
    ]  # fmt: skip


def why(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="A run's id; by default the newest failed run.")] = "",
    place: Place = None,
    allowed: Allow = None,
    as_json: Json = False,
) -> None:
    """Explain why a run failed, with the original message, a remedy and checks of this machine. For a run that
    succeeded, show its critical path by model, queue, prompts read again, tools and approvals, and what would have
    helped. Starts nothing."""
    allow(*(allowed or ()))
    where = place_of(place)
    if not run:
        bad = ("failed", "partial", "interrupted")
        run = next((entry.run for entry in entries(where) if entry.status in bad), "")
        if not run:
            raise UsageError(f"no run in {where} went wrong; name one that `plait runs list` shows")
    with opened(as_json) as output:
        entry = find(where, run)
        try:
            status, causes = _replayed(entry)
            note = ""
        except PlaitError as error:  # the code that it names is not allowed or not there any more, or acts otherwise
            status, causes = entry.status, reasons_of_events(Journal(entry.path), entry.run)
            note = f"steps are not named, as the run was not replayed: {error}"
        settings = settings_of(entry)
        causes = [dataclasses.replace(reason, remedy=_remedy(reason, settings)) for reason in causes]
        checks = list(_checks(causes, settings))
        record: dict[str, Any] = {"run": entry.run, "status": status, "note": note}
        record["reasons"] = [dataclasses.asdict(reason) for reason in causes]
        record["checks"] = [dataclasses.asdict(check) for check in checks]
        lines = _lines(entry.run, status, causes, checks, note)
        spent = _time_shares(entry) if not causes and not note and status in ("done", "partial") else None
        if spent is not None:
            record["time"] = dataclasses.asdict(spent)
            lines = [f"run {entry.run}: {status} in {spent.seconds:.3g} s", *_time_lines(spent)]
        output.report(record, *lines)


def _time_shares(entry: RunEntry) -> TimeShares | None:
    """Return where the time of a run went."""
    asked: dict[str, float] = {}
    for note in Journal(entry.path).notes(entry.run):
        if note.kind == "answered":
            step = note.step.rpartition("?")[0]
            asked[step] = asked.get(step, 0.0) + GivenAnswer.model_validate(note.note).waited
    return time_shares(read_trace(entry.path, Plugins(), entry.run), asked)


def _time_lines(spent: TimeShares) -> list[str]:
    whole = max(spent.seconds, 1e-9)
    shown = [(use, seconds) for use, seconds in spent.uses.items() if seconds >= 0.005 * whole]
    lines = [f"  {seconds:7.3g} s {seconds / whole:5.0%}  {USES[use]}" for use, seconds in shown]
    lines += [f"  ({pluralise(spent.unsplit, 'call')} did not stream: reading counts as writing)"] * bool(spent.unsplit)
    lines.append(f"critical path, {pluralise(len(spent.path), 'step')}:")
    for step, uses in spent.path:
        parts = ", ".join(f"{USES[use]} {seconds:.3g} s" for use, seconds in uses.items() if seconds >= 0.005 * whole)
        lines.append(f"  {step.partition(':')[2]}: {parts or 'less than 0.5 % of the time'}")
    return [*lines, *([f"  → {spent.remedy}"] if spent.remedy else [])]


def _replayed(entry: RunEntry) -> tuple[str, list[Reason]]:
    """Return a run's status and the causes of its end, by a replay. Raises `PlaitError` if it cannot be replayed."""
    refuse_names(entry.path, entry.run)
    rebuilt = rebuild(entry.path, entry.run, Plugins())
    causes = reasons(rebuilt.record.steps)
    finish = rebuilt.record.finish
    failure = finish.failure if finish is not None else None
    if failure is not None and not causes:  # the run itself: a plan that was refused, a planner that raised
        causes = [Reason(code_of(failure.kind), failure.message, (), failure.frames)]
    return finish.status if finish is not None else entry.status, causes


def reasons_of_events(journal: Journal, run: str) -> list[Reason]:
    """Return the failures of a run's attempts and readers, read from its journal without a replay."""
    by_cause: dict[tuple[str, str], Reason] = {}
    for row in journal.rows_of(run):
        # Other events carry no failure.
        if row.kind not in ("failed", "expanded"):
            continue
        failure = getattr(row.load(), "failure", None)
        if failure is not None and row.run == run and failure.code not in _FOLLOWS:
            by_cause.setdefault(
                (failure.code, failure.message), Reason(failure.code, failure.message, (), failure.frames)
            )
    return list(by_cause.values())


def _remedy(reason: Reason, settings: Mapping[str, Any]) -> str:
    """Return the remedy for the failure's code, or for the model server or the script that caused it."""
    # The usual remedy is about an engine in this process.
    if _is_scripted(settings) and reason.code in ("engine-error", "rejected"):
        return f"the script reports this: change the replies in {settings.get('script') or 'it'}"
    if reason.code == "engine-error" and settings.get("base_url"):
        return (
            f"the server reports this: see its own log; check it with `plait doctor --base-url {settings['base_url']}`"
        )
    return REMEDIES.get(reason.code, ("", ()))[0]


def _is_scripted(settings: Mapping[str, Any]) -> bool:
    """Return whether replies of a file stood in for a model."""
    return settings.get("worker", "scripted" if "script" in settings else "") == "scripted"


def _checks(causes: Sequence[Reason], settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the checks that look at the usual causes, as they are now, on this machine with the run's settings."""
    wanted = {name for reason in causes for name in REMEDIES.get(reason.code, ("", ()))[1]}
    if not wanted or _is_scripted(settings):  # a script needs nothing of this machine
        return
    kept = {name: value for name in ("model", "worker", "base_url", "engines") if (value := settings.get(name))}
    try:
        config = Config.load(**kept)
    except PlaitError:
        return
    yield from (check for check in all_checks(config, quick=True) if check.name in wanted)


def _lines(run: str, status: str, causes: Sequence[Reason], checks: Sequence[Check], note: str) -> list[str]:
    lines = [f"run {run}: {status}"]
    if not causes and not note:
        lines.append("no step of it failed" + ("; `plait runs resume` continues it" * (status == "interrupted")))
    for reason in causes:
        first = ", ".join(reason.steps[:3]) + (", …" if len(reason.steps) > 3 else "")
        where = f"{pluralise(len(reason.steps), 'step')} ({first}): " if reason.steps else ""
        lines.append(f"{where}{reason.message} ({reason.code})")
        lines += [f"  at {frame}" for frame in reason.frames.splitlines()]
        if reason.remedy:
            lines.append(f"  → {reason.remedy.replace('RUN', run)}")
    lines += [note] * bool(note)
    if checks:
        well = ", ".join(check.name for check in checks if check.grade == "ok")
        lines.append("`plait doctor` checks the usual causes; its result now:")
        lines += [f"  {check.grade} {check.name}: {check.found} → {check.remedy}" for check in checks
                  if check.grade != "ok"]  # fmt: skip
        lines += [f"  ok {well}"] * bool(well)
    return lines
