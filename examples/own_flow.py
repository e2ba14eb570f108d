"""A planner of your own, written as a coroutine: drafts are checked side by side, and the first good one wins."""

from __future__ import annotations

from pydantic import Field

from plait import Flow, Orchestrator
from plait.workers.scripted import Reply, Scripted


class Checked(Flow):
    """Writes several drafts. A second call checks each; the first draft that passes ends the others."""

    drafts: int = Field(default=3, description="How many drafts.")

    async def run(self, ctx: Flow.Context, question: str):
        """Return the first draft that passes, as a step, or a text if none does."""

        async def attempt(number: int):
            draft = ctx.think([question, f"\nDraft {number}:"], max_tokens=64)
            verdict = await ctx.think(["Question: ", question, "\nAnswer: ", draft, "\nRight or wrong?"])
            return draft if "right" in verdict.text.casefold() else None

        attempts = [attempt(number) for number in range(1, self.drafts + 1)]
        passed = await ctx.first(attempts, ok=lambda draft: draft is not None)
        return passed if passed is not None else "no draft was approved"


def main() -> None:
    model = Scripted(
        [
            Reply(when="Answer: 41", text="wrong"),
            Reply(when="Answer: 42", text="right"),
            Reply(when="Draft 1", text="41"),
            Reply(when="Draft 2", text="42"),
            Reply(when="Draft 3", text="It takes long to say", tokens_per_second=2),
        ]
    )
    with Orchestrator(workers=[model]) as plait:
        answer = plait.run("What is 6 times 7?", planner=Checked())
    print(answer.answer)
    for step in answer.report.steps:
        print(f"{step.name:<16} {step.state:<9} {step.reason}")


if __name__ == "__main__":
    main()

# prints "42\n"
# prints "2.think-1        done"
# prints "3.think-1        cancelled"
