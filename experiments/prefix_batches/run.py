"""What does the order of a batch with shared prefixes save on vLLM's scheduler? Virtual time.

    python -m experiments prefix_batches --predict   (`plait simulate` alone, before anything is measured)
    python -m experiments prefix_batches             (vLLM's own scheduler and prefix cache)
    python -m experiments prefix_batches --steps [--predict]   (an engine whose steps decode and prefill, other batches)

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
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from plait import AsyncOrchestrator, Plugin
from plait.apps.batch.rows import Order, in_order
from plait.core.events import Job
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.runtime.client.config import Config
from plait_research.simulation.workload import simulate_workload

from .._tools import trie_order
from .._tools.virtual_vllm import Engine, VllmWorker, host, host_of_steps, run_virtual

PAGE = Path(__file__).with_name("README.md")
PREDICTED, MEASURED = PAGE.parent / "data" / "predicted.jsonl", PAGE.parent / "data" / "rows.jsonl"
FORESEEN, FOUND = PAGE.parent / "data" / "predicted_steps.jsonl", PAGE.parent / "data" / "rows_steps.jsonl"
FILES = 3


class Shape(NamedTuple):
    """A batch: prefixes, rows of each; tokens of a prefix, of a row's own and of an answer; rows in flight."""

    prefixes: int = 400
    sharing: int = 8
    prefix: int = 2_000
    own: int = 200
    answer: int = 100
    slots: int = 256


FIRST, OTHER = Shape(), Shape(300, 6, 2_500, 150, 150, 192)
"""`OTHER`: never run on the engine whose steps decode and prefill before its claim."""
LETTERS = "abcdfgjklmopqsuvwxyz"
"""Each is a token of the engine's tokenizer, whatever stands beside it."""
WAYS: dict[str, tuple[Order, tuple[str, ...]]] = {
    "--order file": ("file", ()),
    "--order prefix": ("prefix", ()),
    "--order file, trie-order": ("file", (trie_order.ADDRESS,)),
}
Row = dict[str, Any]


def texts(seed: int, shape: Shape = FIRST) -> list[str]:
    """Return the rows of a file, shuffled."""
    rng = Random(seed)
    prefixes = ["".join(rng.choices(LETTERS, k=shape.prefix)) for _ in range(shape.prefixes)]
    rows = [prefix + "".join(rng.choices(LETTERS, k=shape.own)) for prefix in prefixes for _ in range(shape.sharing)]
    rng.shuffle(rows)
    return rows


def ordered(seed: int, order: Order, shape: Shape = FIRST) -> list[str]:
    """Return the rows of a file as `plait batch` takes them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(seed, shape)), encoding="utf-8")
        return [row.fields["text"] for row in in_order(file, order, lambda number: True)]


def request_of(text: str, policies: Sequence[str], answer: int = FIRST.answer) -> Request:
    """Return the request of a row."""
    planner = Plugin(name="single", options={"answer": {"max_tokens": answer, "stream": False}})
    return Request.model_validate({"text": text, "planner": planner, "policies": policies})


def predict(seed: int, way: str, shape: Shape = FIRST) -> Row:
    """Return seconds and computed prompt tokens of a file by `plait simulate`, where a token has four characters.
    Steps of the engine decode and prefill in the other batches alone."""
    order, policies = WAYS[way]
    lines = ordered(seed, order, shape)
    engine = host(shape.slots) if shape == FIRST else host_of_steps(shape.slots)
    asked = [request_of("".join(engine.text * letter for letter in text), policies, shape.answer) for text in lines]

    def outcome(job: Job, rng: Random) -> Result:
        return Result(value="a" * shape.answer, usage=Usage(completion=shape.answer))

    report = simulate_workload(asked, [0.0] * len(asked), hosts=[engine], outcome=outcome)
    assert report.done == len(asked), report.failure
    return {"seconds": round(report.makespan, 3), "computed": report.prompt_computed}


def measure(seed: int, way: str, shape: Shape = FIRST) -> Row:
    """Return seconds and computed prompt tokens of a file on vLLM's scheduler."""
    order, policies = WAYS[way]
    asked = iter([request_of(text, policies, shape.answer) for text in ordered(seed, order, shape)])

    async def work() -> Row:
        worker = VllmWorker(lambda _: "a" * shape.answer, slots=shape.slots)
        worker.engine = Engine(shape.slots, model=Config.load().model)
        clock = asyncio.get_running_loop().time

        async def take_rows() -> None:
            for request in asked:
                (await orchestrator.run(request)).unwrap()

        async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
            start = clock()
            await asyncio.gather(*(take_rows() for _ in range(shape.slots)))
            written = (
                shape.prefixes * shape.sharing * (shape.answer - 1)
            )  # the first token comes with the prompt's last
            return {"seconds": round(clock() - start, 3), "computed": worker.engine.computed - written}

    return run_virtual(work)


def rows_of(by: Callable[[int, str], Row], ways: Sequence[str] = tuple(WAYS)) -> Iterator[Row]:
    """Yield a row for each file and way."""
    for seed, way in product(range(FILES), ways):
        yield {"file": seed, "way": way, **by(seed, way)}
        sys.stderr.write(f"file {seed}, {way}\n")


def spread(values: Sequence[float], form: str) -> str:
    """Return the median, the lowest and the highest."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(
    measured: Sequence[Mapping[str, Any]],
    predicted: Sequence[Mapping[str, Any]],
    shape: Shape = FIRST,
    name: str = "",
    foreseen_by: str = "",
) -> str:
    """Return the table of a batch."""
    unique = shape.prefixes * (shape.prefix + shape.sharing * shape.own)
    head = (
        f"way{name}",
        "computed ÷ unique",
        "seconds",
        "seconds by the file ÷" if name else "file's seconds ÷",
        "`plait simulate`: seconds",
        f"off{foreseen_by}, %",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    base = [row["seconds"] for row in measured if row["way"] == "--order file"]
    for way in dict.fromkeys(row["way"] for row in measured):
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
    """Return the page with the table of some rows, and that of the other batches if it has one."""
    head, _, rest = text.partition("\n| way |")
    between, other, rest = rest.partition("\n\n")[2].partition("| way, other batches |")
    if other:
        between += table(read(FOUND), read(FORESEEN), OTHER, ", other batches", " with shared steps") + "\n"
    return f"{head}\n{table(measured, predicted)}\n{between}{rest.partition(chr(10) * 2)[2]}"


def main() -> None:
    """Predict, or measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments prefix_batches", description=__doc__)
    parser.add_argument("--predict", action="store_true", help="only simulate")
    parser.add_argument("--steps", action="store_true", help="other batches, by an engine with shared steps")
    parser.add_argument("--report", action="store_true", help="write the page of the rows that are kept")
    options = parser.parse_args()
    files = (FORESEEN, FOUND) if options.steps else (PREDICTED, MEASURED)
    if not options.report:
        by = partial(predict if options.predict else measure, shape=OTHER if options.steps else FIRST)
        ways = ("--order file", "--order prefix") if options.steps else tuple(WAYS)
        text = "".join(f"{json.dumps(row)}\n" for row in rows_of(by, ways))
        files[not options.predict].write_text(text, encoding="utf-8")
    if not options.predict:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read(MEASURED), read(PREDICTED)), encoding="utf-8")


if __name__ == "__main__":
    main()
