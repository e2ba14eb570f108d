"""What a finished run cost and where its time went, read off its steps' stories.

A snapshot in plain data: it can be printed, written and sent. Decides nothing about the run and does not know how it is
shown.
"""

from __future__ import annotations

from ...core.events import Finish
from ...core.plan import Kind
from ...core.result import Usage
from ...core.states import State
from ...core.values import Frozen
from ...machine.records import Node, Run


class StepRow(Frozen):
    """One step of a finished run."""

    step: str
    """Step id."""
    name: str
    kind: Kind
    label: str = ""
    owner: str | None = None
    """Id of the step that expanded into it."""
    needs: tuple[str, ...] = ()
    """Ids of the steps it read, the continued one included."""
    state: str
    reason: str = ""
    """Why it failed or was cancelled; for a join, why it chose what it chose."""
    worker: str | None = None
    """Who ran it last."""
    tries: int = 0
    ready_at: float | None = None
    """Seconds after the run began, as all times here."""
    started_at: float | None = None
    ended_at: float | None = None
    usage: Usage = Usage()
    """Of the attempt whose result it kept."""
    path_tokens: int = 0
    """Most generated tokens along any chain that its value was made from."""


class Spell(Frozen):
    """A stretch of the chain of steps that the end of the run waited for."""

    step: str
    waited: float
    """Seconds in the queue, or between its last need and its being ready."""
    ran: float
    """Seconds on a worker (for a step that expanded: of its own attempt)."""
    kind: Kind


class Report(Frozen):
    """What a run cost."""

    usage: Usage = Usage()
    critical_path_tokens: int = 0
    """Most generated tokens along any chain of steps that the answer was made from."""
    seconds: float = 0.0
    """Wall-clock from submission to the end."""
    waited_for: tuple[Spell, ...] = ()
    """The chain of steps that the end waited for, first to last; its times add up to nearly `seconds`."""
    steps: tuple[StepRow, ...] = ()

    def time_by(self) -> dict[str, float]:
        """Return where the wall-clock went, in seconds: model, tools, queue, and the rest (planning, transport)."""
        model = sum(spell.ran for spell in self.waited_for if spell.kind == "think")
        tools = sum(spell.ran for spell in self.waited_for if spell.kind == "call")
        queue = sum(spell.waited for spell in self.waited_for)
        rest = max(0.0, self.seconds - model - tools - queue)
        return {"model": model, "tools": tools, "queue": queue, "other": rest}


def report(finish: Finish, run: Run | None, began: float, ended: float) -> Report:
    """Return the report of a run that ended with `finish`; `run` is `None` for one that was refused at once."""
    if run is None:
        return Report(usage=finish.usage, seconds=ended - began)
    output = run.root.output if run.root is not None else None
    return Report(
        usage=finish.usage,
        critical_path_tokens=finish.critical_path_tokens,
        seconds=ended - began,
        waited_for=_waited_for(output) if output is not None else (),
        steps=tuple(_row(node, began) for node in run.nodes),
    )


def _when(node: Node, state: State, last: bool = True) -> float | None:
    times = [at for at, _, _, finish, _ in node.story if finish == state]
    return (times[-1] if last else times[0]) if times else None


def _after(at: float | None, began: float) -> float | None:
    return None if at is None else at - began


def _row(node: Node, began: float) -> StepRow:
    worker = next((reason for _, _, _, finish, reason in reversed(node.story) if finish == State.RUNNING), None)
    why = node.own.why if node.own is not None else ""
    after = [node.after] if node.after is not None and node.after not in node.deps else []
    return StepRow(
        step=node.id,
        name=node.step.name,
        kind=node.step.op.kind,
        label=node.step.label,
        owner=node.scope.owner.id if node.scope.owner is not None else None,
        needs=tuple(dep.id for dep in [*node.deps, *after]),
        state=node.state.value,
        reason=why or (node.story[-1][4] if node.story and node.ended else ""),
        worker=worker,
        tries=node.tries,
        ready_at=_after(_when(node, State.READY), began),
        started_at=_after(_when(node, State.RUNNING), began),
        ended_at=_after(node.story[-1][0] if node.ended else None, began),
        usage=node.own.usage if node.own is not None else Usage(),
        path_tokens=node.path or node.path_own,
    )


def _waited_for(output: Node) -> tuple[Spell, ...]:
    """Walk back from the output along whatever ended last before each step could go on."""
    spells: list[Spell] = []
    seen: set[str] = set()
    entered: set[str] = set()
    node: Node | None = output
    while node is not None and node.id not in seen:
        inner = node.inner.output if node.inner is not None else None
        if inner is not None and node.id not in entered and inner.result is not None and inner.result is node.result:
            entered.add(node.id)  # its own attempt may come yet, before what it expanded into
            node = inner
            continue
        seen.add(node.id)
        ready, started = _when(node, State.READY), _when(node, State.RUNNING)
        if ready is not None and started is not None:
            spells.append(
                Spell(
                    step=node.id, waited=started - ready, ran=_own_end(node, started) - started, kind=node.step.op.kind
                )
            )
        node = _last_before(node, seen)
    return tuple(reversed(spells))


def _own_end(node: Node, started: float) -> float:
    """Return when the step's own attempt ended (before what it expanded into)."""
    return next((at for at, _, start, _, _ in node.story if at >= started and start == State.RUNNING), started)


def _last_before(node: Node, seen: set[str]) -> Node | None:
    before = [dep for dep in node.deps if dep.state is State.DONE and dep.id not in seen]
    if node.after is not None and node.after_own:
        before.append(node.after)
    if not before and node.scope.owner is not None:
        return node.scope.owner
    return max(before, key=lambda dep: dep.story[-1][0] if not dep.inner else _own_end(dep, 0.0), default=None)
