"""How plans enter a run and start, and how scopes close.

A step that expands owns a *scope*: the steps that it expands into. While the scope is open more patches may come, and
its steps are kept even if nothing consumes them yet. When it closes only its output is kept, and the end of the output
is the end of the expanding step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.interfaces import Plugins
from ..core.plan import Plan
from ..core.states import DONE, EXPANDED, WAITING
from .link import insert
from .records import Account, Node, Records, Run, Scope
from .slots import Slots
from .steps import Steps


class Plans:
    """Enters plans and patches. The layer above `steps.py`."""

    def __init__(self, records: Records, slots: Slots, steps: Steps, plugins: Plugins) -> None:
        self._records = records
        self._slots = slots
        self._steps = steps
        self._plugins = plugins

    def enter(
        self,
        plan: Plan,
        scope: Scope,
        account: Account | None,
        waited: Mapping[str, Mapping[str, int]] | None = None,
    ) -> Sequence[Node]:
        """Add a plan's steps to a scope, nothing started. Raises as `link.insert` does, with nothing changed."""
        records, timers = self._records, self._slots.timers
        owner = scope.owner
        added = insert(plan, scope, account, records.now, self._plugins.merge, waited)
        for each in added.accounts:
            self.arm_deadline(each, scope.run)
        before = 0
        if owner is not None:
            generated = owner.attempt.generated if owner.attempt else 0
            before = owner.path_own if owner.own is not None else owner.path_before + generated
        nodes = records.nodes
        for node in added.nodes:
            nodes[node.id] = node
            node.path_before = before
            if node.merge is not None and node.step.op.kind == "join" and node.step.op.deadline is not None:
                timers.add(records.now + node.step.op.deadline, "deadline", node)
        return added.nodes

    def arm_deadline(self, account: Account, run: Run) -> None:
        """Set a timer for an account's deadline, if it has one."""
        if account.deadline is not None:
            self._slots.timers.add(account.deadline, "seconds", (account, run))

    def start(self, nodes: Sequence[Node]) -> None:
        """Start what is ready among new steps, and end what needs something that has already ended without a value."""
        steps = self._steps
        for node in nodes:
            if node.state is not WAITING:
                continue
            if node.merge is not None:
                if node.pending < len(node.deps) or not node.deps:
                    steps.judge(node, arrived=node.branches_done > 0)
                continue
            for dep in node.deps:
                if dep.ended and dep.state is not DONE:
                    steps.end_like(node, dep)
                    break
            else:
                if node.pending == 0:
                    steps.ready(node)

    def close_expansion(self, node: Node) -> None:
        """No further patch of an expanding step will come."""
        assert node.own is not None
        scope = node.inner
        if scope is None or scope.output is None:
            self._steps.done(node, node.own, node.path_own)
            return
        self._steps.move(node, EXPANDED)
        self.close_scope(scope)
        if scope.output.ended:
            self._steps.output_ended(scope, scope.output)

    def close_scope(self, scope: Scope) -> None:
        """Keep only the output from now on."""
        scope.open = False
        for node in scope.names.values():
            if node is not scope.output and not node.ended:
                self._steps.release(node)
