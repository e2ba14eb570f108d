"""Advantages of GRPO over rollouts: verl's and TRL's."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait.apps.lab.rollouts.advantages import grpo_advantages
from tests.oracles.harness import Oracle, take

VERL = ("verl-project/verl", "1dda039b9c6311889a9c9a26040677e1254814f9", "Apache-2.0")
TRL = ("huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8", "Apache-2.0")


def _batches(random: Random) -> Iterator[dict[str, Any]]:
    """Groups of as many rollouts each, their rewards, and how many sequences each rollout has."""
    while True:
        width = random.choice([2, 4, 8])
        whole = random.random() < 0.5
        groups = [
            [float(random.randint(0, 1)) if whole else round(random.random(), 3) for _ in range(width)]
            for _ in range(random.randint(1, 4))
        ]
        yield {"groups": groups, "sequences": [[random.randint(1, 17) for _ in group] for group in groups]}


def verl_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np
    import torch

    names = {"np": np, "torch": torch, "defaultdict": defaultdict}
    rule = take(clone / "verl/trainer/ppo/core_algos.py", "compute_grpo_outcome_advantage", **names)

    def run(case: dict[str, Any]) -> list[float]:
        flat = [reward for group in case["groups"] for reward in group]
        index = np.array([i for i, group in enumerate(case["groups"]) for _ in group])
        rewards = torch.tensor(flat, dtype=torch.float64)[:, None]
        said, _ = rule["compute_grpo_outcome_advantage"](rewards, torch.ones_like(rewards), index)
        return said[:, 0].tolist()

    return run


def trl_theirs(clone: Path) -> Callable[[Any], Any]:
    """Return the branch of TRL's trainer that makes rewards into advantages."""
    import torch

    tree = ast.parse((clone / "trl/trainer/grpo_trainer.py").read_text(encoding="utf-8"))
    branch = next(
        node for node in ast.walk(tree)
        if isinstance(node, ast.If) and "sum_then_normalize" in ast.unparse(node.test)
    )  # fmt: skip
    code = compile(ast.Module(body=branch.body, type_ignores=[]), "grpo_trainer.py", "exec")

    def nanstd(values: Any, dim: Any = None) -> Any:
        return values.std(dim) if dim is not None else values.std()

    def run(case: dict[str, Any]) -> list[float]:
        flat = [reward for group in case["groups"] for reward in group]
        own = SimpleNamespace(scale_rewards="group", reward_weights=torch.ones(1, dtype=torch.float64))
        space: dict[str, Any] = {
            "self": own, "torch": torch, "nanstd": nanstd, "device": "cpu", "mode": "train",
            "num_generations": len(case["groups"][0]),
            "rewards_per_func": torch.tensor(flat, dtype=torch.float64)[:, None],
            "unscorable_mask": torch.zeros(len(flat), dtype=torch.bool),
        }  # fmt: skip
        exec(code, space)
        return space["advantages"].tolist()

    return run


def ours(epsilon: float) -> Callable[[Any], Any]:
    """Return our advantages, of records in which a rollout has several sequences."""

    def run(case: dict[str, Any]) -> list[float]:
        records: list[Any] = [
            SimpleNamespace(group=f"g{i}", rollout=f"g{i}r{j}", reward=reward, judged=True)
            for i, group in enumerate(case["groups"])
            for j, reward in enumerate(group)
            for _ in range(case["sequences"][i][j])
        ]
        return list(grpo_advantages(records, epsilon).values())

    return run


ORACLES = [
    Oracle(
        "verl-grpo", *VERL, "verl/trainer/ppo/core_algos.py compute_grpo_outcome_advantage", _batches, verl_theirs,
        ours(1e-6), number=60, tolerance=1e-6,
    ),
    Oracle(
        "trl-grpo", *TRL, "trl/trainer/grpo_trainer.py GRPOTrainer, the branch sum_then_normalize", _batches,
        trl_theirs, ours(1e-4), number=60, tolerance=1e-6,
    ),
]  # fmt: skip
