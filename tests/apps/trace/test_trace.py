"""`plait runs view --format`: a run as OpenTelemetry spans, as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest

PLAN = '1. search(query="Rome")\n2. search(query="Paris")\n3. search(query="$1 or $2")\n4. join()<END_OF_PLAN>\n'
TOOLS = '''
from plait import tool

@tool
async def search(query: str) -> str:
    """Look something up."""
    return f"all about {query}"
'''


@pytest.fixture
def journal(plait, script, tmp_path):
    """The journal of a run with a plan, tools and a joiner."""
    tools = tmp_path / "my_tools.py"
    tools.write_text(TOOLS)
    replies = script({"when": "Observation", "text": "Thought: so.\nAction: Finish(done)"}, PLAN)
    path = tmp_path / "run.sqlite"
    done = plait(
        "run", "which?", "--planner", "llmcompiler", "--tools", tools, "--script", replies, "--journal", path, "--json"
    )
    assert done.json["answer"] == "done"
    return path


def test_spans_are_written_one_a_line(plait, journal, tmp_path):
    out = tmp_path / "spans.jsonl"
    done = plait("runs", "view", journal, "--format", "otel", "--out", out, "--json")
    spans = [json.loads(line) for line in out.read_text().splitlines()]
    assert done.json["spans"] == len(spans)
    assert Counter(span["name"].split()[0] for span in spans) == Counter(
        invoke_workflow=1, plan=2, step=5, chat=2, execute_tool=3
    )
    assert "which?" not in out.read_text()
    assert "all about" not in out.read_text()
    plait("runs", "view", journal, "--format", "otel", "--out", out, "--texts")
    assert "which?" in out.read_text()
    assert "all about Rome" in out.read_text()


def test_json_has_all_of_it(plait, journal, tmp_path):
    out = tmp_path / "all.json"
    plait("runs", "view", journal, "--format", "json", "--out", out)
    whole = json.loads(out.read_text())
    names = [step["name"] for step in whole["steps"]]
    assert names == [
        "plan-1",
        "1",
        "2",
        "3",
        "scratchpad-1",
        "joiner-1",
        "answer-1",
    ]
    assert whole["status"] == "done"


def test_a_run_is_found_by_its_id(plait, script, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = plait("run", "q", "--script", script("answer: 4"), "--json").json["run"]
    done = plait("runs", "view", "--format", "json", run, "--json")
    assert done.json["run"] == run
    assert done.json["file"] == f"plait-{run}.json"
    assert plait("runs", "view", "--format", "json", run[:5], "--json").json["run"] == run
    newest = plait("run", "again", "--script", script("answer: 5"), "--json").json["run"]
    assert (
        plait("runs", "view", "--format", "json", "--json").json["run"]
        == plait("runs", "view", "--json").json["run"]
        == newest
        != run
    )
    missing = plait("runs", "view", "--format", "json", "nobody")
    assert missing.code == 2
    assert "no run 'nobody'" in missing.err
    assert "journal" in missing.err


def test_options_that_do_not_go_together(plait, journal, tmp_path):
    assert "--send goes with --format otel" in plait("runs", "view", "--format", "json", journal, "--send").err
    assert "abc does not exist" in plait("runs", "view", "--format", "json", "x", "--from", "abc").err


def test_spans_without_opentelemetry(plait, journal, monkeypatch):
    for name in ("opentelemetry.sdk.trace", "opentelemetry.sdk"):
        monkeypatch.setitem(sys.modules, name, None)
    done = plait("runs", "view", journal, "--format", "otel")
    assert done.code == 2
    assert "plait[otel]" in done.err
    assert plait("runs", "view", "--format", "json", journal).code == 0
