"""The planners that split answers, prompts and attempts, from the command line by name, with no model."""

from __future__ import annotations

import json

import pytest

REPLIES = {
    "replies": [
        {"when": "can be split", "text": '{"template": "Write a riddle about rain", "n": 3}'},
        {"when": "Reply with one letter", "text": "A"},
        {"when": "Write only the skeleton", "text": "1. Drops\n2. Puddles\n3. Rainbows"},
        {"when": "Split the work", "text": "1. [difficulty 1] think\n2. [difficulty 3; needs 1] write"},
        {"text": "Drip."},
    ]
}
PLANNERS = {
    "skeleton": ("1. Drops\nDrip.\n\n2. Puddles\nDrip.\n\n3. Rainbows\nDrip.", "3 points"),
    "skeleton_graph": ("Drip.\n\nDrip.", "2 sub-problems in 2 waves"),
    "decompose": ("1. Drip.\n\n2. Drip.\n\n3. Drip.", "3 pieces, high confidence"),
    "refine:rounds=3x1": ("Drip.", "round 2 of 2"),
    "think_summarize:quorum=null": ("Drip.", "4 of 4 drafts"),
    "route": ("1. Drip.\n\n2. Drip.\n\n3. Drip.", "decomposition: "),
}


@pytest.mark.parametrize("planner", PLANNERS)
def test_planned_and_run(plait, tmp_path, planner: str):
    (tmp_path / "s.json").write_text(json.dumps(REPLIES))
    said = plait("plan", "Write 3 riddles about rain", "--planner", planner, "--json")
    assert said.code == 0
    assert said.json["steps"] >= (1 if planner in ("skeleton", "decompose") else 2)  # a flow makes its steps as it goes
    words = ["run", "Write 3 riddles about rain", "--planner", planner, "--worker", "scripted", "--script", "s.json"]
    done = plait(*words, "--json", "-v")
    assert done.code == 0
    value, why = PLANNERS[planner]
    assert done.json["answer"] == value
    assert done.json["why"].startswith(why)
    assert any(why in line for line in done.json["explain"])
    assert "explain" not in plait(*words, "--json").json


def test_the_choice_is_explained(plait, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({"replies": [{"text": "Answer: 42"}]}))
    out = plait("run", "Why?", "--planner", "route", "--worker", "scripted", "--script", "s.json", "-v").out
    assert "probes: 4 of 4 probes agree" in out
    assert "probe-4 done" in out


def test_options_that_make_no_sense_are_said(plait):
    done = plait("plan", "Why?", "--planner", "refine:rounds=0", "--json")
    assert done.code == 2
    assert "a round needs at least one draft" in done.json["error"]
