"""Study `search`: its scorer has the quality that it says, and its page is made of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from plait.core.search import Node
from plait.tasks._countdown_states import moves, remaining, solvable
from plait.tasks.countdown import Countdown
from studies import search
from studies.search import METHODS, Noisy, puzzles, row_of


class _Told:
    def __init__(self, task: Countdown) -> None:
        self.brief = type("Brief", (), {"task": task})()


@pytest.mark.parametrize("auroc", [0.5, 0.7, 0.9, 1.0])
async def test_the_scorer_has_the_auroc_that_it_says(auroc: float) -> None:
    random = Random(2)
    good: list[float] = []
    bad: list[float] = []
    for text in puzzles(4, 250, 5):
        task = Countdown(text=text, any_width=True)
        for a, op, b, c in random.sample(moves(task.numbers), 6):
            step = f"{a}{op}{b}={c};"
            left = remaining(task.numbers, [(a, op, b, c)])
            assert left is not None
            node = Node("n.1", step=step, key=task.state_key(step) or "")
            score = await Noisy(auroc=auroc).score(_Told(task), "", node)  # type: ignore[arg-type]
            assert score is not None
            (good if solvable(left, task.target) else bad).append(score)
    pairs = [(g > b) + 0.5 * (g == b) for g in good for b in bad]
    assert sum(pairs) / len(pairs) == pytest.approx(auroc, abs=0.04)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_stops_at_the_nodes_that_it_may_use(method: str) -> None:
    row = row_of(4, method, 1.0, 40, puzzles(4, 3, 1))
    assert 0.0 <= row.accuracy <= row.coverage <= 1.0
    assert row.tokens <= 40 * 64 and row.seconds > 0


def test_a_study_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "METHODS", ("majority", "stride"))
    monkeypatch.setattr(search, "AUROCS", (1.0,))
    monkeypatch.setattr(search, "_settings", lambda: [(4, "stride", 1.0, 24), (4, "majority", 0.5, 24)])
    page = search.run(tmp_path, 2, 1)
    assert "| stride |" in page
    made: list[str] = []
    monkeypatch.setattr(search, "row_of", lambda *given: made.append(given[1]))
    assert search.run(tmp_path, 2, 1) == page and made == []
    assert len(json.loads((tmp_path / "search.json").read_text())["2 puzzles, seed 1"]) == 2
