"""The ledger of fields: how the server treats each field of OpenAI's, vLLM's and SGLang's protocols.

A field is *honoured* (a body reads it), *passed on* to the upstream as it is, *ignored* and named in the header
`x-plait-ignored`, or *refused*: `fields.toml` says which. `docs/reference/fields.md` is generated from that file, and a
test compares it with the installed packages, so that no field of a new release is missing. A field without a row is
ignored and named; `strict = true` in `[serve]` refuses such fields, and ignored fields that OpenAI does not have.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from pydantic import JsonValue

from plait.core.request import Request
from plait.core.rights import Rights

Support = Literal["honoured", "passed on", "ignored", "refused"]


class Row(NamedTuple):
    """How a field is treated, and why, or what it does here."""

    support: Support
    note: str = ""


_TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
_TABLES = cast("dict[Support, dict[str, str]]", tomllib.loads(_TEXT))
LEDGER: Mapping[str, Row] = {
    name: Row(support, note)
    for support, notes in _TABLES.items()
    for names, note in notes.items()
    for name in names.split()
}
"""By name, or by `ENDPOINT.name` where a field has another meaning at one endpoint."""
_NEUTRAL: Mapping[str, JsonValue] = {
    "best_of": 1,
    "modalities": ["text"],
    "truncation": "disabled",
    "length_penalty": 1.0,
    "service_tier": "auto",
    "separate_reasoning": True,
    "stream_reasoning": True,
    "skip_special_tokens": True,
}
"""Values that have no effect, because they are the defaults."""
FORWARDED = frozenset(("user", "safety_identifier", "prompt_cache_key"))
"""Ignored fields that go to the upstream if the setting `extra_body` names them: gateways account and route by them."""
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
MAX_NAMES = 20


def find_row(name: str, endpoint: str = "") -> Row | None:
    """Return the row of a field; `None` for an unknown field.

    >>> find_row("store", "responses").support, find_row("store").support, find_row("nonsense")
    ('honoured', 'ignored', None)
    """
    return LEDGER.get(f"{endpoint}.{name}") or LEDGER.get(name)


def is_set(name: str, value: object) -> bool:
    """Return whether a field has an effect: it is not empty and not the default."""
    return value not in (None, False, [], {}, "", 0) and value != _NEUTRAL.get(name)


def fit_in_header(names: Iterable[str]) -> tuple[str, ...]:
    """Return names that a header can hold; the last entry counts those that are invalid or too many."""
    known = [*dict.fromkeys(name for name in names)]
    kept = [name for name in known if _NAME.fullmatch(name)][:MAX_NAMES]
    return (*kept, *([f"{len(known) - len(kept)} more"] if len(kept) < len(known) else ()))


def apply_rights(
    request: Request, passed: Mapping[str, Any], rights: Rights, takes: Iterable[Collection[str] | None]
) -> tuple[Request, tuple[str, ...]]:
    """Return a request with the upstream fields that its sender may set, and the names of the fields without effect.

    Args:
        request: the request of the body.
        passed: fields of the body for the upstream.
        rights: of the sender. Fields of the body that they do not allow are dropped, because clients often send them
            without the user's knowledge; those of a plan or an option are refused elsewhere.
        takes: the fields that each worker accepts; `None`: any.
    """
    allowed = [names for names in (rights.extra_body, *takes) if names is not None]
    sent = {name: value for name, value in passed.items() if all(name in names for names in allowed)}
    update: dict[str, Any] = {}
    if sent:
        own = request.generation
        update["generation"] = own.model_copy(update={"extra_body": {**sent, **own.extra_body}})
    unused = [name for name in passed if name not in sent]
    if rights.apart:
        unused += _clear_server_fields(request, update)
    return (request.model_copy(update=update) if update else request), tuple(unused)


def _clear_server_fields(request: Request, update: dict[str, Any]) -> Iterator[str]:
    for name, field, nothing in (("cache_salt", "salt", ""), ("priority", "priority", 0)):
        if getattr(request, field) != nothing:
            update[field] = nothing
            yield name
