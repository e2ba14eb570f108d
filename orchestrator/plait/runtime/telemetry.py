"""Runs as OpenTelemetry spans, run > step > attempt, with the names of the GenAI semantic conventions (`SCHEMA_URL`).

`Spans` is a driver's watcher: it takes live or replayed events and their actions, and times its spans by the events.
Spans are off by default. Spans omit prompts, texts, arguments and messages by default, and never contain keys or
settings. `opentelemetry` is imported and needed only for spans.
"""

from __future__ import annotations

import contextvars
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import __version__
from ..core.chat import call_id
from ..core.errors import ConfigError
from ..core.events import Action, Event
from ..core.ops import ModelCall
from ..core.record import StepRecord
from ..core.result import NO_USAGE, Failure
from ..core.values import as_text
from ..machine import Machine
from . import genai_metrics
from .genai_messages import answer_message, call_messages, output_message, request_messages
from .genai_metrics import INSTALL, SCHEMA_URL, GenAIMetrics, meter
from .runlog import AttemptRecord, RunDelta, RunLog, RunRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from .client.config import Config
    from .driver.driver import Driver

log = logging.getLogger("plait.telemetry")

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The conventions' switch for prompts and texts."""
_KIND, _INPUT, _OUTPUT = "openinference.span.kind", "input.value", "output.value"
"""OpenInference's attributes: viewers such as Phoenix read the values of steps and runs from them."""
_PROVIDERS = {
    "openai.azure.com": "azure.ai.openai",
    "openai.com": "openai",
    "anthropic.com": "anthropic",
    "api.cohere.com": "cohere",
    "deepseek.com": "deepseek",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}


