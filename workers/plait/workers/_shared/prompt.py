"""How the pieces of a prompt become token ids, and which token ids end an output, with a Hugging Face tokenizer."""

from __future__ import annotations

import itertools
import json
import re
from array import array
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from plait.core.chat import Message, assistant_message, user, with_prompt
from plait.core.errors import EngineError, Rejected
from plait.core.ops import Function, ModelCall, Ref, Text, Tokens
from plait.core.sampling import THOUGHTS, Thinking
from plait.core.tools.calls import loads
from plait.core.tools.turns import without_words

from .function_calls import function

OPEN, CLOSE = "<think>", "</think>"
SWITCH = "enable_thinking"
"""What chat templates call the switch."""
ENDED = "<think>\n\n</think>\n\n"
"""The beginning of an answer whose thoughts are over before they begin."""


def wanted(think: ModelCall) -> Thinking:
    """Return whether a call shall think: a label is the first token of the answer, so it is asked for without."""
    sampling = think.sampling
    return "off" if sampling.thinking == "auto" and sampling.labels else sampling.thinking


def most(think: ModelCall) -> int:
    """Return the most tokens that the thoughts of a call may have."""
    return THOUGHTS if think.sampling.thinking_tokens is None else think.sampling.thinking_tokens


def rendered(think: ModelCall, template: str) -> ModelCall:
    """Return a call that turns thinking on or off in the chat template, if possible: by its switch, or by an answer
    that begins after empty thoughts."""
    asked = wanted(think)
    if not think.chat or asked == "auto" or not thinks(template):
        return think
    if SWITCH in template:
        switched = {"chat_template_kwargs": {SWITCH: asked == "on", **think.sampling.chat_template_kwargs}}
        return think.model_copy(update={"sampling": think.sampling.model_copy(update=switched)})
    return think if asked == "on" or CLOSE in think.begin else think.model_copy(update={"begin": ENDED + think.begin})


def thinks(template: str) -> bool:
    """Whether a model thinks before it answers, by its chat template."""
    return SWITCH in template or OPEN in template


OFFLOAD_CHARS = 2000
"""Characters from which a prompt is rendered and encoded in a thread, so that it does not block the loop."""
PIECE_CHARS = 4096
"""Minimum number of characters in a piece of a long text, except the last."""
TAIL_TOKENS = 16
"""Tokens of a prompt that are decoded with what follows, to see how the latter's text begins."""


class Stops(NamedTuple):
    """What ends an output: token ids that the engine compares, and texts that it looks for."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]


class PromptIds(NamedTuple):
    """A prompt as token ids."""

    ids: list[int]
    anew: str = ""
    """Reason why a continued conversation was rendered again."""


class PromptKey(tuple[Hashable, ...]):
    """What a prompt is made from. Its messages and functions are compared by identity, as they are long and calls share
    them; `call` keeps them alive."""

    call: ModelCall


def prompt_key(call: ModelCall) -> PromptKey:
    """Return the key of a call's prompt."""
    sampling = call.sampling
    options = (call.chat, call.begin, call.heard, call.tool_choice, sampling.reasoning_effort)
    texts = [part.text if isinstance(part, Text) else id(part) for part in (*call.context, None, *call.prompt)]
    shared = (*map(id, call.messages), None, *map(id, call.tools))
    key = PromptKey((*options, repr(sampling.chat_template_kwargs), *texts, *shared))
    key.call = call
    return key


def is_long(call: ModelCall) -> bool:
    """Whether a prompt has at least `OFFLOAD_CHARS` characters or token ids."""
    parts = (part.ids if isinstance(part, Tokens) else part.text for part in (*call.prompt, *call.context)
             if not isinstance(part, Ref))  # fmt: skip
    texts = itertools.chain(
        parts, (message.text for message in call.messages), (tool.description for tool in call.tools)
    )
    return any(size >= OFFLOAD_CHARS for size in itertools.accumulate(map(len, texts)))


