"""`plait config show`, `plait doctor --paths`, `plait clean`: where settings and files are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Plait = Callable[..., Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "cache" / "plait"


def test_a_setting_says_where_it_comes_from(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("plait.toml").write_text('planner = "sample:n=3"\nslots = 4\n[serve]\nport = 9\n')
    monkeypatch.setenv("PLAIT_SLOTS", "7")
    shown = plait("config", "show", "--json").json
    assert shown["slots"] == {"value": 7, "from": "environment variable PLAIT_SLOTS"}
    assert shown["planner"]["from"] == "plait.toml, setting 'planner'" and shown["planner"]["value"]["name"] == "sample"
    assert shown["seed"] == {"value": 0, "from": "default"}
    assert shown["serve.port"] == {"value": 9, "from": "table [serve] of the file"}
    line = next(line for line in plait("config", "show").out.splitlines() if line.startswith("slots "))
    assert line.split(maxsplit=2) == ["slots", "7", "environment variable PLAIT_SLOTS"]


def test_a_store_is_shown_without_its_password(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_JOURNAL", "postgresql://ann:secret@db/plait")
    done = plait("config", "show")
    assert "db/plait" in done.out and "secret" not in done.out


def test_files_are_listed_and_deleted_by_kind(plait: Plait, script: Any, cache: Path, tmp_path: Path) -> None:
    plait("run", "q", "--script", script("a"))
    state = tmp_path / "state" / "plait"
    (cache / "models" / "mine").mkdir(parents=True)
    for file in (cache / "models/mine/w", cache / "results.sqlite", cache / "results.sqlite-wal", state / "history"):
        file.write_text("12345")
    listed = plait("doctor", "--paths", "--json").json
    assert (listed["models"]["bytes"], listed["results"]["bytes"]) == (5, 5)
    assert listed["runs"]["path"] == str(state / "runs") and listed["runs"]["bytes"] > 0
    assert str(cache / "models") in plait("doctor", "--paths").out
    assert plait("clean", "results", "--json").json["bytes"] == 10 and (cache / "models").is_dir()
    assert plait("clean", "models").out == "1 deleted, 0.0 MB freed\n" and not (cache / "models").exists()
    plait("clean", "state")
    assert not (state / "history").exists() and plait("runs", "list", "--json").json["runs"], "runs are apart"
    assert plait("clean", "runs", "--keep", 0).code == 0 and plait("runs", "list", "--json").json["runs"] == []
    assert plait("clean", "models").out.startswith("0 deleted")


def test_runs_are_not_deleted_without_a_limit(plait: Plait) -> None:
    assert plait("clean", "runs").code == 2
    assert "takes --older-than" in plait("clean", "models", "--keep", 1).err
