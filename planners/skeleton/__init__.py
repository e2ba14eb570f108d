"""Planner `skeleton`: an outline first, then all of its points at the same time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from plait.core.errors import PluginError
from plait.core.interfaces import Brief, Planner, Reader
from plait.core.plan import Join, Plan, Plugin, Step, Structured, Text
from plait.core.result import Result

from .._shared.steps import Asker, OnResult, as_text_or_none, instead, or_direct, shortened, through
from . import text as words

__all__ = ["Skeleton"]


class Skeleton(Planner):
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

    def start(self, brief: Brief) -> Plan:
        """Return the router's question and what it decides, or the skeleton at once."""
        asker = Asker("skeleton", brief)
        if self.router == "off":
            return self._outline(asker)
        form = Structured(kind="choice", spec=["A", "B", "C"]) if self.structured else None
        prompt = words.ROUTER.format(question=asker.question)
        route = asker.step("route", prompt, tokens=self.router_tokens, form=form, label="independent points?")
        return Plan(steps=(route, through("routed", "route", expands=True, tolerate=True)), output="routed")

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a reader of the router's letter, of the skeleton, or of how it all ended."""
        asker = Asker("skeleton", brief)
        match step.name:
            case "routed":
                return OnResult(lambda result: self._routed(asker, result))
            case "skeleton":
                return OnResult(lambda result: self._outlined(asker, result))
            case "answer":
                return instead(asker, self.serial_tokens, self.temperature, self.stream)
            case _:
                return super().reader(step, brief)

    def _routed(self, asker: Asker, result: Result) -> Plan:
        said = as_text_or_none(result.value)
        letter = words.letter(said) if said is not None else None
        if letter == "A":
            return self._outline(asker)
        if said is None:
            return self._direct(asker, f"one call: no router ({result.why})")
        reason = {"B": "B, its points build on one another", "C": "C, no list"}.get(letter or "", "neither A, B nor C")
        return self._direct(asker, f"one call: the router says {reason}")

    def _outline(self, asker: Asker) -> Plan:
        chat = asker.brief.task.chat()
        ask = words.begin_in_words("1.", chat)
        prompt = words.SKELETON.format(question=asker.question, least=self.least, most=self.most, begin=ask)
        step = asker.step(
            "skeleton",
            prompt,
            tokens=self.skeleton_tokens,
            temperature=self.temperature,
            begin="1." if self.begin else "",
            stop=(f"\n{self.most + 1}.",),
            expands=True,
            label="skeleton",
        )
        return Plan(steps=(step, or_direct("skeleton")), output="answer")

    def _outlined(self, asker: Asker, result: Result) -> Plan:
        points = words.points(result.text, self.most, cut=result.finish == "length")
        if len(points) < self.least:
            return self._direct(asker, f"one call: a skeleton of {len(points)} points, {self.least} are wanted")
        outline = "\n".join(map(str, points))
        shared = Text(text=words.SHARED.format(question=asker.question, skeleton=outline))
        chat = asker.brief.task.chat()
        steps: list[Step] = []
        entries: list[JsonValue] = []
        for point in points:
            head = str(point)
            own = words.POINT.format(number=point.number, begin=words.begin_in_words(head, chat))
            step = asker.step(
                f"point-{point.number}",
                (shared, Text(text=own)),
                tokens=self.point_tokens,
                temperature=self.temperature,
                begin=head if self.begin else "",
                stop=(f"\n{point.number + 1}.",),
                stream=self.stream,
                label=shortened(head),
            )
            steps.append(step)
            entry: dict[str, JsonValue] = {"head": f"{head}\n", "flows": True, "missing": head}
            entries.append({"branch": step.name, "echo": [head, point.text], **entry})
        note = f"{len(points)} points"
        options: dict[str, JsonValue] = {"entries": entries, "separator": self.separator, "note": note}
        op = Join(merge=Plugin(name="stitch", options=options), tolerate=self.tolerate)
        join = Step(name="text", op=op, needs=tuple(step.name for step in steps), label=note)
        return Plan(steps=(*steps, join), output="text")

    def _direct(self, asker: Asker, note: str) -> Plan:
        return asker.direct(self.serial_tokens, self.temperature, note, self.stream)
