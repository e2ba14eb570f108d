"""A journal of an older format is refused in words. `data/format-2.plait` was written by the first release."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from plait import Orchestrator
from plait.apps import main
from plait.core.errors import ConfigError
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.journal.resume import rebuild
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants

SAID = "format-2.plait has journal format 2, older than .*: read it with the version that wrote it"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(Path(__file__).parent / "data" / "format-2.plait", tmp_path))


def test_it_is_neither_replayed_nor_resumed(old: Path) -> None:
    with pytest.raises(ConfigError, match=SAID):
        replay(old, Plugins(), check=check_invariants)
    with pytest.raises(ConfigError, match=SAID):
        rebuild(old, "whichever", Plugins())


def test_nothing_is_written_to_it(old: Path) -> None:
    before = old.read_bytes()
    worker = Scripted([Reply(text="4")])
    with pytest.raises(ConfigError, match=SAID), Orchestrator(workers=[worker], journal=old) as plait:
        plait.run("What is 2 + 2?")
    assert old.read_bytes() == before


def test_a_session_of_an_older_format_in_a_file_of_today_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "runs.plait"
    with Orchestrator(workers=[Scripted([Reply(text="4")])], journal=path) as plait:
        plait.run("What is 2 + 2?")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE sessions SET header = json_set(header, '$.format', 4)")
    db.close()
    with pytest.raises(ConfigError, match="journal format 4, older than"):
        replay(path, Plugins())


def test_in_a_folder_it_is_named_and_passed_over(old: Path) -> None:
    unread: list[str] = []
    assert list(entries(old.parent, unread=unread)) == []
    assert len(unread) == 1 and "older than" in unread[0]


def test_commands_say_so(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["runs", "replay", str(old)]) == 2
    assert "older than" in capsys.readouterr().err
