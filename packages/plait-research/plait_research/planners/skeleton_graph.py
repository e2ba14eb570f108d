"""Planner `skeleton_graph`: sub-problems with dependencies and difficulties, each started as soon as it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Join, Part as Piece, Plugin, Ref, Text
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.vocabulary import MaxBranches, OnFailure, Threshold
from plait.planners._shared.steps import Asker, OnResult, shorten, through

from ._sub_problems import HARDEST, GraphText, Part

__all__ = ["SkeletonGraph"]

MIN_PARTS = 2
"""Minimum number of sub-problems that are worth doing apart."""


class SkeletonGraph(Planner):
    """Adaptive Skeleton Graph Decoding, later Plato (Jin et al., arXiv 2402.12280).

    Steps: `graph` writes one line for each sub-problem, with its difficulty (1 to 5) and the sub-problems it needs;
    `part-1` … `part-n` work on them, each reading the question, its own line and the answers of those it needs, and
    starting when these are there, while the list is still being written; `text` puts the parts together in order.
    A list of fewer than two lines, or a graph that fails, is one call, `direct`; `why` reports it.

    The difficulty chooses between two ways to ask, `part` and `hard`, with the threshold of SCALE (arXiv 2512.00466:
    scores in [0, 1] above 0.5 get the slow way of thinking), here of (difficulty - 1) / 4. Differs from the papers,
    which leave the scale of the difficulty and the treatment of nonsense open: a sub-problem without a difficulty
    counts as 5; a need that names no earlier sub-problem is dropped and noted on the label of `text`; a sub-problem
    whose need failed fails too. Default: temperature 0.
    """

    fidelity = Fidelity("variant", "our prompts and scale of difficulty", paper="2402.12280")

    answer_calls: ClassVar[tuple[str, ...]] = ("part", "hard", "summary", "answer")

    plan: Annotated[CallConfig, Uses("question", "least", "most")] = Field(
        default=CallConfig(thinking="off", max_tokens=512, temperature=0.0, stream=True),
        description="The list of sub-problems. Its template, such as the authors' own, has `{question}`, `{least}` "
        "and `{most}`. What it asks for is read as `number. [difficulty D; needs N] text`.",
    )
    part: Annotated[CallConfig, Uses("text", "question", "known")] = Field(
        default=CallConfig(max_tokens=256, temperature=0.0),
        description="A sub-problem. Its template, behind the question and the answers that it needs, has `{text}`. "
        "A template with `{question}` (and `{known}`, these answers) is the whole prompt. "
        "It can end in a switch for a hybrid model, such as ` /no_think`, or `model` can be a smaller one.",
    )
    hard: Annotated[CallConfig, Uses("text", "question", "known")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="The same of a hard one, which is thought through first.",
    )
    summary: Annotated[CallConfig, Uses("question", "parts")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="The answer written from the parts, with `answer_from=summary`. Its template has `{question}` and "
        "`{parts}`.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="The one call for a request that is not split. Its template has `{question}`.",
    )
    threshold: Threshold = Field(default=0.5, ge=0.0, le=1.0)
    max_branches: MaxBranches = Field(default=10, ge=MIN_PARTS, le=100)
    answer_from: Literal["stitch", "summary"] = Field(
        default="stitch",
        description="Source of the answer. `stitch`: the parts in order. `summary`: what one more call writes "
        "from them.",
    )
    on_failure: OnFailure = "all"

    def start(self, brief: PlanningContext) -> Plan:
        """Return the step that writes the list, and what takes its place if that fails."""
        asker = Asker("skeleton_graph", brief)
        fields = {"question": asker.question, "least": str(MIN_PARTS), "most": str(self.max_branches)}
        step = asker.step(
            "graph",
            self.plan.parts(PLAN, **fields),
            self.plan,
            stop=self.plan.stop or (f"\n{self.max_branches + 1}.",),
            expands=True,
            role="graph",
            label="sub-problems",
        )
        end = through("answer", "graph", expands=True, allow_failure=True, role="answer")
        return Plan(steps=(step, end), output="answer")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return a reader of the list while it is written, or of how it all ended."""
        asker = Asker("skeleton_graph", brief)
        match step.role:
            case "graph":
                return _GraphReader(self, asker)
            case "answer":
                instead = self.answer
                return OnResult(
                    lambda result: (
                        asker.direct(instead, f"one call instead ({result.why})") if result.value is None else None
                    )
                )
            case _:
                return super().reader(step, brief)

    def call(self, asker: Asker, part: Part, before: Mapping[int, Part]) -> Step:
        """Return the call that works on one sub-problem."""
        known: list[Piece] = []
        for number in part.needs:
            known.append(Text(text=f"{number}. {before[number].text}\n"))
            known += [Ref(step=f"part-{number}"), Text(text="\n\n")]
        hard = (part.difficulty - 1) / (HARDEST - 1) > self.threshold
        prompt, default = (self.hard, HARD) if hard else (self.part, PART)
        grade = f"difficulty {part.difficulty}" + (f", {prompt.model}" if prompt.model else "")
        label = shorten(f"{part.text} ({grade})", 90)
        own = prompt.parts(default, text=part.text, question=asker.question, known=known)
        if "{question}" not in (prompt.template or ""):
            shared = Text(text=SHARED.format(question=asker.question))
            own = (shared, *((Text(text=KNOWN), *known) if known else ()), *own)
        return asker.step(f"part-{part.number}", own, prompt, label=label)

    def ending(self, asker: Asker, text: GraphText) -> Plan:
        """Return the plan that joins the parts, or a single call if there are too few parts."""
        parts = sorted(text.parts.values())
        if len(parts) < MIN_PARTS:
            note = f"one call: {len(parts)} sub-problems, {MIN_PARTS} are wanted"
            return asker.direct(self.answer, note)
        names = tuple(f"part-{part.number}" for part in parts)
        entries: list[JsonValue] = []
        for name, part in zip(names, parts, strict=True):
            head = f"{part.number}. {part.text}\n" if self.answer_from == "summary" else ""
            entries.append({"branch": name, "head": head, "echo": [part.text]})
        note = f"{len(parts)} sub-problems in {_depth(text.parts)} waves"
        merge = Plugin(name="stitch", options={"parts": entries, "note": note})
        label = note + (f"; {shorten('; '.join(text.repairs), 160)}" if text.repairs else "")
        join = Step(name="text", op=Join(merge=merge, on_failure=self.on_failure), needs=names, label=label)
        if self.answer_from == "stitch":
            return Plan(steps=(join,), output="text")
        pieces = self.summary.parts(SUMMARY, question=asker.question, parts=(Ref(step="text"),))
        final = asker.step("final", pieces, self.summary, label="synthesis")
        merge = Plugin(name="synthesis-or-vote", options={"note": note})
        end = Step(name="answered", op=Join(merge=merge, on_failure="best-effort"), needs=("final", "text"))
        return Plan(steps=(join, final, end), output="answered")


