"""Which calls of a turn are run. The reader of the turn and the flow that goes on after it go by the same rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plait.core.tools.tool import ToolSpec
from plait.core.tools.turns import Wanted

__all__ = ["MORE", "fates"]

MORE = "more"
"""The call by which a model reads on in a result that was cut."""


def fates(
    calls: Iterable[Wanted],
    tools: Sequence[ToolSpec],
    known: Iterable[str],
    most: int,
    ours: Iterable[str],
) -> list[tuple[Wanted, str]]:
    """Return what becomes of each call: `run`; `same` as an earlier one that changes nothing, of this turn or (`known`)
    another; `ours`: it is no tool but a function of the planner; `limit`: too many; `unread`."""
    lasting = {spec.name for spec in tools if spec.side_effects}
    seen, names, count = dict.fromkeys(known), frozenset(ours), 0
    found: list[tuple[Wanted, str]] = []
    for each in calls:
        if each.wrong:
            fate = "unread"
        elif each.name not in lasting and each.key in seen:
            fate = "same"
        elif count >= most:
            fate = "limit"
        else:
            count += 1
            fate = "ours" if each.name in names else "run"
            if fate == "run":
                seen[each.key] = None
        found.append((each, fate))
    return found
