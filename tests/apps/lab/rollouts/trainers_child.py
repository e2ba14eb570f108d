"""Gives records to verl's and TRL's own classes; run by `test_trainers.py` in an environment that has these.

python trainers_child.py verl|trl RECORDS.jsonl MODEL
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from plait_research.rollouts.adapters import trl_output, verl_fields, with_advantages
from plait_research.rollouts.advantages import weighed
from plait_research.rollouts.record import Record
from plait_research.rollouts.store import read_rollouts

PROMPT, RESPONSE = 40, 30
"""Tokens to which verl pads."""


def in_verl(records: list[Record], model: str) -> dict[str, Any]:
    """Return what verl's own post-processing and its advantage make of the records."""
    import numpy as np
    from transformers import AutoTokenizer
    from verl.experimental.agent_loop.agent_loop import (  # pyright: ignore[reportMissingImports]
        AgentLoopMetrics,
        AgentLoopOutput,
        AgentLoopWorker,
    )
    from verl.protocol import DataProto  # pyright: ignore[reportMissingImports]
    from verl.trainer.ppo.core_algos import (  # pyright: ignore[reportMissingImports]
        compute_grpo_outcome_advantage,
    )

    outputs: list[Any] = [
        AgentLoopOutput(metrics=AgentLoopMetrics(), **verl_fields(each, temperature=0.7)) for each in records
    ]
    single = outputs[0].as_dict()
    worker: Any = object.__new__(AgentLoopWorker)  # its methods, without servers and without Ray
    worker.rollout_config = SimpleNamespace(prompt_length=PROMPT, response_length=RESPONSE)
    worker.tokenizer = AutoTokenizer.from_pretrained(model)
    worker.processor = worker.reward_loop_worker_handles = worker.mm_processor_kwargs = None
    worker.distillation_enabled = False

    async def padded() -> list[Any]:
        return [await worker._agent_loop_postprocess(each, False, raw_prompt=[]) for each in outputs]

    data: Any = worker._postprocess(asyncio.run(padded()), {})
    joined: Any = DataProto.concat(data.chunk(2))
    advantages, _ = compute_grpo_outcome_advantage(
        joined.batch["rm_scores"], joined.batch["response_mask"], np.array(joined.non_tensor_batch["uid"])
    )
    return {
        "class": type(data).__name__,
        "single": sorted(single),
        "shapes": {name: list(each.shape) for name, each in joined.batch.items()},
        "responses": [
            row[mask.bool()].tolist()
            for row, mask in zip(joined.batch["responses"], joined.batch["response_mask"], strict=True)
        ],
        "logprobs": [
            row[mask.bool()].tolist()
            for row, mask in zip(joined.batch["rollout_log_probs"], joined.batch["response_mask"], strict=True)
        ],
        "scores": joined.batch["rm_scores"].sum(-1).tolist(),
        "steps": [
            [joined.non_tensor_batch[name][n] for name in ("min_global_steps", "max_global_steps")]
            for n in range(len(records))
        ],
        "advantages": [
            float(row[mask.bool()][0]) for row, mask in zip(advantages, joined.batch["response_mask"], strict=True)
        ],
    }


def in_trl(records: list[Record], model: str) -> dict[str, Any]:
    """Return what one step of TRL's `GRPOTrainer` on the records says."""
    import torch
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    rows = 12
    """TRL's batch, in which the ten sequences of the records stand."""
    given: list[int] = []
    taken: list[Any] = []

    def roll_out(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        given.append(len(prompts))
        return trl_output(records, temperature=trainer.temperature, rows=len(prompts))

    def reward_of(completions: list[str], reward: list[float], **_: Any) -> list[float]:
        return reward

    class Watched(with_advantages(GRPOTrainer)):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output: Any = super()._generate_and_score_completions(inputs)
            taken.append(output["advantages"])
            return output

    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    before = network.model.embed_tokens.weight.detach().clone()
    with tempfile.TemporaryDirectory() as folder:
        config: Any = GRPOConfig(
            output_dir=folder, max_steps=1, per_device_train_batch_size=rows, num_generations=2, temperature=0.7,
            use_cpu=True, report_to=[], learning_rate=1e-3, logging_steps=1, save_strategy="no", bf16=False,
            max_completion_length=RESPONSE,
        )  # fmt: skip
        trainer: Any = Watched(
            model=network, reward_funcs=reward_of, args=config, processing_class=AutoTokenizer.from_pretrained(model),
            train_dataset=Dataset.from_dict({"prompt": [str(row) for row in range(rows)]}), rollout_func=roll_out,
        )  # fmt: skip
        trainer.train()
        log: dict[str, Any] = next(each for each in trainer.state.log_history if "reward" in each)
    return {
        "given": given,
        "rows": rows,
        "advantages": taken[0][:, 0].tolist(),
        "loss": log["loss"],
        "moved": float((network.model.embed_tokens.weight - before).abs().max()),
        "mean_length": log["completions/mean_length"],
    }


if __name__ == "__main__":
    which, path, model = sys.argv[1:]
    found = [record for rollout in weighed(read_rollouts(Path(path))) for record in rollout]
    sys.stdout.write(json.dumps({"verl": in_verl, "trl": in_trl}[which](found, model)) + "\n")
