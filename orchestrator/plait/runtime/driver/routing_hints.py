"""Routing hints about a job for workers that use them (`Worker.hints`): its session, the expected length of its answer,
and the number of siblings with the same beginning."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...core.events import Hints, Job
from ...core.flow import is_root
from ...core.ops import ModelCall, Text, Tokens
from ...machine import Machine, Node, NodeView

_MOST = 1_000
"""Maximum number of siblings, and of pieces of a prompt, that are examined."""
_BEGINS = 4_096
"""Leading characters of a prompt that identify its beginning."""
_PAUSES = 64
"""Pauses of a planner, or of clients, that are remembered."""
_MAX_CLIENTS = 4_096
"""Client sessions whose last request is remembered."""
_DEPTH = 64
"""Maximum number of steps that are examined for one that continues a parent."""


@dataclass(slots=True)
class _Run:
    """The sessions and beginnings of an active run."""

    sessions: dict[str, str] = field(default_factory=dict[str, str])
    """Session by step id."""
    parents: dict[str, str] = field(default_factory=dict[str, str])
    """Parent session by session."""
    origins: dict[str, str] = field(default_factory=dict[str, str])
    """Origin by step id."""
    heirs: dict[str, str] = field(default_factory=dict[str, str])
    """The first step that continues a step, and thereby its session. Others begin sessions of their own."""
    client: str = ""
    """The client's session, which the first trajectory of the run takes; the others are its children."""
    begins: dict[str, Counter[str]] = field(default_factory=dict[str, "Counter[str]"])
    """By scope: number of steps by the hash of their prompts' beginnings."""
    counted: dict[str, int] = field(default_factory=dict[str, int])
    """By scope: number of steps that are counted in `begins`."""
    names: dict[str, str] = field(default_factory=dict[str, str])
    """By step id: the hash of its prompt's beginning."""
    turns: dict[str, int] = field(default_factory=dict[str, int])
    """Number in its session by step id."""
    requests: Counter[str] = field(default_factory=Counter[str])
    """Number of steps by session."""
    blocking: set[str] = field(default_factory=set[str])
    """Sessions that their parents wait for."""


