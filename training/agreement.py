"""How often a draft's next word is its target's: of Countdown, and of the planners of tools.

The target writes greedily on held-out problems; the draft gives its own token at each place.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch

from .decode import generate
from .evaluate import held_out, wilson
from .model import Llama
from .tables import questions as asking, vocab as table_words
from .tables.evaluate import STOPS, prompt_of
from .tables.generate import MOST_SPLIT, Case, formula_trace, joiner_trace, plan_trace, split_trace
from .task import candidates
from .vocab import END, ID, encode

MODES = ("serial", "child", "parent", "direct")


def prompts(mode: str, count: int, seed: int) -> list[list[int]]:
    """Prompts of a mode, eight wide; a child gets the numbers after a random first step."""
    rng = random.Random(f"{seed}/{mode}")
    out: list[list[int]] = []
    for numbers, target in held_out(count, seed):
        shown = rng.choice(candidates(numbers)).numbers() if mode == "child" else numbers
        width = "8 " if mode in ("serial", "parent") else ""
        out.append(encode(f"<{mode}> {width}T{target} {' '.join(map(str, shown))} <go>"))
    return out


@torch.inference_mode()
def agreed(draft: Llama, asked: Sequence[list[int]], texts: Sequence[list[int]]) -> list[list[bool]]:
    """Whether the draft would have written each word of the target's texts, given what the target wrote before it."""
    found: list[list[bool]] = []
    for prompt, text in zip(asked, texts, strict=True):
        ids = torch.tensor([[*prompt, *text]])
        guessed = draft.logits(draft.hidden(ids[:, :-1], torch.float32), torch.float32).argmax(-1)[0, len(prompt) - 1 :]
        found.append((guessed == torch.tensor(text)).tolist())
    return found


def agreement(draft: Llama, target: Llama, asked: Sequence[list[int]], limit: int = 400) -> tuple[int, int]:
    """Words on which both agree, and all words, of the target's greedy texts."""
    found = agreed(draft, asked, generate(target, asked, {END, ID["<wait>"]}, limit))
    return sum(map(sum, found)), sum(map(len, found))


def lines_of(words: Sequence[bool], ends: Sequence[bool]) -> list[bool]:
    """Whether all words of each line agree; `ends` tells the words that a line ends with."""
    lines, whole = [], True
    for same, end in zip(words, ends, strict=True):
        whole = whole and same
        if end:
            lines.append(whole)
            whole = True
    return lines if not ends or ends[-1] else [*lines, whole]


def tables_report(drafts: Mapping[str, Llama], target: Llama, count: int, seed: int = 90210) -> str:
    """A table in Markdown of the drafts of a planner of tools: what share of the target's words, lines (a plan's steps)
    and whole texts they would have written."""
    cases = [Case(text, seed + at) for at, text in enumerate(asking.held_out(count, seed))]
    short = [case for case in cases if len(case.calls) <= MOST_SPLIT]
    makers = {"plan": plan_trace, "joiner": joiner_trace, "formula": formula_trace, "split": split_trace}
    ends = {table_words.ID["\n"]} | STOPS
    lines = ["| mode | draft | words (95 % interval) | steps | whole texts |", "|---" * 5 + "|"]
    for mode, maker in makers.items():
        chosen = short if mode in ("formula", "split") else cases
        made = [maker(random.Random(f"{seed}/{mode}/{at}"), case).trace() for at, case in enumerate(chosen)]
        asked = [prompt_of(trace)[0] for trace in made]
        texts = generate(target, asked, STOPS, 300)
        for name, draft in drafts.items():
            found = agreed(draft, asked, texts)
            steps = [
                step
                for words, text in zip(found, texts, strict=True)
                for step in lines_of(words, [each in ends for each in text])
            ]
            wholes = [all(words) for words in found]
            cells = [_said([each for words in found for each in words]), _said(steps), _said(wholes)]
            lines.append(f"| {mode} | `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _said(hits: Sequence[bool]) -> str:
    """A share with its interval and how many."""
    low, high = wilson(sum(hits), len(hits))
    return f"{100 * sum(hits) / len(hits):.2f} % ({100 * low:.2f}–{100 * high:.2f}) of {len(hits):,}"


def report(draft: Llama, target: Llama, count: int, seed: int = 5) -> str:
    """A table in Markdown."""
    lines = ["| mode | words | the small model agrees (95 % interval) |", "|---|---|---|"]
    for mode in MODES:
        same, total = agreement(draft, target, prompts(mode, count, seed))
        low, high = wilson(same, total)
        lines.append(f"| {mode} | {total:,} | {100 * same / total:.2f} % ({100 * low:.2f}–{100 * high:.2f}) |")
    return "\n".join(lines)
