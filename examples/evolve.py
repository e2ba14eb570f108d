"""A (scripted) model improves a program by what became of the last one: wrong, right, fast."""

from __future__ import annotations

import json

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.sandbox import Sandbox
from plait_research.planners.evolve import Evolve

PUBLIC = [{"args": [4], "want": 10}, {"args": [0], "want": 0}, {"args": [200000], "want": 20000100000}]
PROBLEM = {"prompt": "Return the sum of the numbers from 1 to n.", "entry": "total", "public": PUBLIC}


def program(body: str) -> str:
    """Return a model's text."""
    return f"```python\ndef total(n):\n    return {body}\n```"


def main() -> None:
    model = Scripted(
        [
            Reply(when="make it faster", text=program("n * (n + 1) // 2")),
            Reply(when="should give", text=program("sum(i for i in range(n + 1))")),
            Reply(text=program("sum(range(n))")),
        ]
    )
    sandbox = Sandbox("process")  # limits only; Sandbox() takes bubblewrap or a container
    with Orchestrator(workers=[model], tools=sandbox.tools()) as plait:
        answer = plait.run(json.dumps(PROBLEM), task="code", planner=Evolve(n=2, rounds=4, repeats=3))
    print(answer.answer)
    print("by", answer.why)


if __name__ == "__main__":
    main()

# prints "n * (n + 1) // 2"
# prints "passes 3 of 3 public cases"
