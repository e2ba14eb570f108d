"""Build routing hints: headers and fields by which serving stacks place, order and cache requests.

| | vLLM, its router | Dynamo | llm-d | SGLang |
|---|---|---|---|---|
| session (the client's, or run and trajectory) | `session_id` | `X-Dynamo-Session-ID` | `x-session-id` | |
| parent session of a fork | `vllm_xargs.agentic_context` | `X-Dynamo-Parent-Session-ID` | | |
| last request of the session | the same | `X-Dynamo-Session-Final` | | |
| run | the same | | `x-llm-d-inference-fairness-id` | |
| expected tokens of the answer | the same | `nvext.agent_hints.osl` | | |
| priority | `priority` | `nvext.agent_hints.priority` | | `priority` |
| siblings with a common prefix | the same | | `x-llm-d-burst-id`, `x-llm-d-burst-size` | |
| seconds left | the same | | | |
| origin: session whose context is cached | `X-Session-ID` | | | `X-SMG-Routing-Key` |
| replica of a trajectory | `X-data-parallel-rank` | | | `X-data-parallel-rank` |

vLLM reads `session_id` into its KV events, and before it the header. It passes `vllm_xargs` to its router and plugins,
as one string of JSON; for the stack `vllm-router` it is an object with the same names, those of the router's
`docs/program_scheduling.md`. The router hashes `X-Session-ID` (`--policy consistent_hash`). llm-d's two headers of
bursts are proposed and not implemented. Its limit for the first token is not set: plait knows limits of whole runs.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from plait.core.events import Hints, Job

ServingStack = Literal["auto", "vllm", "vllm-router", "dynamo", "llm-d", "sglang", "none"]
_STACKS = {"vllm": "vllm", "sglang": "sglang", "nvidia": "dynamo", "dynamo": "dynamo"}
"""Stacks by the `owned_by` of their models."""


@dataclass(slots=True)
class RequestHints:
    """Headers and fields to add to a request."""

    headers: dict[str, str] = field(default_factory=dict[str, str])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


def find_stack(setting: ServingStack, owners: Collection[str]) -> ServingStack:
    """Return the serving stack: the one that is set, else the one that the server's list of models names."""
    if setting != "auto":
        return setting
    # A gateway such as llm-d's lists its engines' models as they do, so it cannot be detected and has to be set.
    stacks = {_STACKS.get(owner) for owner in owners} - {None}
    return next(iter(stacks)) if len(stacks) == 1 else "none"  # pyright: ignore[reportReturnType]


def build_hints(stack: ServingStack, job: Job, replicas: int = 1, *, has_priority: bool = False) -> RequestHints:
    """Return the hints for a job.

    Args:
        stack: the serving stack; `find_stack` resolves `auto`.
        job: with `hints`, or none are sent.
        replicas: engines behind the address without a prefix-aware router: each trajectory stays at one.
        has_priority: whether the server takes priorities (SGLang's is set here; vLLM's is set already).
    """
    hints, request = job.hints, RequestHints()
    if hints is None:
        return request
    match stack:
        case "dynamo":
            _add_dynamo(request, job, hints)
        case "llm-d":
            _add_llm_d(request, job, hints)
        case "vllm" | "vllm-router":
            request.headers["X-Session-ID"] = hints.origin or hints.session
            request.fields["session_id"] = hints.session
            context = _build_context(job, hints)
            request.fields["vllm_xargs"] = {
                "agentic_context": context if stack == "vllm-router" else json.dumps(context, separators=(",", ":"))
            }
        case "sglang":
            request.headers["X-SMG-Routing-Key"] = hints.origin or hints.session
            if has_priority:
                request.fields["priority"] = -job.priority  # plait serves lower numbers first, SGLang higher ones
        case _:
            return request
    if replicas > 1 and stack in ("vllm", "sglang"):
        # By the origin: the cached prefix of a forked trajectory is at its parent's replica.
        request.headers["X-data-parallel-rank"] = str(zlib.crc32((hints.origin or hints.session).encode()) % replicas)
    return request


def _add_dynamo(request: RequestHints, job: Job, hints: Hints) -> None:
    request.headers["X-Dynamo-Session-ID"] = hints.session
    if hints.parent:
        request.headers["X-Dynamo-Parent-Session-ID"] = hints.parent
    if hints.final:
        request.headers["X-Dynamo-Session-Final"] = "true"
    agent: dict[str, Any] = {"priority": max(0, -job.priority)}  # Dynamo: higher first, none below 0
    if hints.expected is not None:
        agent["osl"] = hints.expected
    request.fields["nvext"] = {"agent_hints": agent}


def _add_llm_d(request: RequestHints, job: Job, hints: Hints) -> None:
    request.headers |= {"x-session-id": hints.session, "x-llm-d-inference-fairness-id": hints.program or job.run}
    if hints.burst:
        request.headers |= {"x-llm-d-burst-id": hints.burst, "x-llm-d-burst-size": str(hints.burst_size)}


def _build_context(job: Job, hints: Hints) -> dict[str, Any]:
    known = {
        "program_id": hints.program or job.run,
        "task_id": hints.session,
        "session_id": hints.session,
        "parent_program_id": hints.parent or None,
        "step_id": job.step,
        "expected_resume": not hints.final,
        "priority": job.priority,
        "deadline_seconds": job.seconds,
        "expected_output_length": hints.expected,
        "burst": hints.burst or None,
        "burst_size": hints.burst_size if hints.burst else None,
    }
    return {name: value for name, value in known.items() if value is not None}
