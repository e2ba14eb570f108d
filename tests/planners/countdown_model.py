"""A perfect, unimaginative model of Countdown, by training/FORMAT.md and nothing else of training/."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

Line = tuple[int, str, int, int]


def apply(a: int, op: str, b: int) -> int | None:
    quotient = a // b if b > 1 and a % b == 0 else 0
    value = {"+": a + b, "-": a - b, "*": a * b, "/": quotient}[op]
    return value if 1 <= value <= 127 else None


def moves(numbers: list[int]) -> Iterator[tuple[Line, list[int]]]:
    """Legal steps on numbers in descending order, with what is left beside the result."""
    for i, j in combinations(range(len(numbers)), 2):
        for op in "+-*/":
            value = apply(numbers[i], op, numbers[j])
            if value is not None:
                line = (numbers[i], op, numbers[j], value)
                yield line, [n for at, n in enumerate(numbers) if at not in (i, j)]


def show(line: Line) -> str:
    return f"{line[0]} {line[1]} {line[2]} = {line[3]}"


def child(target: int, numbers: list[int]) -> str:
    """The whole search on three numbers and what it found."""
    entries: list[str] = []
    for line, (z,) in moves(numbers):
        text = f"{show(line)} | {z}"
        for last, _ in moves(sorted((line[3], z), reverse=True)):
            if last[3] == target:
                entries.append(f"{text} {last[1]} {last[3]} <hit>")
                return f"{' ; '.join(entries)} {show(line)} ; {show(last)} <end>"
            text += f" {last[1]} {last[3]} {'<lo>' if last[3] < target else '<hi>'}"
        entries.append(text)
    return " ; ".join(entries) + " <none> <end>"


def parent(words: list[str]) -> str:
    """Rounds of k steps in order; the first solution that a join brings."""
    k, numbers = int(words[1]), [int(word) for word in words[3:7]]
    if words[-1] == "<go>" and "<join>" in words:
        start = len(words) - 1 - words[::-1].index("<join>")
        for entry in " ".join(words[start + 1 : -1]).split(" | "):
            if entry != "<none>":
                return f"{entry} <end>"
    lines = list(dict.fromkeys((line, tuple(rest)) for line, rest in moves(numbers)))
    rounds = words.count("<spawn>")
    items = [f"{show(line)} | {x} {y}" for line, (x, y) in lines[rounds * k : rounds * k + k]]
    return f"<spawn> {' ; '.join(items)} <wait>" if items and rounds < 3 else "<none> <end>"


def answer(words: list[str]) -> str:
    """What the model writes after a context."""
    if words[-6:-5] == ["<child>"]:
        return child(int(words[-5][1:]), [int(word) for word in words[-4:-1]])
    assert words[0] == "<parent>" and words[-1] == "<go>", words
    return parent(words)


def solvable(numbers: tuple[int, ...], target: int) -> bool:
    """Exhaustive search by another way: every split of the multiset."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, j in combinations(range(len(numbers)), 2):
        rest = [n for at, n in enumerate(numbers) if at not in (i, j)]
        a, b = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
        for op in "+-*/":
            value = apply(a, op, b)
            if value is not None and solvable((*rest, value), target):
                return True
    return False
