"""Study `tools`: reading native calls, a row of each way on a script, the page, going on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.tools.run import CONDITIONS, WAYS, Row, native_calls, page_of, parts_of, rows_of
from experiments.tools.tables import ratios, shape, where
from plait.core.record import StepRecord


def test_native_calls_are_read_and_others_refused() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": "n0"}}</tool_call>\n'
    assert native_calls(call * 2) == [("add", {"a": 1, "b": "n0"})] * 2
    assert native_calls("73<end>") == []
    for wrong in (call.replace("add", "fly"), call.replace('"b"', '"c"'), "<tool_call>{", "<tool_call>" + "[" * 9000):
        assert native_calls(wrong) is None


def test_the_page_compares_pairs_that_both_answer() -> None:
    rows = [
        Row(
            text,
            way,
            latency,
            failing,
            way != "native" or text.endswith("twin?"),
            2,
            3,
            40,
            1.0 if way == "turns" else 0.5,
            1.0,
        )
        for text in ("who is Ardan's twin?", "who is Ardan's owner?")
        for failing, latency in CONDITIONS
        for way in WAYS
    ]
    page = page_of(rows)
    assert "Plans beside turns" in page and "Where the time of a run goes" in page
    page = page.partition("Plans beside turns")[0] + page.partition("by the number of calls (")[2]
    assert page.count("| `turns` | 100.0 %") == len(CONDITIONS)
    tables = len(CONDITIONS) + 1  # one more by the number of calls
    assert page.count("| 2.00 (2.00–2.00), 2 | none |") == (len(WAYS) - 2) * tables
    assert page.count("| 2.00 (2.00–2.00), 1 | none |") == tables
    assert "0 held-out" in page_of([])


def test_where_the_time_goes_is_told_by_what_works_alone_and_together() -> None:
    def step(name: str, kind: str, *spells: tuple[float, float]) -> StepRecord:
        moves = [each for began, ended in spells for each in ((began, "running", ""), (ended, "done", ""))]
        return StepRecord(step=name, name=name, kind=kind, moves=tuple(moves))  # type: ignore[arg-type]

    steps = [
        step("plan", "think", (0.1, 0.5)),
        step("first", "call", (0.3, 0.8)),
        step("second", "call", (0.4, 0.6)),
        step("joiner", "think", (1.0, 1.2)),
    ]
    parts = parts_of(steps, 1.3)
    wanted = {"model": 0.4, "both": 0.2, "tools": 0.3, "neither": 0.4, "joiner": 0.2}
    assert parts == pytest.approx(wanted)
    assert sum(parts.values()) - parts["joiner"] == pytest.approx(1.3)
    assert parts_of([], 0.5)["neither"] == 0.5


def test_shapes_and_bounds_of_questions() -> None:
    assert shape("what is the sum of Ardan's owner's age and 31?") == (3, 2, 2)
    rows = [
        Row(text, way, 0.1, 0.0, True, 2, 3, 40, seconds, 1.0, {"model": 0.1, "both": 0.0, "tools": 0.3, "neither": 0.0,
                                                                "joiner": 0.05})
        for text in ("which of Ardan, Brefik and Corlom's twin has the most income?", "who is Ardan's twin?")
        for way, seconds in (("turns", 0.8), ("native", 0.4), ("llmcompiler", 0.2))
    ]  # fmt: skip
    lines = ratios(rows, CONDITIONS[:1], 5)
    assert any("| `turns` | 4.00 (4.00–4.00), 2 | 4.00 (4.00–4.00), 1 | 4.00 (4.00–4.00), 1 | 1.41 | 2.00 |" in each
               for each in lines), lines  # fmt: skip
    assert any("| `native` | 2.00 (2.00–2.00), 2 |" in each and each.endswith("| 1 | 1 |") for each in lines)
    assert "| 0 % | 100 ms | `turns` | 100 | 0 | 300 | 0 | 50 | 100 |" in where(rows, CONDITIONS[:1], WAYS)


def test_the_rows_of_the_page_are_there() -> None:
    data = Path(__file__).parents[2] / "experiments" / "tools" / "data"
    rows = rows_of(data / "rows.jsonl")
    committed = (data.parent / "README.md").read_text(encoding="utf-8").splitlines()
    tables = [line for line in page_of(rows).splitlines() if line.startswith("|")]
    assert len(rows) > 2000 and len(tables) > 90
    assert set(tables) <= set(committed)
    assert len({row.text for row in rows_of(data / "rows-12m.jsonl")}) == 52
