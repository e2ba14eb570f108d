"""Parse the response of an OpenAI-compatible server, piece by piece, into progress and a result.

Six readers each follow one thing: text, thoughts, token ids, usage, tool calls, log-probabilities. `ResponseParser`
feeds them in order and applies the step's token limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Finish, Result, Source, Sources, Usage
from plait.core.values import opening, split_reasoning, writable

from .._shared.function_calls import MOST_CALLS, ToolCallAssembler, sent_names
from .._shared.prompt import CLOSE, OPEN
from .logprob_trace import LogprobTrace
from .request_body import ServerDialect, ServerError, finds_stops_itself

_HIGH_SURROGATES = frozenset(map(chr, range(0xD800, 0xDC00)))
_HINT = "is it OpenAI-compatible?"


_NAMES = (("response_id", "id"), ("model", "model"))
MAX_NAME_CHARS = 200
MAX_PROMPT_TOKENS = 1 << 32
"""A server that reports a longer prompt is not believed."""


class SurrogateJoiner:
    """Joins the halves of characters: servers that count in UTF-16 may send an emoji in two pieces."""

    def __init__(self) -> None:
        """Start without a half."""
        self._half = ""

    def feed(self, text: str, is_last: bool) -> str:
        """Return a piece of text in whole characters; a half at its end waits for the next piece."""
        text, self._half = self._half + text, ""
        if text[-1:] in _HIGH_SURROGATES and not is_last:
            text, self._half = text[:-1], text[-1]
        # A half that never gets its other one is replaced: UTF-8 cannot encode it, so no journal could store it.
        return writable(text)


class TextReader:
    """The text of a response: cuts it at stop texts and redacts secrets, however they are split into pieces."""

    def __init__(self, stops: Sequence[str] = (), secrets: Sequence[str] = ()) -> None:
        """Start an empty text. `stops` are those that the server does not find itself."""
        self._stops, self._secrets = tuple(stops), tuple(secrets)
        self._joiner = SurrogateJoiner()
        self._released: list[str] = []
        self._held = ""
        """The end of the text, which may be the beginning of a stop text or a secret."""
        self._unsent = ""
        """Text decoded from resumed token ids that the broken stream had not sent."""
        self.found_stop: bool = False
        self.is_redacted: bool = False

    @property
    def text(self) -> str:
        """The text so far, with what is held back."""
        return "".join(self._released) + self._held + self._unsent

    def join(self, text: str, is_last: bool) -> str:
        """Return a piece in whole characters, before it is fed."""
        return self._joiner.feed(text, is_last)

    def feed(self, text: str, has_ended: bool) -> str:
        """Add a piece and return the text that may be shown now."""
        if self._unsent and (text or has_ended):
            text, self._unsent = self._unsent + text, ""
        if not (self._stops or self._secrets):
            self._released.append(text)
            return text
        text, self._held = self._held + text, ""
        ends = [(place + len(stop)) for stop in self._stops if (place := text.find(stop)) >= 0]
        if ends:
            text, self.found_stop, has_ended = text[: min(ends)], True, True
        for secret in self._secrets:
            if secret in text:
                text, self.is_redacted = text.replace(secret, "***"), True
        if not has_ended and (held := opening(text, (*self._stops, *self._secrets))):
            text, self._held = text[: -len(held)], held
        self._released.append(text)
        return text

    def resume(self, text: str, shown_chars: int | None = None) -> None:
        """Continue behind `text`, whose first `shown_chars` characters were sent; by default as many as were read."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        shown = len(self.text) if shown_chars is None else shown_chars
        self._unsent, self._released, self._held = text[shown:], [text[:shown]], ""


