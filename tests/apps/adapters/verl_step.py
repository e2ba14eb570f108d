"""GRPO steps of threads by verl's own training worker, on the CPU: verl 0.9 has no such platform but lets one register.

python verl_step.py STEPS

The agent loop's worker, the advantages, the loss, the engine (FSDP2) and the optimizer are verl's; in place of its
servers and of Ray's queue between the two, one process samples from the very model that is trained.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"VERL_PLATFORM": "cpu", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
PROMPTS, ROLLOUTS, THREADS, LENGTH = 4, 4, 2, 12
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def register_cpu() -> None:
    """Register a platform and verl's FSDP engine for it."""
    import torch
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    class Cpu(PlatformBase):
        device_name, vendor_name, device_module = "cpu", "cpu", torch.cpu

        @contextlib.contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

    constants = {
        "is_available": True, "is_platform_available": True, "current_device": "cpu", "device_count": 1,
        "communication_backend_name": "gloo", "visible_devices_envvar": "", "ray_resource_name": "CPU",
        "get_device_capability": (None, None),
    }  # fmt: skip
    for name in PlatformBase.__abstractmethods__ - set(vars(Cpu)):
        value = constants.get(name)
        setattr(Cpu, name, lambda self, *_, value=value, **__: value)
    Cpu.__abstractmethods__ = frozenset()
    for name in ("max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cpu, name, lambda *_: 0)
    PlatformRegistry.register(platform="cpu")(Cpu)
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])(FSDPEngineWithLMHead)


def build_model(folder: Path) -> Any:
    """Write a small model with the tests' tokenizer; return the tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.apps.adapters.seats import build_tokenizer

    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def start_worker(folder: Path) -> Any:
    """Return verl's training worker with its PPO loss."""
    import torch
    from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.config.engine import TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import ppo_loss

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    torch.distributed.init_process_group("gloo")  # verl would ask for one of the CPU, and one of the device
    model = HFModelConfig(
        path=str(folder), use_remove_padding=False, enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "eager"},
    )  # fmt: skip
    engine = FSDPEngineConfig(
        strategy="fsdp2", dtype="float32", use_dynamic_bsz=False, micro_batch_size_per_gpu=8,
        infer_micro_batch_size_per_gpu=8, use_torch_compile=False,
        mixed_precision=dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32"),
    )  # fmt: skip
    optimizer = FSDPOptimizerConfig(lr=3e-3, total_training_steps=1000)
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model", model_config=model, engine_config=engine, optimizer_config=optimizer
        )
    )
    worker.reset()
    actor = ActorConfig(strategy="fsdp2", ppo_mini_batch_size=8, ppo_micro_batch_size_per_gpu=8, rollout_n=ROLLOUTS)
    worker.set_loss_fn(partial(ppo_loss, actor))
    return worker


class Server:
    """Samples from the model in training, with verl's protocol of a server."""

    def __init__(self, worker: Any, tokenizer: Any) -> None:
        self._module, self._end, self.step = worker.engine.module, tokenizer.eos_token_id, 0

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        import torch
        from verl.workers.rollout.replica import TokenOutput

        draw = random.Random(sampling_params["seed"])
        ids, logprobs = list(prompt_ids), list[float]()
        while len(logprobs) < sampling_params["max_tokens"] and (not logprobs or ids[-1] != self._end):
            with torch.no_grad():
                row = torch.log_softmax(self._module(torch.tensor([ids])).logits[0, -1].float(), -1)
            (token,) = draw.choices(range(len(row)), row.exp().tolist())
            ids.append(token)
            logprobs.append(float(row[token]))
            await asyncio.sleep(0)
        return TokenOutput(
            token_ids=ids[len(prompt_ids) :], log_probs=logprobs, num_preempted=0, stop_reason="completed",
            extra_fields={"min_global_steps": self.step, "max_global_steps": self.step},
        )  # fmt: skip


def loop_worker(tokenizer: Any, server: Server, rows: dict[str, dict[str, Any]]) -> Any:
    """Return the agent loop's worker of verl's trainer v1; `rows` gets what it would put into Ray's queue."""
    import verl.trainer.ppo.v1.agent_loop_tq as v1
    from omegaconf import OmegaConf

    import plait_research.adapters.verl as seat

    async def put(**_: Any) -> None: ...

    async def put_batch(keys: list[str], fields: Any, tags: Any, partition_id: str) -> None:
        rows.update(dict(zip(keys, fields, strict=True)))

    class Worker(v1.AgentLoopWorkerTQ.__ray_metadata__.modified_class):
        async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
            ids = outputs[-1].response_ids  # the toy reward: how much of the answer is small letters
            letters = tokenizer.decode(ids, skip_special_tokens=True)
            outputs[-1].reward_score = sum("a" <= each <= "z" for each in letters) / LENGTH
            outputs[-1].extra_fields["reward_extra_info"] = {}

    v1.tq.async_kv_put, v1.tq.async_kv_batch_put, v1.list_of_dict_to_tensordict = put, put_batch, list
    rollout = {
        "prompt_length": 200, "response_length": LENGTH, "n": ROLLOUTS, "temperature": 1.0, "val_kwargs": {"n": 1},
        "agent": {"default_agent_loop": "plait"},
    }  # fmt: skip
    entry = {
        "name": "plait", "_target_": f"{seat.__name__}.PlaitAgentLoop", "seed": 3,
        "request": {"planner": f"sample:n={THREADS},early=false"},
    }  # fmt: skip
    v1.AgentLoopWorker._run_agent_loop.__globals__["_agent_loop_registry"]["plait"] = OmegaConf.create(entry)
    worker: Any = object.__new__(Worker)
    worker.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    worker.tokenizer, worker.hf_model_type, worker.llm_client = tokenizer, "llama", server
    worker.dataset_cls = SimpleNamespace(process_multi_modal_info=None)
    worker.processor = worker.reward_loop_worker_handles = None
    worker.tools, worker.distillation_enabled = [], False
    return worker


