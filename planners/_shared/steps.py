"""Steps that several planners make alike: one call of a model, and the single call to fall back on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, JsonValue

from plait.core.interfaces import Brief
from plait.core.plan import Join, Part, Plan, Plugin, Sampling, Step, Structured, Text, Think
from plait.core.result import Result

from .seeds import derive

NO_THINKING = "<think>\nOkay, I think I have finished thinking.\n</think>\n\n"
"""The start of the model's turn in NoThinking (arXiv 2504.09858): its thoughts are over before they begin."""
ANSWER, DIRECT, ALONE = "answer", "direct", "alone"
_FIELD = re.compile(r"\{(\w+)\}")
_OPENED = re.compile(r"\s*<think>")


def _as_plugin(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


OnePlugin = Annotated[Plugin, BeforeValidator(_as_plugin)]
"""An option that names a plugin: `majority`, or `{"name": …, "options": {…}}`."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Makes the model calls of one planner for one request."""

    planner: str
    """Its name: part of every seed."""
    brief: Brief

    @property
    def question(self) -> str:
        """The request as its task puts it to a model."""
        return self.brief.task.render()

    def step(
        self,
        name: str,
        prompt: str | Sequence[Part],
        *,
        tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        begin: str = "",
        stop: Sequence[str] = (),
        form: Structured | None = None,
        logprobs: bool = False,
        stream: bool = False,
        expands: bool = False,
        model: str | None = None,
        label: str = "",
    ) -> Step:
        """Return one model call.

        `begin` is how the answer is to begin: the end of a prompt that is plain text, the start of the model's turn in
        a chat. Some servers cannot be told so, and some models write it again: readers take all of it.
        """
        parts: tuple[Part, ...] = (Text(text=prompt),) if isinstance(prompt, str) else tuple(prompt)
        chat = self.brief.task.chat()
        if begin and not chat:
            parts = (*parts, Text(text=f"\n{begin}"))
        sampling = Sampling(
            max_tokens=tokens,
            temperature=temperature,
            top_p=top_p,
            seed=derive(self.brief.request.seed, self.planner, name) if temperature else None,
            stop=tuple(stop),
            structured=form,
            logprobs=int(logprobs),
        )
        turn = begin if chat else ""
        op = Think(prompt=parts, chat=chat, begin=turn, sampling=sampling, stream=stream, model=model)
        return Step(name=name, op=op, expands=expands, label=label)

    def direct(self, tokens: int, temperature: float, note: str, stream: bool = False) -> Plan:
        """Return the request as one call of the model; `note` says in the answer's `why` how it came to that."""
        call = self.step(DIRECT, self.question, tokens=tokens, temperature=temperature, stream=stream, label="one call")
        return Plan(steps=(call, through(ALONE, DIRECT, note)), output=ALONE)


def or_direct(branch: str) -> Step:
    """Return the join `answer`, which passes a step's value on and expands even if that step failed: its reader
    (`instead`) then plans the one call."""
    return through(ANSWER, branch, expands=True, tolerate=True)


def instead(asker: Asker, tokens: int, temperature: float, stream: bool = False) -> OnResult:
    """Return the reader of `answer`."""

    def read(result: Result) -> Plan | None:
        if result.value is not None:
            return None
        return asker.direct(tokens, temperature, f"one call instead ({result.why})", stream)

    return OnResult(read)


def through(name: str, branch: str, note: str = "", *, expands: bool = False, tolerate: bool = False) -> Step:
    """Return a join that passes one step's value on. With `tolerate` it also ends, in `null`, when that step fails, so
    that its reader can plan something else."""
    options: dict[str, JsonValue] = {"note": note} if note else {}
    op = Join(merge=Plugin(name="stitch", options=options), tolerate="any-end" if tolerate else "all")
    return Step(name=name, op=op, needs=(branch,), expands=expands, label=note or name)


@dataclass(frozen=True, slots=True)
class OnResult:
    """A reader that reads a step's result, and nothing before."""

    read: Callable[[Result], Plan | None]

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return nothing: there is more to come."""
        return ()

    def close(self, result: Result) -> Plan | None:
        """Return what follows from the result."""
        return self.read(result)


def visible(text: str) -> str:
    """Return a model's text without the reasoning block before it, also where the template had opened the block. A
    block that was cut off hides everything."""
    head, end, rest = text.partition("</think>")
    if end and ("<think>" not in head or _OPENED.match(head)):
        return rest
    return "" if _OPENED.match(text) and not end else text


def begun(op: Think, begin: str) -> Think:
    """Return a call whose output begins with a text: the start of the model's turn in a chat, else the prompt's end.
    `no-thinking` stands for `NO_THINKING`."""
    begin = NO_THINKING if begin == "no-thinking" else begin
    if not begin:
        return op
    update = {"begin": begin} if op.chat else {"prompt": (*op.prompt, Text(text=f"\n{begin}"))}
    return op.model_copy(update=update)


def filled(template: str, fields: Mapping[str, str]) -> str:
    """Put fields into a template of the user's, once each; other braces stay as they are."""
    return _FIELD.sub(lambda found: fields.get(found[1], found[0]), template)


def shortened(text: str, most: int = 60) -> str:
    """Return a text on one line, cut to `most` characters: for labels."""
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else text[: most - 1] + "…"


def as_text_or_none(value: JsonValue) -> str | None:
    """Return a value if it is text."""
    return value if isinstance(value, str) else None
