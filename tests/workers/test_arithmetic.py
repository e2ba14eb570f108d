"""Arithmetic sampling: codes, the tokens that they stand for, and where codes come from."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from plait.core.ops import ModelCall
from plait.core.planning import fraction
from plait.core.sampling import Sampling
from plait.planners._shared.steps import trajectory_code
from plait.workers._shared.arithmetic_codes import BITS, ArithmeticCode, is_code

torch = pytest.importorskip("torch")
arithmetic = pytest.importorskip("plait.workers.engine.arithmetic")

P = (0.5, 0.2, 0.15, 0.1, 0.05)
CHI_SQUARE = {4: 18.47, 24: 51.18}
"""Quantiles at 0.999, by degrees of freedom."""


def texts(codes: list[float], length: int, keys: list[int] | None = None) -> list[tuple[int, ...]]:
    """The lines of codes under a chain whose next token depends on the last."""
    table = torch.stack([torch.tensor(P, dtype=torch.float64).roll(i) for i in range(len(P))]).log()
    found: list[list[int]] = [[] for _ in codes]
    lines = [ArithmeticCode(code, key) for code, key in zip(codes, keys or range(len(codes)), strict=True)]
    for position in range(length):
        lines = [line.at(position) for line in lines]
        rows = torch.stack([table[line[-1] if line else 0] for line in found])
        for line, token in zip(found, arithmetic.chosen(rows, lines).tolist(), strict=True):
            line.append(token)
    return [tuple(line) for line in found]


def chi_square(counts: Counter[int], chances: list[float], n: int) -> float:
    return sum((counts[i] - n * p) ** 2 / (n * p) for i, p in enumerate(chances))


def test_each_position_of_a_line_with_a_uniform_code_is_an_ordinary_draw() -> None:
    rng = random.Random(3)
    n, length = 4000, 60
    drawn = texts([rng.random() for _ in range(n)], length)
    firsts = Counter(line[0] for line in drawn)
    assert chi_square(firsts, list(P), n) < CHI_SQUARE[4]
    for position in (1, 7, 30, length - 1):  # the 53 bits of a code are used up after about 28 tokens
        pairs: Counter[int] = Counter()
        steps: Counter[int] = Counter()
        for line in drawn:
            steps[(line[position] - line[position - 1]) % 5] += 1
            pairs[5 * ((line[position - 1] - line[position - 2]) % 5) + (line[position] - line[position - 1]) % 5] += 1
        assert chi_square(steps, list(P), n) < CHI_SQUARE[4], position
        if position > 1:
            chances = [a * b for a in P for b in P]
            assert chi_square(pairs, chances, n) < CHI_SQUARE[24], position


def test_lines_of_one_question_divide_the_distribution_among_them() -> None:
    for seed in range(20):
        n = 20
        drawn = texts([trajectory_code(seed, i, n) for i in range(1, n + 1)], 1)
        counts = Counter(line[0] for line in drawn)
        assert all(abs(counts[token] - n * p) <= 1 for token, p in enumerate(P))  # by chance they are 2 off, and more


@pytest.mark.parametrize("n", [1, 2, 5, 8, 12, 32])
def test_codes_are_evenly_spread_and_so_is_every_beginning_of_them(n: int) -> None:
    codes = [trajectory_code(11, i, n) for i in range(1, n + 1)]
    start = fraction(11, "codes")
    assert sorted(codes) == pytest.approx(sorted((start + i / n) % 1.0 for i in range(n)))
    assert len({int(code * 1e9) for code in codes}) == n
    for k in range(2, n + 1):
        at = sorted(codes[:k])
        gaps = [b - a for a, b in zip(at, [*at[1:], at[0] + 1], strict=True)]
        assert max(gaps) <= 2.001 / (1 << (k.bit_length() - 1)) + 1 / n  # no gap above twice the even one
    assert trajectory_code(12, 1, n) != codes[0]


def test_a_line_does_not_depend_on_the_others_nor_on_when_it_is_drawn() -> None:
    codes = [trajectory_code(5, i, 8) for i in range(1, 9)]
    together = texts(codes, 40, keys=list(range(8)))
    alone = [texts([code], 40, keys=[key])[0] for key, code in enumerate(codes)]
    order = [6, 1, 7, 0, 3, 5, 2, 4]
    shuffled = texts([codes[i] for i in order], 40, keys=order)
    assert together == alone == [shuffled[order.index(i)] for i in range(8)]


def test_a_code_survives_a_token_that_was_drawn_and_not_kept() -> None:
    code, again = ArithmeticCode(0.3, 1), ArithmeticCode(0.3, 1)
    again.take(0, 1 << 50)
    assert (again.at(0).value, again.at(0).range) == (code.value, code.range)
    for each in (code, again):
        each.take(1 << 50, 1 << 52)
    assert again.at(1).value == code.at(1).value == code.value
    other = ArithmeticCode(0.3, 1).at(9)  # a request that was preempted comes back with nine tokens
    assert other.position == 9
    assert other.value == ArithmeticCode(0.7, 1).at(9).value  # of its key and position alone


def test_what_is_left_of_a_code_never_runs_dry() -> None:
    code = ArithmeticCode(0.123456789, 4)
    values: list[float] = []
    for position in range(1, 4000):
        half = code.range // 2
        low, high = (0, half) if code.value < half else (half, code.range)
        code.take(low, high)
        code = code.at(position)
        assert 1 << 37 <= code.range <= 1 << BITS
        assert 0 <= code.value < code.range
        values.append(code.value / code.range)
    bits = Counter(value >= 0.5 for value in values)
    assert abs(bits[True] - 2000) < 110
    assert len(set(values)) > 3900


def test_temperature_top_k_and_top_p_come_before_the_code() -> None:
    logits = torch.tensor(P, dtype=torch.float64).log()
    kept = [float(x) for x in arithmetic.restricted(logits, 3, 1.0).softmax(-1)]
    assert kept == pytest.approx([0.5 / 0.85, 0.2 / 0.85, 0.15 / 0.85, 0, 0])
    kept = [float(x) for x in arithmetic.restricted(logits, 0, 0.7).softmax(-1)]
    assert kept == pytest.approx([0.5 / 0.7, 0.2 / 0.7, 0, 0, 0])
    assert torch.equal(arithmetic.restricted(logits, 0, 1.0), logits)
    one = arithmetic.restricted(logits, 2, 0.1)
    assert [arithmetic.chosen(one[None], [ArithmeticCode(u)]).tolist() for u in (0.0, 0.5, 1 - 2**-53)] == [[0]] * 3


def test_tokens_without_a_chance_are_never_drawn() -> None:
    row = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]], dtype=torch.float64)
    edges = [0.0, 0.25, 0.5 - 2**-53, 0.5, 1 - 2**-53]
    assert [int(arithmetic.chosen(row, [ArithmeticCode(u)])) for u in edges] == [1, 1, 1, 3, 3]


def test_a_step_says_its_code_only_where_it_has_one() -> None:
    assert "arithmetic" not in Sampling().model_dump()
    assert Sampling(arithmetic=0.25).model_dump()["arithmetic"] == 0.25
    assert Sampling.model_validate(Sampling(arithmetic=0.25).model_dump()).arithmetic == 0.25
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError):
            ModelCall(prompt="x", sampling=Sampling(arithmetic=wrong))
    assert [is_code(each) for each in (0, 0.5, 1.0, True, "0.5", None, -0.1)] == [True, True, *[False] * 5]
