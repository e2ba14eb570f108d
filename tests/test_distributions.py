"""What is beside the wheel of plait: the wheel of the models, needs that setup leaves out, the table of extras."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from plait.apps import main
from plait.core.errors import ConfigError, EngineError
from plait.runtime.client import models
from plait.workers._shared.resources import local_model
from scripts import extras
from scripts.checkout import ROOTS, SIDE
from scripts.left_out import leave_out
from tests.test_architecture import OF_SIDE, SHIPPED, imports, sources

ROOT = Path(__file__).resolve().parent.parent


def test_the_wheel_of_the_models_holds_them_all(tmp_path):
    source = tmp_path / "plait-models"
    shutil.copytree(ROOT / "packages/plait-models", source)  # a build leaves files in its folder
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("plait_models-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name).parent.name for name in archive.namelist() if name.endswith(".safetensors")}
        archive.extractall(tmp_path / "site")
    assert held == set(models.NAMES)
    code = "from plait.runtime.client import models; print(models.folder_of('countdown'), models.BUNDLED)"
    site = tmp_path / "site"
    for root in reversed(ROOTS):  # as a wheel installs it: the `__init__.py` of the first root is the package's
        shutil.copytree(ROOT / root / "plait", site / "plait", dirs_exist_ok=True)
    run = [sys.executable, "-P", "-c", code]
    said = subprocess.run(run, env={**os.environ, "PYTHONPATH": str(site)}, check=True, capture_output=True)
    folder = site / "plait_models" / "models"
    assert said.stdout.decode().split() == [str(folder / "countdown"), str(folder)]
    shutil.rmtree(site / "plait_models")
    blocked = [*run[:-1], f"import sys; sys.modules['plait_models'] = None\n{code}"]  # an editable install has it
    lost = subprocess.run(blocked, env={**os.environ, "PYTHONPATH": str(site)}, check=False, capture_output=True)
    assert b"the model countdown is not installed: pip install plait-models" in lost.stderr
    with pytest.raises(EngineError, match="`pip install plait-models` brings countdown"):
        local_model(str(folder / "countdown"))  # the default, which nobody named


def test_the_names_are_those_of_the_folders():
    there = {path.parent.name for path in (ROOT / "packages/plait-models/plait_models/models").glob("*/config.json")}
    assert set(models.NAMES) == there
    assert importlib.import_module("plait.runtime.client.models").BUNDLED.is_dir()


def test_a_model_that_is_not_there_is_refused_with_the_command_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "BUNDLED", tmp_path)
    with pytest.raises(ConfigError, match="pip install plait-models"):
        models.folder_of("countdown")


def test_needs_that_are_left_out_are_asked_for_no_more(tmp_path):
    def distribution(name: str, *needs: str) -> Path:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        head = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *needs])
        (folder / "METADATA").write_text(f"{head}\n\nRequires-Dist: torchvision is a word of the description\n")
        (folder / "RECORD").write_text(f"{folder.name}/METADATA,,\n")
        return folder / "METADATA"

    engine = distribution(
        "engine", "Requires-Dist: Torch_Vision", "Requires-Dist: torch==2", "Requires-Dist: torchvision2"
    )
    data = distribution("data", "Requires-Dist: numpy==1", 'Requires-Dist: x; extra == "y"')
    gone = leave_out(["torch-vision"], ["data"], [str(tmp_path)])
    assert len(gone) == 3
    assert "Requires-Dist: torch==2\nRequires-Dist: torchvision2\n\n" in engine.read_text()
    assert "Torch_Vision" not in engine.read_text()
    assert "Version: 1.0\n\nRequires-Dist: torchvision is a word" in data.read_text()
    assert leave_out(["torch-vision"], ["data"], [str(tmp_path)]) == []


def test_every_check_and_every_heavy_extra_is_one():
    assert set(extras.CHECKS) | set(extras.HEAVY) <= set(extras.extras())


COMMANDS = {command for _, command in extras.CHECKS.values() if "telemetry" not in command}  # which sends to a server


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_command_of_every_check_works_where_all_extras_are(command, tmp_path, monkeypatch, capsys):
    extras.give_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    program, *words = command.split()
    assert (program, main.run(words)) == ("plait", 0), capsys.readouterr().err


def normalised(requirement: str) -> str:
    """The name in a requirement, as the package index spells it: `ray` of `ray[default]>=2`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement)[0]).lower()


def test_every_library_that_is_imported_is_required() -> None:
    """A module may import a library of an extra only inside a function, or where the module is imported in one."""
    projects = {root: tomllib.loads((ROOT / root / "pyproject.toml").read_text())["project"] for root in (".", *SIDE)}
    required = {root: {normalised(name) for name in project["dependencies"]} for root, project in projects.items()}
    extras = {
        name: each
        for project in projects.values()
        for name, each in project.get("optional-dependencies", {}).items()
        if name not in ("dev", "study")
    }
    optional = {normalised(name) for each in extras.values() for name in each} | {"torch"}  # an engine's
    optional |= {normalised(name) for project in projects.values() for name in project["dependencies"]}
    optional |= {"pytest"}  # imports plait's fixtures itself
    optional |= {"opentelemetry"}  # one name for several distributions
    optional |= {"ag-ui", "pydantic-ai"}  # of ag-ui-protocol and pydantic-ai-slim, which are not installed here
    optional |= {"bfcl-eval"}  # pins what others need newer, so that it is no extra: installed without its dependencies
    optional |= {"hatchling"}  # builds the packages, and runs the router's build script
    optional |= {"verl"}  # needs CUDA: the trainer imports the adapter, plait installs no trainer
    distributions = importlib.metadata.packages_distributions()
    for path in sources(*SHIPPED):
        root = next((root for root in SIDE if path.startswith(root)), ".")
        for module, line in imports(path):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top == "plait" or module.startswith(OF_SIDE):
                continue
            providers = {normalised(name) for name in [top, *distributions.get(top, [])]}
            providers |= {"pydantic"} & {top.removesuffix("_core")}  # its other half
            required_here = required["."] | required[root] | optional
            assert providers & required_here, f"{path}:{line} imports {top}, which pyproject.toml does not name"
