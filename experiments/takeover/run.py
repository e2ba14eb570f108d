"""What do a small draft and its target reach that write in turns, at several thresholds?

A small draft and its target write plans of tool calls together, piece by piece.

Draft and target are the smallest and the largest of the bundled planners of tools. Beside `takeover` and `ssr` at
several thresholds stand the draft alone, the target alone, take-overs at random, a mix of the two by question, and an
oracle. The worth of a segment's score comes from calibration on questions that are not asked.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from pydantic import JsonValue, PrivateAttr

from plait.core.flow import Answerable, Context, Flow
from plait.core.interfaces import Planner
from plait.core.search import Scorer, SearchNode
from plait.core.task import Style, Task
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait.workers.engine import Engine
from plait.workers.http import Http
from plait_research.planners.ssr import SSR
from plait_research.planners.takeover import Takeover
from training.tables import check, vocab
from training.tables.generate import Case
from training.tables.questions import held_out

from .._tools.command import Given, command, command_of
from .._tools.kept import lines_of
from .._tools.plain import Plain, timed
from .._tools.server import served
from .._tools.statistics import Estimate, difference, mean, share
from . import from_file

__all__ = ["Chance", "PlanText", "Row", "ask_all", "page_of", "rows_of"]

DRAFT, TARGET = "tables-tiny", "tables"
CALIBRATION = 80
"""Questions of the scores' calibration; they are never asked."""
ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.4)
DIGITS = 10_000
TAUS = (5.0, 8.0, 8.8, 8.95, 8.99)
"""Marks are nine times the draft's own mean probability of a line."""
AT_RANDOM = (0.05, 0.2)
TOKENS = 8
"""Of a segment: about a line."""
SEED = 6021
CONDITIONS = (
    "draft", "target", *(f"takeover {each:g}" for each in ALPHAS), "takeover 1",
    *(f"random {each:g}" for each in AT_RANDOM), *(f"ssr {each:g}" for each in TAUS), "ssr 10",
)  # fmt: skip


class PlanText(Task):
    """A question over tables whose answer is the text of a plan, as the bundled planner of tools writes it; right where
    it gives the right answer on eight random tables."""

    _case: Case = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the question, or raise `TaskError`."""
        self._case = Case(self.text, 0)

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the question behind the model's mark for plans."""
        return f"<plan>{self._case.text}\n\n"

    def extract(self, text: str) -> JsonValue:
        """Return the plan, up to its end."""
        return text.partition("<END_OF_PLAN>")[0].strip() or None

    def key(self, answer: JsonValue) -> str:
        """Return the plan without spaces."""
        return "".join(str(answer).split())

    def verify(self, answer: JsonValue) -> bool:
        """Return whether it is equivalent to the question."""
        return check.judge_plan(self._case, f"{answer}<END_OF_PLAN>").equivalent

    def complete(self, partial: str) -> bool:
        """Return whether the plan has ended."""
        return "<END_OF_PLAN>" in partial


class Alone(Flow):
    """One call of one of the models."""

    model: str

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Return its text."""
        return await ctx.think(question, model=self.model, max_tokens=256, temperature=0.0, stop="<END_OF_PLAN>")


class Chance(Scorer):
    """A score at random."""

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return a uniform number."""
        return ctx.random.random()


@dataclass(frozen=True, slots=True)
class Row:
    """One question, answered under one condition."""

    text: str
    condition: str
    right: bool
    plan: str
    draft: int
    """Tokens that the draft wrote, rejected ones included."""
    target: int
    calls: int
    data: dict[str, Any]
    """What became of the draft's pieces: `Answer.data`."""
    load: float
    seconds: float = 0.0
    """Of the run; on the engine, where questions are asked one at a time."""


