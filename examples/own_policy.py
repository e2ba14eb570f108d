"""A policy of your own: which step runs next, and which branches to give up. It is named `module:Class`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from plait import Orchestrator, Policy
from plait.core import StepView, Stop, View
from plait.core.events import Event, Succeeded
from plait.workers.scripted import Reply, Scripted


class FirstWins(Policy):
    """Take the first sample that is long enough, and stop the others."""

    words: int = Field(default=3, ge=1, description="Fewest words of an answer that will do.")

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Last samples first, to show that it can be chosen."""
        return (-int(step.plan.name.rpartition("-")[2] or 0),) if step.kind == "think" else ()

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Give up what is still running once a sample will do."""
        done = view.subject
        if not isinstance(event, Succeeded) or done is None or len(event.result.text.split()) < self.words:
            return ()
        others = [step for step in view.steps(done.run) if step.kind == "think" and not step.state.ended]
        return [Stop(step.id, f"{done.plan.name} will do") for step in others]


def main() -> None:
    # The scripted worker replaces a model: two slow replies, then one that is quick and long enough.
    slow = Reply(text="I have to think about this for a long time", tokens_per_second=2, times=2)
    model = Scripted([slow, Reply(text="answer: it is 42", times=1), slow.model_copy(update={"times": None})], slots=4)
    with Orchestrator(workers=[model]) as plait:
        answer = plait.run("What is it?", planner="sample:n=4", policies=["own_policy:FirstWins:words=3"])
    print(answer.answer)
    for step in answer.report.steps:
        print(f"{step.name:<9} {step.state:<9} {step.reason}")


if __name__ == "__main__":
    main()

# prints "it is 42"
# prints "sample-2  done"
# prints "sample-1  cancelled sample-2 will do"
