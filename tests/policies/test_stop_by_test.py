"""`sprt` and `cges`, against their formulas written out."""

from __future__ import annotations

import math
from itertools import product

import pytest

from plait.core.errors import PluginError
from plait.core.states import State
from plait.policies._stopping import Poll
from plait.policies.stop.cges import CGES
from plait.policies.stop.sprt import SPRT
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
                said = CGES().enough(poll(answers, [math.log(each) for each in sure]))
                assert (said is not None) == wanted, (answers, sure)


def test_a_sure_vote_counts_for_more_than_an_unsure_one() -> None:
    sure, unsure = math.log(0.9), math.log(0.3)
    assert CGES().enough(poll("AA", [sure, sure])) is not None
    assert CGES().enough(poll("AA", [unsure, unsure])) is None
    assert CGES().enough(poll("AAAA", [-1e300, 0.0, 0.0, 0.0])) is not None, "no confidence is infinite"


def test_without_a_confidence_it_says_what_to_ask_for() -> None:
    with pytest.raises(PluginError, match="ask for it with logprobs"):
        CGES().enough(poll("AA"))
