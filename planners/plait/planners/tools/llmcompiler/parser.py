"""An incremental parser of plans in LLMCompiler's language, for text that arrives in pieces of any length.

It accepts every known variant of models' plans and records each repair. An unreadable line that looks like a task
becomes a task with `is_unread`. Time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .arguments import IN_STRING, QUOTES, Arguments, closes, opens, parse_arguments, read_plain

_SIGNS = r"[*`]{0,3}"
_SHOWN = 200
_HEAD = re.compile(
    rf"(?P<lead>[ \t]*+(?:[-*+•>][ \t]++)?{_SIGNS})(?P<id>[0-9]++)(?P<sep>[.):]{_SIGNS})"
    rf"(?P<gap>[ \t]*+)(?P<tick>{_SIGNS})"
    rf"(?:(?P<kept>[A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+)?(?P<name>[A-Za-z_][A-Za-z0-9_.\-]*+){_SIGNS}[ \t]*+\("
)
_JOIN = re.compile(
    rf"[ \t]*+(?:[-*+•>][ \t]++)?{_SIGNS}(?:(?P<id>[0-9]++)[.):]{_SIGNS}[ \t]*+)?{_SIGNS}[Jj]oin{_SIGNS}[ \t]*+"
    r"(?P<call>\()?(?(call)[^)\n]*+\)?|(?=[ \t*`.]*+(?:$|#|<)))"
)
_THOUGHT = re.compile(r"[ \t]*[*_]{0,2}Thought[*_]{0,2}[ \t]*:[*_]{0,2}[ \t]*(.*)", re.IGNORECASE)
_END = re.compile(r"<[ \t]*/?END[_ ]?OF[_ ]?PLAN[ \t]*>?", re.IGNORECASE)
_STOP = re.compile(r"[ \t]*(?:###|Question[ \t]*:)")
_TAIL = re.compile(r"[ \t*`.;,]*+(?:$|#|//|<|--)")
_MARK = re.compile(r"[\"'()\[\]{}\\]")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")
_BETWEEN = re.compile(r"[ \t]*+[;,|&]?+")
"""Separator of two tasks on one line."""
_MEANT = re.compile(rf"[ \t]*+(?:[-*+•>][ \t]++)?{_SIGNS}[0-9]++[.):]|[^(]*\w\(")
"""A line with a number or a call: the model intended a task."""


@dataclass(frozen=True, slots=True)
class PlanTask:
    """One written task of a plan; references are still text."""

    id: int
    tool: str
    arguments: Arguments
    thought: str
    is_join: bool = False
    is_unread: bool = False
    """Whether the line was meant as a task but is unreadable; `arguments.raw` has the line."""

    @property
    def text(self) -> str:
        """The action as written, apart from repairs."""
        return f"{self.tool}({self.arguments.raw})"


@dataclass(slots=True)
class _Open:
    """A task whose end has not been found yet: its lines so far, and the position of the scan."""

    id: int
    name: str
    lines: list[str]
    start: int
    """Offset of the arguments in the first line."""
    stack: list[str]
    quote: str = ""
    """The quote of the open string (one or three characters)."""
    last: str = "("
    """The last character that is not a space."""
    end: int = -1
    """Offset of the arguments' end in the last line."""
    tail: int = -1
    """Offset of the text after the task in the last line."""


