"""Nothing that a file or a model says is run: hostile journals, plans, rows and traces through every command that reads
them, in a process whose audit hook sees each import, each file opened for writing and each process started."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Orchestrator
from plait.core.errors import PluginError
from plait.core.ops import Join, ModelCall, Plugin
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.runtime.client.request_preparation import Live
from plait.workers.scripted import Reply, Scripted
from scripts.checkout import python_path

# Names that a file may try to have imported: a module beside the file, of the standard library, of ours, and none.
NAMES = (
    "evil:fn",
    "evil:Class",
    "os:system",
    "antigravity:fly",
    "subprocess:getoutput",
    "builtins:eval",
    "this:s",
    "evil",
    "../evil:fn",
    "pickle:loads",
)
# Where a journal or a row may name a plugin or a function.
TASKS = (
    *({"name": "plain", "options": {"where": "function", "function": name}} for name in NAMES),
    *({"name": "plain", "options": {"equal": name}} for name in NAMES[:3]),
    *({"name": name, "options": {}} for name in NAMES),
    *({"name": f"plain+{name}", "options": {}} for name in NAMES),
    *({"name": f"countdown+{name}", "options": {}} for name in NAMES[:3]),
)
MERGES = (
    *({"name": name, "options": {}} for name in NAMES),
    *({"name": "best-scored", "options": {"score": name}} for name in NAMES),
    *({"name": "best-scored", "options": {"function": name}} for name in NAMES),
    *({"name": "equivalent", "options": {"equal": name}} for name in NAMES[:3]),
    *({"name": "collect", "options": {"function": name}} for name in NAMES[:3]),
)
POLICIES = (
    *({"name": name, "options": {}} for name in NAMES),
    *({"name": "redundant", "options": {"embed": name, "stream": True}} for name in NAMES[:5]),
    *({"name": "redundant", "options": {"embedding": name}} for name in NAMES[:5]),
)
PLANNERS = tuple({"name": name, "options": {}} for name in NAMES)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of one small run that voted."""
    path = tmp_path / "benign.journal"
    with Orchestrator(workers=[Scripted(replies=[Reply(text="answer: 42")])], journal=path) as plait:
        assert plait.run("What is it?", planner="sample:n=2", policies=["consensus"]).answer == "42"
    return path


def rewritten(journal: Path, path: Path, change: Any) -> Path:
    """Copy a journal with each submission's request changed."""
    shutil.copy(journal, path)
    db = sqlite3.connect(path)
    rows = db.execute("SELECT seq, event FROM events WHERE kind = 'submitted'").fetchall()
    assert rows
    for seq, kept in rows:
        event = json.loads(kept if isinstance(kept, str) else zlib.decompress(kept))
        change(event)
        db.execute("UPDATE events SET event = ? WHERE seq = ?", (json.dumps(event), seq))
    db.commit()
    db.close()
    return path


def hostile_journals(journal: Path, folder: Path) -> Iterator[Path]:
    """Journals whose requests or plans name what shall not be imported."""

    def of(kind: str, spec: dict[str, Any]) -> Any:
        def change(event: dict[str, Any]) -> None:
            if kind == "merge":
                for step in event["plan"]["steps"]:
                    if step["op"]["kind"] == "join":
                        step["op"]["merge"] = spec
            elif kind == "policy":
                event["request"]["policies"] = [spec]
            else:
                event["request"][kind] = spec

        return change

    kinds = {"task": TASKS, "merge": MERGES, "policy": POLICIES, "planner": PLANNERS}
    for kind, specs in kinds.items():
        for number, spec in enumerate(specs):
            yield rewritten(journal, folder / f"{kind}-{number}.journal", of(kind, spec))


def spelled(spec: dict[str, Any]) -> str:
    """A plugin as a command line or a row spells it."""
    options = ",".join(f"{key}={value}" for key, value in spec["options"].items())
    return f"{spec['name']}:{options}" if options else spec["name"]


