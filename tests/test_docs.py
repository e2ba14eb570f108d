"""Documents that cannot go stale unnoticed: the reference is current, links lead somewhere, commands work."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from scripts.checkout import python_path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for folder in ("", "docs", "docs/adr", "docs/howto", "docs/reference", "training", "experiments", "experiments/*")
    for path in ROOT.glob(f"{folder}/*.md" if folder else "*.md")
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
FENCE = re.compile(r"^(```+)(\w*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
PRINTS = re.compile(r"\s*^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""What stands right behind commands: what they print."""
NEEDS_MORE = re.compile(
    r"make |countdown --planner threads|--model|--worker ray|--worker engine|--worker http|base.url|BASE_URL|"
    r"plait (demo|job|repl)|"
    r"\b(RUN|3f9a\w*)\b|vllm|--older-than|--send|plait runs replay run|plait doctor +#|plait doctor$",
    re.MULTILINE,
)  # an engine, a server, a run that is only an example


WRITTEN_THEN = ("CHANGELOG.md", "LOG.md")  # about how things were
FOLDERS = "orchestrator|planners|policies|workers|tests|scripts|experiments|training|examples"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)")
MODULE = re.compile(r"`(plait\.(?:apps|core|machine|runtime|planners|policies|tasks|workers)(?:\.\w+)*)`")


def _tool(name: str = "reference") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _prose(text: str) -> str:
    """The text without code, in which brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "`code`", FENCE.sub("", text))


def _anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_the_reference_is_what_the_docstrings_say() -> None:
    made = _tool().pages()
    folder = ROOT / "docs" / "reference"
    assert sorted(made) == sorted(path.name for path in folder.glob("*.md")), "run `make docs`"
    for name, text in made.items():
        assert (folder / name).read_text(encoding="utf-8") == text, f"{name} is out of date: run `make docs`"
        assert str(ROOT) not in text


def test_the_reference_s_command_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        _tool().main(["--help"])
    assert not list(tmp_path.iterdir()), "and writes nothing"


def test_what_the_check_of_extras_imports_of_plait_is_there() -> None:
    modules = [name for named, _ in _tool("extras").CHECKS.values() for name in named.split(", ")]
    assert not [name for name in modules if name.startswith("plait.") and importlib.util.find_spec(name) is None]


def test_the_reference_has_every_public_name_and_plugin() -> None:
    import plait
    from plait import core
    from plait.runtime.plugins.loader import Plugins

    made = _tool().pages()
    said = made["sdk.md"] + made["core.md"]
    for name in {*plait.__all__, *core.__all__} - {"Config", "__version__"}:
        assert f"## {name}\n" in said
    for kind, (_, file, _) in _tool().KINDS.items():
        for name in Plugins().names(kind):
            assert f"## {name}\n" in made[file]


def test_the_diagram_of_states_is_what_the_table_says() -> None:
    tool = _tool("states")
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_modules_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lost = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    for dotted in MODULE.findall(text):
        module, _, name = dotted.rpartition(".")
        if importlib.util.find_spec(module) is None:
            module, _, name = module.rpartition(".")  # of a class's attribute
        found = importlib.import_module(module)
        if not hasattr(found, name) and importlib.util.find_spec(dotted) is None:
            lost.append(dotted)
    assert not lost or page.name in WRITTEN_THEN


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for groups in LINK.findall(_prose(page.read_text(encoding="utf-8"))):
        target = next(filter(None, groups))
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
            lost.append(target)
    assert not lost


def _scripts() -> Iterator[object]:
    """Every `sh` fence with a line that begins with `plait` and needs no engine, server or run of somebody's."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for number, fence in enumerate(FENCE.finditer(text)):
            lines = [line for line in fence[3].splitlines() if not NEEDS_MORE.search(line)]
            if fence[2] == "sh" and any(re.match(r"(\w+=\S+ )?plait ", line) for line in lines):
                prints = PRINTS.match(text, fence.end())
                script = "\n".join(lines)
                yield pytest.param(script, prints[1] if prints else "", id=f"{page.relative_to(ROOT)}-{number}")


def _pattern(line: str) -> re.Pattern[str]:
    """Return what a line of a page stands for: widths, seconds and ids differ, and `…` is any text."""
    escaped = re.escape(" ".join(line.split())).replace("…", ".*")
    return re.compile(re.sub(r"\d+\\\.\d+(?=\\ s\b)|\b[0-9a-f]{32}\b", r"[\\w.]+", escaped))


def not_printed(prints: str, out: str) -> str:
    """Return the first line of a page that did not come, in the order of the page; nothing if all came."""
    shown = iter([" ".join(line.split()) for line in out.splitlines()])
    for line in filter(lambda line: line.strip() not in ("", "…"), prints.splitlines()):
        if not any(_pattern(line).search(other) for other in shown):
            return line
    return ""


@pytest.mark.parametrize(("script", "prints"), list(_scripts()))
def test_commands_work_as_written_and_print_what_the_page_says(script: str, prints: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = tmp_path / "bin" / "plait"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m plait.apps.main "$@"\n')
    command.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PLAIT_", "OTEL_"))}
    environment |= {
        "PATH": f"{command.parent}:{Path(sys.executable).parent}:{environment['PATH']}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": python_path(ROOT),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert not not_printed(prints, f"{done.stdout}\n{done.stderr}"), done.stdout


@pytest.mark.parametrize(
    ("prints", "out", "lost"),
    [
        ("a  0.0 s\n…\nc", "a 1.25 s\nb\nc and more", ""),
        ("run …: done", "run 3f9a: done", ""),
        ("a\nb", "b\na", "b"),
        ("3 tok", "4 tok", "3 tok"),
    ],
)
def test_what_a_page_says_is_compared_line_by_line(prints: str, out: str, lost: str) -> None:
    assert not_printed(prints, out) == lost


def test_there_are_commands_to_try() -> None:
    assert len(list(_scripts())) >= 6
    assert sum(bool(script.values[1]) for script in _scripts()) >= 6, "few pages say what their commands print"  # type: ignore[attr-defined]
