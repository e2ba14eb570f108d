"""Separates reasoning and function calls from a model's text while it is written."""

from __future__ import annotations

from plait.core.tools.calls import CALL_HEAD, CLOSE, OPEN, ObjectStream
from plait.core.values import opening

Piece = tuple[str, str]
"""Kind and text: `text`, `reasoning`, `call` (the name of the function), `arguments`, `ended`."""
_THINK, _THINK_END = "<think>", "</think>"
_HEAD_CHARS = 300
"""Maximum number of characters of a call before its arguments."""


class TextSplitter:
    """Separates reasoning (`<think>…</think>` at the beginning) and function calls from a text that arrives in pieces.

    From the first call on, text is held back until the end; the answer's message then shows which part is text. The
    streamed text is thus the message's text, however the pieces were cut. A call that does not begin with its name is
    held back too, with all that follows it.
    """

    def __init__(self) -> None:
        self.sent = ""
        """The text that was returned."""
        self._kind = ""
        self._rest = ""
        self._arguments: ObjectStream | None = None
        """The arguments of the call that is being written."""
        self._has_call = self._held = False

    def feed(self, text: str, last: bool = False) -> list[Piece]:
        """Add a piece, and return the pieces whose kind is now certain."""
        self._rest += text
        pieces: list[Piece] = []
        if not self._kind:
            bare = self._rest.lstrip()
            if bare.startswith(_THINK):
                self._kind, self._rest = "reasoning", bare.removeprefix(_THINK).lstrip()
            elif last or not _THINK.startswith(bare[: len(_THINK)]):
                self._kind = "text"
            else:
                return pieces
        if self._kind == "reasoning":
            reasoning, end, rest = self._rest.partition(_THINK_END)
            keep = 0 if end or last else len(opening(reasoning, [_THINK_END]))
            sent = reasoning[: len(reasoning) - keep]
            pieces += [("reasoning", sent)] if sent else []
            self._rest = rest if end else reasoning[len(reasoning) - keep :]
            if not end:
                return pieces
            self._kind, self._rest = "text", self._rest.lstrip()
        while not self._held and self._feed_body(pieces):
            pass
        return pieces

    def _feed_body(self, pieces: list[Piece]) -> bool:
        """Add the pieces of the text up to the end of a call, or of what has arrived; return whether there is more."""
        if self._arguments is None:
            plain, call, body = self._rest.partition(OPEN)
            if not self._has_call:
                keep = 0 if call else len(opening(plain, [OPEN]))
                sent = plain[: len(plain) - keep].rstrip()  # spaces before a call, or at the end, may be left out
                self._rest = self._rest[len(sent) :]
                self.sent += sent
                pieces += [("text", sent)] if sent else []
            head = CALL_HEAD.match(body) if call else None
            if head is None:
                self._held = len(body) > _HEAD_CHARS or CLOSE in body
                return False
            self._arguments, self._has_call, self._rest = ObjectStream(), True, body[head.end() :]
            pieces.append(("call", head["name"]))
        text, self._rest = self._arguments.feed(self._rest), ""
        pieces += [("arguments", text)] if text else []
        _, end, rest = self._arguments.rest.partition(CLOSE)
        if end:
            pieces.append(("ended", ""))
            self._arguments, self._rest = None, rest
        return bool(end)

    def close(self, rest: str, content: str) -> list[Piece]:
        """Take the last of the text and the message's content; return the pieces that have not been returned yet."""
        pieces = self.feed(rest, last=True)
        more = content[len(self.sent) :] if content.startswith(self.sent) else ""
        return [*pieces, ("text", more)] if more else pieces
