"""Conversations through chat templates: a turn goes on token for token where the template allows, else all is rendered
anew and the prompt says why."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from plait.core.chat import Message, assistant_message, user
from plait.core.errors import EngineError
from plait.core.ops import Function, ModelCall, Text, Tokens
from plait.core.sampling import Sampling
from plait.workers._shared.prompt import Prompter

TURN = "<|im_start|>{{ m.role }}\n"
CHATML = (
    "{% for m in messages %}" + TURN + "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS = CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1].lstrip('\n') }}")
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
THINKS = CHATML + "{% if enable_thinking %}<think>\n{% endif %}"


def prompter(template: str | None) -> Prompter:
    letters = pre_tokenizers.ByteLevel.alphabet()
    inner = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(sorted(letters))}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return Prompter(tokenizer)


def second(made: Prompter, said: str, *new: Message, **more: Any) -> tuple[list[int], list[int], str]:
    """Return the context after a first turn in which the model said something, the prompt of the second, and why it was
    rendered anew."""
    first = ModelCall(messages=[Message(role="user", content="2 + 2?")], chat=True, **more)
    context = made.ids(first) + made.tokenizer.encode(said, add_special_tokens=False)
    messages = (*first.messages, assistant_message(said), *new)
    given = first.model_copy(update={"messages": messages, "heard": 2, "context": (Tokens(ids=tuple(context)),)})
    ids, anew = made.prompt(given)
    return context, ids, anew


def test_a_turn_is_added_token_for_token():
    made = prompter(CHATML)
    context, ids, anew = second(made, "It is four.", user("And 3 + 3?"))
    assert not anew
    assert ids[: len(context)] == context
    added = made.text(ids[len(context) :])
    assert added == "<|im_end|>\n<|im_start|>user\nAnd 3 + 3?<|im_end|>\n<|im_start|>assistant\n"


def test_an_end_token_that_was_kept_is_not_doubled():
    made = prompter(CHATML)
    context, ids, anew = second(made, "Four.<|im_end|>", user("And 3 + 3?"))
    assert not anew
    assert made.text(ids[len(context) :]).startswith("\n<|im_start|>user")


def test_calls_go_on_as_the_model_wrote_them():
    made = prompter(CHATML)
    said = 'Let me see.\n<tool_call>{"arguments":{"a":2},  "name":"add"}</tool_call>'
    result = Message(role="tool", content="4", tool_call_id="call00001")
    context, ids, anew = second(made, said, result, tools=[Function(name="add")])
    assert not anew
    assert ids[: len(context)] == context
    assert made.text(ids).endswith("<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_strips_reasoning_is_told_of_at_start_and_in_the_prompt():
    made = prompter(STRIPS)
    assert "reasoning" in made.rewrites()
    assert prompter(CHATML).rewrites() == ""
    context, ids, anew = second(made, "<think>\n2 and 2\n</think>\n\nFour.", user("And 3 + 3?"))
    assert "another way" in anew
    assert "2 and 2" not in made.text(ids)
    assert made.text(ids).startswith("<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>")
    context, ids, anew = second(made, "Four.", user("And 3 + 3?"))  # nothing to strip
    assert not anew
    assert ids[: len(context)] == context


def test_what_the_template_does_not_take_is_refused_in_words():
    made = prompter(STRICT)
    with pytest.raises(EngineError, match="no system role"):
        made.ids(ModelCall(messages=[Message(role="system", content="x"), user("y")], chat=True))
    with pytest.raises(EngineError, match="knows no 'enable_thinking'"):
        made.ids(ModelCall(prompt="x", chat=True, sampling=Sampling(chat_template_kwargs={"enable_thinking": False})))
    with pytest.raises(EngineError, match="this model has none"):
        prompter(None).ids(ModelCall(prompt="x", chat=True, sampling=Sampling(reasoning_effort="low")))
    image = Message.model_validate(
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.y/z.png"}}]}
    )
    with pytest.raises(EngineError, match="no images"):
        made.ids(ModelCall(messages=[image], prompt="What is it?", chat=True))


def test_values_reach_the_template():
    made = prompter(THINKS)
    assert made.text(
        made.ids(ModelCall(prompt="x", chat=True, sampling=Sampling(chat_template_kwargs={"enable_thinking": True})))
    ).endswith("<think>\n")


def test_a_model_without_a_template_gets_a_transcript_that_only_grows():
    made = prompter(None)
    context, ids, anew = second(made, " Four.", user("And 3 + 3?"))
    assert not anew
    assert made.text(ids) == "2 + 2? Four.\n\nUser: And 3 + 3?\n\nAssistant:"
    assert ids[: len(context)] == context


def test_a_context_that_is_known_as_text_alone_is_rendered_anew():
    made = prompter(CHATML)
    think = ModelCall(messages=[user("a"), assistant_message("b"), user("c")], chat=True)
    ids, anew = made.prompt(think.model_copy(update={"heard": 2, "context": (Text(text="a"),)}))
    assert anew == "no token ids of it are known"
    assert ids == made.ids(think)


ALONE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
LAST = "{{ messages[-1].content }}"


@pytest.mark.parametrize(("template", "lost"), [(ALONE, "no roles"), (LAST, "earlier turns"), (CHATML, ""), (None, "")])
def test_a_template_without_roles_is_told_from_one_for_conversations(template: str | None, lost: str) -> None:
    said = prompter(template).roles()
    assert lost in said and bool(said) == bool(lost)
