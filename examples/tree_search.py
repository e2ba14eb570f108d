"""A search over partial solutions: a scripted model writes one step at a time, a scorer of your own says how promising
each is, and a search chooses which of them is continued."""

from __future__ import annotations

from plait import Orchestrator
from plait.core.flow import Context
from plait.core.search import Scorer, SearchNode
from plait.planners.search.tree import Tree
from plait.workers.scripted import Reply, Scripted


class Checked(Scorer):
    """Steps that were checked are promising."""

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the share of steps with a check in it."""
        return node.text.count("check") / node.depth


def model() -> Scripted:
    """Return a model that has six tries at the first step, and writes 42 only behind a right one."""
    return Scripted(
        [
            Reply(when="7 = 42.*\n.*\n\\Z", text="The answer is 42."),
            Reply(when="7 = 41\n.*\n\\Z", text="The answer is 41."),
            Reply(when="7 = 4.*\n\\Z", text="check: 42 / 7 = 6\n", times=3),
            Reply(when="7 = 4.*\n\\Z", text="That looks right.\n"),
            Reply(text="6 · 7 = 42, check\n", times=2),
            Reply(text="6 · 7 = 42\n", times=2),
            Reply(text="6 · 7 = 41\n"),
        ]
    )


def main() -> None:
    for search in ("best-first", "mcts", "beam"):
        with Orchestrator(workers=[model()]) as plait:
            answer = plait.run(
                "What is 6 times 7?\n", planner=Tree(search=search, scorer=Checked(), max_branches=40, n=4)
            )
        last = str(answer.answer).strip().splitlines()[-1]
        print(f"{search}: {last}  ({answer.why})")


if __name__ == "__main__":
    main()

# prints "best-first: 42."
# prints "mcts: 42."
# prints "beam: 42."
