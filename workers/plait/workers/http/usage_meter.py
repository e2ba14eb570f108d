"""Measure the usage of requests: what the server reports, what we count, and by how much that may be wrong.

A request that was sent costs its prompt, however early it is cancelled. What the server does not report is estimated,
and `Usage.uncounted` and `Usage.uncounted_prompt` bound the error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.core.result import Source, Sources, Usage

from .request_body import text_bytes
from .response_parser import ResponseParser

UNREAD_TOKENS = 16
"""Tokens that a server may be ahead of what we have read: those in flight, and those that it generates before it
notices that the connection is closed."""
_TEMPLATE_TOKENS = 16
"""Tokens that a chat template may put around a message, and around all of them."""


class ThroughputEstimate:
    """Moving averages of one server's responses, from which the usage of a cancelled request is estimated."""

    def __init__(self) -> None:
        """Start with typical values."""
        self.tokens_per_s: float = 50.0
        """Of one response, averaged over about the last eight."""
        self.prompt_tokens_per_byte: float = 0.25
        self.max_tokens_per_piece: float | None = None
        """The recent maximum; `None` until the server has reported a count."""

    def add_response(self, tokens: int, seconds: float) -> None:
        """Record a complete response."""
        if tokens and seconds > 0:
            self.tokens_per_s += (tokens / seconds - self.tokens_per_s) / 8

    def estimate(self, seconds: float, max_tokens: int) -> int:
        """Estimate the tokens generated in this time."""
        return min(max_tokens, math.ceil(self.tokens_per_s * seconds))

    def add_prompt(self, tokens: int, size_bytes: int) -> None:
        """Record the reported length of a prompt."""
        if size_bytes:
            self.prompt_tokens_per_byte += (tokens / size_bytes - self.prompt_tokens_per_byte) / 8

    def estimate_prompt(self, size_bytes: int) -> int:
        """Estimate the tokens of a prompt."""
        return math.ceil(self.prompt_tokens_per_byte * size_bytes)

    def add_pieces(self, tokens: int, pieces: int) -> None:
        """Record the reported length of a response that came in pieces."""
        if pieces:
            # A maximum that decays by 5 %: a bound must not shrink to the mean, nor remember one odd answer for ever.
            decayed = 0.0 if self.max_tokens_per_piece is None else self.max_tokens_per_piece * 0.95
            self.max_tokens_per_piece = max(1.0, decayed, tokens / pieces)

    def extra_tokens(self, pieces: int, size_bytes: int) -> int:
        """Return the maximum number by which a text's tokens may exceed its pieces."""
        known = self.max_tokens_per_piece
        # A token has at least one byte; the last, the end token, may have none.
        most = size_bytes if known is None else math.ceil(pieces * known)
        return max(0, most - pieces) + 1


