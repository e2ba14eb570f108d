"""The page of the comparison on one server: what `openai_server` has measured, as tables and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._tools.contenders import IN_FLIGHT, THREADS, Told
from .._tools.measure import Spread, spread
from .compared import goal_of, ratio_of

HEAD = ("contender", "problems/s", "÷ by hand", "solved", "tokens", "late", "requests", "CPU ms", "may not use")
ABOUT = """# On one server: by hand, other libraries, and plait

All contenders had the same server, prompts, limits, whole answers and {in_flight} puzzles at a time. By hand and
plait had the same means besides: the same seeds, a check of answers, losers given up at once. The other libraries have
what they offer; the last column says what a row lacks, so its rate is no measure of its code alone. Made by

    python -m experiments peers {words}

on Python {python}, {cores} cores, load {load:.0f} at the end, in {rounds} round(s) of {problems} puzzles.
{server}
Median (lowest–highest) over rounds. The ratio is to the faster client by hand, or to the one of the same gate, round by
round. *Tokens*, *late* (generated after the puzzle's first right answer had left the server) and *requests* are a
puzzle's, by the server's own count; *CPU* is the client's. A dash: inside an engine of ours, where the server sees
nothing.
"""

REAL = "The server was vLLM's own, with the bundled model."
SCRIPTED = """The server had no model: it writes what the bundled one was taught to write, and takes for a step what one
of continuous batching would (`experiments/_tools/scripted_server.py`). Our engines in process and in Ray
have no row then."""


def _cell(told: Sequence[Told], name: str, digits: int) -> str:
    found = spread([getattr(each, name) for each in told])
    if found.median != found.median:
        return "–"
    if name == "solved":
        return (
            f"{found.median:.0%}"
            if found.low == found.high
            else f"{found.median:.0%} ({found.low:.0%}–{found.high:.0%})"
        )
    low, high = f"{found.low:,.{digits}f}", f"{found.high:,.{digits}f}"
    return f"{found.median:,.{digits}f}" if low == high else f"{found.median:,.{digits}f} ({low}–{high})"


def _ratio(found: Spread, goal: str) -> str:
    if found.median != found.median:
        return "–"
    said = f"{found.median:.2f} ({found.low:.2f}–{found.high:.2f})"
    return f"{said}, aim {goal}" if goal else said


def page(words: str, problems: int, found: Mapping[str, list[Told]], lacks: Mapping[str, str]) -> str:
    """Return the page in Markdown."""
    rounds = max(map(len, found.values()))
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "rounds": rounds,
        "problems": problems,
    }
    facts |= {"load": os.getloadavg()[0], "server": SCRIPTED if "--scripted" in words else REAL}
    lines = [ABOUT.format(words=words, in_flight=IN_FLIGHT, **facts)]
    for title, threads in (("Eight samples, the first right one", False), ("Spawned threads", True)):
        lines += [f"## {title}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
        for name, told in found.items():
            if (THREADS in name) != threads:
                continue
            cells = [name, _cell(told, "rate", 2), _ratio(ratio_of(name, dict(found)), goal_of(name))]
            cells += [_cell(told, "solved", 0), _cell(told, "tokens", 0), _cell(told, "late", 1)]
            cells += [_cell(told, "requests", 1), _cell(told, "cpu", 0), lacks.get(name, "")]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    absent = [f"* {name}: {why}" for name, why in lacks.items() if name not in found]
    return "\n".join([*lines, *(["## Not measured", "", *absent, ""] if absent else [])])


def write(folder: Path, words: str, problems: int, found: Mapping[str, list[Told]], lacks: Mapping[str, str]) -> None:
    """Write the page and its figures."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    figures = {name: [each._asdict() for each in told] for name, told in found.items()}
    (folder / "data" / "peers.json").write_text(
        json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (folder / "README.md").write_text(page(words, problems, found, lacks), encoding="utf-8")
