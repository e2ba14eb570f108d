"""`plait why` names the cause of a run that failed, in the words of whoever said so, and what to do."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.apps.commands.why import REMEDIES
from plait.core.errors import error_classes

Plait = Callable[..., Any]
TOOLS = """
import time
from plait import tool

@tool
def broken(n: int) -> int:
    \"\"\"Break.\"\"\"
    return 1 // (n - n)

@tool(timeout=0.05)
def slow(n: int) -> int:
    \"\"\"Take too long.\"\"\"
    time.sleep(0.3)
    return n

@tool
def odd(n: int) -> object:
    \"\"\"Return what is no JSON.\"\"\"
    return object()
"""
PLANNERS = """
from plait import Flow

class Raises(Flow):
    async def run(self, ctx, question):
        await ctx.think(question)
        raise LookupError("no such shelf")
"""


def call(tool: str) -> dict[str, Any]:
    return {"steps": [{"name": "a", "op": {"kind": "call", "tool": tool, "args": {"n": 1}}}], "output": "a"}


BY_PLAN = "--plan broken.json --tools my_tools.py"
FAULTS = {
    "a tool raises": (BY_PLAN, ["ZeroDivisionError", "my_tools.py", "tool-error"]),
    "a tool hangs": (BY_PLAN.replace("broken.json", "slow.json"), ["0.05 s", "tool-error"]),
    "a tool returns no JSON": (BY_PLAN.replace("broken.json", "odd.json"), ["JSON", "tool-error"]),
    "a model breaks": ("--script error.json", ["the GPU fell off", "engine-error"]),
    "every branch breaks": ("--script error.json --planner sample:n=3", ["3 steps (sample-1, sample-2, sample-3)"]),
    "a budget is used up": ("--script long.json --planner refine --set budget=tokens=3,strict=true", ["tokens"]),
    "a tool is not there": ("--plan broken.json --script long.json", ["broken"]),
    "a planner raises": ("--script long.json --planner my_planners.py:Raises", ["no such shelf", "my_planners.py"]),
    "no reply of a script": ("--script none.json", ["no reply of the script"]),
    "a server is not there": ("--base-url http://127.0.0.1:9/v1", ["127.0.0.1:9"]),
}
"""The words of a command that fails, and what has to be said of it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_cause_is_named_and_what_to_do(fault: str, plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / "state"))
    monkeypatch.setattr(logging.getLogger("plait"), "handlers", [])  # they write where an earlier test did
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_planners", raising=False)
    Path("my_tools.py").write_text(TOOLS)
    Path("my_planners.py").write_text(PLANNERS)
    for name in ("broken", "slow", "odd"):
        Path(f"{name}.json").write_text(json.dumps(call(name)))
    replies = {"error": {"text": "the GPU fell off", "finish": "error"}, "long": {"text": "one two three four five"}}
    for name, reply in replies.items():
        Path(f"{name}.json").write_text(json.dumps({"replies": [reply]}))
    Path("none.json").write_text(json.dumps({"replies": [{"when": "never asked", "text": "x"}]}))
    line, named = FAULTS[fault]
    words = line.split()
    done = plait("run", *([] if "--plan" in words else ["What?"]), *words)
    if done.code and "plait why" not in done.err:  # nothing was run: the command itself names the cause
        assert all(piece in done.err for piece in named if not piece.endswith("-error")), done.err
        return
    assert done.code or "partial" in done.out
    told = plait("why")
    assert told.code == 0
    for piece in named:
        assert piece in told.out, told.out
    assert "→ " in told.out or "planner" in fault, told.out


def test_a_script_is_not_looked_for_in_this_machine(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script says was written by its author: no check of an engine helps."""
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / "state"))
    Path("error.json").write_text(json.dumps({"replies": [{"text": "the GPU fell off", "finish": "error"}]}))
    assert plait("run", "What?", "--script", "error.json").code
    told = plait("why").out
    assert "change the replies in" in told and "error.json" in told, told
    assert "doctor" not in told, told


def test_every_remedy_is_of_a_code_that_there_is() -> None:
    assert set(REMEDIES) <= {error.code for error in error_classes()}


def test_of_a_run_that_went_well_the_time_is_shown(plait: Plait, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / "state"))
    run = plait("run", "hi", "--script", script("yes"), "--json").json["run"]
    shown = plait("why", run).out
    assert "done in" in shown and "critical path, 1 step:" in shown and "model writes" in shown, shown
    assert plait("why").code == 2
