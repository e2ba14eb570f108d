"""One round of learning: run problems, reflect on failed ones, test the proposal on others, accept or reject it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import JsonValue

from plait.core.ops import ModelCall, Ref, Text
from plait.core.plan import Plan, Step
from plait.core.sampling import Sampling
from plait.core.values import as_text
from plait.runtime.runlog import RunRecord

from .learnable import Learnable, Values, Version, Versions

T = TypeVar("T")


class PairedTest(NamedTuple):
    """The result of a paired test."""

    accepted: bool
    wins: int
    """Number of problems on which the change scores higher."""
    losses: int
    p: float
    more: float
    """Mean difference of the scores of a problem."""

    def __str__(self) -> str:
        word = "accepted" if self.accepted else "refused"
        return f"{word}: better on {self.wins}, worse on {self.losses}, {self.more:+.3g} a problem, p = {self.p:.3g}"


def sign_p(wins: int, losses: int) -> float:
    """Return the probability of at least this number of wins if wins and losses are equally likely: the exact one-sided
    sign test (for scores of 0 and 1 McNemar's, 1947)."""
    n = wins + losses
    return sum(math.comb(n, k) for k in range(wins, n + 1)) / 2**n


def flip_p(differences: Sequence[float], draws: int = 20_000) -> float:
    """Return the probability of an equal or higher sum of differences if each sign is equally likely: the one-sided
    paired randomisation test (Fisher, 1935; Pitman, 1937). For differences of one size it is the exact sign test;
    otherwise it is sampled with seed 0."""
    told = [difference for difference in differences if difference]
    # With one size only the number of wins matters, which has an exact test.
    if len({abs(difference) for difference in told}) < 2:
        return sign_p(sum(difference > 0 for difference in told), sum(difference < 0 for difference in told))
    sizes, total = np.asarray(told), math.fsum(told) - 1e-9
    rng = np.random.default_rng(0)
    high = sum(
        int(np.count_nonzero((rng.integers(0, 2, (1000, sizes.size)) * 2 - 1) @ sizes >= total))
        for _ in range(draws // 1000)
    )
    # The observed sum counts as a draw, so that the probability is never 0.
    return (high + 1) / (draws + 1)


def paired_test(before: Sequence[float], after: Sequence[float], level: float = 0.1, tried: int = 1) -> PairedTest:
    """Test the score differences on the same problems. A change without effect, or for the worse, is accepted with a
    probability of at most `level`, even as the best of `tried` changes (Bonferroni). Raises `ValueError` for unequal
    numbers of scores.

    An invalid score of the change counts as a loss as large as the largest difference; if both scores are invalid, the
    difference is 0.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} scores before and {len(after)} after cannot be paired")
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if not math.isnan(old)]
    known = [new - old for old, new in pairs if not math.isnan(new)]
    # An invalid score of the change must not help it.
    lost = len(pairs) - len(known)
    differences = [*known, *[-max(map(abs, known), default=1.0) or -1.0] * lost]
    wins, losses = sum(difference > 0 for difference in differences), sum(difference < 0 for difference in differences)
    p, more = flip_p(differences), math.fsum(differences) / max(1, len(before))
    return PairedTest(more > 0 and p <= level / max(1, tried), wins, losses, p, more)


def halving(
    candidates: Sequence[T], score: Callable[[T, int, int], Sequence[float]], problems: int, keep: int = 3
) -> tuple[T, int]:
    """Return the best candidate and the number of problems run, by successive halving (arXiv 1502.07943): all
    candidates run on a few problems, the best third on three times as many, and so on, each problem once a candidate.

    Args: candidates: values to try, such as thresholds or widths. At least one. score: returns a candidate's scores on
        the problems from one number up to another. problems: number of problems for the last candidates. keep: one in
        `keep` candidates reaches the next round.
    """
    left = list(candidates)
    rounds = max(1, math.ceil(math.log(max(2, len(left)), keep)))
    sums, done, spent = [0.0] * len(left), 0, 0
    for number in range(rounds):
        upto = problems if number == rounds - 1 else max(1, problems // keep ** (rounds - 1 - number))
        if upto > done:
            for place, candidate in enumerate(left):
                scores = score(candidate, done, upto)
                sums[place] += sum(score for score in scores if not math.isnan(score))
                spent += len(scores)
            done = upto
        order = sorted(range(len(left)), key=lambda place: -sums[place])
        order = order[: 1 if number == rounds - 1 else max(1, len(left) // keep)]
        left, sums = [left[place] for place in order], [sums[place] for place in order]
    return left[0], spent


# Reflection on failed runs: the prompts about them, in parallel groups, and the parser of the model's proposals.
#
# As in Combee (arXiv 2604.04247): n runs, each shown twice, shuffled, in k = ⌊√n⌋ groups; one call per group proposes
# changes, all in parallel; one call merges k proposals (in a tree if they are more than eight). The whole is one plan,
# so that it is scheduled, journalled and resumed like any other run. The sections of a prompt are those of Trace (arXiv
# 2406.16218). Unlike there nothing is executed, and no proposal is taken without a test (`paired_test`).


TOLD = 2
"""Number of groups that show each run, if more than one group exists."""
WIDEST = 8
"""Number of proposals that one call merges."""
_TEXT = 600
"""Maximum number of characters of a step in the prompt."""
_REPLY = (
    'Reply with one JSON object and nothing after it: {"reasoning": "…", "suggestion": {"NAME": NEW VALUE, …}}. Name '
    "only variables that should change. A suggestion that is worse on other problems will be refused."
)


def lesson(run: RunRecord, feedback: str) -> str:
    """Return the prompt's text about a failed run: the request, the steps that led to its output, and the feedback.
    Long texts lose their middle."""
    steps = {step.step: step for step in run.steps}
    needed = {name for step in run.steps for name in step.needs}
    above = [name for name, step in steps.items() if step.owner is None and name not in needed]
    seen: dict[str, None] = {}
    while above:
        name = above.pop()
        step = steps.get(name)
        if step is None or name in seen:
            continue
        seen[name] = None
        above += [*step.needs, *(other for other in (step.after, step.source) if other)]
    lines: list[str] = []
    for name, step in steps.items():
        # Joins have no own text: the prompt shows their branches.
        if name in seen and step.kind != "join" and step.state in ("done", "failed", "expanded"):
            text = (
                step.failure.message if step.failure is not None else as_text(step.value) if step.value else step.text
            )
            lines.append(f"- {step.path}: {_short(text)}")
    return "\n".join([f"input: {_short(run.request.text)}", "steps:", *lines, f"feedback: {_short(feedback)}"])


def groups_of(lessons: Sequence[str], seed: int, groups: int | None = None, told: int = TOLD) -> list[list[str]]:
    """Return the groups: each lesson repeated, shuffled, and never twice in one group if there are enough groups."""
    count = groups or max(1, math.isqrt(len(lessons)))
    rng = random.Random(seed)
    places: list[list[int]] = [[] for _ in range(count)]
    for _ in range(min(told, count)):
        order = list(range(len(lessons)))
        rng.shuffle(order)
        for place in order:
            free = [group for group in places if place not in group]
            # A lesson may be in several groups, but never twice in one group.
            min(free, key=len).append(place)
    return [[lessons[place] for place in group] for group in places if group]


def reflection(
    learnables: Sequence[Learnable],
    values: Mapping[str, JsonValue],
    lessons: Sequence[str],
    *,
    seed: int = 0,
    groups: int | None = None,
    sampling: Sampling | None = None,
    chat: bool = False,
) -> Plan:
    """Return the plan of a round of reflection; its output is the text of one proposal. `chat`: the calls are
    messages. Raises `ValueError` without lessons."""
    if not lessons:
        raise ValueError("there is nothing to reflect on: no run failed")
    sampled = sampling or Sampling(max_tokens=2048, temperature=0.7, seed=seed)
    head = _variables(learnables, values)
    steps: list[Step] = []
    for number, group in enumerate(groups_of(lessons, seed, groups), 1):
        reports = "\n\n".join(f"## Run {place}\n{run_lesson}" for place, run_lesson in enumerate(group, 1))
        text = f"# Instruction\nThese runs failed. Propose changes of the variables that would have helped.\n\n{head}"
        text += f"\n\n# Failed runs\n{reports}\n\n# Output\n{_REPLY}\n"
        steps.append(
            Step(
                name=f"reflect-{number}",
                op=ModelCall(prompt=(Text(text=text),), chat=chat, sampling=sampled),
                label="reflect",
            )
        )
    level = [step.name for step in steps]
    depth = 0
    while len(level) > 1:
        depth += 1
        above: list[str] = []
        for number, start in enumerate(range(0, len(level), WIDEST), 1):
            part = level[start : start + WIDEST]
            name = f"combine-{depth}-{number}"
            text = f"# Instruction\nMake one suggestion of these, and lose no rule that several have.\n\n{head}\n"
            prompt: list[Text | Ref] = [Text(text=text)]
            for place, suggestion in enumerate(part, 1):
                prompt += [Text(text=f"\n# Suggestion {place}\n"), Ref(step=suggestion)]
            prompt.append(Text(text=f"\n\n# Output\n{_REPLY}\n"))
            steps.append(
                Step(name=name, op=ModelCall(prompt=tuple(prompt), chat=chat, sampling=sampled), label="combine")
            )
            above.append(name)
        level = above
    return Plan(steps=tuple(steps), output=level[0])


def proposal(text: str) -> Values:
    """Return the suggestion from the last JSON object of a reply that has one, or an empty value."""
    decoder = json.JSONDecoder()
    suggested: Values = {}
    place = text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            place = text.find("{", place + 1)
            continue
        if isinstance(value, dict) and isinstance(value.get("suggestion"), dict):
            suggested = value["suggestion"]
        place = text.find("{", end)
    return suggested


def _variables(learnables: Sequence[Learnable], values: Mapping[str, JsonValue]) -> str:
    lines = ["# Variables"]
    for learnable in learnables:
        match learnable.kind:
            case "text":
                bounds = f"a text of {learnable.most} characters at most"
            case "number":
                bounds = f"a {'whole ' if learnable.whole else ''}number from {learnable.low:g} to {learnable.high:g}"
            case "choice":
                bounds = f"one of {json.dumps(list(learnable.choices))}"
        about = f"; {learnable.about}" if learnable.about else ""
        lines.append(f"{learnable.name} ({bounds}{about}):\n{as_text(values[learnable.name])}")
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]} … {text[-_TEXT // 2 :]}"


P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class ProblemTrial:
    """A problem that was run."""

    score: float
    lesson: str = ""
    """Feedback on the problem, for the model that reflects."""


Solve = Callable[[Values, Sequence[P]], Awaitable[list[ProblemTrial]]]
"""Runs problems with these values."""
Ask = Callable[[Plan], Awaitable[str]]
"""Runs a plan and returns its output's text."""


@dataclass(slots=True)
class Round(Generic[P]):
    """The result of a round."""

    failed: int
    proposed: Values = field(default_factory=dict[str, JsonValue])
    faults: list[str] = field(default_factory=list[str])
    """Reasons why the proposal could not be tested."""
    outcome: PairedTest | None = None
    version: Version | None = None
    """The new version, if it was accepted."""


async def improve(
    versions: Versions,
    train: Sequence[P],
    validation: Sequence[P],
    solve: Solve[P],
    ask: Ask,
    *,
    level: float = 0.1,
    seed: int = 0,
    groups: int | None = None,
    chat: bool = False,
) -> Round[P]:
    """Run one round. A useless change is accepted with a probability of at most `level`.

    The problems of `train` show failures. The problems of `validation` decide and never lead to proposals. Keep a third
    set to measure the final result. `chat`: whether the reflecting model gets messages.
    """
    now = dict(versions.current.values)
    # This form of the comparison counts NaN as a failure.
    failed = [trial for trial in await solve(now, train) if not trial.score >= 1.0]
    if not failed:
        return Round(0)
    learnables = list(versions.learnables.values())
    plan = reflection(learnables, now, [trial.lesson for trial in failed], seed=seed, groups=groups, chat=chat)
    suggested = proposal(await ask(plan))
    changed = {name: value for name, value in suggested.items() if now.get(name) != value}
    made: Round[P] = Round(len(failed), changed)
    if not changed:
        made.faults = ["the reply proposes no change"]
        return made
    made.faults = versions.faults(changed)
    # An invalid value is not corrected here: the model's intention is unknown.
    if made.faults:
        return made
    before = await solve(now, validation)
    after = await solve({**now, **changed}, validation)
    made.outcome = paired_test([trial.score for trial in before], [trial.score for trial in after], level)
    if made.outcome.accepted:
        made.version = versions.add(changed, str(made.outcome))
    return made