def wanted(setting: bool | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to send spans: the setting, or by default whether the environment names a destination."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return genai_metrics.wanted("TRACES", environment) if setting is None else setting


def with_content(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether prompts and texts are asked for."""
    return environment.get(CONTENT, "").lower() in ("true", "span_only", "span_and_event")


def tracer() -> Tracer:
    """Return a tracer of the program's provider, else of a new one configured by the environment.

    Raises `ConfigError` if OpenTelemetry or the requested exporter is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(f"spans are asked for, but OpenTelemetry is not installed: {INSTALL}") from None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        made = TracerProvider(resource=resource())
        for exporter in genai_metrics.exporters("TRACES"):
            made.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(made)
        provider = made
    return plait_tracer(provider)


def plait_tracer(provider: TracerProvider) -> Tracer:
    """Return the tracer of plait's spans, which names the versions of plait and of the conventions."""
    return provider.get_tracer("plait", __version__, schema_url=SCHEMA_URL)


def watch(driver: Driver, config: Config) -> None:
    """Make spans of all runs of a driver, if spans are on. Raises `ConfigError`."""
    if not wanted(config.telemetry):
        return
    zero = time.time() - driver.now()
    model = model_name(config.worker, config.model, "model" in config.model_fields_set)
    servers = {worker.name: url for worker in driver.workers if (url := _server_of(worker))}
    made = Spans(
        tracer(), lambda at: zero + at, model=model, server=servers, content=with_content(),
        metrics=GenAIMetrics(meter()),
    )  # fmt: skip
    driver.watchers.append(made)
    driver.traced = made


def _server_of(worker: object) -> str | None:
    """Return the address of a worker's server, if it has one."""
    while (inner := getattr(worker, "inner", None)) is not None:
        worker = inner
    url: object = getattr(worker, "base_url", None)
    return url if isinstance(url, str) else None


def model_name(worker: str, model: str, chosen: bool) -> str:
    """Return the name of a model; for a folder, only the last part, since a path may be private. Empty for a server
    that chooses its model, unless the user has `chosen` one."""
    if worker not in ("ray", "engine") and not chosen:
        return ""
    return Path(model).name if Path(model).is_absolute() else model


def resource() -> Any:
    """Return the resource attributes of all spans of this program."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "plait"})


@dataclass(slots=True)
class _RunSpans:
    """Spans of a run that has not ended."""

    span: Span
    session: str
    steps: dict[str, Span] = field(default_factory=dict[str, "Span"])
    values: dict[str, str] = field(default_factory=dict[str, str])
    """Values of steps, if spans include texts: the inputs of joins."""


class Spans:
    """A watcher that makes spans. Its errors are logged once and affect no run.

    Args:
        tracer: destination of the spans. wall: turns the events' time into Unix time, both in seconds. model: name of
        the model, for requests that name none; if empty, the first that the worker has reported. server: address of the
        model's server, if any; or the address of each worker's server, by worker name. content: whether spans include
        prompts, texts, arguments and messages. only: make spans of this run only; default: all runs. metrics: receives
        ended runs, steps and attempts.
    """

    def __init__(
        self,
        tracer: Tracer,
        wall: Callable[[float], float],
        *,
        model: str = "",
        server: str | Mapping[str, str] | None = None,
        content: bool = False,
        only: str | None = None,
        metrics: GenAIMetrics | None = None,
    ) -> None:
        self._tracer = tracer
        self._wall = wall
        self._model = model
        self._servers, self._metrics = server, metrics
        self._content = content
        self._log = RunLog(None if only is None else [only])
        self._runs: dict[str, _RunSpans] = {}
        self._attempts: dict[int, Span] = {}
        self._failed = False

    def __call__(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        """Take one event, the machine after it, and the actions."""
        if self._failed:
            return
        try:
            self._take(self._log.take(event, machine, actions))
        except Exception as error:  # a run is worth more than its spans
            self._failed = True
            log.warning("no more spans are made: %s: %s", type(error).__name__, error)

    def close(self, at: float) -> None:
        """End all open spans at the events' time `at`."""
        for span in self._attempts.values():
            span.end(self._ns(at))
        for run in self._runs.values():
            for step in run.steps.values():
                if step.is_recording():
                    step.end(self._ns(at))
            run.span.set_attribute("plait.status", "unfinished")
            run.span.end(self._ns(at))
        self._attempts.clear()
        self._runs.clear()

    def _take(self, delta: RunDelta) -> None:
        at = delta.at
        for run in delta.began:
            self._runs[run.id] = _RunSpans(self._run_span(run, at), run.request.session)
        moved: list[tuple[RunRecord, StepRecord]] = []
        for run, step in delta.steps():
            if step.moves:
                moved.append((run, step))
            else:
                spans = self._runs[run.id]
                spans.steps[step.step] = self._step_span(step, spans, at)
        for attempt in delta.ended:
            self._attempt_ended(attempt, at)
        for attempt in delta.started:
            self._attempts[attempt.id] = self._attempt_span(attempt, at)
        for attempt in delta.stopping:
            stop = {"plait.cause": attempt.stop_cause or "", "plait.reason": attempt.stop_reason}
            self._attempts[attempt.id].add_event("plait.stop", stop, self._ns(at))
        for run, step in moved:
            self._moved(run, step)
        for run in delta.finished:
            self._finished(run)

    def _ns(self, at: float) -> int:
        return int(self._wall(at) * 1e9)

    def _span(self, name: str, under: Span | None, at: float, attributes: dict[str, Any], client: bool = False) -> Span:
        from opentelemetry import trace

        context = trace.set_span_in_context(under) if under is not None else None
        kind = trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL
        known = {key: value for key, value in attributes.items() if value is not None and value != ""}
        return self._tracer.start_span(name, context, kind, known, start_time=self._ns(at))

    # -- runs and steps ------------------------------------------------------------------------------------------------

    def _run_span(self, run: RunRecord, at: float) -> Span:
        if run.plan is None:  # submitted to another machine, which began its span
            return self._span("invoke_workflow", None, at, {"plait.run": run.id, "plait.resumed": True})
        request = run.request
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.agent.name": request.planner.name,
            "gen_ai.conversation.id": request.session,
            _KIND: "AGENT",
            "plait.run": run.id,
            "plait.task": request.task.name,
            "plait.planner": request.planner.name,
            "plait.policies": [policy.name for policy in request.policies],
            "plait.seed": request.seed,
        }
        if self._content:
            attributes |= {**request_messages(request), _INPUT: request.text}
        return self._span(f"invoke_workflow {request.planner.name}", None, run.began, attributes)

    def _step_span(self, step: StepRecord, run: _RunSpans, at: float) -> Span:
        op = step.plan.op if step.plan is not None else None
        attributes = {
            "plait.run": _run_of(step),
            "plait.step": step.step,
            "plait.step.kind": step.kind,
            "plait.step.owner": step.owner,
            "plait.step.needs": list(step.needs),
            "plait.step.after": step.after,
            "plait.step.merge": op.merge.name if op is not None and op.kind == "join" else None,
            "plait.step.label": step.label if self._content else None,
            _KIND: "CHAIN",
        }
        if step.plan is not None and step.plan.expands:  # what it says becomes more of the plan
            attributes["gen_ai.operation.name"] = "plan"
            return self._span(f"plan {step.name}", run.span, at, attributes)
        return self._span(f"step {step.name}", run.span, at, attributes)

    def _moved(self, run: RunRecord, step: StepRecord) -> None:
        span = self._runs[run.id].steps.get(step.step)
        if span is None:
            return
        after, state, reason = step.moves[-1]
        at = run.began + after
        if not step.ended:
            # The reason for waiting again may quote a model or tool; for `running`, it is a worker's name.
            told = reason and (self._content or state == "running")
            span.add_event(f"plait.{state}", {"plait.reason": reason} if told else None, self._ns(at))
            return
        span.set_attribute("plait.step.state", state)
        span.set_attribute("plait.step.tries", step.tries)
        if state == "cancelled":
            span.set_attribute("plait.cause", step.cause or "")
            span.set_attribute("plait.reason", reason)
        if step.failure is not None:
            self._fails(span, step.failure)
        self._join_branches(self._runs[run.id], step, span)
        span.end(self._ns(at))

    def _join_branches(self, run: _RunSpans, step: StepRecord, span: Span) -> None:
        """Link a step that has ended to the steps that it read, and keep its value for those that read it."""
        for need in step.needs:
            if need in run.steps:
                span.add_link(run.steps[need].get_span_context(), {"plait.step": need})
        if self._content:
            if step.kind == "join":
                span.set_attribute(_INPUT, json.dumps({need: run.values.get(need) for need in step.needs}))
            if step.output is not None or step.state == "done":
                run.values[step.step] = as_text(step.output)
                span.set_attribute(_OUTPUT, run.values[step.step])
            if step.why:
                span.set_attribute("plait.step.why", step.why)

    def _finished(self, run: RunRecord) -> None:
        spans, finish, at = self._runs.pop(run.id), run.finish, run.now
        assert finish is not None
        for span in spans.steps.values():
            if span.is_recording():
                span.end(self._ns(at))
        span, usage = spans.span, finish.usage
        outcome: dict[str, Any] = {
            "plait.status": finish.status,
            "plait.steps": finish.steps,
            "plait.critical_path_tokens": finish.critical_path_tokens,
            "plait.usage.cancelled_tokens": usage.cancelled,
            **_usage(usage.prompt, usage.cached, usage.completion),
        }
        if usage.cost:
            outcome["plait.usage.cost"] = usage.cost
        if self._content and finish.result is not None:
            outcome[_OUTPUT] = text = as_text(finish.result.value)
            outcome["gen_ai.output.messages"] = answer_message(text)
        span.set_attributes(outcome)
        if finish.failure is not None and finish.status != "partial":
            self._fails(span, finish.failure)
        span.end(self._ns(at))
        if self._metrics is not None:
            self._metrics.ended(run.seconds, getattr(span, "attributes", None) or {})

    def traceparent(self, attempt: int) -> str:
        """Return an attempt's span as a `traceparent` header (W3C Trace Context); empty without a span."""
        span = self._attempts.get(attempt)
        if span is None:
            return ""
        context = span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def enter(self, attempt: int, context: contextvars.Context | None) -> contextvars.Context | None:
        """Return a copy of a context in which an attempt's span is the current one, so that spans of tools are below
        it."""
        from opentelemetry import context as current
        from opentelemetry.trace import set_span_in_context

        if (span := self._attempts.get(attempt)) is None:
            return context
        inside = contextvars.copy_context() if context is None else context.copy()
        inside.run(lambda: current.attach(set_span_in_context(span)))
        return inside

    # -- attempts ------------------------------------------------------------------------------------------------------

    def _attempt_span(self, attempt: AttemptRecord, at: float) -> Span:
        run, op = self._runs[attempt.run], attempt.op
        attributes: dict[str, Any] = {
            "plait.run": attempt.run,
            "plait.step": attempt.step,
            "plait.attempt": attempt.id,
            "plait.worker": attempt.worker,
            "gen_ai.conversation.id": run.session,
        }
        if isinstance(op, ModelCall):
            name, more = self._request(op, attempt.worker)
            given = "".join([part.text for part in op.parts if part.kind != "ref"]) if self._content else ""
        else:
            given = json.dumps(op.args) if self._content else ""
            name = f"execute_tool {op.tool}"
            more = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": op.tool,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call_id_of(attempt.step),
                "gen_ai.tool.call.arguments": given,
            }
        under = run.steps.get(attempt.step, run.span)
        if given and attempt.step in run.steps:
            under.set_attribute(_INPUT, given)
        return self._span(name, under, at, {**attributes, **more, _INPUT: given}, client=isinstance(op, ModelCall))

    def _request(self, op: ModelCall, worker: str) -> tuple[str, dict[str, Any]]:
        sampling = op.sampling
        operation = "chat" if op.chat else "text_completion"
        there = self._log.workers.get(worker)
        model = op.model or self._model or next(iter(there.models if there is not None else ()), "")
        server = self._servers if isinstance(self._servers, str) else (self._servers or {}).get(worker)
        return f"{operation} {model}".strip(), {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": provider(server, worker),
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k or None,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.stop_sequences": list(sampling.stop) or None,
            "gen_ai.request.stream": bool(op.stream),
            **(call_messages(op) if self._content else {}),
            **_address(server),
        }

    def _attempt_ended(self, attempt: AttemptRecord, at: float) -> None:
        span = self._attempts.pop(attempt.id)
        span.set_attribute("plait.attempt.end", attempt.ending)
        usage, result, thinks = attempt.counts.billed or NO_USAGE, attempt.result, attempt.op.kind == "think"
        if attempt.ending == "lost":
            self._fails(span, Failure(kind="WorkerLost", message="the worker went away"))
        elif thinks:
            span.set_attributes(_usage(usage.prompt, usage.cached, usage.completion))
            if usage.thoughts:
                span.set_attribute("gen_ai.usage.reasoning.output_tokens", usage.thoughts)
            if attempt.first is not None:  # it was streamed
                span.set_attribute("gen_ai.response.time_to_first_chunk", attempt.first - attempt.start)
        if attempt.failure is not None:
            self._fails(span, attempt.failure)
        if result is not None:
            text = as_text(result.value)
            message, reason = (text, "") if attempt.op.kind == "call" else output_message(result, attempt.op)
            answer = {"finish_reasons": [reason] if reason else (), "id": result.response_id, "model": result.model}
            span.set_attributes({f"gen_ai.response.{name}": value for name, value in answer.items() if value})
            if self._content:
                span.set_attribute("gen_ai.output.messages" if thinks else "gen_ai.tool.call.result", message)
                span.set_attribute(_OUTPUT, text)
        span.end(self._ns(at))
        if self._metrics is not None:
            self._metrics.called((attempt.end or 0.0) - attempt.start, getattr(span, "attributes", None) or {})

    def _fails(self, span: Span, failure: Failure) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", failure.kind)
        # Messages quote models and tools.
        span.set_status(Status(StatusCode.ERROR, failure.message if self._content else failure.kind))


