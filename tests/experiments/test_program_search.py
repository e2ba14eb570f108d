"""The study of searches over programs: its page is made of its rows, and a row is measured again."""

from __future__ import annotations

import json

from experiments.program_search.run import KEPT, PAGE, by_lines, by_profile, by_source, page

ROWS = [json.loads(line) for line in KEPT.read_text("utf-8").splitlines()]


def test_the_page_is_that_of_its_rows() -> None:
    assert page(ROWS) == PAGE.read_text("utf-8")
    assert [sum(row["table"] == name for row in ROWS) for name in ("lines", "source", "profile")] == [200] * 3


async def test_a_row_of_each_table_is_measured_again() -> None:
    for way in (by_lines, by_source, by_profile):
        row = await way(7)
        assert row in ROWS, row
