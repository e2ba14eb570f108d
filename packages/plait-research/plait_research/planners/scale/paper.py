"""SCALE as its authors' code has it: JSON outlines, one of them picked, a score for each step, the steps in order."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, field_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.flow import Answerable, Context, Flow
from plait.core.step_handles import Pieces, StepFailed, Trajectory
from plait.core.vocabulary import MaxBranches, N, Records, Threshold, Width

from ...learning_planner import LearningPlanner

__all__ = ["ScaleOptions"]


class ScaleOptions(LearningPlanner, Flow):
    """The fields of `Scale`."""

    answer_calls: ClassVar[tuple[str, ...]] = ("hard",)

    outline: Annotated[CallConfig, Uses("question", "most")] = Field(
        default=CallConfig(thinking="off", max_tokens=512, temperature=0.6),
        description="An outline. Its template has `{question}` and `{most}`, the most steps.",
    )
    probe: Annotated[CallConfig, Uses("question", "plans")] = Field(
        default=CallConfig(thinking="off"), description="The question which of `{plans}` is best."
    )
    judge: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(thinking="off"),
        description="The question how difficult a step is, in one digit, behind the step's own prompt.",
    )
    part: Annotated[CallConfig, Uses("text")] = Field(
        default=CallConfig(max_tokens=256, temperature=0.6, begin="no-thinking"),
        description="An easy step. Its template, behind the results that it builds on, has `{text}`, the step.",
    )
    hard: Annotated[CallConfig, Uses("text")] = Field(
        default=CallConfig(max_tokens=2048, temperature=0.6),
        description="A hard step, and the answer. Give it a stronger `model`, if there is one.",
    )
    criterion: Literal["records", "score"] = Field(
        default="records",
        description="Criterion for a step's effort: `records` of its difficulty, or the model's `score` "
        "as in the authors' code.",
    )
    n: N = Field(default=4, le=9)
    max_branches: MaxBranches = Field(default=8, ge=2, le=100)
    records: Records = ()
    threshold: Threshold = Field(default=0.9, ge=0.0, le=1.0)
    width: Width = Field(default=1, le=64)

    @field_validator("records")
    @classmethod
    def _pairs(cls, records: Records) -> Records:
        if any(len(record) != 2 for record in records):
            raise ValueError("a record is a difficulty in [0, 1], and 1 where the easy way was right, else 0")
        return records

    def easy(self, ctx: Context) -> CallConfig:
        """Return how an easy step is asked: a text without roles has no turn that could begin."""
        return self.part if ctx.brief.task.chat() else self.part.model_copy(update={"begin": None})


TRIES = 3
"""How often a reply is asked for that cannot be read."""
LAST = 0.9
"""The difficulty of the last step, whatever the model says."""
_PLAN = """\
{question}

Do not answer yet. Split the work into at most {most} smaller problems, each of which builds on those before it, and \
say what each is to find, not how. Write JSON alone: {"step1": "…", "step2": "…"}
"""
_PICK = "{question}\n\nWhich of these outlines leads to the right answer? Write its name alone.\n\n{plans}\n"
_SCORE = "\n\nHow difficult is the next step? A number alone, from 0 (done at once) to 1 (few can do it at all):\n"
_STEP = "\n\nNow: {text}\n"
_LONE = re.compile(r"(?<!\\)\\(?!\\)")
T = TypeVar("T")


async def run_in_order(options: ScaleOptions, ctx: Context, question: str) -> Answerable:
    """Pick an outline, score its steps, do them one after the other."""
    count = options.n if "n" in options.model_fields_set else 8
    pieces = options.outline.parts(_PLAN, question=question, most=str(options.max_branches))
    tried = [_ask_until_readable(ctx, pieces, options.outline, read_steps, f"outline {i + 1}") for i in range(count)]
    outlines = [outline for outline in await ctx.gather(*tried) if outline]
    steps = await _pick_outline(options, ctx, question, outlines)
    if not steps:
        return ctx.answer(await ctx.think([question], options.hard, label="answer"), "no outline: one hard step")
    steps[-1] = question
    above = options.threshold if "threshold" in options.model_fields_set else 0.5
    scores = [await _score_step(options, ctx, question, steps, place) for place in range(len(steps) - 1)]
    done: list[Trajectory] = []
    for text, score in zip(steps, [*scores, LAST], strict=True):
        prompt = options.hard if score > above else options.easy(ctx)
        before = [piece for pair in zip(steps, done, strict=False) for piece in _step_and_answer(*pair)]
        pieces = [question, *before, *prompt.parts(_STEP, text=text)]
        done.append(await ctx.think(pieces, prompt, label=f"step {len(done) + 1} ({score:.2f})"))
    hard = sum(score > above for score in [*scores, LAST])
    return ctx.answer(done[-1], f"{len(steps)} steps in order: {len(steps) - hard} easy, {hard} hard", name="answered")


def read_steps(text: str) -> list[str] | None:
    """Return the steps of an outline in JSON, or `None` where its keys are not step1, step2 and so on.

    >>> read_steps('```json\\n{"step1": "add", "step2": "halve"}\\n```')
    ['add', 'halve']
    """
    inner = text.split("```json")[-1].split("```")[0].strip()
    try:
        steps = json.loads(_LONE.sub(r"\\\\", inner))
        return [steps[f"step{number}"] for number in range(1, len(steps) + 1)] or None
    except (ValueError, TypeError, KeyError):
        return None


async def _pick_outline(options: ScaleOptions, ctx: Context, question: str, outlines: Sequence[list[str]]) -> list[str]:
    """Return the outline that the model names; none where it names none in a few tries."""
    told = [json.dumps({f"step{i}": step for i, step in enumerate(steps, 1)}) for steps in outlines]
    names = [f"version{number}" for number in range(1, len(outlines) + 1)]
    plans = "\n".join(f"{name}: {outline}" for name, outline in zip(names, told, strict=True))
    pieces = options.probe.parts(_PICK, question=question, plans=plans)
    picked = await _ask_until_readable(
        ctx, pieces, options.probe, lambda text: text.strip() if text.strip() in names else None, "which outline?"
    )
    return list(outlines[names.index(picked)]) if picked else []


async def _score_step(options: ScaleOptions, ctx: Context, question: str, steps: Sequence[str], place: int) -> float:
    """Return how difficult the model says a step is; 1 where it says no number in a few tries."""
    outlined = f"{question}\n\nSteps before: {' '.join(steps[:place])}\nNext step: {steps[place]}"
    pieces = [outlined, *options.judge.parts(_SCORE)]
    score = await _ask_until_readable(ctx, pieces, options.judge, _read_share, f"how difficult is step {place + 1}?")
    return 1.0 if score is None else score


def _read_share(text: str) -> float | None:
    try:
        value = float(text.strip())
    except ValueError:
        return None
    return value if 0 <= value <= 1 and math.isfinite(value) else None


def _step_and_answer(step: str, line: Trajectory) -> tuple[str, Trajectory]:
    """Return a step that is done, with its answer."""
    return f"\n\n{step}\nstep answer: ", line


async def _ask_until_readable(
    ctx: Context, pieces: Pieces, prompt: CallConfig, read: Callable[[str], T | None], label: str
) -> T | None:
    """Ask until the reply can be read, a few times."""
    for _ in range(TRIES):
        try:
            line = await ctx.think(pieces, prompt, label=label)
        except StepFailed:
            continue
        if (value := read(line.text)) is not None:
            return value
    return None
