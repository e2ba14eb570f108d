"""A prompt that is several of the same, split and answered piece by piece. Needs no model and no network:

python examples/decompose.py
"""

from __future__ import annotations

import json

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted

PROMPT = "Translate to German:\n1. Good day.\n2. Good night.\n3. Good luck."
SPLIT = {
    "template": "Translate to German: {data}",
    "context": None,
    "data": ["Good day.", "Good night.", "Good luck."],
    "category": "Translation",
}
MODEL = [
    Reply(when="can be split", text=f"Here it is:\n```json\n{json.dumps(SPLIT)}\n```"),
    Reply(when="Good day", text="Guten Tag."),
    Reply(when="Good night", text="Gute Nacht."),
    Reply(when="Good luck", text="the engine had a bad day", finish="error"),
    Reply(text="Scattering."),
]


def main() -> None:
    """Split one prompt, and leave another whole without asking a model about it."""
    model = Scripted(MODEL)
    with Orchestrator(workers=[model]) as plait:
        answer = plait.run(PROMPT, planner="decompose")
        print(answer.text)
        print(f"({answer.why})\n")
        before = model.counts["requests"]
        answer = plait.run("Why is the sky blue?", planner="decompose")
        print(answer.text)
        print(f"({answer.why}: {model.counts['requests'] - before} request)")


if __name__ == "__main__":
    main()

# prints "2. Gute Nacht."
# prints "3. (no answer: failed: EngineError"
# prints "no sign of several pieces: 1 request"
