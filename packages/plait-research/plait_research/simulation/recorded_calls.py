"""Read model calls from other tools' recordings, for `recorded_sessions.py`, which links them.

Formats, found by the fields of each JSON object (unknown fields and objects without a model call are ignored):

- Mooncake's request traces and NVIDIA Dynamo's agentic rows (`plait runs export --format mooncake` writes them);
- agent sessions of kv-cache-tester: one object a session, with nested subagents;
- OpenTelemetry spans with GenAI attributes: OTLP JSON, or one span a line;
- transcripts of Claude Code: a message is a call, its sidechains are subagents.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError

MAX_TRACE_BYTES = 1 << 30
MOONCAKE_BLOCK = 512
_KNOWN = "a Mooncake trace, sessions of kv-cache-tester, OpenTelemetry GenAI spans or a Claude Code transcript"
_CHATS = ("chat", "text_completion", "generate_content")
"""Values of `gen_ai.operation.name` of model calls."""


@dataclass(slots=True)
class CallRow:
    """One recorded model call. Times are in seconds."""

    session: str
    chain: str
    """The agent within the session; empty: the main agent."""
    id: str
    start: float
    end: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
    """Ids of the prompt's blocks; calls with equal ids at their start share that prefix. Empty: unknown."""
    block: int = MOONCAKE_BLOCK
    waits: list[str] | None = None
    """Ids of the calls that it waited for; `None`: unknown."""
    gap: float | None = None
    """Time between the end of these calls and its start; `None`: unknown."""


def read_rows(path: Path) -> tuple[list[CallRow], list[str]]:
    """Return the model calls of a file (also `.gz`) and notes on what was left out.

    Raises `ConfigError` with the first invalid line. An incomplete last line is left out: its writer was cut off.
    """
    rows: list[CallRow] = []
    notes: list[str] = []
    sent: dict[tuple[str, str], float] = {}
    for number, record in _records(path, notes):
        try:
            for read in _READERS:
                if (found := read(record, number, sent)) is not None:
                    rows += found
                    break
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"has an invalid value ({error})"
            raise ConfigError(f"{path}, entry {number}, {what}; expected {_KNOWN}") from None
    if not rows:
        raise ConfigError(f"{path} holds no model calls; expected {_KNOWN}")
    return rows, notes


