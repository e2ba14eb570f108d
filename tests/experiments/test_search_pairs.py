"""The studies of many paired puzzles, of barriers and of two engines: what they count, and that they go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments._tools.searches.cells import collect, kept_in
from experiments._tools.searches.world import Outcome, puzzles
from experiments.search_barrier.run import SEARCHES, WIDTH, WORLDS, Tries, planner
from experiments.search_pairs import run as search_pairs
from experiments.search_pairs.run import CELLS, Cell, page_of
from experiments.tree_placement.run import placed
from plait_bench.tasks.countdown import Countdown


def outcome(right: bool, seconds: float, kv: float) -> Outcome:
    return Outcome(right, True, 96, 800, seconds, kv)


def test_differences_are_of_the_same_puzzles(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"a": Cell(5, "rebase", "a"), "b": Cell(5, "ets", "a")}
    monkeypatch.setattr(search_pairs, "CELLS", cells)
    base = [outcome(i % 2 == 0, 2.0, 100.0) for i in range(40)]
    other = [outcome(i % 2 == 0 and i != 0, 1.0, 50.0) for i in range(40)]
    rows = page_of({"a": base, "b": other}).splitlines()
    assert rows[2].startswith("| a | 40 | 50.0% |  |")
    # one puzzle of 40 fewer: of unpaired shares the interval would be twice as wide
    assert "| b | 40 | 47.5% | -2.5 (-11.3 to +10.8) |" in rows[3] and "| 0.50 | 1.00 | 0.50 |" in rows[3]


def test_puzzles_that_were_done_are_not_done_again(tmp_path: Path) -> None:
    cells = {"a": Cell(4, "rebase", "a"), "b": CELLS["ets, 4 numbers"]}
    made: list[tuple[str, int]] = []

    def run(name: str, number: int) -> Outcome:
        made.append((name, number))
        return cells[name].run(puzzles(4, 2, 5)[number], number)

    kept, names = tmp_path / "kept.jsonl", list(cells)
    collect(kept, names, run, 1, 5)
    first = kept_in(kept, 5, names)
    collect(kept, names, run, 2, 5)
    again = kept_in(kept, 5, names)
    assert made == [("a", 0), ("b", 0), ("a", 1), ("b", 1)] and all(again[name][:1] == first[name] for name in names)
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert {(row["cell"], row["puzzle"]) for row in rows} == {(name, i) for name in "ab" for i in (0, 1)}
    assert again["b"][0].kv < again["a"][0].kv, "what is pruned is not resident"
    assert kept_in(kept, 6, names) == {"a": [], "b": []}


def test_cells_have_the_options_that_they_are_named_by() -> None:
    given = CELLS["ets, 6 numbers, limit 144"].given()["search"]
    assert given.name == "ets" and given.options["limit"] == 144 and given.options["per_depth"] == 19  # type: ignore[attr-defined]
    assert [cell.width for name, cell in CELLS.items() if name.startswith("mcts, ")] == [1, 2, 4, 8, 16]


def test_both_searches_of_the_barrier_get_the_same_children() -> None:
    for world in WORLDS.values():
        made = [planner(world, search) for search in SEARCHES]
        assert [each.search.options for each in made] == [{"per_depth": WIDTH}] * 2
        assert made[0].model_copy(update={"search": made[1].search}) == made[1]
    task = Tries(text="14 10 8 3 -> 36")
    branch = "14 - 3 = 11 | 11 10 8 <go> 11 + 10 = 21 | 8 + 29 <lo> <try>"
    assert not task.complete(branch) and task.value(branch) == 1.0 and task.state_key(branch) is None
    hit = branch + " 10 - 8 = 2 | 14 3 2 <go> <hit> 10 - 8 = 2 ; 14 - 2 = 12 ; 12 * 3 = 36 <end>"
    assert task.complete(hit) and task.value(hit) == 1.0 and task.verify(task.extract(hit))
    assert task.value(branch + " <none>") == 0.0 and Countdown(text="14 10 8 3 -> 36").complete(branch)


def test_a_bound_on_the_gap_loads_engines_evenly_and_computes_little_twice() -> None:
    (tree,) = placed("affinity, gap of 3", seeds=1, nodes=300)
    assert tree.ratio <= 1.25 and tree.most <= 0.6