class _GraphReader:
    """Makes a call of every sub-problem the moment its line is complete."""

    def __init__(self, planner: SkeletonGraph, asker: Asker) -> None:
        self.planner, self.asker = planner, asker
        self.text = GraphText(planner.max_branches)

    def feed(self, delta: str) -> Sequence[Plan]:
        steps = self._steps(self.text.feed(delta))
        return (Plan(steps=steps),) if steps else ()

    def close(self, result: Result) -> Plan | None:
        steps = self._steps(self.text.close(cut=result.finish == "length"))
        end = self.planner.ending(self.asker, self.text)
        return Plan(steps=(*steps, *end.steps), output=end.output)

    def _steps(self, parts: Sequence[Part]) -> tuple[Step, ...]:
        return tuple(self.planner.call(self.asker, part, self.text.parts) for part in parts)


def _depth(parts: Mapping[int, Part]) -> int:
    """Return the number of sub-problems on the longest chain of needs."""
    depth: dict[int, int] = {}
    for number, part in parts.items():  # in the order in which they were written: needs come first
        depth[number] = 1 + max((depth[need] for need in part.needs), default=0)
    return max(depth.values(), default=0)


PLAN = """\
{question}

Do not answer yet. Split the work into {least} to {most} sub-problems, so that as many as possible can be worked on at \
the same time. Write one line for each, in an order in which a sub-problem needs only earlier ones:

number. [difficulty D; needs N] sub-problem

D is from 1 (easy) to 5 (hard). N are the numbers of the sub-problems whose results it cannot do without, or none. For \
example:

1. [difficulty 1; needs none] List the given quantities
2. [difficulty 2; needs none] State the law that links them
3. [difficulty 4; needs 1, 2] Solve for the unknown

Write nothing before or after the list.
"""
SHARED = """\
{question}

The work is split into parts that are done at the same time. """
KNOWN = "Done already, and to be built on:\n\n"
PART = """\
Your part: {text}

Write the result of this part only, in at most three sentences."""
HARD = """\
Your part: {text}

Write the result of this part only; think it through step by step first."""
SUMMARY = """\
{question}

The parts of the work are done:

{parts}

Write the complete answer from them.
"""
