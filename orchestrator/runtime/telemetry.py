"""Runs as OpenTelemetry spans, run > step > attempt, with the attribute names of the GenAI semantic conventions.

`Spans` is a driver's watcher: it takes events and what followed, live or from a replay, and times its spans by the
events. Decides what is said of a run, step and attempt, and whether anything is said at all: it is off by default.
Prompts, texts, arguments and messages are left out unless asked for, and no setting is ever said, so neither is a key.
`opentelemetry` is imported when spans are wanted, and not needed otherwise.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError
from ..core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
    Failed,
    Finish,
    Job,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WorkerDown,
)
from ..core.plan import Call, Think
from ..core.result import Failure
from ..core.values import as_text
from ..machine.machine import Machine
from ..machine.records import Node, Run

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from .client.config import Config
    from .driver.driver import Driver

log = logging.getLogger("plait.telemetry")

SWITCHES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables that mean somebody wants spans, by OpenTelemetry's own conventions."""
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The conventions' switch for prompts and texts."""
_INSTALL = "pip install 'plait[otel]'"


def wanted(setting: bool | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether spans are to be sent: as set, else if the environment names where to."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if setting is not None:
        return setting
    return any(environment.get(name, "none") not in ("", "none") for name in SWITCHES)


def with_content(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether prompts and texts are asked for."""
    return environment.get(CONTENT, "").lower() in ("true", "span_only", "span_and_event")


def tracer() -> Tracer:
    """Return a tracer: of the provider that the program has set up, else of one made as the environment says.

    Raises `ConfigError` where OpenTelemetry or the exporter asked for is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(f"spans are asked for, but OpenTelemetry is not installed: {_INSTALL}") from None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        made = TracerProvider(resource=resource())
        for exporter in exporters():
            made.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(made)
        provider = made
    return provider.get_tracer("plait")


def watch(driver: Driver, config: Config) -> None:
    """Have spans made of all runs of a driver, if they are wanted. Raises `ConfigError`."""
    if not wanted(config.telemetry):
        return
    zero = time.time() - driver.now()
    spans = Spans(tracer(), lambda at: zero + at, model=model_name(config.model), content=with_content())
    driver.watchers.append(spans)


def model_name(model: str) -> str:
    """Return what spans call a model: of a folder the last part, as paths say where somebody keeps things."""
    return Path(model).name if Path(model).is_absolute() else model


def resource() -> Any:
    """Return what all spans of this program say of it."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "plait"})


def exporters() -> list[Any]:
    """Return what spans are sent by, as `OTEL_TRACES_EXPORTER` says. Raises `ConfigError`."""
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    made: list[Any] = []
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        match name.strip():
            case "console":
                made.append(ConsoleSpanExporter(out=sys.stderr))
            case "otlp" | "":
                made.append(_otlp())
            case "none":
                pass
            case other:
                raise ConfigError(f"OTEL_TRACES_EXPORTER names {other!r}: plait knows otlp, console and none")
    return made


def _otlp() -> Any:
    import importlib

    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    kind = "grpc" if protocol == "grpc" else "http"
    try:
        module = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter")
    except ImportError:
        raise ConfigError(
            f"spans are to be sent by OTLP over {kind}, for which nothing is installed: {_INSTALL}"
        ) from None
    return module.OTLPSpanExporter()


@dataclass(slots=True)
class _Open:
    """Spans of a run that has not ended."""

    span: Span
    seen: int = 0
    steps: dict[str, Span] = field(default_factory=dict[str, "Span"])


class Spans:
    """A watcher that makes spans. What goes wrong in it is logged once and disturbs no run.

    Args:
        tracer: where spans go.
        wall: turns the events' time into Unix time, both in seconds.
        model: name of the model, for requests that name none.
        content: whether prompts, texts, arguments and messages are said too.
        only: the one run to make spans of; all by default.
    """

    def __init__(
        self,
        tracer: Tracer,
        wall: Callable[[float], float],
        *,
        model: str = "",
        content: bool = False,
        only: str | None = None,
    ) -> None:
        self._tracer = tracer
        self._wall = wall
        self._model = model
        self._content = content
        self._only = only
        self._runs: dict[str, _Open] = {}
        self._attempts: dict[int, tuple[Span, str, str]] = {}
        self._failed = False

    def __call__(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        """Take one event, the machine after it, and what followed."""
        if self._failed:
            return
        try:
            self._take(event, machine, actions)
        except Exception as error:  # a run is worth more than its spans
            self._failed = True
            log.warning("no more spans are made: %s: %s", type(error).__name__, error)

    def close(self, at: float) -> None:
        """End the spans of what has not ended, `at` being the events' time."""
        for span, _, _ in self._attempts.values():
            span.end(self._ns(at))
        for run in self._runs.values():
            for step in run.steps.values():
                if step.is_recording():
                    step.end(self._ns(at))
            run.span.set_attribute("plait.status", "unfinished")
            run.span.end(self._ns(at))
        self._attempts.clear()
        self._runs.clear()

    def _take(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        at = machine.now
        if isinstance(event, Submitted) and self._only in (None, event.run) and event.run not in self._runs:
            self._runs[event.run] = _Open(self._run_span(event))
        for run in [*machine.runs.values(), *machine.retired]:
            if self._only in (None, run.id):
                self._entered(run, at)
        if isinstance(event, Succeeded | Failed | Stopped):
            self._attempt_ended(event, at)
        for action in actions:
            match action:
                case Dispatch() if action.job.run in self._runs:
                    self._attempt_began(action, at)
                case Cancel() if action.attempt in self._attempts:
                    self._attempts[action.attempt][0].add_event(
                        "plait.stop", {"plait.reason": action.reason}, self._ns(at)
                    )
                case _:
                    pass
        if isinstance(event, Tick | WorkerDown):
            for attempt in [each for each in self._attempts if each not in machine.attempts]:
                self._lost(attempt, at)
        retired = {node.id: node for run in machine.retired for node in run.nodes}
        for when, step, _, state, reason in machine.moves:
            node = machine.nodes.get(step) or retired.get(step)
            if node is not None and node.run.id in self._runs:
                self._moved(node, self._runs[node.run.id], when, state, reason)
        for action in actions:
            if isinstance(action, Finish) and action.run in self._runs:
                self._finished(action, at)

    def _ns(self, at: float) -> int:
        return int(self._wall(at) * 1e9)

    def _span(self, name: str, under: Span | None, at: float, attributes: dict[str, Any], client: bool = False) -> Span:
        from opentelemetry import trace

        context = trace.set_span_in_context(under) if under is not None else None
        kind = trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL
        said = {key: value for key, value in attributes.items() if value is not None and value != ""}
        return self._tracer.start_span(name, context, kind, said, start_time=self._ns(at))

    # -- runs and steps ------------------------------------------------------------------------------------------------

    def _run_span(self, event: Submitted) -> Span:
        request = event.request
        attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": request.planner.name,
            "plait.run": event.run,
            "plait.task": request.task.name,
            "plait.planner": request.planner.name,
            "plait.policies": [policy.name for policy in request.policies],
            "plait.seed": request.seed,
            "gen_ai.input.messages": _messages("user", request.text) if self._content else None,
        }
        return self._span(f"invoke_workflow {request.planner.name}", None, event.at, attributes)

    def _entered(self, run: Run, at: float) -> None:
        """Open a span for each step that has entered the plan; of a run that goes on, also for the run."""
        if run.id not in self._runs:
            span = self._span("invoke_workflow", None, at, {"plait.run": run.id, "plait.resumed": True})
            self._runs[run.id] = _Open(span)
        record = self._runs[run.id]
        for node in run.nodes[record.seen :]:
            if not node.ended or not node.story or node.story[-1][0] >= at:
                record.steps[node.id] = self._step_span(node, record, at)
        record.seen = len(run.nodes)

    def _step_span(self, node: Node, record: _Open, at: float) -> Span:
        owner = node.scope.owner
        attributes = {
            "plait.run": node.run.id,
            "plait.step": node.id,
            "plait.step.kind": node.step.op.kind,
            "plait.step.owner": owner.id if owner is not None else None,
            "plait.step.needs": [dep.id for dep in node.deps],
            "plait.step.after": node.after.id if node.after is not None else None,
            "plait.step.merge": node.step.op.merge.name if node.step.op.kind == "join" else None,
            "plait.step.label": node.step.label if self._content else None,
        }
        return self._span(f"step {node.step.name}", record.span, at, attributes)

    def _moved(self, node: Node, record: _Open, at: float, state: str, reason: str) -> None:
        span = record.steps.get(node.id)
        if span is None:
            return
        if not node.ended or state not in ("done", "failed", "cancelled"):
            # Why it waits again quotes what a model or tool said; where it runs is a worker's name.
            told = reason and (self._content or state == "running")
            span.add_event(f"plait.{state}", {"plait.reason": reason} if told else None, self._ns(at))
            return
        span.set_attribute("plait.step.state", state)
        span.set_attribute("plait.step.tries", node.tries)
        if state == "cancelled":
            span.set_attribute("plait.reason", reason)
        if node.failure is not None:
            self._fails(span, node.failure)
        if self._content and node.own is not None:
            span.set_attribute("plait.step.value", as_text(node.own.value))
            if node.own.why:
                span.set_attribute("plait.step.why", node.own.why)
        span.end(self._ns(at))

    def _finished(self, action: Finish, at: float) -> None:
        record = self._runs.pop(action.run)
        for span in record.steps.values():
            if span.is_recording():
                span.end(self._ns(at))
        span, usage = record.span, action.usage
        said: dict[str, Any] = {
            "plait.status": action.status,
            "plait.steps": action.steps,
            "plait.critical_path_tokens": action.critical_path_tokens,
            "plait.usage.cancelled_tokens": usage.cancelled,
            **_usage(usage.prompt, usage.cached, usage.completion),
        }
        if self._content and action.result is not None:
            said["gen_ai.output.messages"] = _messages("assistant", as_text(action.result.value))
        span.set_attributes(said)
        if action.failure is not None and action.status != "partial":
            self._fails(span, action.failure)
        span.end(self._ns(at))

    # -- attempts ------------------------------------------------------------------------------------------------------

    def _attempt_began(self, action: Dispatch, at: float) -> None:
        job, op = action.job, action.job.op
        under = self._runs[job.run].steps.get(job.step, self._runs[job.run].span)
        shared = {
            "plait.run": job.run,
            "plait.step": job.step,
            "plait.attempt": job.attempt,
            "plait.worker": action.worker,
        }
        match op:
            case Think():
                name, attributes = self._request(op, job)
            case Call():
                name = f"execute_tool {op.tool}"
                attributes = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": op.tool,
                    "gen_ai.tool.type": "function",
                    "gen_ai.tool.call.id": str(job.attempt),
                    "gen_ai.tool.call.arguments": json.dumps(op.args) if self._content else None,
                }
        span = self._span(name, under, at, {**shared, **attributes}, client=isinstance(op, Think))
        self._attempts[job.attempt] = (span, job.run, op.kind)

    def _request(self, op: Think, job: Job) -> tuple[str, dict[str, Any]]:
        sampling = op.sampling
        operation = "chat" if op.chat else "text_completion"
        model = getattr(op, "model", None) or self._model
        text = "".join(part.text if part.kind == "text" else "" for part in op.prompt)
        return f"{operation} {model}".strip(), {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "plait",
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k or None,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.stop_sequences": list(sampling.stop) or None,
            "gen_ai.request.stream": op.stream,
            "gen_ai.input.messages": _messages("user", text) if self._content else None,
        }

    def _attempt_ended(self, event: Succeeded | Failed | Stopped, at: float) -> None:
        found = self._attempts.pop(event.attempt, None)
        if found is None:
            return
        span, _, kind = found
        usage = event.usage if isinstance(event, Failed) else event.result.usage
        span.set_attribute("plait.attempt.end", event.kind)
        if kind == "think":
            span.set_attributes(_usage(usage.prompt, usage.cached, usage.completion))
        if isinstance(event, Failed):
            self._fails(span, event.failure)
        else:
            result = event.result
            if kind == "think":
                span.set_attribute("gen_ai.response.finish_reasons", [result.finish])
            if self._content:
                said = as_text(result.value)
                name = "gen_ai.output.messages" if kind == "think" else "gen_ai.tool.call.result"
                span.set_attribute(name, _messages("assistant", said) if kind == "think" else said)
        span.end(self._ns(at))

    def _lost(self, attempt: int, at: float) -> None:
        span, _, _ = self._attempts.pop(attempt)
        span.set_attribute("plait.attempt.end", "lost")
        self._fails(span, Failure(kind="WorkerLost", message="the worker went away"))
        span.end(self._ns(at))

    def _fails(self, span: Span, failure: Failure) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", failure.kind)
        # Messages quote what models and tools said.
        span.set_status(Status(StatusCode.ERROR, failure.message if self._content else failure.kind))


def _usage(prompt: int, cached: int, completion: int) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.cache_read.input_tokens": cached,
        "gen_ai.usage.output_tokens": completion,
    }


def _messages(role: str, text: str) -> str:
    """Return a text as the conventions write messages: JSON, a list of messages of parts."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
