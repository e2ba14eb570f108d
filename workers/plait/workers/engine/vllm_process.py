"""The process around vLLM: variables to set before it is imported, and its errors in one sentence each."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from plait.core.errors import EngineError

# Private names inside vLLM, each checked before use.
#
# A release that renames one of them takes away a convenience (signals, checkpoints of silent requests, counts of the
# prefix cache), which is then rejected with an explanation; it does not break the engine's thread.


class RequestProgress(NamedTuple):
    """What a running request has generated so far."""

    ids: Sequence[int]
    text: str
    cached: int


def seen(state: Any) -> RequestProgress | None:
    """Read the state of a running request. Raises `AttributeError` where vLLM keeps it in another way."""
    if state is None:
        return None
    # A request that is not decoded has no text.
    text = getattr(state.detokenizer, "output_text", "")
    return RequestProgress(state.detokenizer.output_token_ids, text, state.num_cached_tokens)


def prefill_field(output: Any, logprobs: Any) -> str | None:
    """Return the field of the model's outputs with prefix-cache counts, "" without one; `None` if tokens and
    log-probabilities cannot be read there at all. `output` and `logprobs` are vLLM's classes."""
    fields: Iterable[str] = getattr(output, "__struct_fields__", ())
    if not {"request_id", "new_token_ids", "new_logprobs"}.issubset(fields):
        return None
    if "logprobs" not in getattr(logprobs, "_fields", ()):
        return None
    return "prefill_stats" if "prefill_stats" in fields else ""


SPACES = 24
"""Blanks and line ends between two parts of JSON at most: a small model may write them until its tokens are used up."""


def bound_spaces(compiler: Any) -> None:
    """Have a compiler of XGrammar allow `SPACES` between two parts of JSON, and not as many as there are tokens.
    Others, and older ones that have no such bound, stay as they are."""
    compile_ = getattr(compiler, "compile_json_schema", None)
    if compile_ is None or hasattr(compile_, "bounded"):
        return
    if "max_whitespace_cnt" not in inspect.signature(compile_).parameters:
        return

    def bounded(*args: Any, **options: Any) -> Any:
        return compile_(*args, **{"max_whitespace_cnt": SPACES} | options)

    bounded.bounded = True  # pyright: ignore[reportFunctionMemberAccess]
    compiler.compile_json_schema = bounded


def count_forms(core: Any, counts: Any) -> None:
    """Have an EngineCore count the requests with a form that it made ready and the milliseconds that took, in an array
    of shape (2,). It keeps what it has compiled: a form that came before takes none. Spaces in JSON are bounded on the
    way (`bound_spaces`)."""
    manager: Any = getattr(core, "structured_output_manager", None)
    compile_ = getattr(manager, "_create_grammar", None)
    if not callable(compile_):
        return
    lock = threading.Lock()

    def counted(request: Any) -> Any:
        began = time.perf_counter()
        try:
            bound_spaces(getattr(getattr(manager, "backend", None), "compiler", None))
            return compile_(request)
        finally:
            with lock:
                counts[:] += (1, round(1000 * (time.perf_counter() - began)))

    manager._create_grammar = counted


def measure_cache(core: Any) -> tuple[int, int]:
    """Return the blocks of the cache that an EngineCore's running requests hold, and the number of its waiting
    requests; 0 where they cannot be read."""
    scheduler = getattr(core, "scheduler", None)
    pool: Any = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    free: Any = getattr(pool, "get_num_free_blocks", None)
    # one block holds nothing
    used = 0 if free is None else int(pool.num_gpu_blocks) - 1 - int(free())
    return used, len(getattr(scheduler, "waiting", ()))


def without_amx(attention: Any) -> None:
    """Have vLLM's module of attention on CPUs leave the AMX kernel alone. That of 0.32 is wrong: SmolLM2 (three queries
    a key, heads of 64) then answers something else than with every other kernel. Products of matrices keep AMX."""
    chosen = getattr(attention, "_get_attn_isa", None)
    if callable(chosen) and not hasattr(chosen, "without_amx"):

        def isa(*args: Any, **named: Any) -> Any:
            isa_name = chosen(*args, **named)
            return "vec" if isa_name == "amx" else isa_name

        isa.without_amx = True  # pyright: ignore[reportFunctionMemberAccess]
        attention._get_attn_isa = isa


def pack_head(model: Any) -> None:
    """Bring a head that is tied to the embedding up to date after new weights came. vLLM 0.32 keeps a packed copy of it
    on a CPU, which its reloading does not update: the model would keep the old head."""
    head, inner = getattr(model, "lm_head", None), getattr(model, "model", None)
    method = getattr(head, "quant_method", None)
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    if head is not None and method is not None and tied and inner is not None:
        method.tie_weights(head, inner.embed_tokens)
        method.process_weights_after_loading(head)


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
