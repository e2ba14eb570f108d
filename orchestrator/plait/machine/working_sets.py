"""Track the working set of each engine: the contexts of programs that will be continued, and how far they will grow.

A *program* is a run, or the runs of one session. Its *contexts* are the ends of its trajectories: the model call that
ended last in each, or the one that runs. A context is dropped when nothing continues it. In a plan that may still grow
that is unknown, so there a program keeps as many contexts as it has had model calls at the same time.

Kept only for runs with a policy that has `admit`, in constant time at the start and the end of an attempt.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.lengths import SHARE, expected_tokens
from ..core.request import DERIVED_SESSION
from ..core.result import Usage
from ..core.view import ProgramView
from .backlog import Backlog
from .prefix_groups import prompt_tokens
from .records import Attempt, Node, Run, WorkerState
from .run_statistics import Habits, ProgramContext, ProgramRecord

FIRST_GROWTH = 5
"""Expected growth of a program's context in multiples of its first prompt, before any program has shown its growth."""
MAX_FIRST_GROWTH_TOKENS = 16_000
"""Upper bound of that growth: turns and tool results add tokens, however long the first prompt is."""
MAX_SESSIONS = 4_096
"""Sessions that are remembered; beyond that, the one that has been idle for longest is forgotten."""
FIRST_GAP_S = 30.0
"""Seconds between two runs of a session, before any are known."""
SESSION_GAPS = 3.0
"""Multiples of the usual time between two runs after which the contexts of an idle session no longer count."""


@dataclass(slots=True, eq=False)
class Room:
    """The programs with contexts on one worker."""

    programs: dict[ProgramRecord, None] = field(default_factory=dict[ProgramRecord, None])
    tokens: int = 0
    """Tokens of their contexts."""
    expected: int = 0
    """The same, with the expected growth of each."""


class AdmissionQueue(Backlog[Node]):
    """Steps of programs that are not admitted, by lane and fairness group; in each the program that came first goes
    first."""

    def put(self, key: str, node: Node) -> None:
        """Add a step."""
        arrival = node.run.policies.program.arrival if node.run.policies.program is not None else node.place.ticket
        entry = node.place.priority, (float(arrival),), node.place.ticket, node
        heapq.heappush(self.heaps.setdefault(key, []), entry)


