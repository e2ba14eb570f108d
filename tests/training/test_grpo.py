"""GRPO on rollout records: games are whole records, advantages, and an update that makes what paid likelier."""

from __future__ import annotations

import math
import random

import pytest
import torch

from plait.apps.lab.rollouts.record import Record, WeightsSegment
from plait.planners.threads.threads.dialects import load
from training.check import solves
from training.grpo import five
from training.grpo.threads import play, records, reward
from training.grpo.trainer import Loss, advantages, shuffled, update
from training.model import Llama, ModelConfig
from training.task import is_test
from training.vocab import decode

SMALL = ModelConfig(d=32, layers=1, heads=2, ff=32)


def record(group: str, index: int, gain: float | None, own: float | None = None, token: int = 7) -> Record:
    return Record(
        rollout=f"{group}/{gain}/{token}", group=group, index=index, of=index + 1, parent=0 if index else None,
        tokens=(1, 2, token), mask=(0, 0, 1), logprobs=(0.0, 0.0, -5.0), segments=(WeightsSegment(start=2, end=3),),
        reward=gain, own=own,
    )  # fmt: skip


def test_traces_are_right_and_of_the_training_split() -> None:
    rng = random.Random(3)
    for _ in range(20):
        words = decode(five.child_trace(rng).ids).split()
        numbers, target = [int(word) for word in words[2 : words.index("<go>")]], int(words[1][1:])
        steps = " ".join(words[words.index("<hit>") + 1 : -1]).split(" ; ")
        lines = [(int(a), op, int(b), int(c)) for a, op, b, _, c in (step.split() for step in steps)]
        assert solves(lines, numbers, target)
    problems = five.held_out(30, seed=1)
    assert all(is_test(numbers) and five.solve(numbers, target) for numbers, target in problems)
    assert not any(is_test(five.draw_problem(rng, test=False)[0]) for _ in range(30))


def test_the_planners_dialect_reads_items_of_five_numbers() -> None:
    prompt = "<parent> 8 T36 14 10 8 3 2 <go>"
    items = load("countdown").items(
        "<spawn> 14 * 3 = 42 | 10 8 2 ; 14 + 3 = 18 | 10 8 2 ; 14 - 3 = 11 | 10 8 <wait>", prompt, 8
    )
    assert [item.header for item in items] == [" <child> T36 42 10 8 2 <go>", None, None]


def test_a_game_is_one_rollout_of_whole_records() -> None:
    torch.manual_seed(0)
    model = Llama(SMALL)
    (game, _) = play(model, five.held_out(2, seed=2), temperature=1.0, seed=4)
    made = records(game, "g", 0, policy=3)
    assert [each.index for each in made] == list(range(len(game.threads) + 1))
    assert sum(each.generated for each in made) == game.total
    assert {version for each in made for version in each.versions} == {3}
    assert made[0].reward == reward(game) == 0.0, "a model that was never trained solves nothing"


def test_advantages_compare_within_groups_and_leave_out_what_has_no_reward() -> None:
    made = [record("a", 0, 1.0), record("a", 0, 0.0, token=8), record("b", 0, 1.0), record("b", 0, math.nan)]
    examples, left_out = advantages(made, "rollout")
    assert left_out == 1
    assert [each.record.group for each in examples] == ["a", "a"], "a group of equal rewards teaches nothing"
    assert examples[0].advantage == -examples[1].advantage > 0
    threads = [record("a", 1, 1.0, own) for own in (1.0, 0.0, 0.0)]
    own = [each.advantage for each in advantages(threads, "thread")[0]]
    assert own[0] > 0 > own[1] == pytest.approx(own[2])


def test_an_update_makes_likelier_what_paid() -> None:
    torch.manual_seed(1)
    model = Llama(SMALL)
    good, bad = record("a", 0, 1.0, token=7), record("a", 0, 0.0, token=9)

    def likely() -> list[float]:
        with torch.no_grad():
            states = model.hidden(torch.tensor([[1, 2]]), torch.float32)
            return model.logits(states[:, -1], torch.float32).log_softmax(-1)[0, [7, 9]].tolist()

    before = likely()
    both = [good, bad]
    drawn = [each.model_copy(update={"logprobs": (0.0, 0.0, value)}) for each, value in zip(both, before, strict=True)]
    examples, _ = advantages(drawn, "rollout")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    figures = update(model, optimizer, examples, Loss(), random.Random(0), parts=1)
    after = likely()
    assert after[0] > before[0] and after[1] < before[1]
    assert figures["gap"] < 0.02, "the trainer's log-probabilities are the sampler's but for bfloat16"


def test_the_control_keeps_the_advantages_and_not_whose_they_are() -> None:
    made = [record(str(n % 3), index, n / 7, own=n / 5, token=20 + n) for n in range(12) for index in (0, 1)]
    examples, _ = advantages(made, "thread")
    mixed = shuffled(examples, random.Random(1))
    for first in (True, False):
        gains, others = (
            {each.record.tokens: each.advantage for each in side if (each.record.index == 0) is first}
            for side in (examples, mixed)
        )
        assert sorted(gains.values()) == sorted(others.values())
        assert gains != others
