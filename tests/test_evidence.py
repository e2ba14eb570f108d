"""`make evidence` is red where a figure has left its interval, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import evidence
from scripts.evidence import QUICK, ROOT, differences

PAGE = """# Page

| way | solved | tokens |
|---|---|---|
| `vote` | 61.8 % (58.7–64.8) | 318 |
| `stop` | -1.5 points (-6.0 to +3.0) | 1,204 |

Words.
"""


def changed(old: str, new: str) -> list[tuple[str, str, str]]:
    return [tuple(each) for each in differences(PAGE, PAGE.replace(old, new))]


@pytest.mark.parametrize(
    ("old", "new"),
    [("61.8", "61.8"), ("61.8 % (58.7–64.8)", "63.0 % (60.0–66.0)"), ("-1.5 points (-6", "+2.9 points (-2"),
     ("Words", "Other words")],
)  # fmt: skip
def test_a_figure_inside_its_interval_is_as_committed(old: str, new: str) -> None:
    assert changed(old, new) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("61.8 % (58", "65.0 % (58"), ("-1.5 points", "+3.1 points"), ("1,204", "1,205"), ("318", "-318"),
     ("`stop`", "`stops`")],
)  # fmt: skip
def test_a_figure_outside_is_a_difference(old: str, new: str) -> None:
    assert len(changed(old, new)) == 1


def test_what_the_committed_page_says_more_is_not_compared_and_what_it_lacks_is() -> None:
    assert list(differences(PAGE + "\n| more |\n|---|\n| 1 |\n", PAGE)) == []
    assert len(list(differences("# Page", PAGE))) == 1
    assert len(list(differences(PAGE.replace("| `stop`", "| `x` | 1 | 2 |\n| `stop`"), PAGE))) > 0


def test_a_page_whose_figure_left_its_interval_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "experiments" / "votes_live" / "README.md").read_text(encoding="utf-8")
    other = page.replace("39.9 % (33.3–45.9)", "52.0 % (46.0–58.0)")
    assert other != page
    (tmp_path / "votes_live").mkdir()
    (tmp_path / "votes_live" / "README.md").write_text(other, encoding="utf-8")
    monkeypatch.setattr(evidence, "EXPERIMENTS", tmp_path)
    assert evidence.main(["votes_live"]) == 1
    said = capsys.readouterr().out
    assert "votes_live: 1 difference" in said
    assert "`deepprune 6`: committed 52.0 % (46.0–58.0), remade 39.9 % (33.3–45.9)" in said


def test_the_quick_pages_are_there() -> None:
    for name in QUICK:
        assert (ROOT / "experiments" / name / "README.md").is_file(), name
