"""What the requests of a job came to: what the server said, what we counted ourselves, and what nobody can know.

A request that was sent counts its prompt, however early it is left. What its server did not say is told as well as it
is known, and `Usage.uncounted` and `Usage.uncounted_prompt` say by how much that may be wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.core.result import Source, Sources, Usage

from .limiter import AnswerSpeed
from .reading import AnswerReading
from .wire import text_bytes

AHEAD = 16
"""Tokens that a server may be ahead of what we have read of it: those on the way, and those that it makes before it
sees that nobody listens."""
_MESSAGE = 16
"""Tokens that a chat template may put around a message, and around all of them."""


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request that is under way, and may cost something."""

    fields: Mapping[str, Any]
    """Its JSON."""
    reading: AnswerReading
    room: int
    """The most tokens that it may generate."""
    heard: float
    """When it was sent, or when the server said something last, on the loop's clock."""

    def usage(self, now: float, speed: AnswerSpeed) -> Usage:
        """Return what it came to by now: it has ended, or is left."""
        told = self.reading.told
        prompt, unsure, read = self._prompt(speed)
        completion, uncounted, made = self._completion(now - self.heard, speed)
        thoughts, thought = self._thoughts(completion)
        cached = min(told.cached, prompt) if told is not None else 0
        if told is not None and told.prompt:
            speed.read(told.prompt, _size(self.fields)[0])
        by = (told is not None and told.sources.cached) or "unknown"
        return Usage(
            prompt=prompt, cached=cached, completion=completion, thoughts=thoughts,
            uncounted=uncounted, uncounted_prompt=unsure,
            sources=Sources(prompt=read, cached=by, completion=made, thoughts=thought),
        )  # fmt: skip

    def _prompt(self, speed: AnswerSpeed) -> tuple[int, int, Source]:
        """Return the tokens of the prompt, by how many that may be wrong, and who counted: it may be wrong by all where
        the server has not said a word, for perhaps it has not got the request."""
        tokens, unsure, source = self._size_of_prompt(speed)
        return (tokens, unsure, source) if self.reading.chunks else (tokens, max(tokens, unsure), "unknown")

    def _size_of_prompt(self, speed: AnswerSpeed) -> tuple[int, int, Source]:
        told, sent = self.reading.told, self.fields.get("prompt")
        if told is not None and told.prompt:
            return told.prompt, 0, "server"
        if isinstance(sent, list):
            return len(sent), 0, "ids"
        if self.reading.prompt_ids:
            return len(self.reading.prompt_ids), 0, "ids"
        size, around = _size(self.fields)
        about = max(1, speed.prompt(size))
        return about, max(about - 1, size + around - about), "estimate"  # a token has at least one byte

    def _thoughts(self, completion: int) -> tuple[int, Source]:
        """Return how many of the generated tokens were thoughts, and who counted: their share of the text, where
        neither the server nor the pieces of a stream tell."""
        reading, told = self.reading, self.reading.told
        if told is not None and (told.thoughts or (told.sources.thoughts and not reading.thoughts_read)):
            return min(told.thoughts, completion), "server" if reading.billed else "estimate"
        if not reading.chunks:
            return 0, "unknown"
        known = reading.thoughts_read
        if reading.ids_complete and (known or not reading.thought):
            return min(known, completion), "ids" if reading.ended else "estimate"
        size = len(reading.thought.encode()) if not known and self.fields.get("stream") is False else 0
        about = math.ceil(completion * size / (size + reading.size)) if size else 0
        return min(known or about, completion), "estimate"

    def _completion(self, silent: float, speed: AnswerSpeed) -> tuple[int, int, Source]:
        """Return the tokens that were generated, how many more there may be, and who counted."""
        reading, room = self.reading, self.room
        seen, ended = reading.generated, reading.ended
        if reading.billed and reading.pieces > 1:
            speed.counted(seen, reading.pieces)
        if reading.billed:
            return seen, 0, "server"
        if ended and reading.ids_complete:
            return seen, 0, "ids"
        if ended and reading.finish == "length":
            return seen, max(0, room - seen), "estimate"
        if self.fields.get("stream") is False:
            if not reading.chunks:
                about, most = speed.estimate(silent, room), room
            else:
                about, most = max(seen, speed.prompt(reading.size)), reading.size + 1
            return about, max(about, most - about), "estimate"
        unread = 0 if reading.told is not None or reading.ids_complete else speed.unread(seen, reading.size)
        if not ended:
            unread += max(AHEAD, speed.estimate(silent, room))
        unread = unread if reading.overran else min(unread, max(0, room - seen))
        return seen, unread, "estimate" if reading.chunks else "unknown"


def _size(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes of the text in a request's prompt, and the most tokens that a template puts around it."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return len(prompt.encode()), 1
    messages: list[Any] = fields.get("messages") or []
    sizes = (len(message.encode()) if isinstance(message, str) else text_bytes(message) for message in messages)
    tools = json.dumps(fields["tools"]) if fields.get("tools") else ""
    return sum(sizes) + len(tools.encode()), _MESSAGE * (len(messages) + 1)
