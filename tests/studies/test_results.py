"""The pages of results: each is that of its JSON, which a command wrote; no number on them was typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.apps.common.intervals import wilson
from studies.base import Findings, Table
from studies.command import NAMES, load, machine, usable_cores, write
from studies.page import render
from studies.statistics import Estimate, mean, share
from studies.store import Store

RESULTS = Path(__file__).parents[2] / "docs" / "results"
COMMITTED = sorted(path.stem for path in RESULTS.glob("*.json"))
PAGES = [path.stem for path in sorted(RESULTS.glob("*.md")) if path.stem != "README"]
_COMMAND = re.compile(
    r"(plait study|python -m studies) [a-z-]+( --[a-z]+ \S+)+|python -m training reproduce( --[a-z]+( [\w/,]+)?)+"
)


def page_of(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_every_study_has_its_page_and_every_page_its_numbers() -> None:
    assert set(NAMES) <= set(COMMITTED)
    assert COMMITTED == PAGES
    overview = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"\]\(([\w-]+)\.md\)", overview))) == PAGES
    rows = dict(re.findall(r"^\| \[([\w-]+)\]\(\1\.md\).*\| `([^`]+)` \|$", overview, re.MULTILINE))
    today = {name: page_of(name)["command"].replace("plait study", "python -m studies") for name in COMMITTED}
    assert rows == today


@pytest.mark.parametrize("name", COMMITTED)
def test_a_page_is_what_its_json_renders_to(name: str) -> None:
    said = page_of(name)
    assert (RESULTS / f"{name}.md").read_text(encoding="utf-8") == render(said)
    assert _COMMAND.fullmatch(said["command"]), said["command"]
    assert said["machine"]
    assert all("cores" in line for line in said["machine"])
    assert said["tables"]
    assert all(len(row) == len(table["columns"]) for table in said["tables"] for row in table["rows"])


def test_every_picture_belongs_to_a_page() -> None:
    drawn = {f"{stem}.png" for name in COMMITTED for stem, _ in page_of(name)["plots"]}
    assert drawn == {path.name for path in RESULTS.glob("*.png")}


def _estimates(figures: Any) -> Iterator[Estimate]:
    if isinstance(figures, dict):
        if set(figures) == {"value", "low", "high"}:
            yield Estimate(**figures)
        else:
            for each in figures.values():
                yield from _estimates(each)


@pytest.mark.parametrize("name", ["apr", "backtrack-or-not", "width", "retraining"])
def test_what_a_page_says_are_the_numbers_beside_it(name: str) -> None:
    """Every estimate among the unrounded numbers stands on the page, with its interval; and at least so many do."""
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
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
    page = write(Small(), found, tmp_path / "out", "plait study small", 7, last.machines)  # type: ignore[arg-type]
    assert page.read_text() == (
        "# A small one\n\nHow much?\n\n`plait study small`  \na machine, 4 cores.  \nanother, 2 cores.\n\n"
        "Up to 7 held-out problems a condition; 95 % bootstrap intervals in brackets.\n\n- A half.\n\n## T\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\nA note.\n\n## What the papers report\n\nTheirs.\n"
    )
    said = json.loads((tmp_path / "out" / "small.json").read_text())
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
    made = {each.key: each for each in load("apr").conditions()}
    assert [key for key, each in made.items() if "not trained" in each.label] == [
        "threads-1-t0", "threads-9-t0", "threads-10-t0",
    ]  # fmt: skip
    assert {key for key, each in made.items() if "any_width" in str(each.request)} == {
        "threads-1-t0", "threads-9-t0", "threads-10-t0",
    }  # fmt: skip
    assert {f"threads-{k}-t0" for k in range(1, 11)} < set(made)
    assert {each.concurrency for key, each in made.items() if key.startswith("clock-")} == {1}
