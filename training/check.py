"""An independent checker of traces: reads the text and verifies every claim in it.

It shares no code with the generator (only the grammar of FORMAT.md), so that a mistake in one shows in the
other: every arithmetic line, the completeness and order of an enumeration, every verdict, every join entry
and the final answer. It decides nothing about which candidates are wise. Used on every generated trace in
the tests, and on model output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, permutations

SERIAL_TOKENS = 512
Line = tuple[int, str, int, int]  # a, operation, b, result


class Wrong(ValueError):
    """A trace breaks the grammar or states something false; the message names the fault and its place."""


class Cut(Wrong):
    """A trace ends where more belongs."""


def arithmetic(a: int, op: str, b: int) -> int | None:
    """The value of `a op b`, or None where the rules forbid it."""
    table: dict[str, Callable[[], int | None]] = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: a // b if b > 1 and a % b == 0 else None,
    }
    value = table[op]()
    return value if value is not None and 0 < value < 128 else None


def lines_on(numbers: Sequence[int]) -> list[tuple[Line, list[int]]]:
    """Every legal line on the numbers (descending), once, with the numbers it leaves, in canonical order."""
    out: list[tuple[Line, list[int]]] = []
    for i, j in combinations(range(len(numbers)), 2):
        left = [n for at, n in enumerate(numbers) if at != i and at != j]
        if any((line[0], line[2]) == (numbers[i], numbers[j]) for line, _ in out):
            continue
        for op in "+-*/":
            value = arithmetic(numbers[i], op, numbers[j])
            if value is not None:
                out.append(((numbers[i], op, numbers[j], value), left))
    return out


def solves(lines: Sequence[Line], numbers: Sequence[int], target: int) -> bool:
    """Whether the lines are legal, use all the numbers once and end at the target."""
    have = list(numbers)
    for a, op, b, value in lines:
        if op not in "+-*/" or arithmetic(a, op, b) != value:
            return False
        for used in (a, b):
            if used not in have:
                return False
            have.remove(used)
        have.append(value)
    return have == [target]


def solvable(numbers: Sequence[int], target: int) -> bool:
    """Whether any sequence of legal lines leads from the numbers to the target (plain recursion)."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, j in permutations(range(len(numbers)), 2):
        rest = [n for at, n in enumerate(numbers) if at != i and at != j]
        for op in "+-*/":
            value = arithmetic(numbers[i], op, numbers[j])
            if value is not None and solvable([*rest, value], target):
                return True
    return False


class Reader:
    """Words of a trace with a place in them."""

    def __init__(self, text: str) -> None:
        self.words, self.at = text.split(), 0

    def peek(self) -> str:
        """The next word, or "" at the end."""
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self, *allowed: str) -> str:
        """The next word, which must be one of `allowed` if any are given."""
        word = self.peek()
        if not word:
            raise Cut(f"the end where {' or '.join(allowed) or 'a word'} belongs")
        if allowed and word not in allowed:
            raise Wrong(f"word {self.at}: {word!r} where {' or '.join(allowed)} belongs")
        self.at += 1
        return word

    def number(self) -> int:
        """The next word as a number."""
        word = self.take()
        if not word.isdigit():
            raise Wrong(f"word {self.at - 1}: {word!r} is no number")
        return int(word)

    def target(self) -> int:
        """The next word as a target."""
        word = self.take()
        if not (word[0] == "T" and word[1:].isdigit()):
            raise Wrong(f"word {self.at - 1}: {word!r} is no target")
        return int(word[1:])

    def line(self) -> Line:
        """The next five words as a line; its arithmetic must be right and the larger number first."""
        a, op, b = self.number(), self.take("+", "-", "*", "/"), self.number()
        self.take("=")
        value = self.number()
        if a < b or arithmetic(a, op, b) != value:
            raise Wrong(f"word {self.at}: {a} {op} {b} = {value}")
        return a, op, b, value

    def lines(self, count: int) -> list[Line]:
        """`count` lines separated by `;`."""
        out = [self.line()]
        for _ in range(count - 1):
            self.take(";")
            out.append(self.line())
        return out


def require(condition: bool, message: str) -> None:
    """Raise Wrong unless the condition holds."""
    if not condition:
        raise Wrong(message)


def _numbers(reader: Reader, count: int) -> list[int]:
    numbers = [reader.number() for _ in range(count)]
    require(numbers == sorted(numbers, reverse=True), f"numbers not in descending order: {numbers}")
    return numbers


def read_search(reader: Reader, numbers: list[int], target: int) -> list[Line] | None:
    """Check an exhaustive search on three numbers up to its `<hit>` verdict or its end; returns the lines
    found.
    """
    for n, (line, (z,)) in enumerate(lines_on(numbers)):
        if n:
            reader.take(";")
        require(reader.line() == line, f"word {reader.at}: the next step is {line}")
        reader.take("|")
        require(reader.number() == z, f"word {reader.at}: {z} is what is left")
        pair = sorted((line[3], z), reverse=True)
        for last, _ in lines_on(pair):
            reader.take(last[1])
            require(reader.number() == last[3], f"word {reader.at}: {last} expected")
            verdict = "<hit>" if last[3] == target else "<lo>" if last[3] < target else "<hi>"
            reader.take(verdict)
            if verdict == "<hit>":
                return [line, last]
    return None


