"""What the outliner reached on held-out sums: outlines, steps at once and in full, difficulties, the whole."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from plait_research.planners._sub_problems import GraphText

from ..arithmetic.evaluate import auroc
from ..decode import generate
from ..evaluate import wilson
from ..model import Llama
from .generate import Case, draw_case, mark, outline, parts
from .vocab import END, decode, encode

MODES = ("outline", "do", "at once", "answer", "pick", "whole", "whole at once")
TOKENS = 220


def cases(count: int, seed: int) -> list[Case]:
    """Different held-out sums."""
    rng, found = random.Random(f"{seed}/outline"), dict[str, Case]()
    while len(found) < count:
        case = draw_case(rng, test=True)
        found.setdefault(case.text, case)
    return list(found.values())


def written(model: Llama, prompts: Sequence[str]) -> list[str]:
    """What the model writes greedily, without the end."""
    texts = generate(model, [encode(prompt) for prompt in prompts], {END}, TOKENS)
    return [decode(ids).removesuffix("<end>") for ids in texts]


def same_plan(text: str, case: Case) -> bool:
    """Whether an outline, read as planners read it, has the steps, needs and difficulties of a sum."""
    read, wanted = GraphText(8), GraphText(8)
    for graph, given in ((read, text), (wanted, outline(case.steps))):
        graph.feed(given)
        graph.close()
    return read.parts == wanted.parts


def modes(model: Llama, drawn: Sequence[Case], seed: int) -> list[list[str]]:
    """Each mode: right, overall and by size (steps of the sum, or operations of the step)."""
    rows = [["mode", "n", "right (95 % interval)", "size 1", "2", "3", "4", "5 and more"]]
    for mode in MODES:
        asked: list[tuple[str, str, Case, int]] = []
        for at, case in enumerate(drawn):
            rng = random.Random(f"{seed}/{mode}/{at}")
            prompt, wanted = parts(rng, case, mode)
            name = prompt.rpartition("<do>")[2].partition(" ")[0]
            sizes = {step.name: step.operations for step in case.steps}
            asked.append((prompt, wanted, case, sizes.get(name, len(case.steps))))
        by: dict[int, list[bool]] = defaultdict(list)
        for (_, wanted, case, size), text in zip(asked, written(model, [each[0] for each in asked]), strict=True):
            last = text.replace(";", " ").split()[-1:] == wanted.replace(";", " ").split()[-1:]
            by[min(5, size)].append(same_plan(text, case) if mode == "outline" else last)
        hits = sum(map(sum, by.values()))
        low, high = wilson(hits, len(drawn))
        share = f"{100 * hits / len(drawn):.1f} % ({100 * low:.1f}–{100 * high:.1f})"
        cells = [f"{100 * sum(by[n]) / len(by[n]):.0f}" if by[n] else "" for n in range(1, 6)]
        rows.append([mode, str(len(drawn)), share, *cells])
    return rows


def marks(model: Llama, drawn: Sequence[Case], seed: int) -> list[list[str]]:
    """Whether the mark is the one taught, and how well it tells steps that go wrong at once from others."""
    asked: list[tuple[Case, str, str]] = []
    for at, case in enumerate(drawn):
        prompt, _ = parts(random.Random(f"{seed}/difficult/{at}"), case, "difficult")
        asked.append((case, prompt, prompt.removesuffix("<difficult>") + "<at-once>"))
    said = [text.split()[0] if text.split() else "" for text in written(model, [each[1] for each in asked])]
    done = written(model, [each[2] for each in asked])
    exact, wrong, right = 0, list[float](), list[float]()
    for (case, prompt, _), digit, text in zip(asked, said, done, strict=True):
        name = prompt.rpartition("<do>")[2].partition(" ")[0]
        step = next(each for each in case.steps if each.name == name)
        exact += digit == str(mark(step))
        (right if text.strip() == str(case.values[name]) else wrong).append(float(digit) if digit.isdigit() else 9.0)
    low, high = wilson(exact, len(drawn))
    share = f"{100 * exact / len(drawn):.1f} % ({100 * low:.1f}–{100 * high:.1f})"
    told = f"{auroc(wrong, right):.3f}" if wrong and right else "none went wrong" if right else "all went wrong"
    return [["difficulty", "n", "the mark taught", "AUROC, wrong at once"], ["mark", str(len(drawn)), share, told]]


def report(model: Llama, count: int, seed: int = 2024) -> str:
    """The tables of the model card, as Markdown."""
    drawn = cases(count, seed)
    tables = (modes(model, drawn, seed), marks(model, drawn, seed))
    lines = [
        "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])
        for rows in tables
    ]
    return "\n\n".join(lines)
