"""Samples games of five-number Countdown by threads, many at once, and makes rollout records of them.

The same rules as the planner `threads` with its dialect `countdown`, fresh threads and `settle`: a round's items that
are legal and new get a thread each; a thread's claim that replays exactly is the answer, and the game ends; after a
round without one the parent reads a join of `<none>` and writes another, `ROUNDS` at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait_research.rollouts.record import Record, Role, WeightsSegment

from ..check import Line, Reader, Wrong, lines_on, solves
from ..controller import Puzzle, answer_of
from ..decode import generate_scored
from ..model import Llama
from ..vocab import END, ID, decode
from .five import ROUNDS, WIDTH, child_prompt, parent_prompt

PARENT_TOKENS = 96
CHILD_TOKENS = 24
_WAIT, _SPAWN = ID["<wait>"], ID["<spawn>"]


@dataclass(slots=True)
class Written:
    """One sequence: ids, which of them the model wrote, and their log-probabilities."""

    ids: list[int]
    mask: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    hit: bool = False

    def __post_init__(self) -> None:
        self.read([])

    def read(self, ids: Sequence[int]) -> None:
        """Append what the model did not write."""
        self.ids += ids
        missing = len(self.ids) - len(self.mask)
        self.mask += [0] * missing
        self.logprobs += [0.0] * missing

    def wrote(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append what the model wrote."""
        self.ids += ids
        self.mask += [1] * len(ids)
        self.logprobs += logprobs

    def segments(self, policy: int, first: Role) -> tuple[WeightsSegment, ...]:
        """Return the segments that the model wrote: one by the thread that began, and one after each join."""
        starts = [at for at, one in enumerate(self.mask) if one and not (at and self.mask[at - 1])]
        ends = [at + 1 for at, one in enumerate(self.mask) if one and not (self.mask[at + 1 :] or [0])[0]]
        return tuple(
            WeightsSegment(start=start, end=end, policy=policy, role="join" if n else first, temperature=1.0)
            for n, (start, end) in enumerate(zip(starts, ends, strict=True))
        )


@dataclass(slots=True)
class Game:
    """One problem being played. `critical` and `total` count generated tokens."""

    puzzle: Puzzle
    parent: Written
    threads: list[Written] = field(default_factory=list[Written])
    tried: set[Line] = field(default_factory=set[Line])
    solved: bool = False
    over: bool = False
    rounds: int = 0
    critical: int = 0
    total: int = 0

    def items(self, words: Sequence[str]) -> list[tuple[int, ...] | None]:
        """Return the numbers of each item's thread (descending), `None` for one that is illegal, wrong or repeated."""
        legal = lines_on(self.puzzle[0])
        out: list[tuple[int, ...] | None] = []
        for part in " ".join(words[1:-1]).split(" ; ")[:WIDTH]:
            reader = Reader(part)
            try:
                line = reader.line()
                reader.take("|")
                left = [reader.number() for _ in range(len(self.puzzle[0]) - 2)]
            except Wrong:
                out.append(None)
                continue
            good = (line, left) in legal and line not in self.tried
            self.tried.add(line)
            out.append(tuple(sorted([line[3], *left], reverse=True)) if good else None)
        return out


def play(model: Llama, puzzles: Sequence[Puzzle], temperature: float, seed: int = 0) -> list[Game]:
    """Play every problem to its end."""
    games = [Game(puzzle, Written(parent_prompt(*puzzle))) for puzzle in puzzles]
    for turn in range(ROUNDS + 1):
        live = [game for game in games if not game.over]
        spawned = _parents(model, live, temperature, seed + 2 * turn, last=turn == ROUNDS)
        _children(model, spawned, temperature, seed + 2 * turn + 1)
    return games


def _parents(
    model: Llama, live: list[Game], temperature: float, seed: int, last: bool
) -> list[tuple[Game, list[tuple[int, ...] | None]]]:
    """Let every parent write; return those that spawned, with the items of the round."""
    prompts = [game.parent.ids for game in live]
    spawned: list[tuple[Game, list[tuple[int, ...] | None]]] = []
    texts = generate_scored(model, prompts, {END, _WAIT}, PARENT_TOKENS, temperature, seed) if prompts else []
    for game, (ids, logprobs) in zip(live, texts, strict=True):
        game.parent.wrote(ids, logprobs)
        game.total += len(ids)
        game.critical += len(ids)
        items = game.items(decode(ids).split()) if ids[0] == _SPAWN and ids[-1] == _WAIT and not last else []
        if any(items):
            game.rounds += 1
            spawned.append((game, items))
        else:
            game.over = True  # it gave up, or wrote nonsense; it has read of no solution that it could tell
    return spawned


def _children(
    model: Llama, spawned: list[tuple[Game, list[tuple[int, ...] | None]]], temperature: float, seed: int
) -> None:
    asked = [(game, numbers) for game, items in spawned for numbers in items if numbers is not None]
    if not asked:
        return
    prompts = [child_prompt(numbers, game.puzzle[1]) for game, numbers in asked]
    texts = generate_scored(model, prompts, {END}, CHILD_TOKENS, temperature, seed)
    longest: dict[int, int] = {}
    for (game, numbers), prompt, (ids, logprobs) in zip(asked, prompts, texts, strict=True):
        thread = Written(list(prompt))
        thread.wrote(ids, logprobs)
        lines = answer_of(decode(ids).split(), len(numbers) - 1)
        thread.hit = bool(lines) and solves(lines or [], numbers, game.puzzle[1])
        game.threads.append(thread)
        game.solved = game.solved or thread.hit
        game.total += len(ids)
        longest[id(game)] = max(longest.get(id(game), 0), len(ids))
    for game, items in spawned:
        game.critical += longest[id(game)]
        game.over = game.solved
        if not game.over:
            block = ["<join>", *" | ".join(["<none>"] * len(items)).split(), "<go>"]
            game.parent.read([ID[word] for word in block])


def reward(game: Game, acceleration: float = 0.2) -> float:
    """1 for a solved problem, and a share of `acceleration` for threads that shorten the critical path (ThreadWeaver,
    arXiv 2512.07843): `1 + acceleration * (1 - critical / total)`. 0 for one that is not solved."""
    return 1.0 + acceleration * (1 - game.critical / max(1, game.total)) if game.solved else 0.0


def thread_reward(record: Record) -> float | None:
    """1 for a thread whose claim replays exactly, 0 for another; `None` for a parent, which only its rollout judges."""
    if record.parent is None:
        return None
    words = decode(record.tokens).split()
    # A thread that was forked has its parent's context before its own question.
    words = words[len(words) - 1 - words[::-1].index("<child>") :]
    asked = words.index("<go>")
    numbers = sorted((int(word) for word in words[2:asked]), reverse=True)
    lines = answer_of(words[asked + 1 :], len(numbers) - 1)
    return float(bool(lines) and solves(lines or [], numbers, int(words[1].removeprefix("T"))))


def records(game: Game, group: str, branch: int, policy: int) -> list[Record]:
    """Return the game as records: the parent, then its threads."""
    sequences = [game.parent, *game.threads]
    return [
        Record(
            rollout=f"{group}/{branch}",
            group=group,
            branch=branch,
            index=index,
            of=len(sequences),
            parent=0 if index else None,
            tokens=tuple(each.ids),
            mask=tuple(each.mask),
            logprobs=tuple(min(0.0, value) for value in each.logprobs),
            segments=each.segments(policy, "thread" if index else "parent"),
            reward=reward(game),
            own=float(each.hit) if index else None,
        )
        for index, each in enumerate(sequences)
    ]
