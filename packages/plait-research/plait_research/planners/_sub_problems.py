"""Reads a list of sub-problems with difficulties and needs, while a model writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

HARDEST = 5
MAX_REPAIRS = 100
MAX_LINE = 2_000
"""Characters of a line that are looked at."""

_NUMBERED = re.compile(r"[ \t>#*_+-]{0,12}(\d{1,3})[*_]{0,3}[.):][*_]{0,3}(?!\d)[ \t]*(\S.*)")
_GROUP = re.compile(r"\[([^\[\]]{0,300})\]|\(([^()]{0,300})\)")
_DIFFICULTY = re.compile(
    r"\b(?:difficulty|difficult|level|hardness)\b\W{0,4}(\d{1,9}|easy|simple|medium|moderate|hard)\b"
)
_NEEDS = re.compile(
    r"\b(?:needs?|depends?(?:[ _]on)?|dependenc(?:y|ies)|deps?|after|requires?|uses?)\b[^\d;|]{0,12}"
    r"((?:\d{1,9}(?:\s{0,3}(?:,|and|&|\+|-)?\s{0,3}[#$]?)?){1,50})"
)
_MENTION = re.compile(r"\b(?:difficulty|difficult|level|hardness|needs?|depends?|dependenc(?:y|ies)|deps?|requires?)\b")
_WORDS = {"easy": 1, "simple": 1, "medium": 3, "moderate": 3, "hard": 5}


class Part(NamedTuple):
    """One sub-problem."""

    number: int
    text: str
    difficulty: int
    """1 to 5; 5 where nothing, or nonsense, was said."""
    needs: tuple[int, ...]
    """Numbers of earlier sub-problems."""


@dataclass(slots=True)
class GraphText:
    """Reads a list of sub-problems in pieces of any size; each line is a sub-problem the moment it is complete."""

    most: int
    parts: dict[int, Part] = field(default_factory=dict[int, Part])
    repairs: list[str] = field(default_factory=list[str])
    _rest: list[str] = field(default_factory=list[str])
    _thinking: bool = False

    def feed(self, delta: str) -> list[Part]:
        """Return the sub-problems whose lines are complete now."""
        *lines, rest = delta.split("\n")
        parts: list[Part] = []
        for line in lines:
            parts += self._line("".join((*self._rest, line)))
            self._rest.clear()
        if rest:
            self._rest.append(rest)
        return parts

    def close(self, cut: bool = False) -> Sequence[Part]:
        """Return the sub-problem of the last line; one that a limit has cut off is left out."""
        rest = "".join(self._rest)
        self._rest.clear()
        if cut and rest.strip():
            self.repairs.append("the last line was cut off")
            return []
        return self._line(rest)

    def _line(self, line: str) -> Sequence[Part]:
        line = line.rstrip("\r")
        if "<think>" in line or "</think>" in line or self._thinking:
            self._thinking = "</think>" not in line
            line = "" if self._thinking else line.rpartition("</think>")[2]
        heading = _NUMBERED.fullmatch(line[:MAX_LINE].strip())
        if heading is None:
            return ()
        number = int(heading[1])
        if number in self.parts or number < 1:
            if len(self.repairs) < MAX_REPAIRS:
                self.repairs.append(f"a second line with the number {number} is left out")
            return ()
        if len(self.parts) >= self.most:
            warning = f"sub-problems after the first {self.most} are left out"
            if warning not in self.repairs:
                self.repairs.append(warning)
            return ()
        part = self._part(number, heading[2])
        if not part.text:
            return ()
        self.parts[number] = part
        return (part,)

    def _part(self, number: int, rest: str) -> Part:
        notes: list[str] = []

        def take(group: re.Match[str]) -> str:
            inside = (group[1] if group[1] is not None else group[2]).lower()
            if _MENTION.search(inside) is None:
                return group[0]
            notes.append(inside)
            return " "

        text = " ".join(_GROUP.sub(take, rest).split()).strip("*_ -–—:|")
        inside = "; ".join(notes)
        level = _DIFFICULTY.search(inside)
        difficulty = HARDEST
        if level is not None:
            given = _WORDS.get(level[1]) or int(level[1])
            difficulty = given if 1 <= given <= HARDEST else HARDEST
        if level is None or difficulty != (_WORDS.get(level[1]) or int(level[1])):
            self.repairs.append(f"sub-problem {number} has no difficulty from 1 to 5: it counts as {HARDEST}")
        wanted = [int(digits) for need in _NEEDS.finditer(inside) for digits in re.findall(r"\d+", need[1])]
        needs = tuple(dict.fromkeys(need for need in wanted if need in self.parts))
        for later in dict.fromkeys(need for need in wanted if need not in self.parts):
            self.repairs.append(f"sub-problem {number} needs {later}, which does not come before it")
        return Part(number, text, difficulty, needs)
