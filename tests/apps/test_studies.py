"""Studies: what is counted, what is kept, and that a study that was stopped goes on where it was."""

from __future__ import annotations

import json
import math
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from orchestrator.apps.problems import draw
from orchestrator.apps.studies.apr import Apr, solved_within
from orchestrator.apps.studies.backtrack import SHAPES, BacktrackOrNot, work
from orchestrator.apps.studies.base import Record
from orchestrator.apps.studies.statistics import difference, mean, pass_at
from orchestrator.apps.studies.store import Store
from orchestrator.apps.studies.votes import REPLAYED, SAMPLES, Rule, majority_right, replay
from orchestrator.apps.studies.width import Width
from orchestrator.apps.study import NAMES, load, write
from orchestrator.core.errors import ConfigError, UsageError


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
    from orchestrator.core.ir import Plugin
    from orchestrator.runtime.plugins import Plugins

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
    assert full == (True, 100, 40)
    solved, total, critical = replay(Rule("lossless", "", "majority", early=True), 4, run, problem)
    assert solved
    assert 10 + 20 + 20 + 20 <= total <= 10 + 20 + 30 + 30  # certain when the second or third agrees
    assert critical <= 30
    none = replay(Rule("majority", "", "majority"), 2, _run(problem, [10, 20], [False, False]), problem)
    assert none[0] is False


def test_every_rule_of_the_study_can_be_replayed_at_every_size() -> None:
    problem = draw(1, 12)[0]
    rng = random.Random(1)
    lengths = [rng.randint(20, 400) for _ in range(SAMPLES)]
    run = _run(problem, lengths, [rng.random() < 0.6 for _ in lengths])
    for branch in run["branches"]:
        branch["signals"] = [rng.uniform(5, 15) for _ in range(5)]
        branch["certainty"] = rng.uniform(1, 5)
    whole = sum(lengths)
    for rule in REPLAYED:
        solved, total, critical = replay(rule, SAMPLES, run, problem)
        assert solved, rule
        assert 0 < total <= whole * 1.1, rule  # probes of a pruning may add a little
        assert 0 < critical, rule


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


@pytest.mark.parametrize("study", [Apr(), BacktrackOrNot(), Width()], ids=lambda study: study.name)
def test_a_study_writes_a_page_numbers_and_plots(study: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    conditions = study.conditions()
    assert len({each.key for each in conditions}) == len(conditions)
    found = study.findings(_records([each.key for each in conditions], 12), draw(12), 1)
    page = write(study, found, tmp_path, "plait study", 12).read_text()
    assert all(table.title in page for table in found.tables)
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)
    for stem, _, _ in found.plots:
        assert (tmp_path / f"{stem}.png").stat().st_size > 5_000
        assert f"{stem}.png" in page
    assert json.loads((tmp_path / f"{study.name}.json").read_text())["figures"]


def test_what_does_not_fit_does_not_count_as_solved() -> None:
    runs = [{"solved": True, "context": 500}, {"solved": True, "context": 513}, {"solved": False, "context": 9}]
    assert solved_within(runs, "context", 512) == [1.0, 0.0, 0.0]


def test_every_study_is_found_by_its_name() -> None:
    for name in NAMES:
        assert load(name).name == name
    with pytest.raises(UsageError, match="there is no study"):
        load("votse")