class PlanText:
    """Takes a plan's text in pieces and returns each task as soon as its last line is complete.

    The first join or the end mark ends the plan. `repairs` lists the corrections.
    """

    def __init__(self) -> None:
        self.repairs: list[str] = []
        self.names: dict[str, int] = {}
        """Tasks by the name of their result: `1. area = search("…")`."""
        self.over = False
        """Whether the plan has ended; the rest of the text is ignored."""
        self._pieces: list[str] = []
        self._open: _Open | None = None
        self._thought = ""
        self._thinking = False
        self._first = True

    def feed(self, delta: str) -> list[PlanTask]:
        """Add the next piece of text and return the tasks that are complete now."""
        if self.over:
            return []
        if "\n" not in delta:
            self._pieces.append(delta)
            return []
        *lines, rest = ("".join(self._pieces) + delta).split("\n")
        self._pieces = [rest]
        return [task for line in lines for task in self._line(line)]

    def close(self, cut: bool = False) -> list[PlanTask]:
        """End the text and return the tasks that its end completes. `cut`: the text was cut off, so an unfinished task
        may be incomplete and must not run."""
        if self.over:
            return []
        line = "".join(self._pieces)
        self._pieces = []
        tasks: list[PlanTask] = []
        if line:
            tasks += self._line(line, cut)
        while self._open is not None and not self.over:
            if cut:
                self._note(self._open.id, "the plan was cut off in this task, which is not run")
                self._open = None
            else:
                tasks += self._give_up()
        self.over = True
        return tasks

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _line(self, line: str, cut: bool = False) -> Iterator[PlanTask]:
        if self.over:
            return
        line = line.removesuffix("\r")
        if self._skip_thinking(line):
            return
        ended = False
        if "<" in line and (end := _END.search(line)) is not None:
            line, ended = line[: end.start()], True
            if end[0] != "<END_OF_PLAN>":
                self.repairs.append(f"{end[0]!r} taken as the end of the plan")
        if self._open is not None:
            if not ended and not self._interrupts(line, self._open):
                yield from self._scan(line, 0, cut)
                return
            if ended and not self._interrupts(line, self._open) and line.strip():
                yield from self._scan(line, 0)
                line = ""
            while self._open is not None and not self.over:
                yield from self._give_up()
        if not self.over:
            yield from self._start(line, cut and not ended)
        while ended and self._open is not None and not self.over:
            yield from self._give_up()
        self.over = self.over or ended

    def _start(self, line: str, cut: bool = False) -> Iterator[PlanTask]:
        """Read a line outside an open task, which may start a task."""
        if not line or line.isspace():
            return
        join = _JOIN.match(line) if "oin" in line else None
        if join is not None:
            number = self._number(join["id"]) if join["id"] else None
            if number is None:
                self.repairs.append("join had no number")
                number = -1
            if not join["call"]:
                self._note(number, "'()' was missing after join")
            self.over = True
            yield PlanTask(number, "join", Arguments([], ""), self._take_thought(), is_join=True)
            return
        head = _HEAD.match(line)
        if head is not None:
            number = self._number(head["id"])
            if number is None:
                return
            if (head["lead"], head["sep"], head["tick"]) != ("", ".", "") or not head["gap"]:
                shown = (head["lead"] + head["id"] + head["sep"] + head["gap"] + head["tick"]).expandtabs()
                self._note(number, f"numbered {shown!r}")
            if head["kept"]:
                self.names[head["kept"]] = number
                self._note(number, f"its result is called {_head(head['kept'])}")
            plain = read_plain(line, head.end())
            if plain is not None:
                yield PlanTask(number, head["name"], plain, self._take_thought())
                return
            self._open = _Open(number, head["name"], [], head.end(), [])
            yield from self._scan(line, head.end(), cut)
        elif _STOP.match(line):
            self.over = True
        elif (thought := _THOUGHT.match(line)) is not None:
            self._thought = thought[1].strip()
        elif _FENCE.match(line):
            self.repairs.append("a code fence was left out")
        elif _MEANT.match(line):
            yield _unread_task(line)
        else:
            self.repairs.append(f"a line that is no task was left out: {_head(line)}")

    def _interrupts(self, line: str, task: _Open) -> bool:
        """Return whether a line starts a new task although the task before has no end. Inside a string only a greater
        number does, since texts contain numbered lists."""
        if _STOP.match(line) and not task.quote:
            return True
        head = _HEAD.match(line) or _JOIN.match(line)
        if head is None or head["id"] is None:
            return head is not None and not task.quote
        return not task.quote or (len(head["id"]) <= 6 and int(head["id"]) > task.id)

    def _give_up(self) -> Iterator[PlanTask]:
        """End the open task at the end of its first line, and parse its other lines again."""
        task = self._open
        assert task is not None
        self._open = None
        first, *others = task.lines
        raw = first[task.start :].rstrip()
        if raw.endswith(")"):
            raw = raw[:-1]
        self._note(task.id, "a string or bracket had no end")
        yield self._task(task, raw.rstrip(" \t,"))
        for line in others:
            if self.over:
                return
            yield from self._start(line)

    # -- one task ------------------------------------------------------------------------------------------------------

    def _scan(self, line: str, at: int, cut: bool = False) -> Iterator[PlanTask]:
        """Scan one more line of the open task, and return the task if it ends there."""
        task = self._open
        assert task is not None
        task.lines.append(line)
        _walk(task, line, at)
        if task.end < 0:
            wants_more = task.quote or task.last in ",([{=:" or any(bracket in "[{" for bracket in task.stack)
            if wants_more or cut:
                return
            self._note(task.id, "')' was missing at the end")
            task.end = task.tail = len(line)
        self._open = None
        first = len(task.lines) == 1
        raw = line[task.start : task.end] if first else "\n".join([*task.lines[:-1], line[: task.end]])[task.start :]
        yield self._task(task, raw)
        rest = _next_task_offset(line, task.tail)
        if _HEAD.match(line, rest) or _JOIN.match(line, rest):
            self.repairs.append("two tasks stood on one line")
            yield from self._start(line[rest:], cut)
        elif _TAIL.match(line, task.tail):
            return
        elif _MEANT.match(line, rest):
            yield _unread_task(line[rest:])
        else:
            self._note(task.id, f"text after the task was left out: {_head(line[task.tail :])}")

    def _task(self, task: _Open, raw: str) -> PlanTask:
        arguments = parse_arguments(raw)
        for repair in arguments.repairs:
            self._note(task.id, repair)
        return PlanTask(task.id, task.name, arguments, self._take_thought())

    # -- small things --------------------------------------------------------------------------------------------------

    def _skip_thinking(self, line: str) -> bool:
        """Return whether a line belongs to the reasoning that some models write before they answer."""
        if self._first and line.strip():
            self._first = False
            self._thinking = line.lstrip().startswith("<think>")
        if not self._thinking:
            return False
        self._thinking = "</think>" not in line
        return True

    def _number(self, digits: str) -> int | None:
        if len(digits) > 6:
            self.repairs.append(f"a task numbered {_head(digits)} was left out")
            return None
        return int(digits)

    def _take_thought(self) -> str:
        thought, self._thought = self._thought, ""
        return thought

    def _note(self, number: int, what: str) -> None:
        self.repairs.append(f"task {number}: {what}" if number >= 0 else what)


