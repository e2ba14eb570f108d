"""The curves of repeated sampling, against samples whose curves are known; and that the page is that of its rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments._tools.statistics import pass_at
from experiments.repeated_sampling.page import by_logprob, fitted, voted
from experiments.repeated_sampling.run import page, sampled


def test_a_vote_takes_the_most_frequent_answer() -> None:
    answers, right = ["1", "2", "1 ", "3"], [True, False, True, False]
    assert voted(answers, right, 4, 0) == 1.0
    assert 0.3 < voted(answers, right, 1, 0) < 0.7, "one sample is right as often as they are"
    assert voted(["2", "2", "1"], [False, False, True], 3, 0) == 0.0


def test_the_likeliest_sample_is_taken_by_its_score() -> None:
    assert by_logprob([-1.0, -0.1, None], [False, True, False], 3, 0) == 1.0
    assert by_logprob([-0.1, -1.0, None], [False, True, False], 3, 0) == 0.0


def test_a_curve_of_the_known_shape_is_found_again() -> None:
    a, b, fit = fitted({k: math.exp(-2.0 * k**-0.5) for k in (1, 2, 4, 8, 16, 32, 64)})
    assert (a, b, fit) == (pytest.approx(2.0), pytest.approx(0.5), pytest.approx(1.0))
    assert math.isnan(fitted({1: 0.0, 64: 1.0})[0])


def test_coverage_at_one_is_the_share_that_is_right() -> None:
    assert pass_at(64, 16, 1) == pytest.approx(0.25) and pass_at(64, 1, 64) == 1.0


def test_the_page_is_that_of_its_rows() -> None:
    pytest.importorskip("reasoning_gym")
    folder = Path(__file__).parents[2] / "experiments" / "repeated_sampling"
    assert (folder / "README.md").read_text("utf-8") == page(folder / "data" / "rows.jsonl")


async def test_each_problem_has_seeds_of_its_own() -> None:
    """With one seed for all, a draw is lucky or not for many problems at once, and intervals over problems are too
    narrow."""
    asked: list[int] = []

    class Orchestrator:
        async def run(self, text: str, **options: Any) -> Any:
            asked.append(options["seed"])
            return SimpleNamespace(usage=SimpleNamespace(completion=0, prompt=0, cached=0), seconds=0.0)

    rows = [await sampled(cast("Any", Orchestrator()), json.dumps({"question": text}), 2) for text in "abca"]
    assert len(set(asked)) == 3 and asked[0] == asked[3], "and the same problem the same"
    assert [row["seed"] for row in rows] == asked