class Hinter:
    """Makes the hints of one driver's jobs."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        """Active runs; the driver removes a run at its end."""
        self._pauses: dict[str, deque[float]] = {}
        """Seconds between two requests of a session, by planner; by no name those between two runs of a client."""
        self._clients: dict[str, float] = {}
        """Time of the last request by client session, the oldest first."""

    def hints(self, job: Job, machine: Machine) -> Hints | None:
        """Return the hints of a job that is about to be sent out, or `None` for a job that is not a model call."""
        node = machine.nodes.get(job.step)
        if node is None or job.op.kind != "think":
            return None
        run = self.runs.get(job.run)
        if run is None:
            request = node.run.request
            # The tenant's name comes first, so that no tenant can name the session of another.
            name = "/".join(filter(None, (request.tenant, request.session)))
            if not (name.isascii() and name.isprintable()):  # it is sent in a header
                name = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=16).hexdigest()
            run = self.runs[job.run] = _Run(client=name if request.session else "")
            if run.client in self._clients:
                self._learn_pause("", machine.now - self._clients[run.client])
        is_new = node.id not in run.sessions
        session = self._session(run, node)
        if is_new:
            self._note_turn(run, node, session, machine.now)
        burst, size = self._burst(run, node)
        return Hints(
            session=session,
            parent=run.parents.get(session, "" if session == run.client else run.client or job.run),
            # A client may continue any of its answers.
            final=not run.client and _is_last(node),
            expected=_expected(node, machine),
            program=run.client,
            burst=burst,
            burst_size=size,
            origin=self._origin(run, node, run.client or burst or session),
            turn=None if session == run.client else run.turns[node.id],
            continues=_is_continued(node) or session == run.client,
            blocks_parent=session in run.blocking,
            pause=self._pause(run, node, session),
        )

    def _note_turn(self, run: _Run, node: Node, session: str, now: float) -> None:
        """Count a request of a session, and learn the pause before it."""
        run.turns[node.id] = run.requests[session]
        run.requests[session] += 1
        if node.after is not None:
            ended = next((at for at, state, _ in node.after.changes(0.0) if state in ("expanding", "done")), now)
            self._learn_pause(node.run.request.planner.name, now - ended)
        if run.client:
            self._clients.pop(run.client, None)
            self._clients[run.client] = now
            if len(self._clients) > _MAX_CLIENTS:
                del self._clients[next(iter(self._clients))]

    def _learn_pause(self, planner: str, seconds: float) -> None:
        self._pauses.setdefault(planner, deque(maxlen=_PAUSES)).append(max(0.0, seconds))

    def _pause(self, run: _Run, node: Node, session: str) -> float | None:
        """Return the seconds that nine of ten pauses like the next one of a session did not exceed."""
        if not _is_continued(node) and session != run.client:
            return None
        pauses = sorted(self._pauses.get(node.run.request.planner.name if _is_continued(node) else "", ()))
        return round(pauses[len(pauses) * 9 // 10], 3) if pauses else None

    def _session(self, run: _Run, node: Node) -> str:
        """Return the session of a step: that of the step whose context it is the first to continue, else its own."""
        if node.id in run.sessions:
            return run.sessions[node.id]
        own = node.id.replace(":", "/")
        before, owner = node.after, _owner_call(node)
        if before is not None:
            theirs = run.sessions.get(before.id, before.id.replace(":", "/"))
            if run.heirs.setdefault(before.id, node.id) == node.id:
                own = theirs
            else:
                run.parents[own] = theirs
                if _leads_to(node, before):
                    run.blocking.add(own)
        elif owner is not None:  # a step of the plan that the owner's text made: the owner waits for it
            run.parents[own] = run.sessions.get(owner.id, owner.id.replace(":", "/"))
            run.blocking.add(own)
        elif run.client and not run.sessions:
            own = run.client
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
        """Return the number of steps of a step's scope by the hash of their beginnings."""
        # Patches only append steps, so each step is hashed once.
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
            text = f"{node.scope.prefix}|{_beginning_text(op)}"
            begins = run.names[node.id] = _short(node, text)
        return begins


def _owner_call(node: Node) -> Node | None:
    """Return the nearest model call whose expansion a step belongs to."""
    owner = node.scope.owner
    while owner is not None and owner.step.op.kind != "think":
        owner = owner.scope.owner
    return owner


def _leads_to(node: Node, before: Node) -> bool:
    """Return whether another continuation of `before` needs a step."""
    reached = {node.id: node}
    while len(reached) < _DEPTH:
        readers = {reader.id: reader for step in reached.values() for reader in step.dependants[:_DEPTH]}
        if any(reader.after is before for reader in readers.values()):
            return True
        if readers.keys() <= reached.keys():
            break
        reached |= readers
    return False


def _is_continued(node: Node) -> bool:
    """Return whether a step of the plan continues a step's context, or its text may call functions."""
    op = node.step.op
    calls = node.step.expands and op.kind == "think" and bool(op.tools)
    return calls or any(dependant.after is node for dependant in itertools.islice(node.dependants, _MOST))


def _short(node: Node, begins: str) -> str:
    data = f"{node.run.id}|{begins}".encode("utf-8", "replace")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _beginning_text(op: ModelCall) -> str:
    """Return the beginning of a model call's prompt and messages, at most `_BEGINS` characters."""
    # A prompt may have megabytes, and siblings are recognised by the beginning alone.
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
    """Return whether surely no step will continue a step's context: none does, and no more plan may come."""
    if node.step.expands or any(dependant.after is node for dependant in node.dependants):
        return False
    scope = node.scope
    while scope is not None:
        if scope.open and scope.owner is not None and (is_root(scope.owner.step) or scope.owner.step.expands):
            return False
        scope = scope.parent
    return True


def _expected(node: Node, machine: Machine) -> int | None:
    """Return the expected number of tokens of a step's answer, or `None` without finished peers."""
    # Without peers the estimate is the token limit, which the server knows from the request.
    step = NodeView(node)
    view = machine.view(step)
    return math.ceil(view.expected_tokens(step)) if view.peers(step) else None
