"""Build routing hints: headers and fields by which serving stacks place, order and cache requests.

The table in `docs/howto/own-server.md` shows what each stack does with each hint.

The router's fields are in `vllm_xargs.agentic_context`, with the names and types of its `docs/program_scheduling.md`: a
string of JSON for vLLM, which takes no objects there and passes it on, an object for the router itself. Dynamo's are in
`nvext.agent_hints`. llm-d's limit for the first token is not set: plait knows only limits of whole runs.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from plait.core.events import PRIORITY_STEP, Hints, Job

ServingStack = Literal["auto", "vllm", "vllm-router", "dynamo", "llm-d", "sglang", "openai", "none"]
_STACKS = {"vllm": "vllm", "sglang": "sglang", "nvidia": "dynamo", "dynamo": "dynamo"}
"""Stacks by the `owned_by` of their models."""
_OPENAI_HOSTS = ("api.openai.com", ".api.openai.com", ".openai.azure.com")
_MAX_CACHE_KEY = 64
"""Maximum length of OpenAI's `prompt_cache_key`."""


@dataclass(slots=True)
class RequestHints:
    """Headers and fields to add to a request."""

    headers: dict[str, str] = field(default_factory=dict[str, str])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


def find_stack(setting: ServingStack, owners: Collection[str], base_url: str = "") -> ServingStack:
    """Return the serving stack: the one that is set, else the one of its host or of its list of models."""
    if setting != "auto":
        return setting
    if (urlsplit(base_url).hostname or "").endswith(_OPENAI_HOSTS):
        return "openai"
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
        case "openai":
            request.fields["prompt_cache_key"] = _shorten(hints.origin or hints.session)
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
    if tier := max(0, -round(job.priority / PRIORITY_STEP)):  # the user's own `Step.priority`, before any rank
        agent["strict_priority"] = tier
    if hints.expected is not None:
        agent["osl"] = hints.expected
    if hints.continues and job.op.kind == "think" and job.op.chat:  # it prefills the next turn of a conversation
        agent["speculative_prefill"] = True
    request.fields["nvext"] = {"agent_hints": agent}


def _add_llm_d(request: RequestHints, job: Job, hints: Hints) -> None:
    request.headers |= {"x-session-id": hints.session, "x-llm-d-inference-fairness-id": hints.program or job.run}
    if hints.burst:
        request.headers |= {"x-llm-d-burst-id": hints.burst, "x-llm-d-burst-size": str(hints.burst_size)}


def _shorten(key: str) -> str:
    """Return a key that OpenAI takes: a longer one is refused."""
    digest = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=16)
    return key if len(key) <= _MAX_CACHE_KEY else digest.hexdigest()


def _build_context(job: Job, hints: Hints) -> dict[str, Any]:
    # The router checks it, and refuses the request otherwise: `step_id` is a number, a parent is another program, and
    # `blocks_parent` needs a parent.
    parent = hints.parent if hints.parent != hints.session else ""
    is_awaited = hints.blocks_parent and bool(parent)
    known = {
        "program_id": hints.session,
        "task_id": hints.program or job.run,
        "session_id": hints.program or hints.session,
        "parent_program_id": parent or None,
        "blocks_parent": is_awaited,
        "agent_role": "subagent" if is_awaited else "lead",
        "step_id": hints.turn,
        "expected_resume": not hints.final,
        "kv_retention_ttl_seconds": hints.pause,
        "priority": -job.priority or None,  # plait serves lower numbers first, the router higher ones
        "deadline_seconds": job.seconds,
        "expected_output_length": hints.expected,
        "burst": hints.burst or None,
        "burst_size": hints.burst_size if hints.burst else None,
    }
    return {name: value for name, value in known.items() if value is not None}
