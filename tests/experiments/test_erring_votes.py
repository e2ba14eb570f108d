"""The study of votes among voters that err: replays are those of the samples, and settings are chosen elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments._tools import statistics
from experiments._tools.voters.settings import FULL, RULES, Rule, Setting
from experiments._tools.voters.sums import LEVELS, SAMPLES, Drawn, Sample, read, sums
from experiments.erring_votes.bounds import moments
from experiments.erring_votes.recorded import replay, replay_all
from experiments.erring_votes.run import choose, packed, page_of, unpacked, wanted
from experiments.erring_votes.traces import Trace
from plait.apps.common import intervals


def drawn(level: int, text: str, answers: list[int | None]) -> Drawn:
    """A sum whose samples answer in turn, each in 10 tokens."""
    many = [answers[i % len(answers)] for i in range(SAMPLES)]
    signals = [1.0, 1.0, 1.0, 1.0, 0.5]
    said = ["2 + 3 = 5 ; " + ("1 2 3" if each is None else f"4 <hit> {each}") for each in many]
    return Drawn(
        level=level,
        text=text,
        samples=[
            Sample(text=words, answer=each, tokens=10, logprob=-0.1, signals=signals)
            for words, each in zip(said, many, strict=True)
        ],
    )


def traces(of: Drawn, so_far: list[list[int | None]], low: int | None = None) -> list[Trace]:
    """Traces whose answers so far are given in turn; sample `low` is unsure of all its tokens."""
    return [
        Trace(confidences=[0.5 if i == low else 1.0] * 10, so_far=so_far[i % len(so_far)], sure=[-0.1] * 3)
        for i in range(len(of["samples"]))
    ]


def test_the_full_vote_counts_all_samples() -> None:
    right = replay(FULL.default, drawn(1, "2 + 3", [5, 5, 4]))
    assert right == (1.0, 10.0 * SAMPLES, 10.0)
    assert replay(FULL.default, drawn(1, "2 + 3", [4, 4, 5, None])).right == 0.0
    assert replay(FULL.default, drawn(1, "2 + 3", [None])).right == 0.0


def test_a_stop_saves_and_may_lose() -> None:
    stop = Setting(policies=("adaptive-consistency:confidence=0.8", "waves:n=4"))
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


def test_the_page_has_a_row_for_each_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [drawn(level, text, [level, 5, 5]) for level in LEVELS for text in ("2 + 3", "4 + 1")]
    for module in (statistics, intervals):
        monkeypatch.setattr(module, "RESAMPLES", 20)
    rng = np.random.default_rng(1)
    outcomes = {each: rng.random((len(given), 3)).round() + np.array([0.0, 100.0, 10.0]) for each in wanted()}
    page = page_of(given, outcomes, "the command")
    assert all(page.count(f"| {rule.label} |") == 2 for rule in RULES)
    assert "DeepConf online" in page and "hindsight, one at a time" in page and "nan" not in page


def test_replays_are_kept(tmp_path: Path) -> None:
    given = [drawn(level, "2 + 3", [level, 5, 5]) for level in LEVELS]
    some, kept = [FULL.default, Setting(early=True)], tmp_path / "replays.jsonl"
    first = replay_all(some, given, kept=kept)
    before = kept.read_bytes()
    again = replay_all(some, given, kept=kept)
    assert kept.read_bytes() == before and before.count(b"\n") == 2
    assert all((again[each] == first[each]).all() for each in some)


def test_a_planner_of_parts_says_what_the_whole_samples_said() -> None:
    sums_of = drawn(1, "2 + 3", [5, 5, 4, None])
    for part in (3, 6, 9):
        whole = "answer.max_tokens=64,probe.max_tokens=1,probe.template=<hit>"
        mars = Setting(planner=f"mars:n={SAMPLES},warmup={SAMPLES},draft.max_tokens={part},{whole}")
        row = replay(mars, sums_of, traces(sums_of, [[5, 5, 5]]))
        looks = -(-10 // part) - 1
        assert row == (1.0, (10.0 + looks) * SAMPLES, 10.0 + looks)
        pruned = Setting(planner=f"deepprune:n={SAMPLES},draft.max_tokens={part},{whole}")
        row = replay(pruned, sums_of, traces(sums_of, [[7, 7, 7]]))
        assert row == (1.0, (part + 1.0) * SAMPLES + 10 - part, 11.0), "one of all goes on"


def test_deepconf_stops_a_sample_that_is_unsure() -> None:
    sums_of = drawn(1, "2 + 3", [5, 5, 4])
    rule = next(rule for rule in RULES if rule.label == "DeepConf online")
    sure, unsure = (replay(rule.settings[1], sums_of, traces(sums_of, [[5]], low)) for low in (None, 30))
    assert sure.total == 10.0 * SAMPLES
    assert sure.total - 6 <= unsure.total < sure.total, "it is stopped at the end of its first window"


def test_the_rounds_of_seat_end_at_the_first_of_one_mind() -> None:
    rule = next(rule for rule in RULES if rule.label.startswith("SEAT's rounds"))
    assert replay(rule.default, drawn(1, "2 + 3", [5])).total == 80.0
    assert replay(rule.default, drawn(1, "2 + 3", [5, 4, 3, 2])).total == 320.0


def test_moments_are_those_of_a_vote_in_the_machine() -> None:
    sums_of = drawn(1, "2 + 3", [4, 5, 5])
    for width in (1, 4, SAMPLES):
        told = moments(sums_of, width)
        row = replay(Setting(policies=(f"waves:n={width}",)), sums_of)
        assert (told[-1].tokens, told[-1].serial) == row[1:]
        assert told[0].answer == 4 and told[-1].answer == 5
        assert told[0].tokens == 10 * width


def test_rows_of_the_page_are_read_as_they_were_packed() -> None:
    samples = [Sample(text="", answer=n, tokens=4 + n, logprob=-0.5, signals=None) for n in range(3)]
    votes = [Drawn(level=level, text="2 + 3", samples=samples) for level in (1, 2)]
    setting = Setting("weighted", ("waves:n=4",), True, planner="sample:n=3")
    outcomes = {setting: np.array([[1.0, 12.0, 5.0], [0.0, 12.0, 6.0]])}
    again, rows = unpacked([json.dumps(row) for row in packed(votes, outcomes)])
    assert again == votes and list(rows) == [setting]
    assert (rows[setting] == outcomes[setting]).all()
