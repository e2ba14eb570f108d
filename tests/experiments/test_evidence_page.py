"""Figures of docs/evidence.md are those of the pages that they link to; those of papers stand in its own table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "evidence.md").read_text(encoding="utf-8")
CLAIMS, _, PAPERS = PAGE.partition("## What the papers say")
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./experiments/[^)]+)\)")
_NUMBER = re.compile(r"(?<![\w.,$])[-+−]?\d[\d,]*(?:\.\d+)?|(?<![\w.])\.\d+")
_ROWS = [line.strip("|").split(" | ") for line in CLAIMS.splitlines() if line.startswith("| ")][1:]
LINKED = [(text, target) for text, target in _LINK.findall(CLAIMS) if _NUMBER.search(text)]


def numbers(text: str) -> Iterator[tuple[float, int]]:
    """Yield the numbers of a text, without signs, and the digits behind the point."""
    for found in _NUMBER.findall(text):
        clean = found.replace(",", "").replace("−", "-")
        yield abs(float(clean)), len(clean.partition(".")[2])


def test_there_are_claims_with_figures() -> None:
    assert len(_ROWS) >= 19 and len(LINKED) > 25


@pytest.mark.parametrize(("text", "target"), LINKED)
def test_a_figure_stands_on_the_page_that_it_links_to(text: str, target: str) -> None:
    known = {number for number, _ in numbers((DOCS / target).read_text(encoding="utf-8"))}
    for number, digits in numbers(text):
        assert any(abs(number - there) <= 0.5001 * 10**-digits for there in known), f"{number} is not on {target}"


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0].strip()[:40])
def test_a_figure_of_a_claim_has_a_link(row: list[str]) -> None:
    *ours, paper = row[1:]
    left = _LINK.sub("", " ".join(ours))
    assert not re.search(r"\d", re.sub(r"`[^`]*`", "", left).replace("votes 8 and 9 %", "")), left
    known = {number for number, _ in numbers(PAPERS)}
    for number, digits in numbers(paper.replace("GPT-4o", "").replace("o1-", "")):
        assert any(abs(number - there) <= 0.5001 * 10**-digits for there in known), f"{number} is of no paper below"


def test_each_paper_has_its_number_on_arxiv() -> None:
    rows = [line for line in PAPERS.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 15 and all(re.search(r"arXiv \d{4}\.\d{5}", row) for row in rows)
