"""Provenance of an answer: its dependencies apart from the question. Equal provenance may give equal answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Self, cast

from pydantic import JsonValue

from .errors import ConfigError
from .interfaces import Worker
from .request import Request
from .tools.tool import ToolSpec
from .values import Frozen

_NOT_OF_THE_ANSWER = {
    "text", "asked", "messages", "fairness_group", "fairness_weight", "priority", "salt", "tenant", "session",
    "metadata", "retries",
}  # fmt: skip
"""Request fields with the question, the caller or the scheduling, which are not part of the provenance."""


def digest_of(value: JsonValue) -> str:
    """Return a JSON value's digest: the first 16 hexadecimal digits of the SHA-256 of its text with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def tool_digests(tools: Iterable[ToolSpec]) -> dict[str, str]:
    """Return a digest of each tool's description, by its name."""
    return {tool.name: digest_of(tool.model_dump(mode="json")) for tool in tools}


class Provenance(Frozen):
    """What an answer depends on, apart from its question."""

    plait: str = ""
    """The version."""
    models: tuple[str, ...] = ()
    """Identities of the generating models (`Worker.identity`), sorted."""
    tools: dict[str, str] = {}
    """A digest of each tool's description, by its name."""
    request: dict[str, JsonValue] = {}
    """The request without the question: planner and options, task, policies, generation, budget, seed."""

    @classmethod
    def of(cls, request: Request, plait: str, models: Iterable[str], tools: Iterable[ToolSpec]) -> Self:
        """Return the provenance of an effective request."""
        return cls(
            plait=plait,
            models=tuple(sorted(set(models))),
            tools=tool_digests(tools),
            request=request.model_dump(mode="json", exclude=_NOT_OF_THE_ANSWER),
        )

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that are the same for the same provenance."""
        return digest_of(self.model_dump(mode="json"))

    def demand(self, there: Provenance, what: str) -> None:
        """Raise `ConfigError` with the first differing field if `what` began with another provenance."""
        if difference := there.difference(self):
            raise ConfigError(f"{what} was begun with something else: {difference}")

    def difference(self, other: Provenance) -> str:
        """Return the first field that differs, with both values; empty if all are equal.

        >>> Provenance(request={"seed": 1}).difference(Provenance(request={"seed": 2}))
        'request.seed is 1 there and 2 here'
        """
        return _difference("", self.model_dump(mode="json"), other.model_dump(mode="json"))


def _difference(path: str, there: JsonValue, here: JsonValue) -> str:
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            inner = cast("Mapping[str, JsonValue]", there).get(name), cast("Mapping[str, JsonValue]", here).get(name)
            if difference := _difference(f"{path}.{name}" if path else name, *inner):
                return difference
        return ""
    return "" if there == here else f"{path} is {_short(there)} there and {_short(here)} here"


def _short(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


def models_of(workers: Sequence[Worker]) -> tuple[str, ...]:
    """Return the model identities of started workers: the worker's own identity, or its kind and the model's name."""
    thinking = [worker for worker in workers if "think" in worker.serves]
    return tuple(sorted({getattr(worker, "identity", "") or " ".join(called(worker)).strip() for worker in thinking}))


def called(worker: Worker) -> tuple[str, str]:
    """Return the names of a worker's kind and model; the model's name is empty if the server chooses the model."""
    inner: object = worker
    while (within := getattr(inner, "inner", None)) is not None:
        inner = within
    own = getattr(inner, "model", None) or next(iter(getattr(inner, "models", ())), "")
    return type(inner).__name__.lower(), str(own)


def facts(workers: Sequence[Worker], tools: Sequence[ToolSpec], given: bool) -> dict[str, JsonValue]:
    """Return the journal's record of a session's models and tools. `given`: a program passed the workers, so the
    settings do not describe the workers."""
    out: dict[str, JsonValue] = {"models": list(models_of(workers)), "tool_digests": {**tool_digests(tools)}}
    if given and (thinking := [worker for worker in workers if "think" in worker.serves]):
        out |= dict(zip(("worker", "model"), called(thinking[0]), strict=True))
    return out


def check(run: str, meta: Mapping[str, JsonValue], workers: Sequence[Worker], tools: Sequence[ToolSpec]) -> None:
    """Compare a run's models and tools with the current ones. Raises `ConfigError` with the first differing field.

    A missing tool is ignored, since its calls fail with their own error. Models are ignored if no worker here
    generates: the remaining steps may be tool calls."""
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
