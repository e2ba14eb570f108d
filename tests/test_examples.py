"""Every example runs as it stands, in a process of its own, and prints what it promises."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.checkout import python_path

PROMISES = {
    "city_tools.py": ["[17.5, 2750000]", "in parallel: True"],
    "route.py": [
        "42: probes: 4 of 4 probes agree",
        "42: vote: 2 of 4 probes agree",
        "42: serial: all 4 answers differ",
    ],
    "beam_search.py": ["42 by 4 of 4 votes", "18 steps; "],
    "decompose.py": ["2. Gute Nacht.", "3. (no answer: failed: EngineError", "no sign of several pieces: 1 request"],
    "llmcompiler.py": ["1844 m", "Mount Doom"],
    "own_flow.py": ["42\n", "2.think-1        done", "3.think-1        cancelled"],
    "own_planner.py": ["['They drink.', 'It carries.', 'They eat light.']", "before the outline was: True"],
    "own_policy.py": ["it is 42", "sample-2  done", "sample-1  cancelled sample-2 will do"],
    "own_task.py": ["Silent True verified; of 3 done, 1 right, 2 wrong"],
    "own_tools.py": ["the second, by 13.5 degrees", "in parallel: True"],
    "own_worker.py": ["SIX TIMES SEVEN done 9"],
    "quickstart.py": ["single: ", "threads: ", "tokens"],
    "agent.py": ["name='Rome' people=2750000", "in parallel: True"],
    "teams.py": [
        "debate: 42",
        "blackboard: 72 (found by worker-",
        "round 2: 2 changed, 2 to right, 0 to wrong",
        "one round",
    ],
    "workflow.py": ["Guests give the first room 4 of 5", "rates.2.rate   done"],
    "react.py": ["Rome\n", "call00002  done"],
    "speculate.py": ["depth 1: Rome is larger.", "3 of 3 drafted steps were right"],
    "partial_rollout.py": ["Rome: two of three lines found it. (3 reports of 3 lines)"],
    "refine.py": ["failed    draft-1-2", "42 (round 3 of 3", "53 of 79 tokens"],
    "sampling.py": [
        "single: 36, 1 calls",
        "sample: 42, 5 calls",
        "adaptive: 42, 16 calls",
        "deepprune: 42, 9 calls",
        "fixed: 42, 2 calls",
        "route: 42, 3 calls",
    ],
    "simulate_cluster.py": ["affinity + critical-path + hedge", "14 attempts lost, 0 tokens generated for nothing"],
    "skeleton.py": [
        "2. Stem carries\nIt lifts the water",
        "(3 points; 3 of 3 parts; 20 of 36 tokens",
        "the router says C, no list",
    ],
    "skeleton_graph.py": [
        "After 2 hours",
        "part-1  Read off the distances (difficulty 1, small)",
        "3 sub-problems in 2 waves",
    ],
    "threads_dialects.py": ["done  child-2   40 tokens", "answer 42: 66 of 82 tokens", "acceleration 0.20"],
    "evolve.py": ["n * (n + 1) // 2", "passes 3 of 3 public cases"],
    "choosing_effort.py": [
        "SSR: 8 (2 of 4 drafted",
        "Takeover: 8 (1 of 2 drafted",
        "Route: right after 2 calls",
    ],
    "code_search.py": ["return max(a, b)", "2 of 6 programs behave like it"],
    "tree_search.py": ["best-first: 42.", "stride: 42.", "beam: 42."],
    "think_summarize.py": ["cancelled path-3", "no (1 of 3 drafts and what 2 others had written", "a synthesis)"],
}
ON_AN_ENGINE = ("quickstart.py",)


def test_every_example_is_run(root: Path):
    assert sorted(path.name for path in (root / "examples").glob("*.py")) == sorted(PROMISES)


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
