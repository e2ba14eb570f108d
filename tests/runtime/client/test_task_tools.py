"""Tools that come with a task: its run may call them, other runs may not."""

from __future__ import annotations

import pytest

from plait import AsyncOrchestrator, Plan, Plugin, Step, ToolCall
from plait.core.errors import UsageError

TEXT = "what is the age of Ardan?"
TASK = Plugin(name="tables", options={"latency": [0.0, 0.0]})
LOOK_UP = Plan(steps=(Step(name="age", op=ToolCall(tool="lookup", args={"field": "age", "name": "s0"})),), output="age")


async def test_a_run_calls_the_tools_of_its_task_and_no_other_run_does(tmp_path) -> None:
    async with AsyncOrchestrator(workers=[], journal=tmp_path) as orchestrator:
        answer = await orchestrator.run(TEXT, task=TASK, plan=LOOK_UP)
        assert answer.status == "done" and isinstance(answer.answer, int) and answer.verified
        with pytest.raises(UsageError, match="lookup"):
            await orchestrator.run("anything", plan=LOOK_UP)
