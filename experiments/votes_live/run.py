"""What do prunings of a vote save on the engine, while its samples are written?

`erring_votes` replays recorded samples. Here the same voter is asked live, one sum at a time and all ways in
turn for each sum, so that what the engine itself counts (every token sampled, read or not) is that of one vote.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from plait.core.ops import Plugin
from plait.core.record import StepRecord
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import BUNDLED_MODEL
from plait.workers.engine import Engine

from .._tools.command import Given, command, command_of
from .._tools.kept import lines_of
from .._tools.statistics import difference, mean, saving, share
from .._tools.voters.settings import SURE, Setting
from .._tools.voters.sums import LEVELS, TOKENS, sums

__all__ = ["WAYS", "Row", "collect", "page_of", "rows_of"]

N = 16
"""Samples of a vote."""
WARM = 8
_PROBED = "probe.max_tokens=1,probe.template=<hit>"


def _online(eta: int) -> Setting:
    policies = (f"deepconf:eta={eta},warmup={WARM}", f"deepconf-consensus:min_votes={WARM}")
    return Setting(f"weighted:criterion=lowest,eta={eta},warmup={WARM}", policies, planner=f"sample:{SURE}")


WAYS: Mapping[str, Setting] = {
    "majority": Setting(),
    "majority again": Setting(),
    **{f"deepconf {eta}": _online(eta) for eta in (10, 50, 90)},
    **{f"deepprune {prefix}": Setting(planner=f"deepprune:draft.max_tokens={prefix},{_PROBED}") for prefix in (6, 12)},
    "redundant": Setting(policies=("redundant:steps=3,tokens=64",), planner="sample:answer.stream=true"),
}
"""`deepconf` with its consensus and weights, by eta; `deepprune` by the tokens of a beginning. The second majority is
the control: what two votes with the same settings differ by."""


@dataclass(frozen=True, slots=True)
class Row:
    """One vote."""

    text: str
    level: int
    way: str
    right: bool
    tokens: int
    """Generated, as the run says, those of stopped branches and probes included."""
    engine: int
    """Generated, as the engine counts: every token sampled."""
    read_by_nobody: int
    """Of `tokens`, those of stopped branches."""
    stopped: int
    """Branches that were stopped while they wrote."""
    unstarted: int
    """Branches that were given up before their first token."""
    kept_lengths: Sequence[int]
    """Tokens of each branch that ended by itself."""
    stopped_lengths: Sequence[int]
    seconds: float
    load: float


def planner_of(setting: Setting) -> Plugin:
    """Return the planner of a vote."""
    given = Plugin.of(setting.planner or "sample")
    answer = given.options.get("answer")
    said = answer if isinstance(answer, dict) else {}
    options = {"n": N, **given.options, "answer": {"temperature": 1.0, "max_tokens": TOKENS, **said}}
    if given.name == "sample":
        options["merge"] = Plugin.of(setting.merge).model_dump()
    return Plugin(name=given.name, options=options)


async def collect(count: int, seed: int, kept: Path) -> None:
    """Ask what has not been asked; every row is on disk when it is there. `count` sums for each level."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    drawn = sums(count * len(LEVELS), seed)
    done = {(row.text, row.way) for row in rows_of(kept)}
    todo = [(text, LEVELS[i % len(LEVELS)], way) for i, text in enumerate(drawn) for way in WAYS]
    todo = [each for each in todo if (each[0], each[2]) not in done]
    if not todo:
        return
    engine = Engine(str(Path(BUNDLED_MODEL).with_name("arithmetic")), slots=2 * N)
    async with AsyncOrchestrator(workers=[engine], journal=None) as orchestrator:
        for way in WAYS:  # once each, so that nothing is compiled while it is timed
            await _vote(orchestrator, engine, drawn[0], 1, way, seed)
        with kept.open("a", encoding="utf-8") as out:
            for text, level, way in todo:
                row = await _vote(orchestrator, engine, text, level, way, seed)
                out.write(json.dumps(asdict(row)) + "\n")
                out.flush()


