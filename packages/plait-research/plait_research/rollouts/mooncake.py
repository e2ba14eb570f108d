"""A run as rows of an agentic Mooncake trace: the run's load on a server, without its texts.

Each model call has a row: its arrival time, its lengths, the ids of its prompt's blocks (equal ids mean equal prefixes,
so a replay has the same cache hits), the calls that it waited for, and the delay after the last of these calls. The
fields `timestamp`, `input_length`, `output_length`, `hash_ids` are Mooncake's; `session_id`, `request_id`, `wait_for`,
`branches`, `tool_wait_ms` those of NVIDIA Dynamo's agentic rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from plait.apps.trace.model import Trace
from plait.core.record import StepRecord
from plait.runtime.runlog import AttemptRecord

BLOCK = 512
"""Tokens of a block: Mooncake's."""


def mooncake(trace: Trace, block: int = BLOCK, ids: dict[bytes, int] | None = None) -> list[dict[str, Any]]:
    """Return the rows, by time (milliseconds after the submission). `ids` numbers the blocks over several runs; they
    are empty if the engine reported no token ids."""
    numbers = {} if ids is None else ids
    steps = {step.step: step for step in trace.steps}
    told = sorted(
        (attempt for attempt in trace.attempts if attempt.read), key=lambda attempt: (attempt.start, attempt.id)
    )
    ends = {attempt.step: attempt for attempt in told}
    rows: list[dict[str, Any]] = []
    for attempt in told:
        if attempt.op.kind != "think":
            continue
        waited = _before(attempt.step, steps, ends)
        result = attempt.result
        prompt = () if result is None else result.prompt_ids
        row: dict[str, Any] = {
            "session_id": trace.run,
            "request_id": attempt.step.partition(":")[2],
            "timestamp": round(attempt.start * 1000, 3),
            "input_length": attempt.usage.prompt,
            "output_length": attempt.usage.completion,
            "hash_ids": _blocks(prompt, block, numbers),
            "wait_for": [attempt.step.partition(":")[2] for attempt in waited],
        }
        if waited:
            after = max(attempt.end or attempt.start for attempt in waited)
            row["tool_wait_ms"] = round(max(0.0, attempt.start - after) * 1000, 3)
        rows.append(row)
    for row in rows:
        row["branches"] = [later["request_id"] for later in rows if row["request_id"] in later["wait_for"]]
    return rows


def _before(step: str, steps: Mapping[str, StepRecord], ends: Mapping[str, AttemptRecord]) -> list[AttemptRecord]:
    """Return the model calls that a step waited for: the calls that it reads, through joins and tools, or else the call
    that spawned it."""
    before: dict[str, AttemptRecord] = {}
    seen: set[str] = set()
    begin = steps.get(step)
    above = [] if begin is None else [*begin.needs, *([begin.after] if begin.after else [])]
    if begin is not None and not above and begin.owner:
        above = [begin.owner]
    while above:
        name = above.pop()
        if name in seen:
            continue
        seen.add(name)
        attempt, known = ends.get(name), steps.get(name)
        if attempt is not None and attempt.op.kind == "think":
            before[name] = attempt
        elif known is not None:
            above += [*known.needs, *([known.owner] if known.owner and not known.needs else [])]
    return sorted(before.values(), key=lambda attempt: (attempt.start, attempt.id))


def _blocks(prompt: Sequence[int], block: int, numbers: dict[bytes, int]) -> list[int]:
    """Return the ids of a prompt's blocks, including a partial last one. An id identifies all tokens so far."""
    out: list[int] = []
    chain = hashlib.blake2b(digest_size=12)
    for start in range(0, len(prompt), block):
        chain.update(repr(prompt[start : start + block]).encode())
        out.append(numbers.setdefault(chain.copy().digest(), len(numbers)))
    return out
