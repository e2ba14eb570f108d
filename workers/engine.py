"""The model engine: vLLM in this process, stepped by one thread of its own. The only file that imports vllm.

Decides how a think step becomes an engine request and how its outputs become news. One hand-over to the event loop per
engine step, whatever the number of requests. It does not know what the text means, which step comes next, or Ray.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import inspect
import itertools
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.base import Progress, Worker
from orchestrator.core.errors import EngineError, WorkerLost, as_failure
from orchestrator.core.events import Job
from orchestrator.core.ir import Failure, Kind, Result, Sampling, Think, Usage

from . import _resources as resources
from ._process import INSTALL, environment, explain, first_line
from ._prompt import Prompter
from ._stream import Inbox, Stream

__all__ = ["Engine"]


@dataclass(slots=True)
class Order:
    """A request on its way to the engine, and what is known of it while it runs."""

    key: str
    """Our name for the request; `inner` is the engine's."""
    stream: Stream
    prompt: list[int]
    params: Any
    sampling: Sampling
    deltas: bool
    """Whether the engine reports every step, or only the end."""
    priority: int = 0
    inner: str = ""
    ids: list[int] = field(default_factory=list[int])
    text: str = ""
    cumulative: float = 0.0
    """Sum of the log-probabilities of `ids`."""
    cached: int = 0


class Engine(Worker):
    """A vLLM engine.

    `start` takes 8–12 s, most of it vLLM's import, and raises `EngineError` when vLLM is not installed, the model
    cannot be loaded or memory is too little. After `close` another engine can start in the same process.

    Generated text begins as the tokenizer decodes it after the prompt (a word-level tokenizer puts a space first), so
    that prompt and output concatenate.
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
    ) -> None:
        """Describe the engine; nothing is loaded before `start`.

        `model`: folder, or id on the Hugging Face hub. `slots`: requests decoded together. `kv_cache_memory_bytes`: on
        a CPU by default what the slots need, 1 GiB or a third of the free memory at most. `max_model_len`: prompt and
        output together; by default what the model allows and the cache holds. `block_size`: tokens; 32 on a CPU.
        `dtype`: bfloat16 on a CPU. `threads`: compute threads on a CPU, by default one for a very small model, else
        half of the cores (all of `cpu_list`). `cpu_list`: cores to stay on. `gpu_memory_utilization`: fraction, on a
        GPU only.
        """
        self.name, self.slots, self.model = name, slots, str(model)
        self.kv_cache_memory_bytes, self.block_size = kv_cache_memory_bytes, block_size
        self.max_model_len = max_model_len
        self.dtype, self.threads, self.seed = dtype, threads, seed
        self.tensor_parallel_size, self.gpu_memory_utilization = tensor_parallel_size, gpu_memory_utilization
        self.cpu_list = tuple(cpu_list) if cpu_list else None
        self._core: Core | None = None
        self._inbox: Inbox[Order | str | None] = Inbox()
        self._thread: threading.Thread | None = None
        self._orders: dict[int, Order] = {}
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
            self._core = await asyncio.shield(ready)
        except EngineError:
            await self.close()
            raise

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Generate for one think step: news after each engine step if it streams, then the result."""
        order = self._order(job)
        if isinstance(order, Failure):
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
        """Return counters since `start`: engine `steps`, tokens `generated` (every token sampled, whether or not
        anybody still wanted it), `prompt` and `cached` prompt tokens of ended requests, and requests `running` now."""
        core = self._core
        if core is None:
            return {"steps": 0, "generated": 0, "prompt": 0, "cached": 0, "running": 0}
        return {**core.counts, "running": core.unfinished()}

    def _stop(self) -> None:
        """End the thread. Also at the interpreter's exit, which must not find it inside the engine."""
        thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self._stop)
            self._inbox.put(None)
            thread.join(60.0)

    def _order(self, job: Job) -> Order | Failure:
        core, think = self._core, job.op
        if core is None or self._lost:
            return as_failure(WorkerLost(self._lost or f"the engine {self.name!r} is not running"))
        if not isinstance(think, Think):
            return as_failure(EngineError(f"the engine {self.name!r} serves think steps, not {think.kind!r} steps"))
        try:
            prompt = core.prompter.ids(think)
            room = core.max_model_len - len(prompt)
            if not prompt:
                raise EngineError("the prompt has no tokens: give it some text")
            if room < 1:
                raise EngineError(
                    f"the prompt has {len(prompt)} tokens and the model's context holds {core.max_model_len}, output "
                    "included: shorten the prompt, or start the engine with a larger max_model_len if the model allows"
                )
            deltas = think.stream or not core.peeks
            params = core.params(think.sampling, min(think.sampling.max_tokens, room), deltas)
        except EngineError as error:
            return as_failure(error)
        except Exception as error:  # vLLM's own classes change
            return as_failure(EngineError(f"the engine rejected the request: {first_line(error)}"))
        priority = getattr(job, "priority", 0)
        stream = Stream(quiet=not think.stream)
        return Order(str(next(self._keys)), stream, prompt, params, think.sampling, deltas, priority)

    def _main(self, ready: asyncio.Future[Core]) -> None:
        """The engine's thread: build, then step while there is work and sleep while there is none."""
        core: Core | None = None
        try:
            core = Core(self)
        except BaseException as error:
            told = error if isinstance(error, EngineError) else EngineError(explain(error, self.model))
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
        news: list[tuple[Stream, Progress | Result | Failure]] = []
        for order in self._inbox.take(wait=not core.running):
            match order:
                case None:
                    for key in list(core.running):
                        core.abort(key, news)
                    self._inbox.post(news)
                    return False
                case str():
                    core.abort(order, news)
                case Order():
                    core.add(order, news)
        if core.running:
            core.step(news)
        self._inbox.post(news)
        return True

    def _break(self, reason: str) -> None:
        """On the loop: everything that still waits is lost, and so is what comes later."""
        self._lost = reason
        failure = as_failure(WorkerLost(reason))
        for order in list(self._orders.values()):
            order.stream.push(failure)
        self._gone.set()


