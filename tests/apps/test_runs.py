"""`plait runs`: listed, shown, resumed, thrown away; and questions on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.runtime.journal import directory
from plait.runtime.journal.journal import Journal
from scripts.checkout import python_path

TOOLS = '''
import os, time
from plait import ToolContext, tool

@tool(side_effects=True)
def pay(n: int, ctx: ToolContext) -> int:
    """Pay."""
    with open(LEDGER, "a") as file:
        file.write(ctx.key.partition(":")[2] + "\\n")
    time.sleep(0 if os.path.exists(GO) else 60)
    return n

@tool
async def ask(ctx: ToolContext) -> str:
    """Ask."""
    return "said " + str(await ctx.ask("which one?", choices=["red", "blue"]))
'''


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # A run that another test left would be the only running one, which `runs show` without a name prefers.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "tools.py"
    head = f"LEDGER, GO = {str(tmp_path / 'ledger')!r}, {str(tmp_path / 'go')!r}\n"
    path.write_text(head + TOOLS)
    return path


def write(path: Path, *steps: dict) -> Path:
    path.write_text(json.dumps({"steps": list(steps), "output": steps[-1]["name"]}))
    return path


def call(name: str, tool: str, **args: object) -> dict:
    return {"name": name, "op": {"kind": "call", "tool": tool, "args": args}}


def killed_in(process: Callable, root: Path, tmp_path: Path, *words: object) -> None:
    running = process("run", *words)
    ledger, until = tmp_path / "ledger", time.monotonic() + 60
    while not (ledger.exists() and ledger.read_text().endswith("\n")):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def test_every_run_is_there_without_being_asked_for(plait, script, tmp_path):
    assert plait("runs", "list").out.startswith("no runs in ")
    for text in ("what is first?", "and the second"):
        assert plait("run", text, "--script", script("answer: 4"), "--planner", "sample:n=2").code == 0
    done = plait("runs", "list", "--json")
    second, first = done.json["runs"]
    assert (first["text"], second["text"]) == ("what is first?", "and the second")
    assert first["status"] == "done" and first["planner"] == "sample" and first["tokens"] == 4
    assert Path(first["journal"]).parent == tmp_path / "state" / "plait" / "runs"
    table = plait("runs", "list").out
    assert "what is first?" in table and first["run"] in table and "sample" in table
    assert len(plait("runs", "list", "--limit", 1, "--json").json["runs"]) == 1
    assert plait("runs", "list", "--status", "interrupted", "--json").json["runs"] == []


def test_a_run_is_shown(plait, script):
    plait("run", "the question", "--script", script("answer: 4"), "--planner", "sample:n=2")
    run = plait("runs", "list", "--json").json["runs"][0]["run"]
    done = plait("runs", "show", run[:4])
    assert done.code == 0
    assert all(words in done.out for words in ("the question", "sample-1", "vote", "2 of 2 votes", "\n4\n"))
    said = plait("runs", "show", run, "--json").json
    assert plait("runs", "show", "--json").json == said, "the newest, where none is named"
    assert said["answer"] == "4" and said["status"] == "done" and said["text"] == "the question"
    assert [step["name"] for step in said["steps"]] == ["sample-1", "sample-2", "vote"]


@pytest.mark.parametrize("policy", ["fail", "retry"])
def test_a_killed_run_is_resumed(plait, process, root, tools, tmp_path, policy):
    plan = write(tmp_path / "plan.json", call("a", "pay", n=5))
    killed_in(process, root, tmp_path, "--plan", plan, "--tools", tools, "--json")
    (entry,) = plait("runs", "list", "--json").json["runs"]
    assert entry["status"] == "interrupted"
    shown = plait("runs", "show", entry["run"])
    assert f"interrupted: `plait runs resume {entry['run']}` finishes it" in shown.out
    assert plait("runs", "show", entry["run"], "--json").json["status"] == "interrupted"
    (tmp_path / "go").touch()
    tools_elsewhere = plait("runs", "resume", entry["run"], "--set", f"on_uncertain_side_effect={policy}", "--json")
    if policy == "retry":
        assert tools_elsewhere.code == 0 and tools_elsewhere.json["answer"] == 5
    else:
        assert tools_elsewhere.code == 1 and "OutcomeUnknown" in tools_elsewhere.json["error"]
    assert (tmp_path / "ledger").read_text().split() == ["a"] * (2 if policy == "retry" else 1)
    assert plait("runs", "list", "--json").json["runs"][0]["status"] == ("done" if policy == "retry" else "failed")
    again = plait("runs", "resume", entry["run"], "--json")
    assert again.json["answer"] == (5 if policy == "retry" else None)
    assert plait("runs", "replay", entry["journal"]).out.startswith("identical")


def test_gc_spares_what_can_still_be_resumed(plait, process, script, root, tools, tmp_path):
    plan = write(tmp_path / "plan.json", call("a", "pay", n=5))
    killed_in(process, root, tmp_path, "--plan", plan, "--tools", tools, "--json")
    for text in "abc":
        plait("run", text, "--script", script("x"))
    assert plait("clean", "runs").code == 2
    assert "write 90m, 12h" in plait("clean", "runs", "--older-than", "soon").err
    assert plait("clean", "runs", "--older-than", "1d", "--json").json["deleted"] == []
    assert len(plait("clean", "runs", "--keep", 1, "--json").json["deleted"]) == 2
    left = plait("runs", "list", "--json").json["runs"]
    assert [entry["status"] for entry in left] == ["done", "interrupted"]
    assert plait("clean", "runs", "--keep", 0, "--interrupted").out.startswith("2 deleted")
    assert plait("runs", "list", "--json").json["runs"] == []


@pytest.mark.parametrize(("version", "says"), [(99, "upgrade plait"), (1, "older than")])
def test_a_journal_of_another_format_is_named(plait, script, tmp_path, version, says):
    plait("run", "q", "--script", script("x"))
    (path,) = (tmp_path / "state/plait/runs").glob("*.plait")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
        if version == 1:
            db.executescript("DROP TABLE runs; DROP TABLE notes;")
    for words in ((), ("--from", path)):
        done = plait("runs", "list", *words)
        assert path.name in done.out and says in done.out
    (problem,) = plait("runs", "list", "--json").json["unread"]
    assert path.name in problem and says in problem
    assert says in plait("runs", "show", "abc").err
    assert plait("clean", "runs", "--keep", 0).out.startswith("0 deleted"), "its runs may be wanted"


def test_empty_journals_are_collected(plait, script, tmp_path):
    plait("run", "q", "--script", script("x"))
    folder = tmp_path / "state/plait/runs"
    (folder / "20200101T000000-000000-aaaa.plait").touch()
    (folder / "20200101T000000-000000-bbbb.plait").touch()
    os.utime(folder / "20200101T000000-000000-aaaa.plait", (0, 0))
    assert "aaaa" not in plait("runs", "list").out, "nothing was written there"
    (gone,) = plait("clean", "runs", "--keep", 100, "--json").json["deleted"]
    assert gone.endswith("aaaa.plait"), "the other may be one that is just being made"


def test_a_pipe_is_no_journal(process, script, tmp_path):
    pipe = tmp_path / "pipe.plait"
    os.mkfifo(pipe)
    for words in (
        ("runs", "list", "--from", pipe, "--json"),
        ("clean", "runs", "--keep", 0, "--from", pipe, "--json"),
        ("run", "q", "--script", script("x"), "--journal", pipe, "--json"),
    ):
        out, err = process(*words).communicate(timeout=300)
        assert "clean" in words or "pipe or a device" in out, err
    assert pipe.exists()


def test_it_can_be_switched_off_and_put_elsewhere(plait, script, tmp_path, monkeypatch):
    assert plait("run", "q", "--script", script("x"), "--journal", "off").code == 0
    monkeypatch.setenv("PLAIT_JOURNAL", "off")
    assert plait("run", "q", "--script", script("x")).code == 0
    assert not (tmp_path / "state").exists()
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    monkeypatch.setenv("PLAIT_JOURNAL", str(elsewhere))
    assert plait("run", "q", "--script", script("x")).code == 0
    assert [path.suffix for path in elsewhere.iterdir()] == [".plait"]
    assert len(plait("runs", "list", "--json").json["runs"]) == 1
    assert plait("runs", "list", "--from", elsewhere, "--json").json["runs"]
    assert plait("runs", "list", "--from", "nowhere").code == 2


def test_a_default_folder_that_cannot_be_made_is_no_reason_not_to_run(process, script, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    running = process("run", "q", "--script", script("x"), "--json")
    out, err = running.communicate(timeout=300)
    assert json.loads(out)["answer"] == "x"
    assert "runs are not written down" in err and "journal=off" in err and "Traceback" not in err
    named = process("run", "q", "--script", script("x"), "--journal", tmp_path / "file" / "j", "--json")
    out, err = named.communicate(timeout=300)
    assert named.returncode == 2 and "cannot be" in json.loads(out)["error"], "one that was named must be there"


def test_ids_that_mean_nothing_or_too_much(plait, script):
    plait("run", "q", "--script", script("x"))
    done = plait("runs", "show", "zzz")
    assert done.code == 2 and "no run 'zzz'" in done.err
    with pytest.MonkeyPatch.context() as patch:
        entry = next(directory.entries(directory.default_folder()))
        patch.setattr(directory, "entries", lambda place, **_: [entry, entry])
        done = plait("runs", "resume", entry.run[:4])
    assert done.code == 2 and "begins the ids of 2 runs" in done.err


def test_the_folder_is_kept_within_bounds(plait, script, monkeypatch, tmp_path):
    monkeypatch.setattr(directory, "KEEP_FILES", 3)
    for _ in range(6):
        plait("run", "q", "--script", script("x"))
    assert len(list((tmp_path / "state/plait/runs").iterdir())) <= 4


def test_a_tool_that_asks_where_there_is_no_terminal(plait, tools, tmp_path):
    plan = write(tmp_path / "plan.json", call("a", "ask"))
    done = plait("run", "--plan", plan, "--tools", tools, "--json")
    assert done.code == 1
    assert "this is not a terminal" in done.json["error"]


def test_a_tool_that_asks_on_a_terminal(root, tools, tmp_path):
    plan = write(tmp_path / "plan.json", call("a", "ask"))
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "plait.apps.main", "run", "--plan", plan, "--tools", tools, "--json"],
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path(root), "TERM": "dumb"},
    )
    os.close(theirs)
    seen = b""
    for say in (b"green\n", b"2\n"):
        while not seen.endswith(b"> "):
            seen += os.read(ours, 1000)
        os.write(ours, say)
        seen += b"|"
    out, _ = running.communicate(timeout=300)
    os.close(ours)
    assert b"which one?" in seen and b"1  red" in seen and b"'green' is no answer" in seen
    assert json.loads(out)["answer"] == "said blue"


def test_settings_are_remembered_without_secrets(plait, script, tmp_path):
    plait("run", "q", "--worker", "scripted", "--script", script("x"), "--seed", 7)
    (entry,) = plait("runs", "list", "--json").json["runs"]
    ((_, header),) = Journal(entry["journal"]).sessions()
    assert header.meta["settings"]["seed"] == 7
    assert Path(header.meta["settings"]["script"]).is_absolute()