async def _vote(orchestrator: AsyncOrchestrator, engine: Engine, text: str, level: int, way: str, seed: int) -> Row:
    setting, before, began = WAYS[way], engine.stats(), time.perf_counter()
    task = Plugin(name="sums", options={"skill": level})
    policies = [Plugin.of(each) for each in setting.policies]
    answer = await orchestrator.run(text, task=task, planner=planner_of(setting), policies=policies, seed=seed)
    spent = time.perf_counter() - began
    await _rested(engine)  # work after the end counts too
    branches = [step for step in answer.trace if step.kind == "think"]
    given_up = [step for step in branches if step.state == "cancelled"]
    stopped = [step for step in given_up if _ran(step)]
    return Row(
        text, level, way, answer.verified is True, answer.total_tokens,
        engine.stats()["generated"] - before["generated"], answer.usage.cancelled, len(stopped),
        len(given_up) - len(stopped), tuple(step.tokens for step in branches if step.state == "done"),
        tuple(step.tokens for step in stopped), round(spent, 4), os.getloadavg()[0],
    )  # fmt: skip


async def _rested(engine: Engine) -> None:
    """Wait until the engine has no request, which nothing tells of."""
    while engine.stats()["running"] or engine.stats()["waiting"]:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def _ran(step: StepRecord) -> bool:
    return any(state == "running" for _, state, _ in step.moves)


def rows_of(kept: Path) -> list[Row]:
    """Return the stored answers."""
    return [Row(**json.loads(line)) for line in lines_of(kept)]


def page_of(rows: Sequence[Row], made_by: str) -> str:
    """Return the tables as Markdown."""
    by = {way: {row.text: row for row in rows if row.way == way} for way in WAYS}
    texts = [text for text in by["majority"] if all(text in found for found in by.values())]
    lines = [
        "# Prunings of a vote, live on the engine", "", f"`{made_by}`", "",
        f"{len(texts)} held-out sums, the levels of the bundled voter `arithmetic` in equal shares, {N} samples each, "
        f"temperature 1, one vote at a time and all ways in turn for each sum. *Tokens*: generated, those of stopped "
        "branches and of probes included, as the run says; *engine ÷ run*: every token that the engine sampled, "
        "divided by that. *Stopped*: branches given up while they were written, and *never begun* before their first "
        "token. *Written*: tokens of a stopped branch, and of one that ended by itself. *Faster*: seconds of the "
        "majority by those of this way (geometric mean). 95 % intervals, bootstrap over sums; all sums are asked "
        "with the "
        "same seeds.", "",
        "| way | right | against the majority | tokens | saved | engine ÷ run | stopped, of all | never begun | "
        "written: stopped, ended | faster |",
        "|---" * 10 + "|",
    ]  # fmt: skip
    if not texts:
        return "\n".join(lines) + "\n"
    base = [by["majority"][text] for text in texts]
    for way, found in by.items():
        mine = [found[text] for text in texts]
        stopped, ended = ([n for row in mine for n in lengths(row)] for lengths in (_stopped, _ended))
        against = difference([row.right for row in mine], [row.right for row in base])
        ratio = mean([float(np.log(a.seconds / b.seconds)) for a, b in zip(base, mine, strict=True)])
        every = sum(row.stopped + row.unstarted for row in mine) + len(ended)
        cells = (
            f"`{way}`", share([row.right for row in mine]).percent(),
            "–" if way == "majority" else against.points(),
            mean([row.tokens for row in mine]).number(),
            saving([row.tokens for row in mine], [row.tokens for row in base]).percent(),
            f"{sum(row.engine for row in mine) / sum(row.tokens for row in mine):.3f}",
            f"{sum(row.stopped for row in mine)} of {every}", str(sum(row.unstarted for row in mine)),
            f"{np.mean(stopped):.1f}, {np.mean(ended):.1f}" if stopped else f"none, {np.mean(ended):.1f}",
            f"{np.exp(ratio.value):.2f} ({np.exp(ratio.low):.2f}–{np.exp(ratio.high):.2f})",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    load = np.median([row.load for row in rows])
    return "\n".join([*lines, "", f"Threads that ran or waited for a core: {load:.0f} in the median.", ""])


def _stopped(row: Row) -> Sequence[int]:
    return row.stopped_lengths


def _ended(row: Row) -> Sequence[int]:
    return row.kept_lengths


def run(given: Given) -> str:
    """Ask what has not been asked (`--problems` sums for each level), write the page, and return it."""
    config = given.common.load()
    kept = given.kept("votes_live", config.seed)
    if not given.report:
        asyncio.run(collect(given.problems, config.seed, kept))
    found = given.rows(kept)
    rows = [Row(**json.loads(line)) for line in found.lines]
    return given.write(page_of(rows, command_of("votes_live", config, given.problems)), found)


def main() -> None:
    """Ask, write the page and print it."""
    command("votes_live", run, problems=15)
