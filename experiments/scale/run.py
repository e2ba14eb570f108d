"""What does effort by the step win over effort by the question, on sums with brackets?

Effort by the step, and by the question, on sums with brackets.

The bundled `outline` splits such sums and does each step at once or in full, so the planner `scale` has difficulties,
easy steps that go wrong, and plans to choose from. Beside it stand the whole sum at once, in full and by votes, every
step easy or hard, and an oracle. Calibration is of sums that are not asked. The same runs are given to `route fit`:
here the text tells how hard a question is, which a Countdown puzzle's does not.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from plait.apps.common.intervals import wilson
from plait.core.ops import Plugin
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait_bench.tasks.brackets import worked
from plait_research.planners.scale import isotonic
from plait_research.route.fit import RouteRow as Routed
from training.outline import vocab
from training.outline.evaluate import cases

from .._tools.base import Findings
from .._tools.command import Given, command, command_of
from .._tools.kept import lines_of
from .._tools.plain import Plain, timed
from .._tools.routes import choices
from .._tools.statistics import difference, mean, ratio, share

__all__ = ["Row", "ask_all", "page_of", "records_of", "rows_of"]

MODEL = Path(BUNDLED_MODEL).with_name("outline")
SEED, CALIBRATION = 4711, 60
FLOORS = (0.5, 0.7, 0.8, 0.9, 0.95)
SCALE = {
    "n": 1,
    "outline": {"temperature": 0.0, "max_tokens": 256},
    "part": {"temperature": 0.0, "max_tokens": 16},
    "hard": {"temperature": 0.0, "max_tokens": 160},
}
_CALLS = re.compile(r"([a-h]) = (.*) \((easy|hard), (\d\.\d\d)\)")
WAYS = ("at once", "in full", "vote of 4", "steps easy", *(f"scale {each:g}" for each in FLOORS), "steps hard")
"""Of the whole, and of its steps; `scale F` does a step the easy way where its chance to be right is at least F."""
TIERS = {
    "at once": Plugin(name="single", options={"answer": {"begin": "no-thinking"}}),
    "in full": Plugin(name="single"),
    "scale 0.9": Plugin(name="scale", options={"threshold": 0.9}),
    "steps hard": Plugin(name="scale"),
}
"""Those that a question may be given to, as the tables name them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One question, answered one way."""

    text: str
    way: str
    right: bool
    tokens: int
    critical: int
    calls: int
    easy: int
    hard: int
    records: list[tuple[float, float]]
    """Of steps done the easy way: difficulty, and whether that was right for the numbers that it was given."""
    load: float
    seconds: float = 0.0
    """Of the run; on the engine, where questions are asked one at a time."""


def plugin_of(way: str, records: Sequence[tuple[float, float]]) -> Plugin:
    """Return the planner of a way; `records` are those of the calibration."""
    kind, _, level = way.rpartition(" ")
    match way:
        case "at once":
            return Plugin(name="single", options={"answer": {"begin": "no-thinking", "max_tokens": 16}})
        case "in full":
            return Plugin(name="single", options={"answer": {"max_tokens": 256}})
        case "vote of 4":
            return Plugin(name="sample", options={"n": 4, "answer": {"temperature": 0.6, "max_tokens": 256}})
        case "steps easy" | "calibrate easy":  # a floor of 0 needs records only to be heeded
            outcome = [[each / 10, 1.0] for each in range(10)] * 10
            return Plugin(name="scale", options={**SCALE, "records": outcome, "threshold": 0.0})
        case "steps hard":
            return Plugin(name="scale", options=SCALE)
        case _:
            assert kind == "scale"
            return Plugin(
                name="scale", options={**SCALE, "records": [list(each) for each in records], "threshold": float(level)}
            )


async def ask_all(config: Config, questions: int, kept: Path, at_once: int = 48) -> None:
    """Answer what has not been answered yet, the calibration first; each row is written when it is there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    drawn = [case.text.removesuffix(" = ?") for case in cases(questions + CALIBRATION, SEED + config.seed)]
    apart, asked = drawn[:CALIBRATION], drawn[CALIBRATION:]
    todo = [("calibrate easy", text) for text in apart] + [(way, text) for text in asked for way in WAYS]
    done = {(row.way, row.text) for row in rows_of(kept)}
    todo = [each for each in todo if each not in done]
    if not todo:
        return
    config = config.model_copy(update={"model": str(MODEL), "journal": "off", "cache": None})
    alone = config.worker == "engine"
    gate = asyncio.Semaphore(at_once)
    workers = None if alone else [Plain({MODEL.name: MODEL}, vocab)]
    async with AsyncOrchestrator(config=config, workers=workers) as orchestrator:
        with kept.open("a", encoding="utf-8") as out:

            async def one(way: str, text: str, records: Sequence[tuple[float, float]]) -> None:
                async with gate:
                    planner = plugin_of(way, records)
                    answer = await orchestrator.run(text, task="brackets", planner=planner, policies=[])
                    out.write(json.dumps(asdict(_row(text, way, answer))) + "\n")
                    out.flush()

            await asyncio.gather(*(one(*each, ()) for each in todo if each[0].startswith("calibrate")))
            records = records_of(rows_of(kept))
            gate = asyncio.Semaphore(1 if alone else at_once)
            await asyncio.gather(*(one(*each, records) for each in todo if not each[0].startswith("calibrate")))


