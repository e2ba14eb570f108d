"""Asks a server for a form of the output. Each kind of server has fields of its own for that.

A small request finds out which of them a server heeds. Most servers ignore unknown fields, and an answer without its
form must not pass for an answer with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from plait.core.errors import Rejected
from plait.core.ops import Sampling, StructuredOutput, Text, Think

from .._shared.structured import specified
from .bill import SentRequest
from .connection import Link
from .reading import AnswerReading
from .wire import ServerDialect, ServerError, body

WORD = "zqx"
"""A word that no model says of itself."""
PROBES = {
    "json": StructuredOutput(
        kind="json",
        spec={
            "type": "object",
            "properties": {WORD: {"type": "integer"}},
            "required": [WORD],
            "additionalProperties": False,
        },
    ),
    "regex": StructuredOutput(kind="regex", spec=WORD),
    "grammar": StructuredOutput(kind="grammar", spec=f'root ::= "{WORD}"'),
    "choice": StructuredOutput(kind="choice", spec=[WORD]),
}


def ways(form: StructuredOutput) -> dict[str, Mapping[str, Any]]:
    """Return the fields that ask for a form, by the kind of server that takes them, vLLM first. Raises
    `EngineError`."""
    spec = specified(form)
    known: dict[str, Mapping[str, Any]] = {
        "structured_outputs (vLLM)": {"structured_outputs": {form.kind: spec}},
        "guided (older vLLM)": {f"guided_{form.kind}": spec},
    }
    match form.kind:
        case "json":
            schema = {"name": "form", "schema": spec, "strict": _strict(spec)}
            known["response_format (OpenAI)"] = {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "regex":
            known["regex (SGLang)"] = {"regex": spec}
        case "grammar":
            known["grammar (llama.cpp)"] = {"grammar": spec}
            known["ebnf (SGLang)"] = {"ebnf": spec}
        case "choice":
            known["regex (SGLang)"] = {"regex": "|".join(f"({re.escape(choice)})" for choice in spec)}
            known["grammar (llama.cpp)"] = {"grammar": "root ::= " + " | ".join(json.dumps(choice) for choice in spec)}
    return known


def _strict(schema: object) -> bool:
    """Whether a schema is of the kind that OpenAI's servers take as strict: objects name all of their fields, require
    them, and allow no others."""
    if isinstance(schema, list):
        return all(map(_strict, schema))
    if not isinstance(schema, dict):
        return True
    fields = schema.get("properties")
    if isinstance(fields, dict):
        required = schema.get("required")
        if schema.get("additionalProperties") is not False or set(required or ()) != set(fields):
            return False
    return all(map(_strict, schema.values()))


async def way(link: Link, dialect: ServerDialect, model: str, kind: str, chat: bool, asked: list[SentRequest]) -> str:
    """Return the name of the way in which a server takes forms of a kind, and add the requests that tried it out to
    `asked`. Raises `Rejected` if there is none, and `ServerError` when the server cannot be asked."""
    known = await _fields(link, chat)
    for name, fields in ways(PROBES[kind]).items():
        if known.issuperset(fields):
            return name
    think = Think(prompt=(Text(text="a"),), sampling=Sampling(max_tokens=8, temperature=0.0))
    for name, fields in ways(PROBES[kind]).items():
        reading = AnswerReading(dialect, think)
        try:
            request = body(dialect, model, think, "a", chat, form=fields)
            asked.append(SentRequest(request, reading, 8, asyncio.get_running_loop().time()))
            stream = link.stream("chat/completions" if chat else dialect.endpoint, request)
            async with contextlib.aclosing(stream) as chunks:
                async for chunk in chunks:
                    reading.feed(chunk)
                    if reading.overran:
                        break
        except ServerError as trouble:
            if trouble.turned_away:
                asked.pop()
            if trouble.unreachable or trouble.status in (401, 403, 429, 503):
                raise
            continue
        if reading.text.strip().startswith("{" if kind == "json" else WORD):
            return name
    raise Rejected(
        f"{link.base_url} takes no form of the kind {kind!r} (tried: {', '.join(ways(PROBES[kind]))}): use a server "
        "that does, such as vLLM, or ask for the form in the prompt"
    )


async def _fields(link: Link, chat: bool) -> frozenset[str]:
    """Return the fields of a request as the server itself describes them (vLLM and SGLang do); none if it does not."""
    with contextlib.suppress(ServerError):
        described = await link.get(f"{link.base_url.removesuffix('/v1')}/openapi.json")
        with contextlib.suppress(KeyError, TypeError):
            schema = "ChatCompletionRequest" if chat else "CompletionRequest"
            return frozenset(described["components"]["schemas"][schema]["properties"])
    return frozenset()
