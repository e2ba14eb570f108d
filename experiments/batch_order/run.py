"""What does the order of a batch save where the engine's cache is too small?

`plait batch --order` on a shuffled file of rows that share beginnings, with one engine and too small a cache.

    python -m experiments batch_order [--rounds 6] [--seconds 400]

The engine is vLLM on a CPU with the bundled model and a cache of 12,000 tokens. A file has 600 rows: ten instructions
of 256 tokens, six documents of 256 tokens behind each, and on average ten questions of 40 tokens about each document,
so 42,000 tokens of beginnings; up to 32 tokens of answer. A few documents have many questions and most have few, as
words of a text are (Zipf). 64 rows are in flight, as by default. The rows go through what `plait batch` runs: in the
file's order, with `--order prefix`, in the file's order with the policy `trie-order`, which sees the 64 alone, and
sorted by prefix with the documents first that have most to write for each token to read (BatchLLM, arXiv 2412.03594).
Every round has a new file, and each way runs one with tokens of its own, in turn, on the same engine.

Prompt tokens computed ÷ unique, and rows a second beside the file's order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Config
from plait.apps.batch.rows import BatchRow, Order, in_order, outcome
from plait.apps.common.interrupt import Stopper
from plait.apps.common.progress import for_each
from plait.core.messages import pluralise
from plait.core.request import Request
from plait.workers.engine import Engine

from .._tools import trie_order
from .._tools.command import Given, given_of, page_options
from .._tools.kept import add_row
from .._tools.measure import interleave, spread
from .._tools.prompts import BYTES_A_TOKEN, unique, words

ROWS, INSTRUCTIONS, DOCUMENTS, PIECE, OWN, ANSWER = 600, 10, 6, 256, 40, 32
CACHE, UNDER_WAY = 12_000, 64
WAYS: dict[str, tuple[Order, dict[str, Any]]] = {
    "--order file": ("file", {}),
    "--order prefix": ("prefix", {}),
    "--order file, trie-order": ("file", {"policies": (trie_order.ADDRESS,)}),
    "--order prefix, most to write first": ("prefix", {}),
}
MOST_FIRST = "--order prefix, most to write first"


@dataclass
class Measurement:
    """What a file came to."""

    computed: int
    unique: int
    seconds: float
    cpu: float
    load: float

    @property
    def ratio(self) -> float:
        """Prompt tokens computed ÷ unique."""
        return self.computed / self.unique

    @property
    def rate(self) -> float:
        """Rows a second."""
        return ROWS / self.seconds


def texts(rng: random.Random) -> list[str]:
    """Return the rows of a file, shuffled."""
    starts: list[str] = []
    for _ in range(INSTRUCTIONS):
        instruction = words(rng, PIECE)
        starts += [f"{instruction} {words(rng, PIECE)}" for _ in range(DOCUMENTS)]
    rng.shuffle(starts)
    weights = [1 / (1 + i) for i in range(len(starts))]
    chosen = [*starts, *rng.choices(starts, weights, k=ROWS - len(starts))]
    rng.shuffle(chosen)
    return [f"{start} {words(rng, OWN)}" for start in chosen]


def most_first(rows: Iterable[BatchRow]) -> list[BatchRow]:
    """Return rows that are sorted by prefix, the documents first that have most to write for each token to read."""
    groups = [list(group) for _, group in groupby(rows, lambda row: row.fields["text"].split()[: 2 * PIECE])]
    groups.sort(key=lambda group: -len(group) * ANSWER / (2 * PIECE + len(group) * OWN))
    return [row for group in groups for row in group]


async def play(orchestrator: AsyncOrchestrator, file: Path, lines: list[str], way: str) -> Measurement:
    """Run a file, which has these rows."""
    order, options = WAYS[way]
    stopper = Stopper(asyncio.get_running_loop())
    answer = {"max_tokens": ANSWER, "temperature": 1.0, "stream": False}
    planner = {"name": "single", "options": {"answer": answer}}
    request = Request.model_validate({"text": "", "planner": planner, **options})
    computed = 0

    async def solve(row: BatchRow) -> None:
        nonlocal computed
        found = await outcome(orchestrator, row, request, stopper)
        assert found is not None and found["status"] == "done", found
        computed += found["prompt_tokens"] - found["cached_tokens"]

    cpu, began = time.process_time(), time.perf_counter()
    rows = in_order(file, order, lambda number: True)
    await for_each(most_first(rows) if way == MOST_FIRST else rows, solve, UNDER_WAY, stopper)
    return Measurement(
        computed, unique(lines), time.perf_counter() - began, time.process_time() - cpu, os.getloadavg()[0]
    )


async def measured(ways: Sequence[str], rounds: int, seconds: float, kept: Path) -> None:
    """Write what each way came to in each round, a row for each file."""
    played = dict.fromkeys(ways, 0)
    config = Config(journal="off")
    engine = Engine(config.model, slots=UNDER_WAY, kv_cache_memory_bytes=CACHE * BYTES_A_TOKEN)
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncOrchestrator(workers=[engine], config=config) as orchestrator:
            made: dict[str, Callable[[], Awaitable[float]]] = {}
            for way in ways:

                async def one(way: str = way) -> float:
                    lines = texts(random.Random(f"{way}, {played[way]}"))
                    file = Path(folder) / "rows.jsonl"
                    await asyncio.to_thread(
                        file.write_text, "".join(json.dumps({"text": text}) + "\n" for text in lines)
                    )
                    figures = await play(orchestrator, file, lines, way)
                    played[way] += 1
                    add_row(kept, {"way": way, **asdict(figures)})
                    sys.stderr.write(
                        f"{way}: {figures.ratio:.3f} computed, {figures.rate:.1f} rows/s, {figures.cpu:.1f} s CPU\n"
                    )
                    return figures.rate

                made[way] = one
            await interleave(made, rounds, 0, seconds)


def table(found: Mapping[str, Sequence[Measurement]]) -> str:
    """Return the table of a page."""
    base = found["--order file"]
    lines = [
        "| | computed ÷ unique | rows a second | ÷ the file's | CPU, ÷ the file's |",
        "|---|---|---|---|---|",
    ]
    for way, figures in found.items():
        pairs = list(zip(figures, base, strict=True))
        gain, cpu = spread([a.rate / b.rate for a, b in pairs]), spread([a.cpu / b.cpu for a, b in pairs])
        read, rate = spread([each.ratio for each in figures]), spread([each.rate for each in figures])
        lines.append(f"| `{way}` | {read} | {rate} | {gain} | {cpu} |")
    return "\n".join(lines)


TITLE = """# The order of a batch on one engine

