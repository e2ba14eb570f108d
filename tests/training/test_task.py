"""The rules of the task and the split between training and testing."""

from __future__ import annotations

import random
import zlib

import pytest

from training.check import lines_on, solvable
from training.task import calculate, candidates, draw_numbers, draw_problem, is_test, reach
from training.vocab import END, ID, TARGET_BASE, VOCAB_SIZE, WORDS, decode, encode


@pytest.mark.parametrize(
    ("op", "a", "b", "value"),
    [
        ("+", 100, 27, 127), ("+", 100, 28, None), ("-", 9, 4, 5), ("-", 7, 7, None), ("*", 25, 5, 125),
        ("*", 25, 6, None), ("/", 24, 8, 3), ("/", 25, 8, None), ("/", 9, 1, None), ("/", 9, 9, 1),
        ("*", 9, 1, 9),
    ],
)  # fmt: skip
def test_calculate_keeps_the_rules(op: str, a: int, b: int, value: int | None) -> None:
    assert calculate(op, a, b) == value


def test_candidates_are_distinct_and_in_the_order_the_checker_expects() -> None:
    rng = random.Random(3)
    for _ in range(200):
        numbers = draw_numbers(rng, test=False)
        ours = [(s.a, s.op, s.b, s.c) for s in candidates(numbers)]
        assert ours == list(dict.fromkeys(line for line, _ in lines_on(numbers)))


def test_reach_agrees_with_plain_recursion() -> None:
    rng = random.Random(4)
    for _ in range(30):
        numbers = tuple(sorted((rng.randint(1, 60) for _ in range(3)), reverse=True))
        found = reach(numbers)
        for target in range(1, 128):
            assert (target in found) == solvable(numbers, target)


def test_split_is_the_published_hash_and_is_kept() -> None:
    rng = random.Random(5)
    for _ in range(300):
        numbers = draw_problem(rng, test=False).numbers
        shuffled = rng.sample(numbers, 4)
        assert zlib.crc32(",".join(map(str, sorted(shuffled))).encode()) % 10 != 0
        assert not is_test(shuffled)
        assert is_test(draw_numbers(rng, test=True))


def test_vocabulary_is_one_word_one_id() -> None:
    assert len(WORDS) == len(set(WORDS)) == VOCAB_SIZE
    assert (ID["0"], ID["127"], ID["T0"]) == (0, 127, TARGET_BASE)
    text = "<parent> 8 T24 7 5 3 2 <go> <spawn>"
    assert decode(encode(text)) == text
    assert decode([END]) == "<end>"
    with pytest.raises(KeyError):
        encode("128")
