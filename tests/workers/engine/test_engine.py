"""The vLLM engine as a worker: prompts, stops, usage, cancelling, errors. On a real engine with random weights."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config, ModelCall, Sampling
from plait.core import Progress, Result, Text, Tokens
from plait.core.errors import EngineError
from plait.core.events import Job
from plait.core.result import Failure
from plait.workers.engine import Engine
from tests.one_engine import PLACE, opened

from ..vllm_server import SERVER_DTYPE

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

attempts = itertools.count(1)


def job(*parts: str | list[int], stream: bool = False, **sampling: Any) -> Job:
    prompt = tuple(Text(text=part) if isinstance(part, str) else Tokens(ids=tuple(part)) for part in parts)
    op = ModelCall(prompt=prompt, sampling=Sampling(**sampling), stream=stream)
    number = next(attempts)
    return Job(attempt=number, run="r", step=f"r:{number}", op=op)


async def everything(engine: Engine, job: Job) -> list[Any]:
    return [item async for item in engine.run(job)]


async def generate(engine: Engine, *parts: str | list[int], **sampling: Any) -> Result:
    (end,) = await everything(engine, job(*parts, **sampling))
    assert isinstance(end, Result), end
    return end


def words(start: int, count: int) -> str:
    return " ".join(f"w{n % 250}" for n in range(start, start + count))


async def test_text_and_tokens_are_the_same_prompt(engine: Engine) -> None:
    whole = await generate(engine, words(0, 6), max_tokens=12)
    again = await generate(engine, words(0, 3), list(whole.prompt_ids[3:]), max_tokens=12)
    assert whole.prompt_ids == again.prompt_ids and len(whole.prompt_ids) == 6
    assert whole.token_ids == again.token_ids and len(whole.token_ids) == 12
    assert (whole.finish, whole.usage.prompt, whole.usage.completion) == ("length", 6, 12)


async def test_a_context_is_continued_token_for_token_and_from_the_cache(engine: Engine) -> None:
    first = await generate(engine, words(10, 100), max_tokens=60)
    context = [*first.prompt_ids, *first.token_ids]
    following = await generate(engine, context, words(5, 4), max_tokens=8)
    assert list(following.prompt_ids[: len(context)]) == context and len(following.prompt_ids) == len(context) + 4
    assert (
        following.usage.cached >= 128
    )  # four whole blocks of 32 of the 160 tokens, the last of which was not computed


async def test_streamed_text_adds_up(engine: Engine) -> None:
    items = await everything(engine, job(words(0, 5), stream=True, max_tokens=20))
    end = items[-1]
    assert isinstance(end, Result) and all(isinstance(item, Progress) for item in items[:-1])
    assert "".join(item.text for item in items[:-1]) == end.text
    assert sum(item.tokens for item in items[:-1]) == 20
    silent = await generate(engine, words(0, 5), max_tokens=20)
    assert silent.text == end.text


async def test_a_long_request_that_nobody_reads_shows_that_it_is_alive(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.workers.engine.vllm.ALIVE_STEPS", 16)
    *signs, end = await everything(engine, job(words(0, 5), max_tokens=60))
    assert isinstance(end, Result) and 1 <= len(signs) <= 4
    assert all(isinstance(sign, Progress) and sign.tokens and not sign.text for sign in signs)
    assert sum(sign.tokens for sign in signs) < end.usage.completion == 60


@pytest.mark.parametrize("keep", [True, False])
async def test_a_stop_word_is_kept_or_not(engine: Engine, keep: bool) -> None:
    free = await generate(engine, words(3, 5), max_tokens=40)
    stop = free.text.split()[10]
    place = free.text.split().index(stop)
    held = await generate(engine, words(3, 5), max_tokens=40, stop=(stop,), keep_stop=keep)
    count = place + 1 if keep else place
    assert held.finish == "stop"
    assert held.token_ids == free.token_ids[:count]
    assert held.text.split() == free.text.split()[:count]
    assert held.usage.completion == place + 1


async def test_a_stop_text_of_several_tokens(engine: Engine) -> None:
    free = await generate(engine, words(3, 5), max_tokens=40)
    pair = " ".join(free.text.split()[6:8])
    held = await generate(engine, words(3, 5), max_tokens=40, stop=(pair,))
    assert held.finish == "stop" and pair not in held.text
    assert free.text.startswith(held.text.rstrip())


async def test_sampling_is_seeded_and_greedy_is_greedy(engine: Engine) -> None:
    greedy = [await generate(engine, words(7, 5), max_tokens=20) for _ in range(2)]
    assert greedy[0].token_ids == greedy[1].token_ids
    same = [await generate(engine, words(7, 5), max_tokens=20, temperature=1.0, seed=3) for _ in range(2)]
    other = await generate(engine, words(7, 5), max_tokens=20, temperature=1.0, seed=4)
    assert same[0].token_ids == same[1].token_ids != other.token_ids


async def test_seeded_requests_survive_prompts_that_do_not_fit_one_step(engine: Engine) -> None:
    """On a CPU vLLM 0.32 breaks when it reads the prompt of a seeded request over several steps."""
    prompts = [words(start, 200) for start in range(15)]  # 3,000 tokens, and a step reads 2,048
    sampled = await asyncio.gather(
        *(generate(engine, prompt, max_tokens=4, temperature=1.0, seed=i) for i, prompt in enumerate(prompts))
    )
    assert all(len(each.token_ids) >= 1 for each in sampled)


async def test_logprobs_are_means_and_only_on_request(engine: Engine) -> None:
    asked = await generate(engine, words(7, 5), max_tokens=10, logprobs=True)
    assert asked.logprob is not None and asked.logprob < 0
    assert (await generate(engine, words(7, 5), max_tokens=10)).logprob is None


async def test_control_words_are_text(engine: Engine) -> None:
    result = await generate(engine, "<spawn> w1 <wait>", max_tokens=3)
    assert result.prompt_ids[0] == 3 and result.prompt_ids[2] == 4


async def test_many_at_once(engine: Engine) -> None:
    alone = [await generate(engine, words(n, 6), max_tokens=15) for n in range(4)]
    together = await asyncio.gather(*(generate(engine, words(n % 4, 6), max_tokens=15) for n in range(40)))
    assert [result.token_ids for result in together] == [alone[n % 4].token_ids for n in range(40)]


async def test_cancel_ends_promptly_with_what_there_is_and_generates_no_more(engine: Engine) -> None:
    jobs = [job(words(n, 5), max_tokens=400) for n in range(4)]
    tasks = [asyncio.create_task(everything(engine, each)) for each in jobs]
    while engine.stats()["running"] < 4:
        await asyncio.sleep(0.01)
    before = engine.stats()["generated"]
    while engine.stats()["generated"] < before + 40:
        await asyncio.sleep(0.01)
    for each in jobs:
        await engine.cancel(each.attempt)
    ends = [(await asyncio.wait_for(task, 300))[-1] for task in tasks]
    generated = engine.stats()["generated"]
    assert all(end.finish == "cancelled" and 0 < end.usage.completion < 400 for end in ends)
    assert sum(end.usage.completion for end in ends) >= 36
    assert all(end.usage.completion == len(end.token_ids) == len(end.text.split()) for end in ends)
    await asyncio.sleep(0.3)
    assert engine.stats()["generated"] == generated and engine.stats()["running"] == 0


async def test_leaving_a_stream_aborts_it(engine: Engine) -> None:
    running = engine.run(job(words(0, 5), max_tokens=450, stream=True))
    await anext(running)
    await running.aclose()
    while engine.stats()["running"]:
        await asyncio.sleep(0.01)
    generated = engine.stats()["generated"]
    await asyncio.sleep(0.2)
    assert engine.stats()["generated"] == generated


async def test_unknown_cancels_are_ignored(engine: Engine) -> None:
    await engine.cancel(10**9)
    assert (await generate(engine, "w1", max_tokens=2)).usage.completion == 2


async def test_a_prompt_too_long_says_so(engine: Engine) -> None:
    (end,) = await everything(engine, job(words(0, 600)))
    assert isinstance(end, Failure) and end.kind == "ContextOverflow" and not end.retryable
    assert "600 tokens" in end.message and "512" in end.message


async def test_output_is_cut_where_the_context_ends(engine: Engine) -> None:
    result = await generate(engine, words(0, 500), max_tokens=100)
    assert (result.finish, result.usage.completion) == ("length", 12)


async def test_token_ids_out_of_range_are_refused(engine: Engine) -> None:
    (end,) = await everything(engine, job([1, 2, 10**6]))
    assert isinstance(end, Failure) and end.kind == "Rejected"
    assert (await generate(engine, "w1", max_tokens=2)).usage.completion == 2


async def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path))
    with pytest.raises(EngineError, match=r"config\.json"):
        await engine.start()
    await engine.close()
    with pytest.raises(EngineError, match="nowhere"):
        await Engine(str(tmp_path / "nowhere")).start()


async def test_too_little_memory_is_said_before_anything_is_loaded(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match="memory"):
        await Engine(str(tiny_model), kv_cache_memory_bytes=1 << 50).start()


async def test_a_second_engine_stands_beside_one_with_a_process_of_its_own(engine: Engine, tiny_model: Path) -> None:
    first = await generate(engine, "w5 w6", max_tokens=5)
    assert first.usage.completion == 5
    with PLACE.lent():
        if engine.options.process == "shared":
            with pytest.raises(EngineError, match="already has an engine"):
                await Engine(str(tiny_model), name="second", kv_cache_memory_bytes=16 << 20, threads=1).start()
        else:
            async with opened(tiny_model, process="shared", dtype=SERVER_DTYPE) as second:
                both = await asyncio.gather(*(generate(each, "w5 w6", max_tokens=5) for each in (engine, second)))
            assert both[0].token_ids == both[1].token_ids == first.token_ids
    assert await generate(engine, "w5 w6", max_tokens=5) == first


# --- engines of their own, one after another ---


def process_id(engine: Engine) -> int:
    """Return the id of EngineCore's own process."""
    assert engine._core is not None
    return engine._core.engine.engine_core.resources.engine_manager.processes[0].pid


