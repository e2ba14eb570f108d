"""`plait plan`, `plait simulate` and `plait runs replay`: plans shown, played in virtual time, and played again."""

from __future__ import annotations

import json
import sqlite3

import pytest

from plait.apps.common import graph
from plait.core.plan import Plan, validate

DIAMOND = {
    "steps": [
        {"name": "a", "op": {"kind": "think", "prompt": "start", "sampling": {"max_tokens": 100}}},
        {"name": "b", "op": {"kind": "think", "prompt": "left", "sampling": {"max_tokens": 300}}, "needs": ["a"]},
        {"name": "c", "op": {"kind": "think", "prompt": "right", "sampling": {"max_tokens": 50}}, "needs": ["a"]},
        {"name": "d", "op": {"kind": "join"}, "needs": ["b", "c"]},
    ],
    "output": "d",
}


@pytest.fixture
def diamond(tmp_path):
    path = tmp_path / "diamond.json"
    path.write_text(json.dumps(DIAMOND))
    return path


def test_a_plan_as_json(plait, diamond):
    done = plait("plan", "--plan", diamond, "--json")
    assert done.code == 0
    said = done.json
    assert said["waves"] == [["a"], ["b", "c"], ["d"]]
    assert (said["steps"], said["width"]) == (4, 2)
    assert said["critical_path"] == {"steps": ["a", "b", "d"], "tokens_at_most": 400.0}


def test_what_is_printed_is_a_plan_again(plait, diamond, tmp_path):
    first = plait("plan", "--plan", diamond, "--json").json
    (tmp_path / "again.json").write_text(json.dumps(first["plan"]))
    assert plait("plan", "--plan", "again.json", "--json").json == first


def test_a_plan_for_people_and_for_drawing(plait, diamond):
    text = plait("plan", "--plan", diamond).out
    assert "3 waves, width 2, critical path a > b > d (at most 400 tokens)" in text
    assert plait("plan", "--plan", diamond, "--format", "mermaid").out.startswith("flowchart TD\n")
    done = plait("plan", "--plan", diamond, "--format", "mermaid", "--json")
    assert done.code == 2
    assert "choose one" in done.json["error"]


def test_a_planners_first_plan(plait):
    said = plait("plan", "3 5 7 11 -> 24", "--task", "countdown", "--planner", "sample", "--n", 5, "--json").json
    assert said["width"] == 5
    assert said["plan"]["steps"][0]["op"]["prompt"][0]["text"].startswith("<serial>")
    said = plait("plan", "3 5 7 11 -> 24", "--task", "countdown", "--planner", "threads", "--json").json
    assert said["steps"] == 1  # the rest is planned while it runs


PLAN_TEXT = """\
1. search("Mont Blanc")
2) search('Zugspitze')
3. math("max($1, $2)", ["$1", "${2}"]
4. join()<END_OF_PLAN>
"""


def test_a_plan_as_a_model_wrote_it(plait, tmp_path):
    (tmp_path / "plan.txt").write_text(PLAN_TEXT)
    words = ["plan", "--planner", "llmcompiler", "--plan", "plan.txt"]
    said = plait(*words, "--json").json
    steps = [(step["name"], step["tool"], step["needs"]) for step in said["steps"]]
    assert steps == [
        ("1", "search", []),
        ("2", "search", []),
        ("3", "math", ["1", "2"]),
        ("4", "join", ["1", "2", "3"]),
    ]
    assert said["steps"][0]["args"] == {"arg0": "Mont Blanc"}
    assert said["steps"][2]["args"]["arg1"] == [{"$ref": "1"}, {"$ref": "2"}]
    assert said["repairs"] == ["task 2: numbered '2) '", "task 3: ')' was missing at the end"]
    made = Plan.model_validate(said["plan"])
    validate(made)
    assert graph.waves(made) == [["1", "2"], ["3"], ["4"]]
    done = plait(*words)
    assert "call math" in done.out
    assert "')' was missing" in done.err
    assert plait(*words, "--format", "mermaid").out.startswith("flowchart TD\n")


def test_a_written_plan_is_checked_against_tools_that_are_there(plait, tmp_path):
    (tmp_path / "plan.txt").write_text(PLAN_TEXT)
    (tmp_path / "T.py").write_text(
        "from plait import tool\n\n\n@tool\ndef search(query: str) -> str:\n    return query\n"
    )
    said = plait("plan", "--planner", "llmcompiler", "--plan", "plan.txt", "--tools", "T.py", "--json").json
    assert said["steps"][0]["args"] == {"query": "Mont Blanc"}
    assert "there is no tool 'math'" in said["errors"][0]


def test_a_written_plan_that_cannot_be_read(plait, tmp_path):
    done = plait("plan", "--planner", "llmcompiler", "--plan", "nowhere.txt", "--json")
    assert done.code == 2
    assert "nowhere.txt cannot be read" in done.json["error"]
    (tmp_path / "plan.txt").write_bytes(b"\xff\x00 no plan")
    assert plait("plan", "--plan", "plan.txt", "--json").json["plan"] is None
    assert plait("plan", "--plan", "plan.txt").out == "no task\n"
    done = plait("plan", "--planner", "sample", "--plan", "plan.txt", "--json")
    assert done.code == 2
    assert "reads no written plans" in done.json["error"]
    done = plait("plan", "--plan", "plan.json", "--json")
    assert done.code == 2 and "plan.json" in done.json["error"]


