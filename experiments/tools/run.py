"""Plans of tool calls, turns of one call, turns of parallel calls: who is right, and how soon?

Held-out questions over tables on the engine, by one call a turn, native parallel calls, and plans.

All are modes of one small model, so what differs is how calls are asked for. A look-up takes a fixed time; a
share of look-ups fails once. Questions are asked one at a time, the ways in turn for each question.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from plait.core.flow import Answerable, Flow, StepFailed
from plait.core.interfaces import Planner
from plait.core.ops import Plugin
from plait.core.record import StepRecord
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait_bench.tasks.tables.questions import PARAMETERS
from training.tables.questions import held_out

from .._tools.command import Given, command
from .._tools.one_call_a_turn import OneCallATurn
from .._tools.statistics import share
from .row import Row
from .tables import every, exactly, faster, from_calls, ratios, where

__all__ = ["Row", "ask_all", "page_of", "rows_of", "run"]

WAYS = ("turns", "native", "react", "llmcompiler", "last-task")
"""`last-task` is `llmcompiler` without its joiner where all tasks were done; `native` a bare loop of turns."""
CONDITIONS = ((0.0, 0.1), (0.0, 0.5), (0.0, 0.02), (0.1, 0.1), (0.1, 0.5), (0.1, 0.02))
"""Pairs of the share of look-ups that fail the first time and the seconds that a look-up takes. A question is asked
under all of them before the next, those with long look-ups in a second pass: a study that is stopped has the same
questions under each of a pass."""
LONG = 0.5
SEED = 2024
"""Seconds of a look-up from which a condition is left to the second pass."""
PARTS = ("model", "both", "tools", "neither")
"""Where the time of a run goes: only the model works, a plan is written while tools run, only tools, none of them."""
DEEP = 5
"""Calls from which a question counts as deep."""
MODEL = Path(BUNDLED_MODEL).with_name("tables")


class NativeTurns(Flow):
    """Turns of native calls, all that a turn asks for at the same time; `<tool_call>` as in Hermes' template."""

    turns: int = 16
    """Most turns."""

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the answer, or `None` where a call cannot be made."""
        text = f"<native>{question}\n"
        for _ in range(self.turns):
            line = await ctx.think(text, max_tokens=256, temperature=0.0, chat=False)
            calls = native_calls(line.text)
            if calls is None:
                return None
            if not calls:
                return line.text.strip()
            shown = [self._shown(ctx, *call) for call in calls]
            said = await ctx.gather(*shown)
            text += line.text.removesuffix("<end>").removesuffix("\n") + "\n<end>"
            text += "".join(f"<tool_response>{each}</tool_response>\n" for each in said)
        return None

    async def _shown(self, ctx: Flow.Context, tool: str, args: dict[str, JsonValue]) -> str:
        try:
            value = await ctx.call(tool, **args)
        except StepFailed as error:
            return f"error: {' '.join(str(error).split()).replace('<', '')}"
        return value if isinstance(value, str) else json.dumps(value)


def native_calls(text: str) -> list[tuple[str, dict[str, JsonValue]]] | None:
    """Return the calls in a turn; empty without any, `None` if one cannot be made."""
    found: list[tuple[str, dict[str, JsonValue]]] = []
    for part in text.split("<tool_call>")[1:]:
        try:
            read = json.loads(part.partition("</tool_call>")[0])
        except (ValueError, RecursionError):
            return None
        match read:
            case {"name": str(name), "arguments": dict(args)} if tuple(args) == PARAMETERS.get(name):
                found.append((name, args))
            case _:
                return None
    return found


def planner_of(way: str) -> Planner | Plugin:
    """Return the planner for a way."""
    match way:
        case "turns":
            return OneCallATurn()
        case "native":
            return NativeTurns()
        case "react":
            return Plugin(name="react", options={"rounds": 16, "turn": {"max_tokens": 256}})
        case "last-task":
            return Plugin(name="llmcompiler", options={"rounds": 3, "answer_from": "last-task"})
        case _:
            return Plugin(name=way, options={"rounds": 3})


async def ask_all(config: Config, questions: int, kept: Path) -> None:
    """Ask what has not been asked yet; each row is written when it is there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = {(row.text, row.way, row.latency, row.failing) for row in rows_of(kept)}
    todo = [
        (text, latency, failing, way)
        for second in (False, True)
        for text in held_out(questions, SEED + config.seed)
        for failing, latency in CONDITIONS
        for way in WAYS
        if second == (latency >= LONG) and (text, way, latency, failing) not in done
    ]
    if not todo:
        return
    given = config.model_copy(update={"model": str(MODEL)})
    async with AsyncOrchestrator(config=given) as orchestrator:
        for way in WAYS:  # once each, so that nothing is compiled or loaded while it is timed
            await orchestrator.run(todo[0][0], task="tables", planner=planner_of(way), policies=[])
        with kept.open("a", encoding="utf-8") as out:
            for text, latency, failing, way in todo:
                row = await _ask(orchestrator, text, latency, failing, way)
                out.write(json.dumps(asdict(row)) + "\n")
                out.flush()


