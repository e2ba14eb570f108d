"""Messages of a conversation in the format of OpenAI's chat API, and the conversion of a model's text into a message.

`read_messages` parses messages from JSON and checks each against its predecessors; `Message.as_json` returns JSON. For
a model without a chat template, `transcript` makes plain text; a further turn only appends text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, cast

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidationError,
    model_validator,
)

from .errors import FieldError
from .messages import did_you_mean, explain, first_of_each, json_path
from .tools.calls import CLOSE, OPEN, call_text, loads, read_calls_in
from .values import Frozen, StepName, split_reasoning, writable

MOST_CALLS = 128
"""Maximum calls of one turn; further calls stay text."""


class TextPart(Frozen):
    """Text in a message."""

    type: Literal["text"] = "text"
    text: str


class ImageUrl(Frozen):
    """Location of an image."""

    url: str = Field(min_length=1)
    """An `https:` address, or the image itself as `data:image/…;base64,…`."""
    detail: Literal["auto", "low", "high"] | None = Field(default=None, exclude_if=lambda detail: detail is None)

    @model_validator(mode="after")
    def _there(self) -> ImageUrl:
        if not self.url.startswith(("https://", "http://", "data:image/")):
            raise ValueError(f"{self.url[:40]!r} is no image: give an https: address or data:image/…;base64,…")
        return self


class ImagePart(Frozen):
    """An image in a message, for a worker whose model sees."""

    type: Literal["image_url"] = "image_url"
    image_url: ImageUrl


class ValuePart(Frozen):
    """The value of another step, as text, in a message of a plan."""

    type: Literal["value"] = "value"
    step: StepName


ContentPart = Annotated[TextPart | ImagePart | ValuePart, Field(discriminator="type")]


class FunctionCall(Frozen):
    """A function's name and its arguments as JSON text. A model wrote the text, so it may be invalid."""

    name: str = Field(min_length=1, max_length=200)
    arguments: str = "{}"


class MessageToolCall(Frozen):
    """A call in an assistant's message. The `tool` message with the same id has the result."""

    id: str = Field(min_length=1, max_length=200)
    type: Literal["function"] = "function"
    function: FunctionCall


Role = Literal["system", "developer", "user", "assistant", "tool"]


def _as_content(value: object) -> object:
    """Turn the strings among the parts of a content into parts."""
    if isinstance(value, list | tuple):
        parts = cast("Sequence[object]", value)
        return tuple({"type": "text", "text": part} if isinstance(part, str) else part for part in parts)
    return value


def _form(value: object) -> str:
    return "none" if value is None else "parts" if isinstance(value, tuple) else "text"


Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[tuple[ContentPart, ...], Tag("parts")] | Annotated[None, Tag("none")],
    Discriminator(_form),
    BeforeValidator(_as_content),
]


class Message(Frozen):
    """One message."""

    role: Role
    content: Content = None
    """Text, or parts. Only an assistant message with tool calls may omit the content."""
    name: str | None = Field(default=None, max_length=200, exclude_if=lambda name: name is None)
    """Name of the speaker among several."""
    tool_calls: tuple[MessageToolCall, ...] = Field(default=(), exclude_if=lambda calls: not calls)
    """Tool calls of an assistant."""
    tool_call_id: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """For a tool: id of the call with this result."""
    reasoning: str = Field(
        default="",
        validation_alias=AliasChoices("reasoning", "reasoning_content"),
        exclude_if=lambda reasoning: not reasoning,
    )
    """For an assistant: its reasoning before the text."""
    said: str = Field(default="", exclude_if=lambda value: not value)
    """For an assistant's turn of this run: the model's raw text with reasoning and calls. The machine sets it, so that
    a call can continue the turn token for token."""

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        if self.role != "assistant" and (self.tool_calls or self.reasoning or self.said):
            raise ValueError(f"only an assistant's message has `tool_calls` and `reasoning`, not the {self.role}'s")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("`tool_call_id` goes with the role 'tool', and must be given there")
        if self.content is None and not self.tool_calls:
            raise ValueError(f"the {self.role}'s message has no `content`")
        if self.role != "user" and any(isinstance(part, ImagePart) for part in self.parts):
            raise ValueError(f"only a user's message may have images, not the {self.role}'s")
        return self

    @property
    def parts(self) -> tuple[ContentPart, ...]:
        """The content as parts."""
        if isinstance(self.content, str):
            return (TextPart(text=self.content),) if self.content else ()
        return self.content or ()

    @property
    def text(self) -> str:
        """The text of the content; images and values left out."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def images(self) -> int:
        """Number of images."""
        return sum(isinstance(part, ImagePart) for part in self.parts)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the message in the format of OpenAI's API, with reasoning as `reasoning_content`."""
        fields = self.model_dump(mode="json", exclude={"said", "reasoning"})
        return fields | ({"reasoning_content": self.reasoning} if self.reasoning else {})