def test_a_step_that_decodes_and_prefills_is_simulated(plait):
    """Four prompts of 4,000 tokens are read at 20,000 a second, and each first token comes with the last of them."""
    words = ["simulate", "word " * 3200, "--planner", "sample", "--n", 4, "--policy", "fifo", "--json", "--cluster"]
    seconds = {}
    for engine in ("slots=4", "slots=4,step_tokens=100000", "slots=4,step_tokens=4000"):
        summary = json.loads(plait(*words, engine).out)["policies"]["fifo"]
        seconds[engine] = summary["makespan_seconds"]
    assert len(set(seconds.values())) == 3, seconds


def test_simulated_policies_stand_side_by_side(plait, tmp_path):
    # A chain of 300 tokens and four short steps on two slots: with the chain first it is over sooner.
    short = [
        {"name": f"s{i}", "op": {"kind": "think", "prompt": "x", "sampling": {"max_tokens": 100}}} for i in range(4)
    ]
    chain = [
        {
            "name": f"c{i}",
            "op": {"kind": "think", "prompt": "x", "sampling": {"max_tokens": 100}},
            "needs": [f"c{i - 1}"] if i else [],
        }
        for i in range(3)
    ]
    join = {"name": "end", "op": {"kind": "join"}, "needs": ["s0", "s1", "s2", "s3", "c2"]}
    (tmp_path / "p.json").write_text(json.dumps({"steps": [*short, *chain, join], "output": "end"}))
    words = ["simulate", "--plan", "p.json", "--cluster", "slots=2,decode_rate=100", "--policy", "fifo"]
    said = plait(*words, "--policy", "critical-path", "--json").json
    fifo, critical = said["policies"]["fifo"], said["policies"]["critical-path"]
    assert critical["makespan_seconds"] == pytest.approx(4.0, abs=0.05)
    assert fifo["makespan_seconds"] == pytest.approx(5.0, abs=0.05)
    assert fifo["total_tokens"] == critical["total_tokens"] == 700
    table = plait(*words).out
    assert "fifo" in table
    assert "8 steps on 1 × 2 slots" in table


def test_a_simulation_is_the_same_for_a_seed(plait):
    words = ["simulate", "q", "--planner", "sample", "--n", 20, "--cluster", "slots=4,vary=0.3", "--json"]
    first = plait(*words, "--seed", 1).json
    assert plait(*words, "--seed", 1).json == first
    assert plait(*words, "--seed", 2).json != first


def test_placement_is_compared_on_engines_with_caches(plait):
    words = ["simulate", "word " * 300, "--planner", "sample", "--n", 16, "--cluster", "engines=4,cache=20000"]
    policies = ["--policy", "random", "--policy", "affinity"]
    said = plait(*words, *policies, "--json").json["policies"]
    assert said["affinity"]["prompt_computed"] < said["random"]["prompt_computed"] / 2
    assert said["affinity"]["prompt_unique"] == said["random"]["prompt_unique"]
    assert "prompts read ÷ unique" in plait(*words, *policies).out


def test_a_slow_engine_is_hedged(plait):
    words = ["simulate", "q", "--planner", "sample", "--n", 16, "--policy", "fifo", "--json", "--cluster"]
    said = plait(*words, "engines=4,slow=0.1", "--policy", "hedge").json["policies"]
    assert said["hedge"]["makespan_seconds"] < said["fifo"]["makespan_seconds"] / 2


def test_a_workload_of_many_runs_is_simulated(plait):
    words = ["simulate", "Why?", "--planner", "sample", "--n", 4, "--policy", "fifo"]
    words += ["--cluster", "engines=2,slots=4"]
    said = plait(*words, "--load", "runs=50,rate=2", "--json").json["policies"]["fifo"]
    assert said["done"] == said["runs"] == 50 and said["attempts"] == 200
    assert 0 < said["latency_p50_seconds"] <= said["latency_p99_seconds"] < said["makespan_seconds"]
    assert plait(*words, "--load", "runs=50,rate=2", "--json").json["policies"]["fifo"] == said
    table = plait(*words, "--load", "runs=3").out
    assert table.startswith("uncalibrated") and "\n3 runs on 2 × 4 slots" in table
    assert "…" not in table
    for wrong, why in (
        (["--load", "rate=2"], "--cluster decode_rate=N"),
        (["--load", "rnus=2"], "did you mean 'runs'"),
        (["--cluster", "slots=0"], "greater than or equal to 1"),
    ):
        done = plait(*words, *wrong, "--json")
        assert done.code == 2 and why in done.json["error"]


def test_replay_says_where_it_diverges(plait, script, tmp_path):
    journal = tmp_path / "run.db"
    assert plait("run", "q", "--script", script("a b c"), "--journal", journal).code == 0
    done = plait("runs", "replay", journal)
    assert done.code == 0
    assert done.out.startswith("identical: ")
    with sqlite3.connect(journal) as db:
        seq, actions = db.execute("SELECT seq, actions FROM events WHERE actions LIKE '%finish%'").fetchone()
        db.execute("UPDATE events SET actions = ? WHERE seq = ?", (actions.replace('"done"', '"failed"'), seq))
    done = plait("runs", "replay", journal, "--json")
    assert done.code == 1
    assert done.json["identical"] is False
    assert done.json["divergence"]["event"] == seq
    assert '"failed"' in done.json["divergence"]["recorded"]
    assert '"done"' in done.json["divergence"]["replayed"]
    assert f"diverged at event {seq}" in plait("runs", "replay", journal).out


def test_replay_refuses_what_is_no_journal(plait, tmp_path):
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be looked at")
    done = plait("runs", "replay", "notes.txt", "--json")
    assert done.code == 2
    assert "notes.txt" in done.json["error"]
