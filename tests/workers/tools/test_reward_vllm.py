"""The tool `reward` against real vLLM: servers, and engines of its own, of small random models with a head."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait import AsyncOrchestrator
from plait.core.call_config import CallConfig
from plait.core.ops import Plugin
from plait.planners.search.tree import Tree
from plait.workers.engine import Engine
from plait_research.tools import reward
from plait_research.tools.reward import build_model_input, reward_model, tokenizer_of

from ..byte_model import build_bytes
from ..reward_models import TEXTS, numbers, probability, with_head
from ..vllm_server import vllm_process

pytestmark = [pytest.mark.slow, pytest.mark.engine]

ENGINE = {"dtype": "float32", "kv_cache_memory_bytes": 32 << 20, "slots": 16, "threads": 1}


async def waited(address: str, process: Any, log: Path) -> None:
    async with httpx.AsyncClient() as client:
        while True:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]  # noqa: ASYNC240
            try:
                if (await client.get(f"{address}/health", timeout=2)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("labels", [1, 2])
async def test_a_server_and_an_engine_say_what_the_weights_say(tmp_path: Path, labels: int) -> None:
    folder, log = with_head(tmp_path / "model", labels), tmp_path / "server.log"
    wanted = [probability(folder, text) for text in TEXTS]
    forms: tuple[Any, ...] = ("classify", "pooling", "score") if labels == 1 else ("classify", "pooling")
    with vllm_process(folder, "judge", log, runner="pooling", dtype="float32") as (address, process):
        await waited(address, process, log)
        for form in forms:
            tool = reward_model("judge", base_url=f"{address}/v1", endpoint=form)
            said = [await tool.fn(text=text[2:], question=text[:2]) for text in TEXTS]
            assert said == pytest.approx(wanted, abs=0.01), form
    for form in forms:
        tool = reward_model(str(folder), endpoint=form, engine=ENGINE)
        said = await asyncio.gather(*(tool.fn(text=text[2:], question=text[:2]) for text in TEXTS))
        assert said == pytest.approx(wanted, abs=0.01), form
    assert len({round(each, 3) for each in wanted}) > 1, "texts are told apart"


SOLUTION = {"question": "2+2?", "text": "add 2 and 2\n\nso it is 4"}
ROLES = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
"""A chat template without the signs of the marks."""


def with_template(folder: Path) -> Path:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": ROLES}))
    return folder


@pytest.mark.parametrize("style", ["qwen-prm", "skywork", "math-shepherd", "rlhflow"])
async def test_process_reward_models_of_each_style_are_served(
    tmp_path: Path, style: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small random ones: what is read is what transformers says at the last step's place."""
    monkeypatch.setattr(reward, "_LIKELIEST", 257)  # the whole vocabulary: they were not trained to write marks
    heads = {"qwen-prm": 2, "skywork": 1}
    if style in heads:
        folder = with_template(with_head(tmp_path / "model", heads[style]))
    else:
        folder = with_template(build_bytes(tmp_path / "model"))
    order = build_model_input(style, tokenizer_of(str(folder)), **SOLUTION)
    runner, log = "pooling" if style in heads else "generate", tmp_path / "server.log"
    rows = numbers(folder, order.ids, style in heads)[order.places[-1]]
    if order.words is not None:
        right, wrong = (math.exp(rows[each]) for each in order.words)
        wanted = right / (right + wrong)
    else:
        wanted = 1 / (1 + math.exp(-rows[0])) if len(rows) == 1 else 1 / (1 + math.exp(rows[0] - rows[1]))
    flags = ('--pooler-config={"task": "token_classify"}',) if style in heads else ("--max-logprobs=300",)
    with vllm_process(folder, "judge", log, *flags, runner=runner, dtype="float32") as (address, process):
        await waited(address, process, log)
        tool = reward_model("judge", base_url=f"{address}/v1", style=style, tokenizer=str(folder))
        assert await said_of(tool) == pytest.approx(wanted, abs=0.01)
    if style in heads:
        assert await said_of(reward_model(str(folder), style=style, engine=ENGINE)) == pytest.approx(wanted, abs=0.01)


async def said_of(tool: Any) -> float:
    return await tool.fn(**SOLUTION)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("weight", [1.0, float("nan")])
async def test_a_search_is_scored_beside_the_engine_that_writes(tmp_path: Path, engine: Engine, weight: float) -> None:
    """The scores are those of the nodes' texts; a head that says NaN leaves every node unknown, and counted."""
    folder = with_head(tmp_path / "model", 1, weight)
    asked: dict[str, float] = {}
    tool = reward_model(str(folder), engine=ENGINE)
    inner = tool.fn

    async def kept(text: str, question: str = "") -> float:
        asked[question + text] = await inner(text=text, question=question)
        return asked[question + text]

    tool.fn = kept
    beam = Plugin(name="beam", options={"keep": 2, "branch": 2})
    planner = Tree(
        search=beam,
        scorer=Plugin(name="reward-model"),
        max_branches=12,
        depth=3,
        step=CallConfig(max_tokens=6, stop=()),
    )
    async with AsyncOrchestrator(workers=[engine], tools=[tool], journal=None) as orchestrator:
        answer = await orchestrator.run("w1 w2 w3", planner=planner)
    assert answer.status == "done", answer.failure
    if weight != weight:
        assert asked == {}
        unknown, nodes = re.search(r"(\d+) unknown", answer.why), re.search(r"(\d+) nodes", answer.why)
        assert unknown is not None and nodes is not None and unknown[1] == nodes[1] == "12"
        assert "gave no number" in answer.why
        return
    assert len(asked) >= 10
    for text, score in asked.items():
        assert score == pytest.approx(probability(folder, text), abs=0.01)
