"""Studies: what is counted, what is kept, and that a study that was stopped goes on where it was."""

from __future__ import annotations

import json
import math
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from experiments._tools.base import Findings, Record, majority_right
from experiments._tools.countdown import write
from experiments._tools.statistics import difference, mean, pass_at, saving
from experiments._tools.store import Store
from experiments.apr.run import Apr, solved_within
from experiments.backtrack_or_not.run import SHAPES, BacktrackOrNot, work
from experiments.votes import run as votes, tables
from experiments.votes.replay import Outcome, Row, replay, replay_all
from experiments.votes.rules import CERTAINTY, GRID, MERGES, REPLAYED, RULES, SAMPLES, Rule
from experiments.votes.tables import choose
from experiments.width.run import Width
from plait.core.errors import ConfigError
from plait_bench.countdown import draw


@pytest.mark.parametrize(("n", "right", "k"), [(6, 2, 3), (5, 0, 2), (5, 5, 1), (7, 1, 7), (6, 3, 1)])
def test_pass_at_is_the_share_of_subsets_with_one_that_is_right(n: int, right: int, k: int) -> None:
    subsets = list(combinations(range(n), k))
    share = sum(any(each < right for each in subset) for subset in subsets) / len(subsets)
    assert pass_at(n, right, k) == pytest.approx(share)


def test_more_samples_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        pass_at(4, 1, 5)


def test_the_interval_of_a_share_is_about_that_of_the_normal_approximation() -> None:
    rng = random.Random(3)
    values = [float(rng.random() < 0.6) for _ in range(1000)]
    found = mean(values)
    half = 1.96 * math.sqrt(found.value * (1 - found.value) / 1000)
    assert found.low == pytest.approx(found.value - half, abs=0.006)
    assert found.high == pytest.approx(found.value + half, abs=0.006)
    assert mean(values) == found  # seeded


def test_a_paired_difference_is_narrower_than_two_separate_intervals() -> None:
    rng = random.Random(5)
    first = [rng.random() for _ in range(300)]
    second = [value - 0.1 + 0.01 * rng.random() for value in first]
    found = difference(first, second)
    assert found.low > 0.08
    assert found.high - found.low < (mean(first).high - mean(first).low) / 5
    with pytest.raises(ValueError, match="paired"):
        difference(first, second[1:])


def test_work_counts_weights_and_attention() -> None:
    shape = SHAPES["small"]
    one = work(shape, 0, 1)
    assert one == 2 * shape.parameters + 4 * shape.layers * shape.width
    assert work(shape, 8, 300) == pytest.approx(
        sum(2 * shape.parameters + 4 * shape.layers * shape.width * t for t in range(1, 309))
    )


def test_records_survive_a_kill_and_belong_to_one_study(tmp_path: Path) -> None:
    path, header = tmp_path / "a" / "apr.jsonl", {"study": "apr", "seed": 0}
    store = Store(path, header)
    store.add("serial-t0", 1, {"solved": True})
    store.add("serial-t0", 0, {"solved": False})
    store.close()
    with path.open("ab") as file:
        file.write(b'{"condition":"serial-t0","prob')  # the line being written when the process was killed
    again = Store(path, header)
    assert again.has("serial-t0", 0)
    assert not again.has("serial-t0", 2)
    again.add("serial-t0", 2, {"solved": True})
    again.close()
    last = Store(path, header)
    assert last.records(10) == {"serial-t0": [{"solved": False}, {"solved": True}, {"solved": True}]}
    assert last.records(2) == {"serial-t0": [{"solved": False}, {"solved": True}]}
    last.add("serial-t0", 4, {"solved": False})
    assert len(last.records(10)["serial-t0"]) == 3  # the fourth problem has not been run
    last.close()
    with pytest.raises(ConfigError, match="another study"):
        Store(path, {"study": "apr", "seed": 1})
    Store(path, {"study": "apr", "seed": 1}, fresh=True).close()
    assert path.read_text() == '{"study": "apr", "seed": 1}\n'


def _branch(key: str | None, right: bool, tokens: int, claim: str | None = None) -> Record:
    return {"claim": claim, "key": key, "right": right, "tokens": tokens, "logprob": -0.1, "signals": None,
            "certainty": None}  # fmt: skip