What `plait batch --order prefix` saves when the rows of a file share beginnings and the engine's cache is too small for
all of them.

`{command}`

The engine is vLLM on a CPU with the bundled model and a cache of {cache:,} tokens. A file has {rows} shuffled rows: ten
instructions of 256 tokens, six documents of 256 tokens behind each, ten questions of 40 tokens about a document on
average (a few documents have many, most have few), at most {answer} tokens of answer. The beginnings alone are 18,000
tokens, 42,000 with the questions. {under_way} rows are in flight, which is the default. {rounds}, a new file for each,
all ways in turn on the same engine. Median (lowest–highest); ratios are taken within a round. Threads that ran or
waited for a core: {load:.0f} in the median.
"""


def page_of(found: Mapping[str, Sequence[Measurement]], command: str, load: float) -> str:
    """Return the page as Markdown."""
    rounds = pluralise(len(found["--order file"]), "round")
    figures = {"cache": CACHE, "rows": ROWS, "answer": ANSWER, "under_way": UNDER_WAY, "rounds": rounds}
    return f"{TITLE.format(command=command, load=load, **figures)}\n{table(found)}\n"


def run(given: Given, ways: Sequence[str], rounds: int, seconds: float) -> str:
    """Measure, write the page, and return it."""
    kept = given.records / "batch_order.jsonl"
    if not given.report:
        kept.unlink(missing_ok=True)
        asyncio.run(measured(ways, rounds, seconds, kept))
    found = given.rows(kept)
    by_way: dict[str, list[Measurement]] = {}
    for row in map(json.loads, found.lines):
        by_way.setdefault(row.pop("way"), []).append(Measurement(**row))
    whole = min(map(len, by_way.values()))  # a round that was cut off is left out
    by_way = {way: figures[:whole] for way, figures in by_way.items()}
    load = statistics.median(figures.load for all_ in by_way.values() for figures in all_)
    command = f"python -m experiments batch_order --rounds {len(by_way['--order file'])}"
    return given.write(page_of(by_way, command, load), found)


def main() -> None:
    """Measure, write the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments batch_order", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no round begins that would end later")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be given several times; by default all")
    page_options(parser, "batch_order")
    options = parser.parse_args()
    given = given_of(options, "batch_order")
    sys.stdout.write(run(given, options.way or list(WAYS), options.rounds, options.seconds))
