"""Are samples by spread codes (`sample:arithmetic=true`) better than independent ones?"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from plait.core.ops import Plugin
from plait.planners._shared.steps import derive, trajectory_code
from plait.runtime.client.config import BUNDLED_MODEL
from plait.runtime.plugins.loader import Plugins
from plait.workers._shared.arithmetic_codes import ArithmeticCode

from .._tools.command import Given, command
from .._tools.statistics import Estimate, difference, mean, saving
from .._tools.voters.sums import LEVELS, TOKENS, sums

__all__ = ["REPEATS", "SIZES", "Drawn", "collect", "page_of", "read"]

SIZES = (4, 8, 16, 32)
REPEATS = 4
"""Votes of each size for each sum, with seeds of their own: their spread is what the codes are to make smaller."""


ROWS = 256


class Vote(NamedTuple):
    """A vote to draw."""

    size: int
    codes: bool
    repeat: int


class Drawn(TypedDict):
    """One vote's samples."""

    level: int
    text: str
    size: int
    codes: bool
    repeat: int
    answers: list[int | None]


def _votes(texts: Sequence[str]) -> dict[tuple[int, str], list[Vote]]:
    """Return the votes to draw, by level and sum. Of independent samples the largest vote is drawn, and its beginnings
    are the others."""
    kinds = [*((size, True) for size in SIZES), (SIZES[-1], False)]
    votes = [Vote(*kind, repeat) for kind in kinds for repeat in range(REPEATS)]
    return {(level, text): votes for text in texts for level in LEVELS}


def read(kept: Path) -> list[Drawn]:
    """Return the samples drawn so far; a last line that was cut off is left out."""
    lines = kept.read_text(encoding="utf-8").split("\n")[:-1] if kept.is_file() else []
    return [json.loads(line) for line in lines]


def collect(count: int, seed: int, kept: Path) -> None:
    """Draw what is missing, in plain torch with the functions that sample in the engine. Every sum is on disk when it
    is done."""
    have = {(each["level"], each["text"]) for each in read(kept)}
    votes = _votes(sums(count, seed))
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a", encoding="utf-8") as file:
        for level, text in votes:
            if (level, text) not in have:
                found = _drawn(level, text, votes[level, text], seed)
                file.write("".join(json.dumps(each) + "\n" for each in found))
                file.flush()


def _drawn(level: int, text: str, votes: Sequence[Vote], seed: int) -> list[Drawn]:
    import torch

    from plait.workers.engine.arithmetic import chosen
    from training.arithmetic.vocab import END, ID, WORDS

    task = Plugins().task(Plugin(name="sums", options={"skill": level}), text)
    prompt = [ID[word] for word in task.render().split()]
    lines = [_Line.of(vote, i, level, text, seed) for vote in votes for i in range(1, vote.size + 1)]
    model, known = _model(), dict[tuple[int, ...], Any]()
    with torch.inference_mode():
        for position in range(TOKENS):
            live = [line for line in lines if not line.done]
            missing = list({tuple(line.words) for line in live} - known.keys())
            for at in range(0, len(missing), ROWS):
                part = missing[at : at + ROWS]
                told = model.hidden(torch.tensor([[*prompt, *words] for words in part]), torch.float32)[:, -1:]
                known.update(zip(part, model.logits(told, torch.float32)[:, 0].double(), strict=True))
            if not live:
                break
            codes = [line.next(position) for line in live]
            rows = torch.stack([known[tuple(line.words)] for line in live])
            for line, token in zip(live, chosen(rows, codes).tolist(), strict=True):
                line.done = token == END
                line.words += [] if line.done else [token]
    said = [task.extract(" ".join(WORDS[word] for word in line.words)) for line in lines]
    answers = iter([each if isinstance(each, int) else None for each in said])
    return [
        Drawn(level=level, text=text, size=vote.size, codes=vote.codes, repeat=vote.repeat,
              answers=list(islice(answers, vote.size)))
        for vote in votes
    ]  # fmt: skip


@dataclass(slots=True)
class _Line:
    """A sample in flight: one code for all its tokens, or a new one for each."""

    code: ArithmeticCode | None
    rng: random.Random
    words: list[int] = field(default_factory=list[int])
    done: bool = False

    @classmethod
    def of(cls, vote: Vote, index: int, level: int, text: str, seed: int) -> _Line:
        run = seed * 1_000_003 + 101 * vote.repeat + vote.size
        own = derive(run, "sample", index)
        code = ArithmeticCode(trajectory_code(run, index, vote.size), own) if vote.codes else None
        return cls(code, random.Random(f"{level}{text}{own}"))

    def next(self, position: int) -> ArithmeticCode:
        if self.code is None:
            return ArithmeticCode(self.rng.random(), position)
        self.code = self.code.at(position)
        return self.code


