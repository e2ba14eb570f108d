"""Every example runs as it stands, in a process of its own, and prints what it promises."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.checkout import python_path

ROOT = Path(__file__).resolve().parents[1]


def promised(path: Path) -> list[str]:
    """Return what an example promises to print, among others: comments `# prints "…"` at its end."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line.removeprefix("# prints ")) for line in lines if line.startswith("# prints ")]


PROMISES = {path.name: promised(path) for path in sorted((ROOT / "examples").glob("*.py"))}
ON_AN_ENGINE = ("quickstart.py", "ray_data_stage.py", "router_in_ray_serve.py")


def test_every_example_promises_something():
    assert PROMISES and all(PROMISES.values()), 'end each with comments `# prints "…"`'


@pytest.fixture(scope="module")
def output(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Run an example, once, and return what it prints."""

    @functools.cache
    def run(name: str) -> str:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PLAIT_")}
        done = subprocess.run(
            [sys.executable, root / "examples" / name],
            cwd=tmp_path_factory.mktemp("example"),
            env={**env, "PYTHONPATH": python_path(root)},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.engine) if name in ON_AN_ENGINE else name for name in PROMISES],
)
def test_an_example(output: Callable[[str], str], name: str):
    for words in PROMISES[name]:
        assert words in output(name)


def test_policies_are_compared_by_what_they_take(output: Callable[[str], str]):
    said = output("simulate_cluster.py")
    lines = [line.split(" s, ")[0].rsplit(maxsplit=1) for line in said.splitlines() if " busy, " in line]
    seconds = [(name.strip(), float(figure)) for name, figure in lines]
    assert [name for name, _ in seconds[:2]] == ["random", "critical-path"]
    assert seconds[1][1] < seconds[0][1]
    assert seconds[-1][1] < seconds[-2][1], "hedging helps beside a slow engine"


@pytest.mark.engine
def test_the_readmes_ten_lines(root: Path, tmp_path: Path):
    code = (root / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    script = tmp_path / "ten_lines.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": python_path(root)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "tokens from the prefix cache" in done.stdout
    assert "[2100000, 2750000]" in done.stdout
