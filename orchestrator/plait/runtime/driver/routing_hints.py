"""What a serving stack may be told about a job, for workers that want it (`Worker.hints`): of which line it is, how
long its answer will probably be, and how many others begin as it does."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...core.events import Hints, Job
from ...core.flow import is_root
from ...core.ops import ModelCall, Text, Tokens
from ...machine import Machine, Node, NodeView

__all__ = ["Hinter"]

_MOST = 1_000
"""Steps that go on with another which are looked at; pieces of a prompt."""
_BEGINS = 4_096
"""Characters of a prompt by which it is known."""


@dataclass(slots=True)
class _Run:
    """What is known of a run under way."""

    sessions: dict[str, str] = field(default_factory=dict[str, str])
    """Of steps, by their ids."""
    parents: dict[str, str] = field(default_factory=dict[str, str])
    """Of sessions."""
    origins: dict[str, str] = field(default_factory=dict[str, str])
    """Of steps, by their ids."""
    heirs: dict[str, str] = field(default_factory=dict[str, str])
    """The step that goes on with a step's session: the first to do so. Others begin sessions of their own."""
    begins: dict[str, Counter[str]] = field(default_factory=dict[str, "Counter[str]"])
    """By scope: how many of its steps begin with which prompt."""
    counted: dict[str, int] = field(default_factory=dict[str, int])
    """By scope: how many of its steps were looked at for that."""
    names: dict[str, str] = field(default_factory=dict[str, str])
    """Of steps: how their prompts begin."""


class Hinter:
    """Makes the hints of one driver's jobs."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        """Those under way: whoever ends a run takes it out."""

    def hints(self, job: Job, machine: Machine) -> Hints | None:
        """Return the hints of a job that is about to be sent out; `None` for what is no model call."""
        node = machine.nodes.get(job.step)
        if node is None or job.op.kind != "think":
            return None
        run = self.runs.setdefault(job.run, _Run())
        session = self._session(run, node)
        burst, size = self._burst(run, node)
        return Hints(
            session=session,
            parent=run.parents.get(session, job.run),
            final=_is_last(node),
            expected=_expected(node, machine),
            burst=burst,
            burst_size=size,
            origin=self._origin(run, node, burst or session),
        )

    def _session(self, run: _Run, node: Node) -> str:
        """Return the session of a step: that of the step whose context it is the first to continue, else its own."""
        if node.id in run.sessions:
            return run.sessions[node.id]
        own = node.id.replace(":", "/")
        before = node.after
        if before is not None:
            theirs = run.sessions.get(before.id, before.id.replace(":", "/"))
            if run.heirs.setdefault(before.id, node.id) == node.id:
                own = theirs
            else:
                run.parents[own] = theirs
        run.sessions[node.id] = own
        return own

    def _origin(self, run: _Run, node: Node, own: str) -> str:
        """Return the origin of the step whose context a step continues, else its own."""
        before = node.after
        made = own if before is None else run.origins.get(before.id, before.id.replace(":", "/"))
        return run.origins.setdefault(node.id, made)

    def _burst(self, run: _Run, node: Node) -> tuple[str, int]:
        """Return the id and the number of the siblings that begin with the same context; no id for one alone."""
        op = node.step.op
        if op.kind != "think":
            return "", 1
        if node.after is not None:
            name, size = _short(node, f"after {node.after.id}"), len(node.after.dependants)
            if size > 1:
                size = sum(sibling.after is node.after for sibling in node.after.dependants[:_MOST])
        else:
            name = self._beginning(run, node)
            size = self._beginnings(run, node)[name]
        return (name, size) if size > 1 else ("", 1)

    def _beginnings(self, run: _Run, node: Node) -> Counter[str]:
        """Return how many steps of a step's scope begin with which prompt; each is looked at once."""
        scope = node.scope
        counts = run.begins.setdefault(scope.prefix, Counter())
        for other in itertools.islice(scope.names.values(), run.counted.get(scope.prefix, 0), None):
            if other.step.op.kind == "think" and other.after is None:
                counts[self._beginning(run, other)] += 1
        run.counted[scope.prefix] = len(scope.names)
        return counts

    def _beginning(self, run: _Run, node: Node) -> str:
        begins = run.names.get(node.id)
        if begins is None:
            op = node.step.op
            assert op.kind == "think"
            text = f"{node.scope.prefix}|{_told(op)}"
            begins = run.names[node.id] = _short(node, text)
        return begins


def _short(node: Node, begins: str) -> str:
    data = f"{node.run.id}|{begins}".encode("utf-8", "replace")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _told(op: ModelCall) -> str:
    """Return how what a model call asks begins: a prompt may have megabytes, and its end says nothing of that."""
    heads, left = [f"{len(op.prompt)} {len(op.messages)}"], _BEGINS
    for piece in itertools.islice(_pieces(op), _MOST):
        heads.append(f"{len(piece)}:{piece[:left]}")
        left -= len(piece)
        if left <= 0:
            break
    return "|".join(heads)


def _pieces(op: ModelCall) -> Iterator[str]:
    for part in op.prompt:
        if isinstance(part, Text):
            yield part.text
        else:
            yield repr(part.ids[:_BEGINS] if isinstance(part, Tokens) else part)
    for message in op.messages:
        yield message.role
        if isinstance(message.content, str):
            yield message.content
            continue
        for part in message.content or ():
            yield part.text if part.type == "text" else part.image_url.url if part.type == "image_url" else repr(part)


def _is_last(node: Node) -> bool:
    """Whether nothing goes on with its context, as far as the plan says: not where more plan may come."""
    if node.step.expands or any(dependant.after is node for dependant in node.dependants):
        return False
    scope = node.scope
    while scope is not None:
        if scope.open and scope.owner is not None and (is_root(scope.owner.step) or scope.owner.step.expands):
            return False
        scope = scope.parent
    return True


def _expected(node: Node, machine: Machine) -> int | None:
    """Return how many tokens a step's answer is expected to have; `None` while only its limit tells anything, which the
    server knows itself."""
    step = NodeView(node)
    view = machine.view(step)
    return math.ceil(view.expected_tokens(step)) if view.peers(step) else None
