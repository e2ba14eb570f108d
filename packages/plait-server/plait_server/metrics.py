"""Prometheus metrics of the server, `plait_…`. Labels have few values: planners and tenants by the settings' names."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from plait.core.events import Action, Event
from plait.core.interfaces import Worker, offer
from plait.core.result import Usage
from plait.core.states import State
from plait.machine import Machine
from plait.runtime.runlog import RunLog, RunRecord

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_KINDS = ("prompt", "cached", "completion", "cancelled")
_ERRORS = ("EngineError", "Overloaded", "Rejected", "ContextOverflow", "WorkerLost", "CutInThoughts", "CutInForm")
_STATUSES = (200, 400, 401, 403, 404, 405, 408, 409, 413, 429, 499, 500, 503)


class Metrics:
    """A watcher of the orchestrator, and what endpoints add."""

    def __init__(
        self,
        planners: Sequence[str],
        tenants: Sequence[str],
        workers: Sequence[Worker],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._planners, self._tenants, self._workers = set(planners), set(tenants), tuple(workers)
        self._registry = made = CollectorRegistry()
        self._requests = Counter("plait_requests", "Requests answered", ("endpoint", "status"), registry=made)
        self._answered = Histogram(
            "plait_request_seconds", "Seconds until a request was answered whole", ("endpoint",),
            buckets=_SECONDS, registry=made,
        )  # fmt: skip
        self._runs = Counter("plait_runs", "Runs that ended", ("planner", "status"), registry=made)
        self._run_seconds = Histogram(
            "plait_run_seconds", "Seconds of a run", ("planner",), buckets=_SECONDS, registry=made
        )
        self._first = Histogram(
            "plait_first_text_seconds", "Seconds until a run's first text", buckets=_SECONDS, registry=made
        )
        self._steps = Counter("plait_steps", "Steps that ended", ("kind", "end"), registry=made)
        self._tokens = Counter(
            "plait_tokens", "Tokens by kind: prompt, cached, generated, wasted", ("kind",), registry=made
        )
        self._of_model = Counter("plait_model_tokens", "The same, by model", ("model", "kind"), registry=made)
        self._cost = Counter("plait_cost", "What model steps cost, in the prices' unit", ("model",), registry=made)
        self._machine: Machine | None = None
        self._of_tenant = Counter("plait_tenant_tokens", "Generated tokens", ("tenant",), registry=made)
        self._gone = Counter("plait_clients_gone", "Clients that went away before their answer", registry=made)
        self._attempts = Counter("plait_attempts", "Attempts at steps that ended", ("end",), registry=made)
        self._errors = Counter(
            "plait_upstream_errors", "Attempts that ended in an error of the worker", ("worker", "kind"), registry=made
        )
        for end in ("succeeded", "failed", "stopped", "lost"):
            self._attempts.labels(end)
        for worker in self._workers:
            for kind in ("EngineError", "Overloaded", "WorkerLost"):
                self._errors.labels(worker.name, kind)
        ready = Gauge("plait_ready", "Whether the server can serve", registry=made)
        ready.set_function(lambda: float(is_ready()))
        self.live = Gauge("plait_runs_live", "Number of running runs", registry=made)
        self._log = RunLog()
        made.register(_Workers(self._worker_metrics))

    def text(self) -> bytes:
        """Return all in Prometheus' form."""
        return generate_latest(self._registry)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(endpoint, str(status if status in _STATUSES else status // 100 * 100)).inc()
        self._answered.labels(endpoint).observe(seconds)
        if status == 499:
            self._gone.inc()

    def used(self, tenant: str, tokens: int) -> None:
        """Count a tenant's tokens."""
        self._of_tenant.labels(tenant if tenant in self._tenants else "other").inc(tokens)

    def __call__(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        """Take one event of the driver's."""
        self._machine = machine
        delta = self._log.take(event, machine, actions)
        if delta.began or delta.finished:
            self.live.set(len(self._log.runs))
        if delta.first is not None and delta.first.first is not None:
            self._first.observe(delta.first.first)
        for attempt in delta.ended:
            self._attempts.labels(attempt.ending).inc()
            if attempt.ending in ("failed", "lost") and attempt.op.kind == "think":
                kind = "WorkerLost" if attempt.failure is None else attempt.failure.kind
                self._errors.labels(attempt.worker, kind if kind in _ERRORS else "other").inc()
        for run in delta.finished:
            self._finished(run)

    def _finished(self, run: RunRecord) -> None:
        finish = run.finish
        assert finish is not None
        name = run.request.planner.name
        planner = name if name in self._planners else "other"
        for step in run.steps:
            self._steps.labels(step.kind, step.state).inc()
            if step.plan is not None and step.plan.op.kind == "think":
                self._spent(self._model(step.plan.op.model), step.spent)
        self._runs.labels(planner, finish.status).inc()
        self._run_seconds.labels(planner).observe(run.seconds)
        for kind in _KINDS:
            self._tokens.labels(kind).inc(getattr(finish.usage, kind))

    def _spent(self, model: str, usage: Usage) -> None:
        for kind in _KINDS:
            self._of_model.labels(model, kind).inc(getattr(usage, kind))
        self._cost.labels(model).inc(usage.cost)

    def _model(self, name: str | None) -> str:
        """Return the label of a model that a step names: that of the only one there is where it names none."""
        there = dict.fromkeys(model for worker in self._workers for model in offer(worker).models)
        if name is None and len(there) == 1:
            return next(iter(there))
        return "any" if name is None else name if name in there else "other"

    def _worker_metrics(self) -> list[Metric]:
        slots = GaugeMetricFamily("plait_worker_slots", "Attempts that a worker takes at once", labels=["worker"])
        busy = GaugeMetricFamily("plait_worker_busy", "Attempts that a worker has", labels=["worker"])
        attempts = Counts(attempt.worker for attempt in self._log.live.values())
        up = GaugeMetricFamily("plait_worker_up", "Whether a worker answers", labels=["worker"])
        states = {} if self._machine is None else self._machine.workers
        for worker in self._workers:
            up.add_metric([worker.name], float(worker.name in states and states[worker.name].up))
            slots.add_metric([worker.name], offer(worker).slots)
            busy.add_metric([worker.name], attempts[worker.name])
        waiting = GaugeMetricFamily(
            "plait_model_steps_waiting", "Model steps that are ready and have no slot", labels=["model"]
        )
        counts = Counts({self._model(None): 0})
        for run in () if self._machine is None else self._machine.runs.values():
            for node in run.nodes if run.ready else ():
                if node.state is State.READY and node.step.op.kind == "think":
                    counts[self._model(node.step.op.model)] += 1
        for model, count in counts.items():
            waiting.add_metric([model], count)
        return [up, slots, busy, waiting]


class _Workers:
    """Asks for a metric when it is scraped."""

    def __init__(self, ask: Callable[[], list[Metric]]) -> None:
        self._ask = ask

    def collect(self) -> list[Metric]:
        """Return the current metrics."""
        return self._ask()
