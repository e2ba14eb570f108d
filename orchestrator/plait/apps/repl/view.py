"""Display of a REPL session: the consoles it is printed on, the live tree, the table of branches, and a step's report.

Nothing is wider than the screen. All text goes through `terminal.CleanOutput`, whatever its source.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ...core import graph
from ...core.plan import Plan
from ...core.record import StepRecord
from ...core.values import as_text
from ..common.terminal import CleanOutput, safe
from .state import ReplTurn

__all__ = ["Screen", "branches", "plan_tree", "story"]

_STYLES = {"done": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "expanded": "blue"}
_PLAIN_WIDTH = 100
_LONG = 600  # characters


class Screen:
    """Where a session is shown.

    `styled`: a terminal; otherwise plain lines without colours or boxes, errors on `errors`. Without `stream` it is
    whatever standard output then is.
    """

    def __init__(self, stream: TextIO | None = None, *, styled: bool = False, errors: TextIO | None = None) -> None:
        self.styled = styled
        self.stream = stream
        self.size: Callable[[], tuple[int, int]] = _size
        """Columns and rows."""
        self._errors = errors

    @property
    def width(self) -> int:
        """Columns that a line may have."""
        return max(20, self.size()[0])

    def print(self, *what: RenderableType, style: str | None = None) -> None:
        """Print texts (wrapped at words on a terminal, in one line elsewhere) or anything of rich's."""
        for renderable in what:
            self._write(
                Text(safe(renderable), style=style or "") if isinstance(renderable, str) else renderable, self.stream
            )

    def error(self, message: str) -> None:
        """Say that something was not done."""
        if self.styled:
            self.print(f"error: {message}", style="red")
            return
        self._write(Text(safe(f"error: {message}")), self._errors or self.stream)

    def rendered(self, what: RenderableType) -> str:
        """Return something of rich's as a terminal is sent it, colours and all."""
        console = self._console(io.StringIO())
        console.print(what)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]

    def _write(self, what: RenderableType, stream: TextIO | None) -> None:
        console = self._console(io.StringIO())
        whole = not self.styled and isinstance(what, Text) and not what.no_wrap
        console.print(what, soft_wrap=whole)
        text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
        if not self.styled:
            text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        out = stream or sys.stdout
        out.write(text)
        out.flush()

    def _console(self, stream: TextIO | None) -> Console:
        if self.styled:
            console = Console(file=stream, force_terminal=True, width=self.width, highlight=False, emoji=False)
        else:
            console = Console(
                file=stream, force_terminal=False, no_color=True, color_system=None, width=self.width, highlight=False,
                emoji=False,
            )  # fmt: skip
        console.push_render_hook(CleanOutput())
        return console


def _size() -> tuple[int, int]:
    size = shutil.get_terminal_size((_PLAIN_WIDTH, 24))
    return size.columns, size.lines


def cut(text: str, width: int) -> str:
    """Return a text in one line of at most `width` characters."""
    line = " ".join(safe(text).split())
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


_HEADS = ("step", "state", "tokens", "cached", "sure", "secs", "what, or why")
_RIGHT = (2, 3, 5)
_LAST = len(_HEADS) - 1


