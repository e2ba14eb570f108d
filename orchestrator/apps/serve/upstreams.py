"""The workers of all upstreams, under names of their own."""

from __future__ import annotations

from typing import Any

from ...runtime.client.config import Config
from ...runtime.client.worker_factory import workers
from ...runtime.plugins.loader import Plugins
from .settings import Settings, Upstream

__all__ = ["workers_of"]


def workers_of(config: Config, settings: Settings) -> list[Any]:
    """Return the workers of all upstreams, not started."""
    made: list[Any] = []
    for place, each in enumerate(settings.upstreams or (Upstream(),), 1):
        found = workers(each.config(config), Plugins())
        for worker in found:
            if len(found) == 1 and (each.name or any(worker.name == other.name for other in made)):
                worker.name = each.name or f"{worker.name}-{place}"
        made += found
    return made