class ThoughtSplitter:
    """Separates thoughts from the answer: a field of their own, or a `<think>` block at the beginning of the text."""

    def __init__(self, can_have_block: bool, is_opened: bool = False) -> None:
        """Start at the beginning of a response. `is_opened`: the chat template has written the opening tag already, so
        the text begins inside the block."""
        self._can_have_block = can_have_block
        self._is_opened = is_opened and can_have_block
        self._block: Literal["undecided", "inside", "over"] = "undecided" if can_have_block else "over"
        self._head = ""
        """The text so far, until the block is over."""
        self._joiner = SurrogateJoiner()
        self._separate: list[str] = []
        self.separate_piece: str = ""
        """The last piece of thoughts in a field of their own."""

    @property
    def has_field(self) -> bool:
        """Whether the server sends thoughts in a field of their own."""
        return bool(self._separate)

    def feed(self, text: str, thought: str, is_last: bool) -> bool:
        """Read a piece and return whether it is thought."""
        self.separate_piece = self._joiner.feed(thought, is_last) if thought else ""
        self._separate += [self.separate_piece] if thought else []
        if self._block == "over" or not text:
            return bool(thought) and not text
        self._head += text
        begun = self._head.lstrip()
        is_opened = self._is_opened and not self._separate
        if not is_opened and self._block == "undecided" and not begun.startswith(OPEN):
            # The tag may come in several pieces, since it need not be one token.
            self._block = "undecided" if OPEN.startswith(begun) else "over"
            return False
        self._block = "over" if CLOSE in begun else "inside"
        return True

    def close(self, text: str, finish: Finish | None) -> tuple[str, str]:
        """Return (thoughts, answer) of the whole text so far."""
        if self._separate or not self._can_have_block:
            return "".join(self._separate), text
        if self._is_opened and finish == "length" and CLOSE not in text:
            return text.strip(), ""
        return split_reasoning(text)

    def has_only_end(self, text: str) -> bool:
        """Whether the text ends a block that nothing in it began: the template must have opened it."""
        head, end, _ = text.partition(CLOSE)
        return self._can_have_block and not self._separate and bool(end) and OPEN not in head

    def is_cut_in_thoughts(self, text: str, finish: Finish | None) -> bool:
        """Whether the token limit ended the response before the first word of the answer."""
        thought, answer = self.close(text, finish)
        answer = split_reasoning(answer)[1] if self._can_have_block and self._separate else answer
        return finish == "length" and bool(thought) and not answer.strip()


