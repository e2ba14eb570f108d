"""Track which steps share a context, where they were sent, how long contexts are, and which workers cache them.

Policies place steps by this data. The steps of one run that share a context are a group; over all runs, the prefix
index records which workers hold the beginning of a group's context.

Kept only for runs that have policies. Lengths are estimates until an engine has counted: one token per four characters.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable

from ..core.ops import ModelCall, Ref, Text, Tokens
from ..core.prefix_index import BYTES_A_TOKEN, PrefixIndex
from ..core.result import Usage
from ..core.values import as_text
from .action_builder import context_step
from .records import Attempt, Node, PrefixGroup

CHARACTERS_A_TOKEN = 4
"""Approximate characters per token of English text in common vocabularies."""
BEGINNING = 1024
"""Bytes of a prompt that choose its worker, so that independent processes choose the same one."""


def count_start(group: PrefixGroup, attempt: Attempt, index: PrefixIndex) -> None:
    """Count a new attempt, and the context tokens that it needs on its worker."""
    host, node = attempt.worker, attempt.node
    worker, attempt.beside = host.name, host.running
    if node.step.op.kind == "think":
        shared = shared_tokens(node)
        attempt.context = prompt_tokens(node) - shared + attempt.reserved
        # The shared context counts once per worker: the engine's prefix cache holds it once for all of the group.
        if worker not in group.live:
            group.shared[worker] = shared
            host.context += shared
        host.context += attempt.context
        root, content = context_of(node)
        if content:
            attempt.expected = index.record_sent(worker, root, content, attempt.id)
    group.sent[worker] = group.sent.get(worker, 0) + 1
    group.live[worker] = group.live.get(worker, 0) + 1


def count_end(group: PrefixGroup, attempt: Attempt, usage: Usage, index: PrefixIndex) -> None:
    """Count the end of an attempt, and free its context tokens."""
    host = attempt.worker
    if attempt.node.step.op.kind == "think":
        _, content = context_of(attempt.node)
        # The engine's own count corrects the estimate of bytes per token for what this worker caches.
        if usage.prompt and index.is_reported(host.name, attempt.id):
            index.set_scale(host.name, attempt.id, BYTES_A_TOKEN * prompt_tokens(attempt.node) / usage.prompt)
        index.ended(host.name, len(content), attempt.expected, usage.prompt, usage.cached, usage.completion)
    host.context -= attempt.context
    group.live[host.name] -= 1
    if not group.live[host.name]:  # the last user of the shared context there
        del group.live[host.name]
        host.context -= group.shared.pop(host.name, 0)


def enroll(nodes: Iterable[Node]) -> None:
    """Enter each new step into its prefix group."""
    for node in nodes:
        if node.merge is None:
            key = _key(node)
            group = node.run.prefix_groups.get(key)
            if group is None:
                group = node.run.prefix_groups[key] = PrefixGroup()
                if node.step.op.kind == "think" and node.after is None:
                    group.own_from = _own_from(node.step.op)
            group.nodes.append(node)
            node.place.prefix_group = group


def _key(node: Node) -> Hashable:
    op = node.step.op
    if op.kind == "call":
        return ("call", op.tool)
    assert op.kind == "think"
    if node.after is not None:
        return ("after", node.after.id, node.after_own, op.model, op.salt)
    lead: list[str | tuple[int, ...]] = []
    for part in op.parts[: _own_from(op)]:
        assert not isinstance(part, Ref)
        lead.append(part.text if isinstance(part, Text) else part.ids)
    if not lead and not op.messages:
        return ("alone", node.id)
    before = (*_messages(node, op), tuple(tool.name for tool in op.tools)) if op.chat else ()
    return ("prompt", tuple(lead), len(lead) < len(op.parts), op.chat, before, op.model, op.salt)


def _messages(node: Node, op: ModelCall) -> list[str]:
    """Return the messages before a prompt as texts; equal messages give equal texts. Each is serialized once per run,
    because the steps of a conversation share them."""
    written = node.run.messages
    texts: list[str] = []
    for message in op.messages:
        known = written.get(id(message))
        if known is None:
            known = written[id(message)] = message, message.model_dump_json()
        texts.append(known[1])
    return texts


def _own_from(op: ModelCall) -> int:
    """Return the index of the first part of a prompt that belongs to the step alone: the first reference, or the last
    of several parts."""
    # Planners put the text that siblings share into parts of its own, before the part that differs.
    first = next((i for i, part in enumerate(op.parts) if isinstance(part, Ref)), None)
    return first if first is not None else max(1, len(op.parts) - 1)


def cached(node: Node, index: PrefixIndex) -> dict[str, int]:
    """Return by worker the approximate number of tokens of a step's prompt, from its start, that are cached."""
    root, content = context_of(node)
    if not content:
        return {}
    return {worker: size // BYTES_A_TOKEN for worker, size in index.held_bytes(root, content).items()}


def beginning(node: Node) -> int | None:
    """Return a hash of the first `BEGINNING` bytes of a step's prompt, or `None` without a prompt of its own."""
    # No more than that, since the text after a header that many prompts share differs in each.
    root, content = context_of(node)
    return zlib.crc32(content[:BEGINNING], zlib.crc32(repr(root).encode())) if content else None


def context_of(node: Node) -> tuple[Hashable, bytes]:
    """Return the prefix-index key of a think step's prompt: its root, and the bytes of its parts up to the first
    reference. Empty for a step that continues another, whose worker has the context."""
    group, op = node.place.prefix_group, node.step.op
    if group is None or op.kind != "think" or node.after is not None:
        return None, b""
    if group.content is None:
        parts: list[bytes] = [message.encode(errors="replace") for message in _messages(node, op)]
        for part in op.parts[: group.own_from]:
            assert not isinstance(part, Ref)
            if isinstance(part, Text):
                parts.append(part.text.encode(errors="replace"))
            else:
                parts += (token.to_bytes(4, "little", signed=True) for token in part.ids)
        tools = tuple(tool.name for tool in op.tools)
        group.content = (op.model, op.salt, op.chat, tools), b"".join(parts)
    return group.content


def prompt_tokens(node: Node) -> int:
    """Return the approximate number of tokens of a think step's prompt, with the context that it continues."""
    op = node.step.op
    return 0 if op.kind != "think" else shared_tokens(node) + sum(_tokens(node, part) for part in _own_part(node, op))


def shared_tokens(node: Node) -> int:
    """Return the approximate number of tokens of a think step's prompt that its group shares: the context that it
    continues, or its messages and the prompt up to the first reference or, without references, the last part."""
    op, group = node.step.op, node.place.prefix_group
    if op.kind != "think":
        return 0
    if node.after is not None:
        return _context_tokens(node.after, node.after_own)
    if group is None:
        return _before_own(node, op, _own_from(op))
    if group.size is None:
        group.size = _before_own(node, op, group.own_from)
    return group.size


def _before_own(node: Node, op: ModelCall, own_from: int) -> int:
    before = sum(-(-len(message) // CHARACTERS_A_TOKEN) for message in _messages(node, op))
    return before + sum(_tokens(node, part) for part in op.parts[:own_from])


def _own_part(node: Node, op: ModelCall) -> tuple[Text | Tokens | Ref, ...]:
    """Return the parts of a prompt that belong to the step alone."""
    if node.after is not None:
        return op.parts
    own_from = _own_from(op) if node.place.prefix_group is None else node.place.prefix_group.own_from
    if not op.messages and own_from >= len(op.prompt):  # samples of one prompt share all of it
        return ()
    return op.parts[own_from:]


def _context_tokens(step: Node, own: bool) -> int:
    if step.ended or step.outcome.own is not None:
        step = context_step(step, own)
    result = step.outcome.own
    if result is not None and result.prompt_ids:
        return len(result.prompt_ids) + len(result.token_ids)
    op = step.step.op
    generated = step.attempts.live.generated if step.attempts.live is not None else 0
    if result is not None:
        generated = result.length
    elif op.kind == "think":
        # Still running: the context may grow to the limit, and room is planned for the worst case.
        generated = max(generated, op.sampling.max_tokens)
    return prompt_tokens(step) + generated


def _tokens(node: Node, part: Text | Tokens | Ref) -> int:
    match part:
        case Tokens(ids=ids):
            return len(ids)
        case Text(text=text):
            return -(-len(text) // CHARACTERS_A_TOKEN)
        case Ref(step=name):
            for dep in node.deps:
                if dep.step.name == name and dep.outcome.result is not None:
                    return -(-len(as_text(dep.outcome.result.value)) // CHARACTERS_A_TOKEN)
            return 0
