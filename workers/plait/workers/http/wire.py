"""Requests to an OpenAI-compatible server: the fields that this server takes, and the errors of requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from plait.core.chat import Message, with_prompt
from plait.core.errors import Rejected
from plait.core.ops import Think
from plait.core.planning import fraction

from .._shared.codes import CODE
from .._shared.function_calls import renamed, sent_names

Endpoint = Literal["completions", "chat/completions"]


OURS = frozenset(
    (
        *("model", "messages", "prompt", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens"),
        *("best_of", "use_beam_search", "cache_salt", "priority"),
    )
)
"""Fields of a request that nobody else may set: the answer could not be read, the budget not be kept, or others be
read or passed."""

_SHARED = ("vllm_xargs", "nvext", "agent_hints")
"""Objects that hold hints of the caller's and of ours."""

MOST_LIKELY = 20
"""Likeliest tokens that a server is asked for to find labels among them; OpenAI's and vLLM's default limit."""


_MOST_KEPT = 32 << 20
"""Bytes of messages that are kept as they were sent, about."""
_ROUGHLY = 1 << 10
"""Bytes of a message besides its text, about."""


class ServerError(Exception):
    """A request that failed. The message is for people: cause and remedy, without any secret."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        unreachable: bool = False,
        costly: bool = False,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.retryable = message, status, retryable
        self.retry_after = retry_after
        """Seconds that the server asked to wait."""
        self.unreachable = unreachable
        """No connection could be made."""
        self.costly = costly
        """The server may have generated something that nobody saw."""
        self.refused = False
        """The server turned the request away before it generated anything."""

    @property
    def turned_away(self) -> bool:
        """Whether the server answered with an error at once, and so read nothing for us."""
        return self.status is not None and not self.costly


@dataclass(frozen=True)
class ServerDialect:
    """Which fields a server takes, and which it heeds."""

    endpoint: Endpoint = "completions"
    """Where think steps go that do not ask for the chat template."""
    ids: bool = False
    """Prompts may be token ids, and the answer says those of prompt and output (vLLM)."""
    extras: bool = False
    """Fields beyond OpenAI's do not make it refuse a request."""
    priority: bool = False
    """It takes a request's priority."""
    usage: bool = True
    """The stream can end with the usage."""
    stop_reasons: bool = False
    """It says which stop text ended an answer."""
    limit_field: str = "max_tokens"
    """Name of the limit on generated tokens."""
    limits: bool = True
    """It keeps that limit."""


class SentMessage(NamedTuple):
    """A message as it is sent, which nobody changes: all requests of a conversation have the same."""

    source: Message
    fields: dict[str, Any]
    size: int
    """Bytes of the text in it."""


_sent: dict[int, SentMessage] = {}
"""By the identity of the message, and by that of its fields. The entry keeps both."""
_room = _MOST_KEPT


def written(message: Message) -> dict[str, Any]:
    """Return a message as it is sent. The turns of a conversation all send what was said before: each message is
    written once, not once a turn."""
    global _room
    if message.images:  # they are large, and few conversations have any
        return message.as_json()
    known = _sent.get(id(message))
    if known is None or known.source is not message:
        fields = message.as_json()
        known = SentMessage(message, fields, _text_bytes(fields))
        _room -= known.size + _ROUGHLY
        if _room < 0:
            _sent.clear()
            _room = _MOST_KEPT
        _sent[id(message)] = _sent[id(fields)] = known
    return known.fields


def text_bytes(fields: Mapping[str, Any]) -> int:
    """Return the bytes of what is text in a message."""
    known = _sent.get(id(fields))
    return known.size if known is not None and known.fields is fields else _text_bytes(fields)


def _text_bytes(message: Mapping[str, Any]) -> int:  # an image is no text
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
    return len(f"{message.get('role', '')}{content}{calls}".encode())


