"""Several models behind one server: `plait/STRATEGY@MODEL`, its list, and what answers where none is named."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.runtime.client.models import fetched
from tests.planners.two_models import Models
from tests.workers.byte_model import build_bytes, build_lora
from training.calls.generate import draw
from training.calls.prompts import prompt


def asking(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Why?"}]}


@pytest.fixture
def both() -> Models:
    """A worker with a model and an adapter of it."""
    return Models({"base": lambda text: " the model", "calls": lambda text: " the adapter"})


@pytest.mark.parametrize("strategy", ["single", "sample:n=2", "adaptive"])
async def test_a_strategy_asks_the_model_behind_it(serve: Any, both: Models, strategy: str) -> None:
    async with serve(workers=[both]) as served, httpx.AsyncClient(base_url=served.url) as http:
        for name, text in (("base", "the model"), ("calls", "the adapter")):
            both.calls.clear()
            answer = await http.post("/v1/chat/completions", json=asking(f"plait/{strategy}@{name}"))
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"].strip() == text
            assert set(both.calls) == {name}


async def test_both_are_listed_and_another_is_not_there(serve: Any, both: Models) -> None:
    async with serve(workers=[both]) as served, httpx.AsyncClient(base_url=served.url) as http:
        listed = {card["id"] for card in (await http.get("/v1/models")).json()["data"]}
        assert {"base", "calls", "plait/single@base", "plait/single@calls"} <= listed
        refused = await http.post("/v1/chat/completions", json=asking("plait/single@other"))
        assert refused.status_code == 404 and "'other'" in refused.json()["error"]["message"]
        assert not both.calls


async def test_the_first_adapter_answers_where_no_model_is_named(serve: Any, both: Models) -> None:
    settings = {"adapters": {"calls": "training/calls/adapter"}}
    async with serve(workers=[both], config=settings) as served, httpx.AsyncClient(base_url=served.url) as http:
        answer = await http.post("/v1/chat/completions", json=asking("plait/single"))
        assert answer.json()["choices"][0]["message"]["content"].strip() == "the adapter"


def texts(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.engine
@pytest.mark.own_engine
@pytest.mark.filterwarnings("ignore")
async def test_an_engine_answers_by_the_adapter_that_is_named(serve: Any, tmp_path: Path) -> None:
    from plait.workers.engine import Engine

    model = build_bytes(tmp_path / "bytes")
    lora = {name: str(build_lora(tmp_path / name, seed)) for seed, name in ((1, "one"), (2, "two"))}
    engine = Engine(model, lora=lora, slots=4, threads=1, kv_cache_memory_bytes=32 << 20)
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 0}
    settings = {"adapters": lora}
    async with (
        serve(workers=[engine], config=settings) as served,
        httpx.AsyncClient(base_url=served.url, timeout=120) as http,
    ):
        names = ("plait/single", "plait/single@one", "plait/single@two", "plait/single@bytes", "two")
        told = {name: texts(await http.post("/v1/completions", json={"model": name, **body})) for name in names}
    one, two, base = (told[f"plait/single@{name}"] for name in ("one", "two", "bytes"))
    assert len({one, two, base}) == 3, told
    assert told["plait/single"] == one and told["two"] == two, "the first adapter, and a name alone"


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.own_engine
@pytest.mark.filterwarnings("ignore")
async def test_smollm2_and_its_adapter_answer_side_by_side(serve: Any) -> None:
    """The adapter of `training/calls` writes calls in its form, `name=value`; the model itself does not."""
    from plait.workers.engine import Engine

    model, adapter = fetched("smollm2"), Path(__file__).parents[3] / "training" / "calls" / "adapter"
    assert model, "fetch the model first: plait model get smollm2"
    engine = Engine(model, lora={"calls": str(adapter)}, slots=8, threads=2)
    example = draw(random.Random(5), held=True)
    question = {"messages": [{"role": "user", "content": prompt(example)}], "max_tokens": 60, "temperature": 0}
    async with serve(workers=[engine]) as served, httpx.AsyncClient(base_url=served.url, timeout=300) as http:
        listed = [card["id"] for card in (await http.get("/v1/models")).json()["data"]]
        asked = (f"plait/single@{name}" for name in ("smollm2", "calls"))
        base, calls = [texts(await http.post("/v1/chat/completions", json={"model": n, **question})) for n in asked]
    assert {"smollm2", "calls", "plait/single@smollm2", "plait/single@calls"} <= {*listed}
    assert re.match(r"1\. \w+\(\w+=", calls) and not re.match(r"1\. \w+\(\w+=", base), (base, calls)
