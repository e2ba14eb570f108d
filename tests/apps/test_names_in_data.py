"""Names of Python code in data (rows, plans, journals, conversations) run nothing unless the caller allows them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.apps.repl.state import FORMAT
from plait.core import addresses

Plait = Callable[..., Any]


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that leaves a file behind when it is imported, and a function of it that may be named."""
    monkeypatch.syspath_prepend(tmp_path / "lib")
    (tmp_path / "lib").mkdir()
    trace = tmp_path / "imported"
    (tmp_path / "lib" / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(trace)!r}).write_text('x')\n"
        "from plait.core import Merge, Verdict\n"
        "def shout(text):\n    return text.upper()\n"
        "class First(Merge):\n"
        "    def merge(self, branches, task):\n        return Verdict(value='the first', why='by evil')\n"
        "def rank(step, view):\n    return 0.0\n"
    )
    monkeypatch.setattr(addresses, "_allowed", {})
    monkeypatch.setattr(addresses, "_modules", {})
    yield trace
    sys.modules.pop("evil", None)


FIELDS: list[dict[str, Any]] = [
    {"task": "plain:where=function,function=evil:shout"},
    {"task": "plain+evil:shout"},
    {"task": "evil:Task"},
    {"planner": "evil:shout"},
    {"planner": 'sample:merge={"name":"evil:First"}'},
    {"planner": "sample:merge=evil:First"},
    {"planner": "sample", "merge": "evil:First"},
    {"planner": "sample", "merge": "best-scored:function=evil:shout"},
    {"planner": "sample", "policies": ["evil:rank"]},
    {"planner": "sample", "policies": ["redundant:criterion=evil:shout"]},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_row_of_a_batch_imports_nothing(fields: dict[str, Any], evil: Path, plait: Plait, script: Any) -> None:
    Path("in.jsonl").write_text(json.dumps({"text": "q", **fields}) + "\n" + json.dumps({"text": "q"}) + "\n")
    plait("batch", "in.jsonl", "--out", "out.jsonl", "--script", script("answer: yes"), "--json")
    assert not evil.exists()
    hostile, innocent = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert hostile["status"] in ("invalid", "failed") and "add --allow evil:" in hostile["error"]
    assert innocent["answer"] == "yes"


def test_a_row_may_name_what_the_command_allows(evil: Path, plait: Plait, script: Any) -> None:
    Path("in.jsonl").write_text(json.dumps({"text": "q", "task": "plain:where=function,function=evil:shout"}))
    words = ["batch", "in.jsonl", "--out", "out.jsonl", "--script", script("yes"), "--json"]
    assert plait(*words, "--allow", "evil:shout").code == 0
    assert json.loads(Path("out.jsonl").read_text())["answer"] == "YES"


def test_a_commands_own_options_are_allowed_by_that(evil: Path, plait: Plait, script: Any) -> None:
    done = plait("run", "q", "--task", "plain:where=function,function=evil:shout", "--script", script("yes"), "--json")
    assert done.json["answer"] == "YES"


PLAN = {
    "steps": [
        {"name": "a", "op": {"kind": "think", "prompt": [{"kind": "text", "text": "q"}]}},
        {"name": "vote", "needs": ["a"], "op": {"kind": "join", "merge": {"name": "evil:First"}}},
    ],
    "output": "vote",
}


def test_a_file_with_a_plan_imports_nothing(evil: Path, plait: Plait, script: Any) -> None:
    Path("plan.json").write_text(json.dumps(PLAN))
    words = ["run", "q", "--plan", "plan.json", "--script", script("yes"), "--json"]
    done = plait(*words)
    assert done.code in (1, 2) and "add --allow evil:First" in done.err + done.out
    assert not evil.exists()
    assert plait(*words, "--allow", "evil:First").json["answer"] == "the first"


def forget(monkeypatch: pytest.MonkeyPatch, evil: Path) -> None:
    """Be another process: nothing is allowed, nothing is loaded."""
    monkeypatch.setattr(addresses, "_allowed", {})
    monkeypatch.setattr(addresses, "_modules", {})
    sys.modules.pop("evil", None)
    evil.unlink()


@pytest.mark.parametrize(
    "options",
    [
        ["--task", "plain:where=function,function=evil:shout"],
        ["--planner", "sample:n=2", "--merge", "evil:First"],
        ["--planner", "sample:n=2", "--policy", "evil:rank"],
    ],
    ids=["task", "merge", "policy"],
)
@pytest.mark.parametrize("command", ["view", "trace", "replay", "show", "resume"])
def test_a_journal_imports_nothing(
    options: list[str], command: str, evil: Path, plait: Plait, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plait("run", "q", *options, "--script", script("answer: yes"), "--journal", "j.sqlite", "--json")
    assert made.json["status"] == "done", made.err
    forget(monkeypatch, evil)
    run = made.json["run"]
    words: list[str] = {
        "view": ["runs", "view", "j.sqlite", "--out", "x.html"],
        "trace": ["runs", "view", "j.sqlite", "--format", "json", "--out", "x.json"],
        "replay": ["runs", "replay", "j.sqlite"],
        "show": ["runs", "show", run, "--from", "j.sqlite"],
        "resume": ["runs", "resume", run, "--from", "j.sqlite"],
    }[command]
    done = plait(*words)
    assert not evil.exists()
    if done.code:
        assert "add --allow evil:" in done.err, done.err
    assert plait("runs", "list", "--from", "j.sqlite").code == 0
    assert not evil.exists()
    address = next(each for each in ("evil:shout", "evil:First", "evil:rank") if each in " ".join(options))
    done = plait(*words, "--allow", address)
    assert done.code == 0, done.err


def test_a_conversation_that_the_repl_loads_imports_nothing(
    evil: Path, plait: Plait, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"planner": "sample:n=2", "merge": "evil:First"}
    Path("talk.json").write_text(json.dumps({"plait-conversation": FORMAT, "settings": settings, "turns": []}))
    lines = ["/load talk.json", "q", "q"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    done = plait("repl", "--plain", "--script", script("yes"))
    assert done.err.count("add --allow evil:First") == 1
    assert not evil.exists()
    assert done.out.count("yes") == 2, "the conversation goes on as before"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--tools", "tools.py"], "--tools "),
        (["--worker", "their_worker:Worker"], "--worker their_worker:Worker"),
    ],
)
def test_a_foreign_journal_chooses_no_code_to_run(
    settings: list[str], said: str, evil: Path, plait: Plait, script: Any, tmp_path: Path
) -> None:
    Path("tools.py").write_text(
        "from pathlib import Path\nfrom plait import tool\n"
        "Path('tools-ran').write_text('x')\n"
        "@tool\ndef double(x: int) -> int:\n    'Twice x.'\n    return 2 * x\n"
    )
    (tmp_path / "lib" / "their_worker.py").write_text(
        "from pathlib import Path\nfrom plait.workers.scripted import Reply, Scripted\n"
        "Path('worker-ran').write_text('x')\n"
        "class Worker(Scripted):\n    def __init__(self):\n        super().__init__([Reply(text='answer: 4')])\n"
    )
    words = settings if "--worker" in settings else [*settings, "--script", script("answer: 4")]
    run = plait("run", "q", *words, "--journal", "j.sqlite", "--json").json["run"]
    ran = Path("worker-ran" if "--worker" in settings else "tools-ran")
    ran.unlink()
    sys.modules.pop("their_worker", None)
    done = plait("runs", "resume", run, "--from", "j.sqlite")
    assert done.code == 2 and "j.sqlite names tools or servers" in done.err and said in done.err
    assert not ran.exists()
    assert plait("runs", "resume", run, "--from", "j.sqlite", *settings).code == 0