def ended(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_an_engine_sleeps_between_requests_and_says_the_same_after_it(engine: Engine) -> None:
    before = (await everything(engine, job("w1 w2", max_tokens=8)))[-1]
    running = asyncio.create_task(everything(engine, job("w3", max_tokens=400)))
    while not engine.pulse()[0]:
        await asyncio.sleep(0.01)
    with pytest.raises(EngineError, match="1 running requests: let them end first"):
        await engine.sleep()
    await running
    await engine.sleep()
    await engine.wake()
    assert (await everything(engine, job("w1 w2", max_tokens=8)))[-1].token_ids == before.token_ids


@pytest.mark.own_engine
async def test_one_program_runs_two_engines_without_ray(tiny_model: Path) -> None:
    small: dict[str, Any] = {"slots": 4, "threads": 1, "kv_cache_mib": 32, "journal": "off", "policies": ()}
    config = Config(worker="engine", engines=2, model=str(tiny_model), **small)
    async with AsyncOrchestrator(config=config) as orchestrator:
        engines: Any = [worker for worker in orchestrator.workers if isinstance(worker, Engine)]
        assert len({process_id(engine) for engine in engines} - {os.getpid()}) == 2
        answer = await orchestrator.run(words(0, 6), planner="sample:n=8,answer.max_tokens=20")
        assert answer.unwrap() is not None
        assert all(engine.stats()["steps"] > 0 for engine in engines)
        os.kill(process_id(engines[0]), signal.SIGKILL)
        answer = await orchestrator.run(words(3, 6), planner="sample:n=8,answer.max_tokens=20")
        assert answer.unwrap() is not None, "the other engine still answers"


@pytest.mark.own_engine
async def test_an_engine_whose_process_dies_loses_its_requests_and_hangs_nowhere(tiny_model: Path) -> None:
    async with opened(tiny_model, process="own") as engine:
        health = engine.health()
        assert await anext(health) is True
        running = engine.run(job("w1", stream=True, max_tokens=400))
        silent = asyncio.create_task(everything(engine, job("w2", max_tokens=400)))
        await anext(running)
        pid = process_id(engine)
        os.kill(pid, signal.SIGKILL)
        *_, end = [item async for item in running]
        assert end == (await silent)[-1]
        assert (end.kind, end.lost, end.retryable) == ("WorkerLost", True, True) and "SIGKILL" in end.message, end
        assert await anext(health, "ended") == "ended"
        (end,) = await everything(engine, job("w1"))
        assert end.lost, end

    async with opened(tiny_model, process="own") as engine:  # one that has nothing to do is missed too
        health = engine.health()
        await anext(health)
        folder = engine._folder.path
        pid = process_id(engine)
        reload = asyncio.create_task(engine.reload(tiny_model))
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.wait_for(anext(health, "ended"), 60) == "ended"
        with contextlib.suppress(EngineError):  # or it was through before
            await asyncio.wait_for(reload, 60)
        (end,) = await everything(engine, job("w1"))
        assert end.lost, end
    assert not folder.exists() and ended(pid)


@pytest.mark.slow
@pytest.mark.own_engine
async def test_a_process_ends_with_its_parent(tiny_model: Path) -> None:
    """Also one that is killed, and a script without `if __name__ == "__main__"` starts the engine once."""
    program = f"""
import asyncio, os, signal
from plait.workers.engine import Engine
async def main():
    engine = Engine({str(tiny_model)!r}, process="own", slots=4, threads=1, kv_cache_memory_bytes=32 << 20)
    await engine.start()
    print(engine._core.engine.engine_core.resources.engine_manager.processes[0].pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    script = tiny_model.parent / "script.py"
    script.write_text(program)
    parent = await asyncio.create_subprocess_exec(sys.executable, script, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(parent.communicate(), 300)
    (pid,) = map(int, out.split())
    for _ in range(300):
        if ended(pid):
            return
        await asyncio.sleep(0.1)
    pytest.fail("the process of EngineCore outlived its parent")


@pytest.mark.own_engine
@pytest.mark.parametrize("process", ["shared", pytest.param("own", marks=pytest.mark.slow)])
async def test_an_engine_that_could_not_start_leaves_its_place(
    tiny_model: Path, tmp_path: Path, process: str, capfd: pytest.CaptureFixture[str]
) -> None:
    strange = shutil.copytree(tiny_model, tmp_path / "strange")
    config = json.loads((strange / "config.json").read_text())
    config |= {"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}
    (strange / "config.json").write_text(json.dumps(config))
    small = {"kv_cache_memory_bytes": 100_000, "max_model_len": 500}
    for model, options, said in ((strange, {}, "does not know the architecture"), (tiny_model, small, "memory")):
        with pytest.raises(EngineError, match=said) as caught:
            async with opened(model, process=process, **options):
                pass
        assert "\n" not in str(caught.value)
    assert not PLACE.locked()
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.own_engine
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # vLLM leaves its client's sockets open
async def test_a_process_that_is_killed_while_it_starts_is_reported(tiny_model: Path) -> None:
    async def kill_core() -> None:
        while True:
            for child in multiprocessing.active_children():
                if child.name.startswith("EngineCore") and child.pid is not None:
                    os.kill(child.pid, signal.SIGKILL)
                    return
            await asyncio.sleep(0.02)

    killing = asyncio.create_task(kill_core())
    with pytest.raises(EngineError, match=r"did not start: its process was killed.*kv_cache_memory_bytes"):
        await asyncio.wait_for(Engine(str(tiny_model), process="own", threads=1).start(), 300)
    await killing
    gc.collect()


@pytest.mark.slow
@pytest.mark.own_engine
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_socket_that_is_taken_is_named(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        address = f"tcp://*:{taken.getsockname()[1]}"
        monkeypatch.setattr("plait.workers.engine.vllm.events_address", lambda _: address)
        with pytest.raises(EngineError, match=r"a socket of the engine is taken \(.*Address already in use.*end the"):
            await Engine(str(tiny_model), process="own", threads=1, kv_events=True).start()
    gc.collect()


@pytest.mark.own_engine
async def test_engines_follow_one_another_however_they_ended(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[int, ...]] = []
    for process in ("shared", "own"):
        async with opened(tiny_model, process=process) as engine:
            made.append((await generate(engine, "w5 w6", max_tokens=5)).token_ids)
            await engine.close()
        (end,) = await everything(engine, job("w1"))
        assert end.lost, end
    assert made[0] == made[1] and len(made[0]) == 5

    async with opened(tiny_model) as engine:
        health = engine.health()
        assert await anext(health) is True
        running = engine.run(job("w1", stream=True, max_tokens=400))
        await anext(running)
        assert engine._core is not None

        def broken() -> None:
            raise RuntimeError("a fault\nand its details")

        monkeypatch.setattr(engine._core.engine, "step", broken)
        *_, end = [item async for item in running]
        assert (end.kind, end.lost, end.retryable) == ("WorkerLost", True, True) and "a fault" in end.message, end
        assert await anext(health, "ended") == "ended"
        (end,) = await everything(engine, job("w1"))
        assert end.lost, end

    async with opened(tiny_model) as engine:
        task = asyncio.create_task(everything(engine, job("w1", max_tokens=400)))
        await asyncio.sleep(0.05)
        await engine.close()
        (end,) = await task
        assert end.finish == "cancelled", end
    assert capfd.readouterr().err == "", "nothing that a user of the command line would have to look past"
