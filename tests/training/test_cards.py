"""Model cards: their tables are read, figures that differ are noticed, and (slow) the cards say what the models do."""

from __future__ import annotations

import pytest

from training import cards
from training.cards import Compared, Figure, compare, figures, shipped

TABLE = """
| mode | n | right (95 % interval) | 1 call |
| --- | --- | --- | --- |
| plan | 400 | 96.8 % (94.5–98.1) | 100 |

| scorer | n | solvable | AUROC |
|---|---|---|---|
| 4 numbers left | 130 | 74 % | 0.730 |
"""


def test_tables_are_read_with_their_intervals() -> None:
    found = figures(TABLE)
    assert found["plan, right"] == pytest.approx((0.968, 0.945, 0.981))
    assert found["4 numbers left, AUROC"].value == 0.73 and found["4 numbers left, AUROC"].low > 0.6
    low, high = found["4 numbers left, solvable"][1:]
    assert 0.6 < low < 0.74 < high < 0.85 and "plan, 1 call" not in found


def test_what_differs_is_noticed_and_said() -> None:
    card = Figure(0.968, 0.945, 0.981)
    assert Compared("plan", card, Figure(0.93, 0.86, 0.97)).agrees
    worse = Compared("plan", card, Figure(0.6, 0.5, 0.7))
    assert not worse.agrees and str(worse).startswith("DIFFERS: plan: card 0.968")


def test_every_bundled_trade_has_a_card_with_a_table() -> None:
    assert {trade for trade, _ in shipped()} >= {"countdown", "tables", "arithmetic"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("trade", "size"), shipped())
def test_the_cards_say_what_the_models_do(trade: str, size: str) -> None:
    found = compare(trade, size, 60, 90_500)
    assert len(found) > 1
    assert not [str(each) for each in found if not each.agrees]


def test_a_card_that_says_too_much_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    trade, size = "tables", "small"
    monkeypatch.setattr(cards, "measured", lambda *_: "| mode | n | right |\n|---|---|---|\n| joiner | 60 | 50.0 % |")
    assert [each.agrees for each in compare(trade, size, 60, 1)] == [False]
