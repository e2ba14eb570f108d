"""Engines that start and stop with the load under virtual time, by the same `Scaler` that a real pool uses."""

from __future__ import annotations

from plait.core.events import WorkerUp
from plait.runtime.driver.autoscaler import Bounds, Scaler, interrupt_attempts

from .cluster import Cluster
from .latency import WorkerFault

INTERVAL = 0.5
"""Seconds between two checks of the load."""


class ElasticHosts:
    """Starts and stops hosts of a simulated cluster.

    Args: cluster: cluster of the hosts; its first `least` hosts run from the beginning. bounds: as for a real pool.
        start: seconds that an engine takes to start.
    """

    def __init__(self, cluster: Cluster, bounds: Bounds, start: float) -> None:
        self._cluster, self._bounds, self._start = cluster, bounds, start
        self._scaler = Scaler(bounds)
        self._names = list(cluster.batches)[: bounds.most]
        self._starting: set[str] = set()
        self._going: dict[str, float] = {}
        """Time at which a draining engine is removed."""
        self._since: dict[str, float] = {}
        self._seconds = 0.0
        self.changes: int = 0
        """Number of engines that were started or removed."""
        for name in self._names[bounds.least :]:
            cluster.absent.add(name)

    @property
    def engine_seconds(self) -> float:
        """Total time of all engines, starting time included."""
        return self._seconds + sum(self._cluster.now - since for since in self._since.values())

    def begin(self) -> None:
        """Count the running engines, and check the load from now on."""
        self._since = dict.fromkeys(self._names[: self._bounds.least], self._cluster.now)
        self._look()

    def _look(self) -> None:
        cluster = self._cluster
        workers, now = cluster.machine.workers, cluster.now
        for name, until in list(self._going.items()):
            if not workers[name].running or now >= until:
                self._gone(name)
        here = [name for name in self._names if name in self._since and name not in self._going]
        slots = cluster.batches[self._names[0]].host.slots
        wanted = self._scaler.choose_count(now, cluster.machine.model_steps, slots, len(here))
        for name in self._names:
            if len(here) < wanted and name not in self._since:
                here.append(name)
                self._come(name)
        settled = [name for name in here if name not in self._starting]
        if len(here) > wanted and not self._starting and not self._going:
            self._leave(min(settled, key=lambda name: (workers[name].running, -self._names.index(name))))
        if cluster.left:
            cluster.later(now + INTERVAL, self._look)

    def _come(self, name: str) -> None:
        cluster = self._cluster
        self._starting.add(name)
        self._since[name] = cluster.now
        self.changes += 1

        def there() -> None:
            self._starting.discard(name)
            cluster.come(name)

        cluster.later(cluster.now + self._start, there)

    def _leave(self, name: str) -> None:
        """Stop sending new steps to an engine."""
        cluster, host = self._cluster, self._cluster.batches[name].host
        self._going[name] = cluster.now + self._bounds.drain
        self.changes += 1
        cluster.take(WorkerUp(cluster.now, name, 0, host.serves, host.models))

    def _gone(self, name: str) -> None:
        """Remove an engine; its attempts continue on other engines."""
        del self._going[name]
        self._seconds += self._cluster.now - self._since.pop(name)
        for event in interrupt_attempts(self._cluster.machine, name, self._cluster.now):
            self._cluster.take(event)
        self._cluster.strike(WorkerFault(self._cluster.now, name))
