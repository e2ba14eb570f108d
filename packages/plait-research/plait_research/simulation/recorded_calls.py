"""Model calls recorded by other tools, without their texts; `recorded_sessions.py` plays them.

Formats, found by the fields of each JSON object; unknown fields, and objects without a model call, are ignored:

- Mooncake's request traces and NVIDIA Dynamo's agentic rows (`plait runs export --format mooncake` writes them);
- OpenTelemetry spans with GenAI attributes: OTLP JSON, or one span a line;
- transcripts of Claude Code: a message is a call, its sidechains are subagents.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from plait.core.errors import ConfigError

MAX_TRACE_BYTES = 1 << 30
MOONCAKE_BLOCK = 512
_KNOWN = "expected a Mooncake trace, OpenTelemetry GenAI spans or a Claude Code transcript"
_CHATS = ("chat", "text_completion", "generate_content")
"""Values of `gen_ai.operation.name` of model calls."""


@dataclass(slots=True)
class RecordedCall:
    """A model call. Times are in seconds."""

    session: str
    chain: str
    """The agent within the session; empty: the main agent."""
    name: str
    start: float
    end: float
    prompt: int
    """Tokens of its prompt."""
    output: int
    blocks: tuple[int, ...] = ()
    """Ids of the prompt's blocks; calls with equal ids at their start share that prefix. Empty: unknown."""
    block: int = MOONCAKE_BLOCK
    """Tokens of a block."""
    wait_for: list[str] | None = None
    """Names of the calls that it waited for; `None`: unknown."""
    gap: float | None = None
    """Time between the end of these calls and its start; `None`: unknown."""
    waits: tuple[int, ...] = ()
    """Places in the session of the calls that it waits for."""
    after: int | None = None
    """Place of the call whose context it continues."""
    numbers: list[int] = field(default_factory=list[int])
    """Numbers of the blocks of its prompt and its output, unique in the trace."""


def read_calls(path: Path) -> tuple[list[RecordedCall], list[str]]:
    """Return the model calls of a file (also `.gz`), and notes on what was left out.

    Raises `ConfigError` with the first invalid entry. An incomplete last line is left out: its writer was cut off.
    """
    calls: list[RecordedCall] = []
    notes: list[str] = []
    sent: dict[tuple[str, str], float] = {}
    for number, record in _records(path, notes):
        try:
            calls += _calls_of(record, number, sent)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"has an invalid value ({error})"
            raise ConfigError(f"{path}, entry {number}, {what}; {_KNOWN}") from None
    if not calls:
        raise ConfigError(f"{path} holds no model calls; {_KNOWN}")
    return calls, notes


def _records(path: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the numbered objects of a file of JSON lines, or of one JSON document."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(text) > MAX_TRACE_BYTES:
        raise ConfigError(f"{path} has more than a gigabyte: give a part of it")
    is_document = text.lstrip()[:1] == "[" or text.split("\n", 1)[0].strip() == "{"
    lines = [text] if is_document else [line for line in text.splitlines() if line.strip()]
    number = 0
    for at, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            if at == len(lines) > 1:
                notes.append(f"the last line of {path.name} is incomplete and was left out")
                return
            raise ConfigError(f"{path}, line {at}, is not JSON: {line.strip()[:60]!r}") from None
        for record in cast("list[Any]", content if isinstance(content, list) else [content]):
            number += 1
            if not isinstance(record, dict):
                raise ConfigError(f"{path}, entry {number}, is not a JSON object; {_KNOWN}")
            yield number, cast("dict[str, Any]", record)


def _calls_of(row: dict[str, Any], number: int, sent: dict[tuple[str, str], float]) -> list[RecordedCall]:
    """Return the calls of an object. `sent`: time of each agent's newest message to the model in a transcript."""
    if "input_length" in row:
        return [_of_mooncake(row, number)]
    if "resourceSpans" in row:
        scopes = (scope for resource in row["resourceSpans"] for scope in resource.get("scopeSpans", ()))
        return [call for scope in scopes for span in scope.get("spans", ()) for call in _of_span(span)]
    if "attributes" in row:
        return _of_span(row)
    if "sessionId" in row and row.get("type") in ("user", "assistant"):
        return _of_message(row, number, sent)
    return []


def _number(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(number := float(value)):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _count(value: Any) -> int:
    """Return a number of tokens: at least 1, since an engine computes no empty prompt or answer."""
    if (count := int(_number(value))) < 0:
        raise ValueError(f"{value!r} is not a number of tokens")
    return max(1, count)


def _seconds(value: Any) -> float:
    """Return a time as seconds: nanoseconds since the epoch, or a date."""
    if isinstance(value, str) and not value.isdigit():
        return datetime.fromisoformat(value).timestamp()
    return _number(value) / 1e9


def _of_mooncake(row: dict[str, Any], number: int) -> RecordedCall:
    at = _number(row.get("timestamp") or 0.0) / 1000.0
    delays = [_number(row[name]) / 1000.0 for name in ("delay", "tool_wait_ms") if row.get(name) is not None]
    call = RecordedCall(
        str(row.get("session_id") or f"request {number}"),
        "",
        str(row.get("request_id") or number),
        at,
        at,
        _count(row["input_length"]),
        _count(row.get("output_length") or 1),
        tuple(map(int, row.get("hash_ids") or ())),
        _count(row.get("block_size") or MOONCAKE_BLOCK),
    )
    call.wait_for = list(map(str, row["wait_for"])) if "wait_for" in row else None
    call.gap = sum(delays) if delays else None
    return call


def _of_span(span: dict[str, Any]) -> list[RecordedCall]:
    """Return the model call of a span in the form of OTLP or of OpenTelemetry's console exporter, if it is one."""
    given = span["attributes"]
    if isinstance(given, list):  # OTLP: [{"key": …, "value": {"intValue": …}}]
        entries = cast("list[Any]", given)
        given = {entry["key"]: next(iter(entry["value"].values()), None) for entry in entries}
    if given.get("gen_ai.operation.name") not in _CHATS or "gen_ai.usage.input_tokens" not in given:
        return []
    context: Any = span.get("context") or {"trace_id": span.get("traceId"), "span_id": span.get("spanId")}
    return [
        RecordedCall(
            str(given.get("gen_ai.conversation.id") or context["trace_id"]),
            str(given.get("gen_ai.agent.id") or ""),
            str(context["span_id"]),
            _seconds(span.get("start_time") or span["startTimeUnixNano"]),
            _seconds(span.get("end_time") or span["endTimeUnixNano"]),
            _count(given["gen_ai.usage.input_tokens"]),
            _count(given.get("gen_ai.usage.output_tokens") or 1),
        )
    ]


def _of_message(row: dict[str, Any], number: int, sent: dict[tuple[str, str], float]) -> list[RecordedCall]:
    message: Any = row.get("message") or {}
    session, at = str(row["sessionId"]), _seconds(row["timestamp"])
    chain = str(row.get("agentId") or "sidechain") if row.get("isSidechain") else ""
    if row["type"] == "user":
        sent[session, chain] = at
    if row["type"] == "user" or not (used := message.get("usage")):
        return []
    read = sum(int(used.get(f"{kind}input_tokens") or 0) for kind in ("", "cache_creation_", "cache_read_"))
    name, start = str(message.get("id") or number), sent.get((session, chain), at)
    return [RecordedCall(session, chain, name, start, at, _count(read), _count(used.get("output_tokens") or 1))]
