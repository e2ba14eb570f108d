"""Traces of a sum's parts, drawn on line from a seeded generator, as the planner `scale` asks for them.

QUESTION <outline> 1. [difficulty 2; needs none] a = 14 - 3 * 4 ⏎ 2. [difficulty 1; needs 1] b = a * 2 ⏎ <end>
QUESTION <done>a = 14 - 3 * 4 ⏎ 3 * 4 = 12; 14 - 12 = 2; 2 <do>b = a * 2 ⏎ 2 * 2 = 4; 4 <end>       in full
QUESTION … <do>b = a * 2 <at-once> 4 <end>                                                           at once
QUESTION … <do>b = a * 2 <difficult> 1                                       a mark 0..9, by the operations in it
QUESTION <pick>Plan 1 … Plan 2 … <go> 2                                      which one has no slip
QUESTION … <answer> 4 <end>, QUESTION 3 * 4 = 12; …; 4 <end>, QUESTION <at-once> 4 <end>             the whole
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

from plait_bench.tasks.brackets import BracketStep, steps, value, worked

from ..generate import Trace
from .vocab import ID, encode

MIXTURE = {
    "outline": 0.28, "do": 0.2, "at once": 0.16, "difficult": 0.06, "pick": 0.06, "answer": 0.05, "whole": 0.13,
    "whole at once": 0.06,
}  # fmt: skip
LAST_WEIGHT = 3.0  # one slip in the result loses the step


def draw_sum(rng: random.Random) -> list[str]:
    """The words of a sum with one to four pairs of brackets, every value on its way 0..127."""
    while True:
        left, most, items = rng.choice((1, 2, 2, 3, 3, 4)), rng.randint(2, 4), 0
        words: list[str] = []
        while (left or items < most) and len(words) <= 60:
            if words:
                words.append(rng.choice("++--*"))
            items += 1
            if left and rng.random() < 0.6:
                inner = rng.random() < 0.3 and left > 1
                left -= 2 if inner else 1
                words += ["(", *_line(rng, inner), ")"]
            else:
                words.append(str(_number(rng, words)))
        if items > 1 and len(words) <= 60 and value(steps(words)) is not None:
            return words


def _number(rng: random.Random, before: Sequence[str]) -> int:
    return rng.randint(2, 9) if before and before[-1] == "*" else rng.randint(1, 25)


def _line(rng: random.Random, inner: bool) -> list[str]:
    count = rng.choice((2, 2, 3, 3, 4))
    at = rng.randrange(count) if inner else -1
    words: list[str] = []
    for place in range(count):
        if words:
            words.append(rng.choice("++--*"))
        words += ["(", *_line(rng, False), ")"] if place == at else [str(_number(rng, words))]
    return words


def is_test(words: Sequence[str]) -> bool:
    """Whether a sum belongs to the test split, one in ten."""
    return zlib.crc32(" ".join(words).encode()) % 10 == 0


def asked(words: Sequence[str]) -> str:
    """The question as the task puts it."""
    return f"{''.join(f' {word} ' if word in '+-*' else word for word in words)} = ?"


class Case:
    """A sum, its steps, and what they come to."""

    def __init__(self, words: Sequence[str]) -> None:
        self.text = asked(words)
        self.steps = steps(words)
        self.values: dict[str, int] = {}
        for step in self.steps:
            done = worked(self.filled(step))
            assert done is not None
            self.values[step.name] = done[-1][3]

    def filled(self, step: BracketStep) -> list[str]:
        """The words of a step with results in the place of names."""
        return [str(self.values[word]) if word in self.values else word for word in step.words]

    def operations(self, step: BracketStep) -> str:
        """The operations of a step: `3 * 4 = 12; 14 - 12 = 2`."""
        return "; ".join(f"{a} {op} {b} = {c}" for a, op, b, c in worked(self.filled(step)) or ())

    def full(self, step: BracketStep) -> str:
        """A step worked out, and its result."""
        return f"{self.operations(step)}; {self.values[step.name]}"

    def known(self, rng: random.Random, needs: Sequence[int]) -> str:
        """The question, and steps with their results, each done in full or at once."""
        said = [self.text]
        for place in needs:
            step = self.steps[place]
            result = self.full(step) if rng.random() < 0.5 else str(self.values[step.name])
            said.append(f"<done>{step.text}\n{result}")
        return "".join(said)


def mark(step: BracketStep) -> int:
    """How difficult a step is, 0..9: by its operations, and whether there is a product."""
    return min(9, 2 * (step.operations - 1) + ("*" in step.words))


def outline(made: Sequence[BracketStep]) -> str:
    """The lines of the steps, with difficulties 1..5 and needs."""
    return "".join(
        f"{number}. [difficulty {min(5, step.operations)}; needs "
        f"{', '.join(str(need + 1) for need in step.needs) or 'none'}] {step.text}\n"
        for number, step in enumerate(made, 1)
    )


def listed(made: Sequence[BracketStep]) -> str:
    """A plan as it is written in the question which plan is best."""
    return "\n".join(f"{number}. {step.text}" for number, step in enumerate(made, 1))


def spoiled(rng: random.Random, made: Sequence[BracketStep]) -> list[BracketStep]:
    """The steps with one slip: another number, another operator, or a name that is not needed."""
    out = list(made)
    place = rng.randrange(len(out))
    words = list(out[place].words)
    at = rng.randrange(len(words))
    old = words[at]
    words[at] = rng.choice([each for each in ("+-*" if old in "+-*" else map(str, range(1, 26))) if each != old])
    out[place] = out[place]._replace(words=tuple(words))
    return out


def draw_case(rng: random.Random, test: bool = False) -> Case:
    """A sum of one of the splits."""
    while True:
        words = draw_sum(rng)
        if is_test(words) == test:
            return Case(words)


def parts(rng: random.Random, case: Case, mode: str) -> tuple[str, str]:
    """The prompt and what is to be written, of one mode."""
    place = rng.randrange(len(case.steps))
    step = case.steps[place]
    before = case.known(rng, step.needs) if mode in ("do", "at once", "difficult") else case.text
    answer = str(case.values[case.steps[-1].name])
    match mode:
        case "outline":
            return f"{before}<outline>", outline(case.steps)
        case "do":
            return f"{before}<do>{step.text}\n", case.full(step)
        case "at once":
            return f"{before}<do>{step.text}<at-once>", str(case.values[step.name])
        case "difficult":
            return f"{before}<do>{step.text}<difficult>", str(mark(step))
        case "pick":
            right, count = rng.randint(1, 3), 3
            plans = [case.steps if n == right else spoiled(rng, case.steps) for n in range(1, count + 1)]
            shown = "\n\n".join(f"Plan {n}\n{listed(plan)}" for n, plan in enumerate(plans, 1))
            return f"{before}<pick>{shown}<go>", str(right)
        case "answer":
            return f"{case.known(rng, range(len(case.steps)))}<answer>", answer
        case "whole":
            return before, "; ".join([*(case.operations(each) for each in case.steps), answer])
        case _:
            return f"{before}<at-once>", answer


def trace(rng: random.Random, case: Case, mode: str) -> Trace:
    """One trace of a mode; the last number counts more."""
    prompt, text = parts(rng, case, mode)
    out = Trace([], [])
    out.add(encode(prompt), 0.0)
    ids = encode(text)
    if mode == "outline":
        out.add(ids, 1.0)
    else:
        out.add(ids[:-1], 1.0)
        out.add(ids[-1:], LAST_WEIGHT)
    out.add([ID["<end>"]], 0.2 if mode in ("difficult", "pick") else 1.0)
    return out


def draw_trace(rng: random.Random, mode: str | None = None) -> Trace:
    """One training trace of a mode drawn from MIXTURE, always from the training split."""
    return trace(rng, draw_case(rng), mode or rng.choices(list(MIXTURE), list(MIXTURE.values()))[0])
