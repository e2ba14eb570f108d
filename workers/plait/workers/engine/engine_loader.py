"""Load an engine of vLLM: build its arguments, and explain failures."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plait.core.errors import EngineError

from .._shared import resources
from .._shared.arithmetic_codes import PROCESSOR
from .core_process import INSTALL, CoreProcess, environment, explain, first_line, fix_attention
from .options import EngineOptions
from .sampling_parameters import engine_arguments, lora_rank


def broken(error: BaseException, model: str) -> EngineError:
    """Return why an engine did not start."""
    return error if isinstance(error, EngineError) else EngineError(explain(error, model))


def prepare(spec: EngineOptions) -> dict[str, Any]:
    """Make this process ready for a model and return the arguments of vLLM's engine. Raises `EngineError` for what
    cannot be had."""
    folder = resources.local_model(spec.model)
    config = resources.read_config(folder) if folder else None
    if spec.cpu_list:
        resources.bind(spec.cpu_list)
    threads = spec.threads or resources.default_threads(folder, spec.cpu_list)
    gpu = environment(threads, forced=spec.threads is not None, cores=spec.cpu_list, local=folder is not None)
    if gpu:
        resources.enough_gpus(spec.tensor_parallel_size)
    kv = spec.kv_cache_memory_bytes
    if not gpu:
        if config is not None and (fault := misfit(config, spec.model, _head_sizes())):
            raise EngineError(fault)
        dtype = resources.cpu_dtype(spec.dtype)
        kv = resources.reserve(spec.model, folder, config, kv, spec.slots, spec.max_model_len, dtype)
    return arguments(spec, str(folder or spec.model), kv, gpu, lora_rank(spec.lora))


def has_own_process(spec: EngineOptions) -> bool:
    """Return whether EngineCore gets a process of its own. Call it after `prepare`."""
    if spec.process != "auto":
        return spec.process == "own"
    import torch

    return torch.cuda.is_available()


def misfit(config: Mapping[str, Any], model: str, sizes: Sequence[int]) -> str:
    """Return why a model of this config.json cannot run where attention takes heads of these sizes; empty if it can,
    or if that is not known. Without this vLLM 0.32 loads it, and breaks at the first request."""
    size = resources.head_size(config)
    if size is None or not sizes or size in sizes:
        return ""
    return (
        f"{model} has attention heads of size {size}, and vLLM's attention on a CPU takes {', '.join(map(str, sizes))} "
        "alone: choose another model, or run this one on a GPU or on a server (--worker http)"
    )


def _head_sizes() -> Sequence[int]:
    """Return the sizes of heads that vLLM's attention on a CPU takes; none where it does not say."""
    try:
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        return CPUAttentionBackend.get_supported_head_sizes()
    except Exception:  # vLLM is missing (`load` reports that), or keeps it elsewhere
        return ()


def load(
    args: dict[str, Any], given: Iterable[str] = (), process: CoreProcess | None = None, *, is_async: bool = False
) -> tuple[Any, Any]:
    """Return the module vllm and its engine. `given` are the arguments that the user named himself (`engine_args`),
    `process` the one that EngineCore gets; `is_async`: the engine serves the running event loop. Raises `EngineError`,
    or whatever vLLM raises."""
    try:
        import vllm
    except ModuleNotFoundError as error:
        state = "is not installed" if error.name == "vllm" else f"is installed but cannot be imported ({error})"
        raise EngineError(f"vLLM {state}: {INSTALL}") from error
    except Exception as error:
        raise EngineError(f"vLLM is installed but cannot be imported ({first_line(error)}): {INSTALL}") from error
    fix_attention()
    known = inspect.signature(vllm.EngineArgs).parameters
    asked = {"max_loras": "lora", "max_lora_rank": "lora", "runner": "runner", "logprobs_mode": "processed_logprobs"}
    asked |= dict.fromkeys(given, "engine_args")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        taken = vllm.EngineArgs(**engine_arguments(args, known, asked, vllm.__version__))
        if process is None:
            return vllm, vllm.LLMEngine.from_engine_args(taken)
        from vllm.v1.executor import Executor

        config = taken.create_engine_config()
        with process.starting(config):
            if is_async:
                from vllm.v1.engine.async_llm import AsyncLLM

                return vllm, AsyncLLM.from_vllm_config(config, disable_log_stats=True)
            engine = vllm.LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=True)
        return vllm, engine


def arguments(spec: EngineOptions, model: str, kv: int | None, gpu: bool, rank: int | None = None) -> dict[str, Any]:
    """Return the arguments of vLLM's engine under their names in 0.32; `None` leaves vLLM's default."""
    several = spec.tensor_parallel_size > 1 or "pipeline_parallel_size" in spec.engine_args
    # vLLM does not combine speculation with a logits processor
    codes = not (gpu or "speculative_config" in spec.engine_args) if spec.arithmetic is None else spec.arithmetic
    given = {
        "model": model,
        "max_num_seqs": spec.slots,
        # -1: what the model allows and the cache holds
        "max_model_len": spec.max_model_len or -1,
        "seed": spec.seed,
        "dtype": spec.dtype if gpu else resources.cpu_dtype(spec.dtype),
        "tensor_parallel_size": spec.tensor_parallel_size,
        "distributed_executor_backend": None if several else "uni",
        "scheduling_policy": "priority",
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "logits_processors": [PROCESSOR] if codes else None,
        "use_tqdm_on_load": False,
        # -1: as many as a step asks for, up to the whole vocabulary
        "max_logprobs": -1,
        "logprobs_mode": "processed_logprobs" if spec.processed_logprobs else None,
        "kv_cache_memory_bytes": kv,
        # only full blocks are cached, and 128, the default on a CPU, is longer than most shared prefixes
        "block_size": None if gpu else 32,
        "enforce_eager": None if gpu else True,
        # A seeded request whose prompt is read over several steps breaks vLLM 0.32 on a CPU: it turns back the offset
        # of the request's random generator, which a CPU's has not.
        "enable_chunked_prefill": None if gpu else False,
        "gpu_memory_utilization": 0.9 if gpu else None,
        "enable_lora": True if rank else None,
        # One place stays empty: on a CPU vLLM 0.32 takes the last one for requests without an adapter that are decoded
        # together with some that have one.
        "max_loras": len(spec.lora) + 1 if rank else None,
        "max_lora_rank": rank,
    }
    given |= spec.engine_args
    if not gpu:  # of several engines each is given GPUs of its own
        given.pop("device_ids", None)
    return given
