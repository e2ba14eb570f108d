"""Planner `skeleton_graph`: sub-problems with dependencies and difficulties, each started as soon as it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from plait.core.errors import PluginError
from plait.core.interfaces import Brief, Planner, Reader
from plait.core.ops import Join, Part as Piece, Plugin, Ref, Text
from plait.core.plan import Plan, Step
from plait.core.prompt import Prompt
from plait.core.result import Result

from ..._shared.steps import Asker, filled, instead, or_direct, shortened
from ..._shared.sub_problems import HARDEST, GraphText, Part
from . import text as words

__all__ = ["SkeletonGraph"]


class SkeletonGraph(Planner):
    """Adaptive Skeleton Graph Decoding, later Plato (Jin et al., arXiv 2402.12280).

    Steps: `graph` writes one line for each sub-problem, with its difficulty (1 to 5) and the sub-problems it needs;
    `part-1` … `part-n` work on them, each reading the question, its own line and the answers of those it needs, and
    starting when these are there, while the list is still being written; `text` puts the parts together in order.
    A list of fewer than `least` lines, or a graph that fails, is one call, `direct`; `why` says so.

    The difficulty chooses the model (`models`) and, with the threshold of SCALE (arXiv 2512.00466: scores in [0, 1]
    above 0.5 get the slow way of thinking), words and tokens. Differs from the papers, which leave the scale of the
    difficulty and the treatment of nonsense open: a sub-problem without a difficulty counts as 5; a need that names no
    earlier sub-problem is dropped and noted on the label of `text`; a sub-problem whose need failed fails too. Default:
    temperature 0.
    """

    models: dict[int, str] = {}
    """Model for sub-problems up to a difficulty: `{2: "small", 5: "large"}` sends 1 and 2 to `small`, 3 to 5 to
    `large`. Difficulties above the last go to any model that the workers serve. Empty: one model for all."""
    threshold: float = Field(default=0.5, ge=0.0, le=1.0)
    """A sub-problem whose (difficulty - 1) / 4 is above this is hard: it is thought through first."""
    least: int = Field(default=2, ge=1)
    """Fewest sub-problems that are worth working on apart."""
    most: int = Field(default=10, ge=1, le=100)
    """Most sub-problems; those beyond are left out."""
    graph_tokens: int = Field(default=512, ge=1)
    """Most tokens of the list."""
    part_tokens: int = Field(default=256, ge=1)
    """Most tokens of a sub-problem's answer."""
    hard_tokens: int = Field(default=1024, ge=1)
    """The same of a hard one."""
    plan_prompt: str | None = None
    """Prompt for the list in place of the built-in one, such as the authors' own; `{question}` stands for the request,
    `{least}` and `{most}` for the numbers. The list is read as `number. [difficulty D; needs N] text`."""
    easy_suffix: str = ""
    """Put at the end of the prompt of sub-problems that are not hard, such as ` /no_think` for a hybrid model."""
    hard_suffix: str = ""
    """The same of hard ones, such as ` /think`."""
    finish: Literal["stitch", "synthesis"] = "stitch"
    """`stitch`: the answer is the parts in order. `synthesis`: one more call writes it from them."""
    serial_tokens: int = Field(default=1024, ge=1)
    """Most tokens of the synthesis and of the one call that a request is not split for."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 is greedy."""
    tolerate: Literal["best-effort", "all"] = "all"
    """`all`: with the first part that fails the request is one call. `best-effort`: parts that fail are missing."""
    stream: bool = False
    """Send the parts' text while it is being written; the list's always is."""

    @field_validator("models")
    @classmethod
    def _difficulties(cls, models: dict[int, str]) -> dict[int, str]:
        wrong = [level for level in models if not 1 <= level <= HARDEST]
        if wrong:
            raise ValueError(f"difficulties are 1 to {HARDEST}, {wrong[0]} is none")
        return models

    @model_validator(mode="after")
    def _range(self) -> SkeletonGraph:
        if self.least > self.most:
            raise PluginError(f"the fewest sub-problems ({self.least}) are more than the most ({self.most})")
        return self

    def start(self, brief: Brief) -> Plan:
        """Return the step that writes the list, and what takes its place if that fails."""
        asker = Asker("skeleton_graph", brief)
        fields = {"question": asker.question, "least": str(self.least), "most": str(self.most)}
        prompt = words.PLAN.format(**fields) if self.plan_prompt is None else filled(self.plan_prompt, fields)
        step = asker.step(
            "graph",
            prompt,
            max_tokens=self.graph_tokens,
            temperature=self.temperature,
            stop=(f"\n{self.most + 1}.",),
            stream=True,
            expands=True,
            label="sub-problems",
        )
        return Plan(steps=(step, or_direct("graph")), output="answer")

    def _direct_prompt(self) -> Prompt:
        return Prompt(max_tokens=self.serial_tokens, temperature=self.temperature, stream=self.stream)

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a reader of the list while it is written, or of how it all ended."""
        asker = Asker("skeleton_graph", brief)
        match step.name:
            case "graph":
                return _GraphReader(self, asker)
            case "answer":
                return instead(asker, self._direct_prompt())
            case _:
                return super().reader(step, brief)

    def model_for(self, difficulty: int) -> str | None:
        """Return the model for a difficulty: of the entries of `models` that reach it, the lowest."""
        levels = sorted(level for level in self.models if level >= difficulty)
        return self.models[levels[0]] if levels else None

    def part(self, asker: Asker, part: Part, before: Mapping[int, Part]) -> Step:
        """Return the call that works on one sub-problem."""
        prompt: list[Piece] = [Text(text=words.PART.format(question=asker.question))]
        if part.needs:
            prompt.append(Text(text=words.KNOWN))
            for number in part.needs:
                prompt.append(Text(text=f"{number}. {before[number].text}\n"))
                prompt += [Ref(step=f"part-{number}"), Text(text="\n\n")]
        hard = (part.difficulty - 1) / (HARDEST - 1) > self.threshold
        own = words.OWN.format(text=part.text, how=words.HARD if hard else words.EASY)
        prompt.append(Text(text=own + (self.hard_suffix if hard else self.easy_suffix)))
        model = self.model_for(part.difficulty)
        return asker.step(
            f"part-{part.number}",
            prompt,
            max_tokens=self.hard_tokens if hard else self.part_tokens,
            temperature=self.temperature,
            stream=self.stream,
            model=model,
            label=shortened(f"{part.text} (difficulty {part.difficulty}{f', {model}' if model else ''})", 90),
        )

    def ending(self, asker: Asker, text: GraphText) -> Plan:
        """Return what puts the parts together; or the one call, if there are too few."""
        parts = sorted(text.parts.values())
        if len(parts) < self.least:
            note = f"one call: {len(parts)} sub-problems, {self.least} are wanted"
            return asker.direct(self._direct_prompt(), note)
        names = tuple(f"part-{part.number}" for part in parts)
        entries: list[JsonValue] = []
        for name, part in zip(names, parts, strict=True):
            head = f"{part.number}. {part.text}\n" if self.finish == "synthesis" else ""
            entries.append({"branch": name, "head": head, "echo": [part.text]})
        note = f"{len(parts)} sub-problems in {_depth(text.parts)} waves"
        merge = Plugin(name="stitch", options={"entries": entries, "note": note})
        label = note + (f"; {shortened('; '.join(text.repairs), 160)}" if text.repairs else "")
        join = Step(name="text", op=Join(merge=merge, tolerate=self.tolerate), needs=names, label=label)
        if self.finish == "stitch":
            return Plan(steps=(join,), output="text")
        final = asker.step(
            "final",
            (Text(text=words.FINAL.format(question=asker.question)), Ref(step="text"), Text(text=words.FINAL_END)),
            max_tokens=self.serial_tokens,
            temperature=self.temperature,
            stream=self.stream,
            label="synthesis",
        )
        merge = Plugin(name="synthesis-or-vote", options={"note": note})
        end = Step(name="answered", op=Join(merge=merge, tolerate="best-effort"), needs=("final", "text"))
        return Plan(steps=(join, final, end), output="answered")


class _GraphReader:
    """Makes a call of every sub-problem the moment its line is complete."""

    def __init__(self, planner: SkeletonGraph, asker: Asker) -> None:
        self.planner, self.asker = planner, asker
        self.text = GraphText(planner.most)

    def feed(self, delta: str) -> Sequence[Plan]:
        steps = self._steps(self.text.feed(delta))
        return (Plan(steps=steps),) if steps else ()

    def close(self, result: Result) -> Plan | None:
        steps = self._steps(self.text.close(cut=result.finish == "length"))
        end = self.planner.ending(self.asker, self.text)
        return Plan(steps=(*steps, *end.steps), output=end.output)

    def _steps(self, parts: Sequence[Part]) -> tuple[Step, ...]:
        return tuple(self.planner.part(self.asker, part, self.text.parts) for part in parts)


def _depth(parts: Mapping[int, Part]) -> int:
    """Return how many sub-problems there are along the longest chain of needs."""
    depth: dict[int, int] = {}
    for number, part in parts.items():  # in the order in which they were written: needs come first
        depth[number] = 1 + max((depth[each] for each in part.needs), default=0)
    return max(depth.values(), default=0)
