"""The options of the worker `engine`, which the worker and its thread read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from plait.core.values import Frozen

from .._shared.options import build_options

Named = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)]
"""A folder or an id; a `Path` is taken too."""


FIXED_ARGUMENTS = dict.fromkeys(
    ("dtype", "kv_cache_memory_bytes", "max_model_len", "model", "seed", "tensor_parallel_size"), "it is an option"
) | {
    "max_num_seqs": "set the option 'slots'",
    "enable_lora": "set the option 'lora'",
    "kv_events_config": "set the option 'kv_events'",
    "logits_processors": "set the option 'arithmetic'",
    "logprobs_mode": "set the option 'processed_logprobs'",
    "enable_prefix_caching": "plait places steps where their prefix is cached",
    "scheduling_policy": "plait gives requests priorities",
    "max_logprobs": "confidence and labels read the log-probabilities of the whole vocabulary",
    "stream_interval": "budgets and checkpoints count the tokens of every step",
    "skip_tokenizer_init": "plait tokenizes prompts with the engine's tokenizer",
    "disable_log_stats": "plait counts tokens and blocks itself",
    "runner": "this worker generates text",
    "data_parallel_size": "plait distributes steps itself: start several engines",
}
"""Arguments of vLLM's engine on whose value plait relies, each with the reason or the option that sets it."""


def _check_names(arguments: dict[str, Any]) -> dict[str, Any]:
    for name in arguments:
        if name in FIXED_ARGUMENTS:
            raise ValueError(f"cannot contain {name!r}: {FIXED_ARGUMENTS[name]}")
    return arguments


class EngineOptions(Frozen):
    """Which model, and how much of this machine it may use."""

    model: Named = Field(description="Folder of the model, or its id on the Hugging Face hub.")
    name: str = Field(default="engine", description="Name of the worker.")
    slots: int = Field(default=128, ge=1, description="Requests that are decoded together.")
    kv_cache_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Memory for keys and values. By default, on a CPU: what the slots need, 1 GiB or a third of the "
        "free memory at most.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of prompt and output together; by default what the model allows and the cache holds.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "half", "float32", "float"] = Field(
        default="auto",
        description="Type of the weights. On a CPU `auto` is bfloat16 where the processor has AVX-512-BF16 or AMX, "
        "else float32, which is then faster.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="Compute threads on a CPU. By default one for a very small model, else half of the cores, or "
        "all of `cpu_list`.",
    )
    process: Literal["auto", "own", "shared"] = Field(
        default="auto",
        description="Process of vLLM's EngineCore (scheduler and model): its own, or shared with plait. `auto` is "
        "`own` on a GPU and `shared` on a CPU. Several engines in one process need `own`.",
    )
    seed: int = Field(default=0, description="Seed of requests that have none.")
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs that hold one copy of the model.")
    engine_args: Annotated[dict[str, Any], AfterValidator(_check_names)] = Field(
        default={},
        description="Other arguments of vLLM's engine by name (`EngineArgs`), such as `max_num_batched_tokens`, "
        "`quantization` or `speculative_config`.",
    )
    cpu_list: tuple[int, ...] | None = Field(default=None, description="Cores to stay on.")
    lora: dict[str, Named] = Field(
        default={},
        description="Adapters of the model, folder by name. `ModelCall.model` asks for one by that name, and for the "
        "model itself by its folder's name or by none.",
    )
    checkpoint: int = Field(
        default=0,
        ge=0,
        description="Number of engine steps between two checkpoints. A checkpoint reports the new token ids of all "
        "requests, streamed or not, so that another engine can continue them if this one dies; 0: never.",
    )
    kv_events: bool = Field(
        default=False,
        description="Follow vLLM's own news of blocks that its prefix cache stores and evicts, so that steps are "
        "placed by what it really holds. It pays with several engines.",
    )
    arithmetic: bool | None = Field(
        default=None,
        description="Load what draws samples by a code (`Sampling.arithmetic`). By default on a CPU only: on a GPU "
        "vLLM reads each step's tokens back before the next as soon as any logits processor is loaded.",
    )
    processed_logprobs: bool = Field(
        default=False,
        description="Tell log-probabilities of the distribution that is drawn from: after temperature, `top_p`, the "
        'form and so on (vLLM\'s `logprobs_mode="processed_logprobs"`), as trainers on rollouts want them. By default '
        "the model's own, at temperature 1. It holds for all that the engine tells: signals and labels too.",
    )
    silence: float = Field(
        default=600.0,
        gt=0,
        description="Seconds in which an engine that has requests has to make a step; else it is taken for dead.",
    )


def build_engine_options(worker: str, given: Mapping[str, Any]) -> EngineOptions:
    """Return the options of an engine for a worker or a tool. Raises `ConfigError` that names each wrong one."""
    return build_options(EngineOptions, worker, given)
