"""Advantages of GRPO over rollouts: verl's and TRL's."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait_research.rollouts.adapters import trl_output, verl_fields
from plait_research.rollouts.advantages import grpo_advantages, weighed
from plait_research.rollouts.record import Record
from plait_research.rollouts.store import read_rollouts
from tests.oracles.harness import Oracle, take

MADE = Path(__file__).parents[1] / "apps/lab/rollouts/threaded.jsonl"
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


def _made() -> dict[str, dict[str, list[Record]]]:
    """Rollouts that `plait learn rollouts` made at temperature 1.3, with unequal numbers of threads."""
    groups: dict[str, dict[str, list[Record]]] = defaultdict(dict)
    for rollout in read_rollouts(MADE):
        groups[rollout[0].group][rollout[0].rollout] = rollout
    return groups


def _of_the_command(random: Random) -> Iterator[dict[str, Any]]:
    """Some of its groups, each with as many rollouts, by name."""
    groups = _made()
    while True:
        some, width = random.sample(sorted(groups), random.randint(1, len(groups))), random.randint(2, 3)
        yield {"rollouts": [name for group in some for name in random.sample(sorted(groups[group]), width)]}


def _named(case: dict[str, Any]) -> list[list[Record]]:
    known = {name: rollout for group in _made().values() for name, rollout in group.items()}
    return [known[name] for name in case["rollouts"]]


def verl_of_records(clone: Path) -> Callable[[Any], Any]:
    """Return verl's advantages of each sequence: of its rollout among rollouts, and of what our adapter gives verl."""
    import numpy as np
    import torch

    names = {"np": np, "torch": torch, "defaultdict": defaultdict}
    rule = take(clone / "verl/trainer/ppo/core_algos.py", "compute_grpo_outcome_advantage", **names)

    def weigh(scores: list[float], index: list[str]) -> list[float]:
        rewards = torch.tensor(scores, dtype=torch.float64)[:, None]
        gains, _ = rule["compute_grpo_outcome_advantage"](rewards, torch.ones_like(rewards), np.array(index))
        return gains[:, 0].tolist()

    def run(case: dict[str, Any]) -> dict[str, list[float]]:
        rollouts = _named(case)
        whole = weigh([rollout[0].reward or 0.0 for rollout in rollouts], [rollout[0].group for rollout in rollouts])
        given = [verl_fields(record, temperature=1.3) for rollout in weighed(rollouts) for record in rollout]
        return {
            "over rollouts": [gain for rollout, gain in zip(rollouts, whole, strict=True) for _ in rollout],
            "of our fields": weigh(
                [fields["reward_score"] for fields in given], [fields["extra_fields"]["uid"] for fields in given]
            ),
        }

    return run


def trl_of_records(clone: Path) -> Callable[[Any], Any]:
    """Return TRL's advantages of rollouts, for each of their sequences."""
    theirs = trl_theirs(clone)

    def run(case: dict[str, Any]) -> list[float]:
        rollouts = _named(case)
        groups: dict[str, list[float]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout[0].group, []).append(rollout[0].reward or 0.0)
        whole = theirs({"groups": list(groups.values())})
        return [gain for rollout, gain in zip(rollouts, whole, strict=True) for _ in rollout]

    return run


def trl_logprobs(clone: Path) -> Callable[[Any], Any]:
    """Return what TRL's trainer computes of the tokens of a record: logits divided by the temperature, then its own
    log-softmax."""
    import torch

    from training import export

    rule = take(clone / "trl/trainer/utils.py", "selective_log_softmax", torch=torch)
    model = export.load(MADE.parents[4] / "packages/plait-models/plait_models/models/countdown")

    @torch.inference_mode()
    def run(case: dict[str, Any]) -> list[float]:
        (rollout,) = _named({"rollouts": [case["rollout"]]})
        record = rollout[case["index"]]
        ids = torch.tensor([record.tokens])
        logits = model.logits(model.hidden(ids, torch.float32), torch.float32)[:, :-1]
        logits.div_(1.3)
        return rule["selective_log_softmax"](logits, ids[:, 1:])[0][torch.tensor(record.mask[1:]) > 0].tolist()

    return run


def _single(random: Random) -> Iterator[dict[str, Any]]:
    rollouts = [rollout for group in _made().values() for rollout in group.values()]
    while True:
        rollout = random.choice(rollouts)
        yield {"rollout": rollout[0].rollout, "index": random.randrange(len(rollout))}


def our_logprobs(case: dict[str, Any]) -> list[float]:
    """Return a record's log-probabilities of the tokens that the model wrote."""
    record = _named({"rollouts": [case["rollout"]]})[0][case["index"]]
    return [logprob for logprob, one in zip(record.logprobs, record.mask, strict=True) if one]


def our_verl(case: dict[str, Any]) -> dict[str, list[float]]:
    """Return the advantages that our records carry, and those that verl makes of our fields: it divides the score of
    a sequence that is alone in its group by 1 and its epsilon."""
    records = [record for rollout in weighed(_named(case)) for record in rollout]
    fields = [verl_fields(record, temperature=1.3) for record in records]
    groups = Counter(each["extra_fields"]["uid"] for each in fields)
    assert set(groups.values()) == {1}, "every sequence is a group of its own"
    return {
        "over rollouts": [record.advantage or 0.0 for record in records],
        "of our fields": [each["reward_score"] / (1 + 1e-6) for each in fields],
    }


def our_trl(case: dict[str, Any]) -> list[float]:
    """Return what our adapter gives TRL, one number a sequence."""
    records = [record for rollout in weighed(_named(case), epsilon=1e-4) for record in rollout]
    return [row[0] for row in trl_output(records, temperature=1.3)["advantage"]]


ORACLES = [
    Oracle(
        "verl-grpo", *VERL, "verl/trainer/ppo/core_algos.py compute_grpo_outcome_advantage", _batches, verl_theirs,
        ours(1e-6), number=60, tolerance=1e-6,
    ),
    Oracle(
        "trl-grpo", *TRL, "trl/trainer/grpo_trainer.py GRPOTrainer, the branch sum_then_normalize", _batches,
        trl_theirs, ours(1e-4), number=60, tolerance=1e-6,
    ),
    Oracle(
        "verl-records", *VERL, "verl/trainer/ppo/core_algos.py compute_grpo_outcome_advantage", _of_the_command,
        verl_of_records, our_verl, number=20, tolerance=1e-6,
    ),
    Oracle(
        "trl-records", *TRL, "trl/trainer/grpo_trainer.py GRPOTrainer, the branch sum_then_normalize",
        _of_the_command, trl_of_records, our_trl, number=20, tolerance=1e-6,
    ),
    Oracle(
        "trl-logprobs", *TRL, "trl/trainer/utils.py selective_log_softmax, of logits divided by the temperature",
        _single, trl_logprobs, our_logprobs, number=20, tolerance=1e-3,
    ),
]  # fmt: skip