def commands(journal: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """What the child runs: first each command over benign files, then over hostile ones."""
    script = folder / "script.json"
    script.write_text(json.dumps({"replies": [{"text": "answer: $(touch pwned); __import__('evil')"}]}))
    benign = folder / "benign.jsonl"
    benign.write_text('{"text": "a"}\n')
    plan = Plan(steps=(Step(name="a", op=ModelCall(prompt="x")), Step(name="b", op=Join(), needs=("a",))), output="b")
    (folder / "plan.json").write_text(plan.model_dump_json())

    def reading(path: Path) -> Iterator[list[str]]:
        yield ["runs", "list", "--from", str(path)]
        yield ["runs", "show", run_of(path), "--from", str(path)]
        yield ["runs", "view", str(path), "--out", str(folder / "page.html"), "--no-open"]
        yield ["runs", "view", str(path), "--format", "json", "--out", str(folder / "trace.json")]
        yield ["runs", "view", str(path), "--format", "otel", "--out", str(folder / "trace.json")]
        yield ["runs", "view", str(path), "--format", "json", "--out", str(folder / "trace.json")]
        yield ["runs", "replay", str(path)]
        yield ["runs", "resume", run_of(path), "--from", str(path), "--script", str(script)]

    def batch(path: Path) -> list[str]:
        return ["batch", str(path), "--out", str(folder / "out.jsonl"), "--fresh", "--script", str(script)]

    def planned(path: Path) -> Iterator[list[str]]:
        yield ["plan", "x", "--plan", str(path)]
        yield ["simulate", "x", "--plan", str(path)]
        yield ["run", "x", "--plan", str(path), "--script", str(script)]

    for words in (*list(reading(journal))[:-1], batch(benign), *planned(folder / "plan.json")):
        yield {"words": words, "warm": True}
    writes = ["page.html", "trace.json", "out.jsonl", "out.jsonl.progress"]
    for path in hostile_journals(journal, folder):
        yield from ({"words": words, "writes": [*writes, *beside(path)]} for words in reading(path))
    rows = [{"text": "x", "task": spelled(spec)} for spec in TASKS]
    rows += [{"text": "x", "planner": "sample:n=2", "merge": spelled(spec)} for spec in MERGES]
    rows += [{"text": "x", "policies": [spelled(spec)]} for spec in POLICIES]
    rows += [{"text": "x", "planner": spelled(spec)} for spec in PLANNERS]
    rows += [{"text": "x", "task": spec} for spec in TASKS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield {"words": batch(folder / "rows.jsonl"), "writes": writes}
    for number, spec in enumerate(MERGES):
        path = folder / f"plan-{number}.json"
        bad = json.loads(plan.model_dump_json())
        bad["steps"][1]["op"]["merge"] = spec
        path.write_text(json.dumps(bad))
        yield from ({"words": words, "writes": writes} for words in planned(path))


def beside(path: Path) -> list[str]:
    """What SQLite may write beside a journal that it reads."""
    return [path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"]


def run_of(path: Path) -> str:
    """The run in a journal."""
    db = sqlite3.connect(path)
    try:
        return str(db.execute("SELECT run FROM runs").fetchone()[0])
    finally:
        db.close()


def test_no_file_and_no_text_has_anything_imported_written_or_started(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("open('pwned', 'w').close()\nfn = Class = print\n")
    listed = list(commands(journal, tmp_path))
    (tmp_path / "commands.json").write_text(json.dumps(listed))
    child = subprocess.run(
        [sys.executable, Path(__file__).with_name("reading_child.py"), tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": python_path(Path(__file__).parents[2], tmp_path), "PLAIT_DEBUG": ""},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    done = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(done) == sum(not each.get("warm") for each in listed)
    misdeeds = [f"{' '.join(each['words'])}: {did}" for each in done for did in each["did"]]
    assert not misdeeds, f"{len(misdeeds)}, such as:\n" + "\n".join(misdeeds[:20])
    assert not (tmp_path / "pwned").exists()
    raw = [each for each in done if "Traceback" in each["said"] or "a bug of plait's" in each["said"]]
    assert not raw, f"{len(raw)}, such as: {raw[0]}"


async def test_a_request_from_outside_allows_no_code_by_naming_it() -> None:
    """A caller's own arguments do: the difference is one field of `Live`, which the server sets."""
    named = Plugin(name="colorsys:rgb_to_hls")
    draft, join = Step(name="a", op=ModelCall(prompt="?")), Step(name="b", op=Join(merge=named), needs=("a",))
    plan = Plan(steps=(draft, join), output="b")
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="4")])], journal="off") as orchestrator:

        async def refusal(request: Request, plan: Plan | None, live: Live) -> str:
            with pytest.raises(PluginError) as refused:
                await (await orchestrator.submit(request, plan=plan, live=live))
            return str(refused.value)

        for asked in ((Request(text="2+2", planner=named), None), (Request(text="2+2"), plan)):
            assert "only the caller may allow" in await refusal(*asked, Live(outside=True))
        assert "only the caller may allow" not in await refusal(Request(text="2+2", planner=named), None, Live())
