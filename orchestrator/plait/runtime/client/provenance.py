"""What the answers of one orchestrator depend on: its models and its tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from ...core.errors import ConfigError
from ...core.interfaces import Worker
from ...core.provenance import Provenance, tool_digests
from ...core.tools.tool import ToolSpec

__all__ = ["called", "check", "facts", "models_of"]


def models_of(workers: Sequence[Worker]) -> tuple[str, ...]:
    """Return what tells the models of started workers from others. A worker that cannot say is known by its kind and
    the model that it was given."""
    thinking = [worker for worker in workers if "think" in worker.serves]
    return tuple(sorted({getattr(worker, "identity", "") or " ".join(called(worker)).strip() for worker in thinking}))


def called(worker: Worker) -> tuple[str, str]:
    """Return what a worker's kind is called, and its model; no model where a server has one of its own."""
    inner: object = worker
    while (within := getattr(inner, "inner", None)) is not None:
        inner = within
    own = getattr(inner, "model", None) or next(iter(getattr(inner, "models", ())), "")
    return type(inner).__name__.lower(), str(own)


def facts(workers: Sequence[Worker], tools: Sequence[ToolSpec], given: bool) -> dict[str, JsonValue]:
    """Return what a journal remembers of the models and tools of a session. `given`: the workers were handed over, and
    the settings say nothing of them."""
    out: dict[str, JsonValue] = {"models": list(models_of(workers)), "tool_digests": {**tool_digests(tools)}}
    if given and (thinking := [worker for worker in workers if "think" in worker.serves]):
        out |= dict(zip(("worker", "model"), called(thinking[0]), strict=True))
    return out


def check(run: str, meta: Mapping[str, JsonValue], workers: Sequence[Worker], tools: Sequence[ToolSpec]) -> None:
    """Raise `ConfigError` for a run that began with other models or tools than there are here, by the first field that
    differs. A tool that is not here at all is no difference: a step that calls it says so. No more is a model, where
    nothing here generates: what is left may be calls of tools."""
    models, digests = meta.get("models"), meta.get("tool_digests")
    here = Provenance(models=models_of(workers), tools=tool_digests(tools))
    there = Provenance.model_validate({"models": models or here.models, "tools": digests or {}})
    both = there.tools.keys() & here.tools.keys()
    there, here = (
        Provenance(models=record.models if here.models else (), tools={name: record.tools[name] for name in both})
        for record in (there, here)
    )
    if difference := there.difference(here):
        raise ConfigError(
            f"run {run} began with something else: {difference}. Give what it began with, or say that it may go on "
            "with this: --force, in Python resume(…, force=True)"
        )
