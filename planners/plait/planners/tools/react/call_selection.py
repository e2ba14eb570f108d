"""Which calls of a turn are run. The reader of the turn and the flow that goes on after it go by the same rules."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from plait.core.interfaces import PlanningContext
from plait.core.tools.tool import ToolSpec
from plait.core.tools.turns import CallRequest, wanted

from .options import ReactOptions, transfer_name

__all__ = ["MORE", "classify_calls", "turn_calls"]

MORE = "more"
"""The call by which a model reads on in a result that was cut."""


def classify_calls(
    calls: Iterable[CallRequest],
    tools: Sequence[ToolSpec],
    known: Container[str],
    most: int,
    ours: Iterable[str],
) -> list[tuple[CallRequest, str]]:
    """Return what becomes of each call: `run`; `same` as an earlier one that changes nothing, of this turn or (`known`)
    another; `ours`: it is no tool but a function of the planner; `limit`: too many; `unread`."""
    lasting = {spec.name for spec in tools if spec.side_effects}
    seen, names, count = set[str](), frozenset(ours), 0
    fates: list[tuple[CallRequest, str]] = []
    for call in calls:
        if call.wrong:
            fate = "unread"
        elif call.name not in lasting and (call.key in seen or call.key in known):
            fate = "same"
        elif count >= most:
            fate = "limit"
        else:
            count += 1
            fate = "ours" if call.name in names else "run"
            if fate == "run":
                seen.add(call.key)
        fates.append((call, fate))
    return fates


def turn_calls(
    planner: ReactOptions, brief: PlanningContext, text: str, first: int, known: Container[str], whole: bool = True
) -> list[tuple[CallRequest, str]]:
    """Return the calls in a turn's text, with what becomes of each; `whole`: nothing more comes."""
    text = f"{text}\n" if whole else text
    ours = [agent.name for agent in planner.agents] + [transfer_name(agent) for agent in planner.handoffs]
    ours += [] if any(spec.name == MORE for spec in brief.tools) else [MORE]
    calls = wanted(text, planner.dialect, first, brief.tools)
    return classify_calls(calls, brief.tools, known, planner.max_branches, ours)
