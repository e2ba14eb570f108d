"""Names and memos of the steps of `threads`: a leg's place in the tree of trajectories, and its reader's state.

Planners keep no state between two calls: a step's memo carries everything that a later leg needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from plait.core.ops import Ref, Text, Tokens
from plait.core.values import Frozen

Piece = JsonValue
"""A model's output from the engine: text, or `{"ids": […], "text": …}`."""


@dataclass(frozen=True, slots=True)
class LegPlace:
    """The place of a leg: its trajectory (`path`; empty: the parent's) and its number in the trajectory (`round`)."""

    path: tuple[int, ...]
    round: int

    @property
    def spawn(self) -> str:
        """The number of the place's spawn list, as part of names: `1`, `3.1.2`."""
        return ".".join(map(str, (*self.path, self.round)))

    @property
    def next(self) -> LegPlace:
        """The place of the line's next leg."""
        return LegPlace(self.path, self.round + 1)

    @property
    def name(self) -> str:
        """The step's name: `round-2`, `child-3`, `child-3.1-round-2`."""
        if not self.path:
            return f"round-{self.round}"
        return f"child-{'.'.join(map(str, self.path))}" + (f"-round-{self.round}" if self.round > 1 else "")


class Memo(Frozen):
    """State that a leg or join carries for its reader."""

    path: tuple[int, ...] = ()
    """The leg's place; a join's is that of the leg before it."""
    round: int = 1
    open: int = 0
    """Number of blocks of paths that the trajectory has opened itself. Their ends come before the thread's end."""
    notes: str = ""
    """State of the dialect (`Dialect.remember`)."""
    after: str = ""
    """The step whose context continues after the join, if it is not the leg that spawned."""
    before: str = ""
    """Text before which that context ends (`ModelCall.before`)."""

    def at(self, place: LegPlace) -> JsonValue:
        """Return the memo as the state of a step at a place."""
        placed = self.model_copy(update={"path": place.path, "round": place.round})
        return placed.model_dump(mode="json", exclude_defaults=True)


def read_block(value: JsonValue) -> tuple[Piece, ...]:
    """Return the pieces of a join's value."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) and value else ()


def join_texts(pieces: tuple[Piece, ...]) -> str:
    """Return the text of pieces."""
    texts = (piece.get("text", "") if isinstance(piece, dict) else piece for piece in pieces)
    return "".join(text for text in texts if isinstance(text, str))


def to_prompt(pieces: tuple[Piece, ...]) -> tuple[Text | Tokens | Ref, ...]:
    """Return pieces as parts of a prompt."""
    parts: list[Text | Tokens | Ref] = []
    for piece in pieces:
        if isinstance(piece, str):
            parts.append(Text(text=piece))
        # The generated ids are kept, since tokenising the text again may give other ids.
        elif isinstance(piece, dict) and isinstance(ids := piece.get("ids"), list):
            parts.append(Tokens.model_validate({"ids": ids, "text": piece.get("text") or ""}))
    return tuple(parts)
