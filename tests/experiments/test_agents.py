"""The experiment on recorded agents: its data, its bound and its page."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from experiments.agents.convert import rows_of
from experiments.agents.replay import CASES, DATA, Played, belady, drawn
from experiments.agents.run import page_of, rules_of


def test_the_data_are_lengths_ids_and_times() -> None:
    fields = {"session_id", "request_id", "timestamp", "input_length", "output_length", "block_size", "hash_ids"}
    for name in ("coding_sessions", "conversations"):
        with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                assert set(json.loads(line)) <= fields | {"wait_for", "tool_wait_ms"}


def test_draws_share_no_session() -> None:
    case = CASES["16 sessions, cache 1.2 M"]
    names = [{session.name for session in drawn(case, draw)} for draw in range(4)]
    assert [len(each) for each in names] == [16] * 4 and len(set.union(*names)) == 64


def test_perfect_foresight_keeps_what_is_used_next() -> None:
    a, b, c = ((32, 16, (first, first + 1)) for first in (0, 10, 20))
    assert belady([a, b, c], 1_000) == 96
    # One context and one block fit: `a` stays, and `b` and `c` are read twice.
    assert belady([a, b, a, c, a, b, a, c, a], 48) < belady([a, b, c, a, b, c, a, b, c], 32)
    assert belady([a, a, a], 1_000) == 32 + 2 * 16  # the last token's block is always computed


def test_recorded_sessions_become_rows_whose_blocks_are_their_own() -> None:
    first = {"t": 0.0, "in": 130, "out": 5, "hash_ids": [1, 2]}
    second = {"t": 9.0, "in": 200, "out": 5, "hash_ids": [1, 2, 3], "think_time": 3.0}
    rows = list(rows_of({"id": "s", "block_size": 64, "requests": [first, second]}, 1_000))
    made = [(row["wait_for"], row["tool_wait_ms"], row["hash_ids"]) for row in rows]
    assert made == [([], 0, [1001, 1002]), (["0"], 3000, [1001, 1002, 1003])]


def test_the_page_has_the_claim_before_the_rows(tmp_path: Path) -> None:
    name = "16 sessions, all fit"
    rows = [Played(name, rule, 1, 100.0, 50.0, 90.0, 1.0, 9.0, 1_000, 200, 100, 150) for rule in rules_of(name)]
    page = page_of(rows, "command")
    assert page.index("Claim, written before the rows") < page.index(f"## {name}")
    assert "| `working-set` | 1 | 100 | 80.0% | 2.00 | 1.50 |" in page
    assert f"| {name} | 1 |  | 2.00 | 80.0% | 1.33 | 1.00 | 1.00 |" in page
