"""Samples of other people's models run through the machine; and the page is that of its facts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from experiments._tools.samples import Question, Way, questions, vote
from experiments._tools.ways import FULL, WAYS, chosen, in_sequence, voted
from experiments.public_traces.page import page_of
from experiments.public_traces.recorded import _value  # pyright: ignore[reportPrivateUsage]
from experiments.public_traces.run import HERE, promised, read
from experiments.votes import from_file
from plait.core.errors import UsageError
from plait_research.samples.recordings import RecordedSample, write_samples

AGREED = Question((0, 0, 0, 1, 0, 0, 0, 0), (10,) * 8, frozenset({0}))


def test_a_vote_takes_the_most_frequent_answer() -> None:
    assert vote(FULL, AGREED) == (True, 80, 8)
    assert not vote(FULL, AGREED._replace(right=frozenset({1}))).right
    assert vote(FULL, Question((None, None, 3), (5, 5, 5), frozenset({3}))).right, "no answer is no vote"


def test_long_samples_are_not_cut_by_the_default_limit() -> None:
    long = Question((0, 0, 0), (90_000, 90_000, 90_000), frozenset({0}))
    assert vote(FULL, long) == (True, 270_000, 3)


def test_a_stop_rule_ends_the_vote_before_the_rest_begins() -> None:
    way = Way("esc", "ESC", ("esc:window=3", "waves:n=3"))
    assert vote(way, AGREED) == (True, 30, 3)


def test_samples_are_grouped_by_question_and_model() -> None:
    rows = [RecordedSample(question="q", model=model, answer=answer, right=answer == "a", tokens=2)
            for model in ("x", "y") for answer in ("a", "b", "a")]  # fmt: skip
    assert (
        questions([*rows, RecordedSample(question="q", answer="a")])
        == [Question((0, 1, 0), (2, 2, 2), frozenset({0}))] * 2
    )


def test_a_setting_is_chosen_on_the_one_half_and_told_of_the_other() -> None:
    flips = Question((1, 1, 1, 0, 0, 0, 0, 0), (10,) * 8, frozenset({0}))  # its first answers are wrong
    votes = {way.key: voted(way, [AGREED, flips] * 4) for way in WAYS}
    told = dict(chosen(votes, [AGREED, flips] * 4))
    assert told["First-Finish"].change.value == -1.0, "what looked free on the even half costs everything on the odd"
    assert told["lossless stop"].change.value == 0.0
    assert told["lossless stop"].sequence > told["lossless stop"].full_sequence == 10, "one at a time takes longer"


def test_tokens_in_sequence_are_the_longest_of_each_wave() -> None:
    question = Question((0,) * 6, (5, 9, 2, 4, 7, 1), frozenset({0}))
    two = next(way for way in WAYS if "waves:n=4" in way.policies)
    assert in_sequence(FULL, question, 6) == 9
    assert in_sequence(two, question, 6) == 9 + 7
    assert in_sequence(two, question, 3) == 9


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(10-4)*(5-1)", 24),
        ("8/(3-8/3)", 24),
        ("4**2", None),
        ("__import__('os')", None),
        ("1/0", None),
        ("(" * 900, None),
    ],
)
def test_expressions_are_worked_out_exactly(expression: str, value: int | None) -> None:
    assert _value(expression) == value


def test_a_promise_is_kept_where_both_halves_are_alike() -> None:
    asked = [[[float(place * 50 + sample) for sample in range(50)]] for place in (0, 0, 1, 1)]
    rows = [row for row in promised("x", asked, False) if row["round"] == 1]
    for row in rows:
        assert abs(sum(row["taken"]) / sum(row["of"]) - row["alpha"]) < 0.02


def test_a_promise_is_kept_where_the_halves_differ_if_it_learns() -> None:
    """On held-out questions all perplexities are higher than on those that it was calibrated on."""
    asked = [[[float(place % 2 * 30 + sample) for sample in range(16)]] for place in range(80)]
    off = {
        learns: max(
            abs(sum(row["taken"]) / sum(row["of"]) - row["alpha"])
            for row in promised("x", asked, learns) if row["round"] == 1
        )
        for learns in (False, True)
    }  # fmt: skip
    assert off[False] > 0.5 and off[True] < 0.05


def test_a_first_answer_that_is_read_saves_more_than_the_text_and_the_promise_is_kept() -> None:
    """What the page claims."""
    _, _, figures = read(HERE / "data")
    routes = {(row["set"], row["checked"], row["read"]): row for row in figures["routes"] if not row["cheap"]}
    told = routes["gsm8k", False, True]
    assert told["saved_of_oracle"] >= 0.4 and told["best"]["right"] - told["route"]["right"] <= 0.01
    assert routes["gsm8k", False, False]["saved_of_oracle"] < told["saved_of_oracle"] - 0.2
    [cheap] = [row for row in figures["routes"] if row["set"] == "sql" and row["cheap"]]
    assert cheap["saved_of_oracle"] >= 0.5 and cheap["route"]["right"] > cheap["best"]["right"]
    for row in figures["takeover"]:
        if row["learns"]:
            assert abs(sum(row["taken"]) / sum(row["of"]) - row["alpha"]) <= 0.05


def test_the_page_is_that_of_its_facts() -> None:
    assert (HERE / "README.md").read_text("utf-8") == page_of(*read(HERE / "data"))


def test_the_votes_of_the_page_are_those_of_its_samples() -> None:
    samples, votes, _ = read(HERE / "data")
    for name, found in samples.items():
        full = votes[name][FULL.key]
        for place in (0, 7, 42):
            for way in WAYS[::4]:
                kept = votes[name][way.key]
                again = vote(way, found[place])
                assert again == (bool(kept["right"][place]), kept["tokens"][place], kept["votes"][place]), (name, way)
        answers = found[7].answers
        most = Counter(each for each in answers if each is not None).most_common(2)
        if len(most) == 1 or most[0][1] > most[1][1]:
            assert full["right"][7] == (most[0][0] in found[7].right)


def test_the_published_figures_of_gpt_4_come_out() -> None:
    samples, _, _ = read(HERE / "data")
    for name, alone, any_of in (("game-steps", 4.0, 49), ("game-direct", 7.3, 33)):  # Tree of Thoughts, table 2
        found = samples[name]
        single = sum(sum(each in q.right for each in q.answers) for q in found) / 100
        assert round(single, 1) == alone and sum(bool(set(q.answers) & q.right) for q in found) == any_of


def test_stop_rules_run_on_a_file_of_anybodys_samples(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    write_samples(
        (RecordedSample(question=f"q{n}", answer="a", right=True, tokens=9) for n in range(4) for _ in range(6)), path
    )
    page = from_file.page_of(path)
    assert "4 questions, 24 samples" in page and "| First-Finish | `first 1` | 1.0 | 83.3 %" in page
    with pytest.raises(UsageError, match="0 questions"):
        from_file.page_of(Path(write_none(tmp_path)))


def write_none(folder: Path) -> Path:
    """Write samples that nobody graded."""
    write_samples([RecordedSample(question="q", answer="a", tokens=3)], folder / "none.jsonl")
    return folder / "none.jsonl"
