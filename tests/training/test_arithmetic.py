"""Traces of scorer, stepper and erring voter are what they say; figures of the report; the start from given weights."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from plait_bench.tasks.sums import Sums
from training.arithmetic import evaluate, vocab
from training.arithmetic.generate import SKILLS, after, attempt, draw_sum, draw_trace, is_test_sum, solvable, state
from training.controller import lines_on
from training.task import is_test
from training.trades import TRADES
from training.train import TrainConfig, start


def brute(numbers: tuple[int, ...], target: int) -> bool:
    """Whether a target can be reached, by the checker's own legal steps."""
    if len(numbers) == 1:
        return numbers[0] == target
    left = [(line, rest) for line, rest in lines_on(numbers)]
    return any(brute(tuple(sorted((line[3], *rest), reverse=True)), target) for line, rest in left)


def test_values_are_what_an_exhaustive_search_says() -> None:
    rng = random.Random(1)
    seen: Counter[tuple[int, bool]] = Counter()
    for _ in range(150):
        numbers, target = state(rng)
        assert list(numbers) == sorted(numbers, reverse=True)
        truth = brute(numbers, target)
        assert solvable(numbers, target) == truth
        seen[len(numbers), truth] += 1
    assert all(seen[n, truth] for n in (2, 3, 4) for truth in (True, False))


def test_steps_of_solvable_states_stay_solvable() -> None:
    rng = random.Random(2)
    kept = total = 0
    for _ in range(150):
        words = vocab.decode(draw_trace(rng, "step").ids).split()
        target, at = int(words[1][1:]), words.index("<go>")
        numbers = tuple(map(int, words[2:at]))
        ids = [vocab.ID[word] for word in words[at + 1 :]]
        then = evaluate.taken_step(ids, numbers)
        assert then is not None
        total += solvable(numbers, target)
        kept += solvable(then, target)
        assert evaluate.taken_step(ids[:-3] + ids[-2:], numbers) is None or len(then) == 1
    assert kept == total


def test_the_voters_err_as_often_as_they_should() -> None:
    rng = random.Random(3)
    shares: list[float] = []
    for level, skill in SKILLS.items():
        right = 0
        for _ in range(400):
            words = draw_sum(rng)
            text = attempt(rng, words, skill)
            task = Sums(text=" ".join(words), skill=level)
            right += task.verify(task.extract(text))
        shares.append(right / 400)
    assert shares == sorted(shares) and shares[0] < 0.55 and shares[-1] > 0.75


def test_the_test_split_is_left_out() -> None:
    rng = random.Random(4)
    for _ in range(300):
        words = vocab.decode(draw_trace(rng, "sum").ids).split()
        assert not is_test_sum(words[2 : words.index("<go>")])
        words = vocab.decode(draw_trace(rng, "value").ids).split()
        numbers = list(map(int, words[2:-2]))
        assert len(numbers) < 4 or not is_test(numbers)


def test_auroc_counts_ties_half() -> None:
    assert evaluate.auroc([0.9, 0.8], [0.1, 0.2]) == 1.0
    assert evaluate.auroc([0.5], [0.5]) == 0.5
    assert evaluate.auroc([0.1, 0.9], [0.5]) == 0.5


def test_training_starts_from_the_countdown_model() -> None:
    trade = TRADES["arithmetic"]
    config = TrainConfig(trade="arithmetic", model=trade.sizes["small"])
    assert trade.start is not None and len(trade.words) == config.model.vocab
    state = start(config, torch.device("cpu"))
    fresh = start(replace(config, trade="countdown"), torch.device("cpu"))
    assert not torch.equal(state.model.embedding, fresh.model.embedding)
    prompt = vocab.encode("<child> T36 30 14 8 <go>")
    from training.decode import generate

    text = vocab.decode(generate(state.model, [prompt], {vocab.END}, 64)[0])
    assert text.endswith("<hit> 30 + 14 = 44 ; 44 - 8 = 36 <end>")


@pytest.mark.parametrize("mode", ["value", "step", "sum"])
def test_one_word_is_one_token(mode: str) -> None:
    tokenizer = TRADES["arithmetic"].tokenizer()
    trace = draw_trace(random.Random(6), mode)
    assert tokenizer.encode(vocab.decode(trace.ids)).ids == trace.ids


def test_after_lists_the_legal_steps() -> None:
    assert ((8, "*", 3, 24), (24,)) in after((8, 3))


def test_the_shipped_voter_is_outvoted_by_its_majority() -> None:
    from training.decode import generate
    from training.export import load

    model = load(TRADES["arithmetic"].folders["small"])
    rng = random.Random(9)
    sums = [words for words in (draw_sum(rng) for _ in range(200)) if is_test_sum(words)][:12]
    prompts = [vocab.encode(f"<sum> 2 {' '.join(words)} <go>") for words in sums for _ in range(12)]
    said = [evaluate.said(ids) for ids in generate(model, prompts, {vocab.END}, 64, 1.0, seed=1)]
    wanted = [str(Sums(text=" ".join(words)).right()) for words in sums]
    single = sum(got == wanted[at // 12] for at, got in enumerate(said)) / len(said)
    votes = [Counter(said[at * 12 : (at + 1) * 12]).most_common(1)[0][0] for at in range(len(sums))]
    voted = sum(got == right for got, right in zip(votes, wanted, strict=True)) / len(sums)
    assert 0.1 < single < 0.6 and voted > single
