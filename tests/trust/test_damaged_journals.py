"""A journal is readable or says why: damaged files through every command that reads one, and beside a sound one."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from plait import Join, ModelCall, Orchestrator, Plan, Ref, Step, ToolCall, tool
from plait.apps import main
from plait.core.ops import Text
from plait.workers.scripted import Reply, Scripted

NONSENSE = (None, 0, -1, 10**18, 1e308, "", "x", "\ud83d", "\0", [], {}, [[]], {"kind": "x"}, True, "9" * 5_000)
BAD_COLUMNS = (None, -1, 2**62, 1.5, "", "x", b"\xff\xfe", "\0", "9" * 5_000)


@tool
async def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("sound") / "sound.plait")


def written(path: Path) -> Path:
    """A journal with a vote, a plan with a tool, and a run that failed."""
    replies = [Reply(when="bad", text="out of paper", finish="error"), Reply(text="I think so.\nanswer: 42")]
    plan = Plan(
        steps=(
            Step(name="a", op=ToolCall(tool="double", args={"x": 2})),
            Step(name="b", op=ModelCall(prompt=(Text(text="of "), Ref(step="a")), stream=True)),
            Step(name="c", op=Join(), needs=("a", "b")),
        ),
        output="c",
    )
    with Orchestrator(workers=[Scripted(replies)], tools=[double], journal=path) as plait:
        assert plait.run("What is it?", planner="sample:n=3", policies=["consensus"]).answer == "42"
        assert plait.run("twice", plan=plan).status == "done"
        assert plait.run("bad").status == "failed"
    return path


def flipped(path: Path, random: Random) -> None:
    """Change some bytes, cut the file, or blank a part of it."""
    content = bytearray(path.read_bytes())
    match random.randrange(4):
        case 0:
            for _ in range(random.choice([1, 3, 30])):
                content[random.randrange(len(content))] = random.randrange(256)
        case 1:
            del content[random.randrange(len(content)) :]
        case 2:
            first = random.randrange(len(content))
            content[first : first + random.randrange(5_000)] = b""
        case _:
            first = random.randrange(len(content))
            length = min(random.randrange(1, 4_096), len(content) - first)
            content[first : first + length] = bytes(length)
    path.write_bytes(content)


def spoiled(value: Any, random: Random) -> Any:
    """JSON in which one value, somewhere, is another, missing, or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(sorted(value))
        match random.randrange(8):
            case 0:
                return {each: kept for each, kept in value.items() if each != key}
            case 1:
                return value | {f"{key}x": value[key]}
            case _:
                return value | {key: spoiled(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.85:
        place = random.randrange(len(value))
        if random.random() < 0.2:
            return [*value, *value]
        return [*value[:place], spoiled(value[place], random), *value[place + 1 :]]
    return random.choice(NONSENSE)


def rows_changed(path: Path, random: Random) -> None:
    """Change rows as a program with a fault would: values of JSON, columns, rows missing, doubled or out of order."""
    db = sqlite3.connect(path, isolation_level=None)
    with contextlib.closing(db), contextlib.suppress(sqlite3.IntegrityError):
        table, key, text = random.choice([("events", "seq", "event"), ("events", "seq", "event"),
                                          ("events", "seq", "actions"), ("sessions", "first", "header")])  # fmt: skip
        keys = [row[0] for row in db.execute(f"SELECT {key} FROM {table}")]
        chosen = random.choice(keys)
        match random.randrange(7):
            case 0:
                db.execute(f"DELETE FROM {table} WHERE {key} = ?", (chosen,))
            case 1:
                db.execute(f"UPDATE {table} SET {key} = ? WHERE {key} = ?", (random.choice([-1, 10**6]), chosen))
            case 2:
                column = random.choice(["run", "first", "created", "text", "planner", "status", "tokens", "ended"])
                db.execute(f"UPDATE runs SET {column} = ?", (random.choice(BAD_COLUMNS),))
            case 3:
                column = random.choice(["at", "run", "kind", "event"])
                db.execute(f"UPDATE events SET {column} = ? WHERE seq = ?", (random.choice(BAD_COLUMNS), chosen))
            case _:
                kept = db.execute(f"SELECT {text} FROM {table} WHERE {key} = ?", (chosen,)).fetchone()[0]
                value = json.loads(kept if isinstance(kept, str) else zlib.decompress(kept))
                for _ in range(random.choice([1, 1, 3])):
                    value = spoiled(value, random)
                db.execute(f"UPDATE {table} SET {text} = ? WHERE {key} = ?", (json.dumps(value), chosen))


def said(*words: object) -> tuple[int, str]:
    """Run a command; return its exit code and all that it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main.run([str(word) for word in words])
    return code, out.getvalue()


def check(number: int, sound: Path, folder: Path, ids: list[str]) -> None:
    """One mutant through every reader."""
    random = Random(number)
    bad = folder / "20200101T000000-000000-bad.plait"
    shutil.copy(sound, bad)
    spoil: Callable[[Path, Random], None] = flipped if number % 3 == 0 else rows_changed
    spoil(bad, random)
    run = random.choice(ids)
    script = folder / "script.json"
    for words in (
        ["runs", "list", "--from", bad],
        ["runs", "show", run, "--from", bad],
        ["runs", "view", bad, "--run", run, "--out", folder / "page.html", "--no-open"],
        ["runs", "view", run, "--from", bad, "--format", "json", "--out", folder / "trace.json"],
        ["runs", "replay", bad],
        ["runs", "resume", run, "--from", bad, "--script", script],
        ["runs", "list", "--from", folder],
    ):
        code, text = said(*words)
        assert "a bug of plait's" not in text and "Traceback" not in text, f"mutant {number}: {words[:2]}: {text}"
        assert code in (0, 1, 2), f"mutant {number}: {words[:2]}: {code}"
        assert code == 0 or text.strip(), f"mutant {number}: {words[:2]}: an error without words"
    assert code == 0, f"mutant {number}: a damaged file must not break the list: {text}"
    assert all(each in text for each in ids), f"mutant {number}: a sound run is missing: {text}"
    for each in folder.glob(f"{bad.name}*"):
        each.unlink()


def go(numbers: range, sound: Path, folder: Path) -> None:
    shutil.copy(sound, folder / "20300101T000000-000000-good.plait")
    (folder / "script.json").write_text('{"replies": [{"text": "answer: 42"}]}')
    db = sqlite3.connect(sound)
    with contextlib.closing(db):
        ids = [row[0] for row in db.execute("SELECT run FROM runs ORDER BY first")]
    assert len(ids) == 3
    for number in numbers:
        check(number, sound, folder, ids)


def test_damaged_journals(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    go(range(100), sound, tmp_path)


def test_a_list_names_the_file_that_cannot_be_read(sound: Path, tmp_path: Path) -> None:
    shutil.copy(sound, tmp_path / "20300101T000000-000000-good.plait")
    (tmp_path / "20200101T000000-000000-bad.plait").write_bytes(b"SQLite format 3\0" + bytes(4_000))
    code, text = said("runs", "list", "--from", tmp_path)
    assert code == 0
    assert "20200101T000000-000000-bad.plait" in " ".join(text.split()).replace(" ", ""), text
    assert text.count("done") == 2


@pytest.mark.parametrize("kind", [["dispatch"], {}, None, 1], ids=str)
def test_an_action_of_no_kind_is_damage(sound: Path, tmp_path: Path, kind: object) -> None:
    """A mutant of ten thousand: the kind of an action was a list, which no table of kinds can be asked for."""
    bad = tmp_path / "20200101T000000-000000-bad.plait"
    shutil.copy(sound, bad)
    with contextlib.closing(sqlite3.connect(bad, isolation_level=None)) as db:
        run = db.execute("SELECT run FROM runs ORDER BY first").fetchone()[0]
        db.execute("UPDATE events SET actions = ? WHERE actions IS NOT NULL", (json.dumps([[kind, 1, f"{run}:a"]]),))
    code, text = said("runs", "show", run, "--from", bad)
    assert code == 2 and "damaged" in text and "bug" not in text, text
