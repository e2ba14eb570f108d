"""How well does a judge tell from the beginnings of two samples whether both come to the same answer?

How well a judge tells from the beginnings of two samples whether both come to the same answer: AUROC.

16 samples of serial search on each of 60 held-out puzzles by the bundled model (T=1); pairs of samples of one puzzle
that both have an answer and had not said it at that point. Judges see the first k steps. 0.5 is chance. The embedding
by the bundled model (mean last hidden states, as the tool `embed` makes them) replaces an embedding model, which it
was not trained to be; no sentence-embedding model comes with this project.
"""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from plait import AsyncOrchestrator, Config
from plait.core.ops import Plugin
from plait.core.task import Task
from plait.runtime.plugins.loader import Plugins
from plait_bench.countdown import draw

from .._tools.measure import Row
from .._tools.statistics import auroc

PROBLEMS, SAMPLES, SEED = 60, 16, 7
STEPS = (3, 10, 25)
MODEL = Path(importlib.import_module("plait").__file__ or "").parent / "models" / "countdown"


class Puzzle(NamedTuple):
    """One puzzle and the texts of its samples."""

    text: str
    samples: list[str]


async def record(problems: int = PROBLEMS, samples: int = SAMPLES) -> list[Puzzle]:
    """Draw the samples on an engine in this process."""
    planner = f"sample:n={samples},answer.temperature=1,answer.max_tokens=512,merge=collect"
    puzzles: list[Puzzle] = []
    config = Config(model="countdown", worker="engine", journal="off", seed=SEED)
    async with AsyncOrchestrator(config=config) as orchestrator:
        for problem in draw(problems, SEED):
            answer = await orchestrator.run(problem.text, task="countdown", planner=planner)
            texts: Any = answer.value
            puzzles.append(Puzzle(problem.text, [text for text in texts if isinstance(text, str)]))
    return puzzles


def beginning(task: Task, text: str, steps: int) -> str | None:
    """Return a text up to the end of its step number `steps`; `None` if it has fewer steps before its answer."""
    ends = range(len(text) + 1)
    at = bisect_left(ends, steps, key=lambda end: len(task.steps(text[:end])))
    begun = text[:at]
    return begun if at <= len(text) and "<hit>" not in begun and "<none>" not in begun else None


class Pair(NamedTuple):
    """Two beginnings, and whether their samples came to the same answer."""

    task: Task
    a: str
    b: str
    same: bool


def pairs_of(puzzles: Sequence[Puzzle], steps: int) -> list[Pair]:
    """Return all pairs of samples of one puzzle."""
    plugins = Plugins()
    found: list[Pair] = []
    for puzzle in puzzles:
        task = plugins.task(Plugin(name="countdown"), puzzle.text)
        said: list[tuple[str, str]] = []
        for text in puzzle.samples:
            answer, begun = task.extract(text), beginning(task, text, steps)
            if answer is not None and begun is not None:
                said.append((begun, task.key(answer)))
        found += [Pair(task, a, b, one == two) for (a, one), (b, two) in combinations(said, 2)]
    return found


def judges(steps: int, embed: Any) -> dict[str, Callable[[Pair], float]]:
    """Return the judges that can be had without a model made for it."""
    similarity: Any = importlib.import_module("plait.policies._similarity")
    vectors: dict[str, list[float]] = {}

    def vector(text: str) -> list[float]:
        if text not in vectors:
            (vectors[text],) = embed(texts=[text])
        return vectors[text]

    def by_steps(pair: Pair) -> float:
        return float(similarity.jaccard(pair.task.steps(pair.a)[:steps], pair.task.steps(pair.b)[:steps]))

    def by_grams(pair: Pair) -> float:
        a, b = ("\n".join(pair.task.steps(text)[:steps]) for text in (pair.a, pair.b))
        return float(similarity.counts_cosine(similarity.grams(a), similarity.grams(b)))

    def by_model(pair: Pair) -> float:
        return float(similarity.cosine(vector(pair.a), vector(pair.b)))

    return {
        "steps (Jaccard)": by_steps,
        "ngrams (cosine of counts)": by_grams,
        "embedding (mean hidden states of the bundled model)": by_model,
    }


def table(puzzles: Sequence[Puzzle]) -> list[Row]:
    """Return the AUROC of each judge after this number of steps."""
    embedder: Any = importlib.import_module("plait.workers.tools.embed").embedder
    embed = embedder(str(MODEL)).fn
    rows: list[Row] = []
    for steps in STEPS:
        pairs = pairs_of(puzzles, steps)
        same = [pair.same for pair in pairs]
        if not any(same) or all(same):
            continue
        base = f"{len(pairs):,} pairs, {100 * sum(same) / len(same):.0f} % the same"
        for name, judge in judges(steps, embed).items():
            area = auroc([judge(pair) for pair in pairs], same)
            rows.append(Row(f"{name}, first {steps} steps", f"{area:.3f}", base, "", "DeepPrune's: 0.71"))
    return rows


async def run() -> list[Row]:
    """Draw the samples and return the table's rows."""
    return table(await record())
