"""Which of the machine's modules are loaded: the compiled ones while they fit their sources, else the sources."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

import pytest

from plait.compiled import STAMP, checksum, choose


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of two sources, one of which has a compiled module beside it that fits."""
    (tmp_path / "machine.py").write_text("rules = 1\n")
    (tmp_path / "records.py").write_text("records = 1\n")
    (tmp_path / f"machine{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    (tmp_path / STAMP).write_text(checksum(tmp_path))
    return tmp_path


def found(folder: Path) -> str:
    """Return the file that Python would load the module from."""
    spec = PathFinder.find_spec("machine", [str(folder)])
    sys.path_importer_cache.pop(str(folder))
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).name


def test_what_fits_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURE_PLAIT", raising=False)
    assert choose(folder)
    assert found(folder) == f"machine{EXTENSION_SUFFIXES[0]}"


@pytest.mark.parametrize("change", ["edited", "added", "no stamp", "PURE_PLAIT"])
def test_else_the_sources_are(folder: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.delenv("PURE_PLAIT", raising=False)
    match change:
        case "edited":
            (folder / "records.py").write_text("records = 2\n")
        case "added":
            (folder / "more.py").write_text("")
        case "no stamp":
            (folder / STAMP).unlink()
        case _:
            monkeypatch.setenv(change, "1")
    assert not choose(folder)
    assert found(folder) == "machine.py"


def test_without_a_build_nothing_is_touched(tmp_path: Path) -> None:
    (tmp_path / "machine.py").write_text("rules = 1\n")
    assert not choose(tmp_path)
    assert str(tmp_path) not in sys.path_importer_cache
