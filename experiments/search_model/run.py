"""What does each tree search reach with the bundled model as proposer and scorer?

The searches with the bundled model `arithmetic`: it proposes the steps, and its own value is the scorer.

    python -m experiments search_model [--puzzles 200] [--seed 11] [--out FOLDER] [--report]

Beside its own value stand exact solvability and a score at random. Plain torch, without an engine, in virtual time. The
steps of a state are drawn in batches and kept, so that the j-th child of a state is the same under every method. A
step that is not legal is a dead end. Also: the planner `threads` with the bundled model `countdown`.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from zlib import crc32

import torch

from plait.core.events import Job
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.result import Result, Usage
from plait.planners.threads.threads import Threads
from plait.planners.threads.threads.dialects import load as load_dialect
from plait.runtime.client.config import BUNDLED_MODEL
from plait_bench.tasks.countdown import Countdown, remaining
from training import task as countdown, vocab as words
from training.arithmetic import vocab
from training.arithmetic.evaluate import taken_step, values
from training.arithmetic.generate import prompt as prompt_of
from training.decode import generate
from training.export import load

from .._tools.searches.cells import collect, kept_in, mean_of, of, options_of, planned
from .._tools.searches.script import Noisy, read, steps_of
from .._tools.searches.world import Outcome, outcome_of
from .._tools.statistics import difference

__all__ = ["SCORERS", "Cell", "Model", "Stepper", "Threader", "cells", "drawn", "page_of"]

MODELS = Path(BUNDLED_MODEL).parent
SETTINGS = ((4, 48), (3, 16))
"""Numbers and nodes."""
METHODS = ("majority", "best-of-n", "weighted-n", "beam", "rebase", "stride", "ets", "mcts")
SCORERS = ("chance", "own", "exact")
ILLEGAL = "illegal;"

State = tuple[tuple[int, ...], int]
"""The numbers left, and the target."""


class Model:
    """The stepper and scorer. What it has said of a state is kept."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._model = load(MODELS / "arithmetic")
        self._steps: dict[State, list[tuple[str, int]]] = {}
        self._values: dict[State, float] = {}

    def prepare(self, state: State) -> None:
        """Draw steps of a puzzle and of the states that these lead to, depth by depth, and score them; once."""
        if state in self._steps:
            return
        level = [state]
        for samples in (32, 8, 4)[: len(state[0]) - 1]:
            self._draw(level, samples)
            after = {read_left(each[0], text): each[1] for each in level for text, _ in self._steps[each]}
            level = [(left, target) for left, target in after.items() if left and (left, target) not in self._steps]

    def step(self, state: State, number: int) -> tuple[str, int]:
        """Return its n-th step from a state, at temperature 1, and the tokens of it."""
        while len(self._steps.get(state, ())) <= number:
            self._draw([state], 16)
        return self._steps[state][number]

    def value(self, state: State) -> float:
        """Return its probability that the target can be reached; it was taught two to four numbers."""
        if state not in self._values:
            (self._values[state],) = values(self._model, [state])
        return self._values[state]

    def _draw(self, states: Sequence[State], samples: int) -> None:
        if not states:
            return
        known = len(self._steps.get(states[0], ()))
        asked = [state for state in states for _ in range(samples)]
        said = generate(
            self._model,
            [vocab.encode(prompt_of("step", *state)) for state in asked],
            {vocab.END},
            16,
            1.0,
            crc32(f"{states[0]}/{known}".encode()),
        )
        for state, ids in zip(asked, said, strict=True):
            legal = taken_step(ids, state[0]) is not None
            text = "{}{}{}={};".format(*steps_of(vocab.decode(ids))[0]) if legal else ILLEGAL
            self._steps.setdefault(state, []).append((text, len(ids)))
        self._values |= zip(states, values(self._model, states), strict=True)


def read_left(numbers: tuple[int, ...], step: str) -> tuple[int, ...] | None:
    """Return the numbers after a step if there are two or more, so that the model can continue."""
    left = None if step == ILLEGAL else remaining(numbers, steps_of(step))
    return left if left is not None and len(left) > 1 else None


class Stepper:
    """The proposer of one run. A score is a token; that of a single number is the one of the two before it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._asked: Counter[State] = Counter()

    def __call__(self, job: Job, random: Random) -> Result:
        """Return a step, or the probabilities of the marks."""
        assert isinstance(job.op, ModelCall)
        numbers, target, steps, _ = read("".join(part.text for part in job.op.parts if isinstance(part, Text)))
        if job.op.sampling.labels:
            high = self._model.value((_left(numbers, steps[: len(numbers) - 2]), target))
            outcomes_ = {"<no>": math.log(max(1e-9, 1 - high)), "<yes>": math.log(max(1e-9, high))}
            return Result(value="<yes>", labels=outcomes_, usage=Usage(completion=1))
        state = _left(numbers, steps), target
        text, tokens = self._model.step(state, self._asked[state])
        self._asked[state] += 1
        return Result(value=text, usage=Usage(completion=tokens))


class Threader:
    """The bundled model `countdown`, greedy: what it writes as a parent and as a thread is kept by its prompt."""

    def __init__(self) -> None:
        self._model = load(MODELS / "countdown")
        self._said: dict[str, tuple[str, int]] = {}

    def __call__(self, job: Job, random: Random) -> Result:
        """Return the model's continuation."""
        if not isinstance(job.op, ModelCall):
            return Result()
        prompt = " ".join(part.text for part in job.op.parts if isinstance(part, Text))
        if prompt not in self._said:
            ends = {words.ID[each] for each in job.op.sampling.stop} | {words.ID["<end>"]}
            (ids,) = generate(self._model, [words.encode(prompt)], ends, job.op.sampling.max_tokens)
            self._said[prompt] = words.decode(ids), len(ids)
        text, tokens = self._said[prompt]
        return Result(value=text, usage=Usage(completion=tokens), finish="stop")


