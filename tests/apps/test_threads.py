"""Dialects of `threads` in `plait run`, `plan` and `doctor`, without a model; and warnings about a model."""

from __future__ import annotations

import pytest

LIST = "<Parallel>\n<Outlines>\n<Outline> 1: a</Outline>\n<Outline> 2: b</Outline>\n</Outlines>"
REPLIES = [
    {"when": "</Thread>\\n\\Z", "text": "</Parallel> \\boxed{42}"},
    {"when": "<Thread>\\n\\d:\\Z", "text": " six sevens</Thread>"},
    {"text": LIST},
]


@pytest.mark.parametrize("planner", ["threads:dialect=threadweaver", "threads:n=8,dialect=threadweaver"])
def test_a_dialect_runs_end_to_end_without_a_model(plait, script, planner):
    done = plait(
        "run", "What is 6*7?", "--planner", planner, "--worker", "scripted", "--script",
        script(*REPLIES), "--json",
    )  # fmt: skip
    assert done.code == 0
    assert (done.json["answer"], done.json["status"], done.json["warnings"]) == ("42", "done", [])
    figures = done.json["parallelism"]
    assert figures["activated"] is True and (figures["threads"], figures["rounds"]) == (2, 1)
    total, longest = done.json["total_tokens"], done.json["critical_path_tokens"]
    assert figures["acceleration"] == pytest.approx(1 - longest / total, abs=1e-4)
    assert figures["parallel"] == pytest.approx(total / longest, abs=1e-4)


def test_a_planner_that_spawns_nothing_says_nothing_of_it(plait, script):
    assert "parallelism" not in plait("run", "q", "--script", script("4"), "--json").json


def test_an_unknown_dialect_is_named_with_those_there_are(plait, script):
    done = plait("run", "q", "--planner", "threads:dialect=klingon", "--script", script("4"))
    assert done.code == 2 and "klingon" in done.err and "threadweaver" in done.err


def test_the_plan_of_a_dialect(plait):
    first = plait("plan", "25 6 3 4 -> 39", "--planner", "threads:dialect=apr", "--json").json["plan"]["steps"][0]
    assert first["op"]["prompt"][0]["text"].startswith("Moving to Node #0\nCurrent State: 39:[25, 6, 3, 4]")


def test_the_doctor_looks_at_the_models_tokenizer(plait):
    def look(*words):
        checks = plait("doctor", "--quick", "--json", *words).json["checks"]
        return [check for check in checks if check["name"] == "planner"]

    assert look() == []
    (own,) = look("--planner", "threads")
    assert own["grade"] == "ok"
    (other,) = look("--planner", "threads:dialect=threadweaver")
    assert other["grade"] == "warn" and "same token" in other["found"] and other["remedy"]
    (none,) = look("--planner", "threads:dialect=klingon")
    assert none["grade"] == "fail" and "there is no dialect" in none["found"]
