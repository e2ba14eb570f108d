"""`plait run`: what it prints, and what it exits with."""

from __future__ import annotations

import json

import pytest

PUZZLE = "3 5 7 11 -> 24"
ANSWER = "<serial work> <hit> 11 - 7 = 4 ; 5 + 3 = 8 ; 8 * 4 = 32 <end>"


def test_json_is_the_whole_summary(plait, script):
    done = plait("run", PUZZLE, "--task", "countdown", "--script", script(ANSWER), "--json")
    assert done.code == 0
    said = done.json
    assert said["answer"] == ["11-7=4", "5+3=8", "8*4=32"]
    assert said["status"] == "done"
    assert said["verified"] is False
    assert set(said["usage"]) == {"prompt", "cached", "completion", "cancelled", "sources"}
    assert said["usage"]["sources"] == dict.fromkeys(("prompt", "cached", "completion", "thoughts"), "server")
    assert said["total_tokens"] == said["critical_path_tokens"] == said["usage"]["completion"] > 0
    assert said["seconds"] >= 0
    assert said["run"]


def test_people_read_the_answer_and_what_it_took(plait, script):
    done = plait("run", PUZZLE, "--task", "countdown", "--script", script(ANSWER))
    assert done.code == 0
    assert done.out.startswith("11 − 7 = 4, 5 + 3 = 8, 8 × 4 = 32\n")
    assert "done, wrong" in done.out
    assert "critical path" in done.out


def test_people_are_told_that_the_text_is_cut(plait, script):
    long = script("one two three four five")
    assert "5 tokens (5 critical path)\n" in plait("run", "q", "--script", long).out
    assert (
        "3 tokens (3 critical path) · cut by max_tokens\n" in plait("run", "q", "--script", long, "--max-tokens", 3).out
    )


def test_verbose_shows_the_steps_and_where_time_went(plait, script):
    done = plait("run", "q", "--planner", "sample:n=3", "--script", script({"text": "it is 4", "delay": 0.1}), "-v")
    assert done.code == 0
    assert all(name in done.out for name in ("sample-1", "sample-2", "sample-3", "vote"))
    assert "3 of 3 votes" in done.out
    assert "time: model 0." in done.out


def test_with_json_the_tree_is_on_standard_error(plait, script):
    done = plait(
        "run", "q", "--planner", "sample:n=2,answer.stream=true", "--script", script("answer: 4"), "-v", "--json"
    )
    assert done.json["answer"] == "4"
    assert "sample-2" in done.err
    assert "answer: 4" in done.err


def test_n_and_merge_reach_the_planner(plait, script):
    replies = [{"text": f"answer: {value}", "times": 1} for value in (1, 2, 2, 3)]
    done = plait(
        "run", "q", "--planner", "sample", "--n", 4, "--merge", "majority", "--script", script(*replies), "--json"
    )
    assert done.json["answer"] == "2"
    assert "2 of 4 votes" in done.json["why"]


def test_question_from_standard_input(plait, script, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("hear me\n"))
    replies = script({"when": "hear me", "text": "heard"})
    assert plait("run", "-", "--script", replies, "--json").json["answer"] == "heard"


def test_no_answer_exits_with_1(plait, script):
    done = plait("run", PUZZLE, "--task", "countdown", "--script", script("1 + 1 = 2 <none>"), "--json")
    assert done.code == 1
    assert done.json["answer"] is None
    assert done.json["status"] == "no answer"


def test_a_model_error_is_a_failed_run(plait, script):
    done = plait("run", "q", "--script", script({"text": "boom", "finish": "error"}), "--json")
    assert done.code == 1
    assert done.json["status"] == "failed"
    assert "boom" in done.json["error"]


def test_an_exhausted_budget_keeps_what_there_is(plait, script):
    long = script(" ".join(map(str, range(100))))
    done = plait("run", "q", "--script", long, "--tokens", 10, "--json")
    assert done.json["total_tokens"] <= 10
    assert done.json["status"] == "partial"
    assert done.json["answer"] == " ".join(map(str, range(10)))
    assert done.code == 0


def test_seconds_are_a_hard_limit(plait, script):
    slow = script({"text": "never said", "delay": 60})
    done = plait("run", "q", "--script", slow, "--seconds", 0.2, "--json")
    assert done.code == 1
    assert done.json["status"] == "failed"
    assert "seconds" in done.json["error"]


