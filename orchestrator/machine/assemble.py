"""Assembles what leaves the machine: the operation that a worker gets, with references put in, contexts continued and
limits applied; and the one `Finish` of a run.

A value is put in once, and references inside it are not read. A continued context is carried as token ids where the
engine gave them, and as text where it did not.
"""

from __future__ import annotations

from pydantic import JsonValue

from ..core.chat import Message, TextPart, ValuePart, spoken, with_prompt
from ..core.events import Finish, Status
from ..core.ops import Call, Part, Ref, Text, Think, Tokens
from ..core.planning import derive, fraction
from ..core.result import Failure, given_up
from ..core.values import as_text, substitute
from .records import Node, Run


def resolve(node: Node, tokens: int, known: int = 0, thoughts: int | None = None) -> Think | Call:
    """Return a step's operation with all that its needs gave. A think step goes on from `known` tokens and generates at
    most `tokens` more; its thoughts have at most `thoughts`, if that is given.

    A sampled one that goes on has a seed of its own, made of its step's seed and `known`: a seed starts afresh with
    each attempt, so the same one would give the first new token the random number of the first token of all. The same
    is true of the code of arithmetic sampling.
    """
    op = node.step.op
    if op.kind == "think":
        if thoughts is not None and thoughts < op.most_thoughts:
            op = op.model_copy(update={"thinking_tokens": thoughts} | ({} if thoughts else {"thinking": "off"}))
        sampling = op.sampling
        if known and sampling.seed is not None and sampling.draws:
            changed: dict[str, object] = {"seed": derive(sampling.seed, "after", known)}
            if sampling.arithmetic is not None:
                changed["arithmetic"] = fraction(sampling.seed, "code", known)
            sampling = sampling.model_copy(update=changed)
            op = op.model_copy(update={"sampling": sampling})
        return _think(node, op, tokens + known)
    assert op.kind == "call"
    if not op.args:
        return op
    values = _values(node)
    args = {key: substitute(value, values) for key, value in op.args.items()}
    return op if args == op.args else Call(tool=op.tool, args=args, approve=op.approve)


def _think(node: Node, op: Think, tokens: int) -> Think:
    sampling = op.sampling
    if tokens < sampling.max_tokens:
        sampling = sampling.model_copy(update={"max_tokens": tokens})
    elif node.after is None and not node.deps:
        return op
    values = _values(node)
    own = _filled(op.prompt, values)
    update: dict[str, object] = {"prompt": own, "after": None, "before": "", "sampling": sampling}
    if op.messages:
        update["messages"] = _messages(op, values)
    if node.after is not None and op.chat:
        earlier = conversation(node.after, node.after_own)
        messages = (*earlier, *_messages(op, values))
        update |= {"messages": messages, "heard": len(earlier), "context": context(node.after, node.after_own)}
    elif node.after is not None:
        update["prompt"] = (*context(node.after, node.after_own, op.before), *own)
    return op.model_copy(update=update)


def _filled(parts: tuple[Part, ...], values: dict[str, JsonValue]) -> tuple[Text | Tokens, ...]:
    return tuple(Text(text=as_text(values[part.step])) if isinstance(part, Ref) else part for part in parts)


def _messages(op: Think, values: dict[str, JsonValue]) -> tuple[Message, ...]:
    """Return a step's own messages with the values of other steps put in."""
    return tuple(_message(each, values) for each in op.messages)


def _message(message: Message, values: dict[str, JsonValue]) -> Message:
    if not any(isinstance(part, ValuePart) for part in message.parts):
        return message
    parts = tuple(
        TextPart(text=as_text(values[part.step])) if isinstance(part, ValuePart) else part for part in message.parts
    )
    if all(isinstance(part, TextPart) for part in parts):
        return message.model_copy(update={"content": "".join(part.text for part in parts if part.type == "text")})
    return message.model_copy(update={"content": parts})


def conversation(step: Node, own: bool) -> tuple[Message, ...]:
    """Return the conversation that a step ended, its own turn last. What was no chat counts as one user's message."""
    turns: list[tuple[tuple[Message, ...], str]] = []
    node: Node | None = context_step(step, own)
    while node is not None:
        assert node.own is not None
        text = node.own.line
        while node.after is not None and not _chats(node):  # a line that was continued is one turn
            node = context_step(node.after, node.after_own)
        assert node.step.op.kind == "think"
        turns.append((_asked(node), node.step.op.begin + text))
        node = context_step(node.after, node.after_own) if node.after is not None else None
    said: list[Message] = []
    for asked, text in reversed(turns):
        said += asked
        said.append(spoken(text, 1 + sum(len(each.tool_calls) for each in said)))
    return tuple(said)


def _chats(node: Node) -> bool:
    return node.step.op.kind == "think" and node.step.op.chat


def _asked(node: Node) -> tuple[Message, ...]:
    """Return what a step put to the model in its conversation."""
    op = node.step.op
    assert op.kind == "think"
    values = _values(node)
    prompt = "".join(part.text for part in _filled(op.prompt, values))
    return with_prompt(_messages(op, values), prompt)


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
    if op.kind != "think" or node.after is None or op.chat:  # a turn of a conversation begins a line
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
    if context_step(last.after, last.after_own).own is None:  # what it continues has failed: it was given nothing
        return ()
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


def finish(run: Run, output: Node) -> Finish:
    """Return the one `Finish` of a run whose output step has ended and that has no attempt left."""
    status, failure = _status(run, output)
    partial: dict[str, JsonValue] = {}
    answered = output.result is not None and status in ("done", "partial")
    if answered:
        path = output.path
    else:
        path = max(node.path_own for node in run.nodes)
        partial = {node.id: node.own.value for node in run.nodes if node.own is not None and node.merge is None}
    return Finish(
        run=run.id,
        status=status,
        result=output.result if answered else None,
        failure=None if failure is None else failure.bare,
        partial=partial,
        usage=run.meter.usage(),
        critical_path_tokens=path,
        steps=len(run.nodes),
    )


def _status(run: Run, output: Node) -> tuple[Status, Failure | None]:
    if run.broken is not None:
        return "failed", run.broken
    if output.result is not None:
        if output.limited:
            return "partial", output.limited
        return ("partial" if output.result.partial else "done"), None
    if run.cancelled is not None:
        return "cancelled", given_up(*run.cancelled)
    if output.failure is None:
        return "failed", given_up(output.cause, output.last_move[4])
    some = any(node.own is not None and node.merge is None for node in run.nodes)
    return ("partial" if output.limited and some else "failed"), output.failure
