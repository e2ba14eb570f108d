"""Reading a trace out of a journal: what the pictures and exports are made of, without a browser."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from plait.apps.trace.model import steps_in_detail
from plait.apps.trace.read import read_trace
from plait.core.errors import ConfigError
from plait.runtime.journal.journal import Journal
from plait.runtime.plugins.loader import Plugins

TOOLS = '''
from plait import tool

@tool
async def search(query: str) -> str:
    """Look something up."""
    if query == "Atlantis":
        raise ValueError("nothing is known of Atlantis")
    return {"Paris": "2100000 people", "Rome": "2750000 people"}[query]

@tool
async def ratio(a: str, b: str) -> float:
    """Divide the first number by the second."""
    return round(float(a.split()[0]) / float(b.split()[0]), 2)
'''
PLAN = (
    '1. search(query="Rome")\n2. search(query="Paris")\n3. ratio(a=$1, b=$2)\n4. search(query="Atlantis")\n'
    "5. join()<END_OF_PLAN>\n"
)


@pytest.fixture
def traced(plait, tmp_path):
    """Run a request and return its trace."""

    def run(*words):
        path = tmp_path / f"{len(list(tmp_path.glob('*.sqlite')))}.sqlite"
        plait("run", *words, "--journal", path)
        return read_trace(path, Plugins())

    return run


@pytest.fixture
def tools(tmp_path):
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS)
    return path


def test_a_vote_with_its_ballots(traced, script):
    replies = [{"text": f"I think answer: {value}", "times": 1} for value in (4, 5, 4)]
    trace = traced("what?", "--planner", "sample:n=3", "--script", script(*replies))
    assert (trace.status, trace.answer, trace.text, trace.planner) == ("done", "4", "what?", "sample:n=3")
    assert [step.name for step in trace.steps] == ["sample-1", "sample-2", "sample-3", "vote"]
    assert all(
        step.state == "done" and step.ended_at is not None and step.ended_at <= trace.seconds for step in trace.steps
    )
    (vote,) = trace.votes
    assert [(ballot.answer, len(ballot.steps), ballot.chosen) for ballot in vote.ballots] == [
        ("4", 2, True),
        ("5", 1, False),
    ]
    assert vote.verdict == "4"
    assert "2 of 3 votes" in vote.why
    assert not vote.early
    assert trace.steps[-1].needs == tuple(step.step for step in trace.steps[:3])


def test_tokens_add_up_to_the_runs_usage(traced, script):
    trace = traced("what is it?", "--planner", "sample:n=4", "--script", script("it is answer: 4"))
    for part in ("prompt", "cached", "completion"):
        assert sum(getattr(attempt.usage, part) for attempt in trace.attempts) == getattr(trace.usage, part) > 0
        assert sum(getattr(step.spent, part) for step in trace.steps) == getattr(trace.usage, part)


def test_a_step_tells_its_moves(traced, script):
    trace = traced("q", "--script", script({"text": "a b c", "delay": 0.05}))
    (step,) = trace.steps
    ready, running, done = step.moves
    assert (ready[1], running[1], done[1]) == ("ready", "running", "done")
    assert 0.0 <= step.entered <= ready[0] <= running[0] < done[0]


def test_branches_that_a_decided_vote_stops(traced, script):
    quick = [{"text": "answer: 4", "times": 1} for _ in range(3)]
    slow = {"text": "so long a thought answer: 5", "delay": 5}
    trace = traced("q", "--planner", "sample:n=5", "--policy", "consensus", "--script", script(*quick, slow))
    assert trace.answer == "4"
    stopped = [step for step in trace.steps if step.state == "cancelled"]
    assert len(stopped) == 2
    assert all("decided" in step.reason for step in stopped)
    attempts = [each for each in trace.attempts if each.step in {step.step for step in stopped}]
    assert [(each.ending, each.read) for each in attempts] == [("stopped", False)] * 2
    assert all(each.stopping is not None and "decided" in each.stop_reason for each in attempts)
    assert set(trace.votes[0].unheard) == {step.step for step in stopped}


def test_a_join_that_closes_early_says_so(traced, script, tmp_path):
    plan = {
        "steps": [
            *({"name": f"s{k}", "op": {"kind": "think", "prompt": f"ask {k}"}} for k in range(3)),
            {
                "name": "first",
                "op": {"kind": "join", "merge": {"name": "majority"}, "on_failure": "quorum", "quorum": 1},
                "needs": ["s0", "s1", "s2"],
            },
        ],
        "output": "first",
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    replies = script({"when": "ask 1", "text": "answer: 1"}, {"text": "answer: 0", "delay": 5})
    (vote,) = traced("q", "--plan", path, "--script", replies).votes
    assert vote.early
    assert [step.rpartition(":")[2] for step in vote.unheard] == ["s0", "s2"]
    assert [(ballot.answer, ballot.chosen) for ballot in vote.ballots] == [("1", True)]


def test_calls_of_tools_inside_an_expansion(traced, script, tools):
    replies = script({"when": "Observation", "text": "Thought: so.\nAction: Finish(1.31)"}, PLAN)
    trace = traced("how much larger?", "--planner", "llmcompiler", "--tools", tools, "--script", replies)
    steps = {step.name: step for step in trace.steps}
    plan = steps["plan-1"]
    details = {step["name"]: step for step in steps_in_detail(trace)}
    assert steps["1"].owner == steps["joiner-1"].owner == plan.step
    assert (plan.kind, plan.owner, plan.plan.expands, plan.state) == ("think", None, True, "done")
    assert plan.text == PLAN.partition("<END_OF_PLAN>")[0]
    assert plan.output == "1.31" != plan.value
    assert details["3"]["tool"] == "ratio"
    assert details["3"]["args"] == {"a": "2750000 people", "b": "2100000 people"}
    assert steps["3"].needs == (steps["1"].step, steps["2"].step)
    assert steps["3"].text == "1.31"
    assert steps["4"].state == "failed"
    assert "nothing is known of Atlantis" in steps["4"].reason
    assert steps["4"].failure is not None
    assert not any(vote.ballots for vote in trace.votes)  # a scratchpad takes all and chooses none
    assert {attempt.worker for attempt in trace.attempts} == {"scripted", "tools"}
    assert plan.step in trace.waited_for
    assert steps["joiner-1"].step in trace.waited_for
    assert steps["4"].step not in trace.waited_for


def test_each_try_is_an_attempt(traced, script):
    broken = {"text": "half a", "finish": "error", "retryable": True, "times": 1}
    trace = traced("q", "--script", script(broken, "answer: 4"))
    (step,) = trace.steps
    assert (step.tries, step.state) == (2, "done")
    assert [attempt.ending for attempt in trace.attempts] == ["failed", "succeeded"]
    assert [attempt.read for attempt in trace.attempts] == [False, True]
    assert trace.attempts[0].failure is not None
    assert trace.attempts[0].end <= trace.attempts[1].start


def test_a_continued_context_is_shown_as_such(traced, script, tmp_path):
    plan = {
        "steps": [
            {"name": "first", "op": {"kind": "think", "prompt": "Think of a number."}},
            {"name": "next", "op": {"kind": "think", "after": "first", "prompt": " Double it."}},
            {
                "name": "last",
                "op": {"kind": "think", "prompt": [{"kind": "text", "text": "Say "}, {"kind": "ref", "step": "next"}]},
            },
        ],
        "output": "last",
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    replies = script({"when": "Double", "text": " fourteen"}, {"when": "^Say", "text": " said"}, " seven it is")
    trace = traced("q", "--plan", path, "--script", replies)
    first, second, _ = trace.steps
    details = {step["name"]: step for step in steps_in_detail(trace)}
    assert second.after == first.step
    assert [(piece["kind"], piece["step"], piece["text"]) for piece in details["next"]["prompt"]] == [
        ("context", first.step, ""),
        ("text", None, " Double it."),
    ]
    assert [(piece["kind"], piece["step"], piece["text"]) for piece in details["last"]["prompt"]] == [
        ("text", None, "Say "),
        ("value", second.step, " fourteen"),
    ]
    # What the first call wrote stands once in the prefix tree, and the second read it.
    written = next(each for each in trace.segments if each.text == " seven it is")
    assert {contact.step: contact.generated > 0 for contact in written.contacts} == {
        first.step: True,
        second.step: False,
    }
    assert next(contact.cached for contact in written.contacts if contact.step == second.step) == 3
    assert trace.unit == "words"


def test_time_on_the_wall_clock(traced, script):
    before = time.time()
    trace = traced("q", "--script", script({"text": "a", "delay": 0.05}))
    assert before <= trace.wall(0.0) <= trace.wall(trace.seconds) <= time.time() + 0.01
    assert all(clock.exact for clock in trace.clocks)


def cut_after(path: Path, kind: str, out: Path) -> Path:
    """Copy a journal as a crash right after the first event of a kind would have left it."""
    shutil.copy(path, out)
    with sqlite3.connect(out) as db:
        (last,) = db.execute("SELECT min(seq) FROM events WHERE kind = ?", (kind,)).fetchone()
        db.execute("DELETE FROM events WHERE seq > ?", (last,))
        db.execute("UPDATE events SET actions = NULL WHERE seq >= ?", (last,))
        db.execute("DELETE FROM marks WHERE seq >= ?", (last,))
    db.close()
    return out


def test_a_journal_that_a_crash_cut_short(plait, script, tmp_path):
    whole = tmp_path / "whole.sqlite"
    plait("run", "q", "--planner", "sample:n=2", "--script", script("answer: 4"), "--journal", whole)
    trace = read_trace(cut_after(whole, "succeeded", tmp_path / "cut.sqlite"), Plugins())
    assert trace.status == "unfinished"
    assert [step.state for step in trace.steps] == ["done", "running", "waiting"]
    assert any("ends before the run did" in note for note in trace.notes)
    assert trace.attempts[1].end is None


def test_a_resumed_run_is_one_trace(plait, script, tmp_path):
    whole, replies = tmp_path / "whole.sqlite", script("answer: 4")
    plait("run", "q", "--planner", "sample:n=2", "--script", replies, "--journal", whole)
    cut = cut_after(whole, "succeeded", tmp_path / "cut.sqlite")
    with sqlite3.connect(cut) as db:
        db.execute("UPDATE runs SET status = NULL, ended = NULL")
        (run,) = db.execute("SELECT run FROM runs").fetchone()
    db.close()
    time.sleep(0.3)
    assert plait("runs", "resume", run, "--from", cut, "--script", replies, "--json").json["answer"] == "4"
    trace = read_trace(cut, Plugins())
    assert trace.status == "done"
    assert any("2 sessions" in note for note in trace.notes)
    first, second, again = trace.attempts
    assert (first.step, first.ending) == (trace.steps[0].step, "succeeded")
    assert (second.ending, second.read) == ("failed", False)
    assert (again.step, again.ending, again.read) == (second.step, "succeeded", True)
    on_the_wall = trace.wall(again.start) - trace.wall(second.end - 1e-6)
    assert on_the_wall - (again.start - second.end) > 0.25  # the pause, which the trace's own time leaves out


def test_one_run_of_several(plait, script, tmp_path):
    path = tmp_path / "two.sqlite"
    for question in ("first", "second"):
        plait("run", question, "--script", script("answer: 4"), "--journal", path)
    last = read_trace(path, Plugins())
    assert last.text == "second"
    assert last.others == 1
    first = Journal(path).runs()[0].run
    assert read_trace(path, Plugins(), first).text == "first"
    with pytest.raises(ConfigError, match="no run 'nobody'"):
        read_trace(path, Plugins(), "nobody")


def test_what_is_no_journal(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("shopping")
    with pytest.raises(ConfigError, match="not a journal"):
        read_trace(path, Plugins())


def test_no_slot_holds_two_attempts(traced, script):
    replies = [{"text": "answer: 4", "delay": 0.01 * (k % 3), "times": 1} for k in range(30)]
    trace = traced("q", "--planner", "sample:n=30", "--script", script(*replies))
    by_lane: dict[int, list] = {}
    for attempt in trace.attempts:
        by_lane.setdefault(attempt.lane, []).append(attempt)
    for attempts in by_lane.values():
        ordered = sorted(attempts, key=lambda each: each.start)
        assert all(one.end <= two.start for one, two in zip(ordered, ordered[1:], strict=False))
    assert len(by_lane) <= 30


@pytest.mark.parametrize("words", [("view",), ("view", "--format", "json")])
def test_a_run_with_a_merge_of_ones_own_is_shown_once_it_is_allowed(plait, process, script, tmp_path, words) -> None:
    name, journal, out = f"mine_{words[-1]}", tmp_path / "j.plait", tmp_path / "shown"
    assert plait("new", "merge", name).code == 0
    asked = ("2+2?", "--planner", "sample:n=2", "--merge", f"{name}.py:{name.title().replace('_', '')}")
    running = process("run", *asked, "--script", script("answer: 4"), "--journal", journal)
    assert running.wait(60) == 0, running.communicate()[1]
    done = plait("runs", *words, "--from", journal, "--out", out)
    assert done.code == 2 and f"--allow {name}:" in done.err, "it is not shown as a run that failed without a step"
    assert not out.exists()
    done = plait("runs", *words, "--from", journal, "--out", out, "--allow", tmp_path / asked[-1])
    assert done.code == 0 and "0 steps" not in done.out + done.err
