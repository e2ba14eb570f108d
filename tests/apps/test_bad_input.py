"""Bad input: one clear line with the cause and the remedy, an exit code, nothing started, no traceback."""

from __future__ import annotations

import json

import pytest

PUZZLE = "3 5 7 11 -> 24"


def steps(*made, output):
    return json.dumps({"steps": list(made), "output": output})


def call(name, tool="double", needs=(), **args):
    return {"name": name, "op": {"kind": "call", "tool": tool, "args": args}, "needs": list(needs)}


TOOLS = "from plait import tool\n\n@tool\ndef double(x: int = 1) -> int:\n    return 2 * x\n"

PLANS = {
    "cycle": (steps(call("a", needs="b"), call("b", needs="a"), output="b"), ["cycle", "b needs a"]),
    "unknown step": (steps(call("a", needs=["aa"]), output="a"), ["'aa'", "not a step of the plan"]),
    "unknown output": (steps(call("a"), output="z"), ["'z'", "not a step"]),
    "unknown tool": (steps(call("a", "dubble"), output="a"), ["'dubble'", "did you mean 'double'"]),
    "two of a name": (steps(call("a"), call("a"), output="a"), ["two steps are named 'a'"]),
    "leads nowhere": (steps(call("a"), call("b"), output="b"), ["'a'", "does not lead to the output"]),
    "unknown merge": (
        steps(
            call("a"), {"name": "j", "op": {"kind": "join", "merge": {"name": "mojority"}}, "needs": ["a"]}, output="j"
        ),
        ["'mojority'", "did you mean 'majority'"],
    ),
    "no plan": ("[]", ["plan.json"]),
    "not json": ("{", ["plan.json", "JSON"]),
    "unknown field": ('{"steps": [], "outptu": "a"}', ["outptu"]),
}


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize("case", PLANS)
def test_plans_that_are_none(plait, tmp_path, command, case):
    text, said = PLANS[case]
    (tmp_path / "plan.json").write_text(text)
    (tmp_path / "tools.py").write_text(TOOLS)
    done = plait(command, "--plan", "plan.json", "--tools", "tools.py", "--json")
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    for words in said:
        assert words in done.json["error"]
    assert done.json["error"] in done.err


