"""Counts of strategies out of journals, for `route-record`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plait_research.learn.command import utility
from plait_research.planners.routes import RouteRecord

RIGHT = "<hit> 11 - 5 = 6 ; 7 - 3 = 4 ; 6 * 4 = 24 <end>"


def test_a_right_answer_is_worth_less_the_more_it_cost() -> None:
    assert utility(True, 0, 0.01) == 1.0
    assert utility(True, 50, 0.01) == 0.5
    assert utility(True, 500, 0.01) == 0.0
    assert utility(False, 0, 0.0) == 0.0


def test_counts_come_out_of_journals_and_go_into_a_route(plait: Any, tmp_path: Path) -> None:
    script, journal, out = tmp_path / "s.json", tmp_path / "j", tmp_path / "arms.json"
    script.write_text(json.dumps({"replies": [{"text": RIGHT}]}))
    for planner in ("single", "single", "sample:n=2"):
        words = ("run", "3 5 7 11 -> 24", "--task", "countdown", "--planner", planner, "--script", script)
        assert plait(*words, "--journal", journal, "--json").code == 0
    done = plait("learn", "strategies", "--from", journal, "--price", "0.01", "--out", out, "--json")
    assert done.code == 0, done.err
    counted = {each["planner"]["name"]: each for each in done.json["routes"]["countdown"]["options"]["candidates"]}
    assert counted["single"]["wins"] > 1.0 > counted["single"]["losses"]
    assert counted["sample"]["wins"] < counted["single"]["wins"] / 2, "two samples cost twice as much"
    made = RouteRecord.model_validate(json.loads(out.read_text())["countdown"]["options"])
    assert {tier.planner.name for tier in made.candidates} == {"single", "sample"}
    shown = plait("learn", "strategies", "--from", journal, "--planner", "single", "--planner", "tree")
    assert "tree" in shown.out and "sample" not in shown.out


def test_a_run_without_an_answer_is_a_loss(plait: Any, tmp_path: Path) -> None:
    script, journal = tmp_path / "s.json", tmp_path / "j"
    for planner, text in (("single", RIGHT), ("single", "I do not know."), ("sample:n=2", RIGHT)):
        script.write_text(json.dumps({"replies": [{"text": text}]}))
        words = ("run", "3 5 7 11 -> 24", "--task", "countdown", "--planner", planner, "--script", script)
        plait(*words, "--journal", journal, "--json")
    done = plait("learn", "strategies", "--from", journal, "--json")
    counted = {each["planner"]["name"]: each for each in done.json["routes"]["countdown"]["options"]["candidates"]}
    assert (counted["single"]["wins"], counted["single"]["losses"]) == (1.0, 1.0)
    assert (counted["sample"]["wins"], counted["sample"]["losses"]) == (1.0, 0.0)
