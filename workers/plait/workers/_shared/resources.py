"""What an engine may use of this machine: memory, cores, and whether a model folder is one. Look-ups in the file system
and the operating system, done before anything heavy is imported."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plait.core.errors import EngineError
from plait.core.processor import float_type, memory_limits

GIB = 1 << 30
SMALL = 64 << 20
"""Weights, in bytes, below which a second compute thread wins little (19 instead of 15 thousand tokens/s for 128
requests, nothing for 8) and loses much when its core is busy."""
LIBRARIES = int(0.8 * GIB)
"""Resident memory of a process that has imported vLLM and loaded nothing (0.7 GiB measured)."""


def local_model(model: str) -> Path | None:
    """Return the folder of a model given by path, or `None` for the id of a model on a hub.

    Raises `EngineError` when it is a path, and what lies there is not a model.
    """
    path = Path(model).expanduser()
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1 or path.exists()
    if not looks_like_path:
        return None
    remedy = "give a folder with config.json, a tokenizer and safetensors weights"
    if not path.exists():
        if path.parent.parent.name == "plait_models":  # where that distribution would have put it
            engine = "pip install 'plait[cpu]' or 'plait[gpu]' the engine"
            remedy = f"`pip install plait-models` brings {path.name}, {engine}; or name a model with --model"
        raise EngineError(f"there is no model at {model}: {remedy}")
    if not path.is_dir():
        raise EngineError(f"{model} is a file, not a model folder: {remedy}")
    if not (path / "config.json").is_file():
        raise EngineError(f"{model} is not a model folder, for it has no config.json: {remedy}")
    return path


def identity(models: Sequence[str]) -> str:
    """Return the identity of models: their names, and for a folder the times and sizes of its files, so that a model
    that is trained again is another one."""
    parts: list[str] = []
    for model in models:
        folder = Path(model).expanduser()
        if folder.is_dir():
            files = [(path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
            stamps = [(str(path.relative_to(folder)), at.st_size, at.st_mtime_ns) for path, at in files]
            model = f"{folder.resolve()} {hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest()}"
        parts.append(model)
    return " ".join(parts)


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model folder's config.json; raises `EngineError` when it is not JSON."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise EngineError(f"{folder / 'config.json'} is not a JSON object")
    return config


def cpu_dtype(asked: str, proc: Path = Path("/proc")) -> str:
    """Return the type in which an engine on this CPU computes: the one asked for, or for `auto` the fastest."""
    if asked != "auto":
        return asked
    try:
        return float_type((proc / "cpuinfo").read_text())
    except OSError:  # not Linux
        return float_type("")


def _width(dtype: object) -> int | None:
    """Return the bytes of one number of a type, `None` for a type that is not known."""
    return {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}.get(str(dtype))


def weight_bytes(folder: Path) -> int:
    """Return the size of a model folder's weights on disk, in bytes."""
    files = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    return sum(path.stat().st_size for path in files)


def loaded_bytes(folder: Path, config: dict[str, Any] | None, dtype: str) -> int:
    """Return the size of a model folder's weights once they are loaded as `dtype`, in bytes."""
    config = config or {}
    stored = _width(config.get("dtype") or config.get("torch_dtype"))
    wanted = _width(dtype)
    # Quantized weights stay as they are, whatever is computed in.
    if stored is None or wanted is None or "quantization_config" in config:
        return weight_bytes(folder)
    return weight_bytes(folder) * wanted // stored


def head_size(config: Mapping[str, Any]) -> int | None:
    """Return the size of one attention head, `None` if the config does not tell."""
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    size = config.get("head_dim")
    if isinstance(size, int):
        return size
    return hidden // heads if isinstance(heads, int) and isinstance(hidden, int) and heads else None


def kv_bytes_per_token(config: dict[str, Any], dtype: str) -> int | None:
    """Return the bytes of keys and values that one token takes in a type, or `None` if the config does not tell."""
    layers, heads, size = config.get("num_hidden_layers"), config.get("num_attention_heads"), head_size(config)
    if not (isinstance(layers, int) and isinstance(heads, int) and size):
        return None
    kv_heads = config.get("num_key_value_heads") or heads
    # one key and one value; a type that is not known is taken for one of 16 bits
    return 2 * (_width(dtype) or 2) * layers * kv_heads * size


def kv_budget(config: dict[str, Any] | None, slots: int, max_model_len: int | None, available: int, dtype: str) -> int:
    """Return the bytes of KV cache to request on a CPU: enough for every slot at full context (up to 2048 tokens
    each), so that finished prefixes stay cached; at least 64 MiB, at most 1 GiB or a third of what is available."""
    per_token = kv_bytes_per_token(config, dtype) if config else None
    ceiling = min(max(GIB, available // 3), max(available // 2, GIB // 16))
    if per_token is None:
        return min(GIB, ceiling)
    context = max_model_len or (config or {}).get("max_position_embeddings") or 2048
    return max(min(slots * min(context, 2048) * per_token, ceiling), GIB // 16)


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        return ""


def available_memory(read: Callable[[str], str] = _read) -> int:
    """Return the bytes of memory that this process can still take: what the machine has available, or what is left
    under the limit of the container, whichever is less."""
    total, free, _ = memory_limits(read)
    return free if total else 1 << 50


def usable_cores() -> list[int]:
    """Return the cores that this process may run on."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return list(range(os.cpu_count() or 1))


def default_threads(folder: Path | None, own: Sequence[int] | None) -> int:
    """Return the compute threads for a model on a CPU: one for a very small model, else one for each of its `own`
    cores, or half of the usable cores. `folder=None`: a model of unknown size."""
    if folder is not None and weight_bytes(folder) < SMALL:
        return 1
    return len(own) if own else max(1, len(usable_cores()) // 2)


def bind(cores: Sequence[int]) -> None:
    """Keep the calling thread, and the threads it starts from now on, on these cores. Cores it cannot have are an
    `EngineError`."""
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot run on cores {list(cores)}, only on {usable_cores()}: {error}") from error
    except AttributeError:  # not Linux: no binding
        pass


def reserve(
    model: str,
    folder: Path | None,
    config: dict[str, Any] | None,
    kv: int | None,
    slots: int,
    context: int | None,
    dtype: str,
) -> int:
    """Return the bytes of KV cache to ask for on a CPU, where it computes in `dtype`: `kv` if given. Raises
    `EngineError` when weights, cache and libraries do not fit into what is available."""
    free = available_memory()
    kv = kv or kv_budget(config, slots, context, free, dtype)
    need = kv + LIBRARIES + (loaded_bytes(folder, config, dtype) if folder else 0)
    if need > free:
        raise EngineError(
            f"too little memory for {model}: it needs {gib(need)} ({gib(kv)} of it KV cache) and {gib(free)} are "
            "free; free some, or choose a smaller kv_cache_memory_bytes or a smaller model"
        )
    return kv


def enough_gpus(wanted: int) -> None:
    """Raise `EngineError` when the process sees fewer GPUs than a model is to be spread over."""
    import torch

    there = torch.cuda.device_count()
    if wanted > there:
        raise EngineError(
            f"tensor_parallel_size={wanted} needs {wanted} GPUs and {there} can be seen: lower it, or check "
            "CUDA_VISIBLE_DEVICES (and num_gpus, in a Ray actor)"
        )


def gib(count: int) -> str:
    """Return a number of bytes for people to read."""
    return f"{count / GIB:.1f} GiB"
