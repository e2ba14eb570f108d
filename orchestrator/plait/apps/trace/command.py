"""`plait runs trace`: a finished run for other people's tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic_core import to_jsonable_python

from ...core.addresses import allow
from ...core.errors import ConfigError, UsageError
from ...core.events import Finish, Submitted
from ...runtime import telemetry
from ...runtime.journal.location import Location
from ...runtime.journal.replay import history
from ...runtime.plugins.loader import Plugins
from ...runtime.runlog import AttemptRecord
from ..common.files import write_private
from ..common.journals import Place, journal_of, place_of
from ..common.options import Allow, Json
from ..common.output import opened
from .atif import atif
from .chrome import chrome_events
from .details import steps_in_detail
from .model import Trace
from .mooncake import mooncake
from .read import default_name, read_trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["export_spans", "trace"]

_LEFT_OUT = ("op", "deltas", "counts", "result", "run")
"""Of an attempt: what the trace does not write, or writes in another form."""


def trace(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, or a journal (its last run); the newest run if left out.")
    ] = "",
    form: Annotated[
        Literal["chrome", "otel", "json", "atif", "mooncake"],
        typer.Option(
            "--format",
            help="chrome: for Perfetto; otel: OpenTelemetry spans; json: the whole record; atif: a trajectory "
            "(Harbor); mooncake: the load on the server, for replays.",
        ),
    ] = "chrome",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output file; plait-ID.FORMAT.json by default.")
    ] = None,
    ray: Annotated[Path | None, typer.Option(metavar="FILE", help="File of ray.timeline() to add (chrome).")] = None,
    send: Annotated[
        bool, typer.Option("--send", help="Send the spans to the address in OTEL_… instead of a file (otel).")
    ] = False,
    texts: Annotated[
        bool | None, typer.Option("--texts/--no-texts", help="Prompts, texts and arguments (otel: off; atif: on).")
    ] = None,
    place: Place = None,
    allowed: Allow = None,
    as_json: Json = False,
) -> None:
    """Write a run as a Chrome trace, as OpenTelemetry spans (one JSON object a line), as plain JSON, as an ATIF
    trajectory, or as the rows of an agentic Mooncake trace."""
    if texts is not None and form not in ("atif", "otel"):
        raise UsageError("--texts and --no-texts go with --format otel or atif: json has texts, the others have none")
    if ray is not None and form != "chrome":
        raise UsageError("--ray goes with --format chrome: Ray's timeline is in that format")
    if send and (form != "otel" or out is not None):
        raise UsageError("--send goes with --format otel and without --out: spans are sent or written")
    allow(*(allowed or ()))
    journal, run_id = journal_of(run, place_of(place))
    with opened(as_json) as output:
        made = read_trace(journal, Plugins(), run_id)
        ending = {"otel": ".otel.jsonl", "json": ".json", "mooncake": ".mooncake.jsonl"}.get(form, f".{form}.json")
        path = (out or default_name(made, ending)).expanduser()
        if form == "otel":
            count = export_spans(journal, made, texts is True, None if send else path)
        elif form == "chrome":
            count = _write_chrome(made, path, ray)
        elif form == "atif":
            write_private(path, json.dumps(atif(made, texts is False), ensure_ascii=False).encode(errors="replace"))
            count = len(made.steps)
        elif form == "mooncake":
            rows = mooncake(made)
            write_private(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
            count = len(rows)
        else:
            write_private(path, json.dumps(_plain(made), ensure_ascii=True).encode())
            count = len(made.steps)
        what = {"otel": "spans", "chrome": "events", "mooncake": "requests"}.get(form, "steps")
        if as_json:
            output.result({"run": made.run, "file": None if send else str(path), what: count})
        else:
            output.people.print(
                f"{'sent' if send else path}: run {made.run}, {count} {what}", soft_wrap=True, markup=False
            )


def _write_chrome(made: Trace, path: Path, ray: Path | None) -> int:
    events = [*_ray_events(ray), *chrome_events(made)]
    write_private(path, json.dumps(events, ensure_ascii=True).encode())
    return len(events)


def _ray_events(path: Path | None) -> list[Any]:
    if path is None:
        return []
    try:
        data = json.loads(path.expanduser().read_text(encoding="utf-8"))
        events = data.get("traceEvents") if isinstance(data, dict) else data
    except OSError as error:
        raise UsageError(f"--ray {path} cannot be read: {error.strerror}") from None
    except ValueError:
        events = None
    if not isinstance(events, list):
        raise UsageError(f"--ray {path} is no timeline: write one with `ray timeline` or ray.timeline(filename=…)")
    return events


def export_spans(
    journal: Location, made: Trace, content: bool, path: Path | None, exporter: SpanExporter | None = None
) -> int:
    """Replay a run into spans and write them to a file, or send them (`path=None`). Return the number of spans.

    Raises `ConfigError` if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    except ImportError:
        raise ConfigError("spans need OpenTelemetry: pip install 'plait[otel]'") from None
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=telemetry.resource(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    began = 0.0
    tracer = provider.get_tracer("plait")
    spans = telemetry.Spans(
        tracer, lambda at: made.wall(at - began), model=made.model, server=made.server, content=content, only=made.run
    )
    now = 0.0
    for moment in history(journal, Plugins(), made.run):
        if isinstance(moment.event, Submitted) and moment.event.run == made.run and not began:
            began = moment.event.at
        now = moment.machine.now
        spans(moment.event, moment.machine, moment.actions)
        if any(isinstance(action, Finish) and action.run == made.run for action in moment.actions):
            break
    spans.close(now)
    finished = memory.get_finished_spans()
    if path is None:
        _send(finished, exporter)
    else:
        lines = "".join(f"{span.to_json(indent=None)}\n" for span in finished)
        write_private(path, lines.encode())
    return len(finished)


def _send(spans: Sequence[ReadableSpan], exporter: SpanExporter | None) -> None:
    from opentelemetry.sdk.trace.export import SpanExportResult

    for target in [exporter] if exporter is not None else telemetry.exporters():
        for start in range(0, len(spans), 512):
            if target.export(spans[start : start + 512]) is not SpanExportResult.SUCCESS:
                raise ConfigError(
                    f"spans could not be sent by {type(target).__name__}: check OTEL_EXPORTER_OTLP_ENDPOINT and the "
                    "collector there"
                )
        target.shutdown()


def _plain(trace: Trace) -> Any:
    """Return a trace as plain JSON."""
    shown = [field.name for field in dataclasses.fields(AttemptRecord) if field.name not in _LEFT_OUT]
    whole = {field.name: getattr(trace, field.name) for field in dataclasses.fields(trace)}
    whole["steps"] = list(steps_in_detail(trace))
    whole["attempts"] = [
        {
            **{name: getattr(attempt, name) for name in shown},
            "progress": attempt.progress(),
            "usage": attempt.usage,
            "finish": "" if attempt.result is None else attempt.result.finish,
            "read": attempt.read,
        }
        for attempt in trace.attempts
    ]
    return to_jsonable_python(whole, inf_nan_mode="constants")
