"""Compaction of conversations behind `/v1/responses`, in OpenAI's form."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply
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


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/compact", {}, "`input` is missing"),
        ("/compact", {"input": 5}, "input"),
        ("/compact", {"input": [{"type": "computer_call"}]}, "computer_call"),
        ("/compact", {"input": [{"type": "compaction"}]}, "encrypted_content is missing"),
        ("", {"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}, "of another server"),
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
        with pytest.raises(openai.APIStatusError, match="no luck"):
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
