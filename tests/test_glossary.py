"""The glossary is generated, names classes that there are, and knows every name that a class had before."""

from __future__ import annotations

import plait
import plait.core
from plait.core.renamed import renamed_classes
from scripts.glossary import PAGE, page, words


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python scripts/glossary.py`"


def test_a_word_stands_once_and_its_class_is_public() -> None:
    rows = words()
    assert len({row["word"] for row in rows}) == len(rows)
    public = {*plait.__all__, *plait.core.__all__}
    assert {row["code"] for row in rows if "code" in row} <= public


def test_old_names_are_those_that_still_work() -> None:
    classes = renamed_classes()
    for row in words():
        for old in row.get("was", ()):
            assert classes[old] == row.get("code"), f"{old} of {row['word']}"
    assert classes.keys() <= {old for row in words() for old in row.get("was", ())}
