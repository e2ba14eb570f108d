"""The planner `llmcompiler` with more tools than its model is told of."""

from __future__ import annotations

from typing import Any

from plait import AsyncOrchestrator, Plugin, tool
from plait.workers.scripted import Reply
from tests.runtime.client.test_messages import Seen, said


async def test_the_model_is_told_of_some_tools_and_finds_others_for_another_plan():
    def named(name: str, about: str) -> Any:
        return tool(name=name, description=about)(lambda of: f"{name} of {of}")

    tools = [named("tower_height", "How high a tower is."), named("convert_feet", "Metres from feet.")]
    tools += [named(f"other_{each}", "Something else.") for each in range(8)]
    worker = Seen(
        Reply(when="Current Plan:", text='3. convert_feet("$1")\n4. join()\n'),
        Reply(when="^Answer the question from", text="Action: Replan(metres)", times=1),
        Reply(when="^Answer the question from", text="Action: Finish(ok)"),
        Reply(text='1. tower_height("a")\n2. more_tools("metres from feet")\n3. join()\n'),
    )
    async with AsyncOrchestrator(workers=[worker], tools=tools, journal="off") as orchestrator:
        planner = Plugin(name="llmcompiler", options={"max_tools": 1})
        answer = await orchestrator.run("how high?", planner=planner)
    assert answer.answer == "ok"
    first, _, second, last = map(said, worker.thinks)
    assert "tower_height(of: any)" in first
    assert "more_tools(query: string" in first
    assert "convert_feet" not in first
    assert "convert_feet" in second, "what the call found is an observation"
    assert "convert_feet of tower_height of a" in last
