"""Enter plans into runs, start their steps, and close scopes.

A step that expands owns a *scope*: the steps that it expands into. While the scope is open more patches may come, and
its steps are kept even if nothing consumes them yet. When it closes only its output is kept, and the end of the output
ends the expanding step.

A name is resolved in the plan's own scope, then in the scopes around it. Everything is checked before anything is
changed, so a rejected plan leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import BudgetExceeded, PlanError
from ..core.interfaces import Merge, PluginRegistry, Policy
from ..core.ops import Join, ModelCall, Plugin, ToolCall
from ..core.plan import Plan, topological_order
from ..core.result import as_failure
from ..core.states import DONE, EXPANDED, FAILED, READY, UNDER_WAY, WAITING
from .attempt_lifecycle import Slots
from .budgets import FlowWaits, enter, open_account
from .prefix_groups import enroll
from .records import Account, Node, QueuePlace, Records, Run, RunPolicies, Scope
from .run_statistics import lane_of
from .steps import Steps


class Plans:
    """Enters plans and patches. The layer above `steps.py`."""

    def __init__(self, records: Records, slots: Slots, steps: Steps, plugins: PluginRegistry) -> None:
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
        refused: Mapping[str, str] | None = None,
    ) -> Sequence[Node]:
        """Add a plan's steps to a scope, nothing started. Raises as `insert` does, with nothing changed."""
        records, timers = self._records, self._slots.timers
        owner = scope.owner
        dropped = [_lookup(name, owner, {})[0] for name in plan.drops if owner is not None]
        added = insert(plan, scope, account, records.now, self._plugins.merge, waited, refused or ())
        for opened in added.accounts:
            self.arm_deadline(opened, scope.run)
        before = 0
        if owner is not None:
            generated = owner.attempts.live.generated if owner.attempts.live else 0
            before = owner.path_tokens.own if owner.outcome.own is not None else owner.path_tokens.before + generated
        nodes = records.nodes
        for node in added.nodes:
            nodes[node.id] = node
            node.path_tokens.before = before
            if node.merge is not None and node.step.op.kind == "join" and node.step.op.deadline is not None:
                timers.add(records.now + node.step.op.deadline, "deadline", node)
        for node in dropped:
            if node.state in (WAITING, READY):
                self._steps.cancel(node, "pruned", "the planner dropped it")
        for node in added.nodes if refused else ():
            if refused and (why := refused.get(node.step.name)) is not None:
                self._steps.fail(node, as_failure(BudgetExceeded(why)))
        return added.nodes

    def arm_deadline(self, account: Account, run: Run) -> None:
        """Set a timer for an account's deadline, if it has one."""
        if account.deadline is not None:
            self._slots.timers.add(account.deadline, "seconds", (account, run))

    def start(self, nodes: Sequence[Node]) -> None:
        """Start new steps that are ready, and end those with a need that has already ended without a value."""
        steps = self._steps
        for node in nodes:
            if node.state is not WAITING:
                continue
            if node.merge is not None:
                if node.pending < len(node.deps) or not node.deps:
                    steps.judge(node, arrived=node.join.done > 0)
                continue
            for dep in node.deps:
                if dep.ended and dep.state is not DONE:
                    steps.end_like(node, dep)
                    break
            else:
                if node.pending == 0:
                    steps.ready(node)

    def close_expansion(self, node: Node, cut: bool = False) -> None:
        """Close an expanding step, which gets no further patch. `cut` is that of `Expanded`."""
        assert node.outcome.own is not None
        scope = node.inner
        if cut and scope is not None and node.outcome.limited is None:
            node.outcome.limited = next(
                (name.outcome.limited for name in scope.names.values() if name.outcome.limited), None
            )
        if scope is None or scope.output is None:
            self._steps.finish_with_value(node, node.outcome.own, node.path_tokens.own)
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


@dataclass(frozen=True, slots=True)
class PlanInsertion:
    """The additions of a plan: its nodes in plan order, and the accounts that it opened."""

    nodes: Sequence[Node]
    accounts: Sequence[Account]


