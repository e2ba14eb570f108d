"""Requests about tokens to an engine in the process: the answers of vLLM's own server, and its scores."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from plait.core.result import Failure
from plait.workers.engine import Engine
from plait.workers.engine.token_requests import read_prompts
from plait.workers.engine.vllm import Core
from plait_server.token_answers import write_completion
from tests.apps.serve.conftest import Serve, serve, situation  # noqa: F401  (fixtures)

from .test_engine import words
from .test_engine_tokens import Lent as LentForRuns

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
TEXT = words(0, 12)


class Lent(LentForRuns):
    """The session's engine, which is also asked for tokens."""

    token_fields = Engine.token_fields

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.forward, self.decode, self.models = engine.forward, engine.decode, engine.models


def vllms_answer(fields: dict[str, Any], outputs: list[Any], engine: Engine) -> dict[str, Any]:
    """Return what vLLM's own server makes of outputs."""
    from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata  # noqa: TID251
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: TID251
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion  # noqa: TID251

    serving = object.__new__(OpenAIServingCompletion)
    serving.return_tokens_as_token_ids = serving.enable_prompt_tokens_details = False
    serving.enable_per_request_metrics, serving.system_fingerprint = False, None
    for output in outputs:
        output.prompt = engine.decode(output.prompt_token_ids)
    request, metadata = CompletionRequest(model="m", **fields), RequestResponseMetadata(request_id="r")
    tokenizer: Any = engine._core and engine._core.prompter.tokenizer
    answer = serving.request_output_to_completion_response(outputs, request, "r", 1, "m", tokenizer, metadata)
    return plain(answer.model_dump(mode="json"))


def plain(value: Any) -> Any:
    """Return an answer as JSON has it, without what is None and what each request has of its own."""
    if isinstance(value, dict):
        own = ("id", "created", "model")
        return {str(key): plain(part) for key, part in value.items() if part is not None and key not in own}
    return [plain(part) for part in value] if isinstance(value, list) else value


GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 4}


async def test_answers_are_those_of_vllms_server(engine: Engine) -> None:
    tokens: Any = await engine.forward("/tokenize", {"prompt": TEXT, "return_token_strs": True})
    ids = tokens["tokens"]
    assert tokens["count"] == len(ids) == len(tokens["token_strs"])
    assert engine.decode(ids).split() == TEXT.split()
    for fields in (
        {"prompt": [ids, ids[:5]], "echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 0},
        {"prompt": ids, "echo": True, "logprobs": 1, "return_token_ids": True, **GREEDY},
        {"prompt": TEXT, "return_token_ids": True, "prompt_logprobs": 1, **GREEDY},
        {"prompt": [TEXT, TEXT], "logprobs": 1, "return_tokens_as_token_ids": True, **GREEDY},
        {"prompt": ids, "n": 3, "logprobs": 0, "temperature": 1, "seed": 1, "max_tokens": 3},
    ):
        outputs: Any = await engine.forward("completions", fields)
        assert isinstance(outputs, list), outputs
        answer = plain(write_completion(fields, outputs, engine.decode))
        assert answer == vllms_answer(fields, outputs, engine)
        assert len(answer["choices"]) == fields.get("n", len(outputs))


async def test_log_likelihoods_are_those_of_vllms_engine(engine: Engine) -> None:
    """vLLM's engine is asked by itself, without anything of plait's."""
    (ids,) = read_prompts({"prompt": TEXT}, engine._core.prompter)  # pyright: ignore[reportOptionalMemberAccess]
    own: list[Any] = []

    def ask(core: Core) -> None:
        from vllm import SamplingParams

        core.engine.add_request("alone", {"prompt_token_ids": ids}, SamplingParams(prompt_logprobs=1, max_tokens=1))
        while not (own and own[-1].finished):
            own.extend(core.engine.step())

    await engine._change(ask)
    fields = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 0}
    outputs: Any = await engine.forward("completions", fields)
    (choice,) = write_completion(fields, outputs, engine.decode)["choices"]
    scores = [row[id_].logprob for id_, row in zip(ids[1:], own[-1].prompt_logprobs[1:], strict=True)]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([None, *scores], abs=1e-6)
    assert len(scores) > 8 and min(scores) < 0


async def test_a_server_over_an_engine_answers_harnesses(
    engine: Engine,
    serve: Serve,  # noqa: F811
) -> None:
    async with serve(workers=[Lent(engine)]) as served, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        model = engine.models[0]
        ids = (await http.post(f"{served.url}/tokenize", json={"prompt": TEXT})).json()["tokens"]
        body = {"model": model, "prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 0}
        answer = (await http.post(f"{served.url}/v1/completions", json=body)).json()
        scores = answer["choices"][0]["logprobs"]["token_logprobs"]
        assert scores[0] is None and all(score < 0 for score in scores[1:]) and len(scores) == len(ids)
        body = {"model": model, "prompt": TEXT, "max_tokens": 3, "return_token_ids": True, "ignore_eos": True}
        (choice,) = (await http.post(f"{served.url}/v1/completions", json=body)).json()["choices"]
        assert len(choice["token_ids"]) == 3 and choice["prompt_token_ids"] == ids
        chat = {"model": model, "messages": [{"role": "user", "content": TEXT}], "return_token_ids": True}
        answer = await http.post(f"{served.url}/v1/chat/completions", json={**chat, "max_tokens": 3})
        assert answer.status_code == 200 and "return_token_ids" in answer.headers["x-plait-ignored"]


async def test_what_cannot_be_answered_has_a_reason_and_a_reader_that_leaves_ends_it(engine: Engine) -> None:
    for fields in ({"prompt": "a", "tools": [1]}, {"prompt": [[]]}, {"prompt": TEXT, "temperature": -1}):
        failure = await engine.forward("completions", fields)
        assert isinstance(failure, Failure) and failure.kind == "Rejected" and not engine._reports
    before = engine.stats()["generated"]
    request = asyncio.ensure_future(
        engine.forward("completions", {"prompt": TEXT, "max_tokens": 400, "ignore_eos": True})
    )
    while engine.stats()["generated"] == before:
        await asyncio.sleep(0.01)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    while engine.stats()["running"]:
        await asyncio.sleep(0.01)
    assert not engine._reports and engine.stats()["generated"] - before < 400
