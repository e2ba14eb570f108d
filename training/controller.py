"""Runs the modes on many problems at once: the evaluation's own spawn/join, lock-step and without an
engine.

Decides how model output is judged: an item counts only if it is legal, new and prints the numbers left
correctly; a child's claim reaches the join only after exact replay. All costs are generated tokens; prompts
and joins cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .check import Line, Reader, Wrong, lines_on, solvable, solves
from .decode import generate
from .generate import MAX_ROUNDS, SERIAL_TOKENS
from .model import Llama
from .vocab import END, ID, decode, encode

CHILD_LIMIT = 256
ROUND_LIMIT = 96

Puzzle = tuple[tuple[int, ...], int]  # numbers in descending order, target


@dataclass
class Outcome:
    """What became of one problem. `critical` is the longest chain of tokens, `total` all of them."""

    solved: bool = False
    claimed: bool = False
    critical: int = 0
    total: int = 0
    first_hit: int = 0  # critical path when a round ends with its first right child
    answer: list[Line] = field(default_factory=list)


@dataclass
class ThreadCounts:
    """Sums over all problems of a spawn/join run."""

    rounds: int = 0
    wanted: int = 0  # items that a round should have had
    items: int = 0
    distinct: int = 0  # items that are legal, right and new
    invalid: int = 0
    hits: int = 0  # children that found a solution
    hits_possible: int = 0
    false_claims: int = 0  # children that claimed a wrong one


def answer_of(words: Sequence[str], count: int) -> list[Line] | None:
    """The last `count` steps before `<end>` after the last `<hit>`; None when nothing (readable) is
    claimed.
    """
    if "<hit>" not in words or words[-1] != "<end>":
        return None
    last = len(words) - 1 - list(words)[::-1].index("<hit>")
    out: list[Line] = []
    reader = Reader(" ".join(words[last + 1 : -1]))
    try:
        for i in range(count):
            if i:
                reader.take(";")
            a, op, b = reader.number(), reader.take("+", "-", "*", "/"), reader.number()
            reader.take("=")
            out.append((a, op, b, reader.number()))
    except Wrong:
        return []
    return out if reader.at == len(reader.words) else []


def judge(words: Sequence[str], puzzle: Puzzle) -> Outcome:
    """Outcome of one finished text: claimed if it says `<hit>` … `<end>`, solved if the steps are exactly
    right.
    """
    lines = answer_of(words, 3)
    # A claim is the answer after the last `<hit>`; a text that ends in `<none>` or is cut off claims nothing.
    claimed = lines is not None and "<none>" not in words[-2:]
    solved = bool(lines) and claimed and solves(lines or [], puzzle[0], puzzle[1])
    return Outcome(solved, claimed, len(words), len(words), len(words), (lines or []) if solved else [])


def run_single(
    model: Llama, mode: str, puzzles: Sequence[Puzzle], k: int | None, temperature: float = 0.0, seed: int = 0
) -> list[Outcome]:
    """Serial or direct: one text a problem."""
    width = "" if k is None else f"{k} "
    prompts = [encode(f"<{mode}> {width}T{t} {' '.join(map(str, n))} <go>") for n, t in puzzles]
    limit = SERIAL_TOKENS - max(len(p) for p in prompts)
    texts = generate(model, prompts, {END}, limit, temperature, seed)
    # A direct answer is nothing but the claim; the other modes mark theirs.
    mark = ["<hit>"] if mode == "direct" else []
    out = [judge(mark + decode(ids).split(), puzzle) for ids, puzzle in zip(texts, puzzles, strict=True)]
    for outcome, ids in zip(out, texts, strict=True):
        outcome.critical = outcome.total = outcome.first_hit = len(ids)
    return out


@dataclass
class _Parent:
    puzzle: Puzzle
    k: int
    ids: list[int]
    outcome: Outcome
    tried: set[Line] = field(default_factory=set)
    done: bool = False


def read_items(words: Sequence[str], parent: _Parent, counts: ThreadCounts) -> list[tuple[Line, list[int]] | None]:
    """The items of a spawn list: (step, numbers left), or None for one that is illegal, wrong or repeated."""
    legal = lines_on(parent.puzzle[0])
    left_to_try = len({line for line, _ in legal}) - len(parent.tried)
    counts.rounds += 1
    counts.wanted += min(parent.k, left_to_try)
    out: list[tuple[Line, list[int]] | None] = []
    for part in " ".join(words[1:-1]).split(" ; "):
        item: tuple[Line, list[int]] | None = None
        reader = Reader(part)
        try:
            line = reader.line()
            reader.take("|")
            item = (line, [reader.number(), reader.number()])
        except Wrong:
            item = None
        if item is None or item not in legal:
            counts.invalid += 1
            item = None
        elif item[0] in parent.tried:
            item = None
        else:
            parent.tried.add(item[0])
        out.append(item)
    counts.items += len(out)
    counts.distinct += sum(item is not None for item in out)
    return out


def _finish_round(
    parent: _Parent, items: list[tuple[Line, list[int]] | None], texts: list[list[str]], counts: ThreadCounts
) -> None:
    """Judge the children of one parent's round, write the join and count the cost."""
    target, waiting = parent.puzzle[1], iter(texts)
    entries: list[str] = []
    lengths, right = [0], []
    for item in items:
        entry = "<none>"
        if item is not None:
            words, (line, left) = next(waiting), item
            lengths.append(len(words))
            numbers = sorted([line[3], *left], reverse=True)
            lines = answer_of(words, 2)
            counts.hits_possible += solvable(numbers, target)
            if lines and solves(lines, numbers, target):
                counts.hits += 1
                right.append(len(words))
                steps = [f"{a} {op} {b} = {c}" for a, op, b, c in (line, *lines)]
                entry = "<hit> " + " ; ".join(steps)
            elif lines is not None and "<none>" not in words[-2:]:
                counts.false_claims += 1
        entries.append(entry)
    parent.outcome.total += sum(lengths)
    parent.outcome.critical += max(lengths)
    parent.outcome.first_hit += min(right) if right else max(lengths)
    parent.ids += encode("<join> " + " | ".join(entries) + " <go>")


