"""plait as a solver of Inspect (`pip install inspect-ai`).

@task
def sums():
    return Task(dataset=…, solver=plait_solver("sample:n=8", base_url="http://localhost:8000/v1"), scorer=match())
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

from inspect_ai.model import ModelOutput, ModelUsage
from inspect_ai.solver import Generate, Solver, TaskState, solver

from plait.core.values import as_text
from plait.runtime.client.client import AsyncOrchestrator


@solver
def plait_solver(planner: str = "", orchestrator: AsyncOrchestrator | None = None, **options: Any) -> Solver:
    """Return a solver that answers each sample by a planner.

    Args:
        planner: as in `--planner`; by default the configuration's.
        orchestrator: runs the samples; the caller starts and closes it. By default one is made from `options`, the
            fields of a configuration, for the life of the process.
    """
    made: list[AsyncOrchestrator] = [] if orchestrator is None else [orchestrator]

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if not made:
            made.append(AsyncOrchestrator(**options))
        answer = await made[0].run(messages=[_message(message) for message in state.messages], planner=planner or None)
        text = "" if answer.answer is None else as_text(answer.answer)
        usage = answer.usage
        output = ModelOutput.from_content(model=f"plait/{planner}", content=text, error=_error(answer))
        output.usage = ModelUsage(
            input_tokens=usage.prompt, output_tokens=usage.completion, total_tokens=usage.prompt + usage.completion
        )
        state.output = output
        state.messages.append(output.message)
        state.metadata["plait"] = answer.summary()
        return state

    return solve


def _message(message: Any) -> dict[str, str]:
    return {"role": message.role, "content": message.text}


def _error(answer: Any) -> str | None:
    return None if answer.failure is None else f"{answer.failure.kind}: {answer.failure.message}"
