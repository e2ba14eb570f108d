"""Study `effort-limit`: lengths are those of exact search, and what knows reaches what the oracle does."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.effort_limit.run import Orders, draw, learned
from training.task import reach


def test_tiers_are_what_an_exact_search_comes_to() -> None:
    for each in draw(40, 1):
        assert each.solvable == [float(each.target in reach(numbers)) for numbers in each.firsts]
        (_, short), (_, longer), (right, longest), *threads = each.tiers
        assert short <= longer <= longest <= 512 and short <= 128
        assert right == 0.0 or any(each.solvable), "a line finds what the first steps lead to"
        assert threads[-1][0] == 1.0 or len(each.firsts) == 8


@pytest.mark.slow
def test_an_oracle_saves_all_and_the_dearest_nothing_and_noise_little() -> None:
    puzzles = draw(600, 2)
    orders = Orders(puzzles)
    every = np.arange(len(puzzles))
    assert orders.saved(orders.oracle, every) == 1.0 and orders.saved(orders.dear, every) == 0.0
    truth = np.array([[*each.solvable, *[0.0] * (8 - len(each.solvable))] for each in puzzles])
    noise = np.random.default_rng(1).normal(size=truth.shape)
    test = every[450:]
    saved = [orders.saved(learned(orders, given, 32), test) for given in (truth, noise)]
    assert saved[0] > saved[1] + 0.2
