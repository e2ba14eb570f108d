"""The study of votes among voters that err: replays are those of the samples, and settings are chosen elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from studies.votes.erring import FULL, RULES, Rule, Setting, choose, page_of, replay, replay_all
from studies.votes.sums import LEVELS, SAMPLES, Drawn, Sample, read, sums


def drawn(level: int, text: str, answers: list[int | None]) -> Drawn:
    """A sum whose samples answer in turn, each in 10 tokens."""
    many = [answers[i % len(answers)] for i in range(SAMPLES)]
    signals = [1.0, 1.0, 1.0, 1.0, 0.5]
    return Drawn(
        level=level,
        text=text,
        samples=[Sample(answer=each, tokens=10, logprob=-0.1, signals=signals) for each in many],
    )


def test_the_full_vote_counts_all_samples() -> None:
    right = replay(FULL.default, drawn(1, "2 + 3", [5, 5, 4]))
    assert right == (1.0, 10.0 * SAMPLES, 10.0)
    assert replay(FULL.default, drawn(1, "2 + 3", [4, 4, 5, None])).right == 0.0
    assert replay(FULL.default, drawn(1, "2 + 3", [None])).right == 0.0


def test_a_stop_saves_and_may_lose() -> None:
    stop = Setting(policies=("adaptive-consistency:confidence=0.8", "waves:width=4"))
    row = replay(stop, drawn(1, "2 + 3", [4, 4, *[5] * 30]))
    assert row.right == 0.0 and row.total < 10 * 8, "two wrong votes ended it"
    assert replay(FULL.default, drawn(1, "2 + 3", [4, 4, *[5] * 30])).right == 1.0


def test_the_cheapest_setting_within_a_point_is_chosen_else_the_most_accurate() -> None:
    full, cheap, dear = Setting(), Setting("a"), Setting("b")
    ones = np.ones(100)
    rows = {
        full: np.stack([ones, 100 * ones, ones], 1),
        cheap: np.stack([np.arange(100) >= 2, 10 * ones, ones], 1),
        dear: np.stack([np.arange(100) >= 1, 50 * ones, ones], 1),
    }
    rule, everywhere = Rule("r", cheap, (dear,)), np.arange(100)
    assert choose(rule.settings, rows, rows[full], everywhere) == dear
    assert choose(rule.settings, rows, rows[full], everywhere[10:]) == cheap, "no loss on these places"
    assert choose([cheap], rows, rows[full], everywhere) == cheap


def test_sums_are_those_of_a_seed_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    first = sums(3, 7)
    assert first == sums(3, 7) and first == sums(5, 7)[:3] and len(set(first)) == 3
    kept = tmp_path / "kept.jsonl"
    lines = [json.dumps(drawn(1, text, [1])) for text in (first[0], "1 + 1", first[1])]
    kept.write_text("\n".join([*lines, lines[0][:30]]))
    assert [each["text"] for each in read(kept, 3, 7)] == [first[0], first[1]]
    assert read(tmp_path / "none", 3, 7) == []


def test_the_page_has_a_row_for_each_rule() -> None:
    given = [drawn(level, text, [level, 5, 5]) for level in LEVELS for text in ("2 + 3", "4 + 1")]
    page = page_of(given, replay_all(given), "the command")
    assert all(page.count(f"| {rule.label} |") == 2 for rule in RULES)
    assert "DeepConf online" in page and "nan" not in page