def _records(path: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the numbered objects of a file of JSON lines, or of one JSON document."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if len(raw) > MAX_TRACE_BYTES:
            raise ConfigError(f"{path} has more than a gigabyte: give a part of it")
        text = raw.decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if text.lstrip()[:1] == "[" or (text.lstrip()[:1] == "{" and text.split("\n", 1)[0].strip() == "{"):
        lines = [text]
    else:
        lines = [line for line in text.splitlines() if line.strip()]
    number = 0
    for at, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            if at == len(lines) > 1:
                notes.append(f"the last line of {path.name} is incomplete and was left out")
                return
            raise ConfigError(f"{path}, line {at}, is not JSON: {line.strip()[:60]!r}") from None
        for record in found if isinstance(found, list) else [found]:
            number += 1
            if not isinstance(record, dict):
                raise ConfigError(f"{path}, entry {number}, is not a JSON object; expected {_KNOWN}")
            yield number, record


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


def _read_mooncake(row: dict[str, Any], number: int, sent: object) -> list[CallRow] | None:
    if "input_length" not in row:
        return None
    at = _number(row.get("timestamp") or 0.0) / 1000.0
    delays = [_number(row[name]) / 1000.0 for name in ("delay", "tool_wait_ms") if row.get(name) is not None]
    session = str(row.get("session_id") or f"request {number}")
    return [
        CallRow(
            session=session,
            chain="",
            id=str(row.get("request_id") or number),
            start=at,
            end=at,
            prompt=_count(row["input_length"]),
            output=_count(row.get("output_length") or 1),
            blocks=tuple(map(int, row.get("hash_ids") or ())),
            block=int(row.get("block_size") or MOONCAKE_BLOCK),
            waits=list(map(str, row["wait_for"])) if "wait_for" in row else None,
            gap=sum(delays) if delays else None,
        )
    ]


def _read_agent_session(row: dict[str, Any], number: int, sent: object) -> list[CallRow] | None:
    if "requests" not in row:
        return None
    session = str(row.get("id") or number)
    own = {"session": session, "block": int(row.get("block_size") or 64)}
    # Block ids are those of a session unless all sessions share them.
    shift = 0 if row.get("hash_id_scope") == "global" else number << 32

    def calls(requests: list[dict[str, Any]], chain: str, since: float) -> Iterator[CallRow]:
        for place, request in enumerate(requests):
            at = _number(request["t"]) + since
            if request.get("type") == "subagent":  # its time is its end
                began = at - _number(request.get("duration_ms") or 0.0) / 1000.0
                yield from calls(request["requests"], f"{chain}/{request.get('agent_id', place)}", began)
                continue
            thought = request.get("think_time")
            yield CallRow(
                chain=chain,
                id=f"{chain}:{place}",
                start=at,
                end=at + _number(request.get("api_time") or 0.0),
                prompt=_count(request["in"]),
                output=_count(request["out"]),
                blocks=tuple(int(block) + shift for block in request.get("hash_ids") or ()),
                gap=None if thought is None else _number(thought),
                **own,
            )

    return list(calls(row["requests"], "", 0.0))


def _read_spans(row: dict[str, Any], number: int, sent: object) -> list[CallRow] | None:
    if "resourceSpans" in row:
        scopes = (scope for resource in row["resourceSpans"] for scope in resource.get("scopeSpans", ()))
        return [call for scope in scopes for span in scope.get("spans", ()) for call in _read_span(span)]
    return _read_span(row) if "attributes" in row else None


def _read_span(span: dict[str, Any]) -> list[CallRow]:
    """Return the model call of a span in the form of OTLP or of OpenTelemetry's console exporter, if it is one."""
    given = span["attributes"]
    if isinstance(given, list):  # OTLP: [{"key": …, "value": {"intValue": …}}]
        given = {entry["key"]: next(iter(entry["value"].values()), None) for entry in given}
    if given.get("gen_ai.operation.name") not in _CHATS or "gen_ai.usage.input_tokens" not in given:
        return []
    context = span.get("context") or {"trace_id": span.get("traceId"), "span_id": span.get("spanId")}
    return [
        CallRow(
            session=str(given.get("gen_ai.conversation.id") or context["trace_id"]),
            chain=str(given.get("gen_ai.agent.id") or ""),
            id=str(context["span_id"]),
            start=_seconds(span.get("start_time") or span["startTimeUnixNano"]),
            end=_seconds(span.get("end_time") or span["endTimeUnixNano"]),
            prompt=_count(given["gen_ai.usage.input_tokens"]),
            output=_count(given.get("gen_ai.usage.output_tokens") or 1),
        )
    ]


def _read_transcript(row: dict[str, Any], number: int, sent: dict[tuple[str, str], float]) -> list[CallRow] | None:
    """Return the call of an assistant's message. `sent`: time of each agent's newest message to the model."""
    if "sessionId" not in row or row.get("type") not in ("user", "assistant"):
        return None
    session, message = str(row["sessionId"]), row.get("message") or {}
    chain = str(row.get("agentId") or "sidechain") if row.get("isSidechain") else ""
    at = _seconds(row["timestamp"])
    if row["type"] == "user":
        sent[session, chain] = at
        return []
    if not (used := message.get("usage")):
        return []
    read = sum(int(used.get(f"{kind}input_tokens") or 0) for kind in ("", "cache_creation_", "cache_read_"))
    start = sent.get((session, chain), at)
    name = str(message.get("id") or number)
    return [CallRow(session, chain, name, start, at, _count(read), _count(used.get("output_tokens") or 1))]


_READERS: tuple[Callable[[dict[str, Any], int, dict[tuple[str, str], float]], list[CallRow] | None], ...] = (
    _read_mooncake,
    _read_agent_session,
    _read_spans,
    _read_transcript,
)