def planner_of(condition: str, calibration: Sequence[Sequence[float]]) -> Planner:
    """Return the planner of a condition."""
    way, _, level = condition.partition(" ")
    draft = {"model": DRAFT, "temperature": 0.0}
    both = {"target": {"model": TARGET}, "n": 1}
    match way:
        case "draft" | "target":
            return Alone(model={"draft": DRAFT, "target": TARGET}[way])
        case "takeover" | "calibrate":
            cell = {"records": tuple(map(tuple, calibration))} if calibration else {}
            scorer = {"scorer": "logprob", "draft": {**draft, "max_tokens": TOKENS}, "rounds": 40}
            return Takeover.model_validate({**both, **cell, **scorer, "threshold": float(level)})
        case "random":
            options = {
                "scorer": {"name": "experiments.takeover.run:Chance"},
                "draft": {**draft, "max_tokens": TOKENS},
                "rounds": 40,
            }
            return Takeover.model_validate({**both, **options, "threshold": float(level)})
        case _:
            options = {
                "scorer": "logprob",
                "draft": {**draft, "stop": "\n", "max_tokens": 32},
                "rounds": 40,
                "depth": 4,
            }
            options["strategies"] = ()
            return SSR.model_validate({**both, **options, "threshold": float(level)})


@asynccontextmanager
async def both_models(config: Config, log: Path) -> AsyncIterator[AsyncOrchestrator]:
    """Yield a client of both models: in plain torch, or with the worker `engine` the draft on an engine of this process
    and the target on a server's."""
    draft, target = (Path(BUNDLED_MODEL).with_name(name) for name in (DRAFT, TARGET))
    if config.worker != "engine":
        plain = Plain({DRAFT: draft, TARGET: target}, vocab)
        async with AsyncOrchestrator(config=config, workers=[plain]) as orchestrator:
            yield orchestrator
        return
    memory = str(64 << 20)
    settings = {"model": str(target), "served_model_name": TARGET, "kv_cache_memory_bytes": memory}
    async with served(log, **settings) as server:
        workers = [Engine(str(draft), kv_cache_memory_bytes=64 << 20), Http(server.url, slots=16)]
        async with AsyncOrchestrator(config=config, workers=workers) as orchestrator:
            yield orchestrator