class Prompter:
    """A tokenizer with the rules by which prompts and stop texts are put to it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._fast: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._encode = lru_cache(maxsize=1024)(self._encode_uncached)
        self.stops = lru_cache(maxsize=256)(self._stops)
        self.make = lru_cache(maxsize=64)(lambda key: self._make(key.call))
        """Makes a prompt from its key, once."""
        tokens = find_split_tokens(tokenizer, self.template)
        self._split_before = re.compile("|".join(map(re.escape, tokens)) or "(?!)")
        self._encode_piece = lru_cache(maxsize=512)(lambda piece: array("I", self._encode_uncached(piece, False)))

    def ids(self, think: ModelCall) -> list[int]:
        """Return the token ids of a resolved prompt.

        Text that opens the prompt is tokenised as the tokenizer does by default (with its opening special token, if it
        has one), later text without. Token ids pass untouched. With `chat` and a chat template, the prompt is a user's
        message at the end of the conversation, and `begin` the start of the model's turn; without a template all of it
        is plain text.
        """
        return self.prompt(think).ids

    def prompt(self, think: ModelCall) -> PromptIds:
        """Do the same, and return whether a continued conversation was rendered again. Calls with the same prompt share
        the list of ids: do not change it. Raises `EngineError` for images, and for a conversation or settings that the
        template does not take."""
        return self.make(prompt_key(think)) if think.chat or is_long(think) else self._make(think)

    def _make(self, think: ModelCall) -> PromptIds:
        if any(message.images for message in think.messages):
            raise Rejected("this engine reads no images: give text alone, or use a server whose model sees (http)")
        if think.chat and self.template:
            return self._chat(think)
        if think.sampling.chat_template_kwargs or think.sampling.reasoning_effort:
            raise EngineError(
                "`chat_template_kwargs` and `reasoning_effort` go to a chat template, and "
                + ("this step is no chat" if self.template else "this model has none")
            )
        out: list[int] = []
        for place, part in enumerate(think.parts):
            match part:
                case Tokens(ids=ids, within=None):
                    out += ids
                case Tokens(ids=ids, within=str(text)):
                    out += self.cut(ids, text)
                case Text(text=text):
                    out += self._encode_uncached(text, True) if place == 0 else self._encode_long(text)
                case _:
                    raise ValueError(f"a worker's prompt holds only text and tokens, not {part.kind!r}")
        if think.begin:
            out += self._encode(think.begin, False)
        return PromptIds(out)

    def labels(self, labels: Sequence[str]) -> dict[str, int]:
        """Return the token id of each label. Raises `EngineError` for one that is not a token of this model."""
        token_of: dict[str, int] = {}
        for label in labels:
            ids = self._encode(label, False)
            if len(ids) > 1:  # a tokenizer that marks the beginning of words says it of the text's, too
                before = self._encode("\n", False)
                both = self._encode("\n" + label, False)
                ids = both[len(before) :] if both[: len(before)] == before else ids
            if len(ids) != 1:
                raise EngineError(
                    f"the label {label!r} is {len(ids)} tokens of this model, and must be one: take single digits or "
                    "letters as labels"
                )
            token_of[label] = ids[0]
        return token_of

    def count(self, text: str) -> int:
        """Return the number of tokens of a text alone."""
        return len(self._encode_uncached(text, False))

    def writes(self, text: str) -> bool:
        """Whether the tokenizer can write a text, character for character: one of whole words has no quotes, say."""
        return self.text(self._encode(text, False)) == text

    @property
    def template(self) -> str:
        """The model's chat template; empty if it has none."""
        text: Any = getattr(self.tokenizer, "chat_template", None)
        return text if isinstance(text, str) else "\n".join(text.values()) if isinstance(text, dict) else ""

    def rewrites(self) -> str:
        """Return the change of the chat template to earlier turns that prevents a continuation token for token, or an
        empty text. It is found with a small conversation."""
        if not self.template:
            return ""
        asked = [user("a")]
        for earlier, what in (
            ("s", "it writes an earlier answer in another way than the model did"),
            ("<think>\nr\n</think>\n\ns", "it takes the reasoning out of earlier turns"),
        ):
            try:
                before = self._render(asked, ModelCall(prompt="a", chat=True), True) + earlier
                after = self._render(
                    [*asked, assistant_message(earlier), user("b")], ModelCall(prompt="a", chat=True), True
                )
            except EngineError as error:
                return str(error)
            if not after.startswith(before):
                return what
        return ""

    def roles(self) -> str:
        """Return a description of the parts of a conversation that the chat template omits (roles or messages); empty
        if it omits none, or without a template."""
        if not self.template:
            return ""
        first, second, third = names = ("Zone", "Ztwo", "Zthree")
        asked = ModelCall(prompt="a", chat=True)
        try:
            text = self._render([user(first), assistant_message(second), user(third)], asked, True)
            swapped = self._render([user(first), user(second), user(third)], asked, True)
        except EngineError:  # some accept only one order of turns; `rewrites` reports other faults
            return ""
        if not all(name in text for name in names):
            return "it leaves out earlier turns of a conversation"
        return "it writes no roles, so who said what is lost" if text == swapped else ""

    def _chat(self, think: ModelCall) -> PromptIds:
        messages = with_prompt(think.messages, "".join(self._text_of(part) for part in think.prompt))
        why = ""
        if think.context:
            ids = [id_ for part in think.context if isinstance(part, Tokens) for id_ in part.ids]
            known = all(isinstance(part, Tokens) for part in think.context)
            so_far = self.text(ids) if known else ""
            for raw in (True, False):  # as the model wrote its turns, and as the template writes them
                try:
                    text = self._render(messages, think, raw)
                except EngineError as error:
                    why = str(error)
                    continue
                if known and text.startswith(so_far):
                    return PromptIds([*ids, *self._encode_long(text[len(so_far) :] + think.begin)])
            why = "the chat template writes an earlier turn in another way" if known else "no token ids of it are known"
        text = self._render(messages, think, False)
        return PromptIds(self._encode_long(text + think.begin), why)

    def _render(self, messages: Sequence[Message], think: ModelCall, raw: bool) -> str:
        """Return a conversation through the chat template, up to where the model's next turn begins; `raw`: with the
        model's own turns as it wrote them."""
        options: dict[str, Any] = dict(think.sampling.chat_template_kwargs)
        if think.sampling.reasoning_effort is not None:
            options["reasoning_effort"] = think.sampling.reasoning_effort
        for name in options:
            if name not in self.template:
                raise EngineError(f"the model's chat template knows no {name!r}: leave it out")
        if think.tools and "tools" in self.template:
            options["tools"] = [_template_function(tool) for tool in think.tools]
            messages = without_words(messages, think.tools)
        elif think.tools and think.tool_choice not in ("auto", "none"):
            messages = _describe_functions(messages, think.tools)
        end = getattr(self.tokenizer, "eos_token", None) or ""
        given = [_for_template(message, end, raw) for message in messages]
        try:
            return self.tokenizer.apply_chat_template(given, add_generation_prompt=True, tokenize=False, **options)
        except Exception as error:  # jinja's, and what a template raises by itself
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise EngineError(f"the model's chat template does not take this conversation: {reason}") from None

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens included, as the engine decodes it: without the cleaning up of
        spaces that some tokenizers are set to."""
        if self._fast is not None:
            return self._fast.decode(list(ids), skip_special_tokens=False)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def after(self, context: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of `ids` as a continuation of `context`."""
        tail = context[-TAIL_TOKENS:]
        head, whole = self.text(tail), self.text([*tail, *ids])
        return whole[len(head) :] if whole.startswith(head) else self.text(ids)

    def decodes_late(self, context: Sequence[int]) -> bool:
        """Whether the text of an output can be decoded at its end, all at once: not where the context ends within a
        character, nor with tokenizers that are not known to decode as the engine does."""
        return self._fast is not None and not self.text(context[-TAIL_TOKENS:]).endswith("\ufffd")

    def within(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the longest start of `ids` whose text lies within `text`: of an output that was cut before a stop
        text, the tokens with no part in that stop text."""
        bare = text.lstrip()  # some tokenizers drop the first space when they decode
        for length in range(len(ids), 0, -1):
            piece = self.text(ids[:length])
            if text.startswith(piece) or bare.startswith(piece):
                return list(ids[:length])
        return []

    def cut(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the ids of `text`, with which the text of `ids` begins: as many of the ids as lie within it, then what
        is left of it tokenised."""
        low, high = 0, len(ids)
        while low < high:  # the text of the ids grows with their number
            middle = (low + high + 1) // 2
            low, high = (middle, high) if len(self.text(ids[:middle])) <= len(text) else (low, middle - 1)
        kept = self.within(ids[:low], text)
        beginning = self.text(kept)
        whole = (
            text if text.startswith(beginning) else text.lstrip()
        )  # some tokenizers drop the first space when they decode
        rest = whole[len(beginning) :]
        return kept + list(self._encode_uncached(rest, False)) if rest else kept

    def _text_of(self, part: Any) -> str:
        return self.text(part.ids) if isinstance(part, Tokens) else part.text

    def _encode_long(self, text: str) -> list[int]:
        """Return the ids of a text of any length. Of one that continues another, only the new pieces are encoded."""
        ids: list[int] = []
        begin = 0
        while begin < len(text):
            match = self._split_before.search(text, begin + PIECE_CHARS)
            end = match.start() if match is not None else len(text)
            ids += self._encode_piece(text[begin:end])
            begin = end
        return ids

    def _encode_uncached(self, text: str, opening: bool) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=opening))

    def _stops(self, stop: tuple[str, ...]) -> Stops:
        """Sort stop texts into token ids and texts to look for.

        A text that is one token becomes that token's id, for the engine stops on an id at once and without holding
        text back. It is still looked for as text, unless it is an added token or a word of a word-level vocabulary:
        those come as that token or not at all, while "\\n" may also come inside another token.
        """
        ids: list[int] = []
        texts: list[str] = []
        for text in stop:
            alone = self.tokenizer.encode(text, add_special_tokens=False)
            single = len(alone) == 1 and self.text(alone) == text
            if single:
                ids.append(alone[0])
            if not single or not self._whole_words(text):
                texts.append(text)
        return Stops(tuple(ids), tuple(texts))

    def _whole_words(self, text: str) -> bool:
        if text in self.tokenizer.get_added_vocab():
            return True
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return type(getattr(backend, "model", None)).__name__ == "WordLevel"


