"""Study `tools`: reading native calls, a row of each way on a script, the page, going on where it was."""

from __future__ import annotations

from studies.tools import CONDITIONS, WAYS, Row, native_calls, page_of


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
    assert page.count("| `turns` | 100.0 %") == len(CONDITIONS)
    tables = len(CONDITIONS) + 1  # one more by the number of calls
    assert page.count("| 2.00 (2.00–2.00), 2 | none |") == (len(WAYS) - 2) * tables
    assert page.count("| 2.00 (2.00–2.00), 1 | none |") == tables
    assert "0 held-out" in page_of([])
