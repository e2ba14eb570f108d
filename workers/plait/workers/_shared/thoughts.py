"""Thoughts: what a model writes before it answers, between `<think>` and `</think>`."""

from __future__ import annotations

from plait.core.ops import ModelCall
from plait.core.sampling import THOUGHTS, Thinking

OPEN, CLOSE = "<think>", "</think>"
SWITCH = "enable_thinking"
"""What chat templates call the switch."""
ENDED = "<think>\n\n</think>\n\n"
"""The beginning of an answer whose thoughts are over before they begin."""


def wanted(think: ModelCall) -> Thinking:
    """Return whether a call shall think: a label is the first token of the answer, so it is asked for without."""
    sampling = think.sampling
    return "off" if sampling.thinking == "auto" and sampling.labels else sampling.thinking


def most(think: ModelCall) -> int:
    """Return the most tokens that the thoughts of a call may have."""
    return THOUGHTS if think.sampling.thinking_tokens is None else think.sampling.thinking_tokens


def rendered(think: ModelCall, template: str) -> ModelCall:
    """Return a call that turns thinking on or off in the chat template, if possible: by its switch, or by an answer
    that begins after empty thoughts."""
    asked = wanted(think)
    if not think.chat or asked == "auto" or not thinks(template):
        return think
    if SWITCH in template:
        switched = {"chat_template_kwargs": {SWITCH: asked == "on", **think.sampling.chat_template_kwargs}}
        return think.model_copy(update={"sampling": think.sampling.model_copy(update=switched)})
    return think if asked == "on" or CLOSE in think.begin else think.model_copy(update={"begin": ENDED + think.begin})


def thinks(template: str) -> bool:
    """Whether a model thinks before it answers, by its chat template."""
    return SWITCH in template or OPEN in template
