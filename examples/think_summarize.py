"""Several lines of thought; the first that ends stops the others, and one call reads them all. Needs no model and no
network:

    python examples/think_summarize.py
"""

from __future__ import annotations

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted

WANDERING = "Perhaps it is prime, let me look: " + ", ".join(f"not {n}" for n in range(2, 400))
MODEL = [
    Reply(when="Several attempts", text="91 is 7 times 13. Answer: no"),
    Reply(text="7 * 13 = 91, so it is not. Answer: no", times=1, tokens_per_second=40),
    Reply(text=WANDERING, tokens_per_second=100),
]


def main() -> None:
    """Ask, and show what became of the paths."""
    with Orchestrator(workers=[Scripted(MODEL)]) as plait:
        answer = plait.run("Is 91 a prime?", planner="think_summarize", n=3)
    for row in answer.report.steps:
        print(f"{row.state:9} {row.name:8} {row.label}")
    print(f"{answer.answer} ({answer.why})")
    print(f"{answer.usage.cancelled} tokens were written by paths that were stopped")


if __name__ == "__main__":
    main()

# prints "cancelled path-3"
# prints "no (1 of 3 drafts and what 2 others had written"
# prints "a synthesis)"