class Core:
    """vLLM itself: built, stepped and freed by the engine's thread; only `params` and the counts are used outside."""

    _place = threading.Lock()
    """Held by the engine of this process. vLLM's groups are the process's: one engine that ends breaks another."""

    def __init__(self, spec: Engine) -> None:
        """Load the model; raises `EngineError`, or whatever vLLM raises."""
        self.engine: Any = None
        self.running: dict[str, Order] = {}
        self.counts = {"steps": 0, "generated": 0, "prompt": 0, "cached": 0}
        folder = resources.local_model(spec.model)
        config = resources.read_config(folder) if folder else None
        if spec.cpu_list:
            resources.bind(spec.cpu_list)
        threads = spec.threads or resources.default_threads(folder, spec.cpu_list)
        gpu = environment(threads, forced=spec.threads is not None, cores=spec.cpu_list, local=folder is not None)
        kv = spec.kv_cache_memory_bytes if gpu else resources.reserve(
            spec.model, folder, config, spec.kv_cache_memory_bytes, spec.slots, spec.max_model_len
        )  # fmt: skip
        if not Core._place.acquire(blocking=False):
            raise EngineError(
                "this process already has an engine: close that one first, or use the worker `ray`, which gives each "
                "engine a process of its own"
            )
        try:
            self._build(spec, str(folder or spec.model), kv, gpu)
        except BaseException:
            self.close()
            raise

    def _build(self, spec: Engine, model: str, kv: int | None, gpu: bool) -> None:
        try:
            import vllm
            from vllm import inputs
        except ModuleNotFoundError as error:
            said = "is not installed" if error.name == "vllm" else f"is installed but cannot be imported ({error})"
            raise EngineError(f"vLLM {said}: {INSTALL}") from error
        except Exception as error:
            raise EngineError(f"vLLM is installed but cannot be imported ({first_line(error)}): {INSTALL}") from error
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        known = inspect.signature(vllm.EngineArgs).parameters
        wanted = arguments(spec, model, kv, gpu)
        args = {key: value for key, value in wanted.items() if key in known and value is not None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine: Any = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**args))
        self.engine = engine
        self.max_model_len = int(engine.vllm_config.model_config.max_model_len)
        self._states: dict[str, Any] | None = getattr(engine.output_processor, "request_states", None)
        self.peeks = self._states is not None
        """Whether an aborted request's output so far can be read; else every request reports every step."""
        if getattr(engine.vllm_config.scheduler_config, "policy", None) != "priority":
            raise EngineError(f"vLLM {vllm.__version__} did not take the priority policy: use another release of it")
        self.prompter = Prompter(engine.get_tokenizer())
        self._sampling, self._kinds = SamplingParams, RequestOutputKind
        sampling_fields = inspect.signature(SamplingParams).parameters
        self._own_params: dict[str, Any] = {"skip_clone": True} if "skip_clone" in sampling_fields else {}
        self._prioritised = "priority" in inspect.signature(engine.add_request).parameters
        self._tokens_input = getattr(inputs, "tokens_input", None) or (lambda ids: {"prompt_token_ids": ids})
        self._counted = self._count_samples()

    def params(self, sampling: Sampling, max_tokens: int, deltas: bool) -> Any:
        """Return vLLM's form of the sampling settings; raises `ValueError` for what it does not accept."""
        stops = self.prompter.stops(sampling.stop)
        return self._sampling(
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            stop=list(stops.texts),
            stop_token_ids=list(stops.ids),
            include_stop_str_in_output=sampling.keep_stop,
            logprobs=0 if sampling.logprobs else None,
            skip_special_tokens=False,
            output_kind=self._kinds.DELTA if deltas else self._kinds.FINAL_ONLY,
            **self._own_params,
        )

    def add(self, order: Order, news: list[tuple[Stream, Progress | Result | Failure]]) -> None:
        """Give a request to vLLM; one that it rejects fails by itself."""
        extra = {"priority": order.priority} if self._prioritised else {}
        try:
            inner = self.engine.add_request(order.key, self._tokens_input(order.prompt), order.params, **extra)
        except Exception as error:  # vLLM's own classes change; nothing has been scheduled yet, so the engine is sound
            refused = EngineError(f"the engine rejected the request: {first_line(error)}")
            news.append((order.stream, as_failure(refused)))
            return
        order.inner = inner if isinstance(inner, str) else order.key
        self.running[order.key] = order

    def abort(self, key: str, news: list[tuple[Stream, Progress | Result | Failure]]) -> None:
        """Take a request out of vLLM between two steps: it generates nothing more. Ended ones are ignored."""
        order = self.running.pop(key, None)
        if order is None:
            return
        state = self._states.get(order.inner) if self._states is not None else None
        sent = len(order.text)
        before = len(order.ids)
        with contextlib.suppress(AttributeError):
            if state is not None:
                order.ids = list(state.detokenizer.output_token_ids)
                order.text = state.detokenizer.output_text
                order.cumulative = state.logprobs_processor.cumulative_logprob or 0.0
                order.cached = state.num_cached_tokens
        self.engine.abort_request([key])
        if len(order.text) > sent or len(order.ids) > before:
            news.append((order.stream, Progress(order.text[sent:], len(order.ids) - before)))
        news.append((order.stream, self._result(order, "abort", None)))

    def step(self, news: list[tuple[Stream, Progress | Result | Failure]]) -> None:
        """Let vLLM make one step, and add what it brought."""
        outputs = self.engine.step()
        self.counts["steps"] += 1
        for output in outputs:
            order = self.running.get(output.request_id)
            if order is None:
                continue
            piece = output.outputs[0]
            new = len(piece.token_ids)
            total = getattr(piece, "cumulative_logprob", None) or 0.0
            order.cached = getattr(output, "num_cached_tokens", 0) or 0
            if order.deltas:
                order.ids += piece.token_ids
                order.text += piece.text
                mean = (total - order.cumulative) / new if new and order.sampling.logprobs else None
                news.append((order.stream, Progress(piece.text, new, mean)))
            else:
                order.ids, order.text = list(piece.token_ids), piece.text
            order.cumulative = total
            if not self._counted:
                self.counts["generated"] += new
            if output.finished:
                del self.running[order.key]
                news.append((order.stream, self._result(order, piece.finish_reason, piece.stop_reason)))

    def unfinished(self) -> int:
        """Return how many requests vLLM holds."""
        engine = self.engine
        return engine.get_num_unfinished_requests() if engine is not None else 0

    def close(self) -> None:
        """Free the model and its cache, or what was made of them."""
        self.running.clear()
        self._states = None
        with contextlib.suppress(Exception):
            self.engine.engine_core.shutdown()
        self.engine = None
        if "vllm" in sys.modules:
            with contextlib.suppress(Exception):
                from vllm.distributed import cleanup_dist_env_and_memory

                cleanup_dist_env_and_memory()
            gc.collect()
        Core._place.release()

    def _result(self, order: Order, reason: str | None, stop: int | str | None) -> Result | Failure:
        self.counts["prompt"] += len(order.prompt)
        self.counts["cached"] += order.cached
        if reason == "error":
            return Failure(kind="EngineError", message="the engine failed on this request; try again", retryable=True)
        ids, count = order.ids, len(order.ids)
        if reason == "stop" and not order.sampling.keep_stop and ids:
            # vLLM leaves the stop token among the ids although it cuts its text.
            ids = self.prompter.within(ids, order.text) if isinstance(stop, str) else ids[:-1]
        return Result(
            value=order.text,
            prompt_ids=tuple(order.prompt),
            token_ids=tuple(ids),
            usage=Usage(prompt=len(order.prompt), cached=order.cached, completion=count),
            finish="cancelled" if reason == "abort" else "length" if reason == "length" else "stop",
            logprob=order.cumulative / count if order.sampling.logprobs and count else None,
        )

    def _count_samples(self) -> bool:
        """Count tokens where they are sampled, so that those of requests already given up are counted too."""
        source: Any = getattr(self.engine, "engine_core", None)
        inner = getattr(source, "get_output", None)
        if inner is None:
            return False

        def counted() -> Any:
            outputs = inner()
            self.counts["generated"] += sum(len(output.new_token_ids) for output in outputs.outputs)
            return outputs

        source.get_output = counted
        return True


def arguments(spec: Engine, model: str, kv: int | None, gpu: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's engine under their names in 0.32; `None` leaves vLLM's default."""
    return {
        "model": model,
        "max_num_seqs": spec.slots,
        # -1: what the model allows and the cache holds
        "max_model_len": spec.max_model_len or -1,
        "seed": spec.seed,
        "dtype": "bfloat16" if spec.dtype == "auto" and not gpu else spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "distributed_executor_backend": "uni" if spec.tensor_parallel_size == 1 else None,
        "scheduling_policy": "priority",
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "kv_cache_memory_bytes": kv,
        # only full blocks are cached, and 128, the default on a CPU, is longer than most shared prefixes
        "block_size": spec.block_size or (None if gpu else 32),
        "enforce_eager": None if gpu else True,
        "gpu_memory_utilization": spec.gpu_memory_utilization if gpu else None,
    }
