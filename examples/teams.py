"""Agents that read one another: a debate, and layers with what each round changed. Needs no model."""

from __future__ import annotations

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted


def main() -> None:
    for planner in ("debate", "layers"):
        model = Scripted(
            [
                Reply(text="6 times 7 is 42.\nanswer: 42", times=1),
                Reply(text="answer: 41", times=1),
                Reply(text="I guess.\nanswer: 40", times=1),
                Reply(text="I have read the others.\nanswer: 42"),
            ]
        )
        with Orchestrator(workers=[model]) as plait:
            answer = plait.run("What is 6 times 7?", planner=planner, n=3, verify=lambda answer: answer == "42")
        print(f"{planner}: {answer.answer}, {answer.total_tokens} tokens ({answer.why})")
    with Orchestrator(workers=[Scripted([Reply(text="answer: 42")])]) as plait:
        print(plait.run("What is 6 times 7?", planner="debate").why)


if __name__ == "__main__":
    main()

# prints "debate: 42"
# prints "round 2: 2 changed, 2 to right, 0 to wrong"
# prints "one round"
