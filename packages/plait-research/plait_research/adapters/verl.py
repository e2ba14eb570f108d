"""plait as an agent loop of verl (`pip install verl`): a planner makes a rollout's model calls on verl's own servers.

An entry of the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names:

- name: plait
  _target_: plait_research.adapters.verl.PlaitAgentLoop
  planner: react:rounds=4
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from plait.core.errors import ConfigError
from plait.core.tools.tool import ToolSpec
from plait.workers.tools.mcp import RemoteTool

from ..rollouts.adapters import verl_fields
from ..rollouts.record import Record
from ..rollouts.trainer_rollout import derive_seed, require_version, roll_out
from ..workers.token_client import GeneratedTokens, TokenClient

KNOWN_VERSIONS = ("0.9",)
require_version("verl", KNOWN_VERSIONS)

from verl.experimental.agent_loop.agent_loop import (  # noqa: E402 - an unknown version may lack these
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)
from verl.tools.function_tool import FunctionTool, normalize_function_tool_return  # noqa: E402

__all__ = ["PlaitAgentLoop"]


@register("plait")
class PlaitAgentLoop(AgentLoopBase):
    """Runs a plan per rollout, with the sampling, token limits and tools of verl's configuration.

    verl's trainer v1 takes all sequences of a rollout (threads, samples) as a list and gives them the rollout's
    advantage; its older trainer takes one sequence. Rewards come from verl's reward function, which reads the sequence
    of the answer.
    """

    def __init__(
        self,
        *args: Any,
        tools: Any = None,
        planner: str = "single",
        policies: Sequence[str] = (),
        task: str = "plain",
        budget: str = "",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        """`planner`, `policies`, `task`, `budget`: as on the command line. `seed`: every call of a server gets a seed
        derived from it, the prompt's index, the step and the number of the rollout (vLLM)."""
        super().__init__(*args, **kwargs)
        self._request = {"planner": planner, "policies": list(policies), "task": task, "budget": budget or None}
        self._tools = tools.tools if tools else []
        self._seed = seed

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        """Make one rollout and return its `AgentLoopOutput`, or a list of them for trainer v1."""
        rollout, priority = self.rollout_config, int(priority)
        session, is_listed = f"plait-{uuid4().hex}", "session_id" in kwargs
        branch = int(kwargs.get("session_id", priority))
        preempted: list[int] = []
        rewards: list[float] = []
        options = kwargs.get("tools_kwargs") or {}

        async def generate(step: str, ids: list[int], params: dict[str, Any]) -> GeneratedTokens:
            # A session's calls go to one server; vLLM wants ids that differ, where verl passes them on.
            fixed = f"det-{priority}-{branch}-{step.partition(':')[2]}"
            request_id = fixed if getattr(rollout, "full_determinism", False) else session
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=ids, sampling_params=params, priority=priority
            )
            preempted.extend([] if output.num_preempted is None else [output.num_preempted])
            steps = [output.extra_fields.get(f"{name}_global_steps") for name in ("min", "max")]
            versions = None if None in steps else (int(steps[0]), int(steps[1]))
            return GeneratedTokens(output.token_ids, output.log_probs or None, versions)

        context = rollout.prompt_length + rollout.response_length
        worker = TokenClient(
            generate, self.tokenizer, sampling_params, context=context, seeded=self._seed is not None, name="verl"
        )
        index = kwargs.get("index", kwargs.get("uid", 0))
        generation = {
            "max_tokens": rollout.response_length,
            "chat_template_kwargs": dict(self.apply_chat_template_kwargs),
        }
        made = await roll_out(
            worker, str(index), branch, [_as_tool(tool, options.get(tool.name, {}), rewards) for tool in self._tools],
            **{name: value for name, value in self._request.items() if value},
            messages=[dict(message) for message in kwargs["raw_prompt"]], generation=generation,
            seed=derive_seed(self._seed, index, kwargs.get("global_steps"), branch),
        )  # fmt: skip
        if len(made.records) > 1 and not is_listed:
            raise ConfigError(
                f"{self._request['planner']} made {len(made.records)} sequences, and this trainer of verl takes one: "
                "use verl's trainer v1, or a planner of one trajectory (single, react)"
            )
        metrics = {
            "generate_sequences": max(0.0, made.answer.seconds - made.tool_seconds),
            "tool_calls": made.tool_seconds,
            "num_preempted": sum(preempted) if preempted else -1,
        }
        temperature = float(sampling_params.get("temperature", 1.0))
        outputs = [self._output(record, temperature, metrics, worker.has_versions) for record in made.records]
        outputs[-1].extra_fields["tool_rewards"] = rewards
        return outputs if is_listed else outputs[0]

    def _output(self, record: Record, temperature: float, metrics: dict[str, Any], has_versions: bool) -> Any:
        fields, most = verl_fields(record, temperature=temperature, narrowed=True, listed=True), self.rollout_config
        for name in ("response_ids", "response_mask", "response_logprobs"):
            if name in fields:
                fields[name] = fields[name][: most.response_length]
        extra = fields["extra_fields"]
        del extra["uid"]  # verl has its own
        extra |= {"turn_scores": [], "tool_rewards": []}  # verl's loops have them
        if not has_versions:
            extra |= {"min_global_steps": None, "max_global_steps": None}
        return AgentLoopOutput(metrics=AgentLoopMetrics(**metrics), **fields)


class _Calls:
    """A tool of verl in one rollout, as `RemoteTool` calls it."""

    def __init__(self, tool: Any, options: Mapping[str, Any], rewards: list[float]) -> None:
        self.tool, self.options, self.rewards = tool, options, rewards

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call the tool, note its reward and return its text."""
        if isinstance(self.tool, FunctionTool):
            response, reward, _ = normalize_function_tool_return(await self.tool.call(arguments))
        else:
            instance, _ = await self.tool.create(create_kwargs=self.options.get("create_kwargs", {}))
            try:
                response, reward, _ = await self.tool.execute(instance, arguments)
            finally:
                await self.tool.release(instance)
        if reward is not None:
            self.rewards.append(reward)
        return response.text or ""


def _as_tool(tool: Any, options: Mapping[str, Any], rewards: list[float]) -> RemoteTool:
    given = tool.tool_schema.function.model_dump(exclude_unset=True, exclude_none=True)
    # verl calls a tool each time that the model does, so no result is reused.
    spec = ToolSpec(side_effects=True, **{name: given[name] for name in given.keys() & ToolSpec.model_fields.keys()})
    calls: Any = _Calls(tool, options, rewards)
    return RemoteTool(calls, spec, spec.name, None)