def provider(server: str | None, worker: str) -> str:
    """Return a model's provider, by the conventions' name if any: by its server's address, or by the worker's name."""
    host = urlsplit(server or "").hostname or ""
    for ending, name in _PROVIDERS.items():
        if host == ending or host.endswith(f".{ending}"):
            return name
    kind = "http" if server else worker.rstrip("-0123456789")
    return {"": "plait", "engine": "vllm", "ray": "vllm", "http": "openai_compatible"}.get(kind, kind)


def call_id_of(step: str) -> str:
    """Return the id of the call that a step makes: the beginning of its name, or of a task of a plan the id of the call
    with its number; empty for other steps."""
    name = re.split("[/:.]", step)[-1].partition("-")[0]
    if name.isdecimal():
        return call_id(int(name))
    return name if name.startswith("call") and name[4:].isdecimal() else ""


def _run_of(step: StepRecord) -> str:
    return step.step.partition(":")[0]


def _address(url: str | None) -> dict[str, str | int]:
    """Return a server's address attributes by the conventions, without other parts of the URL such as a password."""
    parts = urlsplit(url or "")
    if not parts.hostname:
        return {}
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname, "server.port": port}


def _usage(prompt: int, cached: int, completion: int) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.cache_read.input_tokens": cached,
        "gen_ai.usage.output_tokens": completion,
    }
