"""Count the model calls, one after another, that the coroutines of a flow have waited for.

`Budget.turns` limits such chains. The machine sees chains of references. A flow may also wait for a step and insert its
value into the text of the next, without a reference: the calls that it had waited for are then reported with the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...core.plan import Step
from ...core.step_handles import FlowPlace, Group, Promise, Several, StepHandle

Calls = dict[str, int]
"""Model calls by scope that limits `turns`; those of the whole flow under the empty name."""


class Turns:
    """The model calls before each step of one flow. `whole`: a budget around the flow limits its turns."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._steps: dict[str, Calls] = {}
        """Calls by step name, the step itself included; only for steps under a limit."""

    def count_step(self, step: Step, group: Group | None, waited: Mapping[str, int]) -> Calls:
        """Count a new step of a coroutine that has waited for `waited` calls; return those that count for the step."""
        scopes = [*self._scopes(group)]
        if not scopes:
            return {}
        needs = [*step.references(), step.op.after if step.op.kind == "think" else None]
        before = [waited, *(self._steps[name] for name in needs if name in self._steps)]
        own = step.op.kind == "think"
        self._steps[step.name] = {scope: own + max(calls.get(scope, 0) for calls in before) for scope in scopes}
        return {scope: waited.get(scope, 0) for scope in scopes} if any(map(waited.get, scopes)) else {}

    def read(self, awaited: Promise[object], calls: Calls) -> None:
        """Add the calls that led to a step or coroutine to those that its reader has waited for."""
        if isinstance(awaited, Several):
            for member in awaited.members:
                if member.ended:
                    self.read(member, calls)
            return
        if isinstance(awaited, StepHandle):
            led = self._steps.get(awaited.name, {})
        else:
            place = getattr(awaited, "place", None)  # of a coroutine
            led = place.calls if isinstance(place, FlowPlace) else {}
        for scope, number in led.items():
            calls[scope] = max(calls.get(scope, 0), number)

    def _scopes(self, group: Group | None) -> Iterator[str]:
        if self._whole:
            yield ""
        while group is not None:
            if group.budget is not None and group.budget.turns is not None:
                yield group.name
            group = group.outer