def _walk(task: _Open, line: str, at: int) -> None:
    """Move a task's scan through a line; sets `end` and `tail` if the task's closing parenthesis is in it."""
    final = line.rfind(")")
    before = task.last
    while True:
        if task.quote:
            at = _leave_string(task, line, at)
            if task.quote:
                return
            before = task.quote or '"'
        mark = _MARK.search(line, at)
        if mark is None:
            break
        here, char, at = mark.start(), mark[0], mark.end()
        if char in QUOTES:
            if opens(line, here, before):
                task.quote = char * 3 if line.startswith(char * 3, here) else char
                at = here + len(task.quote)
        elif char in "([{":
            task.stack.append(char)
        elif char in ")]}":
            if task.stack:
                task.stack.pop()
            elif char == ")" and _may_end(line, at, here, final):
                task.end, task.tail = here, at
                return
    rest = line.rstrip()
    if rest:
        task.last = rest[-1]


def _leave_string(task: _Open, line: str, at: int) -> int:
    """Look for the end of the open string from `at` on; return the offset after it."""
    quote = task.quote
    if len(quote) == 3:
        end = line.find(quote, at)
        if end >= 0:
            task.quote, task.last = "", quote[0]
            return end + 3
        return len(line)
    while (mark := IN_STRING[quote].search(line, at)) is not None:
        at = mark.end()
        if mark[0] == quote and closes(line, mark.start()):
            task.quote, task.last = "", quote
            return at
    return len(line)


def _may_end(line: str, at: int, here: int, final: int) -> bool:
    """Return whether a closing parenthesis before `at` can end the task: text without quotes may contain others."""
    rest = _next_task_offset(line, at)
    if here == final or _TAIL.match(line, at) or _HEAD.match(line, rest) or _JOIN.match(line, rest):
        return True
    return here > 0 and line[here - 1] in QUOTES and _MEANT.match(line, at) is not None  # `f("x") and g("y")`


def _unread_task(line: str) -> PlanTask:
    return PlanTask(-1, "", Arguments([], line.strip()[:_SHOWN]), "", is_unread=True)


def _next_task_offset(line: str, at: int) -> int:
    """Return the offset of the next task on a line."""
    between = _BETWEEN.match(line, at)
    return between.end() if between else at


def _head(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:60] + "…")