def _left(numbers: Sequence[int], steps: Sequence[tuple[int, str, int, int]]) -> tuple[int, ...]:
    left = remaining(numbers, steps)
    assert left is not None
    return left


def drawn(numbers: int, count: int, seed: int) -> list[str]:
    """Return solvable puzzles of four numbers of the model's test split, or of three numbers, which have no split of
    their own."""
    random = Random(f"{numbers}/{seed}/model")
    found: dict[str, None] = {}
    while len(found) < count:
        if numbers == 4:
            given, target, *_ = countdown.draw_problem(random, test=True)
        else:
            given = tuple(sorted((random.randint(1, 25) for _ in range(3)), reverse=True))
            targets = [each for each in sorted(countdown.reach(given)) if 10 <= each <= 100]
            if not targets:
                continue
            target = random.choice(targets)
        found[f"{' '.join(map(str, given))} -> {target}"] = None
    return list(found)


@dataclass(frozen=True)
class Cell:
    """One method at one setting."""

    size: int
    nodes: int
    method: str
    scorer: str

    @property
    def name(self) -> str:
        """Names its outcomes."""
        return f"{self.method}; {self.size} numbers; {self.scorer}; {self.nodes}"

    def run(self, model: Model, threader: Threader, text: str, number: int) -> Outcome:
        """Run it on a puzzle; `number` is the seed."""
        task = Countdown(text=text, count=self.size, any_width=True)
        if self.method == "threads":
            countdown = load_dialect("countdown")
            join = countdown.join.model_copy(update={"check": False})
            dialect = countdown.model_copy(update={"join": join})
            planner = Threads(dialect=dialect, n=self.nodes // 12, rounds=1, stop_on_verified=False)
            return outcome_of(task, planner, threader, number)
        options = options_of(self.method, self.nodes, self.size - 1)
        given = planned(options, self.size, self.nodes, scorer=_scorer(self.scorer))
        return outcome_of(task, given, Stepper(model), number)


def _scorer(name: str) -> object:
    if name == "own":
        return Plugin(name="model", options={"judge": {"template": " <value>"}, "labels": ["<no>", "<yes>"]})
    return Noisy(auroc=1.0 if name == "exact" else 0.5)


def cells() -> list[Cell]:
    """Return all cells. A majority vote and threads have no scorer; threads are of four numbers."""
    found = [
        Cell(size, nodes, method, scorer)
        for size, nodes in SETTINGS
        for method in METHODS
        for scorer in (SCORERS if method != "majority" else SCORERS[:1])
    ]
    return found + [Cell(size, nodes, "threads", "chance") for size, nodes in SETTINGS if size == 4]


def page_of(found: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the tables as Markdown; differences are of the same puzzles, with 95 % bootstrap intervals."""
    lines: list[str] = []
    for size, nodes in SETTINGS:
        mine = {
            (cell.method, cell.scorer): found[cell.name] for cell in cells() if (cell.size, cell.nodes) == (size, nodes)
        }
        count = min(map(len, mine.values()))
        if not count:
            continue
        lines += [
            f"### {size} numbers, {nodes} nodes, {count} puzzles",
            "",
            "| search | score at random | own value | exact | own less random, points | own less majority, points | "
            "any right, own | tokens, own |",
            "|---" * 8 + "|",
        ]
        mine = {key: done[:count] for key, done in mine.items()}
        for method in dict.fromkeys(method for method, _ in mine):
            shares = [
                f"{mean_of(mine[method, each], 'right'):.1%}" if (method, each) in mine else "" for each in SCORERS
            ]
            own = mine.get((method, "own"))
            outcomes_ = own or mine[method, "chance"]
            gain = _points(own, mine[method, "chance"]) if own else ""
            more = _points(outcomes_, mine["majority", "chance"]) if method != "majority" else ""
            rest = (f"{mean_of(outcomes_, 'covered'):.1%}", f"{mean_of(outcomes_, 'tokens'):.0f}")
            lines.append(f"| {' | '.join((method, *shares, gain, more, *rest))} |")
        lines.append("")
    return "\n".join(lines)


def _points(done: Sequence[Outcome], base: Sequence[Outcome]) -> str:
    by, low, high = (100 * each for each in difference(of(done, "right"), of(base, "right")))
    return f"{by:+.1f} ({low:+.1f} to {high:+.1f})"


def main() -> None:
    """Run, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m experiments search_model", description=__doc__)
    parser.add_argument("--puzzles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("build/experiments/search_model"))
    parser.add_argument("--report", action="store_true", help="run nothing: the tables of what is there")
    given = parser.parse_args()
    kept = given.out / "records" / "search_model.jsonl"
    named = {cell.name: cell for cell in cells()}
    if not given.report:
        texts = {size: drawn(size, given.puzzles, given.seed) for size, _ in SETTINGS}
        model, threader = Model(), Threader()

        def run(name: str, number: int) -> Outcome:
            cell = named[name]
            task = Countdown(text=texts[cell.size][number], count=cell.size)
            model.prepare((task.numbers, task.target))
            return cell.run(model, threader, texts[cell.size][number], number)

        collect(kept, list(named), run, given.puzzles, given.seed)
    print(page_of(kept_in(kept, given.seed, list(named))))
