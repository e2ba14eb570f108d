"""Effort where it is needed: a small model drafts and a large one keeps what is good enough; a wrong answer goes to a
dearer planner. All models are scripted."""

from __future__ import annotations

from plait import Orchestrator
from plait.core.call_config import CallConfig
from plait.workers.scripted import Reply, Scripted
from plait_research.planners.routes import RouteFeatures
from plait_research.planners.scale import Scale
from plait_research.planners.ssr import SSR
from plait_research.planners.takeover import Takeover

QUESTION = "How many prime numbers are below 20?"
GOOD, BAD = "2, 3, 5, 7 are below 10.\n\n", "11, 13, 15, 17, 19 follow.\n\n"
BETTER = "11, 13, 17, 19 follow.\n\n"


def small() -> Scripted:
    """Return a model that takes 15 for a prime number."""
    replies = [
        Reply(when="17, 19 follow", text="Answer: 8"),
        Reply(when="below 10", text=BAD + "Answer: 9"),
        Reply(text=GOOD + BAD + "Answer: 9"),
    ]
    return named(Scripted(replies, name="small"))


def large() -> Scripted:
    """Return a model that sees the mistake: its mark is one token."""
    replies = [
        Reply(when="(?s)15.*digit:$", labels={"1": 0.9, "8": 0.1}),
        Reply(when="digit:$", labels={"9": 0.9, "5": 0.1}),
        Reply(when="below 10", text=BETTER + "Answer: 8"),
    ]
    return named(Scripted(replies, name="large"))


def named(worker: Scripted) -> Scripted:
    """Let a worker serve the model of its own name."""
    worker.models = (worker.name,)
    return worker


def main() -> None:
    step = SSR(draft=CallConfig(model="small", temperature=0), target=CallConfig(model="large"), n=1, strategies=())
    segment = Takeover(
        draft=CallConfig(model="small", temperature=0, max_tokens=7), target=CallConfig(model="large"), n=1
    )
    for planner in (step, segment):
        with Orchestrator(workers=[small(), large()]) as plait:
            answer = plait.run(QUESTION, planner=planner)
        print(f"{type(planner).__name__}: {answer.answer} ({answer.why})")

    planned = Scripted(
        [
            Reply(when="How difficult is this step", labels={"0": 0.5, "9": 0.5}),
            Reply(when="Do this step only.*first", text="2, 3, 5, 7"),
            Reply(when="Do this step only.*second", text="11, 13, 17, 19"),
            Reply(when="Answer the question now", text="Answer: 8"),
            Reply(text="1. [difficulty 1; needs none] the first ten\n2. [difficulty 2; needs none] the second ten\n"),
        ]
    )
    known = [(0.4, 1.0)] * 60 + [(0.6, 1.0)] * 40  # steps as difficult as that were done right at once
    with Orchestrator(workers=[planned]) as plait:
        answer = plait.run(QUESTION, planner=Scale(n=1, records=tuple(known)))
    print(f"Scale: {answer.answer} ({answer.why})")

    puzzle = Scripted(
        [
            Reply(when="<direct>", text="<hit> 3 + 5 = 8 ; 7 + 11 = 18 ; 8 + 18 = 26 <end>"),
            Reply(text="<hit> 11 - 5 = 6 ; 7 - 3 = 4 ; 6 * 4 = 24 <end>"),
        ]
    )
    with Orchestrator(workers=[puzzle]) as plait:
        answer = plait.run("3 5 7 11 -> 24", task="countdown", planner=RouteFeatures())
    calls = sum(step.kind == "think" for step in answer.report.steps)
    print(f"Route: {'right' if answer.verified else 'wrong'} after {calls} calls")


if __name__ == "__main__":
    main()

# prints "SSR: 8 (2 of 4 drafted"
# prints "Takeover: 8 (1 of 2 drafted"
# prints "Route: right after 2 calls"
