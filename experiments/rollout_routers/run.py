"""A trainer's rollouts: how much do routers read twice, and how long is the tail?

Batches of rollouts with long tails, in virtual time: plait-router beside those of verl, Ray Serve, vLLM and Dynamo.

    pip install ai-dynamo-runtime==1.6.1        # for Dynamo's selection service
    pip download verl==0.9.1 --no-deps          # then unpack the wheel; only one file of it is imported
    python -m experiments rollout_routers --verl FOLDER --router ENVIRONMENT/bin/vllm-router

Each router chooses by its own code. Those of verl, Ray and Dynamo run in this process; vLLM's is a process before four
servers that hold a request until virtual time has come to its end. What is not here is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from .._tools.command import given_of, page_options
from .._tools.kept import add_row, lines_of
from .._tools.measure import Spread, spread
from .contenders import RAY_THRESHOLD, Plait, PlaitFollowing, Ray, Verl, dynamo, vllm_router
from .engines import CACHE, ENGINES, PROMPTS, SAMPLES, SLOTS, Contender, Play, draw_batch

SHAPES = {"one turn": "One turn", "several turns": "Several turns"}
VLLM = ("cache_aware", "consistent_hash", "sticky_least_loaded")
PLAIT, VERL, DYNAMO = "`plait-router`", "verl 0.9.1", "Dynamo's selection service"
SEED = 500


def ways(options: argparse.Namespace) -> list[str]:
    """Return the names of the contenders that are here."""
    found = [PLAIT, f"{PLAIT}, no sessions", f"{PLAIT}, KV events"]
    if options.verl is not None:
        found.append(VERL)
    if importlib.util.find_spec("ray") is not None:
        found += ["Ray, prefix-aware", f"the same, threshold {RAY_THRESHOLD}"]
    if importlib.util.find_spec("dynamo") is not None:
        found += [DYNAMO, f"{DYNAMO}, sessions"]
    if options.router is not None:
        found += [f"vLLM's router, `{policy}`" for policy in VLLM]
    return found


@contextlib.asynccontextmanager
async def contender(way: str, options: argparse.Namespace, seed: int) -> AsyncIterator[Contender]:
    """Make a contender by its name."""
    if way.startswith("vLLM"):
        async with vllm_router(options.router, way.split("`")[1]) as found:
            yield found
    elif way == VERL:
        yield Verl(options.verl, seed)
    elif way.startswith(DYNAMO):
        async with dynamo(sessions=way != DYNAMO) as found:
            yield found
    elif way == f"{PLAIT}, KV events":
        yield PlaitFollowing()
    elif way.startswith(PLAIT):
        yield Plait(sessions=way == PLAIT)
    else:
        yield Ray(RAY_THRESHOLD if "threshold" in way else float("inf"), seed)


async def measure(options: argparse.Namespace, kept: Path) -> None:
    """Play every batch with every contender: a row each, unless it is there."""
    there = {(row["way"], row["shape"], row["draw"]) for row in map(json.loads, lines_of(kept))}
    for shape in SHAPES:
        for draw in range(options.draws):
            for way in ways(options):
                if (way, shape, draw) in there:
                    continue
                async with contender(way, options, draw) as chooser:
                    play = Play(chooser, draw_batch(shape, SEED + draw))
                    began = time.perf_counter()
                    await play.run()
                made = [engine.generated for engine in play.engines]
                ends = sorted(play.ends)
                row = {"way": way, "shape": shape, "draw": draw, "computed": sum(e.computed for e in play.engines),
                       "unique": play.unique, "seconds": ends[-1], "nine_tenths": ends[len(ends) * 9 // 10],
                       "generated": made, "took": time.perf_counter() - began}  # fmt: skip
                add_row(kept, row)
                print(json.dumps(row), flush=True)


ABOUT = f"""# A trainer's rollouts, by router

Batches of rollouts with long tails, in virtual time: plait-router beside those of verl, Ray Serve, vLLM and Dynamo.

`python -m experiments rollout_routers --draws {{draws}}`, with the options `--verl` and `--router` for other people's.