def user(content: str | Sequence[ContentPart | str]) -> Message:
    """Return a user's message."""
    return Message(role="user", content=cast("str", content))


def assistant_message(text: str, first: int = 1, of: str = "") -> Message:
    """Return a model's text as an assistant's message with separate reasoning, calls and text. Invalid calls stay in
    the text. The ids of the calls are `call_id`s from `first` on."""
    reasoning, rest = split_reasoning(text)
    calls: list[MessageToolCall] = []

    def take_call(body: str) -> bool:
        read = [call for call in read_calls_in(loads(body)) if not call.wrong]
        if not read or len(calls) + len(read) > MOST_CALLS:
            return False
        for call in read:
            function = FunctionCall(name=call.name[:200], arguments=json.dumps(call.arguments, ensure_ascii=False))
            calls.append(MessageToolCall(id=call_id(first + len(calls), of), function=function))
        return True

    head, *parts = rest.split(OPEN)
    kept = [head]
    for part in parts:
        body, close, after = part.partition(CLOSE)
        kept.append(after if close and take_call(body) else OPEN + part)
    content = "".join(kept)
    # A text stream cannot retract spaces that it has sent.
    content = content.strip() if reasoning else content.rstrip() if calls else content
    return Message(role="assistant", content=content, tool_calls=tuple(calls), reasoning=reasoning, said=text)


def call_id(number: int, of: str = "") -> str:
    """Return the id of a conversation's n-th call: nine letters and digits, as the strictest templates require. `of`
    names a run and makes the ids unique to this run; a replay gives the same ids.

    >>> call_id(1), call_id(1, of="a run")
    ('call00001', '0708a5b11')
    """
    return hashlib.blake2b(f"{of} {number}".encode(), digest_size=5).hexdigest()[:9] if of else f"call{number:05d}"


# -- a conversation ----------------------------------------------------------------------------------------------------


def read_messages(given: object, what: str = "messages") -> tuple[Message, ...]:
    """Return a caller's conversation, given as messages, dictionaries, or library objects with `model_dump`. Fields
    that are `null` or empty are ignored.

    Raises `FieldError` with the position of an invalid message, of calls without results, or of results without calls,
    and for a conversation without a user message.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise FieldError(f'{what} is not a list of messages. Example: [{{"role": "user", "content": "…"}}]', what)
    items = cast("Sequence[object]", given)
    messages = tuple(_read(item, f"{what}[{place}]") for place, item in enumerate(items))
    if not messages:
        raise FieldError(f"{what} is empty: give at least one user's message", what)
    if not any(message.role == "user" for message in messages):
        raise FieldError(f"{what} has no user's message: say what is asked", what)
    _check_calls(messages, what)
    return messages


def _read(given: object, what: str) -> Message:
    if isinstance(given, Message):
        fields: object = given.model_dump(mode="json")
    elif isinstance(given, BaseModel):
        fields = given.model_dump(mode="json", exclude_none=True)
    else:
        fields = given
    if not isinstance(fields, Mapping):
        kind = type(given).__name__
        raise FieldError(f'{what} is a {kind} and no message: write {{"role": "user", "content": "…"}}', what)
    named = cast("Mapping[object, object]", fields)
    kept = {
        str(key): value for key, value in named.items() if key in ("role", "content") or value not in (None, [], "")
    }
    if isinstance(calls := kept.get("tool_calls"), list | tuple):  # a stream's calls have a place
        kept["tool_calls"] = [_without_place(call) for call in cast("Sequence[object]", calls)]
    if "said" in kept:
        raise FieldError(f"{what}: `said` is set by the machine alone: leave it out", what)
    try:
        message = Message.model_validate(_clean(kept))
    except ValidationError as error:
        raise FieldError(f"{what}: {_complaints(error)}", what) from None
    except RecursionError:
        raise FieldError(f"{what} is nested too deep", what) from None
    if any(isinstance(part, ValuePart) for part in message.parts):
        raise FieldError(f"{what}: only a plan may put the value of a step into a message", what)
    return message


def _without_place(call: object) -> object:
    if not isinstance(call, Mapping):
        return call
    return {key: value for key, value in cast("Mapping[object, object]", call).items() if key != "index"}


def _clean(value: object, depth: int = 0) -> object:
    """Return JSON with serializable texts; the validator rejects the rest."""
    match value:
        case str():
            return writable(value)
        case Mapping() if depth < 8:
            return {key: _clean(inner, depth + 1) for key, inner in cast("Mapping[object, object]", value).items()}
        case list() | tuple() if depth < 8:
            return [_clean(inner, depth + 1) for inner in cast("Sequence[object]", value)]
        case _:
            return value


_TAGS = ("none", "parts", "text", "image_url", "value")
"""Parts of pydantic's error locations that name the tried variant of a value."""