def as_batch(rows: dict[str, dict[str, Any]], names: Sequence[str], **more: Any) -> Any:
    """Return the named fields of the rows as verl's trainer passes them to its worker."""
    import torch
    from verl.utils import tensordict_utils as tu

    tensors = {
        name: torch.nested.as_nested_tensor([row[name] for row in rows.values()], layout=torch.jagged) for name in names
    }
    return tu.get_tensordict(tensor_dict=tensors, non_tensor_dict=more)


def train_step(worker: Any, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Make one step of GRPO as the trainer does; return what it measured."""
    import numpy as np
    import torch
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested, response_to_nested

    names = ["input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask"]
    masks = as_batch(rows, ["response_mask"])["response_mask"]

    def log_probs() -> Any:
        batch = as_batch(rows, names, temperature=1.0, calculate_entropy=False, compute_loss=False)
        return response_from_nested(worker.infer_batch(batch)["log_probs"], masks)

    old = log_probs()
    for row, values in zip(rows.values(), old.unbind(), strict=True):
        row["old_log_probs"] = values
    off = max(
        float((row["old_log_probs"] - row["rollout_log_probs"]).abs()[row["response_mask"].bool()].max())
        for row in rows.values()
    )

    def pad(name: str) -> Any:
        return torch.nn.utils.rnn.pad_sequence([row[name] for row in rows.values()], batch_first=True)

    data = DataProto.from_single_dict(
        {"response_mask": pad("response_mask"), "token_level_rewards": pad("rm_scores"),
         "uid": np.array([key.split("_")[0] for key in rows])}
    )  # fmt: skip
    data = compute_advantage_for_multi_trajectories(data, list(rows), AdvantageEstimator.GRPO)
    for row, values in zip(rows.values(), response_to_nested(data.batch["advantages"], masks).unbind(), strict=True):
        row["advantages"] = values

    def surrogate() -> float:
        """Return GRPO's loss of the batch by the weights that are there now."""
        ratios = [
            torch.exp(new - row["old_log_probs"]) for new, row in zip(log_probs().unbind(), rows.values(), strict=True)
        ]
        every = [
            -(ratio * row["advantages"])[row["response_mask"].bool()]
            for ratio, row in zip(ratios, rows.values(), strict=True)
        ]
        return float(torch.cat(every).mean())

    before = surrogate()
    batch = as_batch(
        rows, [*names, "old_log_probs", "advantages"], temperature=1.0, calculate_entropy=False, epochs=1, seed=1,
        mini_batch_size=len(rows), global_batch_size=len(rows), dataloader_kwargs={"shuffle": False},
    )  # fmt: skip
    metrics = tu.get(worker.train_mini_batch(batch), "metrics")
    return {
        "off": off, "before": before, "after": surrogate(), "sequences": len(rows),
        "grad_norm": float(np.mean(metrics["grad_norm"])),
        "reward": sum(float(row["rm_scores"].sum()) for row in rows.values()) / len(rows),
    }  # fmt: skip


def main(steps: int) -> list[dict[str, float]]:
    """Roll out and train, step by step."""
    register_cpu()
    found = list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = build_model(Path(folder))
        worker = start_worker(Path(folder))
        server = Server(worker, tokenizer)
        for step in range(steps):
            server.step, rows = step, {}
            loops = loop_worker(tokenizer, server, rows)

            async def roll_out(loops: Any = loops, step: int = step) -> None:
                trajectory = {"step": step, "sample_index": 0, "rollout_n": 0, "validate": False}
                for each in range(PROMPTS):
                    prompt = {
                        "uid": f"u{each}", "index": each, "agent_name": "plait", "global_steps": step,
                        "raw_prompt": [{"role": "user", "content": f"write {each}"}],
                    }  # fmt: skip
                    await loops._run_prompt(prompt, dict(SAMPLING), trajectory)

            asyncio.run(roll_out())
            found.append(train_step(worker, rows))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]))) + "\n")
