"""The page of the comparison on one server: what `openai_server` has measured, as tables and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plait.core.messages import pluralise

from .._tools.contenders import IN_FLIGHT, THREADS, Measurement
from .._tools.measure import Spread, spread
from .._tools.statistics import share_text
from .compared import goal_of, ratio_of

HEAD = ("contender", "problems/s", "÷ by hand", "solved", "tokens", "late", "requests", "CPU ms", "may not use")
ABOUT = """# On one server: by hand, other libraries, and plait

{first}All contenders had the same server, prompts, limits, whole answers and {in_flight} puzzles at a time. By hand and
plait also had the same means: the same seeds, a check of answers, losers given up at once. The other libraries have
what they offer; the last column names what a row lacks, so its rate does not measure its code alone. Made by

    python -m experiments peers {words}

on {machine}, in {rounds} of {problems} puzzles.
{server}
{read}
*Solved* has its 95 % interval (Wilson). *Tokens*, *late* (generated after the puzzle's first right answer had left the
server) and *requests* are a puzzle's, by the server's own count; *CPU* is the client's. A dash: inside an engine of
ours, where the server sees nothing.
"""
FIRST = "**One round, so no rate and no ratio has an interval**: it took {minutes:.0f} minutes.\n\n"
ONE = """Settings that do nothing differ by up to a quarter from one round to the
next (`python -m experiments defaults`). The ratio is to the faster client by hand, or to the one of the same gate."""
SEVERAL = """Median (lowest–highest) over rounds. The ratio is to the faster client by hand, or to the one of the same
gate, round by round."""
REAL = "The server was vLLM's own, with the bundled model."
SCRIPTED = """The server had no model: it writes what the bundled one was taught to write, and takes for a step what one
of continuous batching would (`experiments/_tools/scripted_server.py`). Our engines in process and in Ray
have no row then."""


def _cell(told: Sequence[Measurement], name: str, digits: int) -> str:
    found = spread([getattr(each, name) for each in told])
    if found.median != found.median:
        return "–"
    low, high = f"{found.low:,.{digits}f}", f"{found.high:,.{digits}f}"
    return f"{found.median:,.{digits}f}" if low == high else f"{found.median:,.{digits}f} ({low}–{high})"


def _solved(told: Sequence[Measurement], problems: int) -> str:
    right, asked = round(sum(each.solved for each in told) * problems), len(told) * problems
    return share_text(right, asked)


def _ratio(found: Spread, goal: str, rounds: int) -> str:
    if found.median != found.median:
        return "–"
    said = f"{found.median:.2f}" if rounds == 1 else f"{found.median:.2f} ({found.low:.2f}–{found.high:.2f})"
    return f"{said}, aim {goal}" if goal else said


def page(data: Mapping[str, Any]) -> str:
    """Return the page in Markdown, made of what `write` keeps and nothing else."""
    words, problems, lacks = data["words"], data["problems"], data["lacks"]
    found = {name: [Measurement(**each) for each in told] for name, told in data["rounds"].items()}
    rounds = max(map(len, found.values()))
    about = {"machine": data["machine"], "rounds": pluralise(rounds, "round"), "problems": problems, "words": words}
    about |= {"server": SCRIPTED if "--scripted" in words else REAL, "read": ONE if rounds == 1 else SEVERAL}
    rates = [each.rate for told in found.values() for each in told if each.rate == each.rate]
    about["first"] = FIRST.format(minutes=sum(problems / rate for rate in rates) / 60) if rounds == 1 else ""
    lines = [ABOUT.format(in_flight=IN_FLIGHT, **about)]
    for title, threads in (("Eight samples, the first right one", False), ("Spawned threads", True)):
        lines += [f"## {title}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
        for name, told in found.items():
            if (THREADS in name) != threads:
                continue
            cells = [name, _cell(told, "rate", 2), _ratio(ratio_of(name, found), goal_of(name), len(told))]
            cells += [_solved(told, problems), _cell(told, "tokens", 0), _cell(told, "late", 1)]
            cells += [_cell(told, "requests", 1), _cell(told, "cpu", 0), lacks.get(name, "")]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    absent = [f"* {name}: {why}" for name, why in lacks.items() if name not in found]
    return "\n".join([*lines, *(["## Not measured", "", *absent, ""] if absent else [])])


def write(
    folder: Path, words: str, problems: int, found: Mapping[str, list[Measurement]], lacks: Mapping[str, str]
) -> None:
    """Write what was measured as JSON, and the page that is made of it."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    on = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f} at the end"
    rounds = {name: [each._asdict() for each in told] for name, told in found.items()}
    data = {"words": words, "problems": problems, "machine": on, "lacks": dict(lacks), "rounds": rounds}
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    (folder / "data" / "peers.json").write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(page(json.loads(text)), encoding="utf-8")
