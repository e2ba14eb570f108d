"""What the scorer, the stepper and the erring voter reached, on problems and sums of the test split."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import torch

from ..decode import generate
from ..evaluate import held_out, wilson
from ..model import Llama
from .generate import LEVELS, after, draw_sum, is_test_sum, prompt, solvable, state, worked
from .vocab import END, ID, decode, encode

VOTES = 16


def auroc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Chance that one of the right scores above one of the wrong; ties count half (Mann and Whitney)."""
    if not right or not wrong:
        return float("nan")
    ranked = sorted([(score, 1) for score in right] + [(score, 0) for score in wrong])
    total, at = 0.0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        middle = (at + end + 1) / 2  # mean rank of a tie, from 1
        total += middle * sum(kind for _, kind in ranked[at:end])
        at = end
    n = len(right)
    return (total - n * (n + 1) / 2) / (n * len(wrong))


@torch.inference_mode()
def values(model: Llama, states: Sequence[tuple[tuple[int, ...], int]]) -> list[float]:
    """P(solvable) of each state."""
    out: list[float] = []
    for at in range(0, len(states), 512):
        part = [encode(prompt("value", *each)) for each in states[at : at + 512]]
        longest = max(map(len, part))
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in part])
        last = torch.tensor([len(ids) - 1 for ids in part])
        hidden = model.hidden(ids, torch.float32)[torch.arange(len(part)), last]
        scores = model.logits(hidden, torch.float32)[:, [ID["<yes>"], ID["<no>"]]]
        out += scores.softmax(dim=-1)[:, 0].tolist()
    return out


def scorer(model: Llama, count: int, seed: int) -> list[list[str]]:
    """AUROC, calibration and share of solvable states by numbers left."""
    rng = random.Random(f"{seed}/value")
    states = [state(rng, test=True) for _ in range(count * 6)]
    scored = list(zip(states, values(model, states), strict=True))
    rows: list[list[str]] = []
    for left in (4, 3, 2):
        mine = [(solvable(*each), score) for each, score in scored if len(each[0]) == left]
        yes = [score for truth, score in mine if truth]
        no = [score for truth, score in mine if not truth]
        brier = sum((score - truth) ** 2 for truth, score in mine) / len(mine)
        base = len(yes) / len(mine)
        rows.append([
            f"{left} numbers left", str(len(mine)), f"{100 * base:.0f} %", f"{auroc(yes, no):.3f}",
            f"{brier:.3f} ({base * (1 - base):.3f})",
        ])  # fmt: skip
    return [["scorer", "n", "solvable", "AUROC", "Brier score (of the share alone)"], *rows]


def stepper(model: Llama, count: int, seed: int) -> list[list[str]]:
    """Single steps of solvable states: legal, and still solvable; beside a legal step at random. And whole lines."""
    rng = random.Random(f"{seed}/step")
    rows: list[list[str]] = []
    by_left: dict[int, list[tuple[tuple[int, ...], int]]] = {4: [], 3: [], 2: []}
    while min(map(len, by_left.values())) < count:
        numbers, target = state(rng, test=True)
        if solvable(numbers, target) and len(by_left[len(numbers)]) < count:
            by_left[len(numbers)].append((numbers, target))
    for left, states in by_left.items():
        options = [[then for _, then in after(numbers)] for numbers, _ in states]
        chance = sum(
            sum(solvable(then, target) for then in each) / len(each)
            for each, (_, target) in zip(options, states, strict=True)
        )
        cells: list[str] = []
        for temperature in (0.0, 1.0):
            taken = [taken_step(ids, numbers) for ids, (numbers, _) in _stepped(model, states, temperature, seed)]
            legal = sum(each is not None for each in taken)
            good = sum(t is not None and solvable(t, target) for t, (_, target) in zip(taken, states, strict=True))
            cells += [f"{100 * legal / count:.1f} %", f"{100 * good / count:.1f} %"]
        rows.append([f"{left} numbers left", str(count), *cells, f"{100 * chance / count:.1f} %"])
    rows.append(["whole line, held-out problems", *_lines(model, count, seed)])
    head = ["stepper", "n", "legal, T=0", "still solvable, T=0", "legal, T=1", "still solvable, T=1", "at random"]
    return [head, *rows]


def _stepped(
    model: Llama, states: Sequence[tuple[tuple[int, ...], int]], temperature: float, seed: int
) -> list[tuple[list[int], tuple[tuple[int, ...], int]]]:
    texts = generate(model, [encode(prompt("step", *each)) for each in states], {END}, 16, temperature, seed)
    return list(zip(texts, states, strict=True))


