"""The glossary is generated and names classes that there are."""

from __future__ import annotations

import plait
import plait.core
from scripts.glossary import PAGE, page, words


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python scripts/glossary.py`"


def test_a_word_stands_once_and_its_class_is_public() -> None:
    rows = words()
    assert len({row["word"] for row in rows}) == len(rows)
    public = {*plait.__all__, *plait.core.__all__}
    assert {row["code"] for row in rows if "code" in row} <= public
