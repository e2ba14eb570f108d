"""A finished run as OpenTelemetry spans, in a file or sent to a collector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ConfigError
from ...core.events import Finish, Submitted
from ...runtime import telemetry
from ...runtime.genai_metrics import exporters
from ...runtime.journal.location import Location
from ...runtime.journal.replay import history
from ...runtime.plugins.loader import Plugins
from ..common.files import write_private
from .model import Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter


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
    tracer = telemetry.plait_tracer(provider)
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

    for target in [exporter] if exporter is not None else exporters("TRACES"):
        for start in range(0, len(spans), 512):
            if target.export(spans[start : start + 512]) is not SpanExportResult.SUCCESS:
                raise ConfigError(
                    f"spans could not be sent by {type(target).__name__}: check OTEL_EXPORTER_OTLP_ENDPOINT and the "
                    "collector there"
                )
        target.shutdown()
