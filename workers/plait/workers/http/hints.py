"""What serving stacks are told of a request besides the request: one row of headers and fields for each stack.

| | vLLM | Dynamo | llm-d | SGLang |
|---|---|---|---|---|
| session (run and line) | `vllm_xargs.agentic_context` | `X-Dynamo-Session-ID` | `x-session-id` | |
| session that it was forked from | the same | `X-Dynamo-Parent-Session-ID` | | |
| nothing follows in the session | the same | `X-Dynamo-Session-Final` | | |
| run | the same | | `x-llm-d-inference-fairness-id` | |
| expected tokens of the answer | the same | `nvext.agent_hints.osl` | | |
| priority | `priority` | `nvext.agent_hints.priority` | | `priority` |
| siblings that begin alike | the same | | `x-llm-d-burst-id`, `x-llm-d-burst-size` | |
| seconds left | the same | | `x-llm-d-slo-ttft-ms` | |
| origin: where the line's context is cached | `X-Session-ID` | | | `X-SMG-Routing-Key` |
| replica of a line | `X-data-parallel-rank` | | | `X-data-parallel-rank` |

vLLM passes `vllm_xargs` on to its router and plugins, as one text of JSON, and does not read it itself. Its router
hashes `X-Session-ID` (`--policy consistent_hash`). llm-d's two
headers of bursts are proposed, and read by nobody yet.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from plait.core.events import Hints, Job

__all__ = ["Kind", "RequestHints", "kind_of", "request_hints"]

Kind = Literal["auto", "vllm", "dynamo", "llm-d", "sglang", "none"]
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "nvidia": "dynamo", "dynamo": "dynamo"}
"""Stacks by what their list of models says of who owns a model."""


@dataclass(slots=True)
class RequestHints:
    """What goes with a request."""

    headers: dict[str, str] = field(default_factory=dict[str, str])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


def kind_of(setting: Kind, owners: Collection[str]) -> Kind:
    """Return which stack is told: the one that is set, else the one that the server's list of models names. A gateway
    such as llm-d's passes the list of its engines on, so it has to be set."""
    if setting != "auto":
        return setting
    stacks = {_OWNERS.get(owner) for owner in owners} - {None}
    return next(iter(stacks)) if len(stacks) == 1 else "none"  # pyright: ignore[reportReturnType]


def request_hints(kind: Kind, job: Job, ranks: int = 1, *, priority: bool = False) -> RequestHints:
    """Return what a stack is told of a job.

    Args:
        kind: the stack; `auto` is `kind_of`'s to resolve.
        job: with `hints`, else nothing is said.
        ranks: replicas behind the address without a router before them: each line stays at one.
        priority: whether the server takes priorities (SGLang's is a field of its own; vLLM's is set already).
    """
    hints, made = job.hints, RequestHints()
    if hints is None:
        return made
    match kind:
        case "dynamo":
            _dynamo(made, job, hints)
        case "llm-d":
            _llm_d(made, job, hints)
        case "vllm":
            made.headers["X-Session-ID"] = hints.origin or hints.session
            made.fields["vllm_xargs"] = {"agentic_context": json.dumps(_context(job, hints), separators=(",", ":"))}
        case "sglang":
            made.headers["X-SMG-Routing-Key"] = hints.origin or hints.session
            if priority:
                made.fields["priority"] = -job.priority  # with SGLang the larger goes first
        case _:
            return made
    if ranks > 1 and kind in ("vllm", "sglang"):
        # A line that was forked begins where its parent's cache is.
        made.headers["X-data-parallel-rank"] = str(zlib.crc32((hints.origin or hints.session).encode()) % ranks)
    return made


def _dynamo(made: RequestHints, job: Job, hints: Hints) -> None:
    made.headers |= {"X-Dynamo-Session-ID": hints.session, "X-Dynamo-Parent-Session-ID": hints.parent}
    if hints.final:
        made.headers["X-Dynamo-Session-Final"] = "true"
    agent: dict[str, Any] = {"priority": max(0, -job.priority)}  # with Dynamo the larger goes first
    if hints.expected is not None:
        agent["osl"] = hints.expected
    made.fields["nvext"] = {"agent_hints": agent}


def _llm_d(made: RequestHints, job: Job, hints: Hints) -> None:
    made.headers |= {"x-session-id": hints.session, "x-llm-d-inference-fairness-id": job.run}
    if hints.burst:
        made.headers |= {"x-llm-d-burst-id": hints.burst, "x-llm-d-burst-size": str(hints.burst_size)}
    if job.seconds is not None:
        made.headers["x-llm-d-slo-ttft-ms"] = str(max(1, int(job.seconds * 1000)))


def _context(job: Job, hints: Hints) -> dict[str, Any]:
    known = {
        "program": job.run,
        "task": hints.session,
        "parent": hints.parent,
        "final": hints.final,
        "priority": job.priority,
        "deadline_seconds": job.seconds,
        "expected_output_length": hints.expected,
        "burst": hints.burst or None,
        "burst_size": hints.burst_size if hints.burst else None,
    }
    return {name: value for name, value in known.items() if value is not None}
