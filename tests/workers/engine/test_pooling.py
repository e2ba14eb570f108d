"""The pooling engine: against an engine that speaks as vLLM's does, and against transformers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError, EngineError
from plait_research.tools import pooling as pooling_module
from plait_research.tools.pooling import Pooling

from ..reward_models import TEXTS, logits, with_head
from . import fake_pooling


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling_module, "prepare", lambda spec: {"model": spec.model})
    monkeypatch.setattr(pooling_module, "CoreProcess", lambda folder: folder)
    monkeypatch.setattr(pooling_module, "load", fake_pooling.load)


def test_the_garbage_collector_may_close_it_in_its_own_thread() -> None:
    place = pooling_module._Place()
    place.loop.call_soon_threadsafe(place.close)  # it waited for itself, and joined its own thread
    place._thread.join(10.0)
    assert not place._thread.is_alive() and place.loop.is_closed()


@pytest.mark.usefixtures("fake")
async def test_orders_at_the_same_time_get_each_their_own_numbers() -> None:
    pooling = Pooling("model")
    texts = ["x" * i for i in range(1, 40)]
    assert await asyncio.gather(*(pooling.ask(task="classify", text=text) for text in texts)) == [
        [float(i)] for i in range(1, 40)
    ]
    assert pooling.counts == {"orders": 39, "prompt": sum(range(1, 40)), "cached": 39}
    with pytest.raises(EngineError, match="too long"):
        await pooling.ask(task="classify", text="long")
    assert await pooling.ask(task="classify", text="so") == [2.0], "a text that is refused harms no other"
    pooling.close()
    pooling.close()


@pytest.mark.usefixtures("fake")
def test_it_serves_one_event_loop_after_another() -> None:
    pooling = Pooling("model")
    assert [asyncio.run(pooling.ask(task="classify", text=text)) for text in ("a", "ab")] == [[1.0], [2.0]]
    pooling.close()


@pytest.mark.usefixtures("fake")
async def test_an_engine_that_dies_fails_what_waits_and_another_takes_its_place() -> None:
    pooling = Pooling("model")
    waiting = asyncio.ensure_future(pooling.ask(task="classify", text="never"))
    await pooling.ask(task="classify", text="a")
    with pytest.raises(EngineError, match="the pooling engine of model broke: EngineCore ended"):
        await pooling.ask(task="classify", text="die")
    with pytest.raises(EngineError, match="EngineCore ended"):
        await waiting
    assert await pooling.ask(task="classify", text="ab") == [2.0]
    pooling.close()


@pytest.mark.usefixtures("fake")
async def test_an_order_given_up_harms_no_other_and_closing_fails_what_waits() -> None:
    pooling = Pooling("model")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pooling.ask(task="classify", text="never"), 0.5)
    assert await pooling.ask(task="classify", text="abc") == [3.0]
    waiting = asyncio.ensure_future(pooling.ask(task="classify", text="never"))
    await pooling.ask(task="classify", text="a")
    await asyncio.to_thread(pooling.close)
    with pytest.raises(EngineError, match="was closed"):
        await waiting


@pytest.mark.usefixtures("fake")
async def test_a_model_that_cannot_be_loaded_is_tried_once_and_said_in_words() -> None:
    pooling = Pooling("no-model")
    for _ in range(2):
        with pytest.raises(EngineError, match="there is no model at no-model"):
            await pooling.ask(task="classify", text="a")
    with pytest.raises(ConfigError, match="there is no option 'treads'; did you mean 'threads'"):
        Pooling("model", treads=2)


@pytest.mark.engine
async def test_a_real_engine_says_what_the_weights_say(tmp_path: Path) -> None:
    folder = with_head(tmp_path / "model", 1)
    pooling = Pooling(str(folder), dtype="float32", kv_cache_memory_bytes=32 << 20, slots=16, threads=1)

    async def all_of(**order: Any) -> list[Any]:
        return await asyncio.gather(*(pooling.ask(text=text, **order) for text in TEXTS))

    wanted = [logits(folder, text) for text in TEXTS]
    plain = await all_of(task="classify", activation=False)
    assert [each[0] for each in plain] == pytest.approx([each[-1][0] for each in wanted], abs=1e-3)
    rows = await all_of(task="token_classify", activation=False)
    assert [len(each) for each in rows] == [len(each) for each in wanted]
    assert rows[1][3][0] == pytest.approx(wanted[1][3][0], abs=1e-3)
    ((pair,),) = [await pooling.ask(task="classify", text="3 + 4", pair=" = 7", activation=False)]
    assert pair == pytest.approx(logits(folder, "3 + 4 = 7")[-1][0], abs=1e-3)
    long = "the same beginning, again and again, " * 4
    before = pooling.counts["cached"]
    await pooling.ask(task="classify", text=long)
    await pooling.ask(task="classify", text=long + "and an end")
    assert pooling.counts["cached"] - before >= 128, "a child's text is computed from where its parent's ends"
    with pytest.raises(EngineError, match="rejected the text"):
        await pooling.ask(task="classify", text="x" * 2_000)
    with pytest.raises(EngineError, match="this model cannot embed"):
        await pooling.ask(task="embed", text="x")
    assert await all_of(task="classify", activation=False) == [pytest.approx(each, abs=1e-3) for each in plain]
    pooling.close()
