"""One rollout inside another library's trainer: a plan over the trainer's own servers, as training records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from plait.core.errors import ConfigError
from plait.core.tools.tool import Tool
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.runlog import RunLog

from ..workers.token_client import TokenClient
from .record import Record, records


class TrainerRollout(NamedTuple):
    """The result of a plan."""

    answer: Answer
    records: list[Record]
    """The sequences. The last one made the last model call, so it holds the answer."""
    tool_seconds: float
    """Sum of the tool calls' times."""


def require_version(package: str, known: Sequence[str]) -> None:
    """Raise `ConfigError` for an installed version of a package whose interface is not among the known ones."""
    found = version(package)
    if not any(f"{found}.".startswith(f"{prefix}.") for prefix in known):
        raise ConfigError(
            f"{package} {found} is not supported (supported: {', '.join(known)}). Install one of these versions, or "
            "record rollouts with `plait learn rollouts`"
        )


def derive_seed(*parts: object) -> int:
    """Return the seed of a rollout from what identifies it."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


async def roll_out(
    worker: TokenClient, group: str, branch: int, tools: Sequence[Tool[..., Any]] = (), **request: Any
) -> TrainerRollout:
    """Run one plan; `request` has the fields of a `Request`. Cancelled with its task.

    Raises the error of the trainer's server if a call of it failed, and `BadRecord` if the run made no model call.
    """
    log = RunLog(keep="attempts")
    orchestrator = AsyncOrchestrator(workers=[worker], tools=tools, journal="off")
    orchestrator.watch(log.take)
    async with orchestrator:
        handle = await orchestrator.submit(**request)
        answer = await handle
    # The trainer drops or repeats the rollout: a plan's retries would hide that its server is gone.
    if worker.error is not None:
        raise worker.error
    run = log.pop(handle.run)
    made = [] if run is None else records(run, group, branch)
    if run is None or not made:
        failure = answer.failure
        raise ConfigError(f"{request.get('planner')} made no model call: {failure.message if failure else 'no step'}")
    last = run.calls[-1].step
    made.sort(key=lambda record: last.partition(":")[2] in record.meta["steps"])
    seconds = sum((each.end or each.start) - each.start for each in run.attempts if each.op.kind == "call")
    return TrainerRollout(answer, made, seconds)
