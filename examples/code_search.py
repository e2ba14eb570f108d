"""Programs that a (scripted) model wrote are run in a sandbox, and tests choose one of them."""

from __future__ import annotations

import json

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.sandbox import Sandbox
from plait_research.planners.code_search import CodeSearch

PROBLEM = {"prompt": "Return the larger of two numbers.", "entry": "larger", "public": [{"args": [1, 2], "want": 2}]}
TESTS = '{"args": [5, 3], "want": 5}\n{"args": [0, 9], "want": 9}\n'


def program(body: str) -> str:
    """Return a model's text."""
    return f"```python\ndef larger(a, b):\n    return {body}\n```"


def main() -> None:
    model = Scripted(
        [
            Reply(when="Write up to", text=TESTS),
            Reply(when="Two solutions", text='{"args": [7, 1], "want": 7}'),
            Reply(text=program("b"), times=4),  # right on the public case, and written most often
            Reply(text=program("max(a, b)")),
        ]
    )
    sandbox = Sandbox("process")  # limits only; Sandbox() takes bubblewrap or a container
    with Orchestrator(workers=[model], tools=sandbox.tools()) as plait:
        answer = plait.run(json.dumps(PROBLEM), task="code", planner=CodeSearch(n=6))
    print(answer.answer)
    print("by", answer.why)


if __name__ == "__main__":
    main()

# prints "return max(a, b)"
# prints "2 of 6 programs behave like it"
