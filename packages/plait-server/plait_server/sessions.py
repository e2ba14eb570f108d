"""The session of a served request: which conversation it continues, by the names that clients and routers use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from plait.core.request import DERIVED_SESSION

SESSION_HEADERS = (
    "x-session-id",  # vLLM, its router, llm-d
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-session-affinity",  # OpenCode with other providers
    "session-id",  # Codex
    "session_id",
)
"""Headers with the id of a session; the first one that is set counts."""
MAX_SESSION_ID = 128
"""Characters of a session's id that are kept as they are."""


def session_from_headers(headers: Mapping[str, str]) -> str:
    """Return the session that a request's headers name, or an empty text."""
    return next((normalise_session(given) for name in SESSION_HEADERS if (given := headers.get(name, "").strip())), "")


def normalise_session(given: str) -> str:
    """Return an id of a session, or its hash if it is too long or cannot be sent in a header."""
    if len(given) <= MAX_SESSION_ID and given.isascii() and given.isprintable() and given[:1] != DERIVED_SESSION:
        return given
    return f"h-{_hash(given)}"


def conversation_session(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the session of a conversation that has no id: the hash of its messages up to the first of the user's."""
    first = next((i for i, message in enumerate(messages) if message.get("role") == "user"), len(messages) - 1)
    return DERIVED_SESSION + _hash(json.dumps(messages[: first + 1], sort_keys=True, default=str))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
