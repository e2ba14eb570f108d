"""Every example runs as it stands, in a process of its own, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROMISES = {
    "llmcompiler.py": ["1844 m", "Mount Doom"],
    "own_planner.py": ["['They drink.', 'It carries.', 'They eat light.']", "before the outline was: True"],
    "own_policy.py": ["it is 42", "sample-2  done", "sample-1  cancelled sample-2 will do"],
    "own_tools.py": ["the second, by 13.5 degrees", "in parallel: True"],
    "quickstart.py": ["single: ", "threads: ", "tokens"],
    "simulate_cluster.py": ["fifo", "critical-path", "done, 8 attempts lost and tried again"],
}
ON_AN_ENGINE = ("quickstart.py",)


def test_every_example_is_run(root: Path):
    assert sorted(path.name for path in (root / "examples").glob("*.py")) == sorted(PROMISES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.engine) if name in ON_AN_ENGINE else name for name in PROMISES],
)
def test_an_example(root: Path, tmp_path: Path, name: str):
    env = {key: value for key, value in os.environ.items() if not key.startswith("PLAIT_")}
    done = subprocess.run(
        [sys.executable, root / "examples" / name],
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in PROMISES[name]:
        assert words in done.stdout
    assert "Traceback" not in done.stderr


def test_policies_are_compared_by_what_they_take(root: Path):
    done = subprocess.run(
        [sys.executable, root / "examples" / "simulate_cluster.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    seconds = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()[:2]}
    assert seconds["critical-path"] < seconds["fifo"]


@pytest.mark.engine
def test_the_readmes_ten_lines(root: Path, tmp_path: Path):
    code = (root / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    script = tmp_path / "ten_lines.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert "tokens from the prefix cache" in done.stdout
    assert "[2100000, 2750000]" in done.stdout