def insert(
    plan: Plan,
    scope: Scope,
    account: Account | None,
    now: float,
    merge: Callable[[Plugin], Merge],
    waited: Mapping[str, Mapping[str, int]] | None = None,
    refused: Collection[str] = (),
) -> PlanInsertion:
    """Add a plan's steps to a scope and return them, with edges and counts set and nothing started.

    Raises `PlanError` (unknown or forbidden reference, cycle, name taken, no output), `BudgetExceeded` (too many steps)
    or the error of `merge` for an unknown plugin, with nothing changed. `waited` and `refused` are those of `Expanded`:
    refused steps count against no budget.
    """
    run = scope.run
    group, known = _group_account(plan, scope, account, now)
    nodes: dict[str, Node] = {}
    prefix, taken = scope.prefix, scope.names
    for step in plan.steps:
        name, op = step.name, step.op
        if name in taken:
            raise PlanError(f"{prefix}{name}: this name is already taken in its scope")
        merger = merge(op.merge) if isinstance(op, Join) else None
        priority = step.priority + run.request.priority
        nodes[name] = Node(prefix + name, run, step, scope, group, merger, QueuePlace(priority, lane_of(op)))
    output = _output(plan, scope, nodes)
    ordered = True
    alike: dict[tuple[Node, ...], tuple[Node, ...]] = {}
    for node in nodes.values():
        ordered &= _resolve(node, nodes)
        if node.deps:
            node.deps = alike.setdefault(node.deps, node.deps)  # siblings share one: less for the garbage collector
    order = list(nodes.values())
    if not ordered:
        own = set(order)
        needed = {node.step.name: [dep.step.name for dep in node.deps if dep in own] for node in order}
        order = [nodes[name] for name in topological_order(needed)]
    # A first plan has nothing around it that could wait for it.
    if scope.owner is not None:
        _refuse_outer_cycles(nodes.values(), scope)
    allowed = [node for node in order if node.step.name not in refused] if refused else order
    message = enter(group, allowed, scope.level, _build_flow_waits(plan, scope, group, waited))
    if message:
        raise BudgetExceeded(message)
    accounts = _open_step_accounts(nodes.values(), group, now)
    if group is not None and group is not account and not known:
        accounts.insert(0, group)
    if plan.group:
        scope.groups[plan.group] = group
    _connect(order, scope)
    scope.names.update(nodes)
    run.nodes.extend(nodes.values())
    if output is not None:
        scope.output = output
    if run.policies.rankers or run.policies.placers or run.policies.reviewers:
        enroll(nodes.values())
    return PlanInsertion(list(nodes.values()), accounts)


def _group_account(plan: Plan, scope: Scope, account: Account | None, now: float) -> tuple[Account | None, bool]:
    """Return the account of a plan's steps, and whether it existed before, as for a patch to a known group."""
    if plan.group in scope.groups:
        return scope.groups[plan.group], True
    around = account
    outer = plan.group.rpartition("/")[0]
    while outer:
        if outer in scope.groups:
            around = scope.groups[outer]
            break
        outer = outer.rpartition("/")[0]
    group = f"the group {plan.group} of" if plan.group else "the group of"
    return open_account(plan.budget, f"{group} {scope.prefix or scope.run.id}", around, now, scope.level), False


def _build_flow_waits(
    plan: Plan, scope: Scope, group: Account | None, calls: Mapping[str, Mapping[str, int]] | None
) -> FlowWaits | None:
    """Return the calls that a flow had waited for, with the accounts of its scopes that limit turns."""
    if not calls:
        return None
    limited = {name for call in calls.values() for name in call if name}
    accounts = {**scope.groups, plan.group: group}
    scopes = {account: name for name, account in accounts.items() if name in limited and account is not None}
    return FlowWaits(calls, scopes)


