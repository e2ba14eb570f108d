"""Prompts of the planner `skeleton`, and the parsers of its answers: the router's letter and numbered points."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..._shared.steps import strip_reasoning

MAX_LINE = 2_000
"""Maximum number of a line's characters that are read."""

ROUTER = """\
{question}

Do not answer yet. Sort the question above by the shape of its best answer.

A: a list of several points that do not depend on one another, so that each can be written without seeing the text of \
the others (tips, reasons, properties, examples).
B: a list whose points build on one another (steps of a calculation or proof, a story, code, instructions in order).
C: no list: a short or a single answer.

Reply with one letter, A, B or C, and nothing else.
"""
SKELETON = """\
{question}

Do not answer yet. Write only the skeleton of the answer: a numbered list of {least} to {most} points, each of three \
to five words, that together cover it. No text before or after, no sub-points, no details.{begin}
"""
SHARED = """\
{question}

The answer is written by several writers at the same time, one for each point of this skeleton:

{skeleton}

"""
POINT = """\
Write point {number} and nothing else, very briefly, in one or two sentences. Do not go on with other points.{begin}
"""
_BEGIN = ' Begin with "{begin}".'
_ALONE = re.compile(r"\W*\b([ABC])\b(?=\s*(?:$|[.):,;*\]`\"'–—-]))")
_SAID = re.compile(
    r"\b(?i:answer|choice|category|class|option|type|letter|it)\W{0,4}(?:is\W{0,4})?\b([ABC])\b(?!\s+[a-z])"
)
_NUMBERED = re.compile(r"[ \t>#*_+-]{0,12}(\d{1,6})[*_]{0,3}[.):][*_]{0,3}(?![\d])[ \t]*(\S.*)?")
_INLINE = re.compile(r"(?:(?<=\s)|(?<=[;,.]))(\d{1,3})[.)]\s+(?=\S)")


class Point(NamedTuple):
    """One point of a skeleton."""

    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.number}. {self.text}"


def begin_request(begin: str, chat: bool) -> str:
    """Return the request to begin with a text, for servers where plait cannot start the model's turn."""
    return _BEGIN.format(begin=begin) if chat else ""


def read_letter(text: str) -> str | None:
    """Return the router's letter, written alone or as `The answer is B`, or `None`. "A list …" does not count as A."""
    text = strip_reasoning(text[:MAX_LINE]).strip()
    alone = _ALONE.match(text)
    if alone is not None:
        return alone[1]
    marks = _SAID.findall(text)
    return marks[-1] if marks else None


def read_points(text: str, most: int, cut: bool = False) -> list[Point]:
    """Return at most `max_branches` points of a skeleton in the order of their numbers, the first point of each number.

    As in Skeleton-of-Thought (arXiv 2307.15337), plait began the assistant's text with `1.`; the parser detects whether
    the model repeated or continued it. Unlike the published expression, a number counts only at the start of a line
    ("about 3.5 ideas" does not start point 3), and sub-points (`1.1.`) do not count. `cut` means that a limit ended the
    text; an incomplete last line is then dropped.
    """
    lines = [line[:MAX_LINE].rstrip("\r") for line in strip_reasoning(text).split("\n")]
    if cut and len(lines) > 1:
        lines.pop()
    first = next((line for line in lines if line.strip()), "")
    two = any(_has_number(line, 2) for line in lines) or {"2", "3"} <= {mark[1] for mark in _INLINE.finditer(first)}
    if two and _NUMBERED.fullmatch(first.strip()) is None and not any(_has_number(line, 1) for line in lines):
        lines[lines.index(first)] = f"1. {first.strip()}"  # the model continued the `1.` that plait wrote
    points: dict[int, str] = {}
    for line in lines:
        numbered = _NUMBERED.fullmatch(line.strip())
        if numbered is None or numbered[2] is None:
            continue
        number, rest = int(numbered[1]), _strip_emphasis(numbered[2])
        if rest and number >= 1:
            points.setdefault(number, rest)
    if len(points) == 1:
        points = _read_one_line(*next(iter(points.items())))
    return [Point(number, points[number]) for number in sorted(points)][:most]


def _read_one_line(number: int, text: str) -> dict[int, str]:
    """Return the points of a skeleton on a single line: `1. Roots 2. Stem 3. Leaves`."""
    points = {number: text}
    start, at = 0, number
    for mark in _INLINE.finditer(text):
        if int(mark[1]) == at + 1:
            points[at] = _strip_emphasis(text[start : mark.start()]).rstrip(" ;,")
            start, at = mark.end(), at + 1
            points[at] = _strip_emphasis(text[start:])
    return {key: value for key, value in points.items() if value}


def _has_number(line: str, number: int) -> bool:
    heading = _NUMBERED.fullmatch(line.strip())
    return heading is not None and int(heading[1]) == number


def _strip_emphasis(text: str) -> str:
    """Return a text without emphasis around it."""
    text = text.strip()
    for mark in ("**", "__", "*", "`"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    return text.replace("**", "") if text.count("**") % 2 else text
