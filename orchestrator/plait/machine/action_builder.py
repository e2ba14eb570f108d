"""Build what leaves the machine: the operation that a worker gets, with references filled in, contexts continued and
limits applied; and the one `Finish` of a run.

A value is inserted once, and references inside it are not expanded. A continued context is carried as token ids if the
engine reported them, and otherwise as text.
"""

from __future__ import annotations

from pydantic import JsonValue

from ..core.chat import Message, TextPart, ValuePart, assistant_message, with_prompt
from ..core.events import Finish, Status
from ..core.ops import ModelCall, Part, Ref, Text, Tokens, ToolCall
from ..core.planning import derive, fraction
from ..core.result import Failure, cancelled_failure
from ..core.values import as_text, substitute
from .backlog import Series, TalkHistory
from .records import Node, Run


def resolve(node: Node, tokens: int, known: int = 0, thoughts: int | None = None) -> ModelCall | ToolCall:
    """Return a step's operation with the values of its needs filled in. A think step continues `known` tokens and
    generates at most `tokens` more, of them at most `thoughts` tokens of thoughts if that limit is given.

    A sampled continuation gets its own seed, derived from the step's seed and `known`: a seed restarts with each
    attempt, so the unchanged seed would give the first new token the random number of the very first token. The same
    holds for the code of arithmetic sampling.
    """
    op = node.step.op
    if op.kind == "think":
        if thoughts is not None and thoughts < op.most_thoughts:
            lowered = {"thinking_tokens": thoughts} | ({} if thoughts else {"thinking": "off"})
            op = op.model_copy(update={"sampling": op.sampling.model_copy(update=lowered)})
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
        return op  # the same object: thousands of calls without arguments need no copies
    values = _values(node)
    args = {key: substitute(value, values) for key, value in op.args.items()}
    return op if args == op.args else ToolCall(tool=op.tool, args=args, approve=op.approve)


def _think(node: Node, op: ModelCall, tokens: int) -> ModelCall:
    sampling = op.sampling
    # Without a context, references or a lower limit the plan's own operation is sent, without a copy.
    if tokens < sampling.max_tokens:
        sampling = sampling.model_copy(update={"max_tokens": tokens})
    elif node.after is None and not (node.deps and _refers(op)):
        return op
    values = _values(node)
    own = _filled(op.prompt, values)
    update: dict[str, object] = {"prompt": own, "after": None, "before": "", "sampling": sampling}
    if op.messages:
        update["messages"] = _messages(op, values)
    if node.after is not None and op.chat:
        earlier = conversation(node.after, node.after_own).messages
        messages = earlier.with_more(_messages(op, values))
        context = _context(node.after, node.after_own).with_more()
        update.update(messages=messages, heard=len(earlier), context=context)
    elif node.after is not None:
        # A plain continuation has no turns: the context and the step's own prompt are one text to the model.
        update["prompt"] = _context(node.after, node.after_own, op.before).with_more(own)
    return op.model_copy(update=update)


def _refers(op: ModelCall) -> bool:
    """Whether a prompt includes values of other steps: a step may need another only for the order."""
    return bool(op.messages) or any(isinstance(part, Ref) for part in op.prompt)


def _filled(parts: tuple[Part, ...], values: dict[str, JsonValue]) -> tuple[Text | Tokens, ...]:
    return tuple(Text(text=as_text(values[part.step])) if isinstance(part, Ref) else part for part in parts)


def _messages(op: ModelCall, values: dict[str, JsonValue]) -> tuple[Message, ...]:
    """Return a step's own messages with the values of other steps put in."""
    return tuple(_message(message, values) for message in op.messages)


def _message(message: Message, values: dict[str, JsonValue]) -> Message:
    if isinstance(message.content, str) or not any(isinstance(part, ValuePart) for part in message.parts):
        return message
    parts = tuple(
        TextPart(text=as_text(values[part.step])) if isinstance(part, ValuePart) else part for part in message.parts
    )
    if all(isinstance(part, TextPart) for part in parts):
        return message.model_copy(update={"content": "".join(part.text for part in parts if part.type == "text")})
    return message.model_copy(update={"content": parts})