def _parents_turn(model: Llama, live: list[_Parent], temperature: float, seed: int) -> list[tuple[_Parent, list[str]]]:
    """Let every live parent write; returns those that spawned, with the words of the round."""
    spawned = []
    texts = generate(model, [p.ids for p in live], {END, ID["<wait>"]}, ROUND_LIMIT, temperature, seed)
    for parent, ids in zip(live, texts, strict=True):
        parent.ids += ids
        outcome = parent.outcome
        outcome.total, outcome.critical = outcome.total + len(ids), outcome.critical + len(ids)
        outcome.first_hit += len(ids)
        words = decode(ids).split()
        if words[0] == "<spawn>" and words[-1] == "<wait>":
            spawned.append((parent, words))
            continue
        parent.done = True
        verdict = judge(words, parent.puzzle)
        outcome.solved, outcome.claimed, outcome.answer = verdict.solved, verdict.claimed, verdict.answer
    return spawned


def run_threads(
    model: Llama,
    puzzles: Sequence[Puzzle],
    k: int,
    forked: bool = True,
    parent_temperature: float = 0.0,
    child_temperature: float = 0.0,
    seed: int = 0,
) -> tuple[list[Outcome], ThreadCounts]:
    """Spawn/join on every problem: parents write rounds, children run together, joins go back."""
    counts = ThreadCounts()
    parents = [
        _Parent((n, t), k, encode(f"<parent> {k} T{t} {' '.join(map(str, n))} <go>"), Outcome()) for n, t in puzzles
    ]
    for turn in range(MAX_ROUNDS + 1):
        live = [p for p in parents if not p.done]
        if not live:
            break
        spawned = _parents_turn(model, live, parent_temperature, seed + 2 * turn)
        if turn == MAX_ROUNDS:
            break  # a parent that still spawns has had its rounds
        rounds = [(parent, read_items(words, parent, counts)) for parent, words in spawned]
        prompts: list[list[int]] = []
        for parent, items in rounds:
            for item in items:
                if item is not None:
                    inner = sorted([item[0][3], *item[1]], reverse=True)
                    header = encode(f"<child> T{parent.puzzle[1]} {' '.join(map(str, inner))} <go>")
                    prompts.append([*parent.ids, *header] if forked else header)
        texts = generate(model, prompts, {END}, CHILD_LIMIT, child_temperature, seed + 2 * turn + 1)
        at = 0
        for parent, items in rounds:
            used = sum(item is not None for item in items)
            _finish_round(parent, items, [decode(ids).split() for ids in texts[at : at + used]], counts)
            at += used
    return [p.outcome for p in parents], counts
