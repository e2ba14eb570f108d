"""Planner `skeleton`: write an outline, then all its points in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PluginError
from plait.core.flow import Answerable, Flow, StepFailed, Trajectory
from plait.core.ops import Plugin, Text
from plait.core.plan import Step
from plait.core.sampling import StructuredOutput
from plait.core.step_handles import JoinHandle
from plait.core.vocabulary import MaxBranches, MinBranches, OnFailure, Separator

from ..._shared.steps import Asker, shorten
from . import text as words

__all__ = ["Skeleton"]

_LETTERS = StructuredOutput(kind="choice", spec=["A", "B", "C"], required=False)


class Skeleton(Flow):
    """Skeleton-of-Thought with its router, SoT-R (Ning et al., arXiv 2307.15337).

    Steps: `route` asks whether the answer is a list of independent points (A), a list whose points build on one another
    (B) or no list (C). Only A is split: `skeleton` writes 3 to 10 points of three to five words, `point-1` … `point-n`
    write one or two sentences each in parallel, and `text` joins them. For B and C, after a failed router or skeleton,
    and if the skeleton is unreadable or too short, one call, `direct`, answers; `why` reports it.

    Differs from the original: numbers count only at the start of a line; sub-points are not folded in; a failed point
    leaves its heading, and the answer continues; the points' prompts differ only in their last lines, so question and
    skeleton are prefilled once. plait writes the start of each answer (`1.`, then the point's heading) for the model.
    In a chat the prompt also requests it, since not every server takes a started turn. Defaults: temperature 0 and
    blank lines between points, as in the original.
    """

    fidelity = Fidelity("variant", "our prompts, theirs as templates", paper="2307.15337")

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
    part: Annotated[CallConfig, Uses("number", "text", "begin")] = Field(
        default=CallConfig(max_tokens=128, temperature=0.0),
        description="A point. Its template, behind question and skeleton, has `{number}`, `{text}`, the heading, "
        "and `{begin}`, an instruction how to begin. `begin` is the heading; leave it empty for a model that "
        "thinks first.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="The one call for a request that is not split. Its template has `{question}`.",
    )
    criterion: Literal["judge", "all"] = Field(
        default="judge",
        description="What decides whether a request is split: the `judge`, or nothing: `all` are (the original "
        "without its router).",
    )
    min_branches: MinBranches = 3
    max_branches: MaxBranches = Field(default=10, le=100)
    separator: Separator = "\n\n"
    on_failure: OnFailure = "best-effort"

    @model_validator(mode="after")
    def _range(self) -> Skeleton:
        if self.min_branches > self.max_branches:
            raise PluginError(f"the fewest points ({self.min_branches}) are more than the most ({self.max_branches})")
        return self

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the joined points, or the single call."""
        asker = Asker("skeleton", ctx.brief)
        refused = await self._rejection_reason(ctx, asker) if self.criterion == "judge" else ""
        if refused:
            return self._direct(ctx, asker, f"one call: {refused}")
        try:
            outline = (await ctx.step(self._outline(asker))).result
            points = words.read_points(outline.text, self.max_branches, cut=outline.finish == "length")
            if len(points) < self.min_branches:
                note = f"one call: a skeleton of {len(points)} points, {self.min_branches} are wanted"
                return self._direct(ctx, asker, note)
            async with ctx.scope() as inner:
                return await self._write_points(inner, asker, points)
        except StepFailed as error:
            return self._direct(ctx, asker, f"one call instead ({error})")

    async def _rejection_reason(self, ctx: Flow.Context, asker: Asker) -> str:
        """Return the reason why the router does not split the request, or an empty text."""
        form = _LETTERS if self.judge.form == "choice" else self.judge.form
        pieces = self.judge.parts(words.ROUTER, question=asker.question)
        route = asker.step("route", pieces, self.judge, form=form, label="independent points?")
        try:
            letter = words.read_letter((await ctx.step(route)).text)
        except StepFailed as error:
            return f"no router ({error})"
        reasons = {"A": "", "B": "B, its points build on one another", "C": "C, no list"}
        reason = reasons.get(letter or "", "neither A, B nor C")
        return reason and f"the router says {reason}"

    def _outline(self, asker: Asker) -> Step:
        pieces = self.outline.parts(
            words.SKELETON,
            question=asker.question,
            least=str(self.min_branches),
            most=str(self.max_branches),
            begin=words.begin_request("1.", asker.brief.task.chat()),
        )
        begin, stop = _begin(self.outline, "1."), self.outline.stop or (f"\n{self.max_branches + 1}.",)
        return asker.step("skeleton", pieces, self.outline, begin=begin, stop=stop, label="skeleton")

    def _write_points(self, ctx: Flow.Context, asker: Asker, points: Sequence[words.Point]) -> JoinHandle:
        """Return a call for each point, and the join of their texts."""
        outline = "\n".join(map(str, points))
        shared = Text(text=words.SHARED.format(question=asker.question, skeleton=outline))
        calls: list[Trajectory] = []
        entries: list[JsonValue] = []
        for point in points:
            head = str(point)
            begin = words.begin_request(head, asker.brief.task.chat())
            own = self.part.parts(words.POINT, number=str(point.number), text=point.text, begin=begin)
            call = asker.step(
                f"point-{point.number}",
                (shared, *own),
                self.part,
                begin=_begin(self.part, head),
                stop=self.part.stop or (f"\n{point.number + 1}.",),
                label=shorten(head),
            )
            calls.append(ctx.step(call))
            entry: dict[str, JsonValue] = {"head": f"{head}\n", "flows": True, "missing": head}
            entries.append({"branch": call.name, "echo": [head, point.text], **entry})
        note = f"{len(points)} points"
        merge = Plugin(name="stitch", options={"parts": entries, "separator": self.separator, "note": note})
        return ctx.join(calls, merge, on_failure=self.on_failure, name="text", label=note)

    def _direct(self, ctx: Flow.Context, asker: Asker, note: str) -> Answerable:
        return ctx.plan(asker.direct(self.answer, note))


def _begin(prompt: CallConfig, ours: str) -> str:
    """Return the start of the model's turn: the default, unless the prompt sets one, which may be empty."""
    return ours if prompt.begin is None else prompt.begin