def is_duplicate(patch: Plan, scope: Scope) -> bool:
    """Return whether a patch holds nothing but steps that its scope already has: a duplicate."""
    if not patch.steps or (patch.output is not None and scope.names.get(patch.output) is not scope.output):
        return False
    known = (scope.names.get(step.name) for step in patch.steps)
    return all(node is not None and node.step == step for node, step in zip(known, patch.steps, strict=True))


def _output(plan: Plan, scope: Scope, nodes: dict[str, Node]) -> Node | None:
    if plan.output is None:
        if scope.owner is None:
            raise PlanError("the plan names no output: say which step's value is the answer")
        return None
    output = nodes.get(plan.output) or scope.names.get(plan.output)
    if output is None:
        raise PlanError(f"the output {plan.output!r} is not a step of the plan")
    if scope.output is not None and scope.output is not output:
        raise PlanError(f"the output was already named: {scope.output.id!r}, now {output.id!r}")
    return output


def _resolve(node: Node, local: dict[str, Node]) -> bool:
    """Resolve the steps that a node refers to and set its `deps`, `after` and `after_own`; its scope counts as its
    first consumer. Return whether its needs in its own plan come before it."""
    seen: dict[str, Node] = {}
    step, op = node.step, node.step.op
    node.consumers = 1  # its scope, until that closes or, for the output, to the end
    needs = step.needs
    # Such steps refer to others by `needs` alone, so their texts and arguments need no search for references.
    plain = not op.args if isinstance(op, ToolCall) else isinstance(op, Join) or op.is_self_contained
    if plain and not needs:
        return True
    for name in needs if plain else step.references():
        dep, is_owner = local.get(name), False
        if dep is None or dep is node:
            dep, is_owner = _lookup(name, node, local)
        if is_owner:
            raise PlanError(
                f"{node.id} needs the value of {dep.id}, which expands into it and waits for it; "
                "continue its context with `after` instead"
            )
        seen[name] = dep
    if isinstance(op, ToolCall):
        pass
    elif isinstance(op, ModelCall) and op.after is not None:
        dep, node.after_own = _lookup(op.after, node, local)
        if dep.step.op.kind == "call" or (dep.step.op.kind == "join" and not dep.step.expands):
            raise PlanError(f"{node.id} is `after` {dep.id}, a {dep.step.op.kind}: only a think step has a context")
        node.after = dep
        # An expander around the node ends only after it: as a dependency it would wait for itself.
        if not node.after_own:
            seen.setdefault(op.after, dep)
    elif isinstance(op, Join):
        if (op.quorum or 0) > len(seen):
            raise PlanError(f"{node.id} needs {op.quorum} finished branches and has {len(seen)}: it could never close")
        node.join.waits_for_all = op.quorum is None and not op.early
    node.deps = tuple(seen.values())
    return 0 not in [dep.consumers for dep in node.deps]  # a dep without consumers comes later in the plan


def _lookup(name: str, node: Node, local: dict[str, Node]) -> tuple[Node, bool]:
    """Return the step that a name refers to for a node, and whether it is an expander around it."""
    target = local.get(name)
    scope: Scope | None = node.scope
    owner: Node | None = None
    while target is None and scope is not None:
        target, owner, scope = scope.names.get(name), scope.owner, scope.parent
        if target is None and owner is not None and owner.step.name == name:
            return owner, True
    if target is None:
        names = sorted([*local, *node.scope.names])
        raise PlanError(f"{node.id} refers to {name!r}, which is not a step in its scope: {', '.join(names[:12])}")
    if target is node:
        raise PlanError(f"{node.id} refers to itself")
    return target, _is_around(target, node)


def _is_around(step: Node, node: Node) -> bool:
    owner = node.scope.owner
    while owner is not None:
        if owner is step:
            return True
        owner = owner.scope.owner
    return False


