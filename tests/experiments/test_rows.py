"""Each page of experiments is made of the rows beside it.

A page whose rows are packed is made again by its own command with `--report`, and is the same to the letter. What was
written by hand stands below such a page, in `data/remarks.md`, and its figures are those of the page.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments._tools.kept import Kept, kept_in, lines_of, pack, put_page

FOLDER = Path(__file__).parents[2] / "experiments"
PACKED = {
    path: path.with_name("README.md" if path.name == "rows.jsonl.gz" else path.name.replace(".jsonl.gz", ".md"))
    for path in sorted(FOLDER.glob("*/data/*.jsonl.gz"))
    if kept_in(Path("none"), path).made_on and "situation" not in path.name
}
"""Pages of rows; the rows of further situations (`situation-NAME`) stand in the page of the first."""
PAGES = {path: path.parent.parent / page.name for path, page in PACKED.items()}
"""Pages by their rows."""
REMARKS = sorted(FOLDER.glob("*/data/*remarks.md"))
_COMMAND = re.compile(r"`python -m experiments (\w+)([^`]*)`")
_NUMBER = re.compile(r"(?<![\w.,])[-+−]?\d[\d,]*(?:\.\d+)?")
_FIGURE = re.compile(r"([-+−]?\d[\d,]*(?:\.\d+)?)(?= %| points?\b| times\b)|(?<![\w.,])([-+−]?\d+\.\d+)(?![\w.])")


@pytest.mark.parametrize("rows", PAGES, ids=lambda rows: f"{rows.parent.parent.name}-{rows.name.partition('.')[0]}")
def test_a_page_is_made_of_its_rows(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = PAGES[rows].read_text(encoding="utf-8")
    said = _COMMAND.search(committed)
    assert said is not None and said[1] == rows.parent.parent.name
    words = [*shlex.split(said[2]), "--report", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [f"python -m experiments {said[1]}", *words])
    module = importlib.import_module(f"experiments.{said[1]}.run")
    with contextlib.suppress(SystemExit):
        module.main()
    assert (tmp_path / PAGES[rows].name).read_text(encoding="utf-8") == committed


@pytest.mark.parametrize("remarks", REMARKS, ids=lambda path: path.parent.parent.name)
def test_a_figure_of_a_remark_stands_in_the_page(remarks: Path) -> None:
    name = "README.md" if remarks.name == "remarks.md" else remarks.name.replace("-remarks.md", ".md")
    page = (remarks.parents[1] / name).read_text(encoding="utf-8")
    text = remarks.read_text(encoding="utf-8")
    assert page.endswith(text), "remarks stand at the end of the page"
    tables = [line for line in text.splitlines() if line.startswith("|")]  # whose rows are not kept, as it says
    numbers = {abs(number) for number, _ in _numbers("\n".join([page.removesuffix(text), *tables]))}
    text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    for sentence in re.split(r"\n(?=- |\n)|(?<=[.;]) |(?<=[.;])\n", text):
        if "arXiv" in sentence or "](" in sentence:  # figures of a paper, or of the page that is linked
            continue
        for number, digits in _figures(sentence):
            assert any(abs(abs(number) - each) <= 0.5001 * 10**-digits for each in numbers), (number, sentence)


def _figures(text: str) -> Iterator[tuple[float, int]]:
    yield from (_read(first or second) for first, second in _FIGURE.findall(text))


def _numbers(text: str) -> Iterator[tuple[float, int]]:
    yield from (_read(each) for each in _NUMBER.findall(text))


def _read(text: str) -> tuple[float, int]:
    """Return a number and its digits behind the point."""
    return float(text.replace(",", "").replace("−", "-")), len(text.partition(".")[2])


def test_rows_are_packed_alike_and_say_where_they_were_made(tmp_path: Path) -> None:
    plain = tmp_path / "rows.jsonl"
    plain.write_text('{"a": 1}\n{"a": 2}\n{"a": ', encoding="utf-8")
    assert lines_of(plain) == ['{"a": 1}', '{"a": 2}'], "a line that was cut off is left out"
    kept = kept_in(plain, tmp_path / "none")
    assert "cores" in kept.made_on and "plait" in kept.made_on
    pack(kept, tmp_path / "data" / "rows.jsonl.gz")
    first = (tmp_path / "data" / "rows.jsonl.gz").read_bytes()
    again = kept_in(tmp_path / "none", tmp_path / "data" / "rows.jsonl.gz")
    pack(again, tmp_path / "data" / "rows.jsonl.gz")
    assert again == kept and first == (tmp_path / "data" / "rows.jsonl.gz").read_bytes()
    assert kept_in(tmp_path / "none", tmp_path / "neither") == Kept()
    assert put_page("# A\n\n", kept, tmp_path, "no-such") == f"# A\n\nMade of [its rows](data). {kept.made_on}\n"


def test_each_page_has_data_beside_it() -> None:
    pages = FOLDER.glob("*/README.md")
    without = [page.parent.name for page in pages if not any((page.parent / "data").glob("*.json*"))]
    assert not without, "figures whose rows nobody keeps"
