"""Messages: what is read, what is refused, what a model's text is as a message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from plait.core.chat import Message, assistant_message, read_messages, transcript, with_prompt
from plait.core.errors import FieldError
from plait.core.values import split_reasoning

USER = {"role": "user", "content": "What is 2 + 2?"}
EVIL = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://x.y/z.png"}}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}


def test_a_conversation_of_every_role_is_read_and_written_as_it_was():
    given = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look:"}, IMAGE]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "a"},
    ]  # fmt: skip
    assert [each.as_json() for each in read_messages(given)] == given


def test_fields_that_libraries_leave_empty_are_passed_over():
    full = {**USER, "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    assert read_messages([full]) == (Message(role="user", content="What is 2 + 2?"),)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("hi", "not a list of messages"),
        ({"role": "user"}, "not a list of messages"),
        ([], "is empty"),
        (["hi"], r"messages\[0\] is a str and no message"),
        ([{"role": "robot", "content": "x"}], r"messages\[0\]: `role`"),
        ([{"role": "user"}], "no `content`"),
        ([{"role": "user", "content": 3}], r"messages\[0\]: `content"),
        ([{"role": "user", "content": "x", "contents": 1}], "did you mean 'content'"),
        ([{"role": "user", "content": [{"type": "sound"}]}], r"messages\[0\]: `content"),
        ([{"role": "user", "content": [{"type": "value", "step": "think"}]}], "only a plan"),
        ([{"role": "user", "content": [EVIL]}], "no image"),
        ([{"role": "system", "content": "x"}], "no user's message"),
        ([USER, {"role": "assistant", "content": "4", "said": "5"}, USER], "set by the machine"),
        ([USER, {"role": "tool", "content": "4", "tool_call_id": "a"}], "no such call"),
        ([USER, {"role": "tool", "content": "4"}], "tool_call_id"),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}], "ends before the result of a"),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}, USER], "comes before the result of a"),
        ([USER, {"role": "assistant", "tool_calls": [CALL, CALL]}], "two calls have the id 'a'"),
        ([{**USER, "tool_calls": [CALL]}], "only an assistant"),
        ([{"role": "assistant", "content": [IMAGE]}, USER], "only a user's message may have images"),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_refused_in_words(given: object, words: str):
    with pytest.raises(FieldError, match=words):
        read_messages(given)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "tool_calls", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)

ALMOST = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "tool", "assistant"])},
    optional={"content": ANY, "tool_calls": ANY, "tool_call_id": ANY},
)


@given(st.lists(ALMOST | ANY, max_size=4))
def test_anything_is_read_or_refused(given: object):
    try:
        messages = read_messages(given)
    except FieldError:
        return
    json.dumps([each.as_json() for each in messages]).encode()


def test_a_models_text_has_reasoning_and_calls_apart():
    text = '<think>\nadd them</think>\nLet me see.\n<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>\n'
    message = assistant_message(text, 3)
    assert (message.reasoning, message.content) == ("add them", "Let me see.")
    assert [(each.id, each.function.name, each.function.arguments) for each in message.tool_calls] == [
        ("call00003", "add", '{"a": 2}')
    ]
    assert message.said == text


@pytest.mark.parametrize(
    "text", ["<tool_call>{]</tool_call>", '<tool_call>{"name": "../x"}</tool_call>', "<tool_call>"]
)
def test_calls_that_cannot_be_read_stay_text(text: str):
    assert assistant_message(text).content == text
    assert not assistant_message(text).tool_calls


@given(st.text(st.sampled_from('<>/think tool_call{}"name:,[]argumets1'), max_size=60))
def test_any_text_of_a_model_is_a_message(text: str):
    message = assistant_message(text)
    assert message.said == text
    read_messages([USER, message.model_copy(update={"said": "", "tool_calls": (), "content": "x"}), USER])


def test_reasoning_that_was_cut_off_is_all_there_is():
    assert split_reasoning("<think>so far") == ("so far", "")
    assert split_reasoning("opened by the template</think>4") == ("opened by the template", "4")
    assert split_reasoning("4") == ("", "4")


def test_a_transcript_only_grows():
    opening = [Message(role="system", content="Be brief."), Message(role="user", content="2 + 2?")]
    first = "".join(map(str, transcript(opening))) + "\n\nAssistant:"
    whole = [*opening, assistant_message(" 4."), Message(role="user", content="And 3 + 3?")]
    assert "".join(map(str, transcript(whole))).startswith(first + " 4.")
    bare = "".join(map(str, transcript(whole[1:])))
    assert bare == "2 + 2? 4.\n\nUser: And 3 + 3?"


def test_a_prompt_after_a_users_message_belongs_to_it():
    assert with_prompt([Message(role="user", content="Look.")], "Well?")[-1].content == "Look.\nWell?"
    assert [each.role for each in with_prompt([assistant_message("4")], "Well?")] == ["assistant", "user"]


def test_ids_of_calls_are_unique_in_a_conversation_of_many_runs_and_the_same_on_replay():
    said = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 3
    ids = [each.id for run in ("run-1", "run-2") for each in assistant_message(said, of=run).tool_calls]
    assert len(set(ids)) == 6 and all(len(each) == 9 and each.isalnum() for each in ids)
    assert [each.id for each in assistant_message(said, of="run-1").tool_calls] == ids[:3]
