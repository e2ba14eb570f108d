"""A few probes decide how a request is solved, and the answer says why. Needs no model and no network:

python examples/route.py
"""

from __future__ import annotations

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted


def model(*answers: int, then: str) -> Scripted:
    """Return a model whose probes give these answers, and which says `then` afterwards."""
    return Scripted([*(Reply(text=f"Answer: {answer}", times=1) for answer in answers), Reply(text=then)])


def main() -> None:
    """Put three questions, on which probes agree, nearly agree, and do not agree at all."""
    for worker in (
        model(42, 42, 42, 42, then="not asked"),
        model(42, 41, 42, 40, then="Once more. Answer: 42"),
        model(42, 41, 40, 39, then="Slowly, step by step. Answer: 42"),
    ):
        with Orchestrator(workers=[worker]) as plait:
            answer = plait.run("What is 6 times 7?", planner="route")
        print(f"{answer.answer}: {answer.why}")


if __name__ == "__main__":
    main()

# prints "42: probes: 4 of 4 probes agree"
# prints "42: vote: 2 of 4 probes agree"
# prints "42: serial: all 4 answers differ"
