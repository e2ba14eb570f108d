"""Private names inside vLLM, each checked before use.

A release that renames one of them takes away a convenience (signals, checkpoints of silent requests, counts of the
prefix cache), which is then rejected with an explanation; it does not break the engine's thread.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


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