{ENGINES} engines of {SLOTS} slots, each with a prefix cache of {CACHE:,} tokens. A sequence alone decodes 100 tokens a
second, {SLOTS} together 3,520; prompts are read at 20,000 a second. A batch: {PROMPTS} prompts of 2,000 tokens,
{SAMPLES} samples each, sent at once by eight workers. *One turn*: answers of 490 tokens in the median, at most 8,192.
*Several turns*: 1 to 16 of them, 150 tokens in the median, with 300 tokens of a tool after a pause of 2 seconds in the
mean. Median (lowest–highest) of {{draws}} draws; *seconds saved* is beside {VERL} on the same draw, and *reads saved*,
of prompt tokens computed, beside {DYNAMO}. *Tail*: seconds from when nine tenths of the trajectories
are over until all are. *Least busy*: tokens generated by the least busy engine ÷ those of a fair share.

Each router chooses by its own code and defaults, and knows which requests are over. A trajectory is a session for those
that take sessions (plait-router, verl, vLLM's `consistent_hash` and `sticky_least_loaded`; Dynamo where the row says
so). plait-router is also given the slots and the size of the cache. *KV events*: the engines' caches publish what they
store and remove, as vLLM does; Dynamo (ai-dynamo-runtime 1.6.1) always reads them.
"""
HEAD = "| router | computed ÷ unique | reads saved, % | seconds | seconds saved, % | tail, s | least busy |"


def page_of(lines: Sequence[str]) -> str:
    """Return the page as Markdown, made of the rows."""
    rows = [json.loads(line) for line in lines]
    text = [ABOUT.format(draws=len({row["draw"] for row in rows}))]
    for shape, title in SHAPES.items():
        text += [f"## {title}", "", HEAD, "|---" * 7 + "|"]
        mine = [row for row in rows if row["shape"] == shape]
        base = {row["draw"]: row["seconds"] for row in mine if row["way"] == VERL}
        reads = {row["draw"]: row["computed"] for row in mine if row["way"] == DYNAMO}
        for way in dict.fromkeys(row["way"] for row in mine):
            text.append(_line(way, [row for row in mine if row["way"] == way], base, reads))
        text.append("")
    return "\n".join(text)


def _line(way: str, rows: list[dict[str, Any]], base: dict[int, float], reads: dict[int, int]) -> str:
    unread = [100 * (1 - row["computed"] / reads[row["draw"]]) for row in rows if row["draw"] in reads]
    saved = [100 * (1 - row["seconds"] / base[row["draw"]]) for row in rows if row["draw"] in base]
    cells = [
        _show(spread([row["computed"] / row["unique"] for row in rows]), 2),
        _show(spread(unread), 1) if unread and way != DYNAMO else "",
        _show(spread([row["seconds"] for row in rows]), 1),
        _show(spread(saved), 1) if saved and way != VERL else "",
        _show(spread([row["seconds"] - row["nine_tenths"] for row in rows]), 1),
        _show(spread([min(row["generated"]) * ENGINES / sum(row["generated"]) for row in rows]), 2),
    ]
    return f"| {way} | {' | '.join(cells)} |"


def _show(found: Spread, digits: int) -> str:
    return f"{found.median:.{digits}f} ({found.low:.{digits}f}–{found.high:.{digits}f})".replace("-", "−")


def main() -> None:
    """Measure, write the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments rollout_routers", description=__doc__)
    parser.add_argument("--verl", type=Path, metavar="FOLDER", help="the unpacked wheel of verl")
    parser.add_argument("--router", default=shutil.which("vllm-router"), help="the program; that of PATH by default")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--add", action="store_true", help="keep the rows that are there, and measure others")
    page_options(parser, "rollout_routers")
    options = parser.parse_args()
    given = given_of(options, "rollout_routers")
    kept = given.records / "rows.jsonl"
    if not given.report:
        if not options.add:
            kept.unlink(missing_ok=True)
        asyncio.run(measure(options, kept))
    found = given.rows(kept)
    print(given.write(page_of(found.lines), found))


if __name__ == "__main__":
    main()
