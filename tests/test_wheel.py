"""The wheel: what it holds, and that it works alone, beside folders with the names of this repository's."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import plait

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("orchestrator", "planners", "policies", "workers")
"""The roots that are shipped: each holds a part of the package `plait`."""
FOREIGN = (*FOLDERS, "tests", "experiments", "training")

TOOLS = '''
from plait import tool

@tool
def area(width: int, height: int) -> int:
    """Return the area of a rectangle."""
    return width * height
'''
PLAN = {
    "steps": [
        {"name": "ask", "op": {"kind": "think", "prompt": [{"kind": "text", "text": "Which rectangle?"}]}},
        {"name": "area", "op": {"kind": "call", "tool": "area", "args": {"width": 6, "height": 7}}},
        {"name": "all", "op": {"kind": "join"}, "needs": ["ask", "area"]},
    ],
    "output": "all",
}
SCRIPT = '''
from plait import Orchestrator, tool
from plait.workers.scripted import Reply, Scripted

@tool
def double(number: int) -> int:
    """Return twice a number."""
    return 2 * number

from plait import ToolCall, Plan, Step

with Orchestrator(workers=[Scripted([Reply(text="answer: 42")])], tools=[double]) as orchestrator:
    print(orchestrator.run("What is it?", planner="sample:n=3").answer)
    plan = Plan(steps=(Step(name="twice", op=ToolCall(tool="double", args={"number": 21})),), output="twice")
    print(orchestrator.run(plan=plan).unwrap())
'''


def shipped() -> set[str]:
    """Paths of the files that the wheel should hold, as they are in it."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *FOLDERS], cwd=ROOT, capture_output=True, check=True, text=True
    )
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    marks = {f"{root}/plait/__init__.py" for root in FOLDERS[1:]}  # for static tools alone
    kept = [name for name in names if not name.endswith((".pyi", "FORMAT.md")) and name not in marks]
    return {name.partition("/")[2] for name in kept}


def test_each_root_holds_a_part_of_plait() -> None:
    for root in FOLDERS:
        names = {path.name for path in (ROOT / root).iterdir() if path.suffix != ".dist-info"}
        assert names - {"__pycache__"} == {"plait"}
    assert {Path(part).resolve() for part in plait.__path__} >= {ROOT / root / "plait" for root in FOLDERS}


