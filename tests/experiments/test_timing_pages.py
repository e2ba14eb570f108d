"""Pages of times, counts and rates are worked out of their rows: here of rows whose figures are known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments._tools.command import Given
from experiments.batch_order import run as batch_order
from experiments.calibration import run as calibration
from experiments.overhead import libraries
from experiments.router import run as router
from experiments.runtimes import run as runtimes
from experiments.sandbox import run as sandbox
from experiments.serve.page import page_of as serve_page
from experiments.unequal_engines import run as unequal_engines
from plait import Config, Orchestrator
from plait_bench.countdown import draw

PROFILE = {"model": "countdown", "fixed": 0.001, "each": 0.0001, "read": 1e-6}


def lines(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in rows]


def test_a_step_is_compared_round_by_round() -> None:
    row = {"plan": "chain", "steps": 200, "contender": "plait", "rounds": 9, "microseconds": [50, 40, 60],
           "over": {"burr": [1.25, 1, 2], "pydantic-graph": [0.5, 0.4, 0.6]}, "load": 1.0}  # fmt: skip
    page = libraries.page_of(lines([row, {**row, "contender": "burr", "over": {}}]))
    assert "| chain of 200 | plait | 50 (40–60) | 1.25 (1–2) | 0.5 (0.4–0.6) |" in page
    assert "| chain of 200 | burr | 50 (40–60) |  |  |" in page and "9 rounds in turn" in page


def test_clients_are_paired_by_round_in_whichever_order_they_came() -> None:
    row = {"what": "clients", "clients": 256, "failed": 1, "requests": 4, "p99": 1.0, "CPU": 0.001, "load": 2.0}
    rows = [{**row, "through": name, "round": turn, "p50": p50}
            for name, turn, p50 in (("plait", 0, 1.0), ("pass-through", 1, 4.0), ("plait", 1, 2.0),
                                    ("pass-through", 0, 4.0))]  # fmt: skip
    rows += [{"what": "memory", "requests": 1000 * n, "bytes": 2**20 + 5000 * n, "failed": 0} for n in range(6)]
    page = serve_page(lines(rows))
    assert "| p50 | 256 | 1.5 (1–2) s | 4 (4–4) s | 0.375 (0.25–0.5) | 2 | 2, 2 | 2 |" in page
    assert "5 bytes a request in the second half" in page


def test_programs_a_second_by_backend() -> None:
    rows = [{"backend": "process", "tree": "this", "round": turn, "programs": 60, "rate": 40.0 + turn, "cpu": 0.03,
             "load": 3.0} for turn in range(3)]  # fmt: skip
    assert "| `process` | this | 41 (40–42) | 30 (30–30) |" in sandbox.page_of(lines(rows))


def test_tokens_read_twice_by_who_places() -> None:
    ratios = {"votes": 1.0, "threads": 1.5, "turns": 1.25}
    rows = [{"way": "direct, `random`", "round": turn, "runs": 4, "ratios": {**ratios, "turns": 1.25 + turn / 2},
             "generated": [30, 10], "load": 2.0} for turn in range(2)]  # fmt: skip
    page = router.page_of(lines(rows))
    assert "| direct, `random` | 1.00 | 1.50 | 1.50 (1.25–1.75) | 0.25 |" in page and "2 rounds of 4 plans" in page


def test_runs_in_time_have_an_interval_and_a_cut_off_round_is_left_out() -> None:
    rows = [
        {"way": way, "round": turn, "p50": 2.0, "p99": 4.0 if way == "affinity" else 5.0, "in_time": 60, "runs": 120,
         "peak": 4.5, "alone": 1.0, "share": 0.8, "load": 3.0}
        for turn in range(2) for way in unequal_engines.WAYS if (turn, way) != (1, "predictive")
    ]  # fmt: skip
    page = unequal_engines.page_of(lines(rows))
    assert "| `affinity` | 2 (2–2) | 4 (4–4) | 0.8 (0.8–0.8) | 50% (41–59) | 1 (1–1) |" in page
    assert "1 round, the same puzzles" in page


def test_the_simulator_is_held_to_what_was_left_out_of_its_fit() -> None:
    head = {"profile": PROFILE, "fitted": ["votes of 2"], "seconds": False, "slowest": 0.6, "speed": 0.8, "load": 4.0}
    rows = [{"what": what, "piece": "round-0", "cores": 1.0, "makespan_seconds": span, "p99_seconds": 1.0,
             "simulated_makespan_seconds": 1.1 * span, "simulated_p99_seconds": 1.2}
            for what, span in (("a", 1.0), ("a", 3.0), ("b", 5.0), ("b", 5.0))]  # fmt: skip
    page = calibration.page_of(lines([head, *rows]))
    assert "| a | 2.00 s, 2.20 s | +10.0% (+10.0% to +10.0%) | 1.00 s, 1.20 s | +20.0% (+20.0% to +20.0%) |" in page
    assert "error of the makespan 10.0%" in page and "of the p99 20.0%" in page
    assert '`python -m experiments calibration --fit "votes of 2"`' in page and "2 rounds of" in page


def test_times_are_predicted_of_other_puzzles() -> None:
    head = {"profile": PROFILE, "start": 0.0, "speed": 1.0, "load": 1.0}
    ends = [[0.0011 * 100, 100, True]] * 32
    rows = [{"kind": "recorded", "puzzle": number, "n": 32, "ends": ends} for number in range(3)]
    rows += [
        {"kind": "measured", "puzzle": number, "n": n, "ends": ends[:n]}
        for n in runtimes.WIDTHS for number in range(4)
    ]  # fmt: skip
    page = runtimes.page_of(lines([head, *rows]))
    assert "3 puzzles were recorded" in page and "4 other puzzles" in page
    assert "| 2 | the first ends | 0.120 s (0.120–0.120) | 0.110 s (0.110–0.110) | +9.1% |" in page
    assert "100% (51–100) |" in page


def test_the_ends_of_samples_are_read_out_of_a_journal(tmp_path: Path) -> None:
    [puzzle] = draw(1, 5)
    path, script = tmp_path / "runs.jsonl", tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"text": "<none>"}]}))
    with Orchestrator(config=Config(journal=path, script=script)) as orchestrator:
        run = orchestrator.run(puzzle.text, task="countdown", planner="sample:n=3").run
    clock: Any = lambda at: at  # noqa: E731
    found = runtimes.ends(path, {run: puzzle}, clock)[run]
    assert len(found) == 3 and not any(each.right for each in found) and all(each.at >= 0 for each in found)


def test_files_in_two_orders(tmp_path: Path) -> None:
    told = {"unique": 100, "seconds": 6.0, "cpu": 4.0, "load": 1.0}
    kept = tmp_path / "records" / "batch_order.jsonl"
    kept.parent.mkdir()
    rows = [{"way": way, "computed": computed, **told, "seconds": seconds} for way, computed, seconds in (
        ("--order file", 200, 6.0), ("--order prefix", 100, 3.0), ("--order file", 400, 6.0))]  # fmt: skip
    kept.write_text("".join(f"{line}\n" for line in lines(rows)))
    given = Given(tmp_path, tmp_path / "records", report=True, name="batch_order")
    page = batch_order.run(given, (), 1, 0.0)
    assert "| `--order prefix` | 1 (1–1) | 200 (200–200) | 2 (2–2) | 1 (1–1) |" in page and "1 round," in page
    assert (tmp_path / "data" / "rows.jsonl.gz").is_file()
