"""The dialect of Adaptive Parallel Reasoning (APR, arXiv 2504.15466), which plays Countdown.

A thread sees only its own state, which comes from the called node in the parent's trace. The join replaces the call:
the parent continues from before `<Calling Sub Searches>`. Defaults: one level of threads, at most 10 a call, greedy. A
budget in the prompt holds for the parent (`Sub Call Budget`) or for all (`Token Budget`).

Differs from the authors' code: a parser reads numbers instead of evaluating text; equal calls each get their own thread
and result; a call of an unknown node and a failed thread give `No Solution`; rounds and corrected `<Sub Searches>`
share a limit; with `early` the first thread that reaches the goal ends its siblings. A successful thread's path is
quoted as text, so only this path is tokenised again.
"""

from __future__ import annotations

import json
import re

from plait.core.errors import TaskError

from . import Dialect, fill

_ID = r"\d{1,6}(?:,\d{1,6}){0,30}"
_STEP = r"\d{1,9}[-+*/]\d{1,9}=\d{1,9}"
_MOVED = re.compile(
    rf"Moving to Node #({_ID})[ \t]*\n[ \t]*Current State:[ ]*(\d{{1,9}}):\[([\d, ]{{1,200}})\],[ ]*"
    r"Operations:[ ]*\[([^\]\n]{0,600})\]"
)
_MADE = re.compile(rf"Generated Node #({_ID}):[ ]*(\d{{1,9}}):\[([\d, ]{{1,200}})\][ ]*Operation:[ ]*({_STEP})")
_PUZZLE = re.compile(r"\s*(\d{1,9}(?:(?:\s*,\s*|\s+)\d{1,9}){1,9})\s*(?:->|→|=>)\s*(\d{1,9})\s*")
_MAX_NODES = 4096


class Apr(Dialect):
    """Items are nodes of the parent's search. The notes hold target, numbers and steps of each node so far."""

    def opening(self, prompt: str, text: str) -> str:
        """Return the initial state of the search. Raises `TaskError` if the text has no puzzle."""
        if _MOVED.match(text.strip()):
            return text.strip()
        puzzle = _PUZZLE.fullmatch(text) if len(text) <= 200 else None
        if puzzle is None:
            raise TaskError("the dialect apr plays Countdown: write numbers and a target, such as 25 36 49 51 -> 39")
        return _state("0", puzzle[2], re.findall(r"\d+", puzzle[1]), [])

    def remember(self, notes: str, text: str) -> str:
        """Return the notes with the nodes that `text` moves to or generates."""
        nodes: dict[str, list[object]] = json.loads(notes) if notes else {}
        for moved in _MOVED.finditer(text):
            if len(nodes) < _MAX_NODES:
                nodes[moved[1]] = [moved[2], re.findall(r"\d{1,9}", moved[3]), re.findall(_STEP, moved[4])]
        for made in _MADE.finditer(text):
            parent = nodes.get(made[1].rpartition(",")[0])
            if made[1] not in nodes and parent is not None and len(nodes) < _MAX_NODES:
                steps = parent[2]
                assert isinstance(steps, list)
                nodes[made[1]] = [made[2], re.findall(r"\d{1,9}", made[3]), [*steps, made[4]]]
        return json.dumps(nodes, separators=(",", ":"))

    def begin(self, fields: dict[str, str], prompt: str, notes: str) -> str | None:
        """Return the called node's state, or `None` if the trace does not have the node."""
        node = (json.loads(notes) if notes else {}).get(fields["id"])
        return None if node is None else _state(fields["id"], *node)


def _state(node: str, target: str, numbers: list[str], steps: list[str]) -> str:
    state = "Moving to Node #{id}\nCurrent State: {target}:[{numbers}], Operations: [{steps}]"
    shown = ", ".join(f"'{step}'" for step in steps)
    return fill(state, {"id": node, "target": target, "numbers": ", ".join(numbers), "steps": shown})
