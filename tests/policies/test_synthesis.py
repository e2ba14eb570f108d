"""The merges `synthesis-drafts` (what branches came to) and `synthesis-or-vote` (which of the two counts)."""

from __future__ import annotations

from plait.core.states import State
from plait.policies.merge.synthesis import SynthesisDrafts, SynthesisOrVote
from tests.policies.branches import LETTERS, branch, branches, ended


def running(name: str, *pieces: str):
    return ended(name, State.RUNNING)._replace(pieces=pieces, tokens=len(pieces))


def test_records_say_what_each_branch_came_to() -> None:
    given = [branch("a", "so A", logprob=-0.5), branch("b", "so b"), branch("c", "so ?"), ended("d", State.FAILED)]
    verdict = SynthesisDrafts().merge(given, LETTERS)
    assert verdict.why == "3 of 4 drafts; 1 verified"
    assert isinstance(verdict.value, list)
    a, b, c = verdict.value
    assert a == {
        "name": "a",
        "text": "so A",
        "done": True,
        "tokens": 0,
        "logprob": -0.5,
        "answer": "A",
        "key": "A",
        "verified": True,
    }
    assert (b["verified"], c["answer"], c["verified"]) == (False, None, None)


def test_what_was_written_so_far_is_kept_if_that_is_wanted() -> None:
    given = [branch("a", "so 1"), running("b", "so ", "far "), running("c", " ")]
    assert len(SynthesisDrafts().merge(given, LETTERS).value) == 1
    verdict = SynthesisDrafts(partial=True).merge(given, LETTERS)
    assert verdict.why == "1 of 3 drafts and what 1 others had written"
    assert [(each["text"], each["done"], each["tokens"]) for each in verdict.value] == [
        ("so 1", True, 0),
        ("so far ", False, 2),
    ]


def test_when_enough_are_done() -> None:
    given = [branch("a", "so 1"), branch("b", "so b"), running("c")]
    assert not SynthesisDrafts().decided(given, 1, LETTERS)
    assert SynthesisDrafts(enough=2).decided(given, 1, LETTERS)
    assert not SynthesisDrafts(enough=3).decided(given, 1, LETTERS)
    assert SynthesisDrafts(enough=3).decided(given, 0, LETTERS)
    assert not SynthesisDrafts(stop_on_verified=True).decided(given, 1, LETTERS)
    assert SynthesisDrafts(stop_on_verified=True).decided([*given, branch("d", "so D")], 1, LETTERS)
    assert not SynthesisDrafts(stop_on_verified=True).decided([running("d", "so D")], 1, LETTERS), (
        "half a text settles nothing"
    )


def said(*values: str | None):
    return [branch(f"b{i}", value) if value else ended(f"b{i}", State.FAILED) for i, value in enumerate(values)]


def test_the_synthesis_stands() -> None:
    verdict = SynthesisOrVote(note="so").merge(said("all in all 5", "so 6", "so 6"), LETTERS)
    assert (verdict.value, verdict.why, verdict.winner) == ("all in all 5", "so; a synthesis of 2 drafts", "b0")
    assert SynthesisOrVote().decided(said("all in all 5", "so 6"), 1, LETTERS)
    assert not SynthesisOrVote().decided(said("all ?", "so 6"), 1, LETTERS)
    assert not SynthesisOrVote().decided(said("all wrong", "so 6"), 1, LETTERS)


def test_a_synthesis_that_failed_or_has_no_answer_is_a_vote() -> None:
    verdict = SynthesisOrVote().merge(said(None, "so 6", "so 7", "but 7"), LETTERS)
    assert (verdict.value, verdict.winner) == ("so 7", "b2")
    assert verdict.why == "a draft (2 of 3 votes): the synthesis failed: WorkerError: no"
    assert SynthesisOrVote().merge(said("hm ?", "so 6"), LETTERS).value == "so 6"
    assert SynthesisOrVote().merge(said(None, "so wrong", "so wrong", "so 8"), LETTERS).value == "so 8"
    assert SynthesisOrVote().merge(said(None, "so wrong"), LETTERS).value == "so wrong"


def test_a_verified_draft_beats_a_synthesis_found_wrong_and_nothing_else_does() -> None:
    assert SynthesisOrVote().merge(said("all wrong", "so 6", "so R"), LETTERS).value == "so R"
    assert SynthesisOrVote().merge(said("all wrong", "so 6", "so 6"), LETTERS).value == "all wrong"
    assert SynthesisOrVote().merge(said("all 5", "so R"), LETTERS).value == "all 5"


def test_nothing_to_choose_from() -> None:
    verdict = SynthesisOrVote().merge(said(None, "?"), LETTERS)
    assert verdict.value is None and "no draft has an answer" in verdict.why
    assert SynthesisOrVote().merge(said("hm ?", "?"), LETTERS).value == "hm ?"
    assert SynthesisDrafts().merge(branches(), LETTERS).value == []
