"""Helpers for planners, public as `plait.planning`: seeds, one call of a model, a value passed on, readers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from .interfaces import Brief
from .ops import Join, Part, Plugin, Sampling, Structured, Text, Think
from .plan import Plan, Step
from .result import Result
from .view import Branch

__all__ = ["CallOptions", "OnBranches", "OnResult", "call_model", "derive", "fraction", "pass_through"]


def derive(seed: int, *place: int | str) -> int:
    """Return the seed of one model call: a 52-bit hash of the request's seed and the call's place in the plan.

    It depends on nothing else, so sample 3 of 8 is sample 3 of 64, and a JSON reader with doubles keeps it exact.
    """
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 12


def fraction(seed: int, *place: int | str) -> float:
    """Return a number in [0, 1) made of a seed and a place in the same way."""
    return derive(seed, *place) / (1 << 52)


class CallOptions(TypedDict, total=False):
    """Options of `call_model`."""

    temperature: float
    top_p: float
    begin: str
    """How the answer is to begin: the end of a prompt that is plain text, the start of the model's turn in a chat. Some
    servers cannot be told so, and some models write it again: readers take all of it."""
    stop: Sequence[str]
    form: Structured | None
    logprobs: bool
    stream: bool
    expands: bool
    model: str | None
    label: str


def call_model(
    brief: Brief,
    planner: str,
    name: str,
    prompt: str | Sequence[Part],
    *,
    tokens: int,
    **options: Unpack[CallOptions],
) -> Step:
    """Return one call of the model, at most `tokens` long, greedy unless a temperature is given. Its seed is made of
    the request's, the planner's name and the step's."""
    parts: tuple[Part, ...] = (Text(text=prompt),) if isinstance(prompt, str) else tuple(prompt)
    chat, begin = brief.task.chat(), options.get("begin", "")
    if begin and not chat:
        parts = (*parts, Text(text=f"\n{begin}"))
    temperature = options.get("temperature", 0.0)
    sampling = Sampling(
        max_tokens=tokens,
        temperature=temperature,
        top_p=options.get("top_p", 1.0),
        seed=derive(brief.request.seed, planner, name) if temperature else None,
        stop=tuple(options.get("stop", ())),
        structured=options.get("form"),
        logprobs=int(options.get("logprobs", False)),
    )
    op = Think(
        prompt=parts,
        chat=chat,
        begin=begin if chat else "",
        sampling=sampling,
        stream=options.get("stream", False),
        model=options.get("model"),
    )
    return Step(name=name, op=op, expands=options.get("expands", False), label=options.get("label", ""))


def pass_through(name: str, branch: str, note: str = "", *, expands: bool = False, tolerate: bool = False) -> Step:
    """Return a join that passes one step's value on. With `tolerate` it also ends, in `null`, when that step fails, so
    that its reader can plan something else."""
    merge = Plugin(name="stitch", options={"note": note} if note else {})
    op = Join(merge=merge, tolerate="any-end" if tolerate else "all")
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


@dataclass(frozen=True, slots=True)
class OnBranches:
    """A reader of a join that reads the branches too: their texts, states, log-probabilities."""

    read: Callable[[Result, Sequence[Branch]], Plan | None]

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return nothing: a join has no text."""
        return ()

    def close(self, result: Result) -> Plan | None:
        """Return what follows from the result alone."""
        return self.read(result, ())

    def merged(self, result: Result, branches: Sequence[Branch]) -> Plan | None:
        """Return what follows from the result and its branches."""
        return self.read(result, branches)