TOOLS = '''
from plait import tool

@tool
def double(x: int) -> int:
    """Twice x."""
    return 2 * x

@tool
def broken(x: int) -> int:
    raise RuntimeError("no such luck")

@tool
def odd(x: int) -> object:
    return object()

@tool(timeout=0.2)
async def hanging(x: int) -> int:
    import asyncio
    await asyncio.sleep(60)
    return x
'''


@pytest.fixture
def tools(tmp_path):
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS)
    return path


@pytest.fixture
def plan(tmp_path):
    def write(*calls, output=None):
        steps = [{"name": name, "op": {"kind": "call", "tool": tool, "args": args}} for name, tool, args in calls]
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({"steps": steps, "output": output or calls[-1][0]}))
        return path

    return write


def test_a_plan_of_calls_needs_no_model(plait, tools, plan):
    path = plan(("a", "double", {"x": 4}), ("b", "double", {"x": {"$ref": "a"}}))
    done = plait("run", "--plan", path, "--tools", tools, "--json")  # no --script: a model would have to be started
    assert done.code == 0
    assert done.json["answer"] == 16
    assert "starting" not in done.err


@pytest.mark.parametrize(
    ("tool", "args", "said"),
    [
        ("broken", {"x": 1}, "RuntimeError: no such luck"),
        ("odd", {"x": 1}, "odd"),
        ("hanging", {"x": 1}, "0.2 s"),
        ("double", {"x": "much"}, "'x'"),
        ("double", {"y": 1}, "'y'"),
    ],
)
def test_a_tool_that_misbehaves_fails_the_run_in_one_line(plait, tools, plan, tool, args, said):
    done = plait("run", "--plan", plan(("a", tool, args)), "--tools", tools, "--json")
    assert done.code == 1
    assert done.json["status"] == "failed"
    assert said in done.json["error"]


def test_journal_is_written(plait, script, tmp_path):
    path = tmp_path / "run.db"
    assert plait("run", "q", "--script", script("a"), "--journal", path).code == 0
    assert path.exists()
    done = plait("runs", "replay", path, "--json")
    assert done.code == 0
    assert done.json["identical"] is True


def test_results_are_kept_and_used_again(plait, script, tmp_path):
    given = ("run", "q", "--planner", "sample:n=3", "--script", script("answer: 4"), "--json")
    plain = plait(*given).json
    first = plait(*given, "--set", f"cache={tmp_path / 'results.sqlite'}").json
    again = plait(*given, "--set", f"cache={tmp_path / 'results.sqlite'}").json
    assert first["total_tokens"] == plain["total_tokens"] > 0
    assert again["total_tokens"] == 0
    assert again["usage"]["reused"] == first["total_tokens"]
    assert again["answer"] == first["answer"] == "4"
    assert plait(*given).json["total_tokens"] == plain["total_tokens"]
    bad = plait(*given, "--set", f"cache={tmp_path}")
    assert bad.code == 2
    assert "cache" in bad.err


def test_how_the_answer_is_generated_is_said_on_the_command(plait, script, tmp_path):
    said = ("--max-tokens", 5, "--temperature", 0.3, "--set", "top_p=0.9", "--set", "thinking=off")
    journal = tmp_path / "runs.db"
    asked = ("run", "q", "--planner", "sample:n=2", "--script", script("one two three four five six seven"))
    done = plait(*asked, *said, "--journal", journal, "--json")
    assert done.json["usage"]["completion"] == 10
    plan = plait("plan", "q", "--planner", "sample:n=2", "--script", script("x"), *said, "--json").json
    ops = [step["op"] for step in plan["plan"]["steps"] if step["op"]["kind"] == "think"]
    assert {op["sampling"]["thinking"] for op in ops} == {"off"}
    assert {(op["sampling"]["temperature"], op["sampling"]["top_p"]) for op in ops} == {(0.3, 0.9)}


def test_why_an_answer_came_is_said_once(plait, script):
    done = plait("run", "six?", "--script", script("Answer: 6"), "--planner", "sample:n=3", "-v")
    assert done.out.count("3 of 3 votes") == 1 and "sample-2 done" in done.out