def find_split_tokens(tokenizer: Any, template: str) -> list[str]:
    """Return the special tokens of a chat template before which a text may be split without a change of its ids.

    A fast tokenizer splits a text at its special tokens first, and encodes what lies between two of them alone.
    """
    if (fast := getattr(tokenizer, "backend_tokenizer", None)) is None:
        return []
    # `normalized` tokens are found later, in each piece alone.
    added = [token for token in fast.get_added_tokens_decoder().values() if not token.normalized]
    # `lstrip` and `single_word` depend on the character before a token.
    free = [token.content for token in added if not (token.lstrip or token.single_word)]
    # A token that begins before this one and overlaps it has this one's first character within it.
    safe = [token for token in free if token in template and not any(token[0] in other.content[1:] for other in added)]
    return [token for token in safe if _is_split(tokenizer, token)]


def _is_split(tokenizer: Any, token: str) -> bool:
    """Whether an example is split before a token: a tokenizer may have its own way of encoding."""
    texts = (f"A b \n{token}c d", "A b \n", f"{token}c d")
    whole, *ids = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    return whole == [id_ for piece in ids for id_ in piece]


def _template_function(tool: Function) -> dict[str, Any]:
    """Return a function as vLLM's server gives it to a template: with the place of a description that it has not."""
    told = function(tool)
    return {**told, "function": {"name": tool.name, "description": None, **told["function"]}}


def _describe_functions(messages: Sequence[Message], tools: Sequence[Function]) -> Sequence[Message]:
    """Return a conversation whose first message describes the functions, for a template without a place for them."""
    text = "You may call these functions:\n" + "\n".join(json.dumps(function(tool)["function"]) for tool in tools)
    if messages and messages[0].role in ("system", "developer"):
        return [messages[0].model_copy(update={"content": f"{messages[0].text}\n\n{text}"}), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def _for_template(message: Message, end: str, raw: bool) -> Mapping[str, Any]:
    """Return a message as chat templates read it: the arguments of calls as objects."""
    if raw and message.said:
        return {"role": "assistant", "content": message.said.removesuffix(end) if end else message.said}
    role = "system" if message.role == "developer" else message.role
    content = message.text.removesuffix(end) if end and role == "assistant" else message.text
    fields: dict[str, Any] = {"role": role, "content": content}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": read
                    if isinstance(read := loads(call.function.arguments), dict)
                    else call.function.arguments,
                },
            }
            for call in message.tool_calls
        ]
    return fields