class WorkingSets:
    """The programs of a machine, by engine."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        """By worker."""
        self.waiting = AdmissionQueue()
        self.stirred: bool = False
        """Whether something has ended since the waiting steps were checked."""
        self._sessions: dict[str, ProgramRecord] = {}
        """The programs of sessions, those without a run first."""
        self._habits: dict[str, Habits] = {}
        """By planner."""

    def stir(self) -> None:
        """Let the waiting steps be checked again."""
        self.stirred = bool(self.waiting.heaps)

    # -- attempts ------------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> None:
        """Record the start of an attempt."""
        node, worker, now = attempt.node, attempt.worker, attempt.started
        if node.place.lane == "call":
            if node.run.policies.program is not None:
                node.run.policies.program.calls[node.id] = now
            return
        if worker.cache_tokens is None:
            return
        if not self._is_part(node):
            if name := _session_of(node.run):  # a conversation from its second run on
                self._sessions[name] = self._new_program(name, node)
            return
        program = self._program_of(node)
        if program.contexts and not program.running and node.after is None:
            self._habits_of(program).add_gap(now - program.idle_since)  # between two runs of a session
        program.running += 1
        program.widest = max(program.widest, program.running)
        context = self._take_parent(program, node)
        if context is None:
            tokens = max(0, prompt_tokens(node) - (program.header or 0))
            context = ProgramContext(worker.name, tokens, self._growth_of(program, node, tokens), _ahead(node))
            self._count(program, context, 1)
        elif context.worker != worker.name:
            self._count(program, context, -1)
            context.worker = worker.name
            self._count(program, context, 1)
        context.running = True
        program.contexts[node.id] = context

    def _take_parent(self, program: ProgramRecord, node: Node) -> ProgramContext | None:
        """Take out the context that a step continues, unless other steps will continue it too."""
        if (again := program.contexts.pop(node.id, None)) is not None:
            return again
        if node.after is None:
            # The next run of a session sends the whole conversation again.
            idle = next((name for name, context in program.contexts.items() if not context.running), None)
            return program.contexts.pop(idle) if _session_of(node.run) and idle is not None else None
        if any(
            other.after is node.after and other is not node and not other.ended for other in node.after.dependants[:8]
        ):
            return None
        return program.contexts.pop(node.after.id, None)

    def end(self, attempt: Attempt, usage: Usage, read: bool, now: float) -> None:
        """Record the end of an attempt; `read`: with a value."""
        node, program = attempt.node, attempt.node.run.policies.program
        self.stir()
        if program is None:
            return
        if node.place.lane == "call":
            program.calls.pop(node.id, None)
            if not program.calls and not program.running:
                self._habits_of(program).add_gap(now - program.idle_since)
            return
        context = program.contexts.get(node.id)
        if context is None:
            return
        program.running, program.idle_since = program.running - 1, now
        if node.attempts.live is not None:
            return  # its other attempt runs
        context.running = False
        if read and (continues(node) or _session_of(node.run)):
            self._add_turn(program, context, attempt, usage)
        else:
            self._drop(program, node.id)

    def _add_turn(self, program: ProgramRecord, context: ProgramContext, attempt: Attempt, usage: Usage) -> None:
        """Record a turn that ended with a value: the size of its context, and what it shows of later turns."""
        node, habits = attempt.node, self._habits_of(program)
        habits.turns, habits.turn_seconds = habits.turns + 1, habits.turn_seconds + program.idle_since - attempt.started
        if program.header is None:
            program.header = usage.cached if node.after is None else 0
        # If the engine does not count prompts, the estimate at the start is used.
        total = (usage.prompt or context.tokens + program.header) + usage.completion - program.header
        if node.after is not None and (parent := program.contexts.get(node.after.id)) is not None:
            total -= parent.tokens
        self._count(program, context, -1)
        ahead = _ahead(node)
        if node.after is not None:
            for learned in (program.habits, habits):
                learned.add_turn(total - context.tokens, context.ahead - ahead)
        context.tokens, context.ahead = max(0, total), ahead
        context.growth = self._growth_of(program, node, context.tokens)
        self._count(program, context, 1)
        idle = [name for name, known in program.contexts.items() if not known.running]
        for name in idle[: -program.widest]:
            self._drop(program, name)

    def _growth_of(self, program: ProgramRecord, node: Node, tokens: int) -> int:
        """Return the tokens by which a context is expected to grow."""
        learned = self._habits_of(program)
        if not _is_open(node):
            habits = program.habits if program.habits.allowed else learned
            if habits.allowed:
                return max(0, round(habits.grown / habits.allowed * _ahead(node)))
        growth = min(FIRST_GROWTH * program.first, MAX_FIRST_GROWTH_TOKENS)
        limit = round((program.first + growth) / SHARE)
        return round(expected_tokens(limit, [tuple(learned.finals)], known=tokens, share=0.5))

    # -- programs ------------------------------------------------------------------------------------------------------

    def _habits_of(self, program: ProgramRecord) -> Habits:
        return self._habits.setdefault(program.planner, Habits())

    def _is_part(self, node: Node) -> bool:
        run = node.run
        return run.policies.program is not None or continues(node) or _session_of(run) in self._sessions

    def _new_program(self, name: str, node: Node) -> ProgramRecord:
        if len(self._sessions) > MAX_SESSIONS:
            self._forget_session(next((name for name, known in self._sessions.items() if not known.runs), ""))
        return ProgramRecord(name, node.run.request.planner.name, node.place.ticket, prompt_tokens(node))

    def _program_of(self, node: Node) -> ProgramRecord:
        """Return the program of a step, which is made if it is new."""
        run = node.run
        if run.policies.program is None:
            name = _session_of(run)
            known = self._sessions.pop(name, None) or self._new_program(name or run.id, node)
            known.runs += 1
            if name:
                self._sessions[name] = known  # at the end: those that began last are forgotten last
            run.policies.program = known
        return run.policies.program

    def leave(self, run: Run, program: ProgramRecord) -> None:
        """Remove a finished run from its program. The newest context of a session stays."""
        run.policies.program = None
        self.stir()
        program.runs -= 1
        if program.runs:
            return
        session = _session_of(run)
        if not session and program.contexts:
            finals = [context.tokens + (program.header or 0) for context in program.contexts.values()]
            self._habits_of(program).finals.append(max(finals))
        for name in list(program.contexts)[: -1 if session else None]:
            self._drop(program, name)

    def _forget_idle_sessions(self, now: float) -> None:
        """Drop the contexts of sessions that have been idle for much longer than sessions usually are."""
        for name, program in list(self._sessions.items()):
            limit = SESSION_GAPS * (self._habits_of(program).gap or FIRST_GAP_S)
            if not program.runs and now - program.idle_since > limit:
                self._forget_session(name)

    def _forget_session(self, name: str) -> None:
        if (program := self._sessions.pop(name, None)) is not None:
            for step in list(program.contexts):
                self._drop(program, step)

    def forget_worker(self, worker: str) -> None:
        """Drop all idle contexts of a worker that went away; those of its attempts go when these end."""
        self.stir()
        for program in list(self.rooms.get(worker, Room()).programs):
            for name, context in list(program.contexts.items()):
                if context.worker == worker and not context.running:
                    self._drop(program, name)

    def _drop(self, program: ProgramRecord, name: str) -> None:
        context = program.contexts.pop(name)
        self._count(program, context, -1)

    def _count(self, program: ProgramRecord, context: ProgramContext, sign: int) -> None:
        """Add a context to the working set of its worker, or take it out."""
        room = self.rooms.setdefault(context.worker, Room())
        room.tokens += sign * context.tokens
        room.expected += sign * (context.tokens + context.growth)
        if sign > 0:
            room.programs[program] = None
        elif not any(other.worker == context.worker and other is not context for other in program.contexts.values()):
            room.programs.pop(program, None)

    # -- admission -----------------------------------------------------------------------------------------------------

    def is_short(self, node: Node, worker: WorkerState, now: float) -> bool:
        """Return whether a step is part of a program, and the programs on a worker may outgrow its cache with it."""
        cache = worker.cache_tokens
        if cache is None or not self._is_part(node):
            return False
        if self._expected(node, worker) > cache and self._sessions:
            self._forget_idle_sessions(now)
        return self._expected(node, worker) > cache

    def _expected(self, node: Node, worker: WorkerState) -> int:
        room = self.rooms.get(worker.name) or Room()
        return room.expected if node.run.policies.program in room.programs else room.expected + sum(self._size(node))

    def _size(self, node: Node) -> tuple[int, int]:
        """Return the tokens of a step's program wherever they are, or of its first prompt, and the expected growth."""
        program = self._program_of(node)
        if program.contexts:
            contexts = program.contexts.values()
            return sum(context.tokens for context in contexts), sum(context.growth for context in contexts)
        tokens = max(0, prompt_tokens(node) - (program.header or 0))
        return tokens, self._growth_of(program, node, tokens)

    def view(self, node: Node, worker: WorkerState) -> ProgramView:
        """Return the program of a step on a worker; its `worker` is empty if it has no context there."""
        program = self._program_of(node)
        if program in (self.rooms.get(worker.name) or Room()).programs:
            return self._view(program, worker.name)
        tokens, growth = self._size(node)
        return self._view(program, "")._replace(tokens=tokens, growth=growth)

    def views(self, worker: str) -> Sequence[ProgramView]:
        """Return the programs with contexts on a worker."""
        return [self._view(program, worker) for program in self.rooms.get(worker, Room()).programs]

    def _view(self, program: ProgramRecord, worker: str) -> ProgramView:
        here = [context for context in program.contexts.values() if context.worker == worker]
        habits = self._habits_of(program)
        return ProgramView(
            program.name,
            program.arrival,
            worker,
            sum(context.tokens for context in here),
            sum(context.growth for context in here),
            program.running,
            tuple(program.calls),
            program.idle_since,
            habits.turn_seconds / max(1, habits.turns),
            habits.gap,
        )


def continues(node: Node) -> bool:
    """Return whether a step belongs to a trajectory that will be, or may be, continued."""
    return (
        _is_open(node)
        or bool(node.own_waiters)
        or any(reader.after is node and not reader.ended for reader in node.dependants)
    )


def _session_of(run: Run) -> str:
    """Return the tenant and the session of a run, or an empty text without one that the client has named."""
    request = run.request
    named = request.session and not request.session.startswith(DERIVED_SESSION)
    return f"{request.tenant}/{request.session}" if named else ""


def _is_open(node: Node) -> bool:
    return node.scope.open or node.step.expands


def _ahead(node: Node) -> float:
    return node.path_tokens.upward_rank - node.step.token_cost()
