"""The index of who has what cached: what is held where, what is dropped first, what reports of hits teach."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from plait.core import prefix_index
from plait.core.prefix_index import PrefixIndex

HEADER = b"a header that many share; " * 10


def sent(index: PrefixIndex, worker: str, content: bytes, root: str = "model") -> int:
    return index.record_sent(worker, root, content)


def test_each_worker_holds_the_beginning_it_was_sent() -> None:
    index = PrefixIndex()
    assert sent(index, "a", HEADER + b"one") == 0
    assert sent(index, "a", HEADER + b"two") == len(HEADER)
    assert sent(index, "b", HEADER[:100]) == 0
    assert index.held_bytes("model", HEADER + b"two, and more") == {"a": len(HEADER) + 3, "b": 100}
    assert index.held_bytes("model", b"some other") == {}
    assert index.held_bytes("another model", HEADER) == {}


def test_what_was_used_last_stays_and_a_header_outlives_its_ends() -> None:
    index = PrefixIndex()
    index.limit("a", 100)  # 400 bytes
    sent(index, "a", HEADER + b"1" * 100)
    sent(index, "a", HEADER + b"2" * 100)
    assert index.held_bytes("model", HEADER + b"1" * 100) == {"a": len(HEADER)}
    assert index.held_bytes("model", HEADER + b"2" * 100) == {"a": len(HEADER) + 100}
    sent(index, "a", b"x" * 390)
    assert index.held_bytes("model", HEADER) == {}


def test_a_worker_that_goes_away_or_evicts_holds_no_more() -> None:
    index = PrefixIndex()
    sent(index, "a", HEADER)
    sent(index, "b", HEADER)
    index.forget("a")
    assert index.held_bytes("model", HEADER) == {"b": len(HEADER)}
    index.limit("b", 1)
    assert index.held_bytes("model", HEADER) == {}
    assert len(index) == 0


def test_generated_tokens_take_room() -> None:
    index = PrefixIndex()
    index.limit("a", 100)
    had = sent(index, "a", HEADER)
    index.ended("a", len(HEADER), had, prompt=65, cached=0, generated=90)
    assert index.held_bytes("model", HEADER) == {}


def test_a_worker_that_holds_less_than_was_thought_gets_less_room() -> None:
    index = PrefixIndex()
    index.limit("a", 10_000)
    others = [bytes([65 + i]) * 4_000 for i in range(8)]
    for content in others:
        index.ended("a", 4_000, sent(index, "a", content), prompt=1_000, cached=0, generated=0)
    assert all(index.held_bytes("model", content) for content in others)
    index.ended("a", 4_000, sent(index, "a", others[-1]), prompt=1_000, cached=999, generated=0)  # it tells of hits
    for _ in range(6):
        index.ended("a", 4_000, sent(index, "a", others[0]), prompt=1_000, cached=0, generated=0)
    assert len(index) < 0.4 * 32_000
    assert index.held_bytes("model", others[0]), "what it has just read it has"


def test_a_server_that_never_tells_of_hits_teaches_nothing() -> None:
    index = PrefixIndex()
    for _ in range(9):
        index.ended("a", len(HEADER), sent(index, "a", HEADER), prompt=65, cached=0, generated=0)
    assert index.held_bytes("model", HEADER) == {"a": len(HEADER)}


def test_tokens_are_counted_as_the_worker_counts_them() -> None:
    """A model of letters has a token a byte: its cache of 300 tokens holds one header of 260 bytes and not two."""
    index = PrefixIndex()
    index.limit("a", 300)
    other = HEADER.upper()
    for content in (HEADER, other):
        index.ended("a", len(content), sent(index, "a", content), prompt=len(content), cached=0, generated=0)
    assert index.held_bytes("model", HEADER) == {}
    assert index.held_bytes("model", other) == {"a": len(other)}


def test_all_workers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "MOST", 10_000)
    index = PrefixIndex()
    for i in range(200):
        sent(index, f"w{i % 10}", bytes([i]) * 900)
    assert len(index) <= 10_000


WORDS = st.lists(st.sampled_from([b"aa", b"ab", b"b"]), max_size=8).map(b"".join)
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["send", "send", "evict", "forget"]), WORDS))


@given(STEPS, WORDS)
def test_it_agrees_with_sets_of_prefixes(steps: list[tuple[str, str, bytes]], asked: bytes) -> None:
    """Without limits what is held is what was sent; what is held always begins at the start, and sizes add up."""
    index, truth = PrefixIndex(), {name: set[bytes]() for name in "abc"}
    exact = True
    for worker, what, content in steps:
        if what == "send":
            sent(index, worker, content)
            truth[worker] |= {content[:i] for i in range(1, len(content) + 1)}
        elif what == "forget":
            index.forget(worker)
            truth[worker].clear()
        else:
            index.limit(worker, 1)
            index.limit(worker, None)
            exact = False
        held = index.held_bytes("model", asked)
        for name in "abc":
            longest = max((len(each) for each in truth[name] if asked.startswith(each)), default=0)
            assert held.get(name, 0) == longest if exact else held.get(name, 0) <= longest
    if exact:
        assert len(index) == sum(len(each) for each in truth.values())
    for name in "abc":
        index.forget(name)
    assert len(index) == 0
    assert index.held_bytes("model", asked) == {}