def taken_step(ids: Sequence[int], numbers: tuple[int, ...]) -> tuple[int, ...] | None:
    """The numbers after a written step, or None if it is not legal or says wrong numbers."""
    text = decode(ids)
    for (a, op, b, c), then in after(numbers):
        if text == f"{a} {op} {b} = {c} | {' '.join(map(str, then))} <end>":
            return then
    return None


def _lines(model: Llama, count: int, seed: int) -> list[str]:
    """Problems solved by three steps, one after another."""
    cells = [str(count)]
    for temperature in (0.0, 1.0):
        live: list[tuple[tuple[int, ...], int]] = list(held_out(count, seed))
        for turn in range(3):
            stepped = _stepped(model, live, temperature, seed + turn)
            live = [(t, target) for ids, (n, target) in stepped if (t := taken_step(ids, n)) is not None]
        cells += ["", f"{100 * sum(n == (target,) for n, target in live) / count:.1f} % solved"]
    return [*cells, ""]


def voter(model: Llama, count: int, seed: int) -> list[list[str]]:
    """By level: one sample, the majority of 16, and how well a sample's own confidence tells right from wrong."""
    rng = random.Random(f"{seed}/sum")
    sums: list[list[str]] = []
    while len(sums) < count:
        words = draw_sum(rng)
        if is_test_sum(words):
            sums.append(words)
    rows: list[list[str]] = []
    for level in LEVELS:
        prompts = [encode(f"<sum> {level} {' '.join(words)} <go>") for words in sums for _ in range(VOTES)]
        texts = generate(model, prompts, {END}, 64, 1.0, seed)
        greedy = generate(model, prompts[::VOTES], {END}, 64)
        sure = confidences(model, prompts[: 200 * VOTES], texts[: 200 * VOTES])
        wanted = [str((worked(words) or [(0, "", 0, 0)])[-1][3]) for words in sums]
        given = [said(ids) for ids in texts]
        single = sum(got == wanted[at // VOTES] for at, got in enumerate(given))
        voted = 0
        for at, right in enumerate(wanted):
            votes = Counter(got for got in given[at * VOTES : (at + 1) * VOTES] if got is not None)
            voted += bool(votes) and votes.most_common(1)[0][0] == right
        yes = [score for at, score in enumerate(sure) if given[at] == wanted[at // VOTES]]
        no = [score for at, score in enumerate(sure) if given[at] != wanted[at // VOTES]]
        zero = sum(said(ids) == right for ids, right in zip(greedy, wanted, strict=True))
        low, high = wilson(voted, count)
        rows.append([
            f"level {level}", str(count), f"{100 * single / len(texts):.1f} %", f"{100 * zero / count:.1f} %",
            f"{100 * voted / count:.1f} % ({100 * low:.1f}–{100 * high:.1f})", f"{auroc(yes, no):.3f}",
            f"{sum(map(len, texts)) / len(texts):.0f}",
        ])  # fmt: skip
    head = ["erring voter", "n", "one sample, T=1", "T=0", f"majority of {VOTES}", "AUROC, sureness", "tokens"]
    return [head, *rows]


def said(ids: Sequence[int]) -> str | None:
    """The number after `<hit>`."""
    words = decode(ids).split()
    return words[-2] if len(words) >= 3 and words[-3] == "<hit>" and words[-1] == "<end>" else None


@torch.inference_mode()
def confidences(model: Llama, prompts: Sequence[list[int]], texts: Sequence[list[int]]) -> list[float]:
    """Mean log-probability of each text's words."""
    out: list[float] = []
    for at in range(0, len(prompts), 256):
        rows = [[*p, *t] for p, t in zip(prompts[at : at + 256], texts[at : at + 256], strict=True)]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        scores = model.logits(model.hidden(ids[:, :-1], torch.float32), torch.float32).log_softmax(dim=-1)
        chosen = scores.gather(2, ids[:, 1:, None])[:, :, 0]
        for row, (start, end) in enumerate(
            (len(p) - 1, len(p) + len(t) - 1) for p, t in zip(prompts[at : at + 256], texts[at : at + 256], strict=True)
        ):
            out.append(float(chosen[row, start:end].mean()))
    return out


def table(tables: Sequence[Sequence[Sequence[str]]]) -> str:
    """Tables in Markdown, each with its head first."""
    parts: list[str] = []
    for rows in tables:
        lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return "\n\n".join(parts)


def report(model: Llama, count: int, seed: int = 2024) -> str:
    """All three, as Markdown."""
    return table([scorer(model, count, seed), stepper(model, count, seed), voter(model, min(count, 300), seed)])
