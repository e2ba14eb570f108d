"""`plait learn effort`: numbers made on problems and counted in journals, and their use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, tool
from plait.runtime.journal.directory import entries
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from plait_research.rollouts.store import stored_runs
from tests.planners.test_react import call

RIGHT = "<hit> 11 - 5 = 6 ; 7 - 3 = 4 ; 6 * 4 = 24 <end>"
OUTLINE = "1. [difficulty 1; needs none] sort\n2. [difficulty 5; needs 1] prove\n"
SCALE = [
    {"when": "(?s)its result: sort.*How difficult", "labels": {"1": 1.0}},
    {"when": "How difficult", "labels": {"8": 1.0}},
    {"when": "Answer the question now", "text": "Answer: 7"},
    {"when": "Do this step only", "text": "a result"},
    {"when": "Do not answer yet", "text": OUTLINE},
]


def problems(tmp_path: Path, *wants: str) -> Path:
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"text": f"Why {n}?", "want": want}) + "\n" for n, want in enumerate(wants)))
    return file


def script(tmp_path: Path, replies: list[Any]) -> Path:
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"replies": replies}))
    return file


def test_scale_learns_on_problems_which_difficulties_the_easy_way_can_do(plait: Any, tmp_path: Path) -> None:
    out, replies = tmp_path / "scale.json", script(tmp_path, SCALE)
    given = ("--problems", problems(tmp_path, "7", "7", "8"), "--script", replies, "--out", out)
    done = plait("learn", "effort", "plain", "--planner", "scale:n=1", *given, "--json")
    assert done.code == 0, done.err
    assert done.json == {"runs": 3, "learned": 3, "left": {}, "out": str(out)}
    records = json.loads(out.read_text())["plain"]["options"]["records"]
    assert sorted(records) == [[0.1111, 0.0], [0.1111, 1.0], [0.1111, 1.0], [0.8889, 0.0], [0.8889, 1.0], [0.8889, 1.0]]
    shown = plait("run", "Why?", "--planner", f"scale:n=1,path={out}", "--script", replies, "-v")
    assert "not calibrated, 6 of 100" in shown.out + shown.err
    again = plait("learn", "effort", "plain", "--planner", "scale:n=1", *given)
    assert f"use it with --planner scale:path={out}" in again.out
    assert len(json.loads(out.read_text())["plain"]["options"]["records"]) == 12, "it is added to"


def test_takeover_learns_scores_and_then_keeps_a_share(plait: Any, tmp_path: Path) -> None:
    out = tmp_path / "takeover.json"
    replies = script(tmp_path, [{"when": "How promising", "labels": {"9": 0.5, "0": 0.5}}, {"text": "Answer: 7"}])
    refused = plait("run", "Why?", "--planner", "takeover:criterion=records,threshold=0.2", "--script", replies)
    assert refused.code == 2 and "plait learn effort TASK --planner takeover" in refused.err
    given = ("--problems", problems(tmp_path, "7", "8"), "--script", replies)
    done = plait("learn", "effort", "plain", "--planner", "takeover", *given, "--out", out, "--json")
    assert done.code == 0 and done.json["learned"] == 2, done.err
    assert json.loads(out.read_text())["plain"]["options"]["records"] == [[0.5] * 8]
    held = f"takeover:criterion=records,threshold=0.2,path={out}"
    told = plait("run", "Why?", "--planner", held, "--script", replies, "-v")
    assert told.code == 0 and "not calibrated" not in told.out + told.err


def test_runs_in_journals_are_counted_once_for_each_planner_and_its_candidates(plait: Any, tmp_path: Path) -> None:
    journal, out = tmp_path / "j", tmp_path / "arms.json"
    replies = script(tmp_path, [{"when": "<direct>", "text": "nothing"}, {"text": RIGHT}])
    route = 'route-record:candidates=["single:style=direct","single"]'
    for seed in range(8):
        words = ("run", "3 5 7 11 -> 24", "--task", "countdown", "--planner", route, "--seed", str(seed))
        plait(*words, "--script", replies, "--journal", journal, "--json")
    plait("run", "3 5 7 11 -> 24", "--task", "countdown", "--script", replies, "--journal", journal, "--json")
    done = plait("learn", "effort", "countdown", "--planner", route, "--from", journal, "--out", out, "--json")
    assert done.code == 0 and (done.json["runs"], done.json["learned"]) == (9, 9), done.err
    direct, serial = json.loads(out.read_text())["countdown"]["options"]["candidates"]
    assert direct.get("wins", 0) == 0 and serial.get("losses", 0) == 0 and direct["losses"] + serial["wins"] == 9


@pytest.mark.parametrize("planner", ["sample", "deepprune"])
def test_a_planner_without_such_numbers_is_refused(plait: Any, tmp_path: Path, planner: str) -> None:
    done = plait("learn", "effort", "plain", "--planner", planner, "--out", tmp_path / "o.json")
    assert done.code == 2 and f"the planner '{planner}' has no numbers that could be learned" in done.err


async def test_patterns_are_counted_in_journals_and_used(plait: Any, tmp_path: Path) -> None:
    @tool
    def user(id: str) -> dict[str, Any]:
        return {"orders": [f"#W{id[-1]}"]}

    @tool
    def order(id: str) -> str:
        return f"{id} is on its way"

    journal, out = tmp_path / "j.plait", tmp_path / "patterns.json"

    async def run(who: str, planner: Any) -> Any:
        replies = [
            Reply(when="is on its way", text="yes"),
            Reply(when="orders", text=call("order", id=f"#W{who[-1]}")),
            Reply(text=call("user", id=who)),
        ]
        model = Scripted(replies)
        async with AsyncOrchestrator(workers=[model], tools=[user, order], journal=str(journal)) as orchestrator:
            return await orchestrator.run(f"{who}?", planner=planner, task="plain")

    for number in range(1, 5):
        await run(f"mia_li_300{number}", "react")
    done = plait("learn", "effort", "plain", "--planner", "react-ahead", "--from", journal, "--out", out, "--json")
    assert done.code == 0 and json.loads(done.out)["learned"] == 4
    answer = await run("mia_li_3007", f"react-ahead:path={out}")
    runs = {run.id: run for run in stored_runs(entries(journal), Plugins(), lambda error: pytest.fail(str(error)))}
    made = {step.label: step.state for step in runs[answer.run].steps if step.kind == "call"}
    assert answer.answer == "yes"
    assert made == {"user, ahead of the model": "done", "order, ahead of the model": "done"}
