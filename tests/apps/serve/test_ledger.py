"""The ledger of fields: complete for the packages that are installed, and what it says of a field is what happens."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.workers.http import Http
from plait.workers.scripted import Reply, Scripted
from plait_server.app import BODIES
from plait_server.bodies import Body
from plait_server.chat import ChatBody
from plait_server.fields import LEDGER, find_row, is_set
from plait_server.response_body import ResponseBody
from plait_server.settings import Tenant
from plait_server.tenants import hashed
from tests.workers.http.fake_server import FakeServer

SGLANG = Path(__file__).with_name("sglang_fields.txt")
"""Names of the fields of SGLang's protocol (sglang 0.5.23, and its repository at 004c82e0): it cannot be installed
beside vLLM."""
OF_VLLM_033 = ("return_weight_versions",)
"""Fields of vLLM 0.33.0 that 0.32.0, whose build for CPUs is the newest, has not."""
ENDPOINTS = {"chat": "ChatCompletionRequest", "completions": "CompletionRequest", "responses": "ResponsesRequest"}


def of_openai(endpoint: str) -> set[str]:
    pytest.importorskip("openai")
    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    made: Any = {
        "chat": (chat.CompletionCreateParamsBase, chat.CompletionCreateParamsStreaming),
        "completions": (completions.CompletionCreateParamsBase, completions.CompletionCreateParamsStreaming),
        "responses": (responses.ResponseCreateParamsBase, responses.ResponseCreateParamsStreaming),
    }
    return {name for kind in made[endpoint] for name in kind.__annotations__}


def of_vllm(endpoint: str) -> set[str]:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    folder = {"chat": "chat_completion", "completions": "completion"}.get(endpoint, endpoint)
    text = (Path(spec.origin).parent / "entrypoints/openai" / folder / "protocol.py").read_text()
    (cls,) = (each for each in ast.parse(text).body if getattr(each, "name", "") == ENDPOINTS[endpoint])
    return fields_of(cls)


def fields_of(cls: Any) -> set[str]:
    names = {
        each.target.id for each in cls.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("names", [of_openai, of_vllm])
def test_each_field_of_the_packages_has_a_row(names: Any, endpoint: str) -> None:
    found = names(endpoint)
    assert len(found) > 15, "the package is laid out in another way"
    assert not {name for name in found if find_row(name, endpoint) is None}


def test_each_field_of_what_is_not_installed_has_a_row() -> None:
    assert not {name for name in (*SGLANG.read_text().split(), *OF_VLLM_033) if find_row(name) is None}


@pytest.mark.parametrize("body", [Body, *BODIES])
def test_what_is_honoured_is_read_and_what_is_passed_on_is_not(body: type[Body]) -> None:
    for name in body.model_fields:
        row = find_row(name, body.table.endpoint)
        assert row is not None and row.support != "passed on", f"{name} is a field of {body.__name__}"
    read = {name for kind in (Body, *BODIES) for name in kind.model_fields}
    honoured = {name.rpartition(".")[2] for name, row in LEDGER.items() if row.support == "honoured"}
    assert honoured <= read | {"prompt"}


def test_values_that_say_what_happens_anyway_ask_for_nothing() -> None:
    assert not is_set("best_of", 1) and not is_set("store", False) and not is_set("logit_bias", {})
    assert is_set("best_of", 2) and is_set("user", "ann") and is_set("nonsense", 1)


ASK: dict[str, Any] = {"model": "fake-model", "messages": [{"role": "user", "content": "?"}]}
PASSED = {"min_tokens": 2, "stop_token_ids": [7], "vllm_xargs": {"mine": "1"}, "mm_processor_kwargs": {"a": 1}}


async def post(served: Any, body: dict[str, Any], path: str = "chat/completions", key: str = "none") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.post(f"{served.base}/{path}", json=body, headers={"authorization": f"Bearer {key}"})


@pytest.mark.without_keys("a tenant's priority and extra fields are the server's, and named as ignored")
async def test_fields_reach_the_upstream_or_are_named(serve: Any) -> None:
    async with (
        FakeServer(forms=("structured_outputs",), owner="vllm") as fake,
        serve(workers=[Http(fake.url)]) as served,
    ):
        sent = {**PASSED, "cache_salt": "mine", "priority": 3, "user": "ann", "return_hidden_states": True,
                "extra_body": {"x": 1}, "non sense": 1, "prediction": {"type": "content", "content": "x"}}  # fmt: skip
        answer = await post(served, {**ASK, **sent})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-plait-ignored"] == "prediction, user, return_hidden_states, extra_body, 1 more"
        got = fake.asked()[-1]
        xargs = got["vllm_xargs"]
        assert xargs["mine"] == "1" and "agentic_context" in xargs, "the caller's hints, and ours"
        assert {name: got[name] for name in PASSED if name != "vllm_xargs"} | {"vllm_xargs": {"mine": "1"}} == PASSED
        assert got["cache_salt"] == "mine" and got["priority"] > 0
        for field, form in (
            ("structured_outputs", {"choice": ["a", "b"]}),
            ("guided_choice", ["a", "b"]),
        ):
            assert (await post(served, {**ASK, field: form})).json()["choices"][0]["message"]["content"].strip() == "a"
            assert fake.asked()[-1]["structured_outputs"] == {"choice": ["a", "b"]}
        assert (await post(served, {**ASK, "guided_json": '{"type": "object"}'})).json()["plait"]["answer"] == {"n": 1}


async def test_an_answer_goes_on_from_what_the_assistant_has_begun(serve: Any) -> None:
    begun = [*ASK["messages"], {"role": "assistant", "content": "It is"}]
    async with FakeServer() as fake, serve(workers=[Http(fake.url)]) as served:
        for model in ("plait/single", "plait/sample:n=2"):
            sent = {
                **ASK,
                "model": model,
                "messages": begun,
                "continue_final_message": True,
                "add_generation_prompt": False,
            }
            assert (await post(served, sent)).status_code == 200
            assert fake.asked()[-1]["messages"] == begun and fake.asked()[-1]["continue_final_message"]
        await post(served, {**ASK, "messages": begun})
        assert fake.asked()[-1]["messages"] == begun and "continue_final_message" not in fake.asked()[-1]
        wrong = await post(served, {**ASK, "continue_final_message": True})
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "continue_final_message"


async def test_thoughts_are_left_out_where_the_body_says_so(serve: Any) -> None:
    async with serve("<think>hm</think>fine") as served:
        for stream in (False, True):
            assert "hm" in (await post(served, {**ASK, "stream": stream})).text
            assert "hm" not in (await post(served, {**ASK, "stream": stream, "include_reasoning": False})).text


async def test_a_strict_server_refuses_what_it_would_ignore(serve: Any) -> None:
    async with serve("fine", strict=True) as served:
        for field, code in (("nonsense", "unknown_parameter"), ("prompt_logprobs", "unsupported_parameter")):
            error = (await post(served, {**ASK, field: 1})).json()["error"]
            assert (error["code"], error["param"]) == (code, field)
        kept = await post(served, {**ASK, "user": "ann"})
        assert kept.status_code == 200 and kept.headers["x-plait-ignored"] == "user"


async def test_what_is_refused_says_why_at_every_endpoint(serve: Any) -> None:
    async with serve("fine") as served:
        for path, base, body in (
            ("chat/completions", ASK, ChatBody),
            ("responses", {"model": "q", "input": "?"}, ResponseBody),
        ):
            for name, row in LEDGER.items():
                bare = name.rpartition(".")[2]
                if row.support == "refused" and find_row(bare, body.table.endpoint) is row:
                    answer = await post(served, {**base, bare: 2}, path)
                    assert answer.status_code == 400 and answer.json()["error"]["param"] == bare, (path, name)


async def test_a_tenant_passes_on_what_its_rights_allow(serve: Any) -> None:
    tenants = (Tenant(name="ann", keys=(hashed("k"),), salted=False),)
    async with FakeServer() as fake, serve(workers=[Http(fake.url)], tenants=tenants) as served:
        sent = {**ASK, "min_tokens": 1, "chat_template": "x", "cache_salt": "mine", "priority": 5}
        answer = await post(served, sent, key="k")
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-plait-ignored"] == "chat_template, cache_salt, priority"
        assert fake.asked()[-1]["min_tokens"] == 1
        assert not {"chat_template", "cache_salt", "priority"} & fake.asked()[-1].keys()


async def test_a_worker_that_does_not_take_a_field_is_not_given_it(serve: Any) -> None:
    worker = Scripted([Reply(text="fine")])
    worker.extra_body = ("min_tokens",)
    async with serve(workers=[worker]) as served:
        answer = await post(served, {**ASK, "min_tokens": 1, "lora_path": "x"})
        assert answer.headers["x-plait-ignored"] == "lora_path"


async def test_mistakes_of_clients_are_400(serve: Any) -> None:
    heard = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    seen = [{"role": "user", "content": [{"type": "text", "text": "what?"}, picture]}]
    async with serve("fine") as served:
        for sent, code in (
            ({"messages": seen}, "rejected"),
            ({"messages": heard}, "unsupported_parameter"),
            ({"model": "plait/llmcompiler"}, "planner-error"),
        ):
            answer = await post(served, {**ASK, **sent})
            assert answer.status_code == 400 and answer.json()["error"]["code"] == code


@pytest.mark.without_keys("extra fields of a tenant do not reach the upstream, but those of `extra_body`")
async def test_a_field_that_the_upstream_refuses_is_a_mistake_of_the_client(serve: Any) -> None:
    async with FakeServer(strict=True) as fake, serve(workers=[Http(fake.url)]) as served:
        answer = await post(served, {**ASK, "include_stop_str_in_output": True})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "rejected"


async def test_messages_come_with_fields_of_their_clients(serve: Any) -> None:
    call = {
        "id": "a",
        "type": "function",
        "index": 0,
        "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}},
    }
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": None,
            "parsed": None,
            "annotations": [],
            "refusal": None,
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "a", "content": "4", "artifact": 1},
    ]
    async with FakeServer() as fake, serve(workers=[Http(fake.url)]) as served:
        assert (await post(served, {**ASK, "messages": talk})).status_code == 200
        assert fake.asked()[-1]["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


async def test_an_answer_that_calls_a_function_has_no_other_form(serve: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["n"]}}}
    async with serve('<tool_call>{"name": "f", "arguments": {}}</tool_call>') as served:
        for choice in ("auto", "required"):
            for model in ("plait/single", "plait/sample:n=2"):
                sent = {**ASK, "model": model, "tools": [tool], "tool_choice": choice, "response_format": form}
                answer = await post(served, sent)
                assert answer.status_code == 200, answer.text
                assert [each["function"]["name"] for each in answer.json()["choices"][0]["message"]["tool_calls"]] == [
                    "f"
                ]
        answer = await post(served, {**ASK, "response_format": form})
        assert answer.status_code == 500, "without tools it is a text of the wrong form"