class TokenIdTrace:
    """The token ids of prompt and output, and whether they are exactly those of the text."""

    def __init__(self) -> None:
        """Start without ids."""
        self.prompt_ids: list[int] = []
        self.ids: list[int] = []
        self.is_aligned: bool = True

    def feed(self, ids: Sequence[int], prompt_ids: Sequence[int] | None = None) -> None:
        """Add output ids; the first prompt ids are kept, since a resumed stream counts old output as prompt."""
        self.ids += ids
        if prompt_ids and not self.prompt_ids:
            self.prompt_ids = list(prompt_ids)

    def is_complete(self, tokens: int) -> bool:
        """Whether the ids of all `tokens` output tokens are known."""
        return bool(self.ids) and len(self.ids) == tokens

    def close(self, text: str, is_unchanged: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (prompt ids, output ids); both empty unless they are exactly those of the text."""
        is_exact = self.is_aligned and is_unchanged and bool(self.prompt_ids) and (bool(self.ids) or not text)
        return (tuple(self.prompt_ids), tuple(self.ids)) if is_exact else ((), ())


class UsageMeter:
    """The tokens of one response: those that its pieces show, and those that the server reports."""

    def __init__(self, max_tokens: int, thinking_room: int = 0) -> None:
        """Start at zero, with the limits that bound what a server is believed."""
        self._max_tokens, self._thinking_room = max_tokens, thinking_room
        self.reported: Usage | None = None
        """The server's figures for the current stream, so far."""
        self.is_final: bool = False
        """Whether those figures came at the end, and so cover all of it."""
        self.has_ended: bool = False
        """Whether the server ended the stream, and not we."""
        self.tokens: int = 0
        """Tokens so far; one per piece of text where the server does not say how many a piece has."""
        self.thought_tokens: int = 0
        self.resumed_tokens: int = 0
        """Tokens that another attempt had generated."""
        self.extra_pieces: int = 0
        """Pieces that came after the end that we wanted."""
        self.text_bytes: int = 0
        """Bytes of text in the current stream."""
        self.chunk_count: int = 0
        self._tokens_before = self._thoughts_before = 0

    def restart(self) -> None:
        """Start another stream of the same response."""
        self.reported, self.is_final, self.has_ended, self.text_bytes = None, False, False, 0
        self._tokens_before, self._thoughts_before = self.tokens, self.thought_tokens

    def feed(self, usage: object, is_last_chunk: bool) -> None:
        """Read the `usage` object of a chunk, if it has one."""
        if not isinstance(usage, Mapping):
            return
        prompt_details, details = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        prompt = _bounded_count(usage.get("prompt_tokens"), MAX_PROMPT_TOKENS)
        completion = _bounded_count(usage.get("completion_tokens"), math.inf)
        cached_field = prompt_details.get("cached_tokens") if isinstance(prompt_details, Mapping) else None
        thought_field = details.get("reasoning_tokens") if isinstance(details, Mapping) else None
        cached, thoughts = _bounded_count(cached_field, prompt), _bounded_count(thought_field, completion)
        sources = Sources(cached=_source_of(cached_field, cached), thoughts=_source_of(thought_field, thoughts))
        self.reported = Usage(prompt=prompt, cached=cached, completion=completion, thoughts=thoughts, sources=sources)
        # Some servers repeat the usage in every chunk: it is the bill only at the end.
        self.is_final = (is_last_chunk or self.has_ended) and completion > 0

    def count(self, tokens: int, is_thought: bool) -> None:
        """Add the tokens of a piece."""
        self.tokens += tokens
        self.thought_tokens += tokens if is_thought else 0

    @property
    def total_tokens(self) -> int:
        """Tokens of the response, those of an earlier attempt included."""
        return self.resumed_tokens + self.tokens

    @property
    def is_fresh(self) -> bool:
        """Whether the current stream has generated nothing yet."""
        return self.tokens == self._tokens_before

    @property
    def pieces(self) -> int:
        """Pieces of the current stream."""
        return self.tokens - self._tokens_before + self.extra_pieces

    @property
    def stream_thoughts(self) -> int:
        """Tokens of thoughts in the current stream, as its pieces show them."""
        return self.thought_tokens - self._thoughts_before

    def generated(self, has_ids: bool) -> int:
        """Return the tokens of the current stream."""
        seen = self.pieces
        if self.reported is None or not self.reported.completion:
            return seen
        # The server's count is believed within bounds: hidden reasoning stays within the step's limit, and every other
        # token has at least one byte. A server that reports more would empty a budget at will.
        limit = max(self._max_tokens + self._thinking_room, seen, self.text_bytes)
        generated = min(self.reported.completion, limit)
        return max(generated, seen) if has_ids else generated

    def tokens_left(self, is_thought: bool, is_whole: bool) -> int:
        """Return the number of further tokens allowed. `is_whole`: the response came in one piece, so that the number
        of its thought tokens is unknown."""
        total_left = self._max_tokens + self._thinking_room - self.total_tokens
        answer_left = self._max_tokens - (self.total_tokens - self.thought_tokens)
        return max(0, total_left if is_thought or is_whole else min(total_left, answer_left))


def _bounded_count(count: object, maximum: float) -> int:
    """Return a count that a server reports; 0 for anything that is not a count up to the maximum."""
    # bool is an int in Python: `true` would otherwise be one token.
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= maximum:
        return 0
    return int(min(count, 1 << 62))


def _source_of(field: object, count: int) -> Source | None:
    """Return the source of a usage field; `None` if the field is missing or invalid."""
    return None if field is None or (field and not count) else "server"


@dataclass(slots=True)
class ResponsePiece:
    """One choice of a stream, or of a whole response."""

    text: str
    thought: str
    ids: Sequence[int]
    logprobs: object
    tool_calls: object
    is_last: bool


class ResponseParser:
    """The part of a response that has arrived. A resumed stream of the same job continues where the first one broke.

    The response is cut at the step's `max_tokens`, whatever the server makes of that limit.
    """

    def __init__(
        self,
        dialect: ServerDialect,
        think: ModelCall,
        *,
        reports_ids: bool = False,
        secrets: Sequence[str] = (),
        thinking_room: int = 0,
        opens_thoughts: bool = False,
        has_processed_logprobs: bool = False,
    ) -> None:
        """Start before the first piece.

        Args:
            reports_ids: put token ids into the progress.
            secrets: texts to replace by `***`.
            thinking_room: tokens of thoughts allowed beyond `max_tokens`.
            opens_thoughts: the text begins inside a block of thoughts.
            has_processed_logprobs: the server's log-probabilities are those of the distribution it samples from.
        """
        can_have_block = dialect.endpoint == "chat/completions" and CLOSE not in think.begin
        self._sampling = think.sampling
        self._secrets = secrets
        self._reports_ids = reports_ids
        self._has_processed_logprobs = has_processed_logprobs
        # Only vLLM that returns ids keeps the stop text itself (`include_stop_str_in_output`).
        self._appends_stop = think.sampling.keep_stop and not dialect.ids
        self._think = think
        self._calls: ToolCallAssembler | None = None
        self._text = TextReader(think.sampling.stop if finds_stops_itself(dialect, think) else (), secrets)
        self.thoughts: ThoughtSplitter = ThoughtSplitter(can_have_block, opens_thoughts)
        self.logprobs: LogprobTrace = LogprobTrace(think.sampling)
        self.token_ids: TokenIdTrace = TokenIdTrace()
        self.usage: UsageMeter = UsageMeter(think.sampling.max_tokens, thinking_room)
        self.finish: Finish | None = None
        self.names: dict[str, str] = {}
        """The response's id and model, by the names of `Result`, as the server's first piece has them."""
        self.stop: int | str | None = None
        """The stop token or text that ended the response, if the server reports it."""
        self.reports_stop: bool = False
        self.overran: bool = False
        """The server generated more than the step's `max_tokens`; the rest was cut off."""

    # --- what has arrived ---

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text.text

    @property
    def found_stop(self) -> bool:
        """Whether we found a stop text, so that the rest is unwanted."""
        return self._text.found_stop

    @property
    def is_done(self) -> bool:
        """Whether further pieces are unwanted."""
        return self._text.found_stop or self.overran

    @property
    def has_all_ids(self) -> bool:
        """Whether the server sent the ids of all tokens."""
        return self.token_ids.is_complete(self.usage.total_tokens)

    @property
    def resumable_ids(self) -> tuple[int, ...]:
        """The output ids after which another request can continue; none unless all are known."""
        return tuple(self.token_ids.ids) if self.token_ids.prompt_ids and self.has_all_ids else ()

    @property
    def generated(self) -> int:
        """Tokens of the current stream."""
        return self.usage.generated(bool(self.token_ids.ids))

    @property
    def thought(self) -> str:
        """The thoughts so far."""
        return self.thoughts.close(self.text, self.finish)[0]

    # --- resuming ---

    def take_over(self, prompt_ids: Sequence[int], ids: Sequence[int], text: str, shown_chars: int) -> None:
        """Resume a lost attempt: start behind its token ids, of whose text `shown_chars` characters were streamed."""
        self.token_ids.feed(ids, prompt_ids)
        self.usage.resumed_tokens, self._reports_ids = len(ids), True
        self.resume(text, shown_chars)

    def resume(self, text: str, shown_chars: int | None = None) -> None:
        """Read another stream, which continues where this one broke. `text` is the text of all ids so far."""
        self._text.resume(text, shown_chars)
        self.usage.restart()

    # --- parsing ---

    def feed(self, chunk: object) -> Progress | None:
        """Parse one JSON object of the stream, or a whole response, and return its progress. Raises `ServerError`."""
        self.usage.chunk_count += 1
        fields, choice = parse_chunk(chunk)
        self.names = self.names or {name: writable(str(fields.get(key) or "")[:MAX_NAME_CHARS]) for name, key in _NAMES}
        self.usage.has_ended = self.usage.has_ended or (choice or {}).get("finish_reason") is not None
        self.usage.feed(fields.get("usage"), is_last_chunk=choice is None)
        if choice is None:
            return None
        if self.is_done:
            message = choice.get("delta") or choice.get("message") or choice
            self.usage.extra_pieces += any(
                message.get(name) for name in ("text", "content", "reasoning_content", "reasoning")
            )
            return None
        # vLLM puts the prompt's ids into the choice of completions, and beside the choices of a chat.
        self.token_ids.feed((), choice.get("prompt_token_ids") or fields.get("prompt_token_ids"))
        piece = parse_piece(choice)
        self._parse_end(choice)
        return self._feed_readers(piece)

    def _feed_readers(self, piece: ResponsePiece) -> Progress | None:
        text = self._text.join(piece.text, piece.is_last)
        self.usage.text_bytes += len(text.encode())
        is_thought = self.thoughts.feed(text, piece.thought, piece.is_last)
        scores = self.logprobs.feed(piece.logprobs, text, is_thought)
        # Where the server counts nothing, a piece is taken for a token: all servers but those that batch send one each.
        tokens = len(piece.ids) or len(scores) or int(bool(piece.text or piece.thought or piece.tool_calls))
        text, ids = self._cut_to_limit(text, piece.ids, tokens, is_thought)
        self.token_ids.feed(ids)
        self.usage.count(tokens, is_thought)
        text += self._feed_calls(piece.tool_calls)
        if self.finish is not None and self._appends_stop and isinstance(self.stop, str):
            text += self.stop
        text = self._text.feed(text, self.finish is not None)
        if self._text.found_stop:
            self.finish = "stop"
        if self._text.is_redacted:
            self.token_ids.is_aligned = False
        if not text and not tokens:
            return None
        mean = sum(scores) / len(scores) if scores else None
        return Progress(
            text,
            tokens,
            mean,
            tuple(ids) if self._reports_ids else (),
            *self.logprobs.groups,
            self.thoughts.separate_piece,
        )

    def _parse_end(self, choice: Mapping[str, Any]) -> None:
        for key in ("stop_reason", "matched_stop"):  # vLLM's name and SGLang's
            if key in choice:
                self.reports_stop, self.stop = True, choice[key]
        match choice.get("finish_reason"):
            case None:
                pass
            case "length":
                self.finish = "length"
            case "content_filter":
                raise ServerError("the server's content filter cut the answer: change the prompt, or ask another model")
            case "abort" | "error":  # vLLM's and SGLang's words for a request that the server itself dropped
                raise ServerError("the server aborted this request: try again", retryable=True)
            case _:
                self.finish = "stop"

    def _cut_to_limit(self, text: str, ids: Sequence[int], tokens: int, is_thought: bool) -> tuple[str, Sequence[int]]:
        """Return text and ids without what exceeds the token limit."""
        is_whole = self.usage.reported is not None and self.finish is not None and self.usage.is_fresh
        counted = max(tokens, min(self.generated, len(text))) if is_whole else tokens
        left = self.usage.tokens_left(is_thought, is_whole)
        if counted <= left:
            return text, ids
        self.overran, self.finish, self.stop = True, "length", None
        # Which characters belong to which token is unknown within a piece, so the text is cut in proportion.
        self.token_ids.is_aligned = self.token_ids.is_aligned and not left
        return text[: len(text) * left // counted], ids[:left]

    def _feed_calls(self, pieces: object) -> str:
        """Return the text of the tool calls that are complete now."""
        if not pieces and self._calls is None:
            return ""
        if self._calls is None:
            own_names = {sent: own for own, sent in sent_names(self._think).items()} if self._think.tools else {}
            self._calls = ToolCallAssembler(MOST_CALLS if self._think.parallel_tool_calls else 1, own_names)
        text = self._calls.feed(pieces)
        return text + self._calls.close() if self.finish is not None else text

    def close(self, finish: Finish) -> Result:
        """Return the result of a response that ended in this way."""
        thoughts, answer = self.thoughts.close(self.text, self.finish)
        value = answer.lstrip() if thoughts and not self.thoughts.has_field else self.text
        value = self.logprobs.best_label or value
        prompt_ids, ids = self.token_ids.close(self.text, is_unchanged=value == self.text)
        # Tokens are those of the text alone: calls and thoughts in other fields have theirs mixed in.
        has_other_text = self.thoughts.has_field or self._calls is not None or self.usage.resumed_tokens
        return Result(
            value=value,
            prompt_ids=prompt_ids,
            token_ids=ids,
            finish=finish,
            reasoning=thoughts,
            **self.names,
            tokens=() if has_other_text else self.logprobs.tokens_of(self.text, self._secrets),
            **self.logprobs.close(ids, self._has_processed_logprobs),
        )


def parse_chunk(chunk: object) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return (chunk, first choice), the choice `None` in a chunk of usage alone. Raises `ServerError`."""
    if not isinstance(chunk, Mapping):
        raise ServerError(f"the server's answer is not a JSON object but {str(chunk)[:80]!r}: {_HINT}")
    # OpenAI nests the error; older vLLM sends the error object itself, in the middle of a 200 stream.
    if chunk.get("error") or chunk.get("object") == "error":
        raise parse_error(chunk.get("error") or chunk)
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        raise ServerError(f"the server's answer has no `choices` ({str(dict(chunk))[:80]}): {_HINT}")
    if not choices:
        return chunk, None
    if not isinstance(choices[0], Mapping):
        raise ServerError(f"the server's `choices` hold no objects: {_HINT}")
    return chunk, choices[0]


def parse_piece(choice: Mapping[str, Any]) -> ResponsePiece:
    """Return the parts of a choice of completions or chat, streamed or whole. Raises `ServerError`."""
    message = choice.get("delta") or choice.get("message") or {}
    text = choice.get("text") if "text" in choice else message.get("content")
    if text is not None and not isinstance(text, str):
        raise ServerError(f"the server's text is a {type(text).__name__}: {_HINT}")
    # DeepSeek and older vLLM call the field `reasoning_content`; OpenRouter, Ollama and newer vLLM `reasoning`.
    thought = message.get("reasoning_content") or message.get("reasoning")
    return ResponsePiece(
        text=text or "",
        thought=thought if isinstance(thought, str) else "",
        ids=choice.get("token_ids") or (),
        logprobs=choice.get("logprobs"),
        tool_calls=message.get("tool_calls"),
        is_last=choice.get("finish_reason") is not None,
    )


def parse_error(error: object) -> ServerError:
    """Return the error that an error object inside a stream means."""
    fields: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": str(error)}
    code = fields.get("code")
    status = int(code) if isinstance(code, int | str) and str(code).isdigit() else None
    is_retryable = status is None or status == 429 or status >= 500
    message = f"the server broke an answer off: {fields.get('message') or fields}"
    return ServerError(message, status=status, retryable=is_retryable)
