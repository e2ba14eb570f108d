"""An outline first, then every point of it at the same time. Needs no model and no network:

    python examples/skeleton.py

The scripted worker replaces the model, at 40 words a second. With a real one leave `workers=` out.
"""

from __future__ import annotations

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted

MODEL = [
    Reply(when=r"plant live\?\n\nDo not answer yet. Sort", text="A"),
    Reply(when="Reply with one letter", text="C"),
    Reply(when="Write only the skeleton", text="1. Roots drink\n2. Stem carries\n3. Leaves eat light"),
    Reply(when="Write point 1 ", text="They take up water and salts from the soil.", tokens_per_second=40),
    Reply(when="Write point 2 ", text="It lifts the water, and sends sugar down.", tokens_per_second=40),
    Reply(when="Write point 3 ", text="They make sugar of water, air and light.", tokens_per_second=40),
    Reply(text="It is 42."),
]


def main() -> None:
    """Ask for a list, and for something else."""
    with Orchestrator(workers=[Scripted(MODEL)]) as plait:
        answer = plait.run("How does a plant live?", planner="skeleton")
        print(answer.text)
        print(f"({answer.why}; {answer.critical_path_tokens} of {answer.total_tokens} tokens one after another)\n")
        answer = plait.run("What is 6 times 7?", planner="skeleton")
        print(answer.text)
        print(f"({answer.why})")


if __name__ == "__main__":
    main()

# prints "2. Stem carries\nIt lifts the water"
# prints "(3 points; 3 of 3 parts; 20 of 36 tokens"
# prints "the router says C, no list"
