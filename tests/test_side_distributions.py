"""The side distributions: found by entry points, named where they are missing, and never imported by plait."""

from __future__ import annotations

import importlib.metadata
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

import plait
from plait.apps import command_table, main
from plait.core.errors import PluginError
from plait.distributions import CONTENTS, EXTRAS, explain_missing
from plait.runtime.plugins import entry_points
from plait.runtime.plugins.entry_points import GROUPS
from plait.runtime.plugins.loader import PluginKind, Plugins
from scripts.checkout import ROOTS, SIDE
from tests.test_architecture import OF_SIDE, ROOT, imports, is_within, module_name, over, sources

PROJECTS = {root: tomllib.loads((ROOT / root / "pyproject.toml").read_text())["project"] for root in SIDE}
PLUGINS = [(kind, name) for kinds in CONTENTS.values() for kind in GROUPS for name in kinds.get(kind, ())]
COMMANDS = [words for kinds in CONTENTS.values() for words in kinds.get("command", ())]


def declared(project: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of plugins and commands that a distribution's entry points declare."""
    groups = project.get("entry-points", {})
    names = {kind: tuple(sorted(groups[group])) for kind, group in GROUPS.items() if group in groups}
    tables = [importlib.import_module(module) for module in groups.get(command_table.ENTRY_POINTS, {}).values()]
    words = tuple(sorted(words for table in tables for rows in table.COMMANDS.values() for words in rows))
    return {**names, **({"command": words} if words else {})}


def test_the_table_of_names_is_what_the_distributions_declare() -> None:
    assert CONTENTS == {project["name"]: declared(project) for project in PROJECTS.values()}


def test_the_extra_of_each_distribution_installs_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(CONTENTS)
    assert all(extras[extra] == [distribution] for distribution, extra in EXTRAS.items())


@pytest.mark.parametrize("root", SIDE)
def test_a_side_distribution_has_plaits_version_and_requires_it(root: str) -> None:
    project = PROJECTS[root]
    assert project["version"] == plait.__version__
    needs = {f"plait=={plait.__version__}", f"plait[regex]=={plait.__version__}"} & {*project["dependencies"]}
    assert needs or project["name"] == "plait-router", "only the router is of use without plait"
    assert (ROOT / root / project["name"].replace("-", "_") / "py.typed").is_file()
    about = importlib.metadata.distribution(project["name"])
    assert about.version == plait.__version__, "not installed: run `make setup`"


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_each_plugin_is_listed_and_loaded(kind: PluginKind, name: str) -> None:
    plugins = Plugins()
    assert name in plugins.listed(kind)
    assert plugins.class_of(kind, name).__module__.startswith("plait_")
    assert (plugins.distribution(kind, name) or "").endswith(plait.__version__)


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the entry points of the side distributions."""

    def others(**asked: Any) -> Any:
        kept = [each for each in importlib.metadata.distributions() if each.name not in CONTENTS]
        return importlib.metadata.EntryPoints(entry for each in kept for entry in each.entry_points).select(**asked)

    monkeypatch.setattr(importlib.metadata, "entry_points", others)
    caches = (entry_points._read, command_table._read)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
@pytest.mark.usefixtures("none_installed")
def test_a_missing_plugin_names_its_distribution(kind: PluginKind, name: str) -> None:
    with pytest.raises(PluginError) as caught:
        Plugins().class_of(kind, name.replace("-", "_"))
    assert str(caught.value) == explain_missing(kind, name)


def test_the_words_of_the_message() -> None:
    assert explain_missing("planner", "debate") == (
        "The planner `debate` is in plait-research, which is not installed. Install it: pip install 'plait[research]'."
    )
    assert explain_missing("merge", "debate") is None


@pytest.mark.parametrize("words", [*COMMANDS, *sorted({words.split()[0] for words in COMMANDS if " " in words})])
@pytest.mark.usefixtures("none_installed")
def test_a_missing_command_names_its_distribution(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    known = {row.split()[0] for rows in command_table.all_commands().values() for row in rows}
    if words in known:  # a first word of plait's own that begins commands of a side distribution
        return
    assert main.run(words.split()) == 2
    said = capsys.readouterr().err
    assert f"The command `{words}" in said and "which is not installed. Install it: pip install 'plait[" in said


def test_a_table_of_commands_imports_nothing_else() -> None:
    modules = [
        module
        for project in PROJECTS.values()
        for module in project.get("entry-points", {}).get(command_table.ENTRY_POINTS, {}).values()
    ]
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print(*[name for name in sys.modules if name.startswith('plait')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) == {*modules, *(module.partition(".")[0] for module in modules)}


def test_a_table_that_cannot_be_loaded_leaves_the_other_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = importlib.metadata.EntryPoint("broken", "no_such_module", command_table.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: importlib.metadata.EntryPoints([broken]))
    commands, _ = command_table._read.__wrapped__()
    assert "run" in commands["Start"]
    assert "warning: the commands of no_such_module cannot be loaded" in capsys.readouterr().err


@over(sources(*ROOTS))
def test_plait_imports_no_side_distribution(path: str) -> None:
    for module, line in imports(path):
        assert not module.startswith(OF_SIDE), f"{path}:{line} imports {module}: look it up by its entry point"


def test_the_files_that_the_router_shares_import_nothing_of_plait() -> None:
    hook = runpy.run_path(str(ROOT / "packages/plait-router/hatch_build.py"))
    for path in hook["FILES"]:
        assert not [module for module, _ in imports(path) if is_within(module, "plait")]
    taken = {module for module, _ in imports("packages/plait-router/plait_router/__init__.py") if "plait." in module}
    names = tuple(module_name(path) for path in hook["FILES"])
    assert all(module.startswith(names) for module in taken if module.startswith("plait."))


@over(sources(*SIDE))
def test_a_side_distribution_imports_plait_and_itself(path: str) -> None:
    own = module_name(path).split(".")[0]
    for module, line in imports(path):
        assert not module.startswith(OF_SIDE) or is_within(module, own), f"{path}:{line} imports {module}"
