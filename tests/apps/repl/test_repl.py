"""`plait repl` in a pipe: every command against the scripted worker, what is said of mistakes, and what leaves it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.checkout import python_path

ESCAPED = "it is \x1b[31m\x1b]0;owned\x07 \x9b2J \u202e 42"
TOOLS = '''
from plait import ToolContext, tool

@tool
async def deploy(where: str, ctx: ToolContext) -> str:
    """Deploy."""
    return "deployed: " + str(await ctx.ask(f"Deploy to {where}?", ["yes", "no"]))

@tool
def double(x: int) -> int:
    """Twice x."""
    return 2 * x
'''


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def talk(plait, script, monkeypatch):
    """Hold a conversation over a pipe."""

    def hold(*lines, options=(), replies=("answer: 42",)):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return plait("repl", "--script", script(*replies), *options)

    return hold


def test_a_question_is_answered_in_plain_lines(talk):
    done = talk("What is 6 times 7?")
    assert done.code == 0
    answer, cost = done.out.splitlines()
    assert answer == "42"
    assert re.fullmatch(r"done · [\d.]+ s · 2 tokens \(2 critical path\)", cost)
    assert done.err == ""


def test_no_escape_sequence_of_a_model_reaches_the_screen(talk):
    done = talk("q", "/branches", "/why think", "/save talk.md", replies=(ESCAPED,))
    assert not set(done.out + done.err) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert done.out.count("␛[31m") >= 3
    assert "\x1b" not in Path("talk.md").read_text(encoding="utf-8")


def test_no_escape_sequence_of_a_question_or_a_path_reaches_the_screen(talk):
    done = talk("\x1b[2Jq", "/history", "/branches", "/why \x1b[2J", "/load \x1b[2J", "/nope\x1b[2J")
    assert "\x1b" not in done.out + done.err
    assert "␛[2Jq" in done.out


def test_every_command_is_listed_and_explained(talk):
    from plait.apps.repl.commands import COMMANDS

    done = talk("/help", *(f"/help {name}" for name in COMMANDS))
    for name in "plan run branches why prune pause resume budget model planner policy view save load".split():
        assert name in COMMANDS
    for command in COMMANDS.values():
        assert f"/{command.name}" in done.out
        assert done.out.count(command.about) == 2
    assert done.err == ""


def test_branches_show_tokens_hits_confidence_and_reasons(talk):
    replies = ({"text": "answer: 1", "times": 2}, {"text": "boom", "finish": "error"})
    done = talk("q w", "/branches", options=("--planner", "sample:n=3"), replies=replies)
    rows = {line.split()[2]: line for line in done.out.splitlines() if line.startswith(("├─ ", "└─ "))}
    assert re.search(r"✓ sample-2 +2 tok .*2/2 cached  [\d.]+ s .* answer: 1$", rows["sample-2"])
    assert "✗" in rows["sample-3"] and "EngineError: the script answers" in rows["sample-3"]
    assert "2 of 2 votes" in rows["vote"]


def test_branches_of_an_earlier_run_by_number_and_by_id(talk):
    done = talk("first", "second", "/branches 1")
    (run,) = re.findall(r"^run (\w+)  first$", done.out, re.M)
    again = talk("first", f"/branches {run}")
    assert f"there is no run '{run}'" in again.err


def test_why_tells_a_steps_story_its_verdict_and_its_failure(talk):
    replies = ({"text": "answer: 1", "times": 2}, {"text": "boom", "finish": "error"})
    done = talk(
        "q", "/why vote", "/why sample-3", "/why sample-*", "/why", options=("--planner", "sample:n=3"), replies=replies
    )
    assert re.search(r"verdict +2 of 2 votes", done.out)
    assert re.search(r"reads +sample-1, sample-2, sample-3", done.out)
    assert re.search(r"\d s  running +on scripted", done.out)
    assert re.search(r"failure +EngineError: the script answers with an error", done.out)
    assert "1 step given up: EngineError" in done.out
    assert "there is no step 'nobody'" in talk("q", "/why nobody").err


def test_a_plan_is_shown_and_not_run(talk):
    done = talk("/plan what?", "/history", options=("--planner", "sample:n=4"))
    assert "0     sample-1 .. sample-4 (4)  think <= 512 tokens\n" in done.out
    assert "1     vote *                    join majority, best-effort" in done.out
    assert "width 4" in done.out
    assert "nothing has been asked yet" in done.out


def test_run_asks_again_and_a_planner_runs_a_plan(talk, tmp_path):
    path = tmp_path / "p.json"
    step = {"name": "a", "op": {"kind": "call", "tool": "double", "args": {"x": 4}}}
    path.write_text(json.dumps({"steps": [step], "output": "a"}))
    (tmp_path / "tools.py").write_text(TOOLS)
    done = talk("q", "/run", f"/planner fixed:path={path}", "q", options=("--tools", tmp_path / "tools.py"))
    assert done.out.splitlines()[:3:2] == ["42", "42"] and done.out.splitlines()[-2] == "8"
    path.write_text('{"steps": 1}')
    assert "p.json: " in talk(f"/planner fixed:path={path}", "q").err


def test_settings_are_shown_and_changed(talk):
    done = talk(
        "/planner", '/planner sample:n=2,merge={"name": "best-of"}', "/planner none", "/planner sample", "/n 3", "q",
        "/branches", "/n none", "/merge collect", "/merge none", "/task countdown", "/task none", "/planner none",
    )  # fmt: skip
    assert done.err == ""
    said = done.out.splitlines()
    assert said[:4] == [
        "planner: single",
        'planner: sample:n=2,merge={"name":"best-of"}',
        "planner: single",
        "planner: sample",
    ]
    assert "sample-3" in done.out
    assert said[-6:] == [
        "n: the planner’s",
        "merge: collect",
        "merge: the planner’s",
        "task: countdown",
        "task: plain",
        "planner: single",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/planner smple", "smple"),
        ("/planner sample:m=3", "there is no option 'm'"),
        ("/policy nobody", "nobody"),
        ("/policy -fifo", "'fifo' is not in use"),
        ("/task nothing", "nothing"),
        ("/merge nothing", "nothing"),
        ("/n many", "'many' is not a number of branches"),
        ("/budget tokns=3", "did you mean 'tokens'"),
        ("/budget tokens=-3", "tokens"),
        ("/model no_such=3", "no setting 'no_such'"),
        ("/model engines=0", "engines"),
        ("/prune x", "nothing runs"),
        ("/prune", "needs a step"),
        ("/pause", "nothing runs"),
        ("/resume", "nothing runs"),
        ("/why", "nothing has been asked yet"),
        ("/view", "nothing has been asked yet"),
        ("/save", "needs a file"),
        ("/save talk.exe", ".md or .json"),
        ("/save no/such/folder/talk.md", "cannot be written"),
        ("/load", "needs a file"),
        ("/load nowhere.json", "cannot be read"),
        ("/history x", "no number"),
        ("/brnches", "did you mean 'branches'"),
        ("/p", "/planner, /policy, /plan, /prune, /pause"),
        ("/help nothing", "no command /nothing"),
        ("/run", "nothing has been asked yet"),
    ],
)
def test_a_mistake_is_one_line_and_the_session_goes_on(talk, line, said):
    done = talk(line, "q")
    assert done.code == 0
    assert done.out.splitlines()[0] == "42"
    error, *rest = done.err.splitlines()
    assert not rest
    assert error.startswith("error: ")
    assert said in error


def test_a_setting_that_makes_no_sense_leaves_the_old_one(talk):
    done = talk("/planner sample:n=2", "/planner sample:n=0", "/planner", "/model engines=0", "q")
    assert done.out.splitlines()[1] == "planner: sample:n=2"
    assert "42" in done.out


def test_policies_are_added_and_taken_away(talk):
    done = talk("/policy fifo", "/policy +consensus", "/policy -fifo", "q", "/policy none")
    assert [line for line in done.out.splitlines() if "policies" in line] == [
        "policies: fifo",
        "policies: fifo consensus",
        "policies: consensus",
        "policies: none",
    ]


def test_a_budget_holds(talk):
    long = " ".join(map(str, range(50)))
    done = talk("/budget tokens=7 seconds=9", "/budget width=2", "q", "/budget none", "q", replies=(long,))
    said = done.out.splitlines()
    assert said[0] == "budget: tokens 7, seconds 9"
    assert said[1] == "budget: tokens 7, seconds 9, width 2"
    assert said[3].startswith("partial")
    assert " 7 tokens" in said[3]
    assert said[4] == "budget: no limits"
    assert " 50 tokens" in said[-1]


def test_the_model_is_swapped_and_the_conversation_goes_on(talk, script):
    other = script("answer: other", name="other.json")
    done = talk("q", "/model", f"/model script={other}", "q", "/history")
    said = done.out.splitlines()
    assert said[2] == "model: the script script.json on scripted"
    assert "model: the script other.json on scripted" in said
    assert said.count("other") == 1
    assert len([line for line in said if line.endswith("  q")]) == 2


def test_the_engine_stays_warm_between_requests(talk):
    done = talk("/talk off", "one two three", "one two three", "/branches", replies=("answer: 1",))
    assert "3/3" in done.out, "the second request did not find the first one's prefix"


def test_a_conversation_is_saved_and_loaded(talk):
    first = talk("what is\\", "it?", "/planner sample:n=2", "other", "/save talk.json", "/save talk.md", "/branches")
    text = Path("talk.md").read_text(encoding="utf-8")
    assert "## 1. what is it?" in text and "```\nwhat is\nit?\n```" in text
    assert "planner `sample:n=2`" in text
    second = talk("/load talk.json", "/branches", "/why sample-2", "/history")
    assert second.err == ""
    table = first.out[first.out.rindex("\nrun ") :]
    assert table in second.out
    assert "/load talk.json" not in second.out
    assert second.out.splitlines()[0].startswith("2 questions loaded")


KIND = '{"plait-conversation": 2'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"plait-conversation": 99}',
        KIND + "}",
        KIND + ', "turns": [1], "settings": {}}',
        KIND + ', "turns": [], "settings": {"planner": 3}}',
        KIND + ', "turns": [], "settings": {"nobody": 3}}',
        KIND + ', "turns": [], "settings": {"policies": ["a:b"]}, "x": [',
    ],
)
def test_a_damaged_conversation_is_refused_and_nothing_lost(talk, tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    done = talk("q", "/load bad.json", "/history")
    assert done.err.startswith("error: bad.json")
    assert "give a file that /save wrote" in done.err
    assert done.out.splitlines()[-1].endswith("  q")


def test_clear_forgets(talk):
    done = talk("q", "/clear", "/history")
    assert done.out.splitlines()[-1] == "nothing has been asked yet"


def test_a_run_is_traced(talk, tmp_path, monkeypatch):
    done = talk("q", f"/view --out {tmp_path / 'run.html'}")
    assert done.err == ""
    assert "<html" in (tmp_path / "run.html").read_text()[:2000]
    monkeypatch.setenv("PLAIT_JOURNAL", "off")
    off = talk("q", "/view")
    assert "nothing of this session is written down" in off.err


def test_a_tool_asks_the_next_line(talk, tmp_path):
    path = tmp_path / "p.json"
    step = {"name": "a", "op": {"kind": "call", "tool": "deploy", "args": {"where": "production"}}}
    path.write_text(json.dumps({"steps": [step], "output": "a"}))
    (tmp_path / "tools.py").write_text(TOOLS)
    done = talk(
        f"/planner fixed:path={path}",
        "q",
        "perhaps",
        "Yes",
        "/planner none",
        "q",
        options=("--tools", tmp_path / "tools.py"),
    )
    asked = "? Deploy to production? (yes, no)"
    assert [line for line in done.out.splitlines() if "eploy" in line] == [asked, asked, "deployed: yes"]
    assert "'perhaps' is no answer" in done.err
    assert done.out.splitlines()[-2] == "42"


def test_a_command_may_be_shortened_and_a_space_makes_a_question(talk):
    done = talk(" /quit", "/br", "/q", "never asked")
    assert done.out.splitlines()[0] == "42"
    assert "think" in done.out
    assert "never" not in done.out
    assert done.code == 0


def test_a_run_without_an_answer_leaves_with_0_unless_told(talk):
    boom = ({"text": "boom", "finish": "error"},)
    assert talk("q", replies=boom).code == 0
    assert "boom" in talk("q", replies=boom).err
    assert talk("q", options=("--strict",), replies=boom).code == 1
    assert talk("/nope", options=("--strict",)).code == 1
    assert talk("q", options=("--strict",)).code == 0


@pytest.mark.parametrize(
    "options", [("--planner", "nobody"), ("--task", "nobody"), ("--policy", "nobody"), ("--merge", "nobody")]
)
def test_a_session_with_plugins_that_are_not_there_does_not_begin(talk, options):
    done = talk("q", options=options)
    assert done.code == 2
    assert "nobody" in done.err
    assert done.out == ""


def test_a_worker_that_cannot_start_is_said_at_each_question_and_the_session_goes_on(plait, script, monkeypatch):
    lines = "q\n/model script=script.json worker=scripted\nq\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    script("answer: 42")
    done = plait("repl", "--base-url", "http://127.0.0.1:9/v1")
    assert done.code == 0
    assert "error: " in done.err
    assert done.out.splitlines()[-2] == "42"


def test_ctrl_c_gives_up_the_run_and_not_the_session(script, root):
    slow = {"when": "slow", "text": "one two three four", "tokens_per_second": 1}
    running = subprocess.Popen(
        [sys.executable, "-m", "plait.apps.main", "repl", "--script", str(script(slow, "answer: 42"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path(root)},
    )
    with running:
        assert running.stdin is not None and running.stdout is not None
        # The first answer marks that the engine is up; the slow question is then read at once.
        running.stdin.write("first\nslow\nquick\n")
        running.stdin.flush()
        assert running.stdout.readline() == "42\n"
        assert running.stdout.readline().startswith("done")
        time.sleep(1.0)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    said = out.splitlines()
    assert said[0].startswith("cancelled")
    assert said[-2] == "42"


def test_nothing_is_wider_than_80_columns_but_what_was_said(talk, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    long = "word " * 60
    done = talk("q " * 70, "/branches", "/history", "/help", options=("--planner", "sample:n=3"), replies=(long,))
    lines = [line for line in done.out.splitlines() if not line.startswith("word word word") and "␛" not in line]
    assert [line for line in lines if len(line) > 80] == []


def test_why_shows_the_ends_of_a_long_text_and_all_of_it_on_request(talk):
    words = [f"w{n}" for n in range(400)]
    short = talk("q", "/why think", replies=(" ".join(words),)).out.partition("a call of the model")[2]
    assert "w0 " in short and "w399" in short and "w200 " not in short
    assert "characters more, with --full" in short
    full = talk("q", "/why think --full", replies=(" ".join(words),)).out.partition("a call of the model")[2]
    assert " ".join(words) in full
