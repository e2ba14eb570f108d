"""Compaction of conversations behind `/v1/responses`, in OpenAI's form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply
from plait_server.response_store import StoredResponse
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key

openai = pytest.importorskip("openai")

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "Where is the key?"}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "long " * 200 + "under the mat"},
    {"role": "assistant", "content": "I looked."},
    {"role": "user", "content": "So where?"},
]
SUMMARY = Reply(when="messages above but", text="The key is under the mat.")
AFTER = Reply(when="summary:\nThe key is under the mat", text="Under the mat.")
BEFORE = Reply(text="I do not know.")


async def test_a_conversation_is_compacted_and_continued(serve):
    async with serve(SUMMARY, AFTER, BEFORE) as served:
        client = served.client()
        compacted = await client.responses.compact(model="qwen", input=TALK)
        assert (compacted.object, compacted.usage.output_tokens) == ("response.compaction", 6)
        *kept, item = [item.to_dict(warnings=False) for item in compacted.output]
        assert [(each["role"], each["content"][0]["text"]) for each in kept] == [
            ("system", "Be brief."),
            ("user", "Where is the key?"),
            ("user", "So where?"),
        ]
        assert item["type"] == "compaction"
        said = await client.responses.create(model="qwen", input=[*kept, item, {"role": "user", "content": "Well?"}])
        assert said.output_text == "Under the mat."


async def test_a_stored_response_is_compacted(serve):
    async with serve(SUMMARY, AFTER, BEFORE) as served:
        client = served.client()
        first = await client.responses.create(model="qwen", input=TALK)
        compacted = await client.responses.compact(model="qwen", previous_response_id=first.id)
        assert [item.type for item in compacted.output] == ["message", "message", "message", "compaction"]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(compacted.id)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_beyond_the_threshold_is_compacted_first(serve, stream):
    async with serve(SUMMARY, AFTER, BEFORE) as served:
        client = served.client()
        rule = [{"type": "compaction", "compact_threshold": 100}]
        said = await client.responses.create(model="qwen", input=TALK, context_management=rule, stream=stream)
        if stream:
            events = [event async for event in said]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            done = [event for event in events if event.type == "response.output_item.done"]
            assert [(event.output_index, event.item.type) for event in done] == [(0, "compaction"), (1, "message")]
            said = events[-1].response
        assert [item.type for item in said.output] == ["compaction", "message"]
        assert said.output_text == "Under the mat."
        stored = await client.responses.retrieve(said.id)
        assert [item.type for item in stored.output] == ["compaction", "message"]
        following = await client.responses.create(model="qwen", input="Sure?", previous_response_id=said.id)
        assert following.output_text == "Under the mat."


async def test_a_summary_outlives_the_process_of_its_response(serve, monkeypatch):
    async with serve("fine") as served:
        api = served.service.on_run_taken_over.__self__
        user: Any = None
        output = [{"type": "compaction", "id": "cmp_1"}, {"type": "message", "id": "msg_1"}]
        stored = StoredResponse({"id": "resp_1", "output": output, "status": "in_progress"}, user, None, [], [], True)

        async def load(name: str, user: Any) -> StoredResponse:
            return stored

        async def add(response: StoredResponse) -> None:
            return None

        monkeypatch.setattr(api._store, "load", load)
        monkeypatch.setattr(api._store, "add", add)
        monkeypatch.setattr(api, "_follow_run", lambda response, live: None)
        await api.continue_run(SimpleNamespace(handle=SimpleNamespace(run="1"), user=None))
        assert stored.response["output"] == output[:1]


async def test_a_request_whose_summary_is_empty_is_an_error(serve):
    async with serve(Reply(when="messages above but", text=" "), BEFORE) as served:
        rule = [{"type": "compaction", "compact_threshold": 100}]
        with pytest.raises(openai.InternalServerError, match="no summary"):
            await served.client().responses.create(model="qwen", input=TALK, context_management=rule)


async def test_a_conversation_below_the_threshold_stays(serve):
    async with serve(SUMMARY, AFTER, BEFORE) as served:
        rule = [{"type": "compaction", "compact_threshold": 10_000}]
        said = await served.client().responses.create(model="qwen", input=TALK, context_management=rule)
        assert [item.type for item in said.output] == ["message"]
        assert said.output_text == "I do not know."


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/compact", {}, "`input` is missing"),
        ("/compact", {"input": 5}, "input"),
        ("/compact", {"input": [{"type": "computer_call"}]}, "computer_call"),
        ("/compact", {"input": [{"type": "compaction"}]}, "encrypted_content is missing"),
        ("", {"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}, "of another server"),
        ("", {"input": "x", "context_management": [{"type": "compaction"}]}, "compact_threshold"),
        (
            "",
            {"input": "x", "context_management": [{"type": "compaction", "compact_threshold": 0}]},
            "compact_threshold",
        ),
        ("", {"input": "x", "context_management": [{"type": "other", "compact_threshold": 9}]}, "context_management"),
    ],
)
async def test_a_body_that_cannot_be_compacted_is_refused(serve, path, body, error):
    async with serve() as served, httpx.AsyncClient() as http:
        headers = {"authorization": f"Bearer {served.key}"}
        said = await http.post(f"{served.base}/responses{path}", json={"model": "q", **body}, headers=headers)
    assert said.status_code == 400, said.text
    assert error in said.json()["error"]["message"]


async def test_an_empty_summary_is_an_error_that_may_be_tried_again(serve):
    async with serve(Reply(when="messages above but", text=" "), BEFORE) as served:
        with pytest.raises(openai.InternalServerError, match="The model wrote no summary"):
            await served.client().responses.compact(model="qwen", input=TALK)


async def test_a_failed_summary_is_the_error_of_the_run(serve):
    async with serve(Reply(when="messages above but", text="no luck", finish="error"), BEFORE) as served:
        with pytest.raises(openai.APIStatusError, match="the model's server failed"):
            await served.client().responses.compact(model="qwen", input=TALK)


async def test_a_response_of_another_tenant_is_not_found(serve):
    mine, others = new_key(), new_key()
    tenants = (Tenant(name="me", keys=(hashed(mine),)), Tenant(name="other", keys=(hashed(others),)))
    async with serve(SUMMARY, AFTER, BEFORE, tenants=tenants) as served:
        first = await served.client(mine).responses.create(model="qwen", input=TALK)
        with pytest.raises(openai.NotFoundError):
            await served.client(others).responses.compact(model="qwen", previous_response_id=first.id)
        with pytest.raises(openai.AuthenticationError):
            await served.client("sk-none").responses.compact(model="qwen", previous_response_id=first.id)
        assert (await served.client(mine).responses.compact(model="qwen", previous_response_id=first.id)).output