def _refuse_outer_cycles(nodes: Iterable[Node], scope: Scope) -> None:
    """Raise `PlanError` for a reference to an outer step that itself waits for an expander around the scope."""
    owners: set[str] = set()
    owner = scope.owner
    while owner is not None:
        owners.add(owner.id)
        owner = owner.scope.owner
    seen: set[str] = set()  # shared by all searches, so that together they visit each step once
    for node in nodes:
        for dep in node.deps:
            if dep.scope is not scope and not dep.ended and _waits_for(dep, owners, seen):
                raise PlanError(f"{node.id} needs {dep.id}, which itself waits for {scope.prefix[:-1]} to end")


def _waits_for(start: Node, targets: set[str], seen: set[str]) -> bool:
    """Return whether a step's end waits for one of `targets`; `seen` holds ids that are known not to, and grows."""
    # A loop, not a recursion: chains of steps may be longer than Python's stack.
    todo = [start] if start.id not in seen else []
    seen.add(start.id)
    while todo:
        node = todo.pop()
        if node.id in targets:
            return True
        more = [dep for dep in node.deps if not dep.ended]
        if node.inner is not None:
            more.extend(name for name in node.inner.names.values() if not name.ended)
        for before in more:
            if before.id not in seen:
                seen.add(before.id)
                todo.append(before)
    return False


def _open_step_accounts(nodes: Iterable[Node], group: Account | None, now: float) -> list[Account]:
    accounts: list[Account] = []
    for node in nodes:
        if group is None and node.step.budget is None:
            continue
        node.account = account = open_account(node.step.budget, node.id, group, now, node.scope.level)
        if account is not None:
            for payer in (account, *account.around):
                if payer.deadline is not None:
                    payer.timed.append(node)
            if account is not group:  # the group's deadline is armed once, by its own account
                accounts.append(account)
    return accounts


def _connect(order: list[Node], scope: Scope) -> None:
    """Set edges, counts of needs and consumers, and upward ranks (last step first)."""
    owner = scope.owner
    above = owner.path_tokens.upward_rank - owner.step.token_cost() if owner is not None else 0.0
    for node in order:
        alone = (node,)  # shared by the steps that nothing else needs: 64 bytes a step less
        for dep in node.deps:
            if not dep.ended:
                known = dep.dependants
                if not known:
                    dep.dependants = alone
                elif isinstance(known, list):
                    known.append(node)
                else:
                    dep.dependants = [*known, node]
                dep.consumers += 1
                node.pending += 1
                node.needs_under_way += dep.state in UNDER_WAY
            elif dep.state is DONE:
                node.join.done += 1
            elif dep.state is FAILED:
                node.join.failed += 1
        if node.after_own and node.after is not None and node.after.outcome.own is None:
            node.pending += 1
            waiters = node.after.own_waiters = node.after.own_waiters or []
            waiters.append(node)
    # Ranks come second and backwards: a step's rank is its cost and the highest rank of its dependants.
    for node in reversed(order):
        below = 0.0 if node.dependants else above
        for reader in node.dependants:
            if reader.path_tokens.upward_rank > below:
                below = reader.path_tokens.upward_rank
        if node.place.lane == "call":
            node.path_tokens.upward_rank = below + 1
        elif node.merge is not None:
            node.path_tokens.upward_rank = below
        else:
            node.path_tokens.upward_rank = below + node.step.token_cost()


def group_policies(into: RunPolicies, policies: Sequence[Policy]) -> None:
    """Sort the policies of a run by the methods that they have."""
    if not policies:
        return
    into.rankers = tuple(policy for policy in policies if type(policy).rank is not Policy.rank)
    into.placers = tuple(policy for policy in policies if type(policy).place is not Policy.place)
    into.admitters = tuple(policy for policy in policies if type(policy).admit is not Policy.admit)
    into.reviewers = tuple(policy for policy in policies if type(policy).review is not Policy.review)
    into.needs_stream = any(policy.needs_stream for policy in into.reviewers)
    into.needs_counts = any(policy.needs_counts for policy in into.reviewers)
    into.watch = bool(into.placers or into.reviewers)
