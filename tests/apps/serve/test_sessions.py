"""Sessions of clients through the server: what the serving stack behind it gets of two turns of one conversation."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import pytest

from plait.workers.http import Http
from plait_server.sessions import SESSION_HEADERS
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key
from tests.workers.http.fake_server import FakeServer

FIRST = [{"role": "user", "content": "first"}]
SECOND = [*FIRST, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
NAMES = ("x-session-id", "x-dynamo", "x-llm-d-inference")


async def two_turns(
    serve: Any, kind: str, headers: dict[str, str] | None = None, model: str = "plait/single", **fields: Any
) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Send two turns of one conversation; return headers and context of each request that the stack got."""
    async with FakeServer() as server:
        worker = Http(server.url, hints=kind)
        async with serve(workers=[worker]) as served, httpx.AsyncClient(trust_env=False, timeout=60) as http:
            server.headers.clear()
            before = len(server.asked())
            for messages in (FIRST, SECOND):
                body = {"model": model, "messages": messages, "max_tokens": 8, **fields}
                answer = await http.post(f"{served.url}/v1/chat/completions", json=body, headers=headers or {})
                assert answer.status_code == 200, answer.text
        # A tenant's sessions carry the tenant's name, so that no tenant can name another's.
        got = [
            {name: value.removeprefix("me/") for name, value in each.items() if name.startswith(NAMES)}
            for each in server.headers
        ]
        bodies = server.asked()[before:]
    return [(named, body) for named, body in zip([each for each in got if each], bodies, strict=True)]


CLAIMS: list[tuple[dict[str, str], dict[str, Any]]] = [({name: "S"}, {}) for name in SESSION_HEADERS]
CLAIMS += [({}, {"session_id": "S"}), ({}, {"prompt_cache_key": "S"}), ({"x-session-id": "T"}, {"session_id": "S"})]


@pytest.mark.parametrize(("headers", "fields"), CLAIMS)
async def test_the_client_s_session_reaches_the_stack_by_every_name(
    serve: Any, situation: str, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    turns = await two_turns(serve, "vllm", headers, **fields)
    assert [named["x-session-id"] for named, _ in turns] == ["S", "S"]
    mine = "me/S" if situation == "tenant" else "S"
    assert [body["session_id"] for _, body in turns] == [mine, mine]
    for _, body in turns:
        context = json.loads(body["vllm_xargs"]["agentic_context"])
        assert context["program_id"] == context["task_id"] == mine and context["expected_resume"], (
            "a client may continue any answer"
        )


async def test_llm_d_and_dynamo_get_one_session_that_is_not_final(serve: Any) -> None:
    for named, _ in await two_turns(serve, "llm-d", session_id="S"):
        assert named == {"x-session-id": "S", "x-llm-d-inference-fairness-id": "S"}
    for named, _ in await two_turns(serve, "dynamo", session_id="S"):
        assert named == {"x-dynamo-session-id": "S"}


async def test_a_conversation_without_an_id_is_known_by_its_beginning(serve: Any) -> None:
    (first, _), (second, _) = await two_turns(serve, "dynamo")
    assert first == second and first["x-dynamo-session-id"].startswith("~")


async def test_branches_are_children_of_the_session(serve: Any) -> None:
    turns = await two_turns(serve, "dynamo", session_id="S", model="plait/sample:n=3")
    sessions = [named["x-dynamo-session-id"] for named, _ in turns]
    assert sessions.count("S") == 2 and len(set(sessions)) == 5
    assert {named.get("x-dynamo-parent-session-id", "S") for named, _ in turns} == {"S"}


@pytest.mark.parametrize("odd", ["x" * 10_000, "ä\nX-Injected: 1", "~" + "0" * 32])
async def test_an_id_that_no_header_can_hold_is_hashed(serve: Any, odd: str) -> None:
    (first, _), (second, _) = await two_turns(serve, "dynamo", session_id=odd)
    assert first == second and first["x-dynamo-session-id"].startswith("h-") and len(first["x-dynamo-session-id"]) == 34
    assert (await two_turns(serve, "dynamo", {"x-session-id": "x" * 10_000}))[0][0]["x-dynamo-session-id"][:2] == "h-"


@pytest.mark.parametrize("kind", ["vllm", "llm-d", "dynamo"])
async def test_a_client_that_lies_about_its_session_reaches_no_other_tenants(serve: Any, kind: str) -> None:
    keys = {"me": new_key(), "other": new_key()}
    tenants = tuple(Tenant(name=name, keys=(hashed(key),)) for name, key in keys.items())
    sent: dict[str, set[str]] = {}
    async with FakeServer() as server, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        async with serve(workers=[Http(server.url, hints=kind)], tenants=tenants) as served:
            mine = {"authorization": f"Bearer {keys['me']}"}
            ask = {"model": "plait/single", "input": "first", "max_output_tokens": 8, "session_id": "S"}
            answer = await http.post(f"{served.url}/v1/responses", json=ask, headers=mine)
            theirs = {"authorization": f"Bearer {keys['other']}"}
            sent["me"] = seen(server)
            for claim in ("S", "me/S", "../me/S", "me"):
                named = {**theirs, "x-session-id": claim, "x-dynamo-session-id": "me/S"}
                for fields in ({}, {"session_id": claim}, {"prompt_cache_key": claim}):
                    body = {**ask, "session_id": None, **fields}
                    assert (await http.post(f"{served.url}/v1/responses", json=body, headers=named)).status_code == 200
            sent["other"] = seen(server)
            stolen = {**ask, "previous_response_id": answer.json()["id"]}
            assert (await http.post(f"{served.url}/v1/responses", json=stolen, headers=theirs)).status_code == 404
    assert sent["me"] and sent["other"] and not sent["me"] & sent["other"], sent


def seen(server: FakeServer) -> set[str]:
    """Return what identifies sessions in the requests so far, and forget these."""
    known = {value for named in server.headers for name, value in named.items() if name.startswith(NAMES)}
    for body in server.asked():
        context = json.loads(body.get("vllm_xargs", {}).get("agentic_context", "{}"))
        known |= {body["session_id"]} if "session_id" in body else set()
        known |= {str(context[name]) for name in ("program_id", "task_id", "parent_program_id") if name in context}
    server.headers.clear()
    server.requests.clear()
    return known


DIRECT: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "vllm": ({"X-Session-ID": "S"}, {"session_id": "S"}),
    "llm-d": ({"x-session-id": "S", "x-llm-d-inference-fairness-id": "S"}, {}),
    "dynamo": ({"X-Dynamo-Session-ID": "S"}, {}),
}
"""What a client of each stack sends by itself: headers and fields."""
IDENTITY = ("session_id", "prompt_cache_key")


