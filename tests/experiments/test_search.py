"""Study `search`: its scorer has the quality that it says, methods get the same, and its page is made of its rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from experiments._tools.command import Given
from experiments._tools.searches.cells import METHODS, Cell, cells, planned
from experiments._tools.searches.script import Noisy, Script
from experiments._tools.searches.world import Outcome, outcome_of, puzzles
from experiments.search import run as search
from experiments.search.page import page_of, rows_of
from plait.apps.common.options import Common
from plait.core.events import Job
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.search import SearchNode
from plait_bench.tasks.countdown import Countdown, moves, remaining, solvable

RESULTS = Path(__file__).parents[2] / "experiments" / "search"


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
            node = SearchNode("n.1", step=step, key=task.state_key(step) or "")
            score = await Noisy(auroc=auroc).score(_Told(task), "", node)  # type: ignore[arg-type]
            assert score is not None
            (good if solvable(left, task.target) else bad).append(score)
    pairs = [(g > b) + 0.5 * (g == b) for g in good for b in bad]
    assert sum(pairs) / len(pairs) == pytest.approx(auroc, abs=0.04)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_stops_at_the_tokens_that_it_may_use(method: str) -> None:
    done = [Cell(4, method, 1.0, 40).run(text, number) for number, text in enumerate(puzzles(4, 3, 1))]
    for each in done:
        assert each.right <= each.covered and each.seconds > 0
        assert each.tokens <= 40 * 16, "a node has nine tokens in the mean"
        assert each.nodes <= 40 and (each.nodes > 0) == (method != "threads")


def test_threads_claim_and_answer_by_their_scores_alone() -> None:
    """With exact scores a line that reached the target is the answer; with none of use it is one of those found."""
    texts = puzzles(4, 12, 3)
    exact = [Cell(4, "threads", 1.0, 96).run(text, number) for number, text in enumerate(texts)]
    blind = [Cell(4, "threads", 0.5, 96).run(text, number) for number, text in enumerate(texts)]
    assert any(each.covered for each in exact) and all(each.right == each.covered for each in exact)
    assert [each.covered for each in blind] == [each.covered for each in exact], "the same lines are written"
    assert sum(each.right for each in blind) < sum(each.right for each in exact)


def test_whole_lines_are_not_merged() -> None:
    task = Countdown(text="6 4 2 1 -> 24", any_width=True)
    scorer = Noisy(auroc=1.0)
    search_ = Plugin(name="dvts", options={"subtrees": 24, "branch": 1})
    for merge in (True, False):
        planner = planned({"search": search_, "merge": merge}, 4, 72, scorer=scorer)
        done = outcome_of(task, planner, Script(task, scorer), 1)
        assert (done.nodes == 72) == (not merge), "a merged node ends its line"


def test_a_line_that_a_reflection_names_is_not_written_again() -> None:
    task = Countdown(text="6 4 2 1 -> 24", any_width=True)
    script = Script(task, Noisy())
    shown = "T24 6 4 2 1 <go>6*4=24;24-2=22;\nLearned from earlier attempts:\n"
    lessons = [f"6 * 4 = 24 > 24 - 2 = 22 > {last}" for last in ("22 + 1 = 23", "22 - 1 = 21", "22 * 1 = 22")]
    said = {_said(script, shown + "".join(f"- Not again: {each}\n" for each in lessons), seed) for seed in range(8)}
    assert said == {"22/1=22;"}
    elsewhere = "- Not again: 6 + 4 = 10 > 10 * 2 = 20 > 22 + 1 = 23\n"
    assert len({_said(script, shown + elsewhere, seed) for seed in range(40)}) == 4


def _said(script: Script, prompt: str, seed: int) -> str:
    job = Job(run="r", step="s", attempt=1, op=ModelCall(prompt=(Text(text=prompt),)))
    return str(script(job, Random(seed)).value)


def test_a_study_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [Cell(4, "stride", 0.5, 24), Cell(4, "majority", 0.5, 24)]
    monkeypatch.setattr(search, "cells", lambda: few)
    given = Given(out=tmp_path, records=tmp_path, problems=2, common=Common(seed=1))
    search.run(dataclasses.replace(given, problems=1))
    page = search.run(given)
    assert "| stride |" in page and "2 puzzles a cell" in page
    ran: list[str] = []
    monkeypatch.setattr(Cell, "run", lambda self, *given: ran.append(self.name))
    assert search.run(given) == page and ran == []
    assert [row["puzzles"] for row in json.loads((tmp_path / "data" / "search.json").read_text())] == [2, 2]


def test_a_gain_where_the_scorer_tells_nothing_is_named() -> None:
    def outcomes(rights: Sequence[int]) -> list[Outcome]:
        return [Outcome(bool(each), True, 96, 800, 1.0, 10.0) for each in rights]

    found = {
        Cell(4, "majority", 0.5, 96): outcomes([0] * 30 + [1] * 10),
        Cell(4, "beam", 0.5, 96): outcomes([0] * 31 + [1] * 9),
        Cell(4, "dfs", 0.5, 96): outcomes([0] * 10 + [1] * 30),
    }
    page = page_of(rows_of(found, 40), 1)
    assert "1 of 2 are better than a majority vote beyond the interval: dfs at 4 numbers." in page


def test_the_committed_page_has_every_method_and_no_gain_from_a_scorer_of_no_use() -> None:
    rows = json.loads((RESULTS / "data" / "search.json").read_text(encoding="utf-8"))
    assert {(row["numbers"], row["method"], row["auroc"], row["nodes"]) for row in rows} == {
        (cell.size, cell.method, cell.auroc, cell.nodes) for cell in cells()
    }
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert set(page_of(rows, 11).splitlines()) <= set(page.splitlines())
    blind = [row for row in rows if row["auroc"] == 0.5 and "less majority" in row]
    above = [row for row in blind if row["less majority"][1] > 0]
    assert len(above) <= 0.05 * len(blind), above
