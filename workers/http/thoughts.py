"""Models that think before they answer: how a request asks them to or not to, and how much room their thoughts get."""

from __future__ import annotations

from typing import Any

from plait.core.ops import Think

from .._shared.thoughts import CLOSE, SWITCH, most, wanted
from .reading import AnswerReading
from .wire import ServerDialect


class ServerThoughts:
    """What is known of the models of one server. It is learnt from their answers: no server says it beforehand."""

    def __init__(self) -> None:
        self._think: set[str] = set()
        """Models that have thought."""
        self._stubborn: set[str] = set()
        """Those that thought though they were asked not to."""

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
        (self._stubborn if wanted(think) == "off" else self._think).add(model)
        return reading.cut_in_thoughts and not room and self.room(model, think, True) > 0
