"""Traffic for simulated engines: single answers, votes of four, and trees of three levels."""

from __future__ import annotations

from plait.core import Join, ModelCall, Plan, Sampling, Step, Text

__all__ = ["DEADLINE", "HALF", "MOST", "PEAK", "SHARE", "SLOTS", "SPEEDS", "plans"]

SPEEDS, SLOTS = (1.0, 1.0, 0.5, 0.25), 16
PEAK, HALF = 800.0, 13.0
MOST, SHARE = 400, 0.3
DEADLINE = 8.0


def _think(name: str, text: str, after: str | None = None) -> Step:
    return Step(name=name, op=ModelCall(prompt=(Text(text=text),), after=after, sampling=Sampling(max_tokens=MOST)))


def plans() -> list[tuple[Plan, int, float]]:
    """Return plans with the number of their thinks and their deadline in seconds."""
    ask = "What is to be done? " * 10
    single = Plan(steps=(_think("one", ask),), output="one")
    names = [f"s{i}" for i in range(4)]
    vote = Join(), tuple(names)
    votes = Plan(
        steps=(*(_think(name, ask) for name in names), Step(name="all", op=vote[0], needs=vote[1])), output="all"
    )
    first = [_think(f"a{i}", ask) for i in range(2)]
    second = [_think(f"b{i}{j}", " Go on.", after=f"a{i}") for i in range(2) for j in range(2)]
    ends = tuple(step.name for step in second)
    tree = Plan(steps=(*first, *second, Step(name="all", op=Join(), needs=ends)), output="all")
    return [(single, 1, DEADLINE), (votes, 4, DEADLINE), (tree, 6, 2 * DEADLINE)]
