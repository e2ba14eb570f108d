"""Convert others' traces into the rows that `plait simulate --trace` reads: lengths, block ids and times, no texts.

    python -m experiments.agents.convert KV_CACHE_TESTER/traces MOONCAKE/FAST25-release/traces/conversation_trace.jsonl

Sessions are drawn from those with at least 25 calls, a 25th prompt of 90,000 to 160,000 tokens and no subagents; their
first 25 calls are kept. Of the conversations, the first 600 requests.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
CALLS, SESSIONS, SHORTEST, LONGEST = 25, 64, 90_000, 160_000
REQUESTS = 600


def rows_of(session: dict[str, Any], shift: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a session; `shift` is added to its block ids, which are its own."""
    for place, call in enumerate(session["requests"][:CALLS]):
        yield {
            "session_id": session["id"],
            "request_id": str(place),
            "timestamp": round(1000 * call["t"]),
            "input_length": call["in"],
            "output_length": call["out"],
            "block_size": session["block_size"],
            "hash_ids": [block + shift for block in call["hash_ids"]],
            "wait_for": [str(place - 1)] if place else [],
            "tool_wait_ms": round(1000 * call.get("think_time", 0.0)),
        }


def drawn(folder: Path) -> list[dict[str, Any]]:
    """Return the sessions in the order of the draws."""
    fit: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        session = json.loads(path.read_text(encoding="utf-8"))
        calls = session["requests"]
        plain = len(calls) >= CALLS and not any(call["type"] == "subagent" for call in calls)
        if plain and SHORTEST <= calls[CALLS - 1]["in"] <= LONGEST:
            fit[session["id"]] = session
    names = sorted(fit)
    Random(46).shuffle(names)
    return [fit[name] for name in names[:SESSIONS]]


def write(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows; equal rows give equal bytes."""
    with gzip.GzipFile(path, "wb", 9, mtime=0) as out:
        for row in rows:
            out.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")


def main() -> None:
    """Convert both traces."""
    parser = argparse.ArgumentParser(prog="python -m experiments.agents.convert", description=__doc__)
    parser.add_argument("sessions", type=Path)
    parser.add_argument("conversations", type=Path)
    given = parser.parse_args()
    sessions = drawn(given.sessions)
    rows = (row for place, session in enumerate(sessions) for row in rows_of(session, (place + 1) * 1_000_000))
    write(rows, HERE / "data" / "coding_sessions.jsonl.gz")
    with given.conversations.open(encoding="utf-8") as lines:
        write(map(json.loads, islice(lines, REQUESTS)), HERE / "data" / "conversations.jsonl.gz")


if __name__ == "__main__":
    main()