def _row(text: str, way: str, answer: Answer) -> Row:
    """Return the record of an answer."""
    lines = [row for row in answer.trace if row.kind == "think"]
    found = [(said, row.value) for row in lines if (said := _CALLS.fullmatch(row.label)) is not None]
    done = {said[1]: _last(value) for said, value in found}
    outcome: list[tuple[float, float]] = []
    for said, value in found:
        if said[3] == "easy":
            right = _right(said[2].split(), done)
            if right is not None:
                outcome.append((float(said[4]), float(_last(value) == right)))
    kinds = [said[3] for said, _ in found]
    return Row(
        text, way, answer.verified is True, answer.total_tokens, answer.critical_path_tokens, len(lines),
        kinds.count("easy"), kinds.count("hard"), outcome, os.getloadavg()[0], round(answer.seconds, 4),
    )  # fmt: skip


def _last(value: object) -> str:
    found = re.findall(r"\d+", str(value))
    return found[-1] if found else ""


def _right(words: Sequence[str], done: dict[str, str]) -> str | None:
    """Return the value of a step, given the results of the run; `None` if it is unknown."""
    filled = [done.get(word, word) for word in words]
    if any(not word.isdigit() and word not in "+-*" for word in filled) or "" in filled:
        return None
    out = worked(filled)
    return None if not out else str(out[-1][3])


