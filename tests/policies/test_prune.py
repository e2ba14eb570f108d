"""The policies that prune a vote's branches while they run: `deepconf` and `redundant`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from experiments._tools.statistics import auroc
from plait.core.addresses import allow
from plait.core.errors import PluginError
from plait.core.ops import Plugin
from plait.policies._similarity import cluster, cosine, counts_cosine, grams, jaccard
from plait.runtime.plugins.loader import Plugins
from tests.policies.bench import Bench
from tests.policies.branches import confident

# --- deepconf ---------------------------------------------------------------------------------------------------------


def test_the_others_wait_for_the_warm_up() -> None:
    bench = Bench(6, "deepconf:warmup=2,eta=50", logprobs=20, window=8)
    assert sorted(bench.live) == [1, 2]
    assert "warm-up of vote" in bench.step("sample-3").held
    bench.done(1, signals=confident(4.0))
    assert sorted(bench.live) == [2]
    bench.done(2, signals=confident(8.0))
    assert sorted(bench.live) == [3, 4, 5, 6]


def test_a_branch_below_the_threshold_is_given_up() -> None:
    bench = Bench(5, "deepconf:warmup=2,eta=50", logprobs=20, window=8)
    bench.done(1, signals=confident(4.0))
    bench.done(2, signals=confident(8.0))
    bench.progress(3, 8, group=7.0, lowest=6.5)
    bench.progress(4, 8)  # no full window yet
    assert not bench.given_up
    bench.progress(3, 8, group=5.9, lowest=5.9)
    assert bench.given_up == {3: "vote: confidence 5.9 is below 6, the 50th percentile of 2 branches"}
    bench.done(4, "B", signals=confident(9.0))
    bench.done(5, "B", signals=confident(9.0))
    assert bench.finish is not None and bench.finish.result is not None
    assert (
        bench.finish.result.why
        == "2 of 4 votes, margin 0, a tie of 2 settled by order; not counted: sample-3 cancelled"
    )


def test_without_waiting_those_already_below_go_with_the_last_of_the_warm_up() -> None:
    bench = Bench(5, "deepconf:warmup=2,eta=50,hold=false", logprobs=20, window=8)
    assert sorted(bench.live) == [1, 2, 3, 4, 5]
    bench.progress(1, 8, group=0.1, lowest=0.1)  # of the warm-up: never given up
    bench.progress(3, 8, group=9.0, lowest=1.0)
    bench.progress(4, 8, group=9.0, lowest=7.0)
    bench.done(2, signals=confident(8.0))
    assert not bench.given_up
    bench.done(1, signals=confident(4.0))
    assert sorted(bench.given_up) == [3]


def test_a_warm_up_of_failures_prunes_nothing() -> None:
    bench = Bench(4, "deepconf:warmup=2", logprobs=20, window=8)
    bench.fail(1)
    bench.fail(2)
    bench.progress(3, 8, group=0.0, lowest=0.0)
    assert not bench.given_up and sorted(bench.live) == [3, 4]


def test_branches_that_say_no_confidence_are_an_error_with_the_remedy() -> None:
    bench = Bench(4, "deepconf:warmup=1")
    bench.done(1)
    assert bench.finish is not None and bench.finish.failure is not None
    assert "set logprobs=20 and a window" in bench.finish.failure.message


@given(
    st.lists(st.floats(0.5, 20), min_size=1, max_size=4),
    st.lists(st.lists(st.floats(0.5, 20), min_size=1, max_size=5), min_size=1, max_size=5),
    st.sampled_from([10.0, 50.0, 90.0]),
)
def test_deepconf_is_its_definition(warm: list[float], others: list[list[float]], eta: float) -> None:
    """Stopped is who falls below the percentile, at the first window that does."""
    bench = Bench(len(warm) + len(others), f"deepconf:warmup={len(warm)},eta={eta}", logprobs=20, window=8)
    for i, value in enumerate(warm, 1):
        bench.done(i, signals=confident(value))
    floor = np.percentile(warm, 100 - eta)
    for i, groups in enumerate(others, len(warm) + 1):
        for at, group in enumerate(groups):
            bench.progress(i, 8, group=group, lowest=min(groups[: at + 1]))
            if group < floor - 1e-9:
                assert i in bench.given_up
                break
            if min(groups[: at + 1]) > floor + 1e-9:
                assert i not in bench.given_up


# --- redundant --------------------------------------------------------------------------------------------------------

LIKE = "first we add\nthen we halve\n"
OTHER = "let us guess\nand check\n"


def test_a_branch_that_begins_as_another_is_given_up_and_votes_with_it() -> None:
    bench = Bench(4, "redundant:steps=2", stream=True)
    bench.progress(1, text=LIKE)
    bench.progress(2, text="First  we add\nthen we ")
    bench.progress(3, text=OTHER)
    assert not bench.given_up
    bench.progress(2, text="HALVE\nso")
    assert bench.given_up == {2: "vote: 1 like sample-1, which its vote goes with"}
    bench.progress(4, text=LIKE)
    assert sorted(bench.given_up) == [2, 4]
    bench.done(3, "B")
    bench.done(1, "A")
    assert bench.finish is not None and bench.finish.result is not None
    assert bench.finish.result.value == "A"
    assert bench.finish.result.why == ("3 of 4 votes, margin 2; 2 given up as redundant, counted with those like them")


def test_a_finished_branch_stands_for_later_ones() -> None:
    bench = Bench(2, "redundant:steps=2", stream=True)
    bench.progress(1, text=LIKE)
    bench.done(1, LIKE + "A")
    bench.progress(2, text=LIKE)
    assert sorted(bench.given_up) == [2] and bench.finish is not None


def test_it_is_compared_once_and_then_left_alone() -> None:
    bench = Bench(2, "redundant:steps=2", stream=True)
    bench.progress(1, text=LIKE)
    bench.progress(2, text=OTHER)
    bench.progress(2, text=LIKE * 20)
    assert not bench.given_up


def test_one_with_few_steps_is_compared_by_its_tokens() -> None:
    bench = Bench(3, "redundant:steps=99,tokens=20,threshold=0.5", stream=True)
    bench.progress(1, 25, text=LIKE)
    bench.progress(2, 19, text=LIKE)
    assert not bench.given_up
    bench.progress(2, 1, text=" ")
    assert sorted(bench.given_up) == [2]
    bench.progress(3, 30, text="no line ends here")  # without steps it is like none
    assert sorted(bench.given_up) == [2]


def test_what_was_given_up_stands_for_nobody() -> None:
    bench = Bench(3, "redundant:steps=2,threshold=0.3", stream=True)
    bench.progress(1, text="a\nb\n")
    bench.progress(2, text="b\nc\n")
    assert sorted(bench.given_up) == [2]
    bench.progress(3, text="c\nd\n")  # like the second alone
    assert sorted(bench.given_up) == [2]


def test_countdown_compares_operations() -> None:
    bench = Bench(3, "redundant:steps=2,threshold=1", task="countdown", text="3 5 7 11 -> 24", stream=True)
    bench.progress(1, text="<try> 11 - 7 = 4 | 5 4 3 <go> 5 * 4 = 20 | ")
    bench.progress(2, text="<try> 11 - 7 = 4 | 5 4 3 <go> 5 + 4 = 9 | ")
    bench.progress(3, text="4*5=20 ; 11-7=4 ;")
    assert sorted(bench.given_up) == [3]


def test_branches_that_must_not_stream_are_an_error_with_the_remedy() -> None:
    bench = Bench(2, "redundant", stream=False)
    bench.done(1)
    assert bench.finish is not None and bench.finish.failure is not None
    assert "leave out stream=false" in bench.finish.failure.message


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
def test_auroc_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[int, bool]]) -> None:
    scores, same = [float(score) for score, _ in pairs], [each for _, each in pairs]
    positive = [score for score, each in zip(scores, same, strict=True) if each]
    negative = [score for score, each in zip(scores, same, strict=True) if not each]
    if not positive or not negative:
        with pytest.raises(ValueError, match="both kinds"):
            auroc(scores, same)
        return
    wins = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert auroc(scores, same) == pytest.approx(float(np.mean(wins)))


STEPS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4)


@given(st.lists(STEPS, min_size=1, max_size=8), st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_online_clusters_are_those_made_at_once(traces: list[list[str]], threshold: float) -> None:
    bench = Bench(len(traces), f"redundant:steps=4,tokens=4,threshold={threshold}", stream=True)
    for i, trace in enumerate(traces, 1):
        bench.progress(i, 4, text="".join(f"{step}\n" for step in trace))
    heads = cluster(traces, threshold, jaccard)
    kept = {head + 1 for head in heads}
    assert set(bench.live) == kept
    for i in kept:
        bench.done(i, str(i))
    assert bench.finish is not None and bench.finish.result is not None
    assert f"{max(heads.count(head) for head in heads)} of {len(traces)} votes" in bench.finish.result.why


def letters(text: str) -> list[float]:
    """An embedding: how often the text has each of six letters."""
    return [float(text.count(letter)) for letter in "abcdef"]


def by_numpy(a: list[str], b: list[str], judge: str) -> float:
    x, y = "\n".join(a), "\n".join(b)
    if judge == "ngrams":
        padded = [f" {text} " for text in (x, y)]
        pieces = sorted({text[i : i + 3] for text in padded for i in range(len(text) - 2)})
        u, v = (np.array([sum(t[i : i + 3] == p for i in range(len(t))) for p in pieces]) for t in padded)
    else:
        u, v = np.array(letters(x)), np.array(letters(y))
    return float(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)))


@given(STEPS, STEPS, st.sampled_from(["ngrams", f"{__name__}:letters"]))
def test_cosines_of_embeddings_are_numpys(a: list[str], b: list[str], judge: str) -> None:
    expected = by_numpy(a, b, judge)
    if judge == "ngrams":
        assert counts_cosine(grams("\n".join(a)), grams("\n".join(b))) == pytest.approx(expected)
    else:
        assert cosine(letters("\n".join(a)), letters("\n".join(b))) == pytest.approx(expected)
    assert cosine([0.0], [1.0]) == counts_cosine({}, {"a": 1}) == 0.0


allow("no.such:fn", *(f"{__name__}:{name}" for name in ("letters", "no", "wordy", "uneven")))


@given(
    st.lists(STEPS, min_size=1, max_size=8), st.sampled_from([0.3, 0.8, 0.95]),
    st.sampled_from(["ngrams", f"{__name__}:letters"]),
)  # fmt: skip
def test_online_clusters_by_an_embedding_are_those_made_at_once(
    traces: list[list[str]], threshold: float, judge: str
) -> None:
    alike = [by_numpy(a, b, judge) for a in traces for b in traces]
    assume(min(abs(each - threshold) for each in alike) > 1e-9)
    near = sorted(set(np.round(alike, 12)))
    assume(all(y - x > 1e-9 for x, y in itertools.pairwise(near)))
    bench = Bench(len(traces), f"redundant:steps=4,tokens=4,threshold={threshold},criterion={judge}", stream=True)
    for i, trace in enumerate(traces, 1):
        bench.progress(i, 4, text="".join(f"{step}\n" for step in trace))
    heads = cluster(traces, threshold, lambda a, b: by_numpy(a, b, judge))
    assert set(bench.live) == {head + 1 for head in heads}


@pytest.mark.parametrize(
    ("judge", "said"),
    [("no.such:fn", "cannot be imported"), (f"{__name__}:no", "there is no function"), ("words", "criterion")],
)
def test_a_judge_that_is_not_there(judge: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        Plugins().policy(Plugin(name="redundant", options={"criterion": judge}))


def wordy(text: str) -> str:
    return text


def uneven(text: str) -> list[float]:
    return [1.0] * len(text)


@pytest.mark.parametrize(("judge", "said"), [("wordy", "must return a list of numbers"), ("uneven", "not of the same")])
def test_an_embedding_that_is_none_ends_the_run_with_the_reason(judge: str, said: str) -> None:
    bench = Bench(2, f"redundant:steps=1,criterion={__name__}:{judge}", stream=True)
    bench.progress(1, text="one\n")
    bench.progress(2, text="three\n")
    assert bench.finish is not None and bench.finish.failure is not None
    assert said in bench.finish.failure.message


@given(STEPS, STEPS)
def test_jaccard(a: list[str], b: list[str]) -> None:
    expected = len([x for x in set(a) if x in b]) / len(set(a + b))
    assert jaccard(a, b) == pytest.approx(expected) == jaccard(b, a)
    assert jaccard([], []) == 1.0
