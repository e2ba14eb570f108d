"""Which of the machine's modules are loaded: the compiled ones while they fit their sources, else the sources."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
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


@pytest.mark.parametrize("change", ["another module", "another library", "one more module"])
def test_a_module_that_the_build_did_not_leave_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.delenv("PURE_PLAIT", raising=False)
    folder = tmp_path / "src" / "plait" / "machine"
    folder.mkdir(parents=True)
    suffix = EXTENSION_SUFFIXES[0]
    for name in ("machine", "records"):
        (folder / f"{name}.py").write_text("rules = 1\n")
        (folder / f"{name}{suffix}").write_bytes(b"made")
    (tmp_path / "src" / f"plait__mypyc{suffix}").write_bytes(b"made")
    (folder / STAMP).write_text(checksum(folder))
    assert choose(folder)
    match change:
        case "another module":
            (folder / f"records{suffix}").write_bytes(b"foreign")
        case "another library":
            (tmp_path / "src" / f"plait__mypyc{suffix}").write_bytes(b"foreign")
        case _:
            (folder / f"more{suffix}").write_bytes(b"foreign")
    assert not choose(folder)
    assert found(folder) == "machine.py"


def test_a_lone_module_without_a_stamp_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURE_PLAIT", raising=False)
    (tmp_path / "machine.py").write_text("rules = 1\n")
    (tmp_path / f"records{EXTENSION_SUFFIXES[0]}").write_bytes(b"foreign")
    assert not choose(tmp_path)
    assert found(tmp_path) == "machine.py"


MYPYCIFY = '''
import re
from pathlib import Path
from setuptools import Extension

C = """#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "%s", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_%s(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "rules", %s);
    return made;
}"""

def mypycify(arguments, **options):
    made = []
    for path in (Path(each) for each in arguments if each.endswith(".py")):
        source = path.with_suffix(".c")
        source.write_text(C % (path.stem, path.stem, re.search("[0-9]+", path.read_text()).group()))
        made.append(Extension("plait.machine." + path.stem, [str(source)]))
    return made
'''


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler: apt-get install gcc")
def test_a_build_that_fails_leaves_the_sources_in_force(tmp_path: Path, root: Path) -> None:
    """The compiler is optional, so its failure is no error; what it made before must not stay."""
    folder = tmp_path / "src" / "plait" / "machine"
    folder.mkdir(parents=True)
    shutil.copy(root / "setup.py", tmp_path)
    shutil.copy(root / "orchestrator" / "compiled.py", folder.parent)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "plait"\nversion = "1"\n[tool.setuptools]\npackage-dir = {"" = "src"}\n'
        'packages = ["plait", "plait.machine"]\n'
    )
    (tmp_path / "mypyc").mkdir()
    (tmp_path / "mypyc" / "build.py").write_text(MYPYCIFY)
    environment = {**os.environ, "COMPILE_PLAIT": "1", "PYTHONPATH": str(tmp_path)}
    environment.pop("PURE_PLAIT", None)

    def built(rules: int, **more: str) -> list[str]:
        for name in ("machine", "records"):
            (folder / f"{name}.py").write_text(f"rules = {rules}\n")
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=tmp_path, env={**environment, **more}, check=True, capture_output=True)
        code = (
            "import plait.compiled as c; print(c.choose()); from plait.machine import machine, records; "
            "print(machine.rules, records.rules)"
        )
        run = [sys.executable, "-c", code]
        there = {**environment, "PYTHONPATH": str(tmp_path / "src")}
        return subprocess.run(run, env=there, check=True, capture_output=True, text=True).stdout.split()

    assert built(1) == ["True", "1", "1"]
    assert built(2, CC="false") == ["False", "2", "2"]
    assert built(3) == ["True", "3", "3"]


RUN = """
import asyncio, sys
from plait import AsyncOrchestrator, Call, Join, Plan, Step, tool
from plait.compiled import choose
import plait.machine.machine as machine

@tool
async def twice(n: int) -> int:
    return 2 * n

steps = [Step(name="s0", op=Call(tool="twice", args={"n": 1}))]
steps += [Step(name=f"s{i}", op=Call(tool="twice", args={"n": {"$ref": f"s{i - 1}"}})) for i in range(1, 8)]
plan = Plan(steps=(*steps, Step(name="last", op=Join(), needs=("s6", "s7"))), output="last")

async def main():
    async with AsyncOrchestrator(workers=[], tools=[twice], journal=sys.argv[1]) as orchestrator:
        return await orchestrator.run(plan=plan)

print(choose(), machine.__file__.endswith(".py"), asyncio.run(main()).answer)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypyc") is None, reason="mypyc is not installed: pip install mypy")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler: apt-get install gcc")
def test_the_machine_compiles_and_runs(tmp_path: Path, root: Path) -> None:
    for name in ("src", "orchestrator", "planners", "policies", "workers"):
        made = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(root / name, tmp_path / name, symlinks=True, ignore=made)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(root / name, tmp_path)
    environment = {**os.environ, "COMPILE_PLAIT": "1"}
    environment.pop("PURE_PLAIT", None)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=tmp_path, env=environment, check=True, capture_output=True)
    run = [sys.executable, "-c", RUN, str(tmp_path / "journal")]
    there = {**environment, "PYTHONPATH": str(tmp_path / "src")}
    said = subprocess.run(run, cwd=tmp_path, env=there, check=True, capture_output=True, text=True).stdout
    assert said.split(maxsplit=2) == ["True", "False", "[128, 256]\n"]