@dataclass(slots=True, eq=False)
class SentRequest:
    """A running request, and its cost."""

    fields: Mapping[str, Any]
    """Its JSON body."""
    response: ResponseParser
    max_tokens: int
    """Tokens that it may generate, thoughts included."""
    last_read_at: float
    """Loop time when it was sent, or when the server last sent something."""

    def measure(self, now: float, throughput: ThroughputEstimate) -> Usage:
        """Return the usage of the request, which ends now."""
        reported = self.response.usage.reported
        prompt, prompt_error, prompt_source = self._measure_prompt(throughput)
        completion, error, completion_source = self._measure_completion(now - self.last_read_at, throughput)
        thoughts, thought_source = self._measure_thoughts(completion)
        if reported is not None and reported.prompt:
            throughput.add_prompt(reported.prompt, _prompt_size(self.fields)[0])
        cached = min(reported.cached, prompt) if reported is not None else 0
        cached_source = (reported is not None and reported.sources.cached) or "unknown"
        sources = Sources(
            prompt=prompt_source, cached=cached_source, completion=completion_source, thoughts=thought_source
        )
        return Usage(
            prompt=prompt, cached=cached, completion=completion, thoughts=thoughts,
            uncounted=error, uncounted_prompt=prompt_error, sources=sources,
        )  # fmt: skip

    def _measure_prompt(self, throughput: ThroughputEstimate) -> tuple[int, int, Source]:
        """Return (prompt tokens, maximum error, source)."""
        tokens, error, source = self._prompt_length(throughput)
        if self.response.usage.chunk_count:
            return tokens, error, source
        # Until the server has answered anything, the request may not have reached it: all of it may be wrong.
        return tokens, max(tokens, error), "unknown"

    def _prompt_length(self, throughput: ThroughputEstimate) -> tuple[int, int, Source]:
        reported, sent = self.response.usage.reported, self.fields.get("prompt")
        if reported is not None and reported.prompt:
            return reported.prompt, 0, "server"
        if isinstance(sent, list):
            return len(sent), 0, "ids"
        if self.response.token_ids.prompt_ids:
            return len(self.response.token_ids.prompt_ids), 0, "ids"
        size_bytes, template_tokens = _prompt_size(self.fields)
        tokens = max(1, throughput.estimate_prompt(size_bytes))
        # A token has at least one byte, so the bytes bound the tokens from above.
        return tokens, max(tokens - 1, size_bytes + template_tokens - tokens), "estimate"

    def _measure_thoughts(self, completion: int) -> tuple[int, Source]:
        """Return (thought tokens, source)."""
        response, usage = self.response, self.response.usage
        reported, seen = usage.reported, usage.stream_thoughts
        if reported is not None and (reported.thoughts or (reported.sources.thoughts and not seen)):
            return min(reported.thoughts, completion), "server" if usage.is_final else "estimate"
        if not usage.chunk_count:
            return 0, "unknown"
        if response.has_all_ids and (seen or not response.thought):
            return min(seen, completion), "ids" if usage.has_ended else "estimate"
        # A whole response has one piece, which cannot be counted: thoughts take their share of its bytes.
        is_whole = not seen and self.fields.get("stream") is False
        thought_bytes = len(response.thought.encode()) if is_whole else 0
        total_bytes = thought_bytes + usage.text_bytes
        estimate = math.ceil(completion * thought_bytes / total_bytes) if thought_bytes else 0
        return min(seen or estimate, completion), "estimate"

    def _measure_completion(self, silence_s: float, throughput: ThroughputEstimate) -> tuple[int, int, Source]:
        """Return (generated tokens, how many more there may be, source)."""
        response, usage, limit = self.response, self.response.usage, self.max_tokens
        seen, has_ids = response.generated, response.has_all_ids
        if usage.is_final:
            if usage.pieces > 1:
                throughput.add_pieces(seen, usage.pieces)
            return seen, 0, "server"
        if usage.has_ended and has_ids:
            return seen, 0, "ids"
        if usage.has_ended and response.finish == "length":
            return seen, max(0, limit - seen), "estimate"
        if self.fields.get("stream") is False:
            if not usage.chunk_count:
                tokens, most = throughput.estimate(silence_s, limit), limit
            else:
                tokens, most = max(seen, throughput.estimate_prompt(usage.text_bytes)), usage.text_bytes + 1
            return tokens, max(tokens, most - tokens), "estimate"
        is_counted = usage.reported is not None or has_ids
        unread = 0 if is_counted else throughput.extra_tokens(seen, usage.text_bytes)
        if not usage.has_ended:
            unread += max(UNREAD_TOKENS, throughput.estimate(silence_s, limit))
        # A server that ignores the limit is not bounded by it either.
        unread = unread if response.overran else min(unread, max(0, limit - seen))
        return seen, unread, "estimate" if usage.chunk_count else "unknown"


def _prompt_size(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes of the text in a request's prompt, and how many tokens a template may put around it."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return len(prompt.encode()), 1
    messages: list[Any] = fields.get("messages") or []
    sizes = (len(message.encode()) if isinstance(message, str) else text_bytes(message) for message in messages)
    tools = json.dumps(fields["tools"]) if fields.get("tools") else ""
    return sum(sizes) + len(tools.encode()), _TEMPLATE_TOKENS * (len(messages) + 1)
