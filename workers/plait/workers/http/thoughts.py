"""Models that think before they answer: how a request asks them to or not to, and how much room their thoughts get."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plait.core.ops import Think

from .._shared.thoughts import CLOSE, SWITCH, most, wanted
from .reading import AnswerReading
from .wire import ServerDialect


class ServerThoughts:
    """What is known of the models of one server. It is learnt from their answers, and from the chat template where the
    server shows what it makes of a conversation."""

    def __init__(self, model: str = "", opens: Iterable[bool] = ()) -> None:
        """`opens`: as in `ServerFacts`, of this model."""
        self._opens = {(model, asked) for asked in opens}
        """Models whose turn begins within a block of thoughts, where thoughts are asked for, and where not."""
        self._think: set[str] = {name for name, asked in self._opens if asked}
        """Models that have thought."""
        self._stubborn: set[str] = {name for name, asked in self._opens if not asked}
        """Those that thought though they were asked not to."""

    def opened(self, model: str, think: Think, chat: bool) -> bool:
        """Whether the text of an answer begins within a block of thoughts, with nothing that says so."""
        return chat and CLOSE not in think.begin and (model, wanted(think) != "off") in self._opens

    def room(self, model: str, think: Think, chat: bool) -> int:
        """Return the tokens that a request gets for thoughts, beyond the step's `max_tokens`."""
        if not chat or CLOSE in think.begin:
            return 0
        match wanted(think):
            case "on":
                there = True
            case "off":
                there = model in self._stubborn
            case "auto":
                there = model in self._think
        return most(think) if there else 0

    def fields(self, think: Think, dialect: ServerDialect, chat: bool, room: int) -> dict[str, Any]:
        """Return the fields that switch thoughts on or off and bound them, as far as the server takes such fields."""
        out: dict[str, Any] = {}
        if not chat or not dialect.extras:
            return out
        asked = wanted(think)
        if asked != "auto" and SWITCH not in think.chat_template_kwargs:
            # A template that has no such switch leaves it unread.
            out["chat_template_kwargs"] = {**think.chat_template_kwargs, SWITCH: asked == "on"}
        if dialect.ids and room and think.thinking_tokens is not None:
            out["thinking_token_budget"] = think.thinking_tokens
        return out

    def learn(self, model: str, think: Think, reading: AnswerReading, room: int) -> bool:
        """Take note of an answer whose thoughts had that much `room`. Returns whether it is to be asked for again: they
        had none, since nobody knew that there would be any, and took what the answer may have."""
        if not reading.thought:
            return False
        if reading.closed_only:
            self._opens.add((model, wanted(think) != "off"))
        (self._stubborn if wanted(think) == "off" else self._think).add(model)
        return reading.cut_in_thoughts and not room and self.room(model, think, True) > 0
