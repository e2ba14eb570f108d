"""The intervals of all pages hold the truth as often as they say, and no interval has the width 0 by chance."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from experiments._tools.statistics import (
    Estimate,
    difference,
    discordant,
    holm,
    mcnemar,
    mean,
    p_value,
    ratio,
    share,
    verdict,
)

pytest.importorskip("scipy")
SHARES = (0.0, 0.005, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
Draw = Callable[[np.random.Generator], Estimate]


@pytest.mark.parametrize("n", [10, 30, 50])
def test_the_exact_interval_of_a_paired_difference_covers_every_truth(n: int) -> None:
    """Not simulated: all outcomes of n problems, each with its probability."""
    from scipy.stats import multinomial  # pyright: ignore[reportMissingTypeStubs]

    outcomes = [(wins, losses) for wins in range(n + 1) for losses in range(n + 1 - wins)]
    found = np.array([discordant(wins, losses, n)[1:] for wins, losses in outcomes])
    counts = [(wins, losses, n - wins - losses) for wins, losses in outcomes]
    for won, lost in product(SHARES, SHARES):
        chances = multinomial.pmf(counts, n, [won, lost, 1.0 - won - lost])
        truth = won - lost
        covered = chances[(found[:, 0] <= truth + 1e-12) & (truth - 1e-12 <= found[:, 1])].sum()
        assert covered >= 0.95, (won, lost, covered)


def test_a_bootstrap_of_few_changes_covers_far_less() -> None:
    """Why paired shares are exact: where 2 % of the answers are lost, 50 problems mostly show none of them."""
    rng, hits = np.random.default_rng(1), {"bootstrap": 0, "exact": 0}
    for _ in range(200):
        lost = rng.random(50) < 0.02
        hits["bootstrap"] += mean(-lost.astype(float)).low <= -0.02 <= mean(-lost.astype(float)).high
        exact = difference((1.0 - lost).tolist(), [1.0] * 50)
        hits["exact"] += exact.low <= -0.02 <= exact.high
    assert hits["bootstrap"] < 150 and hits["exact"] >= 190


def _shares(rng: np.random.Generator) -> Estimate:
    return share((rng.random(200) < 0.3).astype(float))


def _ratios(rng: np.random.Generator) -> Estimate:
    whole = rng.lognormal(5.0, 0.5, 200)
    return ratio(whole * rng.uniform(0.2, 0.4, 200), whole)


def _paired(rng: np.random.Generator) -> Estimate:
    hard = rng.random(200)
    return difference(
        (rng.random(200) < 0.9 - 0.5 * hard).astype(float), (rng.random(200) < 0.8 - 0.5 * hard).astype(float)
    )


def _votes(rng: np.random.Generator) -> Estimate:
    """Draw means over four votes of a problem."""
    hard = rng.random(100)
    return difference(rng.binomial(4, 0.9 - 0.5 * hard) / 4, rng.binomial(4, 0.8 - 0.5 * hard) / 4)


@pytest.mark.parametrize(("draw", "truth"), [(_shares, 0.3), (_ratios, 0.3), (_paired, 0.1), (_votes, 0.1)])
def test_intervals_cover_in_simulation(draw: Draw, truth: float) -> None:
    rng = np.random.default_rng(11)
    found = [draw(rng) for _ in range(300)]
    covered = sum(each.low <= truth <= each.high for each in found)
    assert covered >= 0.92 * len(found), covered / len(found)


def test_an_interval_leaves_zero_out_exactly_where_mcnemars_test_does() -> None:
    for wins, losses in product(range(16), range(16)):
        found = discordant(wins, losses, 60)
        assert (found.low > 0 or found.high < 0) == (mcnemar(wins, losses) < 0.05), (wins, losses)


def test_nothing_changed_is_the_rule_of_three() -> None:
    same = [1.0, 0.0] * 50
    assert difference(same, same).low == pytest.approx(-3 / 100, rel=0.02)
    assert difference([0.25] * 50, [0.25] * 50).high == pytest.approx(3 / 50, rel=0.04), "shares of several votes too"
    assert difference([318.0] * 50, [318.0] * 50) == Estimate(0.0, 0.0, 0.0), "tokens have no largest difference"


def test_p_values_of_an_interval_agree_with_the_exact_test() -> None:
    for wins, losses in ((24, 6), (40, 22), (90, 40)):
        assert p_value(discordant(wins, losses, 1000)) == pytest.approx(mcnemar(wins, losses), abs=0.03)
    assert p_value(Estimate(1.72, 1.59, 1.85), 1.0, logarithmic=True) < 1e-9
    assert p_value(discordant(0, 0, 50)) == 1.0


def test_holm_rejects_a_true_null_in_one_family_of_twenty() -> None:
    rng = np.random.default_rng(3)
    families = rng.random((2000, 6))
    assert np.mean([min(holm(list(each))) < 0.05 for each in families]) < 0.06
    assert np.mean([min(each) < 0.05 for each in families]) > 0.2, "uncorrected, every fourth family has a finding"
    assert holm([0.04, 0.001]) == [0.04, 0.002]


def test_a_verdict_has_three_words() -> None:
    assert [verdict(Estimate(0.0, *ends), -0.01) for ends in ((0.0, 0.1), (-0.05, 0.05), (-0.05, -0.02))] == [
        "yes", "not shown", "no",
    ]  # fmt: skip
