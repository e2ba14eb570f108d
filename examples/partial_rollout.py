"""Lines of work that branch off another one. The model is scripted: what it finds depends on the way it takes."""

from __future__ import annotations

from city_tools import population, temperature

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted
from plait_research.planners.partial_rollout import PartialRollout


def call(tool: str, city: str) -> str:
    """Return a call as a model writes it."""
    return f'<tool_call>{{"name": "{tool}", "arguments": {{"city": "{city}"}}}}</tool_call>'


def main() -> None:
    model = Scripted(
        [
            Reply(when="Weigh them", text="Rome: two of three lines found it."),
            Reply(when="Report on this.*17.5|17.5.*Report on this", text="Rome is at 17.5 degrees, Oslo at 4: Rome."),
            Reply(when="Report on this", text="The populations were compared, and not the degrees: no answer."),
            Reply(when="17.5", text="Rome is warmer."),
            Reply(when="2750000", text="Rome is larger."),
            Reply(when='"name": "temperature".*4.0', text=f"And Rome. {call('population', 'Rome')}", times=1),
            Reply(when='"name": "temperature".*4.0', text=f"And Rome. {call('temperature', 'Rome')}"),
            Reply(text=f"First Oslo. {call('temperature', 'Oslo')}"),
        ]
    )
    with Orchestrator(workers=[model], tools=[population, temperature]) as plait:
        answer = plait.run(
            "Is Rome or Oslo warmer?", planner=PartialRollout(criterion="uniform", positions=1, n=2, fresh=0)
        )
    print(f"{answer.answer} ({answer.why})")
    for step in answer.report.steps:
        print(f"{step.name:<22} {step.label or step.name}")


if __name__ == "__main__":
    main()

# prints "Rome: two of three lines found it. (3 reports of 3 lines)"
