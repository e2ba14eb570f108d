"""Build the JSON body of a request: one table of fields, and the dialects in which servers differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from plait.core.chat import Message, with_prompt
from plait.core.errors import Rejected
from plait.core.ops import ModelCall
from plait.core.planning import fraction
from plait.core.sampling import Sampling
from plait.core.tools.turns import without_words

from .._shared.arithmetic_codes import CODE
from .._shared.function_calls import renamed, sent_names

Endpoint = Literal["completions", "chat/completions"]

RESERVED_FIELDS = frozenset(
    (
        *("model", "messages", "prompt", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens"),
        *("best_of", "use_beam_search", "cache_salt", "priority"),
    )
)
"""Fields that `extra_body` may not set: the response could not be parsed, the budget not be kept, or other tenants be
read or overtaken."""
MERGED_FIELDS = ("vllm_xargs", "nvext", "agent_hints")
"""Objects to which both the caller and we add hints."""
LABEL_CANDIDATES = 20
"""Likeliest tokens requested to find labels among them: the default maximum of OpenAI and vLLM."""
MESSAGE_CACHE_BYTES = 32 << 20
MESSAGE_OVERHEAD_BYTES = 1 << 10
"""Approximate size of a cached message without its text."""


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
        refused: bool = False,
    ) -> None:
        """Describe the failure.

        Args:
            message: cause and remedy.
            status: HTTP status, if the server answered.
            retryable: the same request may succeed later.
            retry_after: seconds that the server asked to wait.
            unreachable: no connection could be made.
            costly: the server may have generated tokens that never arrived.
            refused: the server rejected the request before it generated anything.
        """
        super().__init__(message)
        self.message, self.status, self.retryable, self.retry_after = message, status, retryable, retry_after
        self.unreachable, self.costly, self.refused = unreachable, costly, refused

    @property
    def is_free(self) -> bool:
        """Whether the server answered with an error at once, and so processed no prompt."""
        return self.status is not None and not self.costly

    def changed(self, message: str | None = None, **fields: Any) -> ServerError:
        """Return this error with other fields. Errors are never edited: who logged one has logged what it said."""
        own = {name: value for name, value in vars(self).items() if name != "message"}
        return ServerError(self.message if message is None else message, **(own | fields))


@dataclass(frozen=True)
class ServerDialect:
    """Which fields a server takes, and which it follows."""

    endpoint: Endpoint = "completions"
    """Endpoint for model calls that do not ask for the chat template."""
    ids: bool = False
    """Prompts may be token ids, and the response reports those of prompt and output (vLLM)."""
    extras: bool = False
    """Fields beyond OpenAI's do not get a request rejected."""
    priority: bool = False
    """It takes a request's priority."""
    usage: bool = True
    """The stream can end with the usage."""
    stop_reasons: bool = False
    """It reports which stop text ended a response."""
    limit_field: str = "max_tokens"
    """Name of the limit on generated tokens."""
    limits: bool = True
    """It keeps that limit."""


# --- messages ---


class CachedMessage(NamedTuple):
    """A message as JSON, which must not be changed: all requests of a conversation share it."""

    source: Message
    fields: dict[str, Any]
    size: int
    """Bytes of its text."""


_cache: dict[int, CachedMessage] = {}
"""By the identity of the message, and by that of its JSON. The entry keeps both alive, so no identity is reused."""
_free_bytes = MESSAGE_CACHE_BYTES


def write_message(message: Message) -> dict[str, Any]:
    """Return a message as JSON. All turns of a conversation send its earlier messages, so each is converted once."""
    global _free_bytes
    if message.images:  # large, and rare: caching them would push everything else out
        return message.as_json()
    known = _cache.get(id(message))
    if known is None or known.source is not message:
        fields = message.as_json()
        known = CachedMessage(message, fields, _count_text_bytes(fields))
        _free_bytes -= known.size + MESSAGE_OVERHEAD_BYTES
        # The whole cache is emptied: keeping the order of use would cost more on each hit than an occasional second
        # conversion.
        if _free_bytes < 0:
            _cache.clear()
            _free_bytes = MESSAGE_CACHE_BYTES
        _cache[id(message)] = _cache[id(fields)] = known
    return known.fields


def text_bytes(fields: Mapping[str, Any]) -> int:
    """Return the bytes of text in a message's JSON."""
    known = _cache.get(id(fields))
    return known.size if known is not None and known.fields is fields else _count_text_bytes(fields)


def _count_text_bytes(message: Mapping[str, Any]) -> int:
    content = message.get("content") or ""
    if isinstance(content, list):
        # The base64 of an image is no text: its tokens depend on its pixels, which we do not decode.
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
    return len(f"{message.get('role', '')}{content}{calls}".encode())


