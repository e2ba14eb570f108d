"""Reasoning threads on a real engine, with a model of plait-models. No GPU, no download, no key."""

from __future__ import annotations

from plait import Orchestrator


def main() -> None:
    with Orchestrator(model="countdown") as plait:
        for planner in ("single", "threads"):
            answer = plait.run("3 5 7 11 -> 24", task="countdown", planner=planner)
            tokens = f"{answer.total_tokens} tokens, {answer.critical_path_tokens} of them one after another"
            print(f"{planner}: {answer.answer} ({tokens}, {answer.seconds:.2f} s)")


if __name__ == "__main__":  # Ray starts processes of its own
    main()

# prints "single: "
# prints "threads: "
# prints "tokens"