def _complaints(error: ValidationError) -> str:
    known = list(Message.model_fields)
    complaints: list[str] = []
    for detail in first_of_each(error):
        loc = [part for part in detail["loc"] if part not in _TAGS]
        near = did_you_mean(str(loc[0]), known) if detail["type"] == "extra_forbidden" and loc else ""
        complaints.append(explain(f"`{json_path(loc)}`" if loc else "it", detail) + near)
    return "; ".join(complaints)


def _check_calls(messages: Sequence[Message], what: str) -> None:
    """Refuse calls without results, and results without calls."""
    waiting: dict[str, int] = {}
    for place, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                raise FieldError(
                    f"{what}[{place}] is the result of {message.tool_call_id!r}, and the assistant's message before it "
                    f"has no such call that waits (waiting: {', '.join(waiting) or 'none'})",
                    f"{what}[{place}]",
                )
            del waiting[message.tool_call_id]
            continue
        if waiting:
            raise FieldError(
                f"{what}[{place}] comes before the result of {', '.join(waiting)}: a `tool` message for each call "
                "stands between",
                f"{what}[{place}]",
            )
        for call in message.tool_calls:
            if call.id in waiting:
                raise FieldError(f"{what}[{place}]: two calls have the id {call.id!r}", f"{what}[{place}]")
            waiting[call.id] = place
    if waiting:
        missing = ", ".join(waiting)
        raise FieldError(f"{what} ends before the result of {missing}: give a `tool` message for each call", what)


def with_prompt(messages: Sequence[Message], prompt: str) -> tuple[Message, ...]:
    """Return a conversation with one more user text: as a new message, or appended to the last message if that is the
    user's."""
    if not prompt:
        return tuple(messages)
    if messages and messages[-1].role == "user":
        last = messages[-1]
        parts = (*last.parts, TextPart(text=f"\n{prompt}" if last.text else prompt))
        content = "".join(part.text for part in parts if isinstance(part, TextPart)) if not last.images else parts
        return (*messages[:-1], last.model_copy(update={"content": content}))
    return (*messages, Message(role="user", content=prompt))


# -- as plain text -----------------------------------------------------------------------------------------------------

_WHO = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


def transcript(messages: Sequence[Message], opens: bool = True) -> Iterator[str | ValuePart]:
    """Yield the pieces of a conversation as plain text, for a model without a chat template. A user message that
    `opens` the conversation has no role label, and the answer follows directly."""
    for place, message in enumerate(messages):
        bare = opens and place == 0 and message.role == "user"
        answers_bare = opens and place == 1 and message.role == "assistant" and messages[0].role == "user"
        if message.role == "assistant" and (message.said or answers_bare):
            # `said` continues where the model was asked to
            yield ("" if answers_bare else "\n\nAssistant:") + (message.said or f"\n\n{_written(message)}")
            continue
        if not bare:
            yield ("" if opens and place == 0 else "\n\n") + f"{_WHO[message.role]}: "
        if message.role == "assistant":
            yield _written(message)
            continue
        for part in message.parts:
            yield "[an image]" if isinstance(part, ImagePart) else part.text if isinstance(part, TextPart) else part


def _written(message: Message) -> str:
    calls = [call_text(call.function.name, call.function.arguments) for call in message.tool_calls]
    return "\n".join([*([message.text] if message.text else []), *calls])
