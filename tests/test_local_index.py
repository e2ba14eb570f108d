"""A folder of the built distributions stands in for the index: what installs plait from one installs it from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import release
from scripts.extras import RUN, give_files
from tests.test_reproducible import built

pytestmark = pytest.mark.slow
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each distribution's wheel and sdist."""
    folder = tmp_path_factory.mktemp("index")
    for source in release.distributions():
        place = tmp_path_factory.mktemp(source.name)
        built(source, place, touched=1_600_000_000)
        for file in (place / "out").iterdir():
            shutil.move(file, folder)
    return folder


def run(words: list[str | Path], folder: Path) -> str:
    """Run a command away from the checkout and return its output. Fails with its errors."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_plait_with_its_server_is_installed_and_answers(tool: str, index: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    run([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    install = [python, "-m", "pip", "install"] if tool == "pip" else [UV, "pip", "install", "--python", python]
    run([*install, "--find-links", index, "plait[serve]"], tmp_path)
    give_files(tmp_path)
    assert run([python.parent / "plait", *RUN.split()[1:]], tmp_path).startswith("6\n")
    run([python, "-c", "import plait_server.app"], tmp_path)


def test_uvx_runs_the_command_without_an_installation(index: Path, tmp_path: Path) -> None:
    words = [UV, "tool", "run", "--isolated", "--find-links", index, "--from", "plait", "plait", "--version"]
    assert run(words, tmp_path).strip() == f"plait {release.version()}"
