"""Answers of tasks that verify them, right and wrong, with the truth computed here and not by the task."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from pydantic import JsonValue

from plait.core.programs import has_returned
from plait.core.task import Task
from plait_bench.tasks.brackets import Brackets
from plait_bench.tasks.countdown import Countdown
from plait_bench.tasks.sums import Sums

__all__ = ["TASKS"]

Graded = tuple[int, int, int]
"""Answers, those that the task graded correctly, wrong ones that it verified."""


def _counted(said: list[tuple[bool, bool]]) -> Graded:
    return len(said), sum(truth == found for truth, found in said), sum(found and not truth for truth, found in said)


def _numbers(task: type[Task], draw: Callable[[Random], str], count: int, seed: int, texts: tuple[str, ...]) -> Graded:
    """Sums: texts that end in the right number, or in one that looks like it."""
    random, said = Random(seed), list[tuple[bool, bool]]()
    while len(said) < count:
        text = draw(random)
        try:
            bound = task(text=text)
        except Exception:  # it leaves the range of numbers
            continue
        right = _worth(text)
        if not 0 <= right <= 127:  # the tasks' numbers
            continue
        wrong = random.choice([right + 1, right - 1, -right or 1, right * 10 or 2, int(f"1{abs(right)}"), right + 100])
        truth = random.random() < 0.5
        shown = random.choice(texts).format(right if truth else wrong)
        answer = bound.extract(shown)
        said.append((truth, answer is not None and bound.verify(answer) is True))
    return _counted(said)


def _worth(text: str) -> int:
    """Return the value of a sum of whole numbers: its own digits, signs and brackets, and nothing else."""
    assert re.fullmatch(r"[\d\s+*()-]+", text)
    return eval(text)  # noqa: S307


def _sum(random: Random) -> str:
    words = [str(random.randint(1, 30))]
    for _ in range(random.randint(2, 4)):
        words += [random.choice("+-*"), str(random.randint(1, 12))]
    return " ".join(words)


def _bracketed(random: Random) -> str:
    def one(depth: int) -> str:
        if depth == 0:
            return str(random.randint(1, 12))
        return f"({one(depth - 1)} {random.choice('+-*')} {one(0)})"

    return f"{one(1)} {random.choice('+-*')} {one(random.randint(0, 2))}"


def _sums(count: int, seed: int) -> Graded:
    return _numbers(Sums, _sum, count, seed, ("1 + 1 = 2; <hit> {} <end>", "{}", "{} <end>", "<hit> {}"))


def _brackets(count: int, seed: int) -> Graded:
    return _numbers(Brackets, _bracketed, count, seed, ("{}", "3 * 4 = 12; so {}", "x = {}", "= {}.", "it is {}"))


def _countdown(count: int, seed: int) -> Graded:
    """Steps over the given numbers: right, or with a wrong result, a number twice, a target missed."""
    random, said = Random(seed), list[tuple[bool, bool]]()
    while len(said) < count:
        numbers = sorted(random.sample(range(1, 14), 4))
        left, steps = list(numbers), list[str]()
        while len(left) > 1:
            a, b = sorted((left.pop(random.randrange(len(left))), left.pop(random.randrange(len(left)))), reverse=True)
            sign = random.choice("+-*")
            left.append(_worth(f"{a}{sign}{b}"))
            steps.append(f"{a}{sign}{b}={left[-1]}")
        if not 10 <= left[0] <= 99 or any(int(each.rpartition("=")[2]) < 1 for each in steps):
            continue
        target, truth = left[0], random.random() < 0.5
        first, last = steps[0], steps[-1]
        worse = [
            [*steps[:-1], last.replace(f"={target}", f"={target + 1}")],
            steps[:-1],
            [*steps, f"{target}+1={target + 1}"],
            [first.replace("=", "=1"), *steps[1:]],
            [f"{numbers[0]}+{target - numbers[0]}={target}"],
            [],
        ]
        task = Countdown(text=f"{' '.join(map(str, numbers))} -> {target}")
        said.append((truth, task.verify(list(steps if truth else random.choice(worse))) is True))
    return _counted(said)


def _programs(count: int, seed: int) -> Graded:
    """What calls of programs return, against what is wanted: the rule of `code` and `humaneval`."""
    random, said = Random(seed), list[tuple[bool, bool]]()

    def value(depth: int) -> JsonValue:
        if depth and random.random() < 0.5:
            return [value(depth - 1) for _ in range(random.randint(0, 3))]
        return random.choice([None, True, False, 0, 1, 2, -1, 0.5, "", "a", "1"])

    while len(said) < count:
        wanted, given = value(2), value(2)
        given = wanted if random.random() < 0.5 else given
        said.append((_written(wanted) == _written(given), has_returned(("value", given), wanted)))
    return _counted(said)


def _written(value: JsonValue) -> str:
    return repr(value)


TASKS: dict[str, Callable[[int, int], Graded]] = {
    "sums": _sums,
    "brackets": _brackets,
    "countdown": _countdown,
    "code (values returned)": _programs,
}
"""By name: grades this number of answers, drawn by a seed."""
