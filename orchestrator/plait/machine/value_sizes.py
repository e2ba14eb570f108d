"""What the values of a run weigh, and its limit of bytes: counted before a join or an operation is put together.

What a join reads, and what is put into prompts and arguments, counts each time anew. So to put a run's values together
takes no more memory and time than its limit allows, however often its plan doubles them. What was refused stays
counted: such a run puts nothing more together.
"""

from __future__ import annotations

from ..core.errors import BudgetExceeded
from ..core.result import Failure, as_failure
from ..core.states import DONE
from ..core.values import Same
from ..core.weights import MOST_BYTES, Weight, mentions, weigh
from .records import Node, Run

BRANCH = 100
"""What a branch counts besides its text, in characters: as long as these, a merge takes for it at least."""


def read_after(node: Node, most: int) -> int:
    """Return about how many characters joins read when a step ends: those that wait for it alone, and all that these
    may close. Counted up to `most`."""
    for reader in node.dependants:
        if reader.merge is not None:
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


def weight_of(node: Node) -> Weight:
    """Return what the value of a step that is done weighs."""
    if node.outcome.weight is None:
        assert node.outcome.result is not None
        inner = node.inner.output if node.inner is not None else None
        if inner is not None and inner.outcome.result is node.outcome.result:
            node.outcome.weight = weight_of(inner)
        else:  # a worker's: nothing in it is shared
            node.outcome.weight = weigh(node.outcome.result.value, {}, most_of(node.run))
    return node.outcome.weight


def most_of(run: Run) -> int:
    """Return what the values of a run may weigh."""
    return MOST_BYTES if run.request.value_bytes is None else run.request.value_bytes


def of_branches(node: Node) -> dict[Same, Weight]:
    """Return what the values of a join's branches weigh."""
    return {
        Same(dep.outcome.result.value): weight_of(dep)
        for dep in node.deps
        if dep.state is DONE and dep.outcome.result is not None
    }


def charge_join(node: Node) -> Failure | None:
    """Count what a join is about to read; return why that is too much, if it is."""
    return _charge(node, sum(weight_of(dep).bytes for dep in node.deps if dep.state is DONE))


def charge_references(node: Node) -> Failure | None:
    """Count what is about to be put into a step's operation; return why that is too much, if it is."""
    read = mentions(node.step)
    if not read:  # it only waits for them
        return _charge(node, 0)
    weights = {dep.step.name: weight_of(dep).bytes for dep in node.deps if dep.outcome.result is not None}
    return _charge(node, sum(times * weights.get(name, 0) for name, times in read.items()))


def _charge(node: Node, weight: int) -> Failure | None:
    run = node.run
    run.put += weight
    if run.put <= most_of(run):
        return None
    return as_failure(
        BudgetExceeded(
            f"{node.id}: the values that this run puts together come to more than {most_of(run):,} bytes: let its "
            "joins read fewer, or raise `value_bytes`"
        )
    )