@lru_cache(maxsize=1)
def _model() -> Any:
    import torch

    from training.export import load

    torch.set_num_threads(1)
    return load(Path(BUNDLED_MODEL).with_name("arithmetic"))


def page_of(drawn: Sequence[Drawn], command: str) -> str:
    """Return the page as Markdown."""
    plugins = Plugins()
    by_sum: dict[tuple[int, str], list[Drawn]] = {}
    for each in drawn:
        by_sum.setdefault((each["level"], each["text"]), []).append(each)
    full = len(SIZES) * REPEATS + REPEATS
    whole = {place: votes for place, votes in by_sum.items() if len(votes) == full}
    lines = [
        "# Arithmetic sampling among voters that err", "",
        "Do samples whose codes are spread evenly (`sample:arithmetic=true`) make a vote better, or steadier, than as "
        "many independent ones?", "",
        f"`{command}`", "",
        f"{len(whole)} sums and levels of the bundled model `arithmetic` (temperature 1; in plain torch with "
        f"the functions that sample in the engine, which tests hold to the engine's own distribution), {REPEATS} "
        "votes of each size with seeds of their own. *Spread*: standard deviation of the share of right samples over "
        "the votes of one sum, for which independent samples have sqrt(p (1 - p) / n); mean over sums. *Distinct*: "
        "different answers in a vote. *Solved*: by the majority, the earliest of equals; *any*: at least one right. "
        "Differences are paired by sum, 95 % intervals, sums resampled.", "",
        "| samples | spread, independent | spread, codes | codes ÷ independent | distinct | any right | solved | "
        "change in any | change in solved |", "|---" * 9 + "|",
    ]  # fmt: skip
    for size in SIZES:
        found = [
            [_measured(votes, size, codes, plugins.task(Plugin(name="sums", options={"skill": level}), text).verify)
             for codes in (False, True)]
            for (level, text), votes in whole.items()
        ]  # fmt: skip
        table = np.array(found)  # of shape (sums, 2, 4)
        plain, codes = table[:, 0], table[:, 1]
        left = saving(codes[:, 0], plain[:, 0])  # the ratio is what is left
        cells = (
            str(size), _fine(mean(plain[:, 0])), _fine(mean(codes[:, 0])),
            f"{1 - left.value:.2f} ({1 - left.high:.2f}–{1 - left.low:.2f})",
            f"{plain[:, 1].mean():.1f} → {codes[:, 1].mean():.1f}",
            f"{mean(plain[:, 2]).percent()} → {mean(codes[:, 2]).percent()}",
            f"{mean(plain[:, 3]).percent()} → {mean(codes[:, 3]).percent()}",
            difference(codes[:, 2], plain[:, 2]).points(), difference(codes[:, 3], plain[:, 3]).points(),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _fine(found: Estimate) -> str:
    return f"{found.value:.4f} ({found.low:.4f}–{found.high:.4f})"


def _measured(votes: Sequence[Drawn], size: int, codes: bool, verify: object) -> tuple[float, float, float, float]:
    """Return spread, distinct answers, share of votes with a right one, and share solved, of a sum."""
    assert callable(verify)
    drawn = [each["answers"][:size] for each in votes if each["codes"] == codes and (not codes or each["size"] == size)]
    shares = [float(np.mean([verify(answer) is True for answer in answers])) for answers in drawn]
    solved: list[bool] = []
    for answers in drawn:
        counts = Counter(answer for answer in answers if answer is not None)
        solved.append(bool(counts) and verify(counts.most_common(1)[0][0]) is True)
    distinct = float(np.mean([len(set(answers)) for answers in drawn]))
    return (
        float(np.std(shares, ddof=1)),
        distinct,
        float(np.mean([share > 0 for share in shares])),
        float(np.mean(solved)),
    )


def run(given: Given) -> str:
    """Draw what is missing, write the page, and return it."""
    seed, kept = given.common.load().seed, given.records / "arithmetic_sampling.jsonl"
    if not given.report:
        collect(given.problems, seed, kept)
    made_by = f"python -m experiments arithmetic_sampling --problems {given.problems} --seed {seed}"
    found = given.rows(kept)
    return given.write(page_of([json.loads(line) for line in found.lines], made_by), found)


def main() -> None:
    """Draw the votes in plain torch, and write the page."""
    command("arithmetic_sampling", run, problems=20)
