"""The demonstration's second and third part, on the bundled model `tables`: calls of a plan, and a split prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plait.apps.common.interrupt import Stopper
from plait.apps.common.output import Output
from plait.apps.common.session import opened_session
from plait.apps.common.tree import follow
from plait.core.interfaces import Planner
from plait.core.ops import Plugin
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import BUNDLED_MODEL, Config

from .turns import OneCallATurn

QUESTIONS = (
    "which of Helrus's capital, Hellom's capital, Erivik's neighbour and Fennos has the most speed?",
    "what is the total weight of Arnos's capital, Erivik, Fenrus's twin, Cormer and Erilom?",
    "how many of Hellom's agent, Fennos, Erinos, Corfik and Arnos have width above 960?",
    "is Corfik's capital's speed below the smaller of Helrus's length and Armer's height?",
)
"""None of them was trained on, with any names and numbers."""
PIECES = {
    "which of s0, s1's mentor and s2 has the least tax?": "least(tax, [s0, mentor(s1), s2])",
    "what is the difference of s0's debt and s1's advisor's capital's depth?": (
        "difference(debt(s0), depth(capital(advisor(s1))))"
    ),
    "who is s0's landlord's owner's agent?": "agent(owner(landlord(s0)))",
    "how many of s0, s1 and s2 have budget above s3's age?": "count(budget, [s0, s1, s2], age(s3))",
}
"""What a request is split into, and the right formula of each."""
SPLIT = "\n".join(
    ["write each of these questions as a formula:", *(f"{at}. {text}" for at, text in enumerate(PIECES, 1))]
)
_WIDE = 100


@dataclass(slots=True)
class DemoFigures:
    """What one way took, over all that it was asked."""

    key: str
    title: str
    asked: int = 0
    right: int = 0
    turns: int = 0
    tokens: int = 0
    critical: int = 0
    seconds: float = 0.0
    answers: list[Any] = field(default_factory=list[Any])
    failure: str = ""

    def add(self, answer: Answer, right: int, asked: int = 1) -> None:
        """Count one answer to `asked` questions, `right` of them correct."""
        self.asked += asked
        self.right += right
        self.turns += calls_of(answer)
        self.tokens += answer.total_tokens
        self.critical += answer.critical_path_tokens
        self.seconds += answer.seconds
        self.answers.append(answer.answer)
        if answer.failure is not None and not self.failure:
            self.failure = f"{answer.failure.message} ({answer.failure.kind})"

    def summary(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "asked": self.asked,
            "right": self.right,
            "model_calls": self.turns,
            "tokens": self.tokens,
            "critical_path_tokens": self.critical,
            "seconds": round(self.seconds, 3),
            "answers": self.answers,
        }


def calls_of(answer: Answer) -> int:
    """Return the number of model calls."""
    return sum(step.kind == "think" for step in answer.trace)


def family_of(config: Config) -> Config | None:
    """Return the configuration with the bundled model `tables` in the place of the puzzles' one; `None` where another
    model or worker was asked for."""
    model = Path(BUNDLED_MODEL).with_name("tables")
    if (
        config.model != str(BUNDLED_MODEL)
        or config.worker not in ("ray", "engine")
        or not (model / "model.safetensors").is_file()
    ):
        return None
    return config.model_copy(update={"model": str(model)})


async def ask_questions(
    config: Config, output: Output, stopper: Stopper
) -> tuple[list[DemoFigures], list[DemoFigures]]:
    """Ask the questions both ways and the request both ways; return the figures of each way."""
    ways = [
        DemoFigures("turns", "one call a turn"),
        DemoFigures("llmcompiler", "a plan: its calls run while it is written"),
    ]
    splits = [
        DemoFigures("single", "one call for the whole request"),
        DemoFigures("decompose", "split into its pieces"),
    ]
    console = output.people
    console.print()
    console.print(
        "Questions over tables of made-up names, which the model reads as s0, s1, …; a look-up takes 20 to 500 ms.",
        markup=False,
    )
    async with opened_session(config, output, stopper) as session:
        await session.orchestrator.run(QUESTIONS[0], task="tables", planner=Plugin(name="llmcompiler"), policies=[])
        for way in ways:
            console.print()
            console.print(way.title, style="bold")
            for text in QUESTIONS:
                if not stopper.requested:
                    planner = OneCallATurn() if way.key == "turns" else Plugin(name="llmcompiler")
                    await _ask(session.orchestrator, way, text, "tables", planner, console, stopper)
        console.print()
        console.print(f"A request of {SPLIT.count(chr(10))} pieces: {SPLIT.partition(chr(10))[0]}", markup=False)
        for way in splits:
            if not stopper.requested:
                greedy = {"temperature": 0.0}
                options: dict[str, Any] = {"answer": greedy}
                options |= {} if way.key == "single" else {"part": greedy, "separator": "\n"}
                planner = Plugin(name=way.key, options=options)
                await _ask(session.orchestrator, way, SPLIT, "plain", planner, console, stopper)
    if splits[1].asked:
        console.print("to find the pieces takes tokens too: it pays where pieces are long", style="dim")
    return ways, splits


async def _ask(
    orchestrator: AsyncOrchestrator,
    way: DemoFigures,
    text: str,
    task: str,
    planner: Plugin | Planner,
    console: Console,
    stopper: Stopper,
) -> None:
    """Ask one question one way, with its tree shown while it runs."""
    handle = await orchestrator.submit(text, task=task, planner=planner, policies=[], watch=True)
    revoke = stopper.then(handle.cancel)
    tree = await follow(handle, console, text, keep=False)
    answer = await handle
    revoke()
    if answer.status == "cancelled":
        return
    first = way.asked == 0
    if task == "tables":
        way.add(answer, answer.verified is True)
        if first and way.key == "llmcompiler":
            console.print(tree)
        _say(answer, text, console)
    else:
        _say_pieces(way, answer, console)


def _say_pieces(way: DemoFigures, answer: Answer, console: Console) -> None:
    """Print a request's formulas, each marked, and what they took."""
    lines = "" if answer.answer is None else str(answer.answer)
    marked = list(zip_longest(lines.splitlines(), PIECES.values(), fillvalue=""))
    rights = [bool(formula) and line.partition(". ")[2].strip() == formula for line, formula in marked]
    way.add(answer, sum(rights), len(PIECES))
    finding = sum(step.tokens for step in answer.trace if step.name == "extract")
    spent = f"{answer.critical_path_tokens} tokens one after another"
    spent += f", {finding} of them to find the pieces" if finding else ""
    console.print()
    console.print(f"{way.title}: {way.right} of {way.asked} right, {spent}", style="bold", markup=False, soft_wrap=True)
    for (line, _), right in zip(marked, rights, strict=True):
        mark = ("✓", "green") if right else ("✗", "red")
        console.print(Text.assemble(mark, " ", line or "no answer"), soft_wrap=True)


def _say(answer: Answer, text: str, console: Console) -> None:
    """Print a question's end in one line."""
    mark = ("✓", "green") if answer.verified else ("✗", "red")
    cost = f"{calls_of(answer):>3} model calls {answer.seconds:>5.1f} s"
    reply = "no answer" if answer.answer is None else str(answer.answer)
    room = min(console.width, _WIDE) - len(cost) - len(reply) - 6
    shown = text if len(text) <= room else text[: max(1, room - 1)] + "…"
    line = Text.assemble(mark, " ", shown.ljust(room), "  ", reply)
    console.print(line.append(f" {cost}", "dim"), no_wrap=True, overflow="ellipsis")


def close_questions(ways: Sequence[DemoFigures], console: Console) -> None:
    """Print the table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "right", "model calls", "total tokens", "seconds"):
        table.add_column(name, justify="right" if name else "left")
    for way in ways:
        table.add_row(way.key, f"{way.right}/{way.asked}", str(way.turns), str(way.tokens), f"{way.seconds:.1f}")
    console.print()
    console.print(table)
    slow, quick = ways[0], ways[1]
    if slow.asked == quick.asked and quick.seconds:
        console.print(f"llmcompiler answers {slow.seconds / quick.seconds:.1f} times as fast", style="dim")
