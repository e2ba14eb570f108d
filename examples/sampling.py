"""One call, a vote, a vote whose size the first samples decide, beginnings that are continued where they differ, a
vote over samples that are still being written, a plan of one's own, and what did best before: seven planners put the
same question. Needs no model and no network:

    python examples/sampling.py
"""

from __future__ import annotations

from plait import Orchestrator, Plugin
from plait.workers.scripted import Reply, Scripted

ASK = "What is 6 * 7?"
RIGHT, WRONG = "Six sevens: 42. Answer: 42", "I guess: 36. Answer: 36"
CHECK = [{"kind": "text", "text": "Is this right? "}, {"kind": "ref", "step": "think"}]
STEPS = {
    "steps": [
        {"name": "think", "op": {"kind": "think", "prompt": "{{prompt}}"}},
        {"name": "check", "op": {"kind": "think", "prompt": CHECK}},
    ],
    "output": "check",
}
KNOWN = [
    {"planner": {"name": "single"}, "wins": 2, "losses": 40},
    {"planner": {"name": "sample", "options": {"n": 3}}, "wins": 40, "losses": 2},
]


def model() -> list[Scripted]:
    """Return a model whose first sample is wrong and whose others are right."""
    replies = [
        Reply(when="^Is this right", text="It is. Answer: 42"),
        Reply(when="So the answer is$", text=" 42"),
        Reply(text=WRONG, times=1),
        Reply(text=RIGHT),
    ]
    return [Scripted(replies)]


def main() -> None:
    """Ask in each way, and show what it took."""
    ways = [
        Plugin(name="single"),
        Plugin(name="sample", options={"n": 5}),
        Plugin(name="adaptive", options={"n": 3, "max_branches": 16}),
        Plugin(name="deepprune", options={"n": 4, "draft": {"max_tokens": 3}}),
        Plugin(name="mars", options={"n": 6, "warmup": 3, "draft": {"max_tokens": 6}}),
        Plugin(name="fixed", options={"graph": STEPS}),
        Plugin(name="route-record", options={"candidates": KNOWN}),
    ]
    for way in ways:
        with Orchestrator(workers=model()) as plait:
            answer = plait.run(ASK, planner=way)
        calls = sum(row.kind == "think" for row in answer.report.steps)
        print(f"{way.name}: {answer.answer}, {calls} calls, {answer.total_tokens} tokens; {answer.why}")


if __name__ == "__main__":
    main()

# prints "single: 36, 1 calls"
# prints "sample: 42, 5 calls"
# prints "adaptive: 42, 16 calls"
# prints "deepprune: 42, 9 calls"
# prints "fixed: 42, 2 calls"
# prints "route-record: 42, 3 calls"