def conversation(step: Node, own: bool) -> TalkHistory:
    """Return the conversation that a step ended, its own turn last. A step outside a chat counts as one user message.

    Each turn is appended once to the turns before it, so a call takes time for the turns since the last call only.
    """
    turns: list[tuple[Node, Node]] = []
    node: Node | None = context_step(step, own)
    while node is not None and node.talk is None:
        last = node
        while node.after is not None and not _chats(node):  # a line that was continued is one turn
            node = context_step(node.after, node.after_own)
        turns.append((last, node))
        node = context_step(node.after, node.after_own) if node.after is not None else None
    talk = TalkHistory(Series(), 0) if node is None or node.talk is None else node.talk
    # Oldest first: each turn extends the history of the turn before it.
    for last, first in reversed(turns):
        assert last.outcome.own is not None and first.step.op.kind == "think"
        asked = _sent_messages(first)
        calls = talk.calls + sum(len(message.tool_calls) for message in asked)
        turn = assistant_message(first.step.op.begin + last.outcome.own.line, 1 + calls)
        talk = last.talk = TalkHistory(talk.messages.append_items((*asked, turn)), calls + len(turn.tool_calls))
    return talk


def _chats(node: Node) -> bool:
    return node.step.op.kind == "think" and node.step.op.chat


def _sent_messages(node: Node) -> tuple[Message, ...]:
    """Return the messages that a step sent to the model in its conversation."""
    op = node.step.op
    assert op.kind == "think"
    values = _values(node)
    prompt = "".join(part.text for part in _filled(op.prompt, values))
    return with_prompt(_messages(op, values), prompt)


def prompt(node: Node) -> Series[Text | Tokens]:
    """Return the whole prompt of a step that was sent to a worker, as text and tokens; empty for any other step.

    The prompt is built on demand, because engines with a chat template take messages instead. Each turn's part of a
    long trajectory is built once.
    """
    if node.attempts.ran_on is None:
        return Series()
    chain: list[Node] = []
    at: Node | None = node
    while at is not None and at.sent is None:
        chain.append(at)
        at = context_step(at.after, at.after_own) if at.after is not None else None
        if at is not None and _has_ids(at):  # its ids include everything before it
            break
    for step in reversed(chain):
        step.sent = _prompt(step)
    assert node.sent is not None
    return node.sent


def _prompt(node: Node) -> Series[Text | Tokens]:
    """Return a step's prompt. The prompt of the step that it continues must be known already."""
    op = node.step.op
    assert op.kind == "think"
    values = _values(node)
    update: dict[str, object] = {"prompt": _filled(op.prompt, values)}
    if op.messages:
        update["messages"] = _messages(op, values)
    begin = (Text(text=op.begin),) if op.begin else ()
    new = [part for part in (*op.model_copy(update=update).parts, *begin) if part.kind != "ref"]
    before = _context(node.after, node.after_own, op.before) if node.after is not None else Series[Text | Tokens]()
    return before.append_items(new)


def _has_ids(node: Node) -> bool:
    """Whether a worker has reported the token ids of a step's prompt and output."""
    result = node.outcome.own
    return result is not None and bool(result.prompt_ids) and bool(result.token_ids or not result.text)


def _context(step: Node, own: bool, before: str = "") -> Series[Text | Tokens]:
    """Return the context that a step ended with: its prompt and its output, up to the last occurrence of `before`.

    With `own`, the context is the step's own generation; otherwise that of the innermost think step whose value became
    the step's value.
    """
    step = context_step(step, own)
    result = step.outcome.own
    assert result is not None
    cut = result.text.rfind(before) if before else -1
    kept = result.text if cut < 0 else result.text[:cut]
    if not _has_ids(step):
        return prompt(step).append_items([Text(text=kept)] if kept or cut < 0 else ())
    if cut < 0:
        return Series((_tokens(result.prompt_ids + result.token_ids),))
    return Series((_tokens(result.prompt_ids), *([_tokens(result.token_ids, kept)] if kept else ())))


def _tokens(ids: tuple[int, ...], within: str | None = None) -> Tokens:
    """Return the token ids of a result as a piece of a prompt."""
    # Not validated again: the result's ids were checked when it came, and a context has many.
    return Tokens.model_construct(ids=ids, within=within)


