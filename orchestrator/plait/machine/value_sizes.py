"""Limit the bytes of a run's values, counted before a join reads them or an operation includes them.

Each read by a join, prompt or argument counts again. The limit thus bounds the memory and time of building a run's
values, however often its plan doubles them. A refused read stays counted: such a run reads nothing more.
"""

from __future__ import annotations

from ..core.errors import BudgetExceeded
from ..core.result import Failure, as_failure
from ..core.states import DONE
from ..core.value_sizes import MOST_BYTES, ValueSize, count_mentions, measure_value
from ..core.values import Same
from .records import Node, Run

BRANCH = 100
"""Characters added for each branch: a merge takes at least the time of as many."""


def count_concerned(node: Node) -> int:
    """Return the number of steps that a step's end concerns: its dependants, or the branches of a join."""
    most = len(node.dependants)
    if most < 16:
        for reader in node.dependants:
            if reader.pending == 1 and len(reader.deps) > most:
                most = len(reader.deps)
    return most


def read_after(node: Node, most: int) -> int:
    """Return the approximate number of characters that joins read when a step ends, up to `most`: joins that wait for
    it alone, and all joins that these may close."""
    for reader in node.dependants:
        if reader.merge is not None and reader.pending < 2:
            break
    else:
        return 0  # as for nearly every step
    total, todo, seen = 0, [node], set[str]()
    while todo and total < most:
        ended = todo.pop()
        for reader in ended.dependants:
            if reader.step.op.kind == "join" and reader.id not in seen and not (ended is node and reader.pending > 1):
                seen.add(reader.id)
                todo.append(reader)
                total += sum(map(_length, reader.deps))
    return total


def _length(branch: Node) -> int:
    value = branch.outcome.result.value if branch.outcome.result is not None else None
    return BRANCH + (len(value) if isinstance(value, str) else 0)


def weight_of(node: Node) -> ValueSize:
    """Return the weight of a finished step's value."""
    if node.outcome.weight is None:
        assert node.outcome.result is not None
        inner = node.inner.output if node.inner is not None else None
        # An expanding step shares its output's value, so the value is weighed once.
        if inner is not None and inner.outcome.result is node.outcome.result:
            node.outcome.weight = weight_of(inner)
        else:  # a worker's value shares nothing with others
            node.outcome.weight = measure_value(node.outcome.result.value, {}, byte_limit(node.run))
    return node.outcome.weight


def byte_limit(run: Run) -> int:
    """Return the limit in bytes for the values of a run."""
    return MOST_BYTES if run.request.value_bytes is None else run.request.value_bytes


def branch_weights(node: Node) -> dict[Same, ValueSize]:
    """Return the weights of the lists and objects among the values of a join's branches."""
    return {
        Same(dep.outcome.result.value): weight_of(dep)
        for dep in node.deps
        if dep.state is DONE and dep.outcome.result is not None and isinstance(dep.outcome.result.value, dict | list)
    }


def charge_join(node: Node) -> Failure | None:
    """Count the values that a join is about to read; return the failure if they exceed the limit."""
    return _charge(node, sum([weight_of(dep).bytes for dep in node.deps if dep.state is DONE]))


def charge_references(node: Node) -> Failure | None:
    """Count the values that a step's operation is about to include; return the failure if they exceed the limit."""
    read = count_mentions(node.step)
    if not read:  # it only waits for them
        return _charge(node, 0)
    weights = {dep.step.name: weight_of(dep).bytes for dep in node.deps if dep.outcome.result is not None}
    return _charge(node, sum(times * weights.get(name, 0) for name, times in read.items()))


def _charge(node: Node, weight: int) -> Failure | None:
    run = node.run
    # Added before the check: a refused read stays counted, so that the plan cannot try again with a smaller one.
    run.put += weight
    if run.put <= byte_limit(run):
        return None
    return as_failure(
        BudgetExceeded(
            f"{node.id}: the values that this run combines exceed {byte_limit(run):,} bytes: let its joins read fewer, "
            "or raise `value_bytes`"
        )
    )
