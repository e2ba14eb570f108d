"""The bundled models in plain torch, as a worker: for studies that count tokens and need no engine for it.

Calls that wait at the same time are written together, so samples at a temperature depend on what they wait with.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from training.decode import generate_scored
from training.export import load
from training.model import Llama

from .statistics import mean
from .worker import InProcess, text_of

__all__ = ["Plain", "timed"]


@dataclass(frozen=True)
class Trade:
    """How one model reads and writes."""

    model: Llama
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    end: int
    words: Mapping[str, int]


@dataclass(frozen=True)
class Waiting:
    """A call that is to be written."""

    think: ModelCall
    prompt: list[int]
    done: asyncio.Future[Result]


class Plain(InProcess):
    """Models by name, each a folder of weights and its vocabulary (`encode`, `decode`, `END`, `ID`)."""

    name = "plain"

    def __init__(self, folders: Mapping[str, Path], vocabulary: object) -> None:
        self._folders, self._vocabulary = folders, vocabulary
        self.models = tuple(folders)
        self._queue: list[Waiting] = []

    async def start(self) -> None:
        """Load the models."""
        await super().start()
        self._work = asyncio.Event()
        words = self._vocabulary
        self._trades = {
            name: Trade(load(folder), words.encode, words.decode, words.END, words.ID)  # type: ignore[attr-defined]
            for name, folder in self._folders.items()
        }
        self._writer = asyncio.create_task(self._write())

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Write one call."""
        think = job.op
        assert isinstance(think, ModelCall)
        trade = self._trades[think.model or self.models[0]]
        waiting = Waiting(think, trade.encode(text_of(think)), asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._work.set()
        result = await waiting.done
        if think.stream and result.text:
            yield Progress(result.text)
        yield result

    async def _write(self) -> None:
        """Write what waits, calls of like kind together."""
        while True:
            await self._work.wait()
            await asyncio.sleep(0.01)  # so that calls that follow from one another's ends come together
            self._work.clear()
            groups: dict[tuple[str, int, tuple[str, ...], bool, float], list[Waiting]] = defaultdict(list)
            for each in self._queue:
                sampling = each.think.sampling
                name = each.think.model or self.models[0]
                key = name, sampling.max_tokens, sampling.stop, bool(sampling.labels), sampling.temperature or 0.0
                groups[key].append(each)
            self._queue.clear()
            for (name, limit, stop, labels, temperature), calls in groups.items():
                await asyncio.to_thread(self._group, self._trades[name], limit, stop, labels, temperature, calls)

    def _group(
        self,
        trade: Trade,
        limit: int,
        stop: tuple[str, ...],
        labels: bool,
        temperature: float,
        calls: Sequence[Waiting],
    ) -> None:
        loop = calls[0].done.get_loop()
        ends = {trade.end, *(trade.words[each] for each in stop)}
        if labels:
            said = [self._marked(trade, each) for each in calls]
        else:
            seed = (calls[0].think.sampling.seed or 0) % (1 << 62)
            drawn = generate_scored(trade.model, [each.prompt for each in calls], ends, limit, temperature, seed)
            said = [self._result(trade, each, *one) for each, one in zip(calls, drawn, strict=True)]
        for each, result in zip(calls, said, strict=True):
            loop.call_soon_threadsafe(_settle, each.done, result)

    def _result(self, trade: Trade, call: Waiting, ids: list[int], likely: list[float]) -> Result:
        ended = bool(ids) and (ids[-1] == trade.end or trade.decode(ids[-1:]) in call.think.sampling.stop)
        shown = ids[:-1] if ended and (ids[-1] == trade.end or not call.think.sampling.keep_stop) else ids
        usage = Usage(prompt=len(call.prompt), completion=len(ids))
        mean = sum(likely) / len(likely) if likely else None
        return Result(value=trade.decode(shown), usage=usage, finish="stop" if ended else "length", logprob=mean)

    @torch.inference_mode()
    def _marked(self, trade: Trade, call: Waiting) -> Result:
        model = trade.model
        hidden = model.hidden(torch.tensor([call.prompt]), torch.float32)[:, -1]
        scores = model.logits(hidden, torch.float32).log_softmax(-1)[0]
        labels = {label: float(scores[trade.words[label]]) for label in call.think.sampling.labels}
        best = max(labels, key=lambda label: labels[label])
        usage = Usage(prompt=len(call.prompt), completion=1)
        return Result(value=best, labels=labels, usage=usage, finish="length")

    async def close(self) -> None:
        """End the task that writes."""
        await super().close()
        self._writer.cancel()


def timed(mine: Sequence[float], base: Sequence[float]) -> tuple[str, str]:
    """Return the mean of a way's seconds, and how many times as fast it is as another (geometric mean over questions);
    both empty where no engine was timed: in plain torch many questions are written together."""
    if not all(mine) or not all(base) or not mine:
        return "", ""
    ratio = mean([math.log(b / a) for a, b in zip(mine, base, strict=True)])
    return f"{sum(mine) / len(mine):.3f}", " ".join(
        (f"{math.exp(ratio.value):.2f}", f"({math.exp(ratio.low):.2f}–{math.exp(ratio.high):.2f})")
    )


def _settle(done: asyncio.Future[Result], result: Result) -> None:
    if not done.done():
        done.set_result(result)
