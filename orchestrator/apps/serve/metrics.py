"""Prometheus metrics of the server, `plait_…`. Labels have few values: planners and tenants by the settings' names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from ...core.events import Action, Dispatch, Event, Failed, Finish, Progressed, Stopped, Submitted, Succeeded
from ...core.interfaces import Worker, offer
from ...machine import Machine, step_records

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_STATUSES = (200, 400, 401, 403, 404, 405, 408, 409, 413, 429, 499, 500, 503)


class Metrics:
    """A watcher of the orchestrator, and what endpoints add."""

    def __init__(self, planners: Sequence[str], tenants: Sequence[str], workers: Sequence[Worker]) -> None:
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
            "plait_tokens", "Tokens: of prompts, of those cached, generated, of those read by nobody", ("kind",),
            registry=made,
        )  # fmt: skip
        self._of_tenant = Counter("plait_tenant_tokens", "Generated tokens", ("tenant",), registry=made)
        self._gone = Counter("plait_clients_gone", "Clients that went away before their answer", registry=made)
        self.live = Gauge("plait_runs_live", "Runs under way", registry=made)
        self._began: dict[str, tuple[float, str, bool]] = {}
        self._attempts: dict[int, tuple[str, str]] = {}
        self._of_run: dict[str, set[int]] = {}
        self._busy: dict[str, int] = {}
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
        match event:
            case Submitted():
                name = event.request.planner.name
                self._began[event.run] = event.at, name if name in self._planners else "other", False
                self.live.set(len(self._began))
            case Progressed():
                self._progressed(event)
            case Succeeded() | Failed() | Stopped():
                self._over(event.attempt)
            case _:
                pass
        for action in actions:
            if isinstance(action, Dispatch):
                self._attempts[action.job.attempt] = action.job.run, action.worker
                self._of_run.setdefault(action.job.run, set()).add(action.job.attempt)
                self._busy[action.worker] = self._busy.get(action.worker, 0) + 1
            elif isinstance(action, Finish):
                self._finished(action, machine)

    def _progressed(self, event: Progressed) -> None:
        run, _ = self._attempts.get(event.attempt, ("", ""))
        began, planner, told = self._began.get(run, (0.0, "", True))
        if not told:
            self._began[run] = began, planner, True
            self._first.observe(event.at - began)

    def _finished(self, finish: Finish, machine: Machine) -> None:
        now, run = machine.now, machine.finished(finish.run)
        for step in step_records(run, 0.0) if run is not None else ():
            self._steps.labels(step.kind, step.state).inc()
        began, planner, _ = self._began.pop(finish.run, (now, "other", True))
        self.live.set(len(self._began))
        self._runs.labels(planner, finish.status).inc()
        self._run_seconds.labels(planner).observe(now - began)
        usage = finish.usage
        for kind, count in (("prompt", usage.prompt), ("cached", usage.cached), ("completion", usage.completion),
                            ("cancelled", usage.cancelled)):  # fmt: skip
            self._tokens.labels(kind).inc(count)
        for attempt in self._of_run.pop(finish.run, ()):  # those that were lost with a worker
            self._over(attempt)

    def _over(self, attempt: int) -> None:
        run, worker = self._attempts.pop(attempt, ("", ""))
        if worker:
            self._busy[worker] -= 1
            of_run = self._of_run.get(run)
            if of_run is not None:
                of_run.discard(attempt)

    def _worker_metrics(self) -> list[Metric]:
        slots = GaugeMetricFamily("plait_worker_slots", "Attempts that a worker takes at once", labels=["worker"])
        busy = GaugeMetricFamily("plait_worker_busy", "Attempts that a worker has", labels=["worker"])
        for worker in self._workers:
            slots.add_metric([worker.name], offer(worker).slots)
            busy.add_metric([worker.name], self._busy.get(worker.name, 0))
        return [slots, busy]


class _Workers:
    """Asks for a metric when it is scraped."""

    def __init__(self, ask: Callable[[], list[Metric]]) -> None:
        self._ask = ask

    def collect(self) -> list[Metric]:
        """Return the metrics as they are now."""
        return self._ask()
