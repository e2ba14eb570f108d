"""Planner `skeleton`: write an outline, then all its points in parallel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Flow, StepFailed, Trajectory
from plait.core.ops import Plugin, Text
from plait.core.plan import Step
from plait.core.sampling import StructuredOutput
from plait.core.step_handles import JoinHandle
from plait.core.vocabulary import MaxBranches, OnFailure

from ..._shared.steps import Asker, shorten, strip_reasoning

__all__ = ["Skeleton"]


MAX_LINE = 2_000
"""Maximum number of a line's characters that are read."""
MIN_POINTS = 3
"""Minimum number of points that are worth writing in parallel."""

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


_LETTERS = StructuredOutput(kind="choice", spec=["A", "B", "C"], required=False)


class Skeleton(Flow):
    """Skeleton-of-Thought with its router, SoT-R (Ning et al., arXiv 2307.15337).

    Steps: `route` asks whether the answer is a list of independent points (A), a list whose points build on one another
    (B) or no list (C). Only A is split: `skeleton` writes 3 to 10 points of three to five text, `point-1` … `point-n`
    write one or two sentences each in parallel, and `text` joins them. For B and C, after a failed router or skeleton,
    and if the skeleton is unreadable or too short, one call, `direct`, answers; `why` reports it.

    Differs from the original: numbers count only at the start of a line; sub-points are not folded in; a failed point
    leaves its heading, and the answer continues; the points' prompts differ only in their last lines, so question and
    skeleton are prefilled once. plait writes the start of each answer (`1.`, then the point's heading) for the model.
    In a chat the prompt also requests it, since not every server takes a started turn. Defaults: temperature 0 and
    blank lines between points, as in the original.
    """

    fidelity = Fidelity("variant", "our prompts, theirs given whole", ("sot-prompts",), "2307.15337")

    answer_calls: ClassVar[tuple[str, ...]] = ("part", "answer")

    judge: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(thinking="off", max_tokens=16, temperature=0.0, form="choice"),
        description="The question whether to split. Its template has `{question}`. `form=choice`: an engine that "
        "can allows nothing but A, B or C; `form=null`: anything. Raise `max_tokens` for a model that thinks before "
        "it answers.",
    )
    outline: Annotated[CallConfig, Uses("question", "least", "most", "begin")] = Field(
        default=CallConfig(thinking="off", max_tokens=256, temperature=0.0),
        description="The skeleton. Its template has `{question}`, `{least}`, `{most}`, and `{begin}`, an "
        "instruction how to begin. `begin` is the list's start; leave it empty for a model that thinks first.",
    )
    part: Annotated[CallConfig, Uses("number", "text", "begin", "question", "skeleton")] = Field(
        default=CallConfig(max_tokens=128, temperature=0.0),
        description="A point. Its template, behind question and skeleton, has `{number}`, `{text}`, the heading, "
        "and `{begin}`, an instruction how to begin. A template with `{question}` (and `{skeleton}`) is the whole "
        "prompt, as the authors' files have it. `begin` is the heading; leave it empty for a model that thinks first.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="The one call for a request that is not split. Its template has `{question}`.",
    )
    criterion: Literal["judge", "all"] = Field(
        default="judge",
        description="Criterion for splitting a request: the `judge`, or nothing: `all` are (the original "
        "without its router).",
    )
    max_branches: MaxBranches = Field(default=10, ge=MIN_POINTS, le=100)
    on_failure: OnFailure = "best-effort"

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the joined points, or the single call."""
        asker = Asker("skeleton", ctx.brief)
        refused = await self._rejection_reason(ctx, asker) if self.criterion == "judge" else ""
        if refused:
            return self._direct(ctx, asker, f"one call: {refused}")
        try:
            outline = (await ctx.step(self._outline(asker))).result
            points = read_points(outline.text, self.max_branches, cut=outline.finish == "length")
            if len(points) < MIN_POINTS:
                note = f"one call: a skeleton of {len(points)} points, {MIN_POINTS} are wanted"
                return self._direct(ctx, asker, note)
            async with ctx.scope() as inner:
                return await self._write_points(inner, asker, points)
        except StepFailed as error:
            return self._direct(ctx, asker, f"one call instead ({error})")

    async def _rejection_reason(self, ctx: Flow.Context, asker: Asker) -> str:
        """Return the reason why the router does not split the request, or an empty text."""
        form = _LETTERS if self.judge.form == "choice" else self.judge.form
        pieces = self.judge.parts(ROUTER, question=asker.question)
        route = asker.step("route", pieces, self.judge, form=form, label="independent points?")
        try:
            letter = read_letter((await ctx.step(route)).text)
        except StepFailed as error:
            return f"no router ({error})"
        reasons = {"A": "", "B": "B, its points build on one another", "C": "C, no list"}
        reason = reasons.get(letter or "", "neither A, B nor C")
        return reason and f"the router says {reason}"

    def _outline(self, asker: Asker) -> Step:
        pieces = self.outline.parts(
            SKELETON,
            question=asker.question,
            least=str(MIN_POINTS),
            most=str(self.max_branches),
            begin=begin_request("1.", asker.brief.task.chat()),
        )
        begin, stop = _begin(self.outline, "1."), self.outline.stop or (f"\n{self.max_branches + 1}.",)
        return asker.step("skeleton", pieces, self.outline, begin=begin, stop=stop, label="skeleton")

    def _write_points(self, ctx: Flow.Context, asker: Asker, points: Sequence[Point]) -> JoinHandle:
        """Return a call for each point, and the join of their texts."""
        outline = "\n".join(map(str, points))
        shared = Text(text=SHARED.format(question=asker.question, skeleton=outline))
        whole = "{question}" in (self.part.template or "")
        calls: list[Trajectory] = []
        entries: list[JsonValue] = []
        for point in points:
            head = str(point)
            begin = begin_request(head, asker.brief.task.chat())
            fields = {"begin": begin, "question": asker.question, "skeleton": outline}
            own = self.part.parts(POINT, number=str(point.number), text=point.text, **fields)
            call = asker.step(
                f"point-{point.number}",
                own if whole else (shared, *own),
                self.part,
                begin=_begin(self.part, head),
                stop=self.part.stop or (f"\n{point.number + 1}.",),
                label=shorten(head),
            )
            calls.append(ctx.step(call))
            entry: dict[str, JsonValue] = {"head": f"{head}\n", "flows": True, "missing": head}
            entries.append({"branch": call.name, "echo": [head, point.text], **entry})
        note = f"{len(points)} points"
        merge = Plugin(name="stitch", options={"parts": entries, "note": note})
        return ctx.join(calls, merge, on_failure=self.on_failure, name="text", label=note)

    def _direct(self, ctx: Flow.Context, asker: Asker, note: str) -> Answerable:
        return ctx.plan(asker.direct(self.answer, note))


def _begin(prompt: CallConfig, ours: str) -> str:
    """Return the start of the model's turn: the default, unless the prompt sets one, which may be empty."""
    return ours if prompt.begin is None else prompt.begin