async def ask_all(config: Config, questions: int, kept: Path, at_once: int = 64) -> None:
    """Answer what has not been answered yet; each row is written when it is there. The calibration comes first."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    seed = SEED + 2 * config.seed  # the next is the calibration's
    asked = held_out(questions, seed)
    apart = [text for text in held_out(4 * CALIBRATION, seed + 1) if text not in asked][:CALIBRATION]
    todo = [("calibrate 0", text) for text in apart] + [(each, text) for text in asked for each in CONDITIONS]
    done = {(row.condition, row.text) for row in rows_of(kept)}
    todo = [each for each in todo if each not in done]
    if not todo:
        return
    config = config.model_copy(update={"journal": "off", "cache": None})
    gate = asyncio.Semaphore(at_once)
    async with both_models(config, kept.with_suffix(".log")) as orchestrator:
        with kept.open("a", encoding="utf-8") as out:

            async def one(condition: str, text: str, calibration: Sequence[Sequence[float]]) -> None:
                async with gate:
                    planner = planner_of(condition, calibration)
                    task = "experiments.takeover.run:PlanText"
                    seed = crc32(text.encode())  # so that take-overs at random fall elsewhere in each question
                    answer = await orchestrator.run(text, task=task, planner=planner, policies=[], seed=seed)
                    out.write(json.dumps(asdict(_row(text, condition, answer))) + "\n")
                    out.flush()

            await asyncio.gather(*(one(*each, ()) for each in todo if each[0].startswith("calibrate")))
            scores = calibration_of(rows_of(kept))
            gate = asyncio.Semaphore(1 if config.worker == "engine" else at_once)
            rest = [each for each in todo if not each[0].startswith("calibrate")]
            await asyncio.gather(*(one(*each, scores) for each in rest))


def _row(text: str, condition: str, answer: Answer) -> Row:
    """Return the record of an answer."""
    lines = [row for row in answer.trace if row.kind == "think"]
    tokens = {False: 0, True: 0}
    for row in lines:
        tokens[row.label.startswith("draft") or condition == "draft"] += row.usage.completion
    return Row(
        text, condition, answer.verified is True, str(answer.answer or ""), tokens[True], tokens[False], len(lines),
        answer.data if isinstance(answer.data, dict) else {}, os.getloadavg()[0], round(answer.seconds, 4),
    )  # fmt: skip


def calibration_of(rows: Sequence[Row]) -> list[list[float]]:
    """Return the scores of the calibration's segments by round; rounds of few segments count with the one before. Cut
    to four digits: the last of six depends on what else was in a batch, and equal segments have to stay equal."""
    found: list[list[float]] = []
    for row in rows:
        if row.condition.startswith("calibrate"):
            for turn, scores in enumerate(row.data["scores"]):
                while len(found) <= turn:
                    found.append([])
                found[turn] += [math.floor(score * DIGITS + 1e-9) / DIGITS for score in scores]
    return [scores for scores in found if len(scores) >= 20]


def rows_of(kept: Path) -> list[Row]:
    """Return the stored answers."""
    return rows_in(lines_of(kept))


def rows_in(lines: Sequence[str]) -> list[Row]:
    """Return the rows of lines of JSON."""
    return [Row(**json.loads(line)) for line in lines]


def weights() -> float:
    """Return the draft's parameters, as a share of the target's."""
    sizes = [(Path(BUNDLED_MODEL).with_name(name) / "model.safetensors").stat().st_size for name in (DRAFT, TARGET)]
    return sizes[0] / sizes[1]


TITLES = {
    "README": "A draft and a target that write in turns",
    "engine": "A draft and a target that write in turns, on engines",
}


def page_of(rows: Sequence[Row], command: str, price: float, stem: str = "README") -> str:
    """Return the page as Markdown. `price` is what a draft's token costs of one of the target's."""
    by = {key: {row.text: row for row in rows if row.condition == key} for key in CONDITIONS}
    texts = [text for text in by["target"] if all(text in found for found in by.values())]
    timed_too = stem == "engine"
    lines = [
        f"# {TITLES[stem]}",
        "",
        f"`{command}`",
        "",
        f"The bundled planners of tools `{DRAFT}` (0.12 million parameters) and `{TARGET}` (1.0), "
        f"{len(texts)} held-out questions of 1 to 8 calls in "
        f"equal shares, temperature 0, one chain. A plan is right when it gives the right answer on eight random "
        f"tables. `takeover` scores segments of {TOKENS} tokens by the draft's own mean probability, against scores of "
        f"{CALIBRATION} other questions (its calibration); `ssr` whole lines, four ahead, marks from 0 to 9. *Cost*: "
        f"the target's tokens, and the draft's at {price:.2f}, which is the share of parameters; both count what was "
        f"rejected. *Same as the target*: the share of plans that are its own, token for token. 95 % intervals, "
        "bootstrap over questions.",
        "",
        "| condition | right | against the target | same as the target | draft's tokens | target's tokens | cost | "
        "taken over or rewritten |" + (" seconds | times as fast as the target |" if timed_too else ""),
        "|---" * (10 if timed_too else 8) + "|",
    ]
    if not texts:
        return "\n".join(lines)
    target, draft = by["target"], by["draft"]

    def cost(row: Row) -> float:
        return row.target + price * row.draft

    def line(key: str) -> str:
        mine = [by[key][text] for text in texts]
        against = difference([row.right for row in mine], [target[text].right for text in texts])
        same = share([_same(row.plan, target[row.text].plan) for row in mine])
        cells = [
            f"`{key}`", share([row.right for row in mine]).percent(),
            "–" if key == "target" else against.points(), same.percent(),
            f"{np.mean([row.draft for row in mine]):.1f}", f"{np.mean([row.target for row in mine]):.1f}",
            mean([cost(row) for row in mine]).number(), _rate(mine),
        ]  # fmt: skip
        if timed_too:
            cells += timed([row.seconds for row in mine], [target[text].seconds for text in texts])
        return f"| {' | '.join(cells)} |"

    lines += [line(key) for key in CONDITIONS]
    wise = [draft[text] if draft[text].right else target[text] for text in texts]
    cell = share([row.right for row in wise]).percent()
    spent = mean([cost(row) for row in wise]).number()
    lines.append(
        f"| oracle: the draft where it is right, else the target | {cell} | | | | | {spent} | |{' | |' * timed_too}"
    )
    lines += ["", *_mixes(by, texts, price), ""]
    load = sorted(row.load for row in rows)[len(rows) // 2]
    lines.append(f"Threads that ran or waited for a core: {load:.0f} in the median.")
    return "\n".join([*lines, ""])


def _mixes(by: dict[str, dict[str, Row]], texts: Sequence[str], price: float) -> list[str]:
    """Return, by question, how often each way is right against a mix of draft and target of equal cost."""

    def cost(key: str) -> float:
        return float(np.mean([by[key][text].target + price * by[key][text].draft for text in texts]))

    low, high = cost("draft"), cost("target")
    lines = [
        "Beside a mix of the two at the same cost (whole questions given to the target at random): the difference in "
        "right answers. A way dearer than the target alone is compared with the target.",
        "",
        "| condition | share of questions that the mix gives to the target | more right than the mix |",
        "|---|---|---|",
    ]
    gains: dict[str, list[float]] = {}
    for key in CONDITIONS[2:]:
        part = min(1.0, max(0.0, (cost(key) - low) / (high - low)))
        mixed = [part * by["target"][text].right + (1 - part) * by["draft"][text].right for text in texts]
        right = [float(by[key][text].right) for text in texts]
        gains[key] = [a - b for a, b in zip(right, mixed, strict=True)]
        more: Estimate = difference(right, mixed)
        lines.append(f"| `{key}` | {100 * part:.0f} % | {more.points()} |")
    for planner in ("takeover", "ssr"):
        more = difference(_other_half({key: gain for key, gain in gains.items() if planner in key}), [0.0] * len(texts))
        lines.append(f"| `{planner}`, the threshold chosen on the other half of the questions | | {more.points()} |")
    return lines


def _other_half(gains: Mapping[str, list[float]]) -> list[float]:
    """Return the gains of each half of the questions at the setting that gains most on the other half."""
    found = [0.0] * len(next(iter(gains.values())))
    for half in (0, 1):
        best = max(gains.values(), key=lambda values: sum(values[1 - half :: 2]))
        found[half::2] = best[half::2]
    return found


def _same(first: str, second: str) -> bool:
    return first.partition("<END_OF_PLAN>")[0] == second.partition("<END_OF_PLAN>")[0]


def _rate(rows: Sequence[Row]) -> str:
    """Return the share of the draft's pieces that did not stand, as the answers' `data` tell it."""
    bad = whole = 0
    for row in rows:
        bad += row.data.get("rejected", 0)
        whole += row.data.get("drafted", 0)
    return f"{100 * bad / whole:.0f} % of {whole}" if whole else ""


def run(given: Given) -> str:
    """Ask what has not been asked yet, write the page, and return it."""
    config = given.common.load()
    kept = given.kept("takeover", config.seed)
    if not given.report:
        asyncio.run(ask_all(config, given.problems, kept))
    stem, rows = ("engine", "engine") if config.worker == "engine" else ("README", "rows")
    found = given.rows(kept, rows)
    page = page_of(rows_in(found.lines), command_of("takeover", config, given.problems), weights(), stem)
    return given.write(page, found, stem, rows)


def main() -> None:
    """Ask what has not been asked yet, and write the page; with `--from FILE` read recorded scores."""
    if any(word.partition("=")[0] == "--from" for word in sys.argv[1:]):
        from_file.main()
        return
    command("takeover", run, problems=160)