def identity(named: dict[str, str], body: dict[str, Any]) -> dict[str, str]:
    """Return the fields by which a stack identifies a request, and its hints about the time after it."""
    identity = named | {name: body[name].removeprefix("me/") for name in IDENTITY if name in body}
    agent = body.get("nvext", {}).get("agent_hints", {})
    context = json.loads(body.get("vllm_xargs", {}).get("agentic_context", "{}"))
    kept = ("program_id", "task_id", "parent_program_id", "expected_resume", "step_id", "blocks_parent")
    return identity | {name: str(context[name]).removeprefix("me/") for name in kept if name in context} | {
        name: str(value) for name, value in agent.items() if name != "priority"
    }  # fmt: skip


@pytest.mark.parametrize("kind", DIRECT)
async def test_two_turns_are_one_conversation_direct_and_through_plait(
    serve: Any, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pytest -k direct_and_through -s` prints what the stack sees."""
    headers, fields = DIRECT[kind]
    async with FakeServer() as server, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        for messages in (FIRST, SECOND):
            body = {"model": "fake-model", "messages": messages, "max_tokens": 8, **fields}
            assert (await http.post(f"{server.url}/chat/completions", json=body, headers=headers)).status_code == 200
        direct = [
            identity({name: value for name, value in each.items() if name.startswith(NAMES)}, body)
            for each, body in zip(server.headers, server.asked(), strict=True)
        ]
    through = [identity(*turn) for turn in await two_turns(serve, kind, headers, **fields)]
    branches = [identity(*turn) for turn in await two_turns(serve, kind, headers, "plait/sample:n=2", **fields)]
    with capsys.disabled():
        for way, turns in {"direct": direct, "through plait": through, "through plait, two samples": branches}.items():
            for number, turn in enumerate(turns, 1):
                fields_seen = ", ".join(f"{name}={value}" for name, value in turn.items())
                sys.stdout.write(f"| {kind} | {way} | {number} | {fields_seen} |\n")
    assert len(direct) == len(through) == 2 and len(branches) == 4
    for seen, sent in zip(through, direct, strict=True):
        assert seen | sent == seen, "all that a client sends by itself arrives"
    later = {"osl", "step_id"}  # what is learned from the first turn
    assert len({frozenset((name, each[name]) for name in each.keys() - later) for each in through}) == 1
    own = {"vllm": "session_id", "llm-d": "x-session-id", "dynamo": "x-dynamo-session-id"}[kind]
    assert [each[own] for each in branches].count("S") == 2, "one trajectory of each turn continues the session"
