"""Plugins of other distributions: real ones, installed into a folder on the path."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.core.errors import PluginError
from plait.core.ops import Plugin
from plait.runtime.plugins.loader import Plugins
from scripts.checkout import python_path

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.2"

[tool.setuptools]
py-modules = ["{module}"]
"""
GROUPS = """
[project.entry-points."plait.planners"]
twice_over = "twice:Twice"
broken = "twice:Missing"
single = "twice:Twice"
[project.entry-points."plait.policies"]
late = "twice:Late"
[project.entry-points."plait.merges"]
longest = "twice:Longest"
[project.entry-points."plait.tasks"]
shout = "twice:Shout"
[project.entry-points."plait.workers"]
echo = "twice:Echo"
"""
MODULE = '''
from plait.core import PlanningContext, Join, Merge, Plan, Planner, Policy, Step, Task, ModelCall, Verdict
from plait.workers.scripted import Scripted

class Twice(Planner):
    """Asks twice. And more."""

    times: int = 2

    def start(self, brief: PlanningContext) -> Plan:
        steps = tuple(Step(name=f"t{i}", op=ModelCall(prompt="again")) for i in range(self.times))
        needs = tuple(step.name for step in steps)
        return Plan(steps=(*steps, Step(name="all", op=Join(), needs=needs)), output="all")

class Late(Policy):
    """Changes nothing."""

class Longest(Merge):
    """Takes the longest."""

    def merge(self, branches, brief):
        return Verdict(text=max((each.text for each in branches), key=len))

class Shout(Task):
    """A question in capitals."""

    def prompt(self):
        return self.text.upper()

class Echo(Scripted):
    """Says it again."""
'''


def install(tmp_path: Path, name: str, module: str, source: str, groups: str) -> Path:
    """Build a distribution and install it into a folder of its own; return the folder."""
    project = tmp_path / name
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT.format(name=name, module=module) + groups)
    (project / f"{module}.py").write_text(source)
    target = tmp_path / f"{name}-installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", target, project], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("twice"), "plait-twice", "twice", MODULE, GROUPS)


@pytest.fixture
def plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugins]:
    monkeypatch.syspath_prepend(str(folder))
    yield Plugins()
    sys.modules.pop("twice", None)


@pytest.mark.parametrize(
    ("kind", "name", "cls"),
    [
        ("planner", "twice-over", "Twice"),
        ("planner", "twice_over", "Twice"),
        ("policy", "late", "Late"),
        ("merge", "longest", "Longest"),
        ("task", "shout", "Shout"),
        ("worker", "echo", "Echo"),
    ],
)
def test_an_entry_point_is_found_by_name(plugins: Plugins, kind: str, name: str, cls: str) -> None:
    assert plugins.class_of(kind, name).__name__ == cls  # pyright: ignore[reportArgumentType]
    assert plugins.distribution(kind, name) == "plait-twice 1.2"  # pyright: ignore[reportArgumentType]


def test_its_options_are_checked_as_ours_are(plugins: Plugins) -> None:
    with pytest.raises(PluginError, match="there is no option 'time'; did you mean 'times'"):
        plugins.planner(Plugin(name="twice-over", options={"time": 3}))


def test_one_of_ours_keeps_its_name(plugins: Plugins) -> None:
    assert plugins.class_of("planner", "single").__module__ == "plait.planners.votes.sample"
    assert plugins.distribution("planner", "single") is None


def test_a_wrong_entry_point_is_listed_with_the_reason_and_refused(plugins: Plugins) -> None:
    assert plugins.names("planner")["broken"].startswith("cannot be loaded: planner 'broken': there is no 'Missing'")
    with pytest.raises(PluginError, match="there is no 'Missing' in twice"):
        plugins.class_of("planner", "broken")


def test_an_unknown_name_is_told_of_them(plugins: Plugins) -> None:
    with pytest.raises(PluginError, match="did you mean 'twice-over'"):
        plugins.class_of("planner", "twice-ovr")


def test_two_distributions_with_one_name(plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = '[project.entry-points."plait.policies"]\nlate = "other:Late"'
    monkeypatch.syspath_prepend(str(install(tmp_path, "plait-other", "other", "", groups)))
    with pytest.raises(PluginError) as caught:
        plugins.class_of("policy", "late")
    said = str(caught.value)
    assert "plait-twice 1.2 (twice:Late)" in said and "plait-other 1.2 (other:Late)" in said
    assert said.endswith("name one of them as pkg.mod:Class")


def test_the_command_line_lists_and_plans_with_them(folder: Path, root: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(root, folder)}

    def plait(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "plait", *words], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = json.loads(plait("plugins", "--json"))
    about = listed["planners"]["twice-over"]
    assert (about["about"], about["distribution"]) == ("Asks twice.", "plait-twice 1.2")
    assert list(about["options"]) == ["times"]
    assert listed["planners"]["single"]["distribution"] is None
    assert "Asks twice. [from plait-twice 1.2]" in plait("plugins", "planner")
    assert "t2" in plait("plan", "why?", "--planner", "twice-over:times=3")


def test_names_that_nobody_has_do_not_have_everything_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may name what it likes: each unknown name cost 18 ms of the loop, most of them this."""
    reads: list[object] = []
    real = importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **asked: reads.append(asked) or real(**asked))
    plugins = Plugins()
    for number in range(20):
        with pytest.raises(PluginError, match="there is no"):
            plugins.planner(Plugin(name=f"nobody-{number}"))
        with pytest.raises(PluginError, match="there is no"):
            plugins.merge(Plugin(name=f"nobody-{number}"))
    assert len(reads) <= 1


def test_what_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match="there is no policy 'late-comer'"):
        Plugins().policy(Plugin(name="late-comer"))
    (tmp_path / "late_comer.py").write_text(MODULE)
    about = tmp_path / "late_comer-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: late-comer\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[plait.policies]\nlate_comer = late_comer:Late\n")
    assert type(Plugins().policy(Plugin(name="late-comer"))).__name__ == "Late"
    assert Plugins.distribution("policy", "late-comer") == "late-comer 1.0"
