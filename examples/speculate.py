"""A small model drafts the steps of a large one. Both are scripted: the large one needs five times as long."""

from __future__ import annotations

from city_tools import population

from plait import Orchestrator
from plait.core.call_config import CallConfig
from plait.workers.scripted import Reply, Scripted
from plait_research.planners.speculate import Speculate

ROME = '<tool_call>{"name": "population", "arguments": {"city": "Rome"}}</tool_call>'
PARIS = '<tool_call>{"name": "population", "arguments": {"city": "Paris"}}</tool_call>'


def model(name: str, rate: float) -> Scripted:
    """Return a model that looks up one city after the other."""
    replies = [
        Reply(when=r"2100000", text="Rome is larger.", tokens_per_second=rate),
        Reply(when=r"2750000", text=f"Now Paris. {PARIS}", tokens_per_second=rate),
        Reply(text=f"First Rome. {ROME}", tokens_per_second=rate),
    ]
    worker = Scripted(replies, name=name)
    worker.models = (name,)
    return worker


def main() -> None:
    for depth in (1, 4):
        with Orchestrator(workers=[model("small", 50), model("large", 10)], tools=[population]) as plait:
            planner = Speculate(draft=CallConfig(model="small"), target=CallConfig(model="large"), depth=depth)
            answer = plait.run("Is Rome or Paris larger?", planner=planner)
        print(f"depth {depth}: {answer.answer} ({answer.report.seconds:.1f} s; {answer.why})")


if __name__ == "__main__":
    main()

# prints "depth 1: Rome is larger."
# prints "3 of 3 drafted steps were right"
