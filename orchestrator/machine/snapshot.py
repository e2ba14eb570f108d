"""Steps of the machine as records for people, which are plain data and stay as they are when the step moves on."""

from __future__ import annotations

from dataclasses import replace

from ..core.record import StepRecord
from ..core.states import NAMES
from .machine import Machine
from .records import Node, Run


def step_record(node: Node, began: float) -> StepRecord:
    """Return a step as it stands. `began` is when its run was submitted, by the machine's time."""
    step, own, spent = node.step, node.own, node.spent
    record = StepRecord(node.id, step.name, step.op.kind, step.label)
    record.plan = step
    record.state = NAMES[node.state]
    record.moves = node.changes(began)
    record.tries, record.path_tokens = node.tries, node.path or node.path_own
    record.cause = node.cause
    if node.failure is not None:
        record.failure, record.error = node.failure, node.failure.code
    if spent is not None:
        record.spent = spent
        record.tokens = spent.completion
    if node.scope.owner is not None:
        record.owner = node.scope.owner.id
    if node.deps:
        record.needs = tuple([dep.id for dep in node.deps])
    if node.after is not None:
        record.after, record.after_own = node.after.id, node.after_own
        if node.after_own:
            record.needs = (*record.needs, node.after.id)
    if own is not None:
        record.usage, record.value, record.why, record.data = own.usage, own.value, own.why, own.data
        record.logprob, record.signals = own.logprob, own.signals
    if node.result is not None:
        record.output = node.result.value
        inner = node.inner.output if node.inner is not None else None
        if inner is not None and inner.result is node.result:
            record.source = inner.id
    if node.attempt is not None:
        record.tokens += node.attempt.tokens + (node.hedge.tokens if node.hedge is not None else 0)
    return record


def step_records(run: Run, began: float) -> tuple[StepRecord, ...]:
    """Return all steps of a run, expansions included, in the order in which they entered the plan."""
    return tuple([step_record(node, began) for node in run.nodes])


def moved(machine: Machine, run: Run, seen: int, began: float) -> list[StepRecord]:
    """Return what the last event did to a run's steps, in order: those that entered its plan, from number `seen` on, as
    they wait without a move (unless they had ended before), then one record for each move."""
    told = [
        replace(step_record(node, began), state="waiting", moves=())
        for node in run.nodes[seen:]
        if not node.ended or not node.story or node.story[-1][0] >= machine.now
    ]
    if not machine.moves:
        return told
    nodes = machine.nodes if run.id in machine.runs else {node.id: node for node in run.nodes}
    later: dict[str, int] = {}
    last: list[StepRecord] = []
    for move in reversed(machine.moves):
        node = nodes.get(move[1])
        if node is not None and node.run is run:
            record = step_record(node, began)
            after = later.get(node.id, 0)
            if after:
                record.moves = record.moves[:-after]
                record.state = record.moves[-1][1]
            later[node.id] = after + 1
            last.append(record)
    return [*told, *reversed(last)]
