"""Until a release is out no page says a command that cannot be done: plait is on no index yet."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from scripts import release

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "docs/howto") for page in sorted((ROOT / folder).glob("*.md"))),
]
INSTALLER = re.compile(r"(?:pip install|pip download|uvx|uv tool install|uv add|pipx install)\b(?P<words>[^`\n]*)")
NAMED = re.compile(r"(?:^|\s)'?plait(?:-\w+)?(?:\[[\w,-]+\])?'?(?=\s|$)")


def impossible(text: str) -> list[str]:
    """Return the commands of a text that install plait from an index which does not have it."""
    found = [match[0] for match in INSTALLER.finditer(text) if NAMED.search(match["words"])]
    return [words for words in found if "--find-links" not in words and "pip uninstall" not in words]


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("pip install plait", True),
        ("uvx --from plait plait run", True),
        ("pip install 'plait[serve]'", True),
        ("pip install -U plait-server", True),
        ("pip install '.[serve]' ./packages/plait-server", False),
        ("pip install --find-links dist 'plait[serve]'", False),
        ("pip install pydantic", False),
    ],
)
def test_a_command_that_cannot_be_done_is_found(text: str, refused: bool) -> None:
    assert bool(impossible(text)) == refused


@pytest.mark.skipif("(unreleased)" not in (ROOT / "CHANGELOG.md").read_text(), reason="plait is released")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_says_a_command_that_cannot_be_done(page: Path) -> None:
    left = impossible(page.read_text(encoding="utf-8"))
    allowed = ["pip install 'plait[otel]'"] if page.name == "workers.md" else []  # where plait is installed
    assert [words for words in left if words.strip() not in allowed] == []


def test_the_address_of_the_repository_is_written_from_one_place(tmp_path: Path) -> None:
    for name in (
        "pyproject.toml",
        "CITATION.cff",
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/pyproject.toml")),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = {file: file.read_text() for file in release.write_links(tmp_path)}
    assert len(before) == 7
    assert all(text == (ROOT / file.relative_to(tmp_path)).read_text() for file, text in before.items())
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace('repository = ""', 'repository = "https://example.org/plait"'))
    written = [file.read_text() for file in release.write_links(tmp_path)]
    assert all(
        text.count("https://example.org/plait\n") + text.count('"https://example.org/plait"\n') >= 1 for text in written
    )
    project.write_text(project.read_text().replace('repository = "https://example.org/plait"', 'repository = ""', 1))
    assert [file.read_text() for file in release.write_links(tmp_path)] == list(before.values())