def branches(turn: ReplTurn, width: int) -> RenderableType:
    """Return the table of a run's steps in at most `width` columns, a line a step; columns with nothing in them are
    left out."""
    nested = _nested(turn.steps.values())
    rows = [_cells(step, depth) for step, depth in nested]
    if not rows:
        return Text("no steps yet")
    shown = [at for at in range(_LAST) if at < 2 or any(row[at] for row in rows)]
    sizes = {at: max(len(_HEADS[at]), *(len(row[at]) for row in rows)) for at in shown}
    sizes[0] = min(sizes[0], max(12, width // 3))
    room = max(8, width - sum(sizes.values()) - 2 * len(sizes))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for at in shown:
        table.add_column(_HEADS[at], no_wrap=True, width=sizes[at], justify="right" if at in _RIGHT else "left")
    table.add_column(_HEADS[_LAST], no_wrap=True, overflow="ellipsis", width=room)
    for (step, _), row in zip(nested, rows, strict=True):
        cells = [Text(safe(row[at]), style=_STYLES.get(row[1], "") if at == 1 else "") for at in shown]
        table.add_row(*cells, Text(_said(step, room)))
    return table


def _cells(step: StepRecord, depth: int) -> tuple[str, ...]:
    began = next((at for at, state, _ in step.moves if state == "running"), None)
    ended = step.ended_at
    return (
        "  " * depth + step.name,
        step.state,
        str(step.tokens or ""),
        f"{step.usage.cached}/{step.usage.prompt}" if step.usage.cached else "",
        step.sure,
        "" if began is None or ended is None else f"{ended - began:.2f}",
    )


def _said(step: StepRecord, room: int) -> str:
    """Return the one-line summary of a step: its failure, a join's verdict, or its text."""
    if step.state in ("failed", "cancelled"):
        return cut(step.reason, room)
    if step.kind == "join":
        return cut(step.reason or step.label, room)
    # A label that only repeats the name (`sample 1 of 6`) is not useful here.
    stem = step.name.rstrip("0123456789").rstrip("-.")
    label = "" if stem and step.label.startswith(stem) else cut(step.label, room)
    text = " ".join(safe((as_text(step.value) if step.value is not None else step.text)[-2000:]).split())
    left = room - (len(label) + 2 if label else 0)
    if len(text) > left:  # the end of generated text is the most informative part
        text = "…" + text[len(text) - left + 1 :] if left > 6 else ""
    return "  ".join(filter(None, (label, text)))


def _nested(steps: Iterable[StepRecord]) -> list[tuple[StepRecord, int]]:
    """Return the steps with how deep they stand, each after the step that expanded into it."""
    below: dict[str | None, list[StepRecord]] = {}
    for step in steps:
        below.setdefault(step.owner, []).append(step)
    order: list[tuple[StepRecord, int]] = []
    stack = [(root, 0) for root in reversed(below.get(None, []))]
    while stack:
        step, depth = stack.pop()
        order.append((step, depth))
        stack += [(child, depth + 1) for child in reversed(below.get(step.step, []))]
    return order


def story(step: StepRecord, full: bool = False) -> RenderableType:
    """Return the report of one step: its kind, its moves, its verdict or failure, and its text. A long text keeps only
    its beginning and end, unless `full`."""
    lines: list[Text] = []
    kind = {"think": "a call of the model", "call": "a call of a tool", "join": "a join"}.get(step.kind, step.kind)
    head = Text.assemble((safe(step.path), "bold"), f"  {kind}, ", (step.state, _STYLES.get(step.state, "")))
    lines.append(head)

    def fact(name: str, text: str, style: str = "") -> None:
        if text:
            lines.append(Text.assemble((f"  {name:<9}", "dim"), (safe(text), style)))

    fact("label", step.label)
    fact("within", step.owner.partition(":")[2] if step.owner else "")
    fact("reads", ", ".join(need.partition(":")[2] for need in step.needs))
    fact("worker", f"{step.worker}" + (f", {step.tries} tries" if step.tries > 1 else "") if step.worker else "")
    cost = [f"{step.tokens} tokens"] if step.tokens else []
    if step.usage.prompt:
        cost.append(f"{step.usage.cached} of {step.usage.prompt} prompt tokens cached")
    fact("cost", ", ".join(cost))
    fact("sure", step.sure)
    below = len(step.moves) - 1 if step.ended and (step.state != "done" or not step.why) else None
    for place, (at, state, reason) in enumerate(step.moves):
        on = "on " if state == "running" and reason else ""
        text = "" if place == below else f"{on}{reason}"  # the last one's reason stands below
        lines.append(Text.assemble((f"  {at:>8.3f} s  ", "dim"), (f"{state:<10}", _STYLES.get(state, "")), safe(text)))
    if step.ended:
        names = {"failed": ("failure", "red"), "cancelled": ("given up", "yellow")}
        name, style = names.get(step.state, ("verdict", "bold") if step.kind == "join" else ("why", ""))
        fact(name, step.reason, style)
    text = as_text(step.value) if step.value is not None else step.text
    if len(text) > _LONG and not full:
        cut_out = f" … {len(text) - _LONG} characters more, with --full … "
        text = text[: _LONG // 3] + cut_out + text[-(_LONG - _LONG // 3) :]
    if text:
        fact("said" if step.kind != "call" else "returned", text.strip("\n"))
    return Text("\n").join(lines)


def plan_tree(plan: Plan) -> str:
    """Return a plan as a tree in plain text: the output first, under each step what it needs. Runs of like steps that
    need the same become one line."""
    steps = {step.name: step for step in plan.steps}
    lines: list[str] = []
    shown: set[str] = set()
    # A stack, not recursion: plans may be deeper than the interpreter's.
    stack: list[tuple[str, str, str, int]] = [(plan.output or plan.steps[-1].name, "", "", 1)]
    while stack:
        name, guide, indent, like = stack.pop()
        step = steps[name]
        again = name in shown and bool(graph.needs(step))
        count = f" … {like} like it" if like > 1 else ""
        does = _does(step)
        lines.append(f"{guide}{name}{count}  {does}" + ("  (above)" if again else ""))
        if again:
            continue
        shown.add(name)
        below = _alike([steps[need] for need in graph.needs(step)], graph.needs)
        for at in range(len(below) - 1, -1, -1):
            first, number = below[at]
            last = at == len(below) - 1
            stack.append((first, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "), number))
    return "\n".join(lines)


def _alike(steps: list[Any], needs: Callable[[Any], tuple[str, ...]]) -> list[tuple[str, int]]:
    groups: list[tuple[Any, int]] = []
    for step in steps:
        if groups:
            before, count = groups[-1]
            stem = before.name.rstrip("0123456789")
            same = stem != before.name and stem == step.name.rstrip("0123456789")
            if same and needs(before) == needs(step) and _does(before) == _does(step):
                groups[-1] = (before, count + 1)
                continue
        groups.append((step, 1))
    return [(step.name, count) for step, count in groups]


def _does(step: Any) -> str:
    op = step.op
    match op.kind:
        case "think":
            words = f"think, at most {op.sampling.max_tokens} tokens" + (f", after {op.after}" if op.after else "")
        case "call":
            words = f"call {op.tool}({', '.join(op.args)})"
        case _:
            extra = f" quorum {op.quorum}" if op.quorum else ""
            words = f"join by {op.merge.name}, {op.on_failure}{extra}{', early' if op.early else ''}"
    return words + (", expands" if step.expands else "")
