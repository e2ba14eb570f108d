"""`sprt` and `cges`, against their formulas written out."""

from __future__ import annotations

import math
from itertools import product

import pytest

from plait.core.errors import PluginError
from plait.core.states import State
from plait.policies._stopping import Poll
from plait.policies.merge.votes import Posterior
from plait.policies.stop.confidence import CGES
from plait.policies.stop.votes import SPRT
from tests.policies.branches import LETTERS, branch, ended


def poll(answers: str, sure: list[float | None] | None = None) -> Poll:
    given = sure or [None] * len(answers)
    made = [branch(f"b{i}", each, logprob=value) for i, (each, value) in enumerate(zip(answers, given, strict=True))]
    return Poll([*made, ended("out", State.RUNNING)], LETTERS)


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_sprt_is_the_likelihood_ratio_of_the_first_two(share: float) -> None:
    rule = SPRT(share=share)
    for a, b in product(range(1, 40), range(6)):
        if b > a:
            continue
        ratio = (share**a * (1 - share) ** b) / 0.5 ** (a + b)
        assert (rule.enough(poll("A" * a + "B" * b + "C" * (b > 0))) is not None) == (ratio >= 0.95 / 0.05), (a, b)


def test_the_numbers_of_its_page() -> None:
    assert SPRT().enough(poll("AAAAA")) is None and SPRT().enough(poll("AAAAAA")) is not None
    assert SPRT().enough(poll("AAAAAAAB")) is None and SPRT().enough(poll("AAAAAAAAB")) is not None


def test_the_released_settings_of_consol_are_a_lead_of_three() -> None:
    rule = SPRT(share=0.5001, beta=0.949976)
    for a, b in product(range(1, 30), range(12)):
        if b <= a:
            ended_by = rule.enough(poll("A" * a + "B" * b))
            assert (ended_by is not None) == (a - b >= 3), (a, b)
    with pytest.raises(ValueError, match="test nothing"):
        SPRT(alpha=0.2, beta=0.8)


def posterior(answers: str, sure: list[float], best: str) -> float:
    keys = [*dict.fromkeys(answers), "none of them"]

    def weight(right: str) -> float:
        return math.prod(c if a == right else (1 - c) / (len(keys) - 1) for a, c in zip(answers, sure, strict=True))

    return weight(best) / sum(map(weight, keys))


def test_cges_is_the_posterior_over_the_answers() -> None:
    levels = (0.3, 0.6, 0.95)
    for answers in ("AA", "AAB", "ABC", "AABC"):
        for sure in product(levels, repeat=len(answers)):
            by_answer = {each: posterior(answers, list(sure), each) for each in set(answers)}
            best = max(by_answer, key=lambda each: by_answer[each])
            most = max(answers.count(each) for each in answers)
            wanted = by_answer[best] >= 0.95 and answers.count(best) == most
            if abs(by_answer[best] - 0.95) > 1e-9:
                votes = poll(answers, [math.log(each) for each in sure])
                said = CGES(confidence=0.95, vote_temperature=1).enough(votes)
                assert (said is not None) == wanted, (answers, sure)
                alone = CGES(confidence=0.95, vote_temperature=1, lead=False).enough(votes)
                assert (alone is not None) == (by_answer[best] >= 0.95), (answers, sure)


def test_the_merge_takes_the_answer_of_the_highest_posterior() -> None:
    for answers in ("A", "AB", "AAB", "ABC", "AABC"):
        for sure in product((0.3, 0.6, 0.95), repeat=len(answers)):
            by_answer = {each: posterior(answers, list(sure), each) for each in set(answers)}
            logs = [math.log(each) for each in sure]
            made = [branch(f"b{i}", a, logprob=c) for i, (a, c) in enumerate(zip(answers, logs, strict=True))]
            found = Posterior().merge(made, LETTERS)
            assert by_answer[str(found.value)] == pytest.approx(max(by_answer.values())), (answers, sure)
    many = [branch(f"b{i}", "A", logprob=math.log(0.3)) for i in range(3)]
    assert Posterior().merge([*many, branch("b3", "B", logprob=math.log(0.99))], LETTERS).value == "B"
    assert (
        Posterior(vote_temperature=0.05).merge([*many, branch("b3", "B", logprob=math.log(0.9))], LETTERS).value == "B"
    )
    assert Posterior().merge([branch("b0", "", logprob=None)], LETTERS).value is None
    with pytest.raises(PluginError, match="ask for it with logprobs"):
        Posterior().merge([branch("b0", "A")], LETTERS)


def test_a_sure_vote_counts_for_more_than_an_unsure_one() -> None:
    sure, unsure = math.log(0.9), math.log(0.3)
    rule = CGES(confidence=0.95, vote_temperature=1)
    assert rule.enough(poll("AA", [sure, sure])) is not None
    assert rule.enough(poll("AA", [unsure, unsure])) is None
    assert CGES().enough(poll("AA", [sure, sure])) is None, "two votes are not enough by default"
    assert rule.enough(poll("AAAA", [-1e300, 0.0, 0.0, 0.0])) is not None, "no confidence is infinite"


def test_without_a_confidence_it_says_what_to_ask_for() -> None:
    with pytest.raises(PluginError, match="ask for it with logprobs"):
        CGES().enough(poll("AA"))