async def _ask(orchestrator: AsyncOrchestrator, text: str, latency: float, failing: float, way: str) -> Row:
    task = Plugin(name="tables", options={"latency": [latency, latency], "failing": failing})
    answer = await orchestrator.run(text, task=task, planner=planner_of(way), policies=[])
    kinds = [step.kind for step in answer.trace]
    return Row(
        text, way, latency, failing, answer.verified is True, kinds.count("think"), kinds.count("call"),
        answer.total_tokens, round(answer.seconds, 4), os.getloadavg()[0], parts_of(answer.trace, answer.seconds),
    )  # fmt: skip


def parts_of(steps: Sequence[StepRecord], seconds: float) -> dict[str, float]:
    """Return where the seconds of a run went, by `PARTS`, and what the model's last call took (`joiner`)."""
    spells = {
        kind: [
            (began, ended)
            for step in steps
            if step.kind == kind
            for (began, state, _), (ended, _, _) in itertools.pairwise(step.moves)
            if state == "running"
        ]
        for kind in ("think", "call")
    }
    cuts = sorted({at for each in spells.values() for spell in each for at in spell})
    parts = dict.fromkeys(PARTS, 0.0)
    for low, high in itertools.pairwise(cuts):
        model, tools = (any(a <= low and high <= b for a, b in spells[kind]) for kind in ("think", "call"))
        parts["both" if model and tools else "model" if model else "tools" if tools else "neither"] += high - low
    parts["neither"] += max(0.0, seconds - sum(parts.values()))
    last = max(spells["think"], default=(0.0, 0.0))
    return {name: round(value, 4) for name, value in (parts | {"joiner": last[1] - last[0]}).items()}


def rows_of(kept: Path) -> list[Row]:
    """Return the stored answers, from the file or from the compressed one beside it (`.gz`)."""
    packed = kept.with_name(f"{kept.name}.gz")
    if kept.is_file():
        text = kept.read_text(encoding="utf-8")
    elif packed.is_file():
        text = gzip.decompress(packed.read_bytes()).decode()
    else:
        return []
    return [Row(**json.loads(line)) for line in text.splitlines()]


def page_of(rows: Sequence[Row]) -> str:
    """Return the tables as Markdown."""
    deep = from_calls(DEEP)
    lines = [
        "# Calls in turns, in parallel turns, and as plans",
        "",
        f"The bundled model `tables` on the engine, {len({row.text for row in rows})} held-out questions of 1 to 8 "
        f"calls in equal shares, asked one at a time. *Failing*: the share of look-ups that fail once. Temperature 0. "
        f"*Load*: threads that ran or waited for one of {os.cpu_count()} cores, in the median; where that "
        "is more than one a core, ratios of neighbours in time say more than seconds. 95 % intervals (bootstrap over "
        "questions).",
        "",
        "| failing | a look-up takes | questions | load | way | right | model calls | tool calls | tokens | seconds | "
        f"times as fast as `turns` | from {DEEP} calls on |",
        "|---" * 12 + "|",
    ]
    for failing, latency in CONDITIONS:
        chosen = [row for row in rows if (row.failing, row.latency) == (failing, latency)]
        by_way = {way: {row.text: row for row in chosen if row.way == way} for way in WAYS}
        for way, mine in by_way.items():
            if not mine:
                continue
            all_ = list(mine.values())
            cells = [
                f"{100 * failing:.0f} %", f"{1000 * latency:.0f} ms", str(len(all_)),
                f"{np.median([row.load for row in all_]):.0f}", f"`{way}`",
                share([row.right for row in all_]).percent(),
                f"{np.mean([row.model_calls for row in all_]):.1f}", f"{np.mean([row.tool_calls for row in all_]):.1f}",
                f"{np.mean([row.tokens for row in all_]):.0f}", f"{np.mean([row.seconds for row in all_]):.2f}",
                *(("", "") if way == "turns" else (faster(by_way["turns"], mine, kept) for kept in (every, deep))),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Last columns: geometric means over questions that both ways answer rightly, and how many.", ""]
    lines += [*ratios(rows, CONDITIONS, DEEP), *where(rows, CONDITIONS, WAYS)]
    return "\n".join([*lines, *_by_calls(rows), ""])


def _by_calls(rows: Sequence[Row]) -> list[str]:
    """Return each way's speed-up by the number of a question's calls, under the first condition."""
    failing, latency = CONDITIONS[0]
    chosen = [row for row in rows if (row.failing, row.latency) == (failing, latency)]
    turns = {row.text: row for row in chosen if row.way == "turns"}
    lines = [
        f"Times as fast as `turns` by the number of calls ({1000 * latency:.0f} ms, none failing): a question of one "
        "call takes two calls of the model in turns, two as a plan with its joiner, one as a plan without.",
        "",
        f"| way | {' | '.join(map(str, range(1, 9)))} |",
        "|---" * 9 + "|",
    ]
    for way in WAYS[1:]:
        mine = {row.text: row for row in chosen if row.way == way}
        cells = [faster(turns, mine, exactly(n)) for n in range(1, 9)]
        lines.append(f"| `{way}` | {' | '.join(cells)} |")
    return lines


def run(given: Given) -> str:
    """Ask what has not been asked yet, write the page, and return it."""
    config = given.common.load()
    kept = given.kept("rows", config.seed)
    if not given.report:
        asyncio.run(ask_all(config, given.problems, kept))
    return given.write(page_of(rows_of(kept)))


def main() -> None:
    """Ask what has not been asked yet, and write the page."""
    command("tools", run, problems=96)
