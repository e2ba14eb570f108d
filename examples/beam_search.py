"""A planner written as a coroutine: beam search. Every beam is extended in several ways, a tool scores them, and the
best are kept; finished beams vote."""

from __future__ import annotations

from pydantic import Field

from plait import Orchestrator, tool
from plait.core.flow import Answerable, Context, Flow, Trajectory
from plait.workers.scripted import Reply, Scripted


@tool
def score(text: str) -> float:
    """Say how good a line of reasoning looks. Here: how often it checks itself."""
    return float(text.count("check"))


class Beam(Flow):
    """Beam search over steps of reasoning."""

    width: int = Field(default=2, description="Lines that are kept in every round.")
    fan: int = Field(default=2, description="Number of continuations of each line.")
    rounds: int = Field(default=4, description="Most rounds.")

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Return the vote of the lines that have ended."""
        lines = [ctx.think(question, stop="\n", temperature=1.0) for _ in range(self.width)]
        ended: list[Trajectory] = []
        for _ in range(self.rounds):
            await ctx.gather(*lines)
            ended += [line for line in lines if line.finished]
            going = [line for line in lines if not line.finished]
            scores = await ctx.gather(*(ctx.score(line, score) for line in going))
            ranked = sorted(zip(scores, range(len(going)), strict=True), key=lambda pair: (-pair[0], pair[1]))
            best = [going[i] for _, i in ranked[: self.width]]
            if not best:
                break
            lines = [each for line in best for each in line.fork(self.fan, stop="\n", temperature=1.0)]
        return ctx.join(ended, merge="majority")


def main() -> None:
    model = Scripted(
        [
            Reply(when="check: 42", text="answer: 42"),
            Reply(when="is 41", text="answer: 41"),
            Reply(when="Six sevens", text="check: 42\n", times=3),
            Reply(when="Six sevens", text="is 41\n"),
            Reply(text="Six sevens …\n"),
        ]
    )
    with Orchestrator(workers=[model], tools=[score]) as plait:
        answer = plait.run("What is 6 times 7?", planner=Beam())
    print(answer.answer, "by", answer.why)
    print(
        len(answer.trace), "steps;", answer.critical_path_tokens, "of", answer.total_tokens, "tokens one after another"
    )


if __name__ == "__main__":
    main()

# prints "42 by 4 of 4 votes"
# prints "18 steps; "
