"""pydantic-ai, LangChain and the OpenAI Agents SDK against the server, each in whatever environment has it.

`CLIENTS_PYTHON` names a Python that has them (`pip install pydantic-ai-slim[openai] langchain-openai openai-agents`
into an environment of its own); by default it is this one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from plait.workers.scripted import Reply

CLIENTS = ("pydantic_ai", "langchain_openai", "agents")


@pytest.mark.slow
async def test_other_peoples_clients_find_what_they_expect(serve, root):
    city = '{"name": "Rome", "people": 3}'
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    replies = [
        Reply(when="sunny", text="It is sunny."),
        Reply(when="the weather", text=call),
        Reply(when="a city", text=city),
        Reply(text="fine"),
    ]
    python = os.environ.get("CLIENTS_PYTHON", sys.executable)
    async with serve(*replies) as served:
        child = await asyncio.create_subprocess_exec(
            python, str(root / "tests/apps/serve/clients_child.py"), served.base, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await child.communicate()
    checks = [json.loads(line) for line in said.splitlines()]
    missing = [each["client"] for each in checks if each["problem"] == "not installed"]
    wrong = [each for each in checks if each["problem"] and each["client"] not in missing]
    assert {each["client"] for each in checks} == set(CLIENTS)
    assert not wrong, json.dumps(wrong, indent=1)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; name a Python that has them in CLIENTS_PYTHON")
