"""A file that only looks like a journal is refused in words, soon, and in little memory."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from plait import Orchestrator
from plait.core.errors import ConfigError
from plait.runtime.journal.directory import entries
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.sqlite import LARGEST, packed, unpacked
from plait.workers.scripted import Reply, Scripted

_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return a sound journal of one run."""
    path = tmp_path / "20300101T000000-000000-good.plait"
    with Orchestrator(workers=[Scripted([Reply(text="4")])], journal=path) as plait:
        plait.run("2 + 2?")
    return path


def _view(db: sqlite3.Connection, name: str, columns: str) -> None:
    db.execute(f"DROP TABLE {name}")
    db.execute(f"CREATE VIEW {name} AS {_ENDLESS} SELECT {columns} FROM n WHERE i < 0")


def _bomb(db: sqlite3.Connection) -> None:
    squeezed = zlib.compressobj(9)
    text = b'{"kind": "' + b"x" * 1_000_000
    parts = [squeezed.compress(text), *(squeezed.compress(b"x" * 1_000_000) for _ in range(600)), squeezed.flush()]
    db.execute("UPDATE events SET event = ? WHERE seq = (SELECT max(seq) FROM events)", (b"".join(parts),))


CRAFTED: dict[str, Callable[[sqlite3.Connection], object]] = {
    "runs is a view": lambda db: _view(db, "runs", "i, i, i, i, i, i, i, i"),
    "marks is a view": lambda db: _view(db, "marks", "i, i"),
    "notes is a view": lambda db: _view(db, "notes", "i, i, i, i, i"),
    "a trigger": lambda db: db.execute("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM runs; END"),
    "another table": lambda db: db.execute("CREATE TABLE more (x)"),
    "a computed column": lambda db: db.execute("ALTER TABLE runs ADD COLUMN x AS (hex(zeroblob(100000000)))"),
    "another index": lambda db: db.execute("CREATE INDEX i ON events (length(event))"),
    "a long text": lambda db: db.execute(f"UPDATE runs SET text = CAST(zeroblob({LARGEST + 1}) AS TEXT)"),
    "a long event": _bomb,
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_file_is_refused_and_hides_no_other(journal: Path, tmp_path: Path, what: str):
    bad = tmp_path / "20200101T000000-000000-bad.plait"
    bad.write_bytes(journal.read_bytes())
    with sqlite3.connect(bad) as db:
        CRAFTED[what](db)
    db.close()
    run = next(entries(journal)).run
    here = os.fspath(Path(sys.modules["plait"].__path__[0]).parent)
    for words in (["list", "--from", tmp_path], ["show", run, "--from", bad], ["resume", run, "--from", bad]):
        done = subprocess.run(
            [sys.executable, "-m", "plait", "runs", *map(str, words)], capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": here, "COLUMNS": "300"}, preexec_fn=_little,
        )  # fmt: skip
        assert "Traceback" not in done.stderr and "MemoryError" not in done.stderr
        if words[0] == "list":
            assert done.returncode == 0 and done.stdout.count("done") >= 1, done.stderr
        else:
            assert done.returncode != 0
            assert any(each in done.stderr for each in ("is not a journal", "MiB", "damaged")), done.stderr


def _little() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


def test_a_reading_that_does_not_end_is_given_up(journal: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plait.runtime.journal.sqlite._STEPS", 0)
    monkeypatch.setattr("plait.runtime.journal.sqlite._STEPS_A_BYTE", 0)
    monkeypatch.setattr("plait.runtime.journal.sqlite._CHECK_STEPS", 1)
    with pytest.raises(ConfigError, match="does not end"):
        list(Journal(journal).rows())


def test_what_is_packed_can_be_read_and_nothing_longer_is_packed():
    text = json.dumps(["word"] * 100_000)
    assert unpacked(packed(text)) == text
    with pytest.raises(ValueError, match="more than a journal keeps"):
        packed("x" * (LARGEST + 1))
    with pytest.raises(ValueError, match="unpacked"):
        unpacked(zlib.compress(b"x" * (LARGEST + 1)))
    with pytest.raises(ValueError, match="cut off"):
        unpacked(zlib.compress(b"x" * 10_000)[:-6])
