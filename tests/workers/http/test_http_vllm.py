"""The HTTP worker against a real vLLM server with the random model: the same tokens as in process, and nothing left."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from plait.core.events import Job
from plait.core.ops import ModelCall, Text, Tokens
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.workers.engine import Engine
from plait.workers.http import Http

from ..vllm_server import vllm_server

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Http]:
    """A worker for a vLLM server in a process of its own."""
    async with vllm_server(tiny_model, "tiny", tmp_path_factory.mktemp("vllm") / "server.log") as worker:
        yield worker


def running(worker: Http) -> float:
    """Requests that the server says it holds, waiting ones included."""
    root = worker.base_url.removesuffix("/v1")
    with urllib.request.urlopen(f"{root}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r"^vllm:num_requests_(?:running|waiting){.*} (\S+)$", text, re.MULTILINE)
    assert found, text[:2000]
    return sum(map(float, found))


async def everything(
    worker: Engine | Http, *parts: Text | Tokens, attempt: int = 1, generated: tuple[int, ...] = (), **sampling: Any
) -> list[Any]:
    think = ModelCall(prompt=parts, sampling=Sampling(**sampling))
    job = Job(attempt=attempt, run="r", step="r:s", op=think, generated=generated)
    return [item async for item in worker.run(job)]


async def ask(worker: Engine | Http, *parts: Text | Tokens, attempt: int = 1, **sampling: Any) -> Result:
    *_, last = await everything(worker, *parts, attempt=attempt, **sampling)
    assert isinstance(last, Result), last
    return last


async def test_the_same_greedy_answers_as_in_process(engine: Engine, served: Http) -> None:
    prompts = [f"w{n} w{n * 7 % 250} w{n + 40}" for n in range(12)]
    for prompt in prompts:
        here = await ask(engine, Text(text=prompt), max_tokens=24, logprobs=True)
        there = await ask(served, Text(text=prompt), max_tokens=24, logprobs=True)
        assert (there.prompt_ids, there.token_ids, there.value) == (here.prompt_ids, here.token_ids, here.value)
        assert (there.finish, there.usage.completion) == (here.finish, here.usage.completion) == ("length", 24)
        assert there.logprob == pytest.approx(here.logprob, abs=0.02)
        context = Tokens(ids=there.prompt_ids + there.token_ids)
        on_here = await ask(engine, context, Text(text=" <wait> w3"), max_tokens=16)
        on_there = await ask(served, context, Text(text=" <wait> w3"), max_tokens=16)
        assert (on_there.prompt_ids, on_there.token_ids) == (on_here.prompt_ids, on_here.token_ids)


@pytest.mark.parametrize("keep", [False, True])
async def test_the_same_stop_texts_as_in_process(engine: Engine, served: Http, keep: bool) -> None:
    free = await ask(engine, Text(text="w1 w2 w3"), max_tokens=24)
    words = free.text.split()
    for stop in (words[10], f"{words[12]} {words[13]}"):
        here = await ask(engine, Text(text="w1 w2 w3"), max_tokens=24, stop=(stop,), keep_stop=keep)
        there = await ask(served, Text(text="w1 w2 w3"), max_tokens=24, stop=(stop,), keep_stop=keep)
        assert here.finish == there.finish == "stop"
        assert (there.value, there.token_ids) == (here.value, here.token_ids)


async def test_the_same_signals_as_in_process(engine: Engine, served: Http) -> None:
    for k in (5, 20):
        here, there = [
            (await everything(worker, Text(text="w4 w5 w6"), max_tokens=24, logprobs=k, window=8))[-1]
            for worker in (engine, served)
        ]
        assert isinstance(here, Result) and isinstance(there, Result) and here.token_ids == there.token_ids
        assert here.signals is not None and there.signals is not None
        assert there.signals.model_dump() == pytest.approx(here.signals.model_dump(), abs=0.05)


@pytest.mark.parametrize("done", [1, 11])
async def test_an_attempt_of_one_worker_is_gone_on_with_by_the_other(engine: Engine, served: Http, done: int) -> None:
    whole = await ask(engine, Text(text="w9 w8 w7"), max_tokens=24)
    for worker in (engine, served):
        *_, end = await everything(worker, Text(text="w9 w8 w7"), max_tokens=24, generated=whole.token_ids[:done])
        assert isinstance(end, Result) and end.usage.completion == 24 - done
        assert (end.text, end.prompt_ids, end.token_ids) == (whole.text, whole.prompt_ids, whole.token_ids)


async def test_settings_that_vllm_takes(served: Http) -> None:
    greedy = await ask(served, Text(text="w1"), max_tokens=8)
    tamed = await ask(served, Text(text="w1"), max_tokens=8, temperature=2.0, seed=1, min_p=1.0)
    assert tamed.token_ids == greedy.token_ids
    stopped = await ask(served, Text(text="w1"), max_tokens=8, stop_ids=greedy.token_ids[3:4])
    assert stopped.finish == "stop" and stopped.token_ids == greedy.token_ids[: len(stopped.token_ids)]
    assert served.models == ("tiny",)


async def test_what_was_read_before_comes_from_the_cache(served: Http) -> None:
    prompt = Text(text=" ".join(f"w{n}" for n in range(100)))
    await ask(served, prompt, max_tokens=2)
    assert (await ask(served, prompt, max_tokens=2)).usage.cached == 96


async def test_a_prompt_that_does_not_fit_is_refused(served: Http) -> None:
    think = ModelCall(prompt=(Text(text=" ".join(["w1"] * 600)),))
    (failure,) = [item async for item in served.run(Job(attempt=1, run="r", step="r:s", op=think))]
    assert not isinstance(failure, Result) and "maximum context len" in str(failure)


async def test_giving_up_frees_the_servers_slots(served: Http) -> None:
    tasks = [asyncio.create_task(ask(served, Text(text=f"w{n}"), attempt=100 + n, max_tokens=500)) for n in range(8)]
    async with asyncio.timeout(300):
        while await asyncio.to_thread(running, served) < 8:
            await asyncio.sleep(0.01)
    for n in range(8):
        await served.cancel(100 + n)
    ends = await asyncio.gather(*tasks)
    assert {end.finish for end in ends} == {"cancelled"}
    assert all(end.usage.completion < 500 for end in ends)
    async with asyncio.timeout(300):
        while await asyncio.to_thread(running, served):
            await asyncio.sleep(0.01)
