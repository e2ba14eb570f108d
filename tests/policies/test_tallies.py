"""Votes that are counted as branches end: the same as counting them all anew, and in one step for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, seed, strategies as st

from plait.core.events import Job
from plait.core.lengths import majority_probability
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.states import State
from plait.core.view import Branch
from plait.machine import steps, views
from plait.policies._ballots import VoteTally, group_by_answer, read_claim, read_roll, top_two
from plait.policies._stopping import Poll
from plait.policies.merge.best import BestOf
from plait.policies.merge.synthesis import SynthesisDrafts
from plait.policies.merge.votes import Majority
from plait.policies.stop.confidence import CGES, Confident, Saturation, SemanticEntropy
from plait.policies.stop.votes import ESC, Futility
from plait.runtime.plugins.loader import Plugins
from plait_research.policies.prune.deepconf import DeepConfConsensus
from plait_research.simulation.simulator import Host, LatencyModel, simulate
from tests.policies.branches import LETTERS, branch, branches, confident, ended

ANSWERS = st.sampled_from(["A", "B", "c", "?", None])


@st.composite
def votes(draw: st.DrawFn) -> tuple[list[Branch], list[int], dict[str, int]]:
    """Branches, some of them given up in favour of others, the order in which they end, and weights."""
    count = draw(st.integers(1, 10))
    made: list[Branch] = []
    for i in range(count):
        answer = draw(ANSWERS)
        if answer is not None:
            made.append(branch(f"b{i}", answer))
            continue
        into = draw(st.none() | st.integers(0, count - 1).filter(lambda at, own=i: at != own))
        made.append(ended(f"b{i}", State.CANCELLED)._replace(merged_into=None if into is None else f"r:b{into}"))
    order = draw(st.permutations(range(count)))
    weights = draw(st.dictionaries(st.sampled_from([each.name for each in made]), st.integers(1, 3), max_size=2))
    return made, list(order), weights


def recounted(branches: Sequence[Branch], weights: dict[str, int]) -> tuple[dict[str, int], int]:
    """Count all anew: each branch votes with its weight, one given up in favour of another votes there, once."""
    into = {branch.step: branch.merged_into for branch in branches if branch.merged_into is not None}
    votes = {branch.step: weights.get(branch.name, 1) for branch in branches}
    for start in into:
        at = start
        for _ in into:
            at = into.get(at) or at
        if at not in into:
            votes[at] += 1
    counts: dict[str, int] = {}
    for each in branches:
        if each.done and (claim := read_claim(each, LETTERS)) is not None:
            counts[claim[1]] = counts.get(claim[1], 0) + votes[each.step]
    return counts, sum(votes[branch.step] - 1 for branch in branches if not branch.state.ended)


@seed(3)
@given(votes())
def test_a_tally_is_the_count_of_all_branches(given: tuple[list[Branch], list[int], dict[str, int]]) -> None:
    made, order, weights = given
    tally = VoteTally(LETTERS, weights)
    now = [each._replace(state=State.RUNNING, result=None, merged_into=None) for each in made]
    for at in order:
        now[at] = made[at]
        for _ in range(2):  # told twice, it counts once
            tally.ended(made[at])
        counts, pending = recounted(now, weights)
        assert tally.counts == counts
        assert tally.pending == pending
        roll = read_roll(now, LETTERS, weights)
        assert {each.first.key: each.votes for each in group_by_answer(roll.ballots)} == counts
        assert roll.pending == pending
        assert (tally.top, tally.second) == top_two(counts.values())
        assert tally.votes == sum(counts.values())
        for merge in (Majority(weights=weights), BestOf(), SynthesisDrafts(enough=2, stop_on_verified=True)):
            kept = merge.tally(LETTERS)
            for each in order[: order.index(at) + 1]:
                kept.ended(made[each])
            for out in range(4):
                assert kept.decided(out) == merge.decided(now, out, LETTERS), merge


FOLDED = [
    ESC(window=2), ESC(window=3), Confident(threshold=-0.5), Confident(threshold=-0.9, votes=2), CGES(),
    CGES(confidence=0.6), CGES(confidence=0.8, min_votes=1, vote_temperature=0.5), Futility(chance=0.3),
    Saturation(evidence="verifier", min_votes=1),
    DeepConfConsensus(min_votes=2, tau=0.6), DeepConfConsensus(min_votes=1, tau=0.9, criterion="mean"),
    SemanticEntropy(rule="secretary", window=2),
]  # fmt: skip
"""Rules that look at more than the counts of votes."""


@seed(4)
@given(votes(), st.lists(st.floats(-2.0, 0.0), min_size=10, max_size=10))
def test_a_rule_says_the_same_of_what_it_kept_as_of_all_branches(
    given: tuple[list[Branch], list[int], dict[str, int]], sure: list[float]
) -> None:
    made, order, _ = given
    for at, each in enumerate(made):
        if each.result is not None:
            signals = confident(10.0 + sure[at], lowest=5.0 - sure[at])
            result = each.result.model_copy(update={"logprob": sure[at], "signals": signals})
            made[at] = each._replace(result=result)
    tally = VoteTally(LETTERS)
    now = [each._replace(state=State.RUNNING, result=None, merged_into=None) for each in made]
    for number, at in enumerate(order):
        now[at] = made[at]
        tally.ended(made[at])
        for rule in FOLDED if number % 2 or number == len(order) - 1 else FOLDED[::2]:
            kept, anew = Poll(lambda: now, LETTERS, tally), Poll(list(now), LETTERS)
            assert (rule.enough(kept) is None) == (rule.enough(anew) is None), rule


def test_merges_that_are_never_certain_count_votes_for_the_rules_too() -> None:
    for name in ("weighted", "equivalent", "inverse-entropy", "judged", "pairwise", "self-certainty",
                 "shortest-majority"):  # fmt: skip
        merge = Plugins().merge(Plugin(name=name))
        tally = merge.tally(LETTERS)
        assert isinstance(tally, VoteTally) and views._keeps_tally(merge), name
        for each in branches("A", "A", "b"):
            tally.ended(each)
        assert (tally.top, tally.second) == (2, 1) and not tally.decided(0) and not tally.decided(1)


COUNT = 2_000
RULES: list[dict[str, Any]] = [
    {"early": True},
    {"policies": ["consensus"]},
    {"policies": ["adaptive-consistency:confidence=0.999999"]},
    {"early": True, "policies": ["waves:n=8"]},
    {"policies": ["esc:window=16"]},
    {"policies": ["confident:threshold=0"]},
    {"policies": ["cges:confidence=0.999999"]},
    {"policies": ["futility:chance=0.000001"]},
    {"policies": ["saturation:evidence=verifier"]},
    {"policies": ["semantic-entropy:rule=secretary"]},
    {"policies": ["deepconf-consensus"]},
    {"merge": "weighted", "policies": ["adaptive-consistency:confidence=0.999999"]},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_thousands_of_branches_are_not_looked_at_again_at_every_end(
    rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, scans = [0], [0]
    one, every = views.branch_of, views.branches_of

    def branch_of(node: Any) -> Branch:
        looks[0] += 1
        return one(node)

    def branches_of(node: Any) -> list[Branch]:
        scans[0] += 1
        return every(node)

    for module in (views, steps):
        monkeypatch.setattr(module, "branches_of", branches_of)
    monkeypatch.setattr(views, "branch_of", branch_of)

    def outcome(job: Job, rng: Random) -> Result:
        number = int(job.step.rpartition("-")[2])
        value = "" if "futility" in str(rule) else f"answer: {'x' if number % 2 else 'y'}"
        usage = Usage(prompt=1, completion=1)
        return Result(value=value, usage=usage, logprob=-1.0, signals=confident(5.0))

    request = Request(
        text="?",
        planner=Plugin(
            name="sample",
            options={"n": COUNT, "early": rule.get("early", False), "merge": rule.get("merge", "majority")},
        ),
        policies=tuple(Plugin.model_validate(_spec(each)) for each in rule.get("policies", ())),
    )
    report = simulate(request, hosts=[Host("host", slots=64)], latency=LatencyModel(), outcome=outcome)
    assert (report.result is not None and report.result.why.startswith("1000 of 2000 votes")) or rule.get("policies")
    assert scans[0] <= 3, f"all branches were looked at {scans[0]} times"
    assert looks[0] <= 3 * COUNT


def _spec(text: str) -> dict[str, Any]:
    name, _, options = text.partition(":")
    return {"name": name, "options": dict([options.split("=")]) if options else {}}


def test_the_probability_of_a_majority_takes_no_longer_for_many_votes() -> None:
    for first, second in ((200, 150), (150, 200), (300, 299), (299, 300), (1000, 0), (700, 640), (400, 256)):
        n = first + second + 1
        exact = (2**n - sum(math.comb(n, k) for k in range(second + 1))) / 2**n
        assert majority_probability(first, second) == pytest.approx(exact, abs=1e-9)
    assert majority_probability(5_000_000, 5_000_000) == pytest.approx(0.5, abs=1e-3)
    assert majority_probability(10_000_000, 0) == 1.0


def test_a_subclass_with_a_rule_of_its_own_is_asked_that() -> None:
    class Never(Majority):
        def decided(self, branches: Sequence[Branch], outstanding: int, task: object) -> bool:
            return False

    assert views._keeps_tally(Majority()) and not views._keeps_tally(Never())