# --- the table of fields ---


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """The inputs of a request."""

    dialect: ServerDialect
    model: str
    think: ModelCall
    prompt: str | Sequence[int]
    chat: bool
    """Send messages, the prompt as the last of them."""
    resumed_tokens: int = 0
    """Tokens that an earlier request has generated already; they are part of the prompt now."""
    priority: int = 0
    thinking_room: int = 0
    """Tokens that the model may think beyond `max_tokens`."""
    extra_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields for structured output, tools and thinking."""

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters."""
        return self.think.sampling

    @property
    def candidates(self) -> int:
        """Likeliest tokens requested for each position."""
        wanted = self.sampling.logprobs
        return max(wanted, LABEL_CANDIDATES) if self.sampling.labels else wanted


Support = Literal["extras", "ids", "chat", "chat_extras"]


class BodyField(NamedTuple):
    """One field of a request."""

    name: str
    value: Callable[[RequestSpec], Any]
    """Returns the value, or `None` to leave the field out."""
    needs: Support | None = None
    """What the server must support; without it a step that sets this field is rejected, since servers ignore fields
    that they do not know."""
    option: str = ""
    """Name of the option that sets it, where that is another."""


def _messages(spec: RequestSpec) -> list[dict[str, Any]] | None:
    if not spec.chat:
        return None
    think = spec.think
    names = sent_names(think) if think.tools or think.messages else {}
    renames = {own: sent for own, sent in names.items() if own != sent}
    given = without_words(think.messages, think.tools) if "tools" in spec.extra_fields else think.messages
    messages = with_prompt(given, str(spec.prompt))
    # `renamed` edits the JSON, so it must not get the cached one.
    written = [renamed(message.as_json(), renames) if renames else write_message(message) for message in messages]
    return [*written, {"role": "assistant", "content": think.begin}] if _continues_turn(spec) else written


def _continues_turn(spec: RequestSpec) -> bool:
    """Whether the model continues a turn that we begin: a server without the field would start a new turn after it."""
    return spec.chat and bool(spec.think.begin) and spec.dialect.extras


def _prompt(spec: RequestSpec) -> str | list[int] | None:
    if spec.chat:
        return None
    return spec.prompt if isinstance(spec.prompt, str) else list(spec.prompt)


def _logprobs(spec: RequestSpec) -> bool | int | None:
    sampling = spec.sampling
    if sampling.top_logprobs is not None:
        return True if spec.chat else max(sampling.top_logprobs, sampling.logprobs)
    if spec.candidates in (0, 1):
        # 1 is the sampled token alone. The completions API spells that 0, which llama.cpp takes for none.
        return None if not spec.candidates else True if spec.chat else 0 if spec.dialect.ids else 1
    return True if spec.chat else spec.candidates


def _top_logprobs(spec: RequestSpec) -> int | None:
    if not spec.chat:
        return None
    if spec.sampling.top_logprobs is not None:
        return max(spec.sampling.top_logprobs, spec.sampling.logprobs)
    return None if spec.candidates in (0, 1) else spec.candidates


def _names_tokens_by_id(spec: RequestSpec) -> bool | None:
    # By text, tokens that are halves of characters would all be U+FFFD and share one entry. But labels are found by
    # their text, and callers of `top_logprobs` want to read it.
    is_text_wanted = spec.sampling.top_logprobs is not None or bool(spec.sampling.labels)
    return True if spec.dialect.ids and spec.candidates not in (0, 1) and not is_text_wanted else None


def _stream_options(spec: RequestSpec) -> dict[str, bool] | None:
    if not spec.dialect.usage:
        return None
    # Usage in every chunk gives the length of a response that is cancelled; with ids we count for ourselves.
    every_chunk = {"continuous_usage_stats": True} if spec.dialect.extras and not spec.dialect.ids else {}
    return {"include_usage": True, **every_chunk}


def _top_k(spec: RequestSpec) -> int | None:
    # 0 means "all tokens" and is the default, unless the server's own generation config is in effect.
    is_set = spec.sampling.top_k or (spec.sampling.top_k == 0 and spec.sampling.temperature is None)
    return spec.sampling.top_k if spec.dialect.extras and is_set else None


def _top_p(spec: RequestSpec) -> float | None:
    # Some servers apply their model's own top_p whenever the request has none, even beside its temperature.
    return 1.0 if spec.sampling.top_p is None and spec.sampling.temperature is not None else spec.sampling.top_p


def _arithmetic(spec: RequestSpec) -> dict[str, float] | None:
    sampling = spec.sampling
    if sampling.arithmetic is None or not sampling.draws:
        return None
    # The first tokens have used their part of the code up: the rest draws a fresh one.
    resumed = spec.resumed_tokens
    return {CODE: fraction(sampling.seed or 0, "code", resumed) if resumed else sampling.arithmetic}