def test_branches_without_an_answer_do_not_vote() -> None:
    branches = [_branch(None, False, 9), _branch(None, False, 9), _branch("a", True, 5), _branch("b", False, 5)]
    assert majority_right(branches) == 1.0
    assert majority_right([*branches, _branch("b", False, 7)]) == 0.0
    assert majority_right(branches[:2]) == 0.0


def _run(problem: Any, lengths: list[int], right: list[bool]) -> Record:
    """Samples that claim a right answer or none, with their lengths."""
    from plait.core.ops import Plugin
    from plait.runtime.plugins.loader import Plugins

    task = Plugins().task(Plugin(name="countdown"), problem.text)
    steps = _solution(list(problem.numbers), problem.target)
    assert task.verify(steps)
    claim = " ; ".join(step.replace("=", " = ") for step in steps)
    key = task.key(steps)
    return {
        "branches": [
            _branch(key if good else None, good, length, claim if good else None)
            for length, good in zip(lengths, right, strict=True)
        ]
    }


def _solution(numbers: list[int], target: int) -> list[str]:
    if len(numbers) == 1:
        return [] if numbers[0] == target else ["!"]
    for i, j in combinations(range(len(numbers)), 2):
        a, b = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
        rest = [value for k, value in enumerate(numbers) if k not in (i, j)]
        for op, value in (("+", a + b), ("-", a - b), ("*", a * b), ("/", a // b if b and a % b == 0 else -1)):
            if value < 1:
                continue
            found = _solution([*rest, value], target)
            if "!" not in found:
                return [f"{a}{op}{b}={value}", *found]
    return ["!"]


def test_a_rule_is_replayed_by_the_machine_with_the_tokens_that_were_generated_by_then() -> None:
    problem = draw(1, 11)[0]
    run = _run(problem, [10, 20, 30, 40], [True, True, True, True])
    full = replay(Rule("majority", "", "majority"), 4, run, problem)
    assert full == Row(solved=True, total=100, critical=40, serial=40, votes=4)
    early = replay(Rule("lossless", "", "majority", early=True), 4, run, problem)
    assert early == Row(solved=True, total=10 + 20 + 30 + 30, critical=30, serial=30, votes=3)
    none = replay(Rule("majority", "", "majority"), 2, _run(problem, [10, 20], [False, False]), problem)
    assert none == Row(solved=False, total=30, critical=20, serial=20, votes=0)


def test_waves_wait_for_one_another() -> None:
    problem = draw(1, 11)[0]
    run = _run(problem, [10, 20, 30, 40], [False, True, True, True])
    policies = ("first-finish:votes=2", "waves:n=1")
    assert replay(Rule("two", "", policies=policies), 4, run, problem) == Row(True, 60, 30, 60, 2)
    assert replay(Rule("two", "", policies=policies[:1]), 4, run, problem) == Row(True, 10 + 20 + 30 + 30, 30, 30, 2)


def test_a_branch_that_is_cut_off_has_no_answer() -> None:
    problem = draw(1, 11)[0]
    run = _run(problem, [100, 200, 300], [True, True, True])
    assert replay(Rule("short", "", tokens=200), 3, run, problem) == Row(True, 500, 200, 200, 2)
    assert replay(Rule("shorter", "", tokens=50), 3, run, problem) == Row(False, 150, 50, 50, 0)


def test_what_has_been_replayed_is_not_replayed_again(tmp_path: Path) -> None:
    problems = draw(2, 11)
    runs = [_run(problem, [10, 20, 30, 40], [True] * 4) for problem in problems]
    kept = tmp_path / "kept.jsonl"
    wanted = [(Rule("all", ""), 4), (Rule("two", "", policies=("first-finish:votes=2", "waves:n=1")), 4)]
    first = replay_all(wanted, runs, problems, 1, kept)
    assert first["all", 4].total.tolist() == [100, 100] and first["two", 4].total.tolist() == [30, 30]
    lines = kept.read_text().splitlines()
    assert len(lines) == 2
    told = json.loads(lines[0])
    told["rows"][0][1] = 7  # not what a replay would give
    kept.write_text(json.dumps(told) + "\n" + lines[1][:-9])  # the second was being written
    again = replay_all(wanted, runs, problems, 1, kept)
    assert again["all", 4].total.tolist() == [7, 100] and again["two", 4].total.tolist() == [30, 30]
    assert replay_all([(Rule("all", ""), 3)], runs, problems, 1, kept)["all", 3].total.tolist() == [60, 60]
    runs[1]["branches"][0]["tokens"] = 11
    assert replay_all(wanted[:1], runs, problems, 1, kept)["all", 4].total.tolist() == [100, 101]


def test_replays_in_processes_are_the_same() -> None:
    problems = draw(2, 11)
    runs = [_run(problem, [10, 20, 30, 40], [True] * 4) for problem in problems]
    wanted = [(Rule("all", ""), size) for size in (1, 2, 4)]
    alone, together = (replay_all(wanted, runs, problems, workers, None) for workers in (1, 2))
    assert alone.keys() == together.keys()
    for name, outcome in alone.items():
        assert [each.tolist() for each in outcome] == [each.tolist() for each in together[name]]


def test_the_most_accurate_of_those_that_save_enough_is_chosen() -> None:
    def outcome(solved: list[int], total: list[int]) -> Outcome:
        import numpy as np

        return Outcome(*(np.array(each, dtype=float) for each in (solved, total, total, total, solved)))

    rules = [Rule("thrifty", ""), Rule("right", ""), Rule("equal", ""), Rule("dear", "")]
    full = outcome([1, 1, 1, 0], [100, 100, 100, 100])
    outcomes = {
        ("thrifty", SAMPLES): outcome([1, 0, 1, 1], [2, 2, 90, 90]),
        ("right", SAMPLES): outcome([1, 1, 0, 0], [20, 20, 90, 90]),
        ("equal", SAMPLES): outcome([1, 1, 0, 0], [20, 19, 90, 90]),
        ("dear", SAMPLES): outcome([1, 1, 1, 1], [30, 30, 1, 1]),
    }
    assert choose(outcomes, full, rules, slice(0, 2)).key == "equal"
    assert choose(outcomes, full, rules, slice(2, 4)).key == "dear"
    assert choose(outcomes, full, rules[:2], slice(2, 4)).key == "thrifty"  # none saves enough


def test_a_saving_is_a_ratio_of_sums() -> None:
    found = saving([10.0, 50.0, 0.0], [100.0, 100.0, 200.0])
    assert found.value == pytest.approx(0.85)
    assert 0.5 <= found.low <= found.value <= found.high <= 1.0
    with pytest.raises(ValueError, match="paired"):
        saving([1.0], [1.0, 2.0])


def test_every_rule_of_the_study_can_be_replayed_at_every_size() -> None:
    problem = draw(1, 12)[0]
    rng = random.Random(1)
    lengths = [rng.randint(20, 400) for _ in range(SAMPLES)]
    run = _run(problem, lengths, [rng.random() < 0.6 for _ in lengths])
    for branch in run["branches"]:
        branch["signals"] = [rng.uniform(5, 15) for _ in range(5)]
        branch["certainty"] = rng.uniform(1, 5)
    whole = sum(lengths)
    for rule in (*REPLAYED, CERTAINTY, *(rule for grid in GRID.values() for rule in grid)):
        row = replay(rule, SAMPLES, run, problem)
        assert row.solved, rule
        assert 0 < row.total <= whole, rule
        assert 0 < row.critical <= row.serial <= row.total, rule


def test_every_way_to_vote_has_a_name_of_its_own_and_can_be_asked_for() -> None:
    from plait.core.ops import Plugin
    from plait.runtime.plugins.loader import Plugins

    rules = [*RULES, CERTAINTY, *(rule for grid in GRID.values() for rule in grid)]
    assert len({rule.key for rule in rules}) == len(rules)
    assert set(MERGES) < set(REPLAYED)
    for condition in votes.Votes().conditions():
        Plugins().planner(Plugin.of(condition.request["planner"]))
        for policy in condition.request.get("policies", ()):
            Plugins().policy(Plugin.of(policy))


def _records(keys: list[str], n: int) -> dict[str, list[Record]]:
    rng = random.Random(2)
    found: dict[str, list[Record]] = {}
    for key in keys:
        found[key] = [
            {
                "solved": rng.random() < 0.7, "claimed": True, "status": "done", "total": rng.randint(100, 900),
                "critical": rng.randint(50, 500), "sequence": rng.randint(50, 500), "context": rng.randint(60, 700),
                "prompt": 100, "cached": 40, "cancelled": 0, "seconds": 0.5, "concurrency": 4,
                "rounds": [{"tried": 8, "valid": 8}], "child_prompt": 80, "child_cached": 60,
                "branches": [_branch("a", True, 20, "1 + 1 = 2") for _ in range(8 if "t1" in key else 64)],
            }
            for _ in range(n)
        ]  # fmt: skip
    return found


def test_the_page_of_votes_says_how_much_there_is_to_outvote() -> None:
    branches = [{"key": "a", "right": True}, {"key": "b", "right": False}, {"key": None, "right": False}]
    found = Findings()
    tables.wrong_answers([{"branches": branches}, {"branches": branches[:1]}], found)
    assert found.figures["wrong_answers"] == pytest.approx(1 / 3)
    assert "25 % have no answer, and of the answers 33.3 % are wrong" in found.claims[0]


@pytest.mark.slow
def test_the_study_of_votes_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    for module in (votes, tables):
        monkeypatch.setattr(module, "SIZES", (1, SAMPLES))
    monkeypatch.setattr(votes, "WHOLE_SIZES", (SAMPLES,))
    rng = random.Random(4)
    problems = draw(4, 13)
    runs: list[Record] = []
    for problem in problems:
        lengths = [rng.randint(20, 400) for _ in range(SAMPLES)]
        run = _run(problem, lengths, [rng.random() < 0.6 for _ in lengths])
        for branch in run["branches"]:
            branch["signals"] = [rng.uniform(5, 15) for _ in range(5)]
            branch["certainty"], branch["logprob"] = rng.uniform(1, 5), -rng.uniform(0.0, 0.04)
        runs.append(run)
    live = [{"solved": True, "total": 900, "cancelled": 20}] * 3
    found = votes.Votes().findings({"samples": runs, "whole": runs[:2], "live:best-waves": live}, problems, 1)
    page = write(votes.Votes(), found, tmp_path, "python -m experiments votes", 4).read_text()
    assert all(table.title in page for table in found.tables) and len(found.tables) == 6
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)
    saved = found.figures["combination"]["1"]["saved"]
    assert 0 < saved.low <= saved.value <= saved.high < 1
    assert found.figures["alike"]["certainty"]["64"]["solved"].value == 1.0
    assert found.figures["live"]["best-waves"]["n"] == 3
    assert (
        json.loads((tmp_path / "data" / "votes.json").read_text())["figures"]["rules"]["majority"]["saved"]["value"]
        == 0.0
    )
    for stem, _, _ in found.plots:
        assert (tmp_path / "data" / f"{stem}.png").stat().st_size > 5_000


@pytest.mark.parametrize("study", [Apr(), BacktrackOrNot(), Width()], ids=lambda study: study.name)
def test_a_study_writes_a_page_numbers_and_plots(study: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    conditions = study.conditions()
    assert len({each.key for each in conditions}) == len(conditions)
    found = study.findings(_records([each.key for each in conditions], 12), draw(12), 1)
    page = write(study, found, tmp_path, "python -m experiments", 12).read_text()
    assert all(table.title in page for table in found.tables)
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)
    for stem, _, _ in found.plots:
        assert (tmp_path / "data" / f"{stem}.png").stat().st_size > 5_000
        assert f"(data/{stem}.png)" in page
    assert json.loads((tmp_path / "data" / f"{study.name}.json").read_text())["figures"]


def test_what_does_not_fit_does_not_count_as_solved() -> None:
    runs = [{"solved": True, "context": 500}, {"solved": True, "context": 513}, {"solved": False, "context": 9}]
    assert solved_within(runs, "context", 512) == [1.0, 0.0, 0.0]
