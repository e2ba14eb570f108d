"""A run as a trajectory of ATIF 1.7 (Agent Trajectory Interchange Format, of the Harbor framework).

The request is the first step, each model call an agent step with its token ids and log-probabilities, and each tool
call a step without a model. A thread of a step's expansion is an embedded trajectory, and the spawning step's
observation refers to this trajectory, because ATIF has sequences of steps, not graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ...core.record import StepRecord
from ...core.values import as_text
from ...runtime.runlog import AttemptRecord
from .model import Trace

VERSION = "ATIF-v1.7"


def atif(trace: Trace, redact: bool = False) -> dict[str, Any]:
    """Return a trajectory as JSON. With `redact`, counts replace texts, arguments and token ids."""
    made = _Maker(trace, redact)
    return made.trajectory()


class _Maker:
    def __init__(self, trace: Trace, redact: bool) -> None:
        self._trace, self._redact = trace, redact
        self._steps = {step.step: step for step in trace.steps}
        self._agent = {"name": "plait", "version": trace.plait or "unknown", "model_name": trace.model or None}
        self._agent = {key: value for key, value in self._agent.items() if value}

    def trajectory(self) -> dict[str, Any]:
        trace = self._trace
        lines: dict[str, list[AttemptRecord]] = {}
        for attempt in sorted(trace.attempts, key=lambda attempt: (attempt.start, attempt.id)):
            if attempt.read:
                lines.setdefault(_line(self._steps.get(attempt.step), self._steps), []).append(attempt)
        root = next(iter(lines), "")
        threads = {name: f"{trace.run}:{number}" for number, name in enumerate(lines) if name != root}
        first: dict[str, Any] = {"source": "user", "message": self._text(trace.text), "timestamp": self._when(0.0)}
        steps = [first, *(self._step(attempt) for attempt in lines.get(root, ()))]
        if threads:
            refs = [{"trajectory_id": thread} for thread in threads.values()]
            spawned = next((step for step in steps[1:] if step["source"] == "agent"), None)
            (spawned or first).setdefault("observation", {"results": []})["results"].append(
                {"subagent_trajectory_ref": refs}
            )
        usage = trace.usage
        final = {
            "total_prompt_tokens": usage.prompt,
            "total_completion_tokens": usage.completion,
            "total_cached_tokens": usage.cached,
            "total_steps": len(steps),
            "extra": {"critical_path_tokens": trace.critical_path_tokens, "status": trace.status},
        }
        if usage.cost:
            final["total_cost_usd"] = usage.cost
        made = self._document(trace.run, steps)
        made |= {"session_id": trace.run, "final_metrics": final}
        extra: dict[str, Any] = {"planner": trace.planner, "task": trace.task, "answer": self._text(trace.answer)}
        made["extra"] = extra if trace.verified is None else {**extra, "verified": trace.verified}
        if threads:
            made["subagent_trajectories"] = [
                self._document(threads[name], [self._begin(name), *map(self._step, lines[name])]) for name in threads
            ]
        return made

    def _document(self, id: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
        numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
        return {"schema_version": VERSION, "trajectory_id": id, "agent": self._agent, "steps": numbered}

    def _begin(self, name: str) -> dict[str, Any]:
        step = self._steps.get(name)
        label = step.label or step.name if step is not None else name
        return {"source": "user", "message": self._text(label)}

    def _step(self, attempt: AttemptRecord) -> dict[str, Any]:
        op, result = attempt.op, attempt.result
        made: dict[str, Any] = {
            "source": "agent",
            "timestamp": self._when(attempt.start),
            "extra": {
                "step": attempt.step.partition(":")[2],
                "seconds": round((attempt.end or 0.0) - attempt.start, 6),
            },
        }
        if op.kind == "call":
            call = f"call-{attempt.id}"
            arguments = {} if self._redact else op.args if isinstance(op.args, dict) else {"args": op.args}
            made |= {"message": "", "llm_call_count": 0}
            made["tool_calls"] = [{"tool_call_id": call, "function_name": op.tool, "arguments": arguments}]
            content = "" if result is None else self._text(as_text(result.value))
            made["observation"] = {"results": [{"source_call_id": call, "content": content}]}
            return made
        made |= {"message": "" if result is None else self._text(as_text(result.value)), "llm_call_count": 1}
        metrics: dict[str, Any] = {
            "prompt_tokens": attempt.usage.prompt,
            "completion_tokens": attempt.usage.completion,
            "cached_tokens": attempt.usage.cached,
        }
        if result is not None and not self._redact:
            if result.prompt_ids:
                metrics |= {"prompt_token_ids": list(result.prompt_ids), "completion_token_ids": list(result.token_ids)}
            if result.drawn is not None and result.drawn.logprobs:
                metrics["logprobs"] = list(result.drawn.logprobs)
            if result.reasoning:
                made["reasoning_content"] = result.reasoning
        made["metrics"] = metrics
        return made

    def _text(self, text: str) -> str:
        return f"[{len(text)} characters]" if self._redact and text else text

    def _when(self, at: float) -> str:
        return datetime.fromtimestamp(self._trace.wall(at), UTC).isoformat()


def _line(step: StepRecord | None, steps: Mapping[str, StepRecord]) -> str:
    """Return the id of the first step of a step's trajectory, which follows the last step that continues each context;
    an empty text for a step of the request's own plan."""
    seen: set[str] = set()
    while step is not None and step.step not in seen:
        seen.add(step.step)
        before = steps.get(step.after or "")
        if before is None:
            return step.step if step.owner is not None else ""
        heirs = [step.step for step in steps.values() if step.after == before.step and step.state != "cancelled"]
        if heirs[-1:] != [step.step]:
            return step.step
        step = before
    return ""
