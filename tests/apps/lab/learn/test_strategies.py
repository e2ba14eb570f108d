"""Runs of strategies in journals, counted for `route-record`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plait_research.planners.routes import RouteRecord

RIGHT = "<hit> 11 - 5 = 6 ; 7 - 3 = 4 ; 6 * 4 = 24 <end>"


def counts(plait: Any, journal: Path, out: Path, options: str) -> dict[str, tuple[float, float]]:
    """Count the runs of a journal; return wins and losses by planner."""
    words = ("learn", "effort", "countdown", "--planner", f"route-record:{options}", "--from", journal)
    done = plait(*words, "--out", out, "--json")
    assert done.code == 0, done.err
    made = RouteRecord.model_validate(json.loads(out.read_text())["countdown"]["options"])
    return {tier.planner.name: (tier.wins, tier.losses) for tier in made.candidates}


def ask(plait: Any, script: Path, journal: Path, planner: str, text: str) -> None:
    script.write_text(json.dumps({"replies": [{"text": text}]}))
    words = ("run", "3 5 7 11 -> 24", "--task", "countdown", "--planner", planner, "--script", script)
    plait(*words, "--journal", journal, "--json")


def test_counts_come_out_of_journals_and_go_into_a_route(plait: Any, tmp_path: Path) -> None:
    script, journal, out = tmp_path / "s.json", tmp_path / "j", tmp_path / "arms.json"
    for planner in ("single", "single", "sample:n=2", "sample:n=3"):
        ask(plait, script, journal, planner, RIGHT)
    made = counts(plait, journal, out, 'candidates=["single","sample:n=2"],fit={"price":0.01}')
    wins, losses = made["single"]
    assert wins > 1.0 > losses and wins + losses == 2
    assert made["sample"][0] < wins / 2, "two samples cost twice as much"
    assert sum(made["sample"]) == 1, "no run of three samples counts for two"
    words = ("run", "3 5 7 11 -> 24", "--task", "countdown", "--planner", f"route-record:path={out}")
    assert plait(*words, "--script", script, "--json").json["verified"] is True


def test_a_run_without_an_answer_is_a_loss(plait: Any, tmp_path: Path) -> None:
    script, journal = tmp_path / "s.json", tmp_path / "j"
    for planner, text in (("single", RIGHT), ("single", "I do not know."), ("sample", RIGHT)):
        ask(plait, script, journal, planner, text)
    assert counts(plait, journal, tmp_path / "arms.json", "") == {"single": (1.0, 1.0), "sample": (1.0, 0.0)}
