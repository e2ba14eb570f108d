"""The steps of a run as a tree of threads, live while it runs: how its lines are indented, cut and folded."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pydantic import JsonValue
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from ...core.record import StepRecord
from ...core.values import as_text
from ...runtime.client.answer import Report, RunEnded, RunEvent
from ...runtime.client.handle import Handle
from .output import safe

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
_DEEPEST = 6  # levels of continued steps that are indented; a longer line continues below


@dataclass(slots=True)
class TreeLine:
    """One step for drawing."""

    record: StepRecord
    text: str = ""
    """The generated text or the value, as far as known."""
    facts: str = ""
    """How sure the model was and what the prefix cache served, where that is shown."""
    under: TreeLine | None = None
    """The step in whose place it is shown."""
    depth: int = 0
    """How many continued steps it stands below."""
    children: list[TreeLine] = field(default_factory=list["TreeLine"])

    @property
    def stem(self) -> str:
        """The name without its number: `child` for `child-3` and `child-4`."""
        return re.sub(r"(?<!\d)[-.]?\d++$", "", self.record.name)


class StepTree:
    """The steps of one run, by who expanded into whom."""

    def __init__(self, title: str = "", *, facts: bool = False) -> None:
        self.title = " ".join(title.split())  # in one line, whatever the question looks like
        self.note = ""
        """Said behind the title."""
        self._facts = facts
        self._roots: list[TreeLine] = []
        self._lines: dict[str, TreeLine] = {}
        self._tokens = 0
        self._began = time.monotonic()
        self._seconds: float | None = None

    @classmethod
    def of_report(cls, report: Report, title: str = "") -> StepTree:
        """Return the tree of an ended run."""
        tree = cls(title)
        for record in report.steps:
            tree._line(record)
        tree._tokens, tree._seconds = report.usage.completion, report.seconds
        return tree

    @classmethod
    def of_steps(cls, steps: Iterable[StepRecord]) -> StepTree:
        """Return the tree of some steps with all facts; a join's text is the reason for its value."""
        tree = cls(facts=True)
        for record in steps:
            tree._draw(record)
            if record.kind == "join" and record.reason:
                tree._lines[record.step].text = record.reason
        return tree

    def take(self, news: RunEvent) -> None:
        """Take one piece of news. That of the answer ends the clock."""
        match news.kind:
            case "step":
                self._draw(news.record)
            case "text":
                if news.step in self._lines:
                    line = self._lines[news.step]
                    line.record = replace(line.record, tokens=max(line.record.tokens, news.tokens))
                    line.text = (line.text + news.text)[-400:]
                    if self._facts and news.logprob is not None:
                        line.facts = replace(line.record, logprob=news.logprob).sure
            case "answer":
                self._seconds = news.answer.seconds
                self._tokens = news.answer.total_tokens
                for record in news.answer.trace:
                    self._line(record)

    def renderable(self, width: int, height: int | None = None, *, head: bool = True) -> RenderableType:
        """Return the tree in at most `width` columns, its `head` line included; with `height`, groups of like steps
        that have ended are folded into one line each, first the oldest, and the rest is cut."""
        rows = self._rows(fold=False)
        if height is not None and len(rows) + 1 > height:
            rows = self._rows(fold=True)
            if len(rows) + 1 > height:
                keep = max(1, height - 2)
                rows = [("", _more(len(rows) - keep)), *rows[-keep:]]
        names = min(max((len(guide) + len(line.record.name) for guide, line in rows), default=0), max(12, width // 3))
        labels = min(max((len(line.record.label) for _, line in rows), default=0), width // 4)
        facts = max((len(line.facts) for _, line in rows), default=0)
        drawn = (_drawn(guide, line, names, facts, labels, width) for guide, line in rows)
        return Group(*([self._head(width)] if head else []), *drawn)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = max(8, options.size.height - 4) if console.is_terminal else None
        yield self.renderable(options.max_width, height)

    def _draw(self, record: StepRecord) -> None:
        """Draw a step's current state, text and facts."""
        line = self._line(record)
        if record.value is not None or record.text:
            line.text = _as_line(record.value if record.value is not None else record.text)
        if self._facts:
            line.facts = _facts(record) or line.facts

    def _line(self, record: StepRecord) -> TreeLine:
        line = self._lines.get(record.step)
        if line is None:
            above = self._lines.get(record.owner) if record.owner is not None else None
            if above is not None and above.record.kind == "join":
                # The successor of a join is the next round of the line of reasoning; it is drawn beside the first.
                above = above.under.under if above.under is not None else None
            depth, before = 0, self._continued(record)
            if before is not None:
                deep = before.depth >= _DEEPEST
                above, depth = (before.under, before.depth) if deep else (before, before.depth + 1)
            line = self._lines[record.step] = TreeLine(record, under=above, depth=depth)
            (self._roots if above is None else above.children).append(line)
        line.record = record
        return line

    def _continued(self, record: StepRecord) -> TreeLine | None:
        """Return the step of a flow that a step continues. Rounds of other planners are siblings in the tree."""
        owner = self._lines.get(record.owner) if record.owner is not None else None
        if owner is None or record.after is None or owner.record.kind != "join" or owner.record.needs:
            return None
        return self._lines.get(record.after)

    def _head(self, width: int) -> Text:
        seconds = time.monotonic() - self._began if self._seconds is None else self._seconds
        tokens = self._tokens or sum(line.record.tokens for line in self._lines.values())
        running = sum(line.record.state == "running" for line in self._lines.values())
        facts = f"  {seconds:.1f} s  {tokens} tokens" + (f"  {running} running" if running else "")
        facts += f"  {self.note}" if self.note else ""
        title = safe(self.title) or "a plan"
        room = max(8, width - len(facts))
        title = title if len(title) <= room else title[: room - 1] + "…"
        return _cut(Text.assemble((title, "bold"), (facts, "dim")), width)

    def _rows(self, fold: bool) -> list[tuple[str, TreeLine]]:
        rows: list[tuple[str, TreeLine]] = []
        _walk(self._roots, "", rows, fold)
        return rows


async def follow(handle: Handle, console: Console, title: str = "", keep: bool = True) -> StepTree:
    """Show the tree of a run until it ends, and return it: redrawn in place on a terminal, elsewhere printed once at
    the end. With `keep=False` nothing of it stays, and nothing is printed elsewhere."""
    tree, live = StepTree(title), contextlib.ExitStack()
    if console.is_terminal:
        shown = Live(tree, console=console, refresh_per_second=_FRAMES, transient=not keep, vertical_overflow="crop")
        live.enter_context(shown)
    elif keep:
        live.callback(console.print, tree)
    with live:
        async for news in handle.news():
            tree.take(news)
            if isinstance(news, RunEnded):
                break
    return tree


def _walk(lines: list[TreeLine], indent: str, rows: list[tuple[str, TreeLine]], fold: bool) -> None:
    shown = _folded(lines) if fold else lines
    for line in shown:
        last = line is shown[-1]
        rows.append((indent + ("└─ " if last else "├─ "), line))
        _walk(line.children, indent + ("   " if last else "│  "), rows, fold)


def _folded(lines: list[TreeLine]) -> list[TreeLine]:
    """Return the lines with each run of like steps that have all ended made into one."""
    result: list[TreeLine] = []
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and _folds(lines[end], lines[at].stem):
            end += 1
        if end - at >= _FOLD_FROM:
            result.append(_summed(lines[at:end]))
            at = end
        else:
            result.append(lines[at])
            at += 1
    return result


def _folds(line: TreeLine, stem: str) -> bool:
    return line.stem == stem and line.record.ended and not line.children


def _summed(alike: list[TreeLine]) -> TreeLine:
    counts = Counter(line.record.state for line in alike)
    words = ", ".join(f"{counts[state]} {state}" for state in ("done", "failed", "cancelled") if counts[state])
    state = "done" if counts["done"] else alike[0].record.state
    tokens = sum(line.record.tokens for line in alike)
    name, label = f"{alike[0].stem}-*", f"{len(alike)} steps"
    return TreeLine(StepRecord("", name, "think", label, state=state, tokens=tokens), words)


def _more(count: int) -> TreeLine:
    return TreeLine(StepRecord("", "…", "think", f"{count} more lines", state="done"))


def _drawn(guide: str, line: TreeLine, names: int, facts: int, labels: int, width: int) -> Text:
    record = line.record
    mark, style = _MARKS.get(record.state, ("?", ""))
    name = safe(record.name).ljust(max(0, names - len(guide)))
    tokens = f"{record.tokens:>5} tok" if record.tokens else " " * 9
    row = Text.assemble(
        (guide, "dim"), (mark, style), " ", (name, "bold" if record.state == "running" else ""), (tokens, "dim"), "  "
    )
    if facts:
        row.append(line.facts.ljust(facts) + "  ", "dim")
    label, text = safe(record.label), safe(line.text)
    gone = record.state in ("failed", "cancelled")
    if gone and record.reason:
        text = safe(record.reason)
    room = width - row.cell_len
    if room <= 0:
        return _cut(row, width)
    row.append(label[:labels].ljust(labels), "cyan")
    room = width - row.cell_len - 2
    if text and room > 6:
        if len(text) > room:  # generated text keeps its end, all other text its beginning
            tail = not gone and record.kind != "join"
            text = "…" + text[-(room - 1) :] if tail else text[: room - 1] + "…"
        row.append("  ").append(text, "dim" if record.ended else "")
    return _cut(row, width)


def _cut(text: Text, width: int) -> Text:
    text.rstrip()
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _facts(record: StepRecord) -> str:
    """Return how sure the model was, what the prefix cache served of the prompt, and the seconds of a step."""
    began = next((at for at, state, _ in record.moves if state == "running"), None)
    ended = record.ended_at
    seconds = "" if began is None or ended is None else f"{ended - began:.2f} s"
    cached = f"{record.usage.cached}/{record.usage.prompt} cached" if record.usage.cached else ""
    return "  ".join(filter(None, (record.sure, cached, seconds)))


def _as_line(value: JsonValue) -> str:
    return " ".join(as_text(value)[:2000].split())
