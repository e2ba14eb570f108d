"""Display of a REPL session: the consoles it is printed on, and the report of one step.

No output is wider than the screen. All text passes through `terminal.CleanOutput`.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from ...core.record import StepRecord
from ...core.values import as_text
from ..common.output import CleanOutput, safe

_STYLES = {"done": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "expanded": "blue"}
_PLAIN_WIDTH = 100
_LONG = 600  # characters


class Screen:
    """Output of a session.

    `styled`: a terminal; otherwise plain lines without colours or boxes, errors on `errors`. Without `stream`, the
    current standard output is used.
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
        """Print texts (wrapped at words on a terminal, otherwise in one line) or objects of rich."""
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
        """Return an object of rich as terminal output, including colours."""
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
        colors = None if self.styled else True, "auto" if self.styled else None
        console = Console(file=stream, force_terminal=self.styled, width=self.width, highlight=False, emoji=False,
                          no_color=colors[0], color_system=colors[1])  # fmt: skip
        console.push_render_hook(CleanOutput())
        return console


def _size() -> tuple[int, int]:
    size = shutil.get_terminal_size((_PLAIN_WIDTH, 24))
    return size.columns, size.lines


def cut(text: str, width: int) -> str:
    """Return a text in one line of at most `width` characters."""
    line = " ".join(safe(text).split())
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


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
