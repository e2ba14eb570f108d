"""`POST /agui`: the events that frontends of the AG-UI protocol get, each of them valid by its package."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from plait import ToolContext, tool
from plait.workers.scripted import Reply
from plait_server.settings import Tenant
from plait_server.tenants import hashed

ag: Any = pytest.importorskip("ag_ui.core")
ASK: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "6 × 7?"}]}
WEATHER = {"name": "weather", "description": "Tell it.", "parameters": {"type": "object", "properties": {"city": {}}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


async def post(served: Any, key: str = "", **fields: Any) -> list[Any]:
    """Return the events of a request, read as the protocol has them."""
    from pydantic import TypeAdapter

    event: Any = TypeAdapter(ag.Event)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.post(f"{served.url}/agui", json={**ASK, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    rows = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    return [event.validate_json(row) for row in rows]


def kinds(events: list[Any]) -> list[str]:
    return [event.type.value for event in events]


def text(events: list[Any], kind: str = "TEXT_MESSAGE_CONTENT") -> str:
    return "".join(event.delta for event in events if event.type.value == kind)


async def test_an_answer_is_a_text_message_while_it_is_written(serve: Any) -> None:
    count = " ".join(map(str, range(40)))
    async with serve(Reply(text=f"<think>hm hm</think>{count}", tokens_per_second=50)) as served:
        events = await post(served)
    found = kinds(events)
    assert found[0] == "RUN_STARTED" and found[-1] == "RUN_FINISHED" and found.count("TEXT_MESSAGE_CONTENT") > 1
    assert text(events) == count and text(events, "REASONING_MESSAGE_CONTENT") == "hm hm"
    assert found.index("REASONING_MESSAGE_END") < found.index("TEXT_MESSAGE_START")
    assert {(event.thread_id, event.run_id) for event in (events[0], events[-1])} == {("t", "r")}
    assert events[-1].outcome.type == "success" and events[-1].usage[0].output_tokens > 0
    assert events[-1].metadata["plait"]["run"] == events[0].metadata["plait"]["run"]


async def test_branches_are_reasoning_messages_side_by_side(serve: Any) -> None:
    async with serve("so it is. answer: 42") as served:
        events = await post(served, forwardedProps={"model": "plait/sample:n=3@q", "temperature": 0.5})
    started = [event.message_id for event in events if event.type.value == "REASONING_MESSAGE_START"]
    steps = [event.step_name for event in events if event.type.value == "STEP_STARTED"]
    ended = [event.step_name for event in events if event.type.value == "STEP_FINISHED"]
    assert len(set(started)) == 3 and len(set(steps)) == 3 and sorted(steps) == sorted(ended)
    assert text(events) == "42"


async def test_branches_are_left_out_where_nobody_wants_them(serve: Any) -> None:
    async with serve("so it is. answer: 42") as served:
        events = await post(served, forwardedProps={"model": "plait/sample:n=3", "plait": {"steps": False}})
    assert set(kinds(events)) == {"RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
                                  "RUN_FINISHED"}  # fmt: skip


async def test_a_function_of_the_frontend_is_called_and_its_result_read(serve: Any) -> None:
    async with serve(Reply(when="sunny", text="It is sunny."), Reply(text=CALL)) as served:
        events = await post(served, tools=[WEATHER])
        (start,) = [event for event in events if event.type.value == "TOOL_CALL_START"]
        assert start.tool_call_name == "weather" and events[-1].outcome.pending_tool_call_ids == [start.tool_call_id]
        assert json.loads(text(events, "TOOL_CALL_ARGS")) == {"city": "Rome"}
        call = {"id": start.tool_call_id, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        told = [
            *ASK["messages"],
            {"id": "2", "role": "reasoning", "content": "hm"},
            {"id": "3", "role": "assistant", "toolCalls": [call]},
            {"id": "4", "role": "tool", "toolCallId": start.tool_call_id, "content": "sunny"},
        ]
        assert text(await post(served, tools=[WEATHER], messages=told)) == "It is sunny."


async def test_context_and_parts_are_told_to_the_model(serve: Any) -> None:
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "am I?"}]
    async with serve(Reply(when=r"(?s)user: Ann.*Who am I\?", text="Ann."), Reply(text="nobody")) as served:
        events = await post(
            served, context=[{"description": "user", "value": "Ann"}],
            messages=[{"id": "1", "role": "user", "content": parts}],
        )  # fmt: skip
        assert text(events) == "Ann."


@tool(approve=True)
async def pay(sum: int, ctx: ToolContext) -> str:
    """Pay."""
    return f"paid {sum}: {await ctx.ask('from which account?', choices=['A', 'B'])}"


PAYS = {"plan": {"steps": [{"name": "p", "op": {"kind": "call", "tool": "pay", "args": {"sum": 5}}}], "output": "p"}}


@pytest.mark.without_keys("who asks is the operator: of tenants only those that approve allow calls, and none its own")
async def test_a_question_is_an_interrupt_and_its_answer_goes_on(serve: Any) -> None:
    async with serve(tools=[pay]) as served:
        first = await post(served, forwardedProps={"plait": PAYS})
        (approval,) = first[-1].outcome.interrupts
        assert approval.reason == "approval_required" and len(served.service.live) == 1, "the run waits"
        resume = {"interruptId": approval.id, "status": "resolved", "payload": True}
        second = await post(served, resume=[resume], forwardedProps={"plait": {"steps": True}})
        (asked,) = second[-1].outcome.interrupts
        assert asked.message == "from which account?" and asked.response_schema == {"enum": ["A", "B"]}
        resume = {"interruptId": asked.id, "status": "resolved", "payload": "B"}
        third = await post(served, resume=[resume])
        assert text(third) == "paid 5: B" and third[-1].outcome.type == "success"


async def test_a_question_that_is_not_answered_ends_the_run(serve: Any) -> None:
    async with serve(tools=[pay]) as served:
        (approval,) = (await post(served, forwardedProps={"plait": PAYS}))[-1].outcome.interrupts
        events = await post(served, resume=[{"interruptId": approval.id, "status": "cancelled"}])
        assert events[-1].outcome.type == "cancelled"


async def test_whose_run_it_is_answers_and_nobody_allows_a_call_of_its_own(serve: Any) -> None:
    tenants = tuple(Tenant(name=name, keys=(hashed(name),), approves=True) for name in ("ann", "ben"))
    async with serve(tools=[pay], tenants=tenants) as served, httpx.AsyncClient(trust_env=False) as http:
        events = await post(served, "ann", forwardedProps={"plait": PAYS})
        (approval,) = events[-1].outcome.interrupts
        body = {**ASK, "resume": [{"interruptId": approval.id, "status": "resolved", "payload": True}]}
        for key, status, code in (("ben", 404, "interrupt_not_found"), ("ann", 403, "not-allowed")):
            said = await http.post(f"{served.url}/agui", json=body, headers={"authorization": f"Bearer {key}"})
            assert (said.status_code, said.json()["error"]["code"]) == (status, code)
        assert (await http.post(f"{served.url}/agui", json=ASK)).status_code == 401
        for live in list(served.service.live.values()):
            live.handle.cancel()
            await live.handle


async def test_a_failure_is_a_run_error(serve: Any) -> None:
    async with serve(Reply(text="no memory", finish="error")) as served:
        events = await post(served)
        assert kinds(events)[-1] == "RUN_ERROR" and "the model's server failed" in events[-1].message


async def test_without_the_package_it_says_what_to_install(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as served, httpx.AsyncClient(trust_env=False) as http:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        said = await http.post(f"{served.url}/agui", json=ASK)
        assert said.status_code == 501 and "plait[agui]" in said.json()["error"]["message"]
