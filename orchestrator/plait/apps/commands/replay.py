"""`plait runs replay`: whether the events of a journal still lead to the recorded actions. Runs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...core.addresses import allow
from ...core.messages import pluralise
from ...runtime.client.config import Config
from ...runtime.journal.code_trust import refuse_names
from ...runtime.journal.replay import ReplayReport, replay as replayed
from ...runtime.plugins.loader import Plugins
from ..common.options import Allow, Json
from ..common.output import opened

_SHOWN = 600


def replay(
    file: Annotated[Path, typer.Argument(help="Journal file that `--journal` wrote.")],
    until: Annotated[int | None, typer.Option(min=1, help="Number of the last event to replay.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Test the machine's invariants after each event.")] = False,
    allowed: Allow = None,
    as_json: Json = False,
) -> None:
    """Feed a journal's events to a new machine and compare what it does; exit code 1 if that differs.

    No worker is started.
    """
    allow(*Config.load().allow, *(allowed or ()))
    refuse_names(file)
    with opened(as_json) as output:
        report = replayed(file, Plugins(), until=until, check=check)
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
