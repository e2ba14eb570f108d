"""`plait new` writes plugins that run at once, and `FILE.py:Class` names them wherever a person names a plugin."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import plait as sdk
from plait.apps.new.command import KINDS, tried
from plait.core import addresses
from plait.runtime.plugins.spec import own_code, untrusted
from plait.workers.scripted import Reply, Scripted

Plait = Callable[..., Any]


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of a test's folder are known to no other test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(addresses, "_allowed", {})
    monkeypatch.setattr(addresses, "_modules", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def written(kind: str, plait: Plait) -> str:
    done = plait("new", kind, f"my-{kind}")
    assert done.code == 0, done.err
    assert " ".join(tried(kind, f"my_{kind}.py", f"My{kind.capitalize()}")[3:]) in done.out
    return f"my_{kind}.py"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_runs_at_once_and_passes_its_test(kind: str, plait: Plait) -> None:
    file = written(kind, plait)
    done = plait(*tried(kind, file, f"My{kind.capitalize()}")[1:])
    assert done.code == 0, done.err
    sys.path.append(str(Path.cwd()))
    module = importlib.import_module(f"my_{kind}")
    getattr(module, f"test_my_{kind}")()


@pytest.mark.parametrize("spec", ["my_planner.py:MyPlanner", "./my_planner.py:MyPlanner", "my_planner:MyPlanner"])
def test_a_planner_is_named_by_its_file_or_its_module(spec: str, plait: Plait) -> None:
    written("planner", plait)
    done = plait("run", "hi", "--planner", spec, "--script", "my_planner.py", "--json")
    assert done.json["answer"] == "A better answer."


def test_files_are_named_within_options_in_settings_and_by_programs(plait: Plait) -> None:
    written("merge", plait)
    inner = plait("run", "hi", "--planner", "sample:n=3,merge=my_merge.py:MyMerge", "--script", "my_merge.py", "--json")
    assert inner.json["answer"] == "It is blue."
    Path("plait.toml").write_text('merge = "my_merge.py:MyMerge"\nplanner = "sample:n=3"\n')
    assert plait("run", "hi", "--script", "my_merge.py", "--json").json["answer"] == "It is blue."
    replies = [Reply(text="long answer", times=1), Reply(text="short")]
    with sdk.Orchestrator(workers=[Scripted(replies)]) as orchestrator:
        assert orchestrator.run("q", planner="sample:n=2", merge="my_merge.py:MyMerge").answer == "short"


STAFF = """
from plait import Agent, tool

@tool
def population(city: str) -> int:
    \"\"\"Return how many people live in a city.\"\"\"
    return 5

@tool
def height(city: str) -> int:
    \"\"\"Return how high a city lies.\"\"\"
    return 6

scout = Agent(name="scout", instructions="Look the city up.", tools=("population",))
"""


def test_an_agent_and_a_tool_of_a_file_are_named_as_plugins_are(plait: Plait, script: Any) -> None:
    Path("my_staff.py").write_text(STAFF)
    asked = script({"when": "Look the city up", "text": "It has five."}, "nobody told me who I am")
    done = plait(
        "run", "Rome?", "--planner", "my_staff.py:scout", "--tools", "my_staff.py", "--script", asked, "--json"
    )
    assert done.json["answer"] == "It has five."
    call = {"kind": "call", "tool": "population", "args": {"city": "Rome"}}
    Path("plan.json").write_text(json.dumps({"steps": [{"name": "a", "op": call}], "output": "a"}))
    assert plait("run", "--plan", "plan.json", "--tools", "my_staff.py:population", "--json").json["answer"] == 5
    assert "there are height" in plait("run", "--plan", "plan.json", "--tools", "my_staff.py:height").err
    Path("in.jsonl").write_text('{"text": "q", "planner": "my_staff:scout"}\n')
    addresses._allowed.clear()
    plait("batch", "in.jsonl", "--out", "out.jsonl", "--script", asked)
    assert json.loads(Path("out.jsonl").read_text())["status"] == "invalid"


def test_a_row_names_no_file(plait: Plait, script: Any) -> None:
    """What stands in data runs nothing: neither a file nor a module of this folder."""
    Path("my_evil.py").write_text("open('imported', 'w').close()\n")
    rows = '{"text": "q", "planner": "my_evil.py:X"}\n{"text": "q", "planner": "my_evil:X"}\n'
    Path("in.jsonl").write_text(rows)
    plait("batch", "in.jsonl", "--out", "out.jsonl", "--script", script("yes"))
    assert not Path("imported").exists()
    with untrusted(), pytest.raises(sdk.PlaitError), sdk.Orchestrator(workers=[Scripted([Reply()])]) as orchestrator:
        orchestrator.run("q", planner="my_evil.py:X")
    assert not Path("imported").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "q", "--planner", "nix.py:X"], "there is no file nix.py"),
        (["run", "q", "--planner", "my_broken.py:X"], "my_broken.py cannot be loaded: ZeroDivisionError"),
        (["run", "q", "--policy", "my_ok.py:Nix"], "there is no 'Nix' in my_ok"),
        (["run", "q", "--script", "my_ok.py"], "has no REPLIES"),
        (["run", "q", "--script", "my_broken.py"], "cannot be run: ZeroDivisionError"),
        (["new", "planner", "json"], "is the name of a module"),
        (["new", "planner", "a b!"], "is not a module name"),
        (["new", "planner", "my-ok"], "my_ok.py is there already"),
        (["new", "painter", "x"], "'painter'"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(words: list[str], says: str, plait: Plait, script: Any) -> None:
    Path("my_broken.py").write_text("1 / 0\n")
    Path("my_ok.py").write_text("")
    done = plait(*words, *([] if "new" in words or "--script" in words else ["--script", script("yes")]))
    assert done.code in (1, 2)
    assert says in done.err


def test_what_is_no_name_of_code_stays_as_it_is() -> None:
    for text in ("sample:n=8", "single:answer.template=see main.py:run for more", "plain:where=json", ""):
        assert own_code(text) == text
