"""New weights while requests are under way: they stop, keep their token ids, and go on."""

from __future__ import annotations

import asyncio

import pytest

from plait.core.errors import ConfigError
from plait.core.ops import ModelCall, Text
from plait.core.plan import Plan, Step
from plait.core.sampling import Sampling
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.runlog import RunLog
from plait.workers.scripted import Reply, Scripted
from plait_research.rollouts.record import Record, records
from plait_research.rollouts.sampler import Sampler
from tests.apps.lab.rollouts.letters import Letters

PLAN = Plan(
    steps=(Step(name="a", op=ModelCall(prompt=(Text(text="Why?"),), sampling=Sampling(max_tokens=40, seed=1))),),
    output="a",
)


def letters_of(record: Record) -> str:
    return bytes(token for token, one in zip(record.tokens, record.mask, strict=True) if one and token < 256).decode()


async def test_requests_go_on_from_their_tokens_across_updates() -> None:
    inner = Letters(pause=0.01)
    sampler, log = Sampler(inner), RunLog(keep="attempts")
    orchestrator = AsyncOrchestrator(workers=[sampler], journal="off")
    orchestrator.watch(log.take)
    async with orchestrator:
        handles = [await orchestrator.submit(plan=PLAN) for _ in range(8)]
        for number in (1, 2):
            await asyncio.sleep(0.03)
            assert await sampler.update(f"weights-{number}") == number
        answers = [await handle for handle in handles]
    assert inner.loaded == ["weights-1", "weights-2"]
    assert all(answer.status == "done" for answer in answers)
    spans = 0
    for answer in answers:
        found = log.pop(answer.run)
        assert found is not None
        (record,) = records(found, "g")
        text = letters_of(record)
        assert text.endswith((" answer: 4", " answer: 5"))
        letters = text.partition(" ")[0]
        for segment in record.segments:
            start = record.mask.index(1)
            drawn = letters[segment.start - start : segment.end - start]
            assert set(drawn) <= set("abcdefghij"[2 * segment.policy : 2 * segment.policy + 2]), (letters, segment)
        assert len(record.logprobs) == len(record.tokens)
        assert answer.usage.completion == record.generated - 1, "no token was generated twice; the end is not counted"
        spans += len(record.versions) > 1
    assert spans, "no request was under way during an update: the test shows nothing"


async def test_a_request_that_is_cancelled_during_an_update_ends() -> None:
    loading = asyncio.Event()

    async def load(weights: object) -> None:
        loading.set()
        await asyncio.sleep(0.05)

    sampler = Sampler(Letters(pause=0.01), load)
    async with AsyncOrchestrator(workers=[sampler], journal="off") as orchestrator:
        handle = await orchestrator.submit(plan=PLAN)
        await asyncio.sleep(0.02)
        updating = asyncio.ensure_future(sampler.update("w"))
        await loading.wait()
        handle.cancel()
        answer = await asyncio.wait_for(handle, 300)
        assert await updating == 1
        after = await orchestrator.run(plan=PLAN)
    assert answer.status == "cancelled"
    assert after.status == "done"


async def test_weights_that_cannot_be_loaded_leave_the_old_ones() -> None:
    async def load(weights: object) -> None:
        raise ConfigError("no such folder")

    sampler = Sampler(Letters(), load)
    async with AsyncOrchestrator(workers=[sampler], journal="off") as orchestrator:
        with pytest.raises(ConfigError, match="no such folder"):
            await sampler.update("nowhere")
        assert sampler.version == 0
        assert (await orchestrator.run(plan=PLAN)).status == "done"


async def test_a_worker_that_cannot_take_weights_says_so() -> None:
    with pytest.raises(ConfigError, match="use the worker `engine`"):
        await Sampler(Scripted([Reply(text="x")])).update("w")


async def test_requests_cancelled_while_it_sleeps_end_and_updates_do_not_wake_it() -> None:
    inner = Letters(pause=0.01)
    sampler = Sampler(inner)
    async with AsyncOrchestrator(workers=[sampler], journal="off") as orchestrator:
        handles = [await orchestrator.submit(plan=PLAN) for _ in range(2)]
        await asyncio.sleep(0.02)
        await sampler.sleep()
        late = await orchestrator.submit(plan=PLAN)
        assert await asyncio.gather(sampler.update("a"), sampler.update("b")) == [1, 2]
        handles[0].cancel()
        others = asyncio.gather(handles[1], late)
        await asyncio.sleep(0.05)
        assert not others.done() and not inner.live
        await sampler.wake()
        answers = [await asyncio.wait_for(handles[0], 300), *await asyncio.wait_for(others, 300)]
    assert [answer.status for answer in answers] == ["cancelled", "done", "done"]
