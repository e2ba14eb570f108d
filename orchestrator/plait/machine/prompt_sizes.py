"""Count or estimate the prompt tokens of model steps under a budget that limits them.

A worker counts the prompt, or its size is estimated. Counted and reported sizes are kept by prompt, so 32 branches of
one prompt need one request to a worker. An estimate is one token per four bytes, or more if a worker of the run has
reported a higher rate. Until the attempt has ended, a margin is reserved as well: half as much (`PROMPT_MARGIN_RATIO`)
and the tokens of the chat template, or with `Budget.strict` one token per byte. The worker's report replaces both; if
no worker reports, both stay charged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from typing import NamedTuple

from ..core.ops import ModelCall, Text, Tokens
from ..core.result import Usage
from .action_builder import resolve
from .records import Attempt, Node, WorkerState

PROMPT_MARGIN_RATIO = 0.5
"""Reserved margin of an estimated prompt, as a fraction of the estimate."""
_MIN_SAMPLE_BYTES = 40
"""Minimum bytes of a prompt whose reported size updates the estimate of others."""
_TEMPLATE_TOKENS = 16
"""Maximum tokens that a chat template puts around a message, and around all messages; half as many are usual."""
_MIN_TOKENS_PER_BYTE = 0.25
"""Minimum estimate of tokens per byte, because a short prompt predicts a long one poorly."""


class PromptSize(NamedTuple):
    """Tokens of a prompt."""

    tokens: int
    margin: int = 0
    """Tokens by which an estimate may be too low."""
    estimated: bool = False


def prompt_size(node: Node, worker: WorkerState, known: int, *, ask: bool) -> PromptSize | ModelCall:
    """Return the size of a think step's prompt for an attempt that continues `known` tokens; with `ask` perhaps the
    operation whose prompt the worker has to count first."""
    op = resolve(node, 1)  # the limit of tokens is irrelevant here: only the prompt is read
    assert op.kind == "think"
    size = node.run.prompt_sizes.known.get(_key(op))
    if size is not None:
        return PromptSize(size + known)
    parts = _parts(op)
    # Ids that are passed whole are the exact size: no template and no tokenizer will change them.
    if not op.chat and all(part.kind == "tokens" and part.within is None for part in parts):
        return PromptSize(sum(_length(part, 0) for part in parts) + known)
    if ask and worker.counts_tokens:
        return op
    rate, tools = node.run.prompt_sizes.tokens_per_byte, _size_of_tools(op)
    tokens = sum(_length(part, rate) for part in parts) + math.ceil(tools * rate)
    strict = node.account is not None and any(payer.budget.strict for payer in (node.account, *node.account.around))
    if strict:
        margin = max(0, sum(_length(part, 1) for part in parts) + tools - tokens) + _around(op)
    else:
        margin = math.ceil(PROMPT_MARGIN_RATIO * tokens) + _around(op) // 2
    return PromptSize(tokens + known, margin, True)


def prompt_counted(node: Node, tokens: int) -> None:
    """Record the prompt size that a worker has counted."""
    op = resolve(node, 1)
    assert op.kind == "think"
    node.run.prompt_sizes.known[_key(op)] = tokens


def prompt_reported(attempt: Attempt, usage: Usage) -> None:
    """Record the prompt size that the worker of an attempt has reported."""
    node, known = attempt.node, len(attempt.resumed_from.ids) if attempt.resumed_from is not None else 0
    op = resolve(node, 1)
    if op.kind != "think" or usage.prompt <= known or usage.uncounted or usage.uncounted_prompt:
        return  # uncounted usage means an answer that broke off: its prompt was read twice
    node.run.prompt_sizes.known[_key(op)] = usage.prompt - known
    parts = _parts(op)
    size = sum(_bytes(part.text) for part in parts if part.kind == "text") + _size_of_tools(op)
    # Prompts with ids are left out: their bytes are unknown.
    if size >= _MIN_SAMPLE_BYTES and all(part.kind == "text" for part in parts):
        node.run.prompt_sizes.tokens_per_byte = max(_MIN_TOKENS_PER_BYTE, (usage.prompt - known - _around(op)) / size)


def _key(op: ModelCall) -> Hashable:
    parts = tuple(part.text if part.kind == "text" else (part.ids, part.within) for part in _parts(op))
    return op.model, op.chat, op.begin, tuple(tool.name for tool in op.tools), parts


def _parts(op: ModelCall) -> list[Text | Tokens]:
    """Return the whole prompt, including the messages of a conversation."""
    begin = (Text(text=op.begin),) if op.begin else ()
    return [part for part in (*op.parts, *begin) if part.kind != "ref"]


def _length(part: Text | Tokens, rate: float) -> int:
    if part.kind == "text":
        return math.ceil(_bytes(part.text) * rate)
    return len(part.ids) if part.within is None else min(len(part.ids), math.ceil(_bytes(part.within) * (rate or 1)))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _size_of_tools(op: ModelCall) -> int:
    """Return the bytes of the tool descriptions of a prompt."""
    return sum(_bytes(json.dumps(tool.model_dump(mode="json"), ensure_ascii=False)) for tool in op.tools)


def _around(op: ModelCall) -> int:
    """Return the maximum number of tokens that a template puts around a prompt."""
    return _TEMPLATE_TOKENS * (len(op.messages) + 2) if op.chat else 1
