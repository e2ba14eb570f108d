"""What does the driver's event loop pay for a long chat with many samples, and for checkpoints of token ids?

No model runs. The chat goes through the worker `engine`, with vLLM replaced by an object that ends each request at
once: what is left is the orchestrator, the chat template and the tokenizer. The checkpoints go through the pipe and
the buffer of the worker `ray`, from a thread that plays the actor. Both are CPU of the loop's thread, so that other
work on the machine changes them less than a clock's time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Sampling, Step
from plait.core import Result, Text
from plait.core.chat import Message, user
from plait.core.events import Job
from plait.core.interfaces import Tell
from plait.core.ops import Kind
from plait.core.result import Usage
from plait.runtime.client.models import CHAT, fetched
from plait.workers._shared.batch_streams import CallbackWorker, TokenBatch
from plait.workers._shared.prompt import Prompter
from plait.workers.engine import Engine
from plait.workers.engine.requests import EngineRequest
from plait.workers.ray.actor import ActorJob, IdsOut, TokenBuffer

from .._tools.measure import interleave

JOBS, TOKENS, STEPS = 256, 512, 4
"""Requests at once, tokens of each, and engine steps between two checkpoints."""


class EndingCore:
    """In the place of vLLM: every request ends at once."""

    running = counts = None

    def __init__(self, prompter: Prompter) -> None:
        self.prompter = prompter

    def order(self, job: Job, think: ModelCall, key: str, report: Any) -> EngineRequest:
        """Make the request's prompt, as vLLM's does, and end it."""
        made = EngineRequest(key, report, self.prompter.ids(think), think.sampling, False)
        asyncio.get_running_loop().call_soon(report.push, Result(value=str(len(made.prompt))))
        return made


class ChatEngine(Engine):
    """The worker `engine` with a tokenizer and without vLLM."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        super().__init__(folder, slots=128)
        self._core: Any = EndingCore(Prompter(AutoTokenizer.from_pretrained(folder)))

    async def start(self) -> None:
        """Load nothing."""

    async def health(self) -> Any:
        """Yield `True` and stay."""
        yield True
        await asyncio.Event().wait()


async def stall(folder: Path, words: int, samples: int) -> tuple[int, float, float]:
    """Ask `samples` times at once behind a chat of this number of words; return the tokens of the prompt and the
    longest turn of the event loop, in ms of its thread's CPU and of the clock."""
    draw, turns, waits = random.Random(words), list[float](), list[float]()
    chat: tuple[Message, ...] = (user(" ".join(draw.choices(WORDS, k=words))),)
    call = ModelCall(prompt=(Text(text="And now?"),), messages=chat, chat=True, sampling=Sampling(max_tokens=8))
    steps = [Step(name=f"s{number}", op=call) for number in range(samples)]
    plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(step.name for step in steps))), output="all")

    async def probe() -> None:
        spent, clock = time.thread_time(), time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now, there = time.thread_time(), time.perf_counter()
            turns.append(now - spent)
            waits.append(there - clock)
            spent, clock = now, there

    engine = ChatEngine(folder)
    async with AsyncOrchestrator(workers=[engine], journal="off") as orchestrator:
        probing = asyncio.create_task(probe())
        answer = await orchestrator.run(plan=plan)
        probing.cancel()
        tokens = await engine.count_tokens(call)
    answer.unwrap()
    return tokens or 0, 1e3 * max(turns), 1e3 * max(waits)


class PipeWorker(CallbackWorker):
    """Ends its jobs after `TOKENS` steps of a thread, which writes checkpoints as an actor's engine does."""

    name, slots = "pipe", JOBS
    serves: tuple[Kind, ...] = ("think",)
    models: tuple[str, ...] = ()
    reports = None

    def __init__(self, checkpoint: int) -> None:
        self.checkpoint = checkpoint
        self.live: dict[int, ActorJob] = {}

    async def start(self) -> None:
        """Open the pipe."""
        self.loop, self.buffer = asyncio.get_running_loop(), TokenBuffer(self.live)
        path = self.buffer.open()
        assert path is not None
        self.out = IdsOut(path)
        self.buffer.opened()

    def begin(self, job: Job, tell: Tell) -> None:
        """Take a job; the last one starts the thread."""
        self.live[job.attempt] = ActorJob(job, tell)
        if len(self.live) == JOBS:
            threading.Thread(target=self._write, args=(array("q", self.live),), daemon=True).start()

    def _write(self, attempts: array[int]) -> None:
        counts, ids = array("I", [STEPS] * JOBS), array("I", range(STEPS * JOBS))
        for step in range(STEPS, TOKENS + 1, STEPS):
            if self.checkpoint:
                self.out.write(TokenBatch(attempts, counts, ids))
            time.sleep(0.002 if step % 64 else 0.02)
        self.loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        self.buffer.read()
        for attempt in list(self.live):
            self.live.pop(attempt).push(Result(value="x", usage=Usage(completion=TOKENS)))

    async def cancel(self, attempt: int) -> None:
        """Nothing is cancelled here."""

    async def health(self) -> Any:
        """Yield `True` and stay."""
        yield True
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close the pipe."""
        self.out.close()
        self.buffer.close()


async def cost(checkpoint: int) -> float:
    """Return µs of the loop's thread for each token of one plan of `JOBS` calls."""
    op = ModelCall(prompt=(Text(text="Q"),), sampling=Sampling(max_tokens=TOKENS))
    steps = [Step(name=f"s{number}", op=op) for number in range(JOBS)]
    plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(step.name for step in steps))), output="all")
    async with AsyncOrchestrator(workers=[PipeWorker(checkpoint)], journal="off") as orchestrator:
        start = time.thread_time()
        answer = await orchestrator.run(plan=plan)
        spent = time.thread_time() - start
    answer.unwrap()
    return 1e6 * spent / (JOBS * TOKENS)


async def measure(options: argparse.Namespace) -> None:
    """Measure and print both."""
    folder = options.tokenizer or fetched(CHAT)
    if folder is None:
        sys.stdout.write("no tokenizer: name its folder by --tokenizer, or fetch the chat model\n")
    else:
        await stall(folder, 10, 1)  # imports, and the template's compiler
        for samples in (1, 8, 64):
            found = [await stall(folder, options.words, samples) for _ in range(options.rounds)]
            tokens, cpu, clock = found[0][0], *(sorted(row[i] for row in found) for i in (1, 2))
            sys.stdout.write(
                f"{tokens:,} tokens, {samples} samples, longest turn: {statistics.median(cpu):.0f} "
                f"({cpu[0]:.0f}–{cpu[-1]:.0f}) ms of CPU, {statistics.median(clock):.0f} ms of the clock\n"
            )
    contenders: dict[str, Callable[[], Awaitable[float]]] = {
        "without checkpoints": lambda: cost(0),
        f"checkpoints every {STEPS} steps": lambda: cost(STEPS),
    }
    figures = await interleave(contenders, options.rounds)
    for name in contenders:
        sys.stdout.write(f"{name}: {figures.spread(name)} µs a token\n")


WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "seventeen",
    "others",
    "watched",
    "it",
    "quietly",
    "until",
    "noon",
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments loop_costs", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="of a chat model; else plait's own")
    parser.add_argument("--words", type=int, default=66_000, help="of the chat")
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(measure(parser.parse_args()))
