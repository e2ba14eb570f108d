"""What the other files leave: formulas against direct numpy transcriptions, rules against brute force on small cases,
and that every verdict says how it came about."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from plait.core.interfaces import Merge
from plait.core.ops import Plugin
from plait.core.states import State
from plait.core.view import Branch
from plait.policies._stopping import Poll
from plait.policies.merge.best import BestOf
from plait.policies.merge.votes import Majority, Weighted
from plait.policies.stop.confidence import SemanticEntropy
from plait.policies.stop.votes import ESC
from plait.runtime.plugins.loader import Plugins
from tests.policies.branches import LETTERS, branch, confident, ended, voter

VOTES = st.lists(
    st.tuples(st.sampled_from("ABC"), st.one_of(st.none(), st.sampled_from([-2.0, -1.0, -0.5, -0.25]))), min_size=1,
    max_size=9,
)  # fmt: skip


@given(VOTES)
def test_majority_with_its_rule_for_ties(votes: list[tuple[str, float | None]]) -> None:
    answers = np.array([answer for answer, _ in votes])
    sure = np.array([np.nan if logprob is None else logprob for _, logprob in votes])
    classes = sorted(set(answers), key=lambda a: int(np.argmax(answers == a)))
    counts = np.array([(answers == a).sum() for a in classes])
    tied = [a for a, count in zip(classes, counts, strict=True) if count == counts.max()]
    sums = np.array([sure[answers == a].sum() for a in tied])  # nan where one of its voters does not say
    expected = tied[0] if len(tied) == 1 or np.isnan(sums).any() else tied[int(np.argmax(sums))]
    verdict = Majority().merge([branch(f"b{i}", a, logprob) for i, (a, logprob) in enumerate(votes)], LETTERS)
    rest = [int(count) for a, count in zip(classes, counts, strict=True) if a != expected]
    assert verdict.value == expected
    assert verdict.why.startswith(f"{counts.max()} of {len(votes)} votes, margin {counts.max() - max(rest, default=0)}")


def by_secretary(answers: Sequence[str | None], window: int) -> bool:
    rounds = len(answers) // window
    seen = []
    for r in range(rounds):
        block = answers[r * window : (r + 1) * window]
        if None in block:
            break
        given = [a for a in block if a not in ("?", "fail")]
        p = np.array([given.count(a) for a in sorted(set(given))]) / max(1, len(given))
        seen.append(-(p * np.log(p)).sum() + (len(p) - 1) / (2 * len(given)) if given else math.inf)
    looked = max(1, math.floor(rounds / math.e))
    return any(e < min(seen[:looked]) for e in seen[looked:])


def stood(answers: Sequence[str | None]) -> list[Branch]:
    states = {None: State.RUNNING, "fail": State.FAILED}
    return [ended(f"b{i}", states[a]) if a in states else branch(f"b{i}", a) for i, a in enumerate(answers)]


def test_the_threshold_free_rule_is_its_definition() -> None:
    """All ways in which six branches can stand, in three rounds of two."""
    rule, seen = SemanticEntropy(rule="secretary", window=2), set()
    for answers in itertools.product(["A", "B", "?", "fail", None], repeat=6):
        expected = by_secretary(answers, 2)
        assert (rule.enough(Poll(stood(answers), LETTERS)) is not None) is expected, answers
        seen.add(expected)
    assert seen == {True, False}


@pytest.mark.parametrize("window", [2, 3, 4])
def test_windows_of_esc_are_blocks_in_the_order_of_the_join(window: int) -> None:
    for answers in itertools.product(["A", "B", "?", None], repeat=6):
        blocks = [answers[i : i + window] for i in range(0, 7 - window, window)]
        expected = any(set(block) in ({"A"}, {"B"}) for block in blocks)
        assert (ESC(window=window).enough(Poll(stood(answers), LETTERS)) is not None) is expected, answers


@pytest.mark.parametrize("merge", [Majority(), BestOf()], ids=["majority", "best-of"])
def test_certain_is_what_no_outcome_of_the_rest_changes(merge: Merge) -> None:
    """Brute force over all ends of up to two branches that are out, of five."""
    certain = 0
    for now in itertools.product(["A", "b", "7", "fail", None], repeat=5):
        out = [i for i, answer in enumerate(now) if answer is None]
        if len(out) > 2 or not merge.decided(stood(now), len(out), LETTERS):
            continue
        certain += bool(out)
        values = set()
        for rest in itertools.product(["A", "b", "7", "Z", "fail"], repeat=len(out)):
            then = list(now)
            for i, answer in zip(out, rest, strict=True):
                then[i] = answer
            verdict = merge.merge(stood(then), LETTERS)
            values.add(LETTERS.verify(verdict.value) if isinstance(merge, BestOf) and out else verdict.value)
        assert len(values) == 1, now
    assert certain > 50


# --- what a verdict says ----------------------------------------------------------------------------------------------

SAYING = [
    "majority", "weighted", "weighted:criterion=lowest", "self-certainty", "inverse-entropy", "shortest-majority",
    "best-of",
    "best-scored:criterion=mean",
]  # fmt: skip


@pytest.mark.parametrize("name", SAYING)
def test_every_verdict_says_counts_and_who_was_left_out(name: str) -> None:

    made = [voter(f"b{i}", "A", signals=confident(8.0 + i, certainty=2.0)) for i in range(3)]
    made += [voter("b3", "B", signals=confident(7.0, certainty=1.0)), voter("mute", "?"), ended("lost", State.FAILED)]
    verdict = Plugins().merge(Plugin.of(name)).merge(made, LETTERS)
    assert verdict.value == "A" and verdict.winner is not None
    assert "no answer in mute" in verdict.why and "not counted: lost failed" in verdict.why
    assert any(count in verdict.why for count in ("3 of 4", "of 5 done", "best of 4")), verdict.why
    assert "margin" in verdict.why or name == "best-of"


@pytest.mark.parametrize("name", ["judged", "pairwise", "synthesis", "map-reduce", "equivalent"])
def test_merges_that_ask_say_who_was_left_out_too(name: str) -> None:
    made = [*(branch(f"b{i}", a) for i, a in enumerate("ABBA")), ended("lost", State.FAILED)]
    verdict = Plugins().merge(Plugin(name=name)).merge(made, LETTERS)
    assert verdict.patch is not None
    join = verdict.patch.steps[-1]
    assert join.op.kind == "join"
    said = verdict.why + str(join.op.merge.options)
    assert "lost" in said or "lost" in join.needs


def test_best_of_counts_for_those_that_were_given_up() -> None:
    given_up = Branch("b3", "r:b3", State.CANCELLED, None, None, 5, (), "r:b2")
    verdict = BestOf().merge([branch("b0", "7"), branch("b1", "8"), branch("b2", "8"), given_up], LETTERS)
    assert verdict.value == "8" and verdict.why.startswith("not verified, 3 of 4 votes")
    one = BestOf().merge([branch("b0", "7"), branch("b2", "8"), given_up], LETTERS)
    assert one.value == "8" and "1 given up as redundant, counted with those like them" in one.why


@given(st.lists(st.tuples(st.sampled_from("AB"), st.floats(0.5, 20.0)), min_size=1, max_size=8))
def test_the_margin_of_weights_is_that_of_numpy(votes: list[tuple[str, float]]) -> None:
    made = [voter(f"b{i}", answer, signals=confident(weight)) for i, (answer, weight) in enumerate(votes)]
    answers, weights = np.array([a for a, _ in votes]), np.array([w for _, w in votes])
    sums = sorted([weights[answers == a].sum() for a in set(answers)] + [0.0], reverse=True)
    why = Weighted(cap=None).merge(made, LETTERS).why
    assert why.startswith(f"tail confidence {sums[0]:.4g} of {weights.sum():.4g}, margin {sums[0] - sums[1]:.4g};")
