"""Every command says the same of the same steps, and nothing that a model wrote steers the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plait.apps.repl.state import ReplTurn
from plait.apps.repl.view import story
from plait.apps.trace.read import read_trace
from plait.runtime.plugins.loader import Plugins

EVIL = "\x1b]0;title\x07\x1b[2J\x1b]52;c;ZXZpbA==\x07\x1b]8;;http://evil\x1b\\\x9b31m\u202eanswer: 4"
FORBIDDEN = ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e")


@pytest.fixture
def stopped(plait, script):
    """The journal of a vote that is certain before two of its branches have ended, and all that was said of it."""
    quick = [{"text": "answer: 4", "times": 1} for _ in range(4)]
    slow = {"text": " ".join(f"w{i}" for i in range(200)), "tokens_per_second": 100}
    planner = "sample:n=6,early=true,answer.stream=true"
    words = ["run", "q?", "--planner", planner, "--script", script(*quick, slow), "--journal", "j.sqlite"]
    return plait(*words, "-v")


def test_a_step_cost_the_same_wherever_it_is_told(stopped, plait):
    assert stopped.code == 0, stopped.err
    trace = read_trace("j.sqlite", Plugins())
    spent = {step.name: step.tokens for step in trace.steps}
    assert sum(spent.values()) == trace.usage.completion
    lost = {step.name: step.tokens for step in trace.steps if step.state == "cancelled"}
    assert len(lost) == 2 and sum(lost.values()) == trace.usage.cancelled
    shown = plait("runs", "show", trace.run, "--from", "j.sqlite").out
    rows = plait("runs", "show", trace.run, "--from", "j.sqlite", "--json").json["steps"]
    plait("runs", "view", "j.sqlite", "--format", "json", "--out", "all.json")
    written = {step["name"]: step["usage"]["completion"] for step in json.loads(Path("all.json").read_text())["steps"]}
    assert written == {row["name"]: row["tokens"] for row in rows} == spent
    for name, tokens in spent.items():
        if tokens:
            assert re.search(rf"{name} \w+, {tokens} tokens", stopped.out), "-v"
            for tree in (stopped.out, shown):
                assert re.search(rf"{name} +{tokens} tok", tree), "the tree"


def test_a_reason_is_said_once_where_a_step_is_explained(stopped):
    trace = read_trace("j.sqlite", Plugins())
    turn = ReplTurn("q", steps={step.step: step for step in trace.steps})
    lost = next(step for step in turn.steps.values() if step.state == "cancelled")
    assert str(story(lost)).count(lost.reason) == 1
    assert stopped.out.count(turn.find("vote")[0].reason) <= 2, "once by run, once by -v"


def on_a_terminal(*words: str) -> str:
    """Run a command with a terminal for all of its streams, and return what that was sent."""
    main, side = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", *words], stdin=subprocess.DEVNULL, stdout=side, stderr=side, env=env
    )
    os.close(side)
    said = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not piece:
            break
        said += piece
    os.close(main)
    process.wait(300)
    return said.decode()


@pytest.mark.parametrize("options", [[], ["-v"], ["--json"]], ids=["plain", "all", "json"])
def test_a_terminal_is_not_steered_by_a_models_text(script, options):
    said = [
        on_a_terminal(
            *("run", f"q{EVIL}", "--task", "plain:where=text"),
            *("--script", script(EVIL), "--journal", "j.sqlite", *options),
        )
    ]
    assert "4" in said[0]
    if not options:  # what is kept of a run is the same, however it was told
        run = read_trace("j.sqlite", Plugins()).run
        said += [on_a_terminal("runs", *words, "--from", "j.sqlite") for words in (("show", run), ("list",))]
    for text in said:
        assert "Traceback" not in text
        assert not [each for each in FORBIDDEN if each in text], text


def test_a_pipe_gets_a_models_text_as_it_is(plait, script):
    done = plait("run", "q", "--task", "plain:where=text", "--script", script("a\x9b31mb"))
    assert "a\x9b31mb" in done.out


@pytest.mark.parametrize(
    ("words", "name"), [(["runs", "view"], "x.html"), (["runs", "view", "--format", "json"], "x.json")]
)
def test_files_with_prompts_are_their_owners_alone(stopped, plait, words, name):
    assert plait(*words, "j.sqlite", "--out", name).code == 0
    assert Path(name).stat().st_mode & 0o777 == 0o600
