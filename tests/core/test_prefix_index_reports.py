"""The prefix index believes a worker that tells what its cache holds."""

from __future__ import annotations

from hypothesis import given, strategies as st

from plait.core.prefix_index import PrefixIndex

BLOCK = 4
"""Tokens; a token has four bytes."""


def index(worker: str = "a") -> PrefixIndex:
    made = PrefixIndex()
    made.limit(worker, 1_000, BLOCK)
    made.record_report(worker, (), cleared=True)
    return made


def send(to: PrefixIndex, attempt: int, content: bytes, worker: str = "a") -> int:
    had = to.record_sent(worker, "model", content, attempt)
    to.set_scale(worker, attempt, 4.0)
    return had


def test_a_context_is_held_up_to_what_the_worker_says() -> None:
    ours = index()
    send(ours, 1, b"x" * 80)
    ours.record_report("a", [(1, 12)])
    assert ours.held_bytes("model", b"x" * 80) == {"a": 48}
    ours.record_report("a", [(1, 16)])
    assert ours.held_bytes("model", b"x" * 80) == {"a": 64}
    ours.record_report("a", [(1, 0)])
    assert ours.held_bytes("model", b"x" * 80) == {}
    assert len(ours) == 0
    ours.record_report("a", [(1, 20), (99, 4)])  # of attempt 99 nothing is known
    assert ours.held_bytes("model", b"x" * 80) == {"a": 80}


def test_what_leaves_the_context_within_the_lost_block_is_in_another_one() -> None:
    header = b"h" * 40  # ten tokens: two blocks, and a half of one that the ends fill differently
    ours = index()
    send(ours, 1, header + b"1" * 40)
    send(ours, 2, header + b"2" * 40)
    ours.record_report("a", [(1, 8)])
    assert ours.held_bytes("model", header + b"1" * 40) == {"a": 40}
    assert ours.held_bytes("model", header + b"2" * 40) == {"a": 80}
    ours.record_report("a", [(2, 4)])  # a block that both begin with
    assert ours.held_bytes("model", header + b"1" * 40) == {"a": 16}
    assert ours.held_bytes("model", header + b"2" * 40) == {"a": 16}


def test_one_workers_news_says_nothing_of_another_and_size_no_longer_counts() -> None:
    ours = index()
    ours.limit("b", 10, BLOCK)
    for worker in "ab":
        send(ours, 1, b"y" * 40, worker)
    ours.record_report("a", [(1, 0)])
    assert ours.held_bytes("model", b"y" * 40) == {"b": 40}
    send(ours, 2, b"z" * 8_000)
    ours.ended("a", 8_000, 0, prompt=2_000, cached=0, generated=5_000)
    assert ours.held_bytes("model", b"z" * 8_000) == {"a": 8_000}, "the worker has not said that it is gone"
    ours.record_report("a", (), cleared=True)
    assert ours.held_bytes("model", b"z" * 8_000) == {}


def test_a_worker_that_went_away_is_believed_again_when_it_tells() -> None:
    ours = index()
    send(ours, 1, b"y" * 40)
    ours.forget("a")
    assert ours.held_bytes("model", b"y" * 40) == {}
    ours.record_report("a", [(1, 8)])
    assert ours.held_bytes("model", b"y" * 40) == {}, "an attempt of the time before"


@given(
    st.lists(st.tuples(st.text("ab", min_size=1, max_size=12), st.sampled_from("xy"), st.integers(0, 12)), max_size=30)
)
def test_what_is_said_is_what_is_held(news: list[tuple[str, str, int]]) -> None:
    """After any news the context that it was about is held up to there, by that worker, and no piece is held without
    what stands before it."""
    ours = index("x")
    ours.record_report("y", (), cleared=True)
    ours.limit("y", None, BLOCK)
    for attempt, (text, worker, tokens) in enumerate(news, 1):
        content = text.encode()
        ours.record_sent(worker, "model", content, attempt)
        ours.set_scale(worker, attempt, 1.0)
        ours.record_report(worker, [(attempt, min(tokens, len(content)))])
        held = ours.held_bytes("model", content).get(worker, 0)
        assert min(tokens, len(content)) <= held < min(tokens, len(content)) + BLOCK
    assert len(ours) == sum(cache.used for cache in ours._caches.values())
    for cache in ours._caches.values():
        assert cache.used == sum(len(node.edge) for node in cache.order)
        for node in cache.order:
            assert node.holders & cache.bit
            assert node.parent is not None and (node.parent.parent is None or node.parent.holders & cache.bit)
    for name in "xy":
        ours.record_report(name, (), cleared=True)
    assert len(ours) == 0
    assert not ours._roots
