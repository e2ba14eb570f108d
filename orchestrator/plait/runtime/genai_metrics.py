"""Metrics of model calls, tools and runs, with the names and buckets of OpenTelemetry's GenAI conventions."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from .. import __version__
from ..core.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai/0.1.0"
"""The version of the GenAI conventions that spans and metrics follow."""
Signal = Literal["METRICS", "TRACES"]
INSTALL = "pip install 'plait[otel]'"
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_RUN_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_USAGE = "gen_ai.client.inference"
_KINDS = ("input", "output", "cache_read.input", "reasoning.output")
_OF_A_CALL = (
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "server.address", "server.port"),
    *("gen_ai.tool.name", "error.type"),
)
"""Span attributes that metrics have too, because they have few distinct values."""


def switches(signal: Signal) -> tuple[str, ...]:
    """Return OpenTelemetry's environment variables that turn spans or metrics on."""
    return f"OTEL_{signal}_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"


def wanted(signal: Signal, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment names an exporter or endpoint."""
    names = switches(signal)
    return environment.get(names[0]) != "none" and any(environment.get(name) for name in names)


def meter() -> Meter:
    """Return a meter of the program's provider, else of a new one configured by the environment. Raises `ConfigError`
    if the requested exporter is unknown or not installed."""
    from opentelemetry import metrics
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    provider = metrics.get_meter_provider()
    if not isinstance(provider, MeterProvider) and "Proxy" in type(provider).__name__:
        if not wanted("METRICS"):
            return NoOpMeterProvider().get_meter("plait")
        made = exporters("METRICS")
        readers = [kind if isinstance(kind, MetricReader) else PeriodicExportingMetricReader(kind) for kind in made]
        provider = MeterProvider(metric_readers=readers)
        metrics.set_meter_provider(provider)
    return provider.get_meter("plait", __version__, schema_url=SCHEMA_URL)


def exporters(signal: Signal) -> list[Any]:
    """Return the exporters that `OTEL_…_EXPORTER` names. Raises `ConfigError` for one that is not installed."""
    made: list[Any] = []
    for name in os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp").split(","):
        name = name.strip() or "otlp"
        if name == "otlp":
            own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL")
            protocol = own or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
        if name != "none":
            installed = [*entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=name)]
            if not installed:
                raise ConfigError(f"OTEL_{signal}_EXPORTER: the exporter {name!r} is not installed: {INSTALL}")
            exporter: Any = installed[0].load()
            made.append(exporter(out=sys.stderr) if name == "console" else exporter())
    return made


class GenAIMetrics:
    """The instruments, fed with the attributes of ended spans."""

    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, unit: str, about: str, buckets: tuple[float, ...]) -> Any:
            return meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=list(buckets))

        def counter(name: str) -> Any:
            return meter.create_counter(f"{_USAGE}.usage.{name}_tokens", "{token}", f"Tokens of model calls: {name}")

        self._duration = histogram(f"{_USAGE}.duration", "s", "Duration of a model call", _SECONDS)
        self._first = histogram(f"{_USAGE}.time_to_first_chunk", "s", "Time to the first text of a stream", _SECONDS)
        self._totals = {kind: counter(kind) for kind in _KINDS}
        self._tokens = {
            kind: histogram(f"{_USAGE}.operation.{kind}_tokens", "{token}", f"Tokens of one call: {kind}", _TOKENS)
            for kind in ("input", "output")
        }
        self._tool = histogram("gen_ai.execute_tool.duration", "s", "Duration of a tool's call", _SECONDS)
        self._run = histogram("gen_ai.invoke_agent.duration", "s", "Duration of a run", _RUN_SECONDS)

    def called(self, seconds: float, attributes: Mapping[str, Any]) -> None:
        """Take a model call or a tool's call that has ended."""
        kept = {name: attributes[name] for name in _OF_A_CALL if name in attributes}
        if attributes.get("gen_ai.operation.name") == "execute_tool":
            self._tool.record(seconds, kept)
            return
        self._duration.record(seconds, kept)
        if (first := attributes.get("gen_ai.response.time_to_first_chunk")) is not None:
            self._first.record(first, kept)
        for kind in _KINDS:
            if tokens := attributes.get(f"gen_ai.usage.{kind}_tokens"):
                self._totals[kind].add(tokens, kept)
                if kind in self._tokens:
                    self._tokens[kind].record(tokens, kept)

    def ended(self, seconds: float, attributes: Mapping[str, Any]) -> None:
        """Take a run that has ended."""
        names = ("gen_ai.operation.name", "gen_ai.agent.name", "error.type")
        self._run.record(seconds, {name: attributes[name] for name in names if name in attributes})
