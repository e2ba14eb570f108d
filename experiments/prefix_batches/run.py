"""What does the order of a batch with shared prefixes save on vLLM's scheduler? Virtual time.

    python -m experiments prefix_batches --predict   (`plait simulate` alone, before anything is measured)
    python -m experiments prefix_batches             (vLLM's own scheduler and prefix cache)

As BatchLLM (arXiv 2412.03594) describes them: 400 prefixes of 2,000 tokens with 8 rows each, 200 tokens of a row's own,
100 of answer, shuffled; 256 rows in flight. All prefixes together are 800,000 tokens, the cache holds 420,000 and the
rows in flight. The rows go through what `plait batch` runs (`_tools/virtual_vllm` is the engine).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from plait import AsyncOrchestrator, Plugin
from plait.apps.batch.rows import Order, in_order
from plait.core.events import Job
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.runtime.client.config import Config
from plait_research.simulation.workload import simulate_workload

from .._tools import trie_order
from .._tools.virtual_vllm import Engine, VllmWorker, host, run_virtual

PAGE = Path(__file__).with_name("README.md")
PREDICTED, MEASURED = PAGE.parent / "data" / "predicted.jsonl", PAGE.parent / "data" / "rows.jsonl"
PREFIXES, SHARING, PREFIX, OWN, ANSWER, SLOTS, FILES = 400, 8, 2_000, 200, 100, 256, 3
LETTERS = "abcdfgjklmopqsuvwxyz"
"""Each is a token of the engine's tokenizer, whatever stands beside it."""
WAYS: dict[str, tuple[Order, tuple[str, ...]]] = {
    "--order file": ("file", ()),
    "--order prefix": ("prefix", ()),
    "--order file, trie-order": ("file", (trie_order.ADDRESS,)),
}
Row = dict[str, Any]


def texts(seed: int) -> list[str]:
    """Return the rows of a file, shuffled."""
    rng = Random(seed)
    prefixes = ["".join(rng.choices(LETTERS, k=PREFIX)) for _ in range(PREFIXES)]
    rows = [prefix + "".join(rng.choices(LETTERS, k=OWN)) for prefix in prefixes for _ in range(SHARING)]
    rng.shuffle(rows)
    return rows


def ordered(seed: int, order: Order) -> list[str]:
    """Return the rows of a file as `plait batch` takes them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(seed)), encoding="utf-8")
        return [row.fields["text"] for row in in_order(file, order, lambda number: True)]


def request_of(text: str, policies: Sequence[str]) -> Request:
    """Return the request of a row."""
    planner = Plugin(name="single", options={"answer": {"max_tokens": ANSWER, "stream": False}})
    return Request.model_validate({"text": text, "planner": planner, "policies": policies})


def predict(seed: int, way: str) -> Row:
    """Return seconds and computed prompt tokens of a file by `plait simulate`, where a token has four characters."""
    order, policies = WAYS[way]
    asked = [request_of("".join(4 * letter for letter in text), policies) for text in ordered(seed, order)]

    def outcome(job: Job, rng: Random) -> Result:
        return Result(value="a" * ANSWER, usage=Usage(completion=ANSWER))

    report = simulate_workload(asked, [0.0] * len(asked), hosts=[host(SLOTS)], outcome=outcome)
    assert report.done == len(asked), report.failure
    return {"seconds": round(report.makespan, 3), "computed": report.prompt_computed}


def measure(seed: int, way: str) -> Row:
    """Return seconds and computed prompt tokens of a file on vLLM's scheduler."""
    order, policies = WAYS[way]
    asked = iter([request_of(text, policies) for text in ordered(seed, order)])

    async def work() -> Row:
        worker = VllmWorker(lambda _: "a" * ANSWER, slots=SLOTS)
        worker.engine = Engine(SLOTS, model=Config.load().model)
        clock = asyncio.get_running_loop().time

        async def take_rows() -> None:
            for request in asked:
                (await orchestrator.run(request)).unwrap()

        async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
            start = clock()
            await asyncio.gather(*(take_rows() for _ in range(SLOTS)))
            written = PREFIXES * SHARING * (ANSWER - 1)  # the first token comes with the prompt's last
            return {"seconds": round(clock() - start, 3), "computed": worker.engine.computed - written}

    return run_virtual(work)


def rows_of(by: Callable[[int, str], Row]) -> Iterator[Row]:
    """Yield a row for each file and way."""
    for seed, way in product(range(FILES), WAYS):
        yield {"file": seed, "way": way, **by(seed, way)}
        sys.stderr.write(f"file {seed}, {way}\n")


def spread(values: Sequence[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(measured: Sequence[Mapping[str, Any]], predicted: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page."""
    unique = PREFIXES * (PREFIX + SHARING * OWN)
    head = ("way", "computed ÷ unique", "seconds", "file's seconds ÷", "`plait simulate`: seconds", "off, %")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    base = [row["seconds"] for row in measured if row["way"] == "--order file"]
    for way in WAYS:
        mine, before = ([row for row in rows if row["way"] == way] for rows in (measured, predicted))
        seconds, foreseen = ([row["seconds"] for row in rows] for rows in (mine, before))
        lines.append(
            f"| `{way}` | {spread([row['computed'] / unique for row in mine], '.2f')} | {spread(seconds, '.1f')} "
            f"| {spread([a / b for a, b in zip(base, seconds, strict=True)], '.2f')} | {spread(foreseen, '.1f')} "
            f"| {spread([100 * (a / b - 1) for a, b in zip(foreseen, seconds, strict=True)], '+.1f')} |"
        )
    return "\n".join(lines) + "\n"


def read(path: Path) -> list[Row]:
    """Return the rows of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def page(text: str, measured: Sequence[Mapping[str, Any]], predicted: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with the table of some rows."""
    head, _, rest = text.partition("\n| way |")
    return f"{head}\n{table(measured, predicted)}\n{rest.partition(chr(10) * 2)[2]}"


def main() -> None:
    """Predict, or measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments prefix_batches", description=__doc__)
    parser.add_argument("--predict", action="store_true", help="only simulate")
    parser.add_argument("--report", action="store_true", help="write the page of the rows that are kept")
    options = parser.parse_args()
    if not options.report:
        rows = list(rows_of(predict if options.predict else measure))
        kept = PREDICTED if options.predict else MEASURED
        kept.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    if not options.predict:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read(MEASURED), read(PREDICTED)), encoding="utf-8")


if __name__ == "__main__":
    main()