FIELDS = (
    BodyField("temperature", lambda spec: spec.sampling.temperature),
    BodyField("top_p", _top_p),
    BodyField("messages", _messages),
    BodyField("add_generation_prompt", lambda spec: False if _continues_turn(spec) else None),
    BodyField("continue_final_message", lambda spec: True if _continues_turn(spec) else None),
    BodyField("prompt", _prompt),
    BodyField("seed", lambda spec: spec.sampling.seed),
    BodyField(
        "stop", lambda spec: None if finds_stops_itself(spec.dialect, spec.think) else list(spec.sampling.stop) or None
    ),
    BodyField("logprobs", _logprobs),
    BodyField("top_logprobs", _top_logprobs),
    BodyField("return_tokens_as_token_ids", _names_tokens_by_id),
    # A second time, and after the log-probabilities: labels are compared at temperature 0 whatever the step says.
    BodyField("temperature", lambda spec: 0.0 if spec.sampling.labels else None),
    BodyField("stream_options", _stream_options),
    # Stop and tool-call tokens are special tokens: without this vLLM would strip them from the text.
    BodyField("skip_special_tokens", lambda spec: False if spec.dialect.extras else None),
    BodyField("top_k", _top_k),
    BodyField("min_p", lambda spec: spec.sampling.min_p or None, "extras"),
    BodyField(
        "repetition_penalty",
        lambda spec: None if spec.sampling.repetition_penalty == 1.0 else spec.sampling.repetition_penalty,
        "extras",
    ),
    BodyField("presence_penalty", lambda spec: spec.sampling.presence_penalty or None),
    BodyField("frequency_penalty", lambda spec: spec.sampling.frequency_penalty or None),
    BodyField("vllm_xargs", _arithmetic),
    BodyField("logit_bias", lambda spec: spec.sampling.logit_bias or None),
    BodyField("reasoning_effort", lambda spec: spec.sampling.reasoning_effort, "chat"),
    BodyField("chat_template_kwargs", lambda spec: spec.sampling.chat_template_kwargs or None, "chat_extras"),
    BodyField("stop_token_ids", lambda spec: list(spec.sampling.stop_ids) or None, "ids", "stop_ids"),
    BodyField("cache_salt", lambda spec: spec.think.salt or None, "ids", "salt"),
    BodyField("priority", lambda spec: (spec.priority or None) if spec.dialect.priority else None),
    BodyField("return_token_ids", lambda spec: True if spec.dialect.ids else None),
    BodyField("include_stop_str_in_output", lambda spec: spec.sampling.keep_stop if spec.dialect.ids else None),
)
"""The fields of a request in the order in which they are sent. A later row of the same name wins."""


def build_body(spec: RequestSpec) -> dict[str, Any]:
    """Return the JSON body of a streaming request. Raises `Rejected` for an option that this server would ignore."""
    limit = spec.sampling.max_tokens + spec.thinking_room - spec.resumed_tokens
    body: dict[str, Any] = {"model": spec.model, "stream": True, spec.dialect.limit_field: limit}
    has_extras, chat = spec.dialect.extras, spec.chat
    supported = {"extras": has_extras, "ids": spec.dialect.ids, "chat": chat, "chat_extras": chat and has_extras}
    for row in FIELDS:
        if (value := row.value(spec)) is None:
            continue
        if row.needs is not None and not supported[row.needs]:
            option = row.option or row.name
            raise Rejected(f"this server does not take the option {option!r}: do without it, or use a vLLM server")
        body[row.name] = value
    if reserved := sorted(RESERVED_FIELDS.intersection(spec.sampling.extra_body)):
        raise Rejected(f"`extra_body` may not set {', '.join(reserved)}: that is set by the step itself")
    return merge_fields(body | dict(spec.extra_fields), spec.sampling.extra_body)


def merge_fields(fields: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields overridden by others. Objects of hints are merged, and lists of stop ids joined: several parties
    add to them.

    >>> merge_fields({"n": 1, "nvext": {"a": 1}}, {"n": 2, "nvext": {"b": 2}})
    {'n': 2, 'nvext': {'a': 1, 'b': 2}}
    """
    merged = dict(fields)
    for name, value in more.items():
        old = merged.get(name)
        if name in MERGED_FIELDS and isinstance(old, dict) and isinstance(value, dict):
            value = merge_fields(old, value)
        elif name == "stop_token_ids" and isinstance(old, list) and isinstance(value, list):
            value = [*old, *value]
        merged[name] = value
    return merged


def finds_stops_itself(dialect: ServerDialect, think: ModelCall) -> bool:
    """Whether we look for stop texts: the output shall keep its stop text, and the server strips it without reporting
    which it was."""
    return bool(think.sampling.stop) and think.sampling.keep_stop and not dialect.ids and not dialect.stop_reasons
