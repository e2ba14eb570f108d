"""The tool `perplexity` and `takeover` that goes by it, on a real `vllm serve` of SmolLM2."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.core.ops import Plugin
from plait.runtime.client.models import fetched
from plait_research.tools.perplexity import prompt_perplexity
from tests.workers.vllm_server import vllm_server

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.own_engine, pytest.mark.filterwarnings("ignore")]

BEFORE, LIKELY, ODD = (
    "The capital of France is",
    " Paris, and the capital of Italy is Rome.",
    " purple seven (elbow) of.",
)


def expected(model: str, before: str, text: str) -> float:
    """The mean probability of a text's tokens as transformers computes it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids, first = tokenizer(before + text)["input_ids"], len(tokenizer(before)["input_ids"])
    assert tokenizer(before)["input_ids"] == ids[:first], "no token lies across"
    with torch.no_grad():
        rows = torch.log_softmax(network(torch.tensor([ids])).logits[0], dim=-1)
    values = [float(rows[place - 1, ids[place]]) for place in range(first, len(ids))]
    return math.exp(sum(values) / len(values))


async def test_it_is_what_the_model_itself_gives_and_takeover_goes_by_it(tmp_path: Path) -> None:
    model = fetched("smollm2")
    assert model, "fetch the model first: plait model get smollm2"
    wanted = {text: expected(str(model), BEFORE, text) for text in (LIKELY, ODD)}
    options: dict[str, Any] = {
        "draft": {"model": "smollm2", "max_tokens": 12, "temperature": 1.0}, "n": 2,
        "target": {"model": "smollm2", "max_tokens": 12}, "scorer": "perplexity", "threshold": 0.05, "rounds": 2,
    }  # fmt: skip
    log = tmp_path / "server.log"
    room: dict[str, Any] = {"max-model-len": 1024, "kv-cache-memory-bytes": 256 << 20, "dtype": "float32"}
    async with vllm_server(Path(model), "smollm2", log, **room) as worker:
        address = worker.base_url.removesuffix("/v1")
        ask = prompt_perplexity("smollm2", base_url=address)
        told = {text: await ask(text=text, before=BEFORE) for text in wanted}
        async with AsyncOrchestrator(workers=[worker], tools=[ask], journal="off") as orchestrator:
            answer = await orchestrator.run("What is 2 + 3?", planner=Plugin(name="takeover", options=options))
    for text, value in wanted.items():
        assert told[text] == pytest.approx(value, rel=0.02)
    assert told[LIKELY] > 10 * told[ODD]
    scores: Any = answer.data["scores"]  # type: ignore[index, call-overload]
    assert answer.status == "done" and scores
    assert all(0.0 <= score <= 1.0 for row in scores for score in row)
