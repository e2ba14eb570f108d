"""Reflection on failed runs: the prompts about them, in parallel groups, and the parser of the model's proposals.

As in Combee (arXiv 2604.04247): n runs, each shown twice, shuffled, in k = ⌊√n⌋ groups; one call per group proposes
changes, all in parallel; one call merges k proposals (in a tree if they are more than eight). The whole is one plan, so
that it is scheduled, journalled and resumed like any other run. The sections of a prompt are those of
Trace (arXiv 2406.16218). Unlike there nothing is executed, and no proposal is taken without a test (`accept.py`).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from plait.core.ops import ModelCall, Ref, Text
from plait.core.plan import Plan, Step
from plait.core.sampling import Sampling
from plait.core.values import as_text
from plait.runtime.runlog import RunRecord

from .learnable import Learnable, Values

TOLD = 2
"""Number of groups that show each run, if more than one group exists."""
WIDEST = 8
"""Number of proposals that one call merges."""
_TEXT = 600
"""Maximum number of characters of a step in the prompt."""
_REPLY = (
    'Reply with one JSON object and nothing after it: {"reasoning": "…", "suggestion": {"NAME": NEW VALUE, …}}. Name '
    "only variables that should change. A suggestion that is worse on other problems will be refused."
)


def lesson(run: RunRecord, feedback: str) -> str:
    """Return the prompt's text about a failed run: the request, the steps that led to its output, and the feedback.
    Long texts lose their middle."""
    steps = {step.step: step for step in run.steps}
    needed = {name for step in run.steps for name in step.needs}
    above = [name for name, step in steps.items() if step.owner is None and name not in needed]
    seen: dict[str, None] = {}
    while above:
        name = above.pop()
        step = steps.get(name)
        if step is None or name in seen:
            continue
        seen[name] = None
        above += [*step.needs, *(other for other in (step.after, step.source) if other)]
    lines: list[str] = []
    for name, step in steps.items():
        # Joins have no own text: the prompt shows their branches.
        if name in seen and step.kind != "join" and step.state in ("done", "failed", "expanded"):
            text = (
                step.failure.message if step.failure is not None else as_text(step.value) if step.value else step.text
            )
            lines.append(f"- {step.path}: {_short(text)}")
    return "\n".join([f"input: {_short(run.request.text)}", "steps:", *lines, f"feedback: {_short(feedback)}"])


def groups_of(lessons: Sequence[str], seed: int, groups: int | None = None, told: int = TOLD) -> list[list[str]]:
    """Return the groups: each lesson repeated, shuffled, and never twice in one group if there are enough groups."""
    count = groups or max(1, math.isqrt(len(lessons)))
    rng = random.Random(seed)
    places: list[list[int]] = [[] for _ in range(count)]
    for _ in range(min(told, count)):
        order = list(range(len(lessons)))
        rng.shuffle(order)
        for place in order:
            free = [group for group in places if place not in group]
            # A lesson may be in several groups, but never twice in one group.
            min(free, key=len).append(place)
    return [[lessons[place] for place in group] for group in places if group]


def reflection(
    learnables: Sequence[Learnable],
    values: Mapping[str, JsonValue],
    lessons: Sequence[str],
    *,
    seed: int = 0,
    groups: int | None = None,
    sampling: Sampling | None = None,
    chat: bool = False,
) -> Plan:
    """Return the plan of a round of reflection; its output is the text of one proposal. `chat`: the calls are
    messages. Raises `ValueError` without lessons."""
    if not lessons:
        raise ValueError("there is nothing to reflect on: no run failed")
    sampled = sampling or Sampling(max_tokens=2048, temperature=0.7, seed=seed)
    head = _variables(learnables, values)
    steps: list[Step] = []
    for number, group in enumerate(groups_of(lessons, seed, groups), 1):
        reports = "\n\n".join(f"## Run {place}\n{run_lesson}" for place, run_lesson in enumerate(group, 1))
        text = f"# Instruction\nThese runs failed. Propose changes of the variables that would have helped.\n\n{head}"
        text += f"\n\n# Failed runs\n{reports}\n\n# Output\n{_REPLY}\n"
        steps.append(
            Step(
                name=f"reflect-{number}",
                op=ModelCall(prompt=(Text(text=text),), chat=chat, sampling=sampled),
                label="reflect",
            )
        )
    level = [step.name for step in steps]
    depth = 0
    while len(level) > 1:
        depth += 1
        above: list[str] = []
        for number, start in enumerate(range(0, len(level), WIDEST), 1):
            part = level[start : start + WIDEST]
            name = f"combine-{depth}-{number}"
            text = f"# Instruction\nMake one suggestion of these, and lose no rule that several have.\n\n{head}\n"
            prompt: list[Text | Ref] = [Text(text=text)]
            for place, suggestion in enumerate(part, 1):
                prompt += [Text(text=f"\n# Suggestion {place}\n"), Ref(step=suggestion)]
            prompt.append(Text(text=f"\n\n# Output\n{_REPLY}\n"))
            steps.append(
                Step(name=name, op=ModelCall(prompt=tuple(prompt), chat=chat, sampling=sampled), label="combine")
            )
            above.append(name)
        level = above
    return Plan(steps=tuple(steps), output=level[0])


def proposal(text: str) -> Values:
    """Return the suggestion from the last JSON object of a reply that has one, or an empty value."""
    decoder = json.JSONDecoder()
    suggested: Values = {}
    place = text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            place = text.find("{", place + 1)
            continue
        if isinstance(value, dict) and isinstance(value.get("suggestion"), dict):
            suggested = value["suggestion"]
        place = text.find("{", end)
    return suggested


def _variables(learnables: Sequence[Learnable], values: Mapping[str, JsonValue]) -> str:
    lines = ["# Variables"]
    for learnable in learnables:
        match learnable.kind:
            case "text":
                bounds = f"a text of {learnable.most} characters at most"
            case "number":
                bounds = f"a {'whole ' if learnable.whole else ''}number from {learnable.low:g} to {learnable.high:g}"
            case "choice":
                bounds = f"one of {json.dumps(list(learnable.choices))}"
        about = f"; {learnable.about}" if learnable.about else ""
        lines.append(f"{learnable.name} ({bounds}{about}):\n{as_text(values[learnable.name])}")
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]} … {text[-_TEXT // 2 :]}"
