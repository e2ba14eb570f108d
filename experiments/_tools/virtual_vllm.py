"""vLLM's own scheduler and prefix cache in virtual time: a step takes as long as a roofline of an H100 says.

The model has the shape of Llama-3-8B: a step reads 16 GB of weights and the keys and values of all contexts at 3.35
TB/s or computes its tokens at 25,000 a second, whichever is longer. Which requests and how many tokens a step has, what
is cached and what is evicted is vLLM's decision. Event loop, planner and machine are plait's; nothing depends on the
load of the machine that this runs on. The cost of a GPU's kernels and launches is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.result import Failure, Result
from plait_research.simulation.latency import Host
from tests.planners.token_worker import TokenWorker

__all__ = [
    "BLOCK",
    "CACHE_TOKENS",
    "Engine",
    "VirtualLoop",
    "VllmWorker",
    "host",
    "host_of_steps",
    "run_virtual",
    "step_seconds",
]

T = TypeVar("T")
WEIGHTS_S = 16e9 / 3.35e12
CONTEXT_S = 131_072 / 3.35e12
"""Seconds to read the keys and values of a token of context."""
TOKEN_S = 1 / 25_000
"""Seconds to compute a token, read or written: 16 GFLOP at 40 % of 989 TFLOPS."""
CACHE_TOKENS = 420_000
"""What is left of 80 GB for keys and values."""
BLOCK, BATCHED_TOKENS = 16, 8_192


def step_seconds(tokens: int, context: int) -> float:
    """Return the seconds of a step, given its tokens and the context of all its requests."""
    return max(WEIGHTS_S + CONTEXT_S * context, TOKEN_S * tokens)


def host(slots: int, cache_tokens: int = CACHE_TOKENS) -> Host:
    """Return the same engine as `plait simulate` describes it, if prefill blocks decoding."""
    return Host(
        "engine", slots, prefill_rate=1 / TOKEN_S, decode_rate=lambda batch: 1 / max(WEIGHTS_S, TOKEN_S * batch),
        cache_tokens=cache_tokens, block=BLOCK, context=CONTEXT_S, blocking=True,
    )  # fmt: skip


def host_of_steps(slots: int, cache_tokens: int = CACHE_TOKENS) -> Host:
    """Return the same engine as `plait simulate` describes it, whose steps decode and prefill, and a letter a token."""
    return Host(
        "engine", slots, prefill_rate=1 / TOKEN_S, decode_rate=1 / WEIGHTS_S, cache_tokens=cache_tokens, block=BLOCK,
        context=CONTEXT_S, step_tokens=BATCHED_TOKENS, text=1,
    )  # fmt: skip


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes to the next timer at once. Work for threads is done in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> Any:
        """Call the function now."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _run_once(self) -> None:
        inner: Any = self
        if not inner._ready and inner._scheduled:
            self.now = max(self.now, inner._scheduled[0].when())
        base: Any = super()
        base._run_once()


def run_virtual(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:

        async def main() -> T:
            return await work()

        return runner.run(main())


class Engine:
    """vLLM's scheduler, its block pool, and a step that takes virtual time."""

    def __init__(self, slots: int, cache_tokens: int = CACHE_TOKENS, *, model: str) -> None:
        import torch
        from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager

        init_none_hash(sha256)
        blocks = cache_tokens // BLOCK
        length = 131_072
        scheduling = SchedulerConfig(
            max_num_seqs=slots, max_num_batched_tokens=BATCHED_TOKENS, max_model_len=length, is_encoder_decoder=False,
            enable_chunked_prefill=True, async_scheduling=False,
        )  # fmt: skip
        shape = ModelConfig(model=model, dtype="float32", seed=0)
        cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
        config = VllmConfig(scheduler_config=scheduling, model_config=shape, cache_config=cache)
        config.model_config.max_model_len = length
        config.cache_config.block_size, config.cache_config.num_gpu_blocks = BLOCK, blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        groups = KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self._scheduler: Any = Scheduler(config, groups, StructuredOutputManager(config), BLOCK)
        self._request: Any = Request
        self._output: Any = ModelRunnerOutput
        self._params: Any = SamplingParams
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._waiting: dict[str, tuple[asyncio.Future[int], Sequence[int]]] = {}
        self._cached: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._number = 0
        self.steps = self.computed = 0

    async def generate(self, prompt: Sequence[int], written: Sequence[int]) -> int:
        """Read a prompt and write an answer; return the number of cached prompt tokens."""
        self._number += 1
        name = str(self._number)
        params = self._params(max_tokens=len(written), ignore_eos=True)
        request = self._request(name, list(prompt), params, None, block_hasher=self._hasher)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[name] = (done, written)
        self._scheduler.add_request(request)
        self._wake.set()
        return await done

    async def run(self) -> None:
        """Run steps while there are requests."""
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            scheduled = self._scheduler.schedule()
            requests = {name: self._scheduler.requests[name] for name in scheduled.num_scheduled_tokens}
            context = sum(each.num_computed_tokens for each in requests.values())
            self.steps += 1
            self.computed += scheduled.total_num_scheduled_tokens
            await asyncio.sleep(step_seconds(scheduled.total_num_scheduled_tokens, context))
            sampled: list[list[int]] = []
            for name, each in requests.items():
                whole = each.num_computed_tokens >= each.num_tokens
                sampled.append([self._waiting[name][1][each.num_output_tokens]] if whole else [])
            places = {name: place for place, name in enumerate(requests)}
            output = self._output(req_ids=list(requests), req_id_to_index=places, sampled_token_ids=sampled)
            for group in self._scheduler.update_from_output(scheduled, output).values():
                for each in group.outputs:
                    if each.prefill_stats is not None:
                        self._cached[each.request_id] = each.prefill_stats.num_cached_tokens
                    if each.finish_reason is not None:
                        done, _ = self._waiting.pop(each.request_id)
                        done.set_result(self._cached.pop(each.request_id))
            await asyncio.sleep(0)


class VllmWorker(TokenWorker):
    """A worker whose model is a function, and whose engine is vLLM's scheduler in virtual time."""

    engine: Engine
    stepping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the engine's steps."""
        self.stepping = asyncio.create_task(self.engine.run())

    async def close(self) -> None:
        """Stop the engine's steps."""
        if self.stepping is not None:
            self.stepping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.stepping

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Return the model's text when the engine has written it."""
        async for each in super().run(job):
            if isinstance(each, Result):
                cached = await self.engine.generate(each.prompt_ids, each.token_ids)
                usage = each.usage.model_copy(update={"cached": max(0, cached)})
                yield each.model_copy(update={"usage": usage})
            else:
                yield each