@pytest.mark.parametrize("first", FOLDERS[1:])
def test_another_root_before_the_first_is_refused_with_the_remedy(first: str) -> None:
    paths = os.pathsep.join(str(ROOT / root) for root in (first, *FOLDERS))
    command = [sys.executable, "-c", "import plait"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the root `orchestrator` has to come before this one" in done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the checkout, since a build writes into its source."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip("wheel", "--no-build-isolation", "-w", folder, folder / "source")
    (built,) = folder.glob("plait-*.whl")
    return built


def pip(*words: object) -> None:
    """Run pip without an index."""
    command = [sys.executable, "-m", "pip", *map(str, words), "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_holds_plait_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == shipped()
    assert not any(name.endswith(".safetensors") for name in names)
    assert wheel.stat().st_size <= 2_000_000


def test_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        assert "plait = plait.apps.main:main" in archive.read(f"{folder}/entry_points.txt").decode()
    assert metadata["Version"] == plait.__version__
    assert f"\nversion: {plait.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    links = [link.split(", ")[0] for link in metadata.get_all("Project-URL", [])]
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["plait"]["repository"]
    assert links == (["Documentation", "Repository", "Issues", "Changelog"] if repository else [])
    requires = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert not {"ray", "torch", "transformers", "vllm"} & set(requires)


def test_every_extra_that_is_named_is_there() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(path for f in FOLDERS for path in (ROOT / f).rglob("*.py")),
    ]
    for page in pages:
        for named in re.findall(r"(?:plait|'\.)\[([a-z,]+)\]", page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= extras, f"{page} names {named}"


# --- installed, in a folder beside foreign packages ---


@dataclass(frozen=True)
class Installed:
    """The wheel in a folder of its own, and a folder to work in."""

    target: Path
    work: Path

    def run(self, *words: object, code: int = 0) -> str:
        """Run a command in the working folder and return what it prints; with another `code`, the error."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PLAIT_", "PYTHON"))}
        environment |= {"PYTHONPATH": str(self.target), "COLUMNS": "100", "XDG_STATE_HOME": str(self.work / "state")}
        done = subprocess.run(
            list(map(str, words)), cwd=self.work, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel, and write packages with our folders' names that cannot be imported."""
    target, work = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("work")
    pip("install", "--target", target, wheel)
    for name in FOREIGN:
        (work / name).mkdir()
        (work / name / "__init__.py").write_text(f"raise RuntimeError('the foreign package {name} was imported')\n")
    (work / "tools.py").write_text(TOOLS)
    (work / "plan.json").write_text(json.dumps(PLAN))
    (work / "replies.json").write_text(json.dumps({"replies": [{"text": "answer: 42"}]}))
    (work / "script.py").write_text(SCRIPT)
    return Installed(target, work)


def test_nothing_else_is_installed(installed: Installed) -> None:
    there = {path.name for path in installed.target.iterdir()}
    assert there == {"plait", "bin", f"plait-{plait.__version__}.dist-info"}
    where = installed.run(sys.executable, "-c", "import plait; print(plait.__file__)")
    assert where.startswith(str(installed.target)), "this is another plait than the one just installed"


Command = Callable[[Installed], list[object]]
AS_MODULE: Command = lambda _: [sys.executable, "-m", "plait"]  # noqa: E731
AS_COMMAND: Command = lambda installed: [sys.executable, installed.target / "bin" / "plait"]  # noqa: E731


@pytest.mark.parametrize("command", [AS_MODULE, AS_COMMAND], ids=["python -m plait", "plait"])
def test_commands_work_beside_foreign_packages(installed: Installed, command: Command) -> None:
    start = command(installed)
    assert installed.run(*start, "--version") == f"plait {plait.__version__}\n"
    planned = installed.run(*start, "plan", "Why?", "--planner", "sample:n=4")
    assert "sample-1 .. sample-4 (4)" in planned
    given = ["--script", "replies.json", "--tools", "tools.py", "--plan", "plan.json", "--json"]
    answer = json.loads(installed.run(*start, "run", *given))
    assert answer["answer"] == ["answer: 42", 42]


def test_a_script_works_beside_foreign_packages(installed: Installed) -> None:
    assert installed.run(sys.executable, "script.py").splitlines() == ["42", "42"]


# --- without the extras ---

BLOCK = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {blocked!r} else find(name, path, target)

PathFinder.find_spec = find_spec
"""
EXTRAS = ("jinja2", "math_verify", "mcp", "opentelemetry", "prompt_toolkit", "pyarrow", "ray", "tokenizers", "torch",
          "transformers", "vllm")  # fmt: skip


@pytest.fixture(scope="module")
def slim(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The same as after `pip install plait`: no library of an extra can be imported."""
    target = tmp_path_factory.mktemp("slim")
    (target / "sitecustomize.py").write_text(BLOCK.format(blocked=EXTRAS))
    (target / "plait").symlink_to(installed.target / "plait")
    (installed.work / "rows.jsonl").write_text('{"text": "six?"}\n')
    return Installed(target, installed.work)


def test_without_extras_it_plans_runs_and_replays(slim: Installed) -> None:
    start = [sys.executable, "-m", "plait"]
    assert "sample-1" in slim.run(*start, "plan", "Why?", "--planner", "sample:n=3")
    given = ["--script", "replies.json", "--tools", "tools.py", "--plan", "plan.json", "--journal", "one.sqlite"]
    assert slim.run(*start, "run", *given).startswith('["answer: 42", 42]')
    assert slim.run(*start, "runs", "replay", "one.sqlite").startswith("identical")
    assert slim.run(*start, "runs", "view", "one.sqlite", "--format", "json", "--out", "trace.json")


@pytest.mark.parametrize(
    ("words", "code", "extra"),
    [
        ("run six?", 1, "cpu"),
        ("run six? --worker engine", 1, "cpu"),
        ("run six? --tools tools.py --set tool_actors=1 --script replies.json", 1, "ray"),
        ("run six? --script replies.json --set telemetry=true", 2, "otel"),
        ("run six? --script replies.json --mcp http://localhost:1/mcp", 2, "mcp"),
        ("batch rows.jsonl --out rows.parquet --script replies.json", 2, "batch"),
        ("job submit -- run six?", 1, "job"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(slim: Installed, words: str, code: int, extra: str) -> None:
    said = slim.run(sys.executable, "-m", "plait", *words.split(), code=code)
    assert f"'plait[{extra}]'" in said and "pip install" in said and "Traceback" not in said
