"""How often the small Countdown model's next word is the large one's: what a draft model is worth to a target.

The large model writes greedily on held-out problems; the small one says what it would have written at each place.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from .decode import generate
from .evaluate import held_out, wilson
from .model import Llama
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
def agreement(draft: Llama, target: Llama, asked: Sequence[list[int]], limit: int = 400) -> tuple[int, int]:
    """Words on which both agree, and all words, of the target's greedy texts."""
    same = total = 0
    for prompt, text in zip(asked, generate(target, asked, {END, ID["<wait>"]}, limit), strict=True):
        ids = torch.tensor([[*prompt, *text]])
        guessed = draft.logits(draft.hidden(ids[:, :-1], torch.float32), torch.float32).argmax(-1)[0, len(prompt) - 1 :]
        same += int((guessed == torch.tensor(text)).sum())
        total += len(text)
    return same, total


def report(draft: Llama, target: Llama, count: int, seed: int = 5) -> str:
    """A table in Markdown."""
    lines = ["| mode | words | the small model agrees (95 % interval) |", "|---|---|---|"]
    for mode in MODES:
        same, total = agreement(draft, target, prompts(mode, count, seed))
        low, high = wilson(same, total)
        lines.append(f"| {mode} | {total:,} | {100 * same / total:.2f} % ({100 * low:.2f}–{100 * high:.2f}) |")
    return "\n".join(lines)
