"""News fragments and the changelog: each is well formed, and a release finds its section."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import plait
from scripts import lower_bounds, release

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
KINDS = [each["directory"] for each in SETTINGS["type"]]
FRAGMENTS = sorted(path for path in (ROOT / "changes").iterdir() if path.name not in {"README.md", "template.jinja"})
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
MAX_FRAGMENT_CHARS = 600
MAX_FIRST_RELEASE_LINES = 60


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_a_sentence_or_two_of_a_kind_that_the_changelog_has(path):
    assert re.fullmatch(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md", path.name), (
        f"name it SLUG.{'|'.join(KINDS)}.md"
    )
    text = path.read_text()
    assert 0 < len(text.strip()) <= MAX_FRAGMENT_CHARS, "one or two sentences: the outcome first, then what to do"
    assert not text.lstrip().startswith(("-", "*", "#")), "plain sentences: the changelog adds the bullet"
    assert text.rstrip().endswith((".", "`", ")")), "a whole sentence"


def test_the_section_of_this_version_is_short_enough_to_be_read():
    (section,) = re.findall(
        rf"^## {re.escape(plait.__version__)} \(.*?(?=^## |\Z)", CHANGELOG, re.MULTILINE | re.DOTALL
    )
    assert "[Unreleased]" not in CHANGELOG
    if plait.__version__ == "0.1.0":
        assert len(section.splitlines()) <= MAX_FIRST_RELEASE_LINES


def test_links_of_the_changelog_and_the_fragments_lead_to_files():
    for path in (ROOT / "CHANGELOG.md", *FRAGMENTS):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
            assert target.startswith("http") or (ROOT / target).exists(), f"{path.name}: {target}"


def test_towncrier_puts_fragments_under_the_new_version(tmp_path):
    pytest.importorskip("towncrier", reason="pip install towncrier")
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    (tmp_path / "changes" / "quick-thing.added.md").write_text("`plait quick` answers at once.\n")
    command = [
        sys.executable,
        "-m",
        "towncrier",
        "build",
        "--yes",
        "--version",
        "9.9.9",
        "--date",
        "2030-01-02",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    written = (tmp_path / "CHANGELOG.md").read_text()
    assert written.startswith(CHANGELOG.partition("\n## ")[0])
    assert written.index("## 9.9.9 (2030-01-02)") < written.index(f"## {plait.__version__} (")
    notes = release.release_notes(written, "9.9.9")
    assert "### Added\n\n" in notes
    assert "\n- `plait quick` answers at once.\n" in notes
    assert "quick-thing" not in notes


def test_a_release_needs_a_section_with_a_date():
    text = "# Changelog\n\n## 0.2.0 (2030-01-02)\n\n### Added\n\n- New.\n\n## 0.1.0 (unreleased)\n\n- Old.\n"
    assert release.release_notes(text, "0.2.0") == "### Added\n\n- New.\n"
    with pytest.raises(SystemExit, match=r"dates 0\.1\.0 as 'unreleased'"):
        release.release_notes(text, "0.1.0")
    with pytest.raises(SystemExit, match=r"no section for 0\.3\.0"):
        release.release_notes(text, "0.3.0")


def test_a_release_builds_each_distribution_of_this_version():
    assert release.version() == plait.__version__
    assert release.distributions() == [
        ROOT,
        *sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml")),
    ]


def test_every_dependency_and_extra_has_a_lower_bound(monkeypatch, tmp_path):
    assert lower_bounds.unbounded_requirements() == []
    project = '[project]\ndependencies = ["a", "b>=1"]\n[project.optional-dependencies]\nx = ["plait[y]", "c[d]<2"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    monkeypatch.setattr(lower_bounds, "ROOT", tmp_path)
    assert lower_bounds.unbounded_requirements() == ["a", "c[d]<2"]


def test_the_lock_has_every_requirement_of_development_and_names_no_index():
    text = (ROOT / "requirements-dev.lock").read_text()
    pinned = {re.split(r"[=\[]", line)[0] for line in text.splitlines() if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    named = {re.split(r"[\[><=]", each)[0].replace("_", "-") for each in wanted}
    assert named - {"plait"} <= pinned
    assert not re.search(r"https?:|file:|--index|--find-links|/\w+/", text)