def prior(node: Node) -> str:
    """Return the text before a step's own text in its trajectory: the trajectory that it continues, up to `before`, and
    the step's own prompt."""
    op = node.step.op
    if op.kind != "think" or node.after is None or op.chat:  # a turn of a conversation begins a line
        return ""
    result = context_step(node.after, node.after_own).outcome.own
    assert result is not None
    cut = result.text.rfind(op.before) if op.before else -1
    pieces = [result.prior, result.text if cut < 0 else result.text[:cut]]
    if op.prompt:
        values = _values(node)
        pieces += (as_text(values[part.step]) if isinstance(part, Ref) else part.text for part in op.prompt)
    return "".join(pieces)


def written(node: Node) -> tuple[Text | Tokens, ...]:
    """Return the pieces that a step and its expansion added to its trajectory, as token ids if the engine reported
    them. If the last step has no result, its continued context counts. Empty if another trajectory gave the value."""
    first, last = node.outcome.own, node
    while last.inner is not None and last.inner.output is not None:
        last = last.inner.output
    if first is None or last is node or last.after is None:
        return ()
    start = len(first.prompt_ids)
    if last.outcome.own is not None and last.outcome.own.token_ids:
        ids = (*last.outcome.own.prompt_ids, *last.outcome.own.token_ids)
        return (Tokens(ids=ids[start:], text=last.outcome.own.line[len(first.prior) :]),)
    if last.outcome.own is not None:
        return (Text(text=last.outcome.own.line[len(first.prior) :]),)
    if context_step(last.after, last.after_own).outcome.own is None:  # the step that it continues has failed
        return ()
    (context, *put), text = tuple(prompt(last)) or (Text(text=""),), prior(last)[len(first.prior) :]
    if context.kind == "text":
        return (Text(text=text),)
    added = "".join(part.text for part in put)
    return (Tokens(ids=context.ids[start:], text=text[: len(text) - len(added)]), *put)


def context_step(step: Node, own: bool) -> Node:
    """Return the step whose own prompt and output are the context that `step` ended with; `own` as in `_context`."""
    inner = step
    while not own and inner.inner is not None and inner.inner.output is not None:
        inner = inner.inner.output
        if inner.step.op.kind == "think":
            step = inner
    return step


def _values(node: Node) -> dict[str, JsonValue]:
    return {dep.step.name: dep.outcome.result.value for dep in node.deps if dep.outcome.result is not None}


def finish(run: Run, output: Node) -> Finish:
    """Return the one `Finish` of a run whose output step has ended and that has no attempt left."""
    status, failure = _status(run, output)
    partial: dict[str, JsonValue] = {}
    # A run that a policy broke may have an output value, but a failed run must not show it as its answer.
    answered = output.outcome.result is not None and status in ("done", "partial")
    if answered:
        path = output.path_tokens.total
    else:
        path = max(node.path_tokens.own for node in run.nodes)
        partial = {
            node.id: node.outcome.own.value for node in run.nodes if node.outcome.own is not None and node.merge is None
        }
    return Finish(
        run=run.id,
        status=status,
        result=output.outcome.result if answered else None,
        failure=None if failure is None else failure.bare,
        partial=partial,
        usage=run.meter.usage(),
        critical_path_tokens=path,
        steps=len(run.nodes),
    )


def _status(run: Run, output: Node) -> tuple[Status, Failure | None]:
    # First: a policy that raised cancels all steps, so the output step's end is only a consequence.
    if run.broken is not None:
        return "failed", run.broken
    if output.outcome.result is not None:
        if output.outcome.limited:
            return "partial", output.outcome.limited
        return ("partial" if output.outcome.result.partial else "done"), None
    if run.cancelled is not None:
        return "cancelled", cancelled_failure(*run.cancelled)
    if output.outcome.failure is None:
        return "failed", cancelled_failure(output.outcome.cause, output.last_move[4])
    # A limit that was reached after some steps ended leaves values worth keeping: the run is partial and not failed.
    some = any(node.outcome.own is not None and node.merge is None for node in run.nodes)
    return ("partial" if output.outcome.limited and some else "failed"), output.outcome.failure
