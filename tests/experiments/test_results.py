"""The pages of results: each is that of its JSON, which a command wrote; no number on them was typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments._tools.base import Findings, Table
from experiments._tools.countdown import write
from experiments._tools.machine import machine, usable_cores
from experiments._tools.page import render
from experiments._tools.statistics import Estimate, mean, share
from experiments._tools.store import Store
from experiments.apr.run import Apr
from plait.apps.common.intervals import wilson

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments"
PAGES = {path.stem: path for path in sorted(FOLDER.glob("*/data/*.json")) if "tables" in json.loads(path.read_text())}
"""Files of numbers that a page is made of, by experiment."""
BY_HAND = {"shortest"}  # its page says more than its numbers do
_COMMAND = re.compile(r"python -m experiments [a-z_]+( [a-z]+)?( --[a-z]+( [\w/]+)?)*( && .*)?")


def page_of(name: str) -> dict[str, Any]:
    return json.loads(PAGES[name].read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_what_its_json_renders_to(name: str) -> None:
    said = page_of(name)
    assert said["study"] == name == PAGES[name].parent.parent.name
    if name not in BY_HAND:
        assert (FOLDER / name / "README.md").read_text(encoding="utf-8") == render(said)
    assert _COMMAND.fullmatch(said["command"]), said["command"]
    assert said["machine"]
    assert all("cores" in line for line in said["machine"])
    assert said["tables"]
    assert all(len(row) == len(table["columns"]) for table in said["tables"] for row in table["rows"])


def test_every_picture_belongs_to_a_page() -> None:
    drawn = {FOLDER / name / "data" / f"{stem}.png" for name in PAGES for stem, _ in page_of(name)["plots"]}
    assert drawn == set(FOLDER.glob("*/data/*.png"))


def test_a_page_without_data_says_so_at_once() -> None:
    pages = sorted(FOLDER.glob("*/*.md"))
    assert len(pages) >= 34
    for page in pages:  # the data of a folder are those of its first page, but for rows with another page's name
        has_data = (page.parent / "data" / f"{page.stem}.jsonl.gz").is_file() or (
            page.name == "README.md" and any(path.suffix != ".png" for path in page.parent.glob("data/*"))
        )
        assert has_data != ("No data is kept" in page.read_text(encoding="utf-8")[:400]), page


def _estimates(figures: Any) -> Iterator[Estimate]:
    if isinstance(figures, dict):
        if set(figures) == {"value", "low", "high"}:
            yield Estimate(**figures)
        else:
            for each in figures.values():
                yield from _estimates(each)


@pytest.mark.parametrize("name", ["apr", "backtrack_or_not", "width", "retraining"])
def test_what_a_page_says_are_the_numbers_beside_it(name: str) -> None:
    """Every estimate among the unrounded numbers stands on the page, with its interval; and at least so many do."""
    page = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    found = list(_estimates(page_of(name)["figures"]))
    assert len(found) >= 8
    for each in found:
        seconds = f"{each.value:.2f} ({each.low:.2f}–{each.high:.2f})"
        assert any(text in page for text in (each.percent(), each.points(), each.number(), seconds)), each


class Small:
    """A study of one number."""

    name = "small"
    title = "A small one"
    question = "How much?"
    theirs = "Theirs."
    engines = None


def test_a_page_says_where_its_records_come_from(tmp_path: Path) -> None:
    header = {"study": "small"}
    store = Store(tmp_path / "small.jsonl", header)
    store.ran_on("a machine, 4 cores.")
    store.add("x", 0, {"solved": True})
    store.close()
    again = Store(tmp_path / "small.jsonl", header)
    again.ran_on("a machine, 4 cores.")
    again.ran_on("another, 2 cores.")
    again.close()
    last = Store(tmp_path / "small.jsonl", header)
    last.close()
    assert last.records(1) == {"x": [{"solved": True}]}
    found = Findings(
        tables=[Table("T", ("a", "b"), [("1", "2")], "A note.")],
        figures={"a": Estimate(0.5, 0.25, 0.75)},
        claims=["A half."],
    )
    page = write(Small(), found, tmp_path / "out", "python -m experiments small", 7, last.machines)  # type: ignore[arg-type]
    assert page.read_text() == (
        "# A small one\n\nHow much?\n\n`python -m experiments small`  \na machine, 4 cores.  \nanother, 2 cores.\n\n"
        "Up to 7 held-out problems a condition; 95 % bootstrap intervals in brackets.\n\n- A half.\n\n## T\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\nA note.\n\n## What the papers report\n\nTheirs.\n"
    )
    said = json.loads((tmp_path / "out" / "data" / "small.json").read_text())
    assert said["figures"] == {"a": {"value": 0.5, "low": 0.25, "high": 0.75}}
    assert page.read_text() == render(said)


def test_a_share_of_all_or_none_has_an_interval() -> None:
    low, _ = wilson(40, 40)
    assert share([True] * 40) == (1.0, pytest.approx(low), 1.0)
    assert share([0.0] * 40) == (0.0, 0.0, pytest.approx(1 - low))
    mixed = [1.0, 0.0, 1.0, 1.0]
    assert share(mixed) == mean(mixed)
    with pytest.raises(ValueError, match="zeros and ones"):
        share([0.5])


def test_the_machine_is_said_with_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 3}, raising=False)
    assert usable_cores() == 2
    assert "; 2 of 8 cores" in machine()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert "; 8 cores" in machine()


def test_widths_that_were_not_trained_are_said_to_be_so() -> None:
    made = {each.key: each for each in Apr().conditions()}
    assert [key for key, each in made.items() if "not trained" in each.label] == [
        "threads-1-t0", "threads-9-t0", "threads-10-t0",
    ]  # fmt: skip
    assert {key for key, each in made.items() if "any_width" in str(each.request)} == {
        "threads-1-t0", "threads-9-t0", "threads-10-t0",
    }  # fmt: skip
    assert {f"threads-{k}-t0" for k in range(1, 11)} < set(made)
    assert {each.concurrency for key, each in made.items() if key.startswith("clock-")} == {1}
