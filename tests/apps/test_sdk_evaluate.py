"""`plait.evaluate`: the table of strategies, by the code of `plait eval`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.core.errors import ConfigError, UsageError
from plait.workers.scripted import Reply, Scripted

ROWS = [{"text": "6 times 7?", "want": "42"}, {"text": "2 plus 2?", "want": "4"}, {"text": "9 minus 5?", "want": "4"}]


def model() -> Scripted:
    return Scripted([Reply(when="6 times", text="Answer: 42"), Reply(when="", text="Answer: 4")])


def found(strategies: Any, rows: Any = ROWS, **options: Any) -> Any:
    return plait.evaluate(rows, strategies, workers=[model()], journal="off", **options)


def test_strategies_stand_in_one_table_that_shows_itself() -> None:
    table = found(["single", "sample:n=8", "sample:n=8+esc:window=4"])
    assert [row.name for row in table] == ["single", "sample:n=8", "sample:n=8+esc:window=4"]
    assert [row.solved for row in table] == [1.0, 1.0, 1.0]
    single, whole, stopped = table
    assert (single.stopped, whole.stopped, stopped.stopped) == (0.0, 0.0, 1.0)
    assert single.tokens < stopped.tokens < whole.tokens
    assert whole.tokens_ratio == pytest.approx(8.0)
    assert whole.difference == pytest.approx((0.0, -0.632, 0.632), abs=1e-3)
    text = repr(table)
    assert text.startswith("| planner | solved |") and "| tokens saved | stopped | sequential |" in text
    assert "| -700% | 0% |" in text and "| 100% |" in text
    assert text.endswith("Cheapest that none is shown to beat: single")
    assert "<table" in table._repr_html_() and r"\begin{tabular}" in table.to_latex()


def test_it_counts_what_the_command_counts(plait: Any, tmp_path: Path, script: Any) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    replies = script({"when": "6 times", "text": "Answer: 42"}, "Answer: 4")
    done = plait("eval", file, "--planner", "single", "--planner", "sample:n=3", "--script", replies, "--json")
    for row, theirs in zip(found(["single", "sample:n=3"], file), done.json["compared"], strict=True):
        assert (row.name, row.solved, row.tokens, row.critical, row.stopped, row.is_vote) == tuple(
            theirs[name] for name in ("name", "solved", "tokens", "critical", "stopped", "is_vote")
        )


def test_best_of_without_a_verifier_says_that_it_is_a_vote() -> None:
    table = found(["sample:n=3", "sample:n=3,merge=best-of"])
    assert [row.is_vote for row in table] == [False, True]
    assert "sample:n=3,merge=best-of is a vote: no answer could be verified" in repr(table)


def test_requests_by_name_and_fields_of_rows() -> None:
    rows = [{"question": row["text"], "answer": row["want"]} for row in ROWS]
    given = {"alone": {"planner": "single"}, "three": {"planner": "sample", "n": 3}}
    table = found(given, rows, text="question", want="answer", limit=2)
    assert [(row.name, row.n) for row in table] == [("alone", 2), ("three", 2)]


def test_it_works_where_a_loop_runs() -> None:
    async def cell() -> Any:
        return found(["single"])

    assert asyncio.run(cell())[0].solved == 1.0


def test_what_cannot_be_evaluated_is_named() -> None:
    with pytest.raises(ConfigError, match="row 2 has no 'want'"):
        found(["single"], [ROWS[0], {"text": "6 times 7?"}])
    with pytest.raises(UsageError, match="needs rows and strategies, got 0 and 1"):
        found(["single"], [])
    with pytest.raises(UsageError, match="got 3 and 0"):
        found([])