CASES = {
    "unknown planner": (["run", "q", "--planner", "threds"], ["'threds'", "did you mean 'threads'"]),
    "unknown option of one": (["run", "q", "--planner", "sample:m=3"], ["'m'", "it takes answer, n"]),
    "wrong option of one": (["run", "q", "--planner", "sample:n=many"], ["'n'", "many"]),
    "unknown policy": (["run", "q", "--policy", "lifo"], ["'lifo'", "fifo"]),
    "unknown merge": (["run", "q", "--planner", "sample", "--merge", "mojority"], ["'mojority'", "majority"]),
    "a merge that has no place": (["run", "q", "--merge", "majority"], ["'single'", "merge"]),
    "unknown task": (["run", "q", "--task", "countdwon"], ["'countdwon'", "countdown"]),
    "a third party that is not there": (["run", "q", "--planner", "nowhere.mod:Cls"], ["nowhere", "install it"]),
    "a request that the task cannot read": (["run", "3 5 7", "--task", "countdown"], ["3 5 7 11 -> 24"]),
    "a number out of range": (["run", "3 5 7 99 -> 24", "--task", "countdown"], ["99", "1..25"]),
    "an empty request": (["run", " "], ["nothing to answer"]),
    "unknown worker": (["run", "q", "--worker", "engin"], ["'engin'", "did you mean 'engine'"]),
    "a script that is not there": (["run", "q", "--script", "none.json"], ["none.json", "replies"]),
    "tools that are not there": (["run", "q", "--tools", "none.py"], ["none.py", "@tool"]),
    "a configuration that is not there": (["run", "q", "--config", "none.toml"], ["none.toml"]),
    "problems that are not there": (["eval", "none.jsonl", "--task", "countdown"], ["none.jsonl"]),
    "a choice that is not offered": (
        ["runs", "export", "--out", "x", "--select", "by=critcal"],
        ["critcal", "critical"],
    ),
    "another task to evaluate": (["eval", "plain"], ["'plain'", "`drawn`"]),
    "an unknown option": (["run", "q", "--planer", "single"], ["--planer", "--planner", "plait run --help"]),
    "an unknown command": (["rum"], ["'rum'", "plait --help"]),
    "a wrong value": (["run", "q", "--n", "some"], ["integer", "--n", "plait run --help"]),
    "too small a value": (["run", "q", "--tokens", "0"], ["--tokens", "greater than or equal to 1"]),
    "two planners": (["run", "q", "--planner", "single", "--plan", "p.json"], ["--planner and --plan"]),
    "a journal that is not there": (["runs", "replay", "none.db"], ["none.db"]),
    "an unknown kind": (["plugins", "wizards"], ["'wizards'", "planner"]),
    "a policy compared with itself": (["simulate", "q", "--policy", "fifo", "--policy", "fifo"], ["twice"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_caller_got_wrong(plait, case):
    words, said = CASES[case]
    done = plait(*words, "--json")
    assert done.code == 2
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    for each in said:
        assert each in done.json["error"]


def test_without_json_standard_output_stays_empty(plait):
    done = plait("run", "q", "--planner", "nope")
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: there is no planner 'nope'")


@pytest.mark.parametrize("worker", ["engine"])
def test_a_model_folder_that_is_none(plait, tmp_path, worker):
    (tmp_path / "empty").mkdir()
    for folder, said in (("empty", "config.json"), ("./absent", "no model")):
        done = plait("run", "q", "--worker", worker, "--model", folder, "--json")
        assert done.code == 1
        assert said in done.json["error"]
        assert "folder with config.json" in done.json["error"]


def test_bad_settings_say_where_they_stand(plait, tmp_path, monkeypatch):
    (tmp_path / "plait.toml").write_text("engines = 0\n")
    done = plait("run", "q", "--json")
    assert done.code == 2
    assert "plait.toml" in done.json["error"]
    assert "engines" in done.json["error"]
    (tmp_path / "plait.toml").unlink()
    monkeypatch.setenv("PLAIT_SLOTS", "many")
    done = plait("run", "q", "--json")
    assert done.code == 2
    assert "PLAIT_SLOTS" in done.json["error"]


@pytest.mark.parametrize("words", [["run"], ["run", "q", "--planner", "llmcompiler"]])
def test_what_cannot_be_planned_starts_no_engine(plait, monkeypatch, words):
    def starts(*_: object, **__: object):
        raise AssertionError("an engine is started, which takes many seconds")

    monkeypatch.setattr("plait.runtime.client.client.build_workers", starts)
    done = plait(*words, "--worker", "ray")
    assert done.code in (1, 2)
    assert "nothing to answer" in done.err or "no tools to plan with" in done.err


def test_debug_adds_the_traceback(capsys, monkeypatch):
    from plait.apps import main

    monkeypatch.setenv("PLAIT_DEBUG", "1")
    assert main.run(["run", "q", "--planner", "nope"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_our_own_bugs_are_one_line_too(plait, monkeypatch, script):
    from plait.runtime.client import client

    def broken(*_: object, **__: object):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(client.AsyncOrchestrator, "submit", broken)
    done = plait("run", "q", "--script", script("a"), "--json")
    assert done.code == 1
    assert "ZeroDivisionError: of ours" in done.json["error"]
    assert "PLAIT_DEBUG" in done.json["error"]


def test_a_reader_that_goes_away_is_no_error(process, script):
    running = process("plugins", "--json")
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    with running.stderr as stderr:
        assert "Traceback" not in stderr.read()
    running.wait(timeout=300)
