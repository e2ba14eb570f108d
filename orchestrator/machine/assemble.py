"""Assembles the operation that a worker gets: references put in, contexts continued, limits applied.

A value is put in once, and references inside it are not read. A continued context is carried as token ids where the
engine gave them, and as text where it did not.
"""

from __future__ import annotations

from pydantic import JsonValue

from ..core.plan import Call, Ref, Text, Think, Tokens
from ..core.planning import derive
from ..core.values import as_text, substitute
from .records import Node


def resolve(node: Node, tokens: int, known: int = 0) -> Think | Call:
    """Return a step's operation with all that its needs gave. A think step goes on from `known` tokens and generates at
    most `tokens` more.

    A sampled one that goes on has a seed of its own, made of its step's seed and `known`: a seed starts afresh with
    each attempt, so the same one would give the first new token the random number of the first token of all.
    """
    op = node.step.op
    if op.kind == "think":
        sampling = op.sampling
        if known and sampling.seed is not None and sampling.temperature:
            sampling = sampling.model_copy(update={"seed": derive(sampling.seed, "after", known)})
            op = op.model_copy(update={"sampling": sampling})
        return _think(node, op, tokens + known)
    assert op.kind == "call"
    if not op.args:
        return op
    values = _values(node)
    args = {key: substitute(value, values) for key, value in op.args.items()}
    return op if args == op.args else Call(tool=op.tool, args=args)


def _think(node: Node, op: Think, tokens: int) -> Think:
    sampling = op.sampling
    if tokens < sampling.max_tokens:
        sampling = sampling.model_copy(update={"max_tokens": tokens})
    elif node.after is None and not node.deps:
        return op
    values = _values(node)
    parts: list[Text | Tokens] = []
    if node.after is not None:
        parts += context(node.after, node.after_own, op.before)
    for part in op.prompt:
        parts.append(Text(text=as_text(values[part.step])) if isinstance(part, Ref) else part)
    return op.model_copy(update={"prompt": tuple(parts), "after": None, "before": "", "sampling": sampling})


def context(step: Node, own: bool, before: str = "") -> tuple[Text | Tokens, ...]:
    """Return the context that a step ended with: its prompt and its output, up to the last occurrence of `before`.

    With `own` that is what the step generated itself; else that of the innermost think step whose value became its own.
    """
    step = context_step(step, own)
    result = step.own
    assert result is not None
    has_ids = bool(result.prompt_ids) and bool(result.token_ids or not result.text)
    cut = result.text.rfind(before) if before else -1
    if cut < 0:
        if has_ids:
            return (Tokens(ids=result.prompt_ids + result.token_ids),)
        return (*step.prompt, Text(text=result.text))
    kept = result.text[:cut]
    if has_ids:
        return (Tokens(ids=result.prompt_ids), *([Tokens(ids=result.token_ids, within=kept)] if kept else []))
    return (*step.prompt, *([Text(text=kept)] if kept else []))


def prior(node: Node) -> str:
    """Return what stands in a step's line before its own text, from the model's first token on: the line that it
    continues, as far as `before`, and its own prompt."""
    op = node.step.op
    if op.kind != "think" or node.after is None:
        return ""
    result = context_step(node.after, node.after_own).own
    assert result is not None
    cut = result.text.rfind(op.before) if op.before else -1
    said = [result.prior, result.text if cut < 0 else result.text[:cut]]
    if op.prompt:
        values = _values(node)
        said += (as_text(values[part.step]) if isinstance(part, Ref) else part.text for part in op.prompt)
    return "".join(said)


def written(node: Node) -> tuple[Text | Tokens, ...]:
    """Return what a step and the steps that it expanded into added to its line: token ids where the engine gave them.
    Where the last of them has no result, what it had been given to read on. Empty if another line gave the value."""
    first, last = node.own, node
    while last.inner is not None and last.inner.output is not None:
        last = last.inner.output
    if first is None or last is node or last.after is None:
        return ()
    start = len(first.prompt_ids)
    if last.own is not None and last.own.token_ids:
        ids = (*last.own.prompt_ids, *last.own.token_ids)
        return (Tokens(ids=ids[start:], text=last.own.line[len(first.prior) :]),)
    if last.own is not None:
        return (Text(text=last.own.line[len(first.prior) :]),)
    (context, *put), text = last.prompt or (Text(text=""),), prior(last)[len(first.prior) :]
    if context.kind == "text":
        return (Text(text=text),)
    said = "".join(part.text for part in put)
    return (Tokens(ids=context.ids[start:], text=text[: len(text) - len(said)]), *put)


def context_step(step: Node, own: bool) -> Node:
    """Return the step whose own prompt and output are the context that `step` ended with; `own` as in `context`."""
    inner = step
    while not own and inner.inner is not None and inner.inner.output is not None:
        inner = inner.inner.output
        if inner.step.op.kind == "think":
            step = inner
    return step


def _values(node: Node) -> dict[str, JsonValue]:
    return {dep.step.name: dep.result.value for dep in node.deps if dep.result is not None}
