"""The steps of a run as a tree of threads, live while it runs.

Takes a run's news (or its report) and decides how many lines there are, how they are indented, cut and folded. It does
not know where the news come from, nor what the steps mean.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from .terminal import safe

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ...runtime.client.answer import News, StepNews
    from ...runtime.client.report import Report

__all__ = ["StepTree", "following"]

_ENDED = ("done", "failed", "cancelled")
_MARKS = {
    "waiting": ("·", "dim"),
    "ready": ("○", "dim"),
    "running": ("●", "cyan"),
    "expanding": ("●", "cyan"),
    "expanded": ("◆", "blue"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("−", "yellow"),
}
_FOLD_FROM = 3  # fewer lines than this are not worth folding
_FRAMES = 10  # a second


@dataclass(slots=True)
class Line:
    """One step."""

    step: str
    name: str
    state: str
    label: str = ""
    tokens: int = 0
    text: str = ""
    """What it generated or ended in, as far as it is known."""
    reason: str = ""
    facts: str = ""
    """How sure the model was and what the prefix cache served, where that is shown."""
    join: bool = False
    under: Line | None = None
    """The step in whose place it is shown."""
    children: list[Line] = field(default_factory=list["Line"])

    @property
    def ended(self) -> bool:
        """Whether it and all that it expanded into will not move any more."""
        return self.state in _ENDED

    @property
    def stem(self) -> str:
        """What it has in common with its like: `child-3` and `child-4` are both `child`."""
        return re.sub(r"[-.]?\d+$", "", self.name)


class StepTree:
    """The steps of one run, by who expanded into whom."""

    def __init__(self, title: str = "", *, facts: bool = False) -> None:
        self.title = title
        self.note = ""
        """Said behind the title."""
        self._facts = facts
        self._roots: list[Line] = []
        self._lines: dict[str, Line] = {}
        self._tokens = 0
        self._began = time.monotonic()
        self._seconds: float | None = None

    @classmethod
    def of_report(cls, report: Report, title: str = "") -> StepTree:
        """Return the tree of a run that is over."""
        tree = cls(title)
        for row in report.steps:
            line = tree._line(row.step, row.name, row.owner, row.label, row.kind == "join")
            line.state, line.reason, line.tokens = row.state, row.reason, row.usage.completion
        tree._tokens, tree._seconds = report.usage.completion, report.seconds
        return tree

    def take(self, news: News) -> None:
        """Take one piece of news. That of the answer ends the clock."""
        match news.kind:
            case "step":
                line = self._line(news.step, news.name, news.owner, news.label, news.op == "join")
                line.state, line.reason = news.state, news.reason or line.reason
                line.tokens = max(line.tokens, news.tokens)
                if news.value is not None:
                    line.text = _as_line(news.value)
                if self._facts:
                    line.facts = facts_of(news) or line.facts
            case "text":
                if news.step in self._lines:
                    line = self._lines[news.step]
                    line.tokens = news.tokens
                    line.text = (line.text + news.text)[-400:]
                    if self._facts and news.logprob is not None:
                        line.facts = f"p={math.exp(min(0.0, news.logprob)):.2f}"
            case "answer":
                self._seconds = news.answer.seconds
                self._tokens = news.answer.total_tokens

    def renderable(self, width: int, height: int | None = None) -> RenderableType:
        """Return the tree in at most `width` columns; with `height`, groups of like steps that have ended are folded
        into one line each, first the oldest, and the rest is cut."""
        rows = self._rows(fold=False)
        if height is not None and len(rows) + 1 > height:
            rows = self._rows(fold=True)
            if len(rows) + 1 > height:
                keep = max(1, height - 2)
                rows = [("", _more(len(rows) - keep)), *rows[-keep:]]
        names = min(max((len(guide) + len(line.name) for guide, line in rows), default=0), max(12, width // 3))
        labels = min(max((len(line.label) for _, line in rows), default=0), width // 4)
        facts = max((len(line.facts) for _, line in rows), default=0)
        drawn = [self._head(width), *(_drawn(guide, line, names, facts, labels, width) for guide, line in rows)]
        return Group(*drawn)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = max(8, options.size.height - 4) if console.is_terminal else None
        yield self.renderable(options.max_width, height)

    def _line(self, step: str, name: str, owner: str | None, label: str, join: bool) -> Line:
        line = self._lines.get(step)
        if line is None:
            above = self._lines.get(owner) if owner is not None else None
            if above is not None and above.join:
                # What a join goes on to is the next round of the line of reasoning, and stands beside the first.
                above = above.under.under if above.under is not None else None
            line = self._lines[step] = Line(step, name, "waiting", label, join=join, under=above)
            (self._roots if above is None else above.children).append(line)
        return line

    def _head(self, width: int) -> Text:
        seconds = time.monotonic() - self._began if self._seconds is None else self._seconds
        tokens = self._tokens or sum(line.tokens for line in self._lines.values())
        running = sum(line.state == "running" for line in self._lines.values())
        facts = f"  {seconds:.1f} s  {tokens} tokens" + (f"  {running} running" if running else "")
        facts += f"  {self.note}" if self.note else ""
        title = safe(self.title) or "a plan"
        room = max(8, width - len(facts))
        title = title if len(title) <= room else title[: room - 1] + "…"
        return _cut(Text.assemble((title, "bold"), (facts, "dim")), width)

    def _rows(self, fold: bool) -> list[tuple[str, Line]]:
        rows: list[tuple[str, Line]] = []
        _walk(self._roots, "", rows, fold)
        return rows


@contextlib.contextmanager
def following(console: Console, title: str = "", keep: bool = True) -> Iterator[StepTree]:
    """Yield a tree that is shown live while news are given to it: redrawn in place on a terminal, and elsewhere printed
    once at the end. With `keep=False` nothing of it stays, and nothing is printed elsewhere."""
    tree = StepTree(title)
    if not console.is_terminal:
        try:
            yield tree
        finally:
            if keep:
                console.print(tree)
        return
    with Live(tree, console=console, refresh_per_second=_FRAMES, transient=not keep, vertical_overflow="crop"):
        yield tree


def _walk(lines: list[Line], indent: str, rows: list[tuple[str, Line]], fold: bool) -> None:
    shown = _folded(lines) if fold else lines
    for line in shown:
        last = line is shown[-1]
        rows.append((indent + ("└─ " if last else "├─ "), line))
        _walk(line.children, indent + ("   " if last else "│  "), rows, fold)


def _folded(lines: list[Line]) -> list[Line]:
    """Return the lines with each run of like steps that have all ended made into one."""
    result: list[Line] = []
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and lines[end].stem == lines[at].stem and lines[end].ended and not lines[end].children:
            end += 1
        if end - at >= _FOLD_FROM:
            result.append(_summed(lines[at:end]))
            at = end
        else:
            result.append(lines[at])
            at += 1
    return result


def _summed(alike: list[Line]) -> Line:
    counts = {state: sum(line.state == state for line in alike) for state in _ENDED}
    words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return Line(
        step="",
        name=f"{alike[0].stem}-*",
        state="done" if counts["done"] else alike[0].state,
        label=f"{len(alike)} steps",
        tokens=sum(line.tokens for line in alike),
        text=words,
    )


def _more(count: int) -> Line:
    return Line(step="", name="…", state="done", label=f"{count} more lines")


def facts_of(news: StepNews) -> str:
    """Return how sure the model was (the mean probability of its tokens, or DeepConf's confidence in nats) and how many
    prompt tokens the prefix cache served, as far as it is known."""
    sure = ""
    if news.logprob is not None:
        sure = f"p={math.exp(min(0.0, news.logprob)):.2f}"
    elif news.signals is not None:
        sure = f"c={news.signals.confidence:.1f}"
    return "  ".join(filter(None, (sure, f"{news.cached} hit" if news.cached else "")))


def _drawn(guide: str, line: Line, names: int, facts: int, labels: int, width: int) -> Text:
    mark, style = _MARKS.get(line.state, ("?", ""))
    name = line.name.ljust(max(0, names - len(guide)))
    tokens = f"{line.tokens:>5} tok" if line.tokens else " " * 9
    row = Text.assemble(
        (guide, "dim"), (mark, style), " ", (name, "bold" if line.state == "running" else ""), (tokens, "dim"), "  "
    )
    if facts:
        row.append(line.facts.ljust(facts) + "  ", "dim")
    label, said = safe(line.label), safe(line.text)
    if line.state in ("failed", "cancelled") and line.reason:
        said = safe(line.reason)
    room = width - row.cell_len
    if room <= 0:
        return _cut(row, width)
    row.append(label[:labels].ljust(labels), "cyan")
    room = width - row.cell_len - 2
    if said and room > 6:
        if len(said) > room:  # of what was generated the end says most, of all else the beginning
            tail = line.state not in ("failed", "cancelled") and not line.join
            said = "…" + said[-(room - 1) :] if tail else said[: room - 1] + "…"
        row.append("  ").append(said, "dim" if line.ended else "")
    return _cut(row, width)


def _cut(text: Text, width: int) -> Text:
    text.rstrip()
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _as_line(value: JsonValue) -> str:
    from ...core.values import as_text

    return " ".join(as_text(value)[:2000].split())
