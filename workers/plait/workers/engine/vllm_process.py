"""The process around vLLM: variables to set before it is imported, and its errors in one sentence each."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence

from plait.core.errors import EngineError

INSTALL = "pip install 'plait[cpu]' (no GPU) or 'plait[gpu]'"


def environment(threads: int, *, forced: bool, cores: Sequence[int] | None, local: bool) -> bool:
    """Set the variables that vLLM reads while it is imported; returns whether there is a GPU to use.

    No usage statistics, no log on stdout. On a CPU torch's dynamo is off: its compilation of a
    sampler helper costs seconds at the first request and wins nothing measurable.
    """
    put = os.environ.setdefault
    put("VLLM_LOGGING_LEVEL", "CRITICAL")  # its errors are raised, and logged once
    put("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    put("TORCH_CPP_LOG_LEVEL", "ERROR")
    put("VLLM_NO_USAGE_STATS", "1")
    put("TOKENIZERS_PARALLELISM", "false")
    # Threads that wait for one another sleep. By default they spin, and when another process wants their cores that
    # slows the engine down a hundredfold.
    put("OMP_WAIT_POLICY", "PASSIVE")
    # it warns before it has read its own variables
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    # plait decides by an argument whether EngineCore has a process. With "1", vLLM would give an engine on a CPU a
    # second process behind that one, and both wait by spinning.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    put("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # a fork would copy this process's threads, and the locks they hold
    if local:
        put("HF_HUB_OFFLINE", "1")
    if forced:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    put("OMP_NUM_THREADS", str(threads))
    if cores:
        put("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    try:
        import torch
    except ModuleNotFoundError as error:
        raise EngineError(f"PyTorch is not installed: {INSTALL}") from error
    if torch.cuda.is_available():
        return True
    put("TORCHDYNAMO_DISABLE", "1")
    with contextlib.suppress(RuntimeError):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return False


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def explain(error: BaseException, model: str) -> str:
    """Say in one sentence why vLLM did not start, and what to do."""
    text = str(error)
    lower = text.lower()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    cause = next((line for line in lines if "Value error," in line), lines[0] if lines else "")[:300]
    own = f"{type(error).__name__}: {cause}" if cause else type(error).__name__
    unknown = ("not supported for now", "recognize this architecture", "no model architectures")
    if any(part in lower for part in unknown):
        return (
            f"vLLM does not know the architecture of {model} ({own}): choose a model that it supports, or another vLLM"
        )
    if isinstance(error, MemoryError) or "memory" in lower or "kv cache" in lower:
        return (
            f"too little memory for {model} ({own}): set another kv_cache_memory_bytes, a smaller "
            "max_model_len or a smaller model"
        )
    if "safetensors" in lower or "model weights" in lower:
        return f"the weights of {model} cannot be read ({own}): download or export the model again"
    if "tokenizer" in lower:
        return f"the tokenizer of {model} cannot be read ({own}): download or export the model again"
    return f"vLLM could not load {model} ({own}): check the model and the engine's options"
