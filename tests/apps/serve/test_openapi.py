"""The description of the server: real answers fit it, and a client that is generated from it works."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from plait.core.tools.calls import call_text
from plait.workers.http import Http
from plait.workers.scripted import Reply
from tests.conformance.__main__ import upstream

SAID = [{"role": "user", "content": "SAY<hi>"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
REPLIES = (Reply(when="weather", text=f"<think>Look.</think>{call_text('weather', '{}')}"), Reply(text="hi"))


def checked(api: dict[str, Any], method: str, path: str, status: int) -> Draft202012Validator:
    answers = api["paths"][path][method.lower()]["responses"]
    schema = answers["200" if status == 200 else "default"]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": api["components"]})


async def test_answers_fit_their_schemas(serve: Any) -> None:
    async with serve(*REPLIES) as served, httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        api = (await http.get("/openapi.json")).json()
        seen: set[str] = set()

        async def ask(method: str, path: str, body: Any = None, **names: str) -> Any:
            answer = await http.request(method, path.format(**names), json=body)
            data = answer.json()
            checked(api, method, path, answer.status_code).validate(data)
            seen.add(f"{method} {path}" if answer.status_code == 200 else "error")
            return data

        asked = {"model": "scripted", "messages": SAID}
        weather = {**asked, "messages": [{"role": "user", "content": "weather?"}]}
        made = await ask("POST", "/v1/chat/completions", {**asked, "store": True, "plait": {"steps": True}})
        await ask("POST", "/v1/chat/completions", {**weather, "tools": [TOOL]})
        for method in ("GET", "POST", "DELETE"):
            body = {"metadata": {"a": "b"}} if method == "POST" else None
            if method == "DELETE":
                await ask("GET", "/v1/chat/completions")
                await ask("GET", "/v1/chat/completions/{id}/messages", id=made["id"])
            await ask(method, "/v1/chat/completions/{id}", body, id=made["id"])
        await ask("POST", "/v1/completions", {"model": "scripted", "prompt": "a"})
        await ask(
            "POST", "/v1/messages", {**weather, "max_tokens": 50, "tools": [{"name": "weather", "input_schema": {}}]}
        )
        await ask("POST", "/v1/messages/count_tokens", asked)
        tools = [{"type": "function", **TOOL["function"]}]
        response = await ask("POST", "/v1/responses", {"model": "scripted", "input": "weather?", "tools": tools})
        background = await ask("POST", "/v1/responses", {"model": "scripted", "input": "a", "background": True})
        await ask("POST", "/v1/responses/{id}/cancel", id=background["id"])
        for path in ("/input_tokens", "/compact"):
            await ask("POST", f"/v1/responses{path}", {"model": "scripted", "input": "a"})
        for method, path in (("GET", "/input_items"), ("GET", ""), ("DELETE", "")):
            await ask(method, "/v1/responses/{id}" + path, id=response["id"])
        await ask("GET", "/v1/models")
        await ask("GET", "/v1/models/{name}", name="plait/auto")
        await ask("GET", "/version")
        await ask("POST", "/v1/completions", {"model": "scripted"})
    assert "error" in seen
    described = {f"{method.upper()} {path}" for path, methods in api["paths"].items()
                 for method, operation in methods.items() if "200" in operation["responses"]}  # fmt: skip
    unseen = {"POST /tokenize", "POST /detokenize", "GET /tokenizer_info"}  # an upstream answers them, below
    assert described - seen == unseen, "each schema has met an answer"


async def test_the_upstreams_answers_fit_too_and_automatic_strategies_are_listed(serve: Any) -> None:
    with upstream() as base:
        async with serve(workers=[Http(base_url=base)]) as served, httpx.AsyncClient(base_url=served.url) as http:
            api = (await http.get("/openapi.json")).json()
            whole = {"model": "q", "prompt": "SAY<a>", "return_token_ids": True}
            bodies = {"/tokenize": {"prompt": "a b"}, "/detokenize": {"tokens": [0]}, "/v1/completions": whole}
            for path, body in bodies.items():
                answer = await http.post(path, json=body)
                checked(api, "POST", path, answer.status_code).validate(answer.json())
            answer = await http.get("/tokenizer_info")
            checked(api, "GET", "/tokenizer_info", answer.status_code).validate(answer.json())
            names = [card["id"] for card in (await http.get("/v1/models")).json()["data"]]
    assert "plait/auto" in names


@pytest.mark.slow  # the generator is fetched: its bound of typer excludes ours
@pytest.mark.without_keys("the generated client is a process of its own")
async def test_a_generated_client_works(serve: Any, tmp_path: Path) -> None:
    async with serve(*REPLIES) as served, httpx.AsyncClient(base_url=served.url) as http:
        (tmp_path / "api.json").write_text(json.dumps((await http.get("/openapi.json")).json()))
        (tmp_path / "settings.yaml").write_text("post_hooks: []\n")
        uv = str(Path(sys.executable).with_name("uv"))
        command = [uv, "tool", "run", "openapi-python-client@0.29.1", "generate", "--path", "api.json"]
        command += ["--fail-on-warning", "--meta", "none", "--output-path", "generated", "--config", "settings.yaml"]
        done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from generated import Client
from generated.api.default import post_v1_chat_completions as chat, get_v1_models as models
from generated.models import ChatBody, ChatCompletion, ModelList
client = Client(base_url={served.url!r})
listed = models.sync(client=client)
assert isinstance(listed, ModelList) and listed.data[0].id
body = ChatBody.from_dict({{"model": "scripted", "messages": [{{"role": "user", "content": "hello"}}]}})
answer = chat.sync(client=client, body=body)
assert isinstance(answer, ChatCompletion), answer
print(answer.choices[0].message.content, answer.plait.status)
"""
        command = [sys.executable, "-c", code]
        asked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert asked.stdout.split() == ["hi", "done"], asked.stderr
