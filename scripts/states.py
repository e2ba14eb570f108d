"""Draws the states of a step into docs/architecture.md, from the table of legal moves.

    python scripts/states.py     (or `make docs`)

`page()` returns the page's text without writing it: so a test can compare it with the committed one.
"""

from __future__ import annotations

import re
from pathlib import Path

from plait.core.states import MOVES, State

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- states: .*? -->\n).*?(<!-- end of states -->)", re.DOTALL)
ALWAYS = (State.FAILED, State.CANCELLED)
"""Every state that is not final may move to these, so they are drawn once."""
LABELS = {
    (State.WAITING, State.READY): "all needs are done",
    (State.WAITING, State.DONE): "verdict of a join",
    (State.WAITING, State.EXPANDING): "a join that returns more plan",
    (State.READY, State.RUNNING): "dispatched to a worker",
    (State.RUNNING, State.WAITING): "retry",
    (State.RUNNING, State.DONE): "result",
    (State.RUNNING, State.EXPANDING): "result of a step that expands",
    (State.EXPANDING, State.EXPANDED): "last patch received",
    (State.EXPANDING, State.DONE): "no patch has an output",
    (State.EXPANDED, State.DONE): "output of the patches",
}


def diagram() -> str:
    """Return the diagram in Mermaid's language. Raises `KeyError` for a move without a label."""
    lines = ["stateDiagram-v2", "  [*] --> open", '  state "not ended" as open {', "    [*] --> waiting"]
    for state, moves in MOVES.items():
        if moves and not set(ALWAYS) <= set(moves):
            raise ValueError(f"{state} cannot fail or be cancelled: draw its moves one by one")
        inside = [each for each in moves if each not in ALWAYS]
        lines += [f"    {state} --> {each}: {LABELS[state, each]}" for each in inside if each is not State.DONE]
    lines.append("  }")
    for state, moves in MOVES.items():
        lines += [f"  {state} --> done: {LABELS[state, State.DONE]}"] if State.DONE in moves else []
    lines += ["  open --> failed", "  open --> cancelled"]
    lines += [f"  {state} --> [*]" for state in MOVES if state.ended]
    return "\n".join(lines)


def page() -> str:
    """Return the text of the page with the diagram as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    made, count = BLOCK.subn(lambda found: f"{found[1]}```mermaid\n{diagram()}\n```\n{found[2]}", text)
    if count != 1:
        raise ValueError(f"{PAGE} has {count} places for the states, not one")
    return made


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
