"""Sub-problems with dependencies: easy ones go to a small model, and results to the parts that need them.

Needs no model and no network:

    python examples/skeleton_graph.py
"""

from __future__ import annotations

from plait import Orchestrator, Plugin
from plait.workers.scripted import Reply, Scripted

PLAN = """\
1. [difficulty 1; needs none] Read off the distances
2. [difficulty 2; needs none] Read off the speeds
3. [difficulty 4; needs 1, 2] Find where the trains meet
"""
MODEL = [
    Reply(when="Split the work", text=PLAN, tokens_per_second=100),
    Reply(when="Your part: Read off the distances", text="They start 300 km apart."),
    Reply(when="Your part: Read off the speeds", text="100 km/h and 50 km/h, towards each other."),
    Reply(when="300 km apart.*50 km/h.*Your part: Find", text="After 2 hours, 200 km from the start of the first."),
]


def main() -> None:
    """Ask, and show what ran when and for which model."""
    planner = Plugin(name="skeleton_graph", options={"part": {"model": "small"}, "threshold": 0.25})
    with Orchestrator(workers=[Scripted(MODEL)]) as plait:
        answer = plait.run("Where do the trains meet?", planner=planner)
    print(answer.text)
    for row in answer.report.steps:
        if row.name.startswith("part-"):
            print(f"{row.started_at:5.2f} s  {row.name}  {row.label}")
    print(answer.why)


if __name__ == "__main__":
    main()

# prints "After 2 hours"
# prints "part-1  Read off the distances (difficulty 1, small)"
# prints "3 sub-problems in 2 waves"
