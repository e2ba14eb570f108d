"""Run one row of a batch, and return its outcome as a row of the output."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from ...core.errors import PlaitError, TaskError, WorkerError
from ...core.request import Request
from ...runtime.client.answer import Answer
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ...runtime.plugins.trust import untrusted
from ..commands.plan import briefed
from ..common.dataset import DatasetQuestion
from ..common.interrupt import Stopper
from .rows import FIELDS, BatchRow, carried


def allowed(config: Config, text: str, request: Request) -> None:
    """Check a command's request, and allow the code that it names. Raises errors that affect every row."""
    with contextlib.suppress(TaskError):  # that is about the row
        briefed(config, request.updated({"text": text}))


async def outcome(
    orchestrator: AsyncOrchestrator, row: BatchRow, request: Request, stopper: Stopper | None = None, want: str = ""
) -> dict[str, Any] | None:
    """Run one row and return its outcome; `None` if the user cancelled the row. `want`: the column with the correct
    answer. Raises `WorkerError` if no further row can run."""
    fields = dict(row.fields)
    name = fields.pop("id", None)
    head: dict[str, Any] = {"row": row.number, "id": None if name is None else str(name)}
    if rest := {carried(key): value for key, value in fields.items() if key not in FIELDS}:
        head["carried"] = rest
    if row.fault:
        return {**head, "status": "invalid", "error": row.fault}
    try:
        own = {key: value for key, value in fields.items() if key in FIELDS and key != "text"}
        with untrusted():
            handle = await orchestrator.submit(request, text=fields["text"], fairness_group="batch", **own)
    except WorkerError:  # no further row can run, and no row is at fault
        raise
    except (PlaitError, ValueError, TypeError) as error:
        return {**head, "status": "invalid", "error": str(error)}
    with contextlib.ExitStack() as stack:
        if stopper is not None:
            stack.callback(stopper.then(handle.cancel))
        answer = await handle
    if answer.status == "cancelled":
        return None
    right = None
    if want and fields.get(want) is not None:
        task = orchestrator.plugins.task(handle.request.task, handle.request.text)
        right = DatasetQuestion(task, fields[want]).is_right(answer.answer)
    return {**head, **_columns(answer), "right": right}


def _columns(answer: Answer) -> dict[str, Any]:
    usage, value = answer.usage, answer.value
    return {
        "status": answer.status,
        "answer": answer.answer,
        "text": value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        "verified": answer.verified,
        "error": None if answer.failure is None else f"{answer.failure.kind}: {answer.failure.message}",
        "why": answer.why,
        "run": answer.run,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "completion_tokens": usage.completion,
        "cancelled_tokens": usage.cancelled,
        "critical_path_tokens": answer.critical_path_tokens,
        "elapsed_seconds": round(answer.seconds, 4),
        "provenance": None if answer.provenance is None else answer.provenance.digest,
    }  # fmt: skip
