"""The page of calls ahead holds what its study measures."""

from __future__ import annotations

import json

from experiments.calls_ahead.run import CHANGING, KEPT, LEARNED_TASKS, PAGE, learn, play, read_sessions, table
from plait.planners.tools.react import React
from plait_research.planners.react_ahead import ReactAhead


def test_the_page_has_the_rows_that_are_kept() -> None:
    rows = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    assert table(rows) in PAGE.read_text(encoding="utf-8")
    assert all(row["same"] == 100 for row in rows)


def test_calls_are_foreseen_and_change_nothing() -> None:
    sessions = read_sessions()
    patterns = learn(sessions)
    assert all(pattern.tool in CHANGING or pattern.right <= pattern.predicted for pattern in patterns)
    foreseen = 0
    for session in [session for session in sessions if session.task >= LEARNED_TASKS][:8]:
        plain = play(session, React(), (0.5, 0.5))
        ahead = play(session, ReactAhead(patterns=patterns), (0.5, 0.5))
        assert (ahead.transcript, ahead.changes) == (plain.transcript, plain.changes)
        assert ahead.makespan <= plain.makespan + 0.01
        foreseen += ahead.foreseen
    assert foreseen > 0
