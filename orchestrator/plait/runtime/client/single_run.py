"""One request with an orchestrator of its own: `plait.run` and `plait.arun`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.plan import Plan
from ...core.request import Request
from .answer import Answer
from .client import AsyncOrchestrator
from .config import Config
from .sync import Orchestrator

_OF_THE_ORCHESTRATOR = (Config.model_fields.keys() - Request.model_fields.keys()) | {
    *("model", "workers", "on_ask", "control", "config"),
}


def run(request: str | Request = "", *, plan: Plan | None = None, **options: Any) -> Answer:
    """Start an orchestrator, run one request to its end, close the orchestrator, and return the answer.

    `options` are arguments of `AsyncOrchestrator` and of its `submit`. For several requests, use one `Orchestrator`: it
    starts its workers once.

    >>> import plait
    >>> from plait.workers.scripted import Reply, Scripted
    >>> plait.run("2 + 2?", planner="sample:n=3", workers=[Scripted([Reply(text="answer: 4")])], journal="off").answer
    '4'
    """
    settings, fields = split_options(options)
    with Orchestrator(**settings) as orchestrator:
        return orchestrator.run(request, plan=plan, **fields)


async def arun(request: str | Request = "", *, plan: Plan | None = None, **options: Any) -> Answer:
    """Do the same as `run`, on the running event loop."""
    settings, fields = split_options(options)
    async with AsyncOrchestrator(**settings) as orchestrator:
        return await orchestrator.run(request, plan=plan, **fields)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the orchestrator, and those of the request."""
    settings = {name: value for name, value in options.items() if name in _OF_THE_ORCHESTRATOR}
    return settings, {name: value for name, value in options.items() if name not in settings}