def read_child(reader: Reader) -> tuple[list[int], int, list[Line] | None]:
    """Check a child from `<child>` to `<end>`; returns its numbers, target and what it found."""
    reader.take("<child>")
    target, numbers = reader.target(), _numbers(reader, 3)
    reader.take("<go>")
    found = read_search(reader, numbers, target)
    if found is None:
        reader.take("<none>")
    else:
        require(reader.lines(2) == found, "the answer is not what was found")
    reader.take("<end>")
    return numbers, target, found


def read_round(reader: Reader, numbers: list[int], k: int, tried: list[Line]) -> list[tuple[Line, list[int]]]:
    """Check a spawn list: legal, in canonical order, not tried before, k of them unless fewer are left."""
    legal = lines_on(numbers)
    order = list(dict.fromkeys(line for line, _ in legal))
    reader.take("<spawn>")
    chosen: list[tuple[Line, list[int]]] = []
    while True:
        line = reader.line()
        reader.take("|")
        left = [reader.number(), reader.number()]
        require((line, left) in legal, f"word {reader.at}: {line} | {left} is no candidate")
        require(line not in tried, f"{line} was spawned before")
        require(not chosen or order.index(chosen[-1][0]) < order.index(line), f"{line} is out of order")
        chosen.append((line, left))
        if reader.take(";", "<wait>") == "<wait>":
            break
    require(len(chosen) == min(k, len(order) - len(tried)), f"{len(chosen)} children for width {k}")
    return chosen


def read_join(reader: Reader, chosen: list[tuple[Line, list[int]]], target: int) -> list[list[Line]]:
    """Check a join block: an entry for each child, true in both directions; returns the solutions in it."""
    reader.take("<join>")
    hits = []
    for n, (line, left) in enumerate(chosen):
        if n:
            reader.take("|")
        if reader.take("<none>", "<hit>") == "<none>":
            require(not solvable([line[3], *left], target), f"{line} does lead to {target}")
            continue
        lines = reader.lines(3)
        require(lines[0] == line and solves(lines, [line[0], line[2], *left], target), f"{lines} is no solution")
        hits.append(lines)
    reader.take("<go>")
    return hits


def check_parent(reader: Reader) -> None:
    """A parent's trace, or its context continued by a child (forked)."""
    reader.take("<parent>")
    k, target, numbers = reader.number(), reader.target(), _numbers(reader, 4)
    require(2 <= k <= 8, f"width {k}")
    reader.take("<go>")
    tried: list[Line] = []
    for number in range(1, 4):
        chosen = read_round(reader, numbers, k, tried)
        tried += [line for line, _ in chosen]
        if reader.peek() == "<child>":
            inner, goal, _ = read_child(reader)
            require(goal == target, "the child has another target")
            allowed = [sorted((line[3], *left), reverse=True) for line, left in chosen]
            require(inner in allowed, f"no child was spawned for {inner}")
            return
        hits = read_join(reader, chosen, target)
        if hits:
            reader.take("<hit>")
            require(reader.lines(3) == hits[0], "the answer is not the first hit")
            reader.take("<end>")
            return
        if number == 3 or len(tried) == len(dict.fromkeys(line for line, _ in lines_on(numbers))):
            break
    reader.take("<none>")
    reader.take("<end>")


def check_serial(reader: Reader) -> None:
    """A serial trace; one of exactly SERIAL_TOKENS words may break off anywhere."""
    reader.take("<serial>")
    k, target, numbers = reader.number(), reader.target(), _numbers(reader, 4)
    reader.take("<go>")
    legal = lines_on(numbers)
    order, tried = list(dict.fromkeys(line for line, _ in legal)), [-1]
    while reader.peek() == "<try>":
        reader.take("<try>")
        line = reader.line()
        require(line in order and order.index(line) > tried[-1], f"{line} is illegal, repeated or out of order")
        tried.append(order.index(line))
        reader.take("|")
        inner = _numbers(reader, 3)
        options = [sorted((line[3], *left), reverse=True) for legal_line, left in legal if legal_line == line]
        require(inner in options, f"{inner} is not what {line} leaves")
        reader.take("<go>")
        found = read_search(reader, inner, target)
        if found is not None:
            lines = reader.lines(3)
            require(lines == [line, *found] and solves(lines, numbers, target), "the answer is not what was found")
            reader.take("<end>")
            return
    reader.take("<none>")
    require(len(tried) - 1 == min(k, len(order)), f"gave up after {len(tried) - 1} branches of {k}")
    reader.take("<end>")


def check_direct(reader: Reader) -> None:
    """A direct answer."""
    reader.take("<direct>")
    target, numbers = reader.target(), _numbers(reader, 4)
    reader.take("<go>")
    require(solves(reader.lines(3), numbers, target), "the answer is no solution")
    reader.take("<end>")


def check(text: str) -> str:
    """Verify a whole trace; returns its mode (parent, fork, child, serial, direct) or raises Wrong."""
    reader = Reader(text)
    mode = reader.peek().strip("<>")
    readers: dict[str, Callable[[Reader], object]] = {
        "parent": check_parent, "child": read_child, "serial": check_serial, "direct": check_direct,
    }  # fmt: skip
    if mode not in readers:
        raise Wrong(f"no mode begins with {reader.peek()!r}")
    try:
        readers[mode](reader)
    except Cut:
        # Only a serial trace has a limit of its own; cut there, it was right so far.
        if mode != "serial" or len(reader.words) != SERIAL_TOKENS:
            raise
        return mode
    require(reader.at == len(reader.words), f"words after the end, from {reader.at}")
    return "fork" if mode == "parent" and "<child>" in reader.words else mode
