"""The prefix tree: where contexts meet, and who computed or reused what."""

from __future__ import annotations

from hypothesis import given, strategies as st

from plait.apps.trace.prefixes import CallContext, prefix_tree
from plait.core.ops import Text
from plait.core.result import Result, Usage


def by_ids(
    step: str, prompt: tuple[int, ...], output: tuple[int, ...], cached: int = 0, line=frozenset()
) -> CallContext:
    usage = Usage(prompt=len(prompt), cached=cached, completion=len(output))
    return CallContext(step, (), Result(value="", prompt_ids=prompt, token_ids=output), "", usage, frozenset(line))


def shape(segments):
    return [(each.parent, each.start, each.length, [contact.step for contact in each.contacts]) for each in segments]


def test_a_shared_prompt_is_one_segment():
    segments, unit = prefix_tree([by_ids("a", (1, 2, 3), (7,)), by_ids("b", (1, 2, 3), (8, 9), cached=3)])
    assert unit == "tokens"
    assert shape(segments) == [(None, 0, 3, ["a", "b"]), (0, 3, 1, ["a"]), (0, 3, 2, ["b"])]
    first, second = segments[0].contacts
    assert (first.cached, first.computed, first.generated) == (0, 3, 0)
    assert (second.cached, second.computed, second.generated) == (3, 0, 0)


def test_prompts_part_where_they_differ():
    segments, _ = prefix_tree([by_ids("a", (1, 2, 3, 4), ()), by_ids("b", (1, 2, 5), (), cached=2)])
    assert shape(segments) == [(None, 0, 2, ["a", "b"]), (0, 2, 2, ["a"]), (0, 2, 1, ["b"])]


def test_equal_outputs_are_not_shared_for_each_was_computed():
    segments, _ = prefix_tree([by_ids("a", (1,), (2, 3)), by_ids("b", (1,), (2, 3))])
    assert shape(segments) == [(None, 0, 1, ["a", "b"]), (0, 1, 2, ["a"]), (0, 1, 2, ["b"])]


def test_a_thread_goes_on_in_the_output_of_its_parent():
    calls = [
        by_ids("twin", (1,), (2, 3)),
        by_ids("parent", (1,), (2, 3)),
        by_ids("child", (1, 2, 3, 4), (5,), cached=3, line={"parent"}),
    ]
    segments, _ = prefix_tree(calls)
    read = next(each for each in segments if [contact.step for contact in each.contacts] == ["parent", "child"])
    assert (read.start, read.length) == (1, 2)
    assert [(contact.cached, contact.generated) for contact in read.contacts] == [(0, 2), (2, 0)]


def test_a_stopped_call_without_ids_counts_what_it_used():
    stopped = CallContext("b", (), None, "half a", Usage(prompt=4, cached=2, completion=3), frozenset())
    segments, unit = prefix_tree([by_ids("a", (1, 2), (3,)), stopped])
    assert unit == "tokens"
    own = [contact for each in segments for contact in each.contacts if contact.step == "b"]
    assert [sum(getattr(each, part) for each in own) for part in ("cached", "computed", "generated")] == [2, 2, 3]


def test_words_where_there_are_no_ids():
    usage = Usage(prompt=10, cached=5, completion=2)
    said = CallContext("a", (Text(text="one two three four"),), Result(value=" five six"), "", usage, frozenset())
    segments, unit = prefix_tree([said])
    assert unit == "words"
    assert [(each.text, each.length) for each in segments] == [("one two three four", 4), (" five six", 2)]
    assert segments[0].contacts[0].cached == 2  # half of the server's tokens, so half of the words


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), max_size=8).map(tuple),
            st.lists(st.integers(0, 2), max_size=6).map(tuple),
            st.integers(0, 8),
        ),
        max_size=12,
    )
)
def test_every_token_of_every_call_stands_in_it_once(calls):
    contexts = [
        by_ids(f"s{k}", (9, *prompt), output, min(cached, len(prompt)))
        for k, (prompt, output, cached) in enumerate(calls)
    ]
    segments, _ = prefix_tree(contexts)
    for each in segments:
        assert each.parent is None or each.parent < each.id
        above = segments[each.parent] if each.parent is not None else None
        assert each.start == (0 if above is None else above.start + above.length)
        assert each.contacts
        if above is not None:
            assert {contact.step for contact in each.contacts} <= {contact.step for contact in above.contacts}
    for context in contexts:
        own = [(each, contact) for each in segments for contact in each.contacts if contact.step == context.step]
        assert sum(contact.cached for _, contact in own) == context.usage.cached
        assert sum(contact.computed for _, contact in own) == context.usage.prompt - context.usage.cached
        assert sum(contact.generated for _, contact in own) == context.usage.completion
        assert sum(each.length for each, _ in own) == context.usage.prompt + context.usage.completion
