"""The example of deep research: a report whose sentences are checked against the lines that its run has read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.research.research import HERE, Library, sentences
from plait.core.tools.context import ToolContext
from scripts.checkout import python_path

ROOT = Path(__file__).resolve().parents[1]


def test_the_example_writes_a_checked_report() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "research" / "research.py"],
        env={"PYTHONPATH": python_path(ROOT), "PATH": "/usr/bin:/bin"},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "The cable cost 48 million crowns [cable.md:3]." in done.stdout
    assert "50 million" not in done.stdout
    assert "Sources: cable.md, outages.md, storms.md." in done.stdout
    assert "- Everybody is content. (it cites no line)" in done.stdout
    assert "3 sentences checked, 1 left out\ncompactions: 1\n" in done.stdout


@pytest.mark.parametrize(
    ("sentence", "faults"),
    [
        ("It cost 48 million [cable.md:3].", []),
        ("It cost 50 million [cable.md:3].", ["the cited lines do not contain 50"]),
        ("It cost 48 million [cable.md:2][cable.md:3].", []),
        ("It is 17 kilometres long [cable.md:4].", ["cable.md:4 was not read", "the cited lines do not contain 17"]),
        ("It is long [other.md:1].", ["other.md:1 was not read"]),
        ("It is long.", ["it cites no line"]),
    ],
)
def test_a_citation_counts_only_if_its_line_was_read_and_has_the_numbers(
    tmp_path: Path, sentence: str, faults: list[str]
) -> None:
    log = tmp_path / "seen.jsonl"
    search, read, _ = Library(HERE / "documents", log).tools()
    search.fn(query="crowns million replaced", ctx=ToolContext("mine", "mine:a", 1))
    read.fn(document="cable.md", ctx=ToolContext("another", "another:a", 1))
    again = Library(HERE / "documents", log)  # as after a restart
    assert again.faults(sentence, "mine") == faults


def test_a_document_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    _, read, _ = Library(HERE / "documents", tmp_path / "seen.jsonl").tools()
    with pytest.raises(Exception, match=r"There is no document '../research.py'"):
        read.fn(document="../research.py", ctx=ToolContext("r", "r:a", 1))


def test_sentences_end_at_points_and_citations() -> None:
    report = "# Head\nOne is 1.5 [a.md:1]. Two [b.md:2] Three!\n\nFour"
    assert sentences(report) == ["One is 1.5 [a.md:1].", "Two [b.md:2]", "Three!", "Four"]
