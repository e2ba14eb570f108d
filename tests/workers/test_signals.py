"""Signals of confidence against their formulas, written down once more in plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from plait.core.result import Signals
from plait.core.sampling import Sampling
from plait.workers._shared.confidence import ConfidenceTrace, add_position, measure

Rows = list[list[float]]


def direct(rows: Rows, k: int, window: int) -> Signals:
    """The docstrings' formulas over whole distributions, window by window."""
    logs = [sorted(row, reverse=True) for row in rows]
    taken = [row if k == -1 else row[:k] for row in logs]
    tokens = np.array([-np.mean(row) for row in taken])
    groups = [tokens[i : i + window].mean() for i in range(len(tokens) - window + 1)] if window else []
    if not groups:
        groups = [tokens.mean()]
    few = max(1, int(0.1 * len(groups)))
    entropies = []
    for row in taken:
        shares = [math.exp(each) for each in row]
        rest = 1 - sum(shares)
        entropy = -sum(p * math.log(p) for p in shares if p > 0)
        entropies.append(entropy - (rest * math.log(rest) if k != -1 and rest > 1e-12 else 0.0))
    size = len(rows[0])
    certainty = np.mean([-np.mean([math.log(size) + each for each in row]) for row in logs])
    return Signals(
        k=k,
        window=window,
        confidence=float(tokens.mean()),
        tail=float(tokens[-window:].mean() if window else tokens.mean()),
        bottom=float(np.mean(sorted(groups)[:few])),
        lowest=float(min(groups)),
        entropy=float(np.mean(entropies)),
        certainty=float(certainty) if k == -1 else None,
    )


def near(ours: Signals | None, theirs: Signals) -> None:
    assert ours is not None
    for name, value in theirs.model_dump().items():
        assert getattr(ours, name) == (value if value is None else pytest.approx(value, abs=1e-6)), name


def distributions(length: int, vocabulary: int, seed: int, sharpness: float = 3.0) -> Rows:
    logits = np.random.default_rng(seed).normal(scale=sharpness, size=(length, vocabulary))
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).tolist()


@given(
    st.integers(1, 60),
    st.integers(2, 12),
    st.sampled_from([-1, 2, 3, 8]),
    st.sampled_from([0, 1, 3, 10, 59, 60, 200]),
    st.integers(0, 10**6),
)
def test_the_formulas(length: int, vocabulary: int, k: int, window: int, seed: int) -> None:
    if k > vocabulary:
        k = vocabulary
    rows = distributions(length, vocabulary, seed)
    trace = ConfidenceTrace(k, window)
    for row in rows:
        add_position(trace, row)
    near(trace.signals(), direct(rows, k, window))


@given(st.integers(1, 80), st.integers(1, 20), st.integers(0, 10**6))
def test_running_groups_are_means_of_full_windows(length: int, window: int, seed: int) -> None:
    values = np.random.default_rng(seed).gamma(2.0, size=length)
    trace, lows = ConfidenceTrace(20, window), []
    for place, value in enumerate(values.tolist()):
        trace.add(value, 0.0)
        if place + 1 < window:
            assert (trace.group, trace.lowest) == (None, None), "a window that is not full is no group"
            continue
        lows.append(values[place + 1 - window : place + 1].mean())
        assert trace.group == pytest.approx(lows[-1]) and trace.lowest == pytest.approx(min(lows))


def test_many_positions_at_once_are_measured_as_one_by_one() -> None:
    rows = np.array([sorted(row, reverse=True)[:5] for row in distributions(40, 30, 1)], dtype=np.float32)
    together = measure(rows)
    for place, row in enumerate(rows):
        alone = measure(row[None])
        assert [each[place] for each in together] == pytest.approx([each[0] for each in alone])


def test_the_sampled_token_beside_the_likeliest_ones_does_not_count() -> None:
    rows = [sorted(row, reverse=True) for row in distributions(20, 30, 2)]
    plain, beside = ConfidenceTrace(4, 3), ConfidenceTrace(4, 3)
    for row in rows:
        add_position(plain, row[:4])
        add_position(beside, [row[17], *row[:4]])
    assert plain.signals() == beside.signals()


def test_self_certainty_of_a_uniform_distribution_is_none_at_all() -> None:
    trace = ConfidenceTrace(-1)
    add_position(trace, [-math.log(16)] * 16)
    signals = trace.signals()
    assert signals is not None and signals.certainty == pytest.approx(0.0)
    assert signals.entropy == signals.confidence == pytest.approx(math.log(16))


@pytest.mark.parametrize("k", [3, -1])
def test_tokens_that_a_form_rules_out(k: int) -> None:
    trace = ConfidenceTrace(k)
    add_position(trace, [math.log(0.75), math.log(0.25), -math.inf, -math.inf])
    add_position(trace, [0.0, -math.inf, -math.inf, -math.inf])  # nothing to choose: says nothing
    signals = trace.signals()
    assert signals is not None and len(trace) == 1
    assert signals.confidence == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)
    assert signals.entropy == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert all(value is None or math.isfinite(value) for value in signals.model_dump().values())


def test_nothing_generated_has_no_signals() -> None:
    assert ConfidenceTrace(20, 8).signals() is None


def test_long_traces_keep_their_precision() -> None:
    values = np.random.default_rng(3).gamma(2.0, 10.0, size=20_000)
    trace = ConfidenceTrace(20, 2048)
    for value in values.tolist():
        trace.add(value, value)
    groups = np.lib.stride_tricks.sliding_window_view(values, 2048).mean(axis=1)
    signals = trace.signals()
    assert signals is not None and signals.lowest == pytest.approx(groups.min(), rel=1e-12)
    assert signals.bottom == pytest.approx(np.sort(groups)[: len(groups) // 10].mean(), rel=1e-12)


@pytest.mark.parametrize(("asked", "made"), [(0, False), (1, False), (2, True), (20, True), (-1, True)])
def test_who_asks_for_one_token_gets_no_signals(asked: int, made: bool) -> None:
    assert (ConfidenceTrace.of(Sampling(logprobs=asked)) is not None) == made


def test_news_of_groups_come_eight_times_a_window() -> None:
    trace, told = ConfidenceTrace(20, 80), []
    for place in range(240):
        trace.add(1.0, 0.0)
        told += [place + 1] * trace.due()
    assert told[0] == 80 and {b - a for a, b in zip(told, told[1:], strict=False)} == {10}