def records_of(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return the records of the calibration."""
    return [
        (float(difficulty), float(right))
        for row in rows
        if row.way.startswith("calibrate")
        for difficulty, right in row.records
    ]


def rows_of(kept: Path) -> list[Row]:
    """Return the stored answers."""
    return rows_in(lines_of(kept))


def rows_in(lines: Sequence[str]) -> list[Row]:
    """Return the rows of lines of JSON."""
    return [Row(**json.loads(line)) for line in lines]


TITLES = {"README": "Effort by the step, and by the question", "engine": "Effort by the step, on the engine"}


def page_of(rows: Sequence[Row], command: str, stem: str = "README") -> str:
    """Return the page as Markdown."""
    by = {way: {row.text: row for row in rows if row.way == way} for way in WAYS}
    texts = [text for text in by["in full"] if all(text in found for found in by.values())]
    records, timed_too = records_of(rows), stem == "engine"
    lines = [
        f"# {TITLES[stem]}",
        "",
        f"`{command}`",
        "",
        f"The bundled `outline`, {len(texts)} held-out sums with brackets, temperature 0 (votes: 0.6). "
        "*At once* and *in full*: the whole sum in one line, with and without its operations. *Steps*: the planner "
        "`scale` with one outline. Tokens are generated ones, outline and marks of difficulty included; the critical "
        f"path is the longest chain. Difficulties are calibrated on {len(records)} steps of {CALIBRATION} other sums. "
        "95 % intervals, bootstrap over questions.",
        "",
        "| way | right | against in full | tokens | critical path | model calls | steps done the easy way |"
        + (" seconds | times as fast as in full |" if timed_too else ""),
        "|---" * (9 if timed_too else 7) + "|",
    ]
    if not texts:
        return "\n".join(lines)
    full = [by["in full"][text].right for text in texts]
    for way in WAYS:
        mine = [by[way][text] for text in texts]
        easy = ratio([row.easy for row in mine], [row.easy + row.hard for row in mine])
        cells = [
            f"`{way}`", share([row.right for row in mine]).percent(),
            "–" if way == "in full" else difference([row.right for row in mine], full).points(),
            mean([row.tokens for row in mine]).number(), mean([row.critical for row in mine]).number(),
            f"{np.mean([row.calls for row in mine]):.1f}",
            easy.percent() if easy.value == easy.value else "",
        ]  # fmt: skip
        if timed_too:
            cells += timed([row.seconds for row in mine], [by["in full"][text].seconds for text in texts])
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *_mixed(by, texts), "", *_fitted(records), ""]
    if not timed_too:
        lines += _by_question(by, texts)
    load = sorted(row.load for row in rows)[len(rows) // 2]
    lines.append(f"Threads that ran or waited for a core: {load:.0f} in the median.")
    return "\n".join([*lines, ""])


def _by_question(by: dict[str, dict[str, Row]], texts: Sequence[str]) -> list[str]:
    """Return the result of a route among the tiers."""
    found = Findings()
    routed = [
        Routed(text, tier, float(by[way][text].right), float(by[way][text].tokens))
        for way, tier in TIERS.items() for text in texts
    ]  # fmt: skip
    for checked in (False, True):
        choices(found, f"brackets-{checked}", "sums with brackets", routed, checked)
    lines = ["## By the question", "", *(f"- {claim}" for claim in found.claims)]
    for table in found.tables:
        lines += ["", f"### {table.title}", "", f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|"]
        lines += [*(f"| {' | '.join(row)} |" for row in table.rows), "", table.note]
    outcome = ", ".join(f"{name.rpartition('-')[2]} {_two(each['elasticity'])}" for name, each in found.figures.items())
    return [*lines, "", f"Elasticity against the cheapest tier (our reading of EllieSQL's TEP): {outcome}.", ""]


def _two(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"


def _mixed(by: dict[str, dict[str, Row]], texts: Sequence[str]) -> list[str]:
    """Return each floor beside a mix of easy and hard by question with as many tokens, and the oracle of the two."""
    easy, hard = by["steps easy"], by["steps hard"]
    apart = [hard[text].tokens - easy[text].tokens for text in texts]
    lines = ["| way | share of questions that a mix of equal tokens does the hard way | more right than the mix |"]
    lines.append("|---|---|---|")
    for floor in FLOORS:
        mine = by[f"scale {floor:g}"]
        drawn = ratio([mine[text].tokens - easy[text].tokens for text in texts], apart)
        part, low, high = (min(1.0, max(0.0, each)) for each in drawn)
        mixed = [part * hard[text].right + (1 - part) * easy[text].right for text in texts]
        more = difference([float(mine[text].right) for text in texts], mixed)
        lines.append(f"| `scale {floor:g}` | {100 * part:.0f} % ({100 * low:.0f}–{100 * high:.0f}) | {more.points()} |")
    wise = [easy[text] if easy[text].right else hard[text] for text in texts]
    outcome = share([row.right for row in wise]).percent()
    spent_ = mean([row.tokens for row in wise]).number()
    return [
        *lines,
        "",
        f"An oracle, easy steps where they give the right answer, else hard: {outcome}, {spent_} tokens.",
    ]


def _fitted(records: Sequence[tuple[float, float]]) -> list[str]:
    """Return the calibration of difficulties."""
    fit = isotonic(records)
    outcome: list[str] = []
    for left, value, count in fit:
        low, high = wilson(round(value * count), count)
        outcome.append(f"from {left:.2f}: {value:.2f} ({low:.2f}–{high:.2f}) of {count}")
    said = ", ".join(outcome)
    return [f"Chance of an easy step to be right by its difficulty (isotonic fit, Wilson's 95 % interval): {said}."]


def run(given: Given) -> str:
    """Ask what has not been asked yet, write the page, and return it."""
    config = given.common.load()
    kept = given.kept("scale", config.seed)
    if not given.report:
        asyncio.run(ask_all(config, given.problems, kept))
    stem, rows = ("engine", "engine") if config.worker == "engine" else ("README", "rows")
    found = given.rows(kept, rows)
    page = page_of(rows_in(found.lines), command_of("scale", config, given.problems), stem)
    return given.write(page, found, stem, rows)


def main() -> None:
    """Ask what has not been asked yet, and write the page."""
    command("scale", run, problems=150)