def body(
    dialect: ServerDialect,
    model: str,
    think: Think,
    prompt: str | Sequence[int],
    chat: bool,
    *,
    past: int = 0,
    priority: int = 0,
    form: Mapping[str, Any] | None = None,
    room: int = 0,
) -> dict[str, Any]:
    """Return the JSON body of a streaming request; `chat` sends the prompt as one user message. `past`: tokens that an
    earlier request has generated already. `form`: the fields that ask for the step's form. `room`: tokens that the
    model may think beyond `max_tokens`.

    Raises `Rejected` for what this server would silently ignore or surely refuse.
    """
    sampling = think.sampling
    fields: dict[str, Any] = {
        "model": model,
        "stream": True,
        dialect.limit_field: sampling.max_tokens + room - past,
    }
    if sampling.temperature is not None:  # else the server's own way of sampling
        fields |= {"temperature": sampling.temperature, "top_p": 1.0}
    if sampling.top_p is not None:
        fields["top_p"] = sampling.top_p
    if chat:
        messages = with_prompt(think.messages, str(prompt))
        other = {name: told for name, told in sent_names(think).items() if name != told}
        fields["messages"] = [renamed(message.as_json(), other) if other else written(message) for message in messages]
        if think.begin and dialect.extras:
            fields["messages"].append({"role": "assistant", "content": think.begin})
            fields |= {"add_generation_prompt": False, "continue_final_message": True}
    else:
        fields["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    if sampling.stop and not stops_here(dialect, think):
        fields["stop"] = list(sampling.stop)
    wanted = max(sampling.logprobs, MOST_LIKELY) if sampling.labels else sampling.logprobs
    fields |= _logprob_fields(dialect, wanted, chat)
    if sampling.top_logprobs is not None:
        most = max(sampling.top_logprobs, sampling.logprobs)
        fields |= {"logprobs": True, "top_logprobs": most} if chat else {"logprobs": most}
        fields.pop("return_tokens_as_token_ids", None)  # the texts are wanted
    if sampling.labels:
        fields |= {"temperature": 0.0}
        fields.pop("return_tokens_as_token_ids", None)  # labels are known by their text
    if dialect.usage:
        fields["stream_options"] = {"include_usage": True}
        if dialect.extras and not dialect.ids:  # said with every piece, it is known of an answer that is left early
            fields["stream_options"]["continuous_usage_stats"] = True
    if dialect.extras:
        fields["skip_special_tokens"] = False
        if sampling.top_k or (sampling.top_k == 0 and sampling.temperature is None):
            fields["top_k"] = sampling.top_k
    if sampling.min_p:
        _need(dialect.extras, "min_p")
        fields["min_p"] = sampling.min_p
    if sampling.repetition_penalty != 1.0:
        _need(dialect.extras, "repetition_penalty")
        fields["repetition_penalty"] = sampling.repetition_penalty
    if sampling.presence_penalty:
        fields["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        fields["frequency_penalty"] = sampling.frequency_penalty
    if sampling.arithmetic is not None and sampling.draws:
        code = fraction(sampling.seed or 0, "code", past) if past else sampling.arithmetic
        fields["vllm_xargs"] = {CODE: code}
    if sampling.logit_bias:
        fields["logit_bias"] = sampling.logit_bias
    if think.reasoning_effort is not None:
        _need(chat, "reasoning_effort")
        fields["reasoning_effort"] = think.reasoning_effort
    if think.chat_template_kwargs:
        _need(chat and dialect.extras, "chat_template_kwargs")
        fields["chat_template_kwargs"] = think.chat_template_kwargs
    if sampling.stop_ids:
        _need(dialect.ids, "stop_ids")
        fields["stop_token_ids"] = list(sampling.stop_ids)
    if think.salt:
        _need(dialect.ids, "salt")
        fields["cache_salt"] = think.salt
    if priority and dialect.priority:
        fields["priority"] = priority
    if dialect.ids:
        fields |= {"return_token_ids": True, "include_stop_str_in_output": sampling.keep_stop}
    if taken := sorted(OURS.intersection(think.extra_body)):
        raise Rejected(f"`extra_body` may not set {', '.join(taken)}: that is set by the step itself")
    return merged(fields | dict(form or {}), think.extra_body)


def merged(fields: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with more over them. Hints to a serving stack are objects to which several have something to add,
    and ids of stop tokens lists.

    >>> merged({"n": 1, "nvext": {"a": 1}}, {"n": 2, "nvext": {"b": 2}})
    {'n': 2, 'nvext': {'a': 1, 'b': 2}}
    """
    out = dict(fields)
    for name, value in more.items():
        old = out.get(name)
        if name in _SHARED and isinstance(old, dict) and isinstance(value, dict):
            value = merged(old, value)
        elif name == "stop_token_ids" and isinstance(old, list) and isinstance(value, list):
            value = [*old, *value]
        out[name] = value
    return out


def _need(there: bool, option: str) -> None:
    if not there:
        raise Rejected(f"this server does not take the option {option!r}: do without it, or use a vLLM server")


def _logprob_fields(dialect: ServerDialect, wanted: int, chat: bool) -> dict[str, Any]:
    """Return the fields that ask for log-probabilities at the `wanted` likeliest tokens of each position."""
    if not wanted:
        return {}
    if wanted == 1:
        # Of the sampled token alone; 0 is how completions say it, but llama.cpp takes 0 for none.
        return {"logprobs": True if chat else 0 if dialect.ids else 1}
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": wanted} if chat else {"logprobs": wanted}
    # Tokens of the same text (halves of characters) would else fall together.
    return fields | ({"return_tokens_as_token_ids": True} if dialect.ids else {})


def stops_here(dialect: ServerDialect, think: Think) -> bool:
    """Whether we look for the stop texts ourselves: the output shall keep its stop text, and the server strips it
    without saying which it was."""
    return bool(think.sampling.stop) and think.sampling.keep_stop and not dialect.ids and not dialect.stop_reasons
