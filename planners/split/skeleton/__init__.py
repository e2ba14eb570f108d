"""Planner `skeleton`: an outline first, then all of its points at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from plait.core.awaited import JoinHandle
from plait.core.errors import PluginError
from plait.core.flow import Answerable, Flow, Line, StepFailed
from plait.core.ops import Plugin, Structured, Text
from plait.core.plan import Step
from plait.core.prompt import Prompt

from ..._shared.steps import Asker, shortened
from . import text as words

__all__ = ["Skeleton"]


class Skeleton(Flow):
    """Skeleton-of-Thought with its router, SoT-R (Ning et al., arXiv 2307.15337).

    Steps: `route` asks whether the answer is a list of independent points (A), a list whose points build on one another
    (B) or no list (C). Only A is split: `skeleton` writes 3 to 10 points of three to five words, `point-1` … `point-n`
    write one or two sentences each at the same time, and `text` puts them together. Everything else, a skeleton that
    cannot be read or has too few points, and a router or skeleton that fails, is one call, `direct`; `why` says so.

    Differs from the original: numbers count only at the start of a line; sub-points are not folded in; a point that
    fails leaves its heading, and the answer goes on; the prompts of all points differ in their last lines only, so a
    prefix cache reads question and skeleton once. The start of each answer (`1.`, then the point's heading) is written
    for the model, and in a chat also asked for in words, since not every server takes the start of a turn. Defaults:
    temperature 0 and blank lines between points, as there.
    """

    router: Literal["model", "off"] = "model"
    """`model`: ask before splitting. `off`: split every request (the original without its router)."""
    least: int = Field(default=3, ge=1)
    """Fewest points that are worth writing apart; with fewer it is one call."""
    most: int = Field(default=10, ge=1, le=100)
    """Most points; those beyond are left out."""
    router_tokens: int = Field(default=16, ge=1)
    """Most tokens of the router's answer. Raise it for a model that thinks before it answers."""
    skeleton_tokens: int = Field(default=256, ge=1)
    """Most tokens of the skeleton."""
    point_tokens: int = Field(default=128, ge=1)
    """Most tokens of a point."""
    serial_tokens: int = Field(default=1024, ge=1)
    """Most tokens of the one call that a request is not split for."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Of skeleton, points and the one call; 0 is greedy. The router is always greedy."""
    begin: bool = True
    """Write the start of skeleton and points for the model. Off for a model that thinks before it answers: its turn
    begins with its thoughts."""
    separator: str = "\n\n"
    """Between points: blank lines, or `"\\n"` as the original's batches have it."""
    tolerate: Literal["best-effort", "all"] = "best-effort"
    """`best-effort`: a point that fails is its heading alone. `all`: with the first that fails it is one call."""
    structured: bool = False
    """Let the engine hold the router to A, B or C, where it can."""
    stream: bool = False
    """Send the text of points while it is being written."""

    @model_validator(mode="after")
    def _range(self) -> Skeleton:
        if self.least > self.most:
            raise PluginError(f"the fewest points ({self.least}) are more than the most ({self.most})")
        return self

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the points put together, or the one call."""
        asker = Asker("skeleton", ctx.brief)
        refused = await self._refused(ctx, asker) if self.router == "model" else ""
        if refused:
            return self._direct(ctx, asker, f"one call: {refused}")
        try:
            outline = (await ctx.step(self._outline(asker))).result
            points = words.points(outline.text, self.most, cut=outline.finish == "length")
            if len(points) < self.least:
                note = f"one call: a skeleton of {len(points)} points, {self.least} are wanted"
                return self._direct(ctx, asker, note)
            async with ctx.scope() as inner:
                return await self._written(inner, asker, points)
        except StepFailed as error:
            return self._direct(ctx, asker, f"one call instead ({error})")

    async def _refused(self, ctx: Flow.Context, asker: Asker) -> str:
        """Return why the router will not have the request split, or nothing."""
        form = Structured(kind="choice", spec=["A", "B", "C"]) if self.structured else None
        prompt = words.ROUTER.format(question=asker.question)
        route = asker.step("route", prompt, max_tokens=self.router_tokens, form=form, label="independent points?")
        try:
            letter = words.letter((await ctx.step(route)).text)
        except StepFailed as error:
            return f"no router ({error})"
        reasons = {"A": "", "B": "B, its points build on one another", "C": "C, no list"}
        reason = reasons.get(letter or "", "neither A, B nor C")
        return reason and f"the router says {reason}"

    def _outline(self, asker: Asker) -> Step:
        ask = words.begin_in_words("1.", asker.brief.task.chat())
        return asker.step(
            "skeleton",
            words.SKELETON.format(question=asker.question, least=self.least, most=self.most, begin=ask),
            max_tokens=self.skeleton_tokens,
            temperature=self.temperature,
            begin="1." if self.begin else "",
            stop=(f"\n{self.most + 1}.",),
            label="skeleton",
        )

    def _written(self, ctx: Flow.Context, asker: Asker, points: Sequence[words.Point]) -> JoinHandle:
        """Make a call for each point, and the join that puts them together."""
        outline = "\n".join(map(str, points))
        shared = Text(text=words.SHARED.format(question=asker.question, skeleton=outline))
        calls: list[Line] = []
        entries: list[JsonValue] = []
        for point in points:
            head = str(point)
            begin = words.begin_in_words(head, asker.brief.task.chat())
            call = asker.step(
                f"point-{point.number}",
                (shared, Text(text=words.POINT.format(number=point.number, begin=begin))),
                max_tokens=self.point_tokens,
                temperature=self.temperature,
                begin=head if self.begin else "",
                stop=(f"\n{point.number + 1}.",),
                stream=self.stream,
                label=shortened(head),
            )
            calls.append(ctx.step(call))
            entry: dict[str, JsonValue] = {"head": f"{head}\n", "flows": True, "missing": head}
            entries.append({"branch": call.name, "echo": [head, point.text], **entry})
        note = f"{len(points)} points"
        merge = Plugin(name="stitch", options={"entries": entries, "separator": self.separator, "note": note})
        return ctx.join(calls, merge, tolerate=self.tolerate, name="text", label=note)

    def _direct(self, ctx: Flow.Context, asker: Asker, note: str) -> Answerable:
        return ctx.plan(asker.direct(self._direct_prompt(), note))

    def _direct_prompt(self) -> Prompt:
        return Prompt(max_tokens=self.serial_tokens, temperature=self.temperature, stream=self.stream)
