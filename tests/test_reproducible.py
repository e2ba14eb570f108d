"""Two builds of the same commit give the same bytes, whatever the folder and the files' times."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import release
from scripts.checkout import ROOTS

ROOT = Path(__file__).resolve().parent.parent
EPOCH_S = "1700000000"


def built(source: Path, place: Path, touched: float) -> dict[str, str]:
    """Copy sources, give all files one time, build sdist and wheel, and return their hashes by name."""
    copy = place / "source"
    names = [*ROOTS, "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"]
    if source != ROOT:
        names = [path.name for path in source.iterdir()]
    copy.mkdir(parents=True)
    for path in (source / name for name in names if name != "__pycache__"):
        if path.is_dir():
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    for path in copy.rglob("*"):
        os.utime(path, (touched, touched))
    code = "from hatchling import build\nbuild.build_sdist('../out')\nbuild.build_wheel('../out')"
    (place / "out").mkdir()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH_S}
    subprocess.run([sys.executable, "-c", code], cwd=copy, env=environment, check=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (place / "out").iterdir()}


@pytest.mark.parametrize("source", release.distributions(), ids=lambda path: "plait" if path == ROOT else path.name)
def test_two_builds_are_equal(source, tmp_path):
    first = built(source, tmp_path / "one", touched=1_600_000_000)
    second = built(source, tmp_path / "another-folder", touched=1_750_000_000)
    assert len(first) == 2
    assert first == second
