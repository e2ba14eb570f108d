"""docs/evidence.md is made of its claims and rows; a figure is where its claim says, and a changed claim shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy")

from scripts import claims
from scripts.claims import CLAIMS, PAGE, ROOT, figures, one, result, seal, sealed

DATA = claims.claims()
CELLS = [cell for claim in DATA["claim"] for cell in claim["cell"]]
_LINK = re.compile(r"\[([^\]]+)\]\(\.\./(experiments/[^)#]+)\)")


def ids(cell: dict[str, Any]) -> str:
    return f"{cell['page']}-{cell['short']}"


def test_the_page_is_that_of_its_claims() -> None:
    assert PAGE.read_text(encoding="utf-8") == claims.page(), "run `python -m scripts.claims`"
    assert claims.main(["--check"]) == 0


def test_a_figure_stands_on_the_page_that_it_links_to() -> None:
    """Read apart from the generator: what the reader sees is on the page that the link opens."""
    shown = [(text, page) for text, page in _LINK.findall(PAGE.read_text(encoding="utf-8")) if re.search(r"\d", text)]
    assert len(shown) > 80
    for text, page in shown:
        numbers = re.findall(r"\d[\d,]*(?:\.\d+)?(?=[^)]*\))", text)
        there = (ROOT / page).read_text(encoding="utf-8")
        assert "off, " in text or "points off" in text or all(number in there for number in numbers), (text, page)


@pytest.mark.parametrize("cell", CELLS, ids=ids)
def test_a_claim_says_all_that_it_chose(cell: dict[str, Any]) -> None:
    assert {"data", "setting", "against", "measure", "n", "written", "rows", "seal"} <= cell.keys()
    assert ("smallest" in cell) != ("within" in cell)
    assert cell["on"] in claims.KINDS
    assert seal(cell) == cell["seal"], "the choice was changed: run `python -m scripts.claims --seal`"
    if "tokens saved" in cell["measure"] and cell["page"] != "votes_live":
        assert "sequential" in cell, "what saves tokens says what it costs in sequence"


def test_every_paper_of_a_claim_is_in_the_table_with_its_source() -> None:
    known = {paper["id"]: paper for paper in DATA["paper"]}
    assert all(re.fullmatch(r"\d{4}\.\d{5}", each) for each in known) and all(each["source"] for each in known.values())
    assert {each for claim in DATA["claim"] for each in claim["papers"]} == known.keys()


CELL = {"on": "bundled", "page": "study", "data": "d", "setting": "b", "against": "a", "measure": "right, points",
        "n": 50, "smallest": 0, "at": {"row": "`b`", "column": "gain"},
        "written": 2, "rows": 1, "short": ""}  # fmt: skip
TABLE = """# Study

| way | gain | saved | lost | in sequence |
|---|---|---|---|---|
| `a` | -1.0 points (-2.0 to -0.1) | 5.0 % (4.0–6.0) | +0.0 points (-5.8 to +5.8) | 9 (8–10) |
| `b` | +2.0 points (+0.2 to +4.0) | 50.0 % (40.0–60.0) | -0.2 points (-0.9 to +0.4) | 90 (80–99) |
| `c` | +9.0 points (+8.0 to +9.9) | 20 % of 900 | +1.0 points (+0.1 to +2.0) | 1 |
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "experiments" / "study" / "README.md"
    page.parent.mkdir(parents=True)
    page.write_text(TABLE, encoding="utf-8")
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    return page


def word(**changed: Any) -> str:
    return result({**CELL, **changed}).word


def test_an_effect_is_shown_alone_and_not_as_one_of_three(study: Path) -> None:
    assert word() == "yes"
    assert word(tried=[{"row": "`a`"}, {"row": "`c`"}]) == "not shown", "corrected for three comparisons"
    assert word(tried=[{"row": "*"}]) == "not shown", "a star is every row, the chosen one once"
    assert len(result({**CELL, "tried": [{"row": "*"}]}).others) == 2
    assert word(tried=[{"row": "*"}], held_out=True) == "yes", "chosen on other questions: one comparison"
    assert word(smallest=3) == "not shown" and word(smallest=5) == "no"


def test_a_guard_and_an_unfair_comparison_can_only_lower(study: Path) -> None:
    at = {"row": "`b`", "column": "saved"}
    assert word(at=at, smallest=30, guard={"measure": "right", "column": "lost", "smallest": -1.0}) == "yes"
    at = {"row": "`a`", "column": "saved"}
    guard = {"measure": "right", "column": "lost", "smallest": -1.0}
    assert word(at=at, smallest=3, guard=guard) == "not shown", "nothing changed among 50 shows little"
    assert word(unfair="the model saw more of it") == "not shown"


def test_a_share_beside_its_promise(study: Path) -> None:
    at = {"row": "`c`", "column": "saved", "minus": 20}
    cell = {name: value for name, value in CELL.items() if name != "smallest"}
    came = result({**cell, "at": at, "within": 5})
    assert came.word == "yes" and came.figure.found.value == 0.0 and came.figure.found.high < 5
    assert result({**cell, "at": {**at, "minus": 60}, "within": 5}).word == "no"


def test_a_place_without_a_figure_or_with_several_is_an_error(study: Path) -> None:
    with pytest.raises(LookupError, match="no figure"):
        figures("study", {"row": "`d`", "column": "gain"})
    with pytest.raises(LookupError, match="3 figures"):
        one("study", {"row": "*", "column": "gain"})


def test_a_changed_choice_gets_a_new_date_and_is_marked_until_then() -> None:
    text = CLAIMS.read_text(encoding="utf-8")
    assert sealed(text, "2030-01-01") == text
    changed = text.replace("smallest = 1.35", "smallest = 1.1", 1)
    cell = next(cell for cell in CELLS if cell.get("smallest") == 1.35)
    assert claims.chosen({**cell, "smallest": 1.1}) == "**changed, and not dated**"
    assert sealed(changed, "2030-01-01").count("written = 2030-01-01") == 1
    assert "after its rows" in claims.chosen(cell)
    assert "before its rows" in claims.chosen({**cell, "rows": cell["written"].replace(year=2030)})
