"""Is `tables` right on questions whose shape, columns masked, was not in its training?

Questions of the test split differ from those of training by their text with slots. With the names of columns and
relations masked as well, most of them have the shape of a question of training. Here the two kinds are asked apart, as
many of each number of calls.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plait.apps.common.intervals import wilson
from plait.core.errors import TaskError
from plait.runtime.client.config import BUNDLED_MODEL
from plait_bench.tasks.tables.language import ATTRIBUTES, RELATIONS, slots, words
from training.export import load
from training.tables.evaluate import Row, natives, plans, reacts, replans
from training.tables.generate import MIXTURE, MOST_SPLIT, Case
from training.tables.questions import MOST_CALLS, draw, is_test

from .._tools.command import Given, command, command_of
from .._tools.statistics import Estimate

__all__ = ["ask", "drawn", "page_of", "shape", "trained"]

TRAINED = 173_000
"""Questions that stand for those of training: 12.0 million tokens at 69.4 a trace in the mean."""
SEED = 6021
_MASKED = re.compile(rf"\b({'|'.join(ATTRIBUTES)})\b|\b({'|'.join(RELATIONS)})\b")


def shape(text: str) -> str:
    """Return a question with slots for names and numbers, `A` for columns and `R` for relations."""
    return _MASKED.sub(lambda match: "A" if match[1] else "R", slots(text)[0])


def trained(count: int, seed: int) -> set[str]:
    """Return the shapes of some questions, drawn as training draws them."""
    rng, shapes = random.Random(f"{seed}/trained"), set[str]()
    for _ in range(count):
        mode = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
        most = MOST_SPLIT if mode in ("split", "formula") else MOST_CALLS
        while is_test(text := words(draw(rng, most=most))):
            pass
        shapes.add(_shape_or_text(text))
    return shapes


def _shape_or_text(text: str) -> str:
    try:
        return shape(text)
    except TaskError:  # more than ten names: no question that is asked
        return text


def drawn(count: int, seed: int, known: set[str]) -> Iterator[tuple[bool, int, str]]:
    """Yield test questions of each number of calls: whether the shape is known, the calls, the text. `count` of unknown
    shape for each number, and as many of known shape; fewer where `600 * count` draws have fewer."""
    rng = random.Random(f"{seed}/asked")
    for size in range(1, MOST_CALLS + 1):
        kinds: dict[bool, dict[str, None]] = {True: {}, False: {}}
        for _ in range(600 * count):
            text = words(draw(rng, size))
            if is_test(text):
                kinds[shape(text) in known].setdefault(text)
            if min(map(len, kinds.values())) >= count:
                break
        for kind, texts in kinds.items():
            yield from ((kind, size, text) for text in list(texts)[: min(count, *map(len, kinds.values()))])


def ask(questions: Sequence[tuple[bool, int, str]], seed: int) -> Iterator[dict[str, Any]]:
    """Yield how many the model gets right in each mode, by kind of shape and number of calls; in plain torch."""
    model = load(Path(BUNDLED_MODEL).with_name("tables"))
    for known in (True, False):
        cases = [Case(text, seed + at) for at, (kind, _, text) in enumerate(questions) if kind == known]
        rows: list[Row] = [plans(model, cases)[1], replans(model, cases, seed), reacts(model, cases, seed)]
        for row in [*rows, natives(model, cases, seed)]:
            for size in sorted(row.asked):
                yield {"mode": row.name, "known": known, "calls": size, "right": row.right[size],
                       "asked": row.asked[size]}  # fmt: skip


def page_of(rows: Sequence[dict[str, Any]], made_by: str) -> str:
    """Return the page as Markdown."""
    shares = [row for row in rows if row["mode"] == "held out"]
    lines = [
        "# Held-out questions by whether their shape was trained on", "", f"`{made_by}`", "",
        "A question of the test split of `tables` is not in training with other names and numbers. With the names of "
        f"columns and relations masked too, its shape may be. {TRAINED:,} questions drawn as training draws them stand "
        "for those of training, 12.0 million tokens. In plain torch, greedy; in the turns one look-up in ten fails. "
        "95 % intervals (Wilson).", "",
        "| calls | held-out questions | shape is in training |", "|---|---|---|",
        *(f"| {row['calls']} | {row['asked']} | {_share([row])} |" for row in shares),
        f"| all | {sum(row['asked'] for row in shares)} | {_share(shares)} |", "",
        "As many questions of each number of calls with a known shape and a new one; numbers of calls without a new "
        "shape are left out.", "",
        "| mode | calls | questions of each | shape known | shape new | new − known |", "|---" * 6 + "|",
    ]  # fmt: skip
    by: dict[tuple[str, bool], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        if row["mode"] != "held out":
            by[row["mode"], row["known"]][row["calls"]] = row
    for mode in dict.fromkeys(mode for mode, _ in by):
        old, new = by[mode, True], by[mode, False]
        for sizes in (sorted(new), *([size] for size in sorted(new))):
            both = [[found[size] for size in sizes] for found in (old, new)]
            label = "all" if len(sizes) > 1 else str(sizes[0])
            count = sum(row["asked"] for row in both[1])
            lines.append(f"| {mode} | {label} | {count} | {_share(both[0])} | {_share(both[1])} | {_less(*both)} |")
    return "\n".join([*lines, ""])


def _share(rows: Sequence[dict[str, Any]]) -> str:
    right, asked = sum(row["right"] for row in rows), sum(row["asked"] for row in rows)
    return Estimate(right / max(1, asked), *wilson(right, asked)).percent()


def _less(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> str:
    """Return the difference of two shares with its interval (Newcombe's, of the two intervals)."""
    ends: list[tuple[float, float, float]] = []
    for rows in (old, new):
        right, asked = sum(row["right"] for row in rows), sum(row["asked"] for row in rows)
        ends.append((right / max(1, asked), *wilson(right, asked)))
    (a, a_low, a_high), (b, b_low, b_high) = ends
    low = b - a - ((b - b_low) ** 2 + (a_high - a) ** 2) ** 0.5
    high = b - a + ((b_high - b) ** 2 + (a - a_low) ** 2) ** 0.5
    return Estimate(b - a, low, high).points()


def _seen(count: int, seed: int, known: set[str]) -> Iterator[dict[str, Any]]:
    """Yield of how many held-out questions the shape is known, by number of calls."""
    rng = random.Random(f"{seed}/held out")
    for size in range(1, MOST_CALLS + 1):
        texts: dict[str, None] = {}
        for _ in range(600 * count):
            if is_test(text := words(draw(rng, size))):
                texts.setdefault(text)
            if len(texts) == count:
                break
        right = sum(shape(text) in known for text in texts)
        yield {"mode": "held out", "known": True, "calls": size, "right": right, "asked": len(texts)}


def run(given: Given) -> str:
    """Ask, write the page, and return it. `--problems` is the number of questions of each kind and number of calls."""
    config = given.common.load()
    path = given.kept("masked_shapes", config.seed)
    if not given.report:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = trained(TRAINED, SEED + config.seed)
        rows = [*_seen(10 * given.problems, SEED + config.seed, known)]
        rows += ask(list(drawn(given.problems, SEED + config.seed, known)), SEED + config.seed)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = given.rows(path)
    made_by = command_of("masked_shapes", config, given.problems)
    return given.write(page_of([json.loads(line) for line in found.lines], made_by), found)


def main() -> None:
    """Ask in plain torch, and write the page."""
    command("masked_shapes", run, problems=40)
