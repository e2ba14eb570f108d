"""Rounds of drafts; each draft reads a short digest of the round before. Needs no model and no network:

python examples/refine.py
"""

from __future__ import annotations

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted

MODEL = [
    Reply(when="Condense the attempts", text="41 forgets to carry; the others agree on the partial products."),
    Reply(when="forgets to carry", text="14 * 3 is 42, carried. Answer: 42"),
    Reply(text="14 * 3: 4 * 3 is 12, 1 * 3 is 3. Answer: 41", times=1),
    Reply(text="the engine had a bad day", finish="error", times=1),
    Reply(text="14 * 3 is 30 and 12. Answer: 42"),
]


def main() -> None:
    """Four drafts, then two that read notes on them, then the answer."""
    with Orchestrator(workers=[Scripted(MODEL)]) as plait:
        answer = plait.run("What is 14 times 3?", planner="refine:rounds=4x2x1")
    for row in answer.report.steps:
        print(f"{row.state:9} {row.name:10} {row.label}")
    print(f"{answer.answer} ({answer.why})")
    print(f"{answer.critical_path_tokens} of {answer.total_tokens} tokens one after another")


if __name__ == "__main__":
    main()

# prints "failed    draft-1-2"
# prints "42 (round 3 of 3"
# prints "53 of 79 tokens"
