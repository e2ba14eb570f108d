"""No client holds up another: whatever a body says, the event loop goes on."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply
from plait_server.http import BodyShape

_EVIL = "(a+)+$"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SAID = "a" * 40 + "!"
_ASK: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "x"}]}


def _plan(*steps: dict[str, Any], output: str) -> dict[str, Any]:
    return {**_ASK, "plait": {"plan": {"steps": list(steps), "output": output}}}


def _think(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "op": {"kind": "think", "prompt": name}, **more}


def _join(name: str, needs: list[str], merge: Any = None) -> dict[str, Any]:
    op = {"kind": "join"} if merge is None else {"kind": "join", "merge": merge}
    return {"name": name, "needs": needs, "op": op}


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {**_ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


EXPRESSIONS = {
    "the answer of a task": {
        **_ASK, "plait": {"task": {"name": "plain", "options": {"where": "regex", "pattern": _EVIL}}}
    },
    "a pattern of a schema": _schema({"type": "object", "properties": {"x": {"pattern": f"^{_EVIL}"}}}),
    "a pattern of a part with a dialect": _schema(
        {"type": "object", "properties": {"x": {"$schema": _DRAFT, "pattern": f"^{_EVIL}"}}}
    ),
    "a pattern behind a reference to the whole": _schema(
        {"$schema": _DRAFT, "properties": {"y": {"pattern": f"^{_EVIL}"}, "x": {"$ref": "#/properties/y"}},
         "type": "object", "not": {"required": ["x"], "properties": {"x": {"$ref": "#"}}}, "pattern": f"^{_EVIL}"}
    ),
    "a name of a schema": _schema({"type": "object", "patternProperties": {_EVIL: {}}, "additionalProperties": False}),
    "the goal of a merge": _plan(
        _think("a"), _join("j", ["a"], {"name": "splice", "options": {"block": {"goal": _EVIL}}}), output="j"
    ),
    "a dialect of threads": {
        **_ASK,
        "plait": {"planner": {"name": "threads", "options": {"dialect": {
            "fork": "!", "item": _EVIL, "separator": ";", "join": {"goal": _EVIL, "claim_item": _EVIL}}}}},
    },
}  # fmt: skip


@pytest.mark.parametrize("body", EXPRESSIONS.values(), ids=EXPRESSIONS)
async def test_an_expression_holds_nobody_up(serve, body):
    said = f'{{"x": "{_SAID}", "{_SAID}": 1}}' if "response_format" in body else _SAID
    async with serve(Reply(text=said)) as served, httpx.AsyncClient(timeout=300) as http:
        began = time.process_time()
        answer = await http.post(f"{served.base}/chat/completions", json=body)
        assert answer.status_code in (200, 400, 500), answer.text
        assert (await http.get(f"{served.url}/healthz")).status_code == 200
        assert time.process_time() - began < 2


@pytest.mark.parametrize("pattern", [r"(?=a)", r"(a)\1", "("])
async def test_an_expression_that_cannot_run_so_is_refused_in_words(serve, pattern):
    bodies = [
        {**_ASK, "plait": {"task": {"name": "plain", "options": {"where": "regex", "pattern": pattern}}}},
        _schema({"type": "object", "properties": {"x": {"pattern": pattern}}}),
        _plan(_think("a"), _join("j", ["a"], {"name": "splice", "options": {"block": {"goal": pattern}}}), output="j"),
    ]
    async with serve() as served, httpx.AsyncClient() as http:
        for body in bodies:
            answer = await http.post(f"{served.base}/chat/completions", json=body)
            assert answer.status_code == 400 and "regular expression" in answer.json()["error"]["message"], answer.text


async def test_a_schema_that_leads_elsewhere_is_refused(serve):
    async with serve() as served, httpx.AsyncClient() as http:
        for ref in ("https://example.org/x.json", "#/$defs/nope"):
            answer = await http.post(f"{served.base}/chat/completions", json=_schema({"$ref": ref, "type": "object"}))
            assert answer.status_code == 400 and "not in it" in answer.json()["error"]["message"], answer.text


def test_a_string_that_does_not_end_is_read_in_the_time_that_its_length_takes():
    """Each of its quotes behind a backslash was taken for another beginning: 40 kB of them took 5 seconds."""
    shape = BodyShape()
    began = time.process_time()
    shape.feed(b'{"model":"' + b'\\"' * 500_000)
    shape.feed(b'",[1,2]')
    assert shape.values == 4 and time.process_time() - began < 2
