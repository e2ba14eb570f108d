"""The model engine: vLLM in this process, stepped by one thread of its own.

Decides what the thread does and when news is handed over: once for each engine step, whatever the number of requests.
It does not know how vLLM is asked (`_engine_core`), what the text means, which step comes next, or Ray.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from plait.core.errors import EngineError, WorkerLost
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.plan import Kind, Think
from plait.core.result import Failure, Result, as_failure

from .._shared.streams import Checkpoint, Inbox
from .process import first_line
from .requests import EngineOutputs, EngineRequest
from .vllm import Core, broken

__all__ = ["Engine"]


class Engine(Worker):
    """A vLLM engine.

    `start` takes 8–12 s, most of it vLLM's import, and raises `EngineError` when vLLM is not installed, the model
    cannot be loaded or memory is too little. After `close` another engine can start in the same process.

    Generated text begins as the tokenizer decodes it after the prompt (a word-level tokenizer puts a space first), so
    that prompt and output concatenate.

    A job with `generated` ids goes on after them and tells what is new, with its ids. Greedy, the result is the one of
    an undisturbed run; sampled, it is another draw of the same distribution, for a seed starts afresh with the attempt.
    `logprob` and `signals` are those of the new tokens. A job with a form (`Sampling.structured`) starts from the
    beginning, for a form's state cannot be taken up in its middle.

    A job that does not stream gives its result alone, but for two things that it may be asked for: the groups of
    confidence (`Sampling.window`), told about eight times in a window's length, and the `checkpoint`.
    """

    serves: tuple[Kind, ...] = ("think",)

    def __init__(
        self,
        model: str,
        *,
        name: str = "engine",
        slots: int = 128,
        kv_cache_memory_bytes: int | None = None,
        max_model_len: int | None = None,
        block_size: int | None = None,
        dtype: str = "auto",
        threads: int | None = None,
        seed: int = 0,
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float = 0.9,
        cpu_list: Sequence[int] | None = None,
        lora: Mapping[str, str] | None = None,
        checkpoint: int = 0,
    ) -> None:
        """Describe the engine; nothing is loaded before `start`.

        `model`: folder, or id on the Hugging Face hub. `slots`: requests decoded together. `kv_cache_memory_bytes`: on
        a CPU by default what the slots need, 1 GiB or a third of the free memory at most. `max_model_len`: prompt and
        output together; by default what the model allows and the cache holds. `block_size`: tokens; 32 on a CPU.
        `dtype`: bfloat16 on a CPU. `threads`: compute threads on a CPU, by default one for a very small model, else
        half of the cores (all of `cpu_list`). `cpu_list`: cores to stay on. `gpu_memory_utilization`: fraction, on a
        GPU only; `tensor_parallel_size`: GPUs that hold one copy of the model. `lora`: adapters of the model, folder by
        name; `Think.model` asks for one by that name, for the model itself by its folder's name or by none.
        `checkpoint`: every so many engine steps the new token ids of all requests are told, also of those that do not
        stream, so that another engine can go on from there if this one dies; 0 for never.

        Raises `EngineError` for a `checkpoint` under 0.
        """
        if checkpoint < 0:
            raise EngineError(f"checkpoint={checkpoint}: give a number of engine steps, or 0 for never")
        self.name, self.slots, self.model = name, slots, str(model)
        self.kv_cache_memory_bytes, self.block_size = kv_cache_memory_bytes, block_size
        self.max_model_len = max_model_len
        self.dtype, self.threads, self.seed = dtype, threads, seed
        self.tensor_parallel_size, self.gpu_memory_utilization = tensor_parallel_size, gpu_memory_utilization
        self.cpu_list = tuple(cpu_list) if cpu_list else None
        self.lora, self.checkpoint = {name: str(path) for name, path in (lora or {}).items()}, checkpoint
        self.models = (Path(self.model).name, *self.lora)
        self.cache_tokens: int | None = None
        self.block: int | None = None
        self.on_checkpoint: Callable[[Checkpoint], None] | None = None
        """Takes checkpoints as a whole, in the engine's thread, in place of the jobs that they are of."""
        self._core: Core | None = None
        self._inbox: Inbox[EngineRequest | str | None] = Inbox()
        self._thread: threading.Thread | None = None
        self._orders: dict[int, EngineRequest] = {}
        self._keys = itertools.count(1)
        self._gone = asyncio.Event()
        self._lost = ""

    async def start(self) -> None:
        """Load the model. Raises `EngineError`."""
        if self._thread is not None:
            return
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[Core] = loop.create_future()
        self._inbox = Inbox(loop)
        self._gone, self._lost = asyncio.Event(), ""
        self._thread = threading.Thread(target=self._main, args=(ready,), name=f"plait-{self.name}", daemon=True)
        self._thread.start()
        atexit.register(self._stop)
        try:
            core = await asyncio.shield(ready)
        except EngineError:
            await self.close()
            raise
        self._core, self.block, self.cache_tokens = core, core.block, core.blocks * core.block

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Generate for one think step: news after each engine step if it streams, then the result."""
        order = self._order(job)
        if not isinstance(order, EngineRequest):
            if isinstance(order, Result) and order.text and isinstance(job.op, Think) and job.op.stream:
                yield Progress(order.text)
            yield order
            return
        self._orders[job.attempt] = order
        try:
            self._inbox.put(order)
            async for item in order.stream:
                yield item
        finally:
            if not order.stream.ended:
                self._inbox.put(order.key)
            if self._orders.get(job.attempt) is order:
                del self._orders[job.attempt]

    async def cancel(self, attempt: int) -> None:
        """Abort a request; its stream then ends with what was generated."""
        order = self._orders.get(attempt)
        if order is not None:
            self._inbox.put(order.key)

    async def health(self) -> AsyncIterator[bool]:
        """Yield `True` once; end when the engine has broken or is closed. It does not come back by itself."""
        if not self._gone.is_set():
            yield True
            await self._gone.wait()

    async def close(self) -> None:
        """Abort everything, stop the thread and free the model."""
        await asyncio.to_thread(self._stop)
        self._core = None
        for order in list(self._orders.values()):  # orders that came after the last that the thread took
            order.stream.push(Result(prompt_ids=tuple(order.prompt), value="", finish="cancelled"))
        self._gone.set()

    def stats(self) -> dict[str, int]:
        """Return counters since `start`, and what the engine holds now.

        Counted: engine `steps`; tokens `generated` (every token sampled, whether or not anybody still wanted it);
        prompt tokens looked up in the prefix cache (`queries`) and found there (`hits`), and of the requests that have
        ended `prompt` and `cached`. Now: requests `running` and `waiting`, `kv_blocks` in all, and `kv_used` by what
        runs (those that only keep finished prefixes are free).
        """
        core = self._core
        if core is None:
            return dict.fromkeys(("steps", "generated", "prompt", "cached", "queries", "hits", "running", "waiting"), 0)
        return core.stats()

    def _stop(self) -> None:
        """End the thread. Also at the interpreter's exit, which must not find it inside the engine."""
        thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self._stop)
            self._inbox.put(None)
            thread.join(60.0)

    def _order(self, job: Job) -> EngineRequest | Result | Failure:
        core, think = self._core, job.op
        if core is None or self._lost:
            return as_failure(WorkerLost(self._lost or f"the engine {self.name!r} is not running"))
        try:
            if not isinstance(think, Think):
                raise EngineError(f"the engine {self.name!r} serves think steps, not {think.kind!r} steps")
            if think.model is not None and think.model not in (*self.models, self.model):
                there = ", ".join(self.models)
                raise EngineError(f"the engine {self.name!r} has no model {think.model!r} (there are: {there})")
            return core.order(job, think, str(next(self._keys)))
        except EngineError as error:
            return as_failure(error)
        except Exception as error:  # vLLM's own classes change
            return as_failure(EngineError(f"the engine rejected the request: {first_line(error)}"))

    def _main(self, ready: asyncio.Future[Core]) -> None:
        """The engine's thread: build, then step while there is work and sleep while there is none."""
        core: Core | None = None
        try:
            core = Core(self)
        except BaseException as error:
            told = broken(error, self.model)
            self._inbox.call(lambda: ready.done() or ready.set_exception(told))
            return
        self._inbox.call(lambda made=core: ready.done() or ready.set_result(made))
        try:
            while self._serve(core):
                pass
        except Exception as error:
            reason = f"the engine {self.name!r} broke: {type(error).__name__}: {first_line(error)}"
            failure = as_failure(WorkerLost(reason))
            self._inbox.post([(order.stream, failure) for order in core.running.values()])
            self._inbox.call(lambda: self._break(reason))
        finally:
            core.close()

    def _serve(self, core: Core) -> bool:
        """Take the orders that have come in, make one step, hand over its news. Returns whether to go on."""
        news: EngineOutputs = []
        for order in self._inbox.take(wait=not core.running):
            match order:
                case None:
                    for key in list(core.running):
                        core.abort(key, news)
                    self._inbox.post(news)
                    return False
                case str():
                    core.abort(order, news)
                case EngineRequest():
                    core.add(order, news)
        checkpoint = core.step(news) if core.running else None
        self._inbox.post(news)
        if checkpoint is not None and checkpoint.ids:
            if self.on_checkpoint is not None:
                self.on_checkpoint(checkpoint)
            else:
                self._inbox.call(lambda: self._tell(checkpoint))
        return True

    def _tell(self, checkpoint: Checkpoint) -> None:
        """On the loop: pass each job its part of a checkpoint."""
        for attempt, ids in checkpoint.parts():
            order = self._orders.get(attempt)
            if order is not None:
                order.stream.push(Progress("", len(ids), None, tuple(ids)))

    def _break(self, reason: str) -> None:
        """On the loop: everything that still waits is lost, and so is what comes later."""
        self._lost = reason
        failure = as_failure(WorkerLost(reason))
        for order in list(self._orders.values()):
            order.stream.push(failure)
        self._gone.set()
