"""plait as an agent loop of verl (`pip install verl`): a planner makes a rollout's model calls on verl's own servers.

An entry of the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names:

- name: plait
  _target_: plait_research.adapters.verl.PlaitAgentLoop
  request: {planner: "react:rounds=4", task: "plain:where=boxed"}
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from plait.core.errors import ConfigError
from plait.core.planning import derive
from plait.core.tools.tool import ToolSpec
from plait.workers.tools.mcp import RemoteTool

from ..rollouts.adapters import verl_fields
from ..rollouts.producer import roll_out
from ..workers.token_client import GeneratedTokens, TokenClient
from . import require_version

require_version("verl", "0.9")

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
        self, *args: Any, request: Mapping[str, Any] = {}, seed: int | None = None, tools: Any = None,
        options: Mapping[str, Any] = {}, **kwargs: Any,
    ) -> None:  # fmt: skip
        """`request`: fields of a `Request`. `options`: fields of a configuration, such as `tools`, a file of plait's
        tools that plans may call beside verl's. `seed`: each call gets a seed derived from it, the prompt's index, the
        step and the number of the rollout, which needs vLLM."""
        super().__init__(*args, **kwargs)
        self._request, self._seed, self._tools = dict(request), seed, tools.tools if tools else []
        self._options = dict(options)

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        """Make one rollout and return its `AgentLoopOutput`, or a list of them for trainer v1."""
        rollout, priority = self.rollout_config, int(priority)
        session, is_listed = f"plait-{uuid4().hex}", "session_id" in kwargs
        branch = int(kwargs.get("session_id", priority))
        index, options = kwargs.get("index", kwargs.get("uid", 0)), kwargs.get("tools_kwargs") or {}
        preempted, rewards = list[int](), list[float]()

        async def generate(step: str, ids: list[int], params: dict[str, Any]) -> GeneratedTokens:
            # A session's calls go to one server; vLLM wants ids that differ, where verl passes them on.
            fixed = f"det-{priority}-{branch}-{step.partition(':')[2]}"
            request_id = fixed if getattr(rollout, "full_determinism", False) else session
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=ids, sampling_params=params, priority=priority
            )
            preempted.append(-1 if output.num_preempted is None else output.num_preempted)
            oldest, newest = (output.extra_fields.get(f"{name}_global_steps") for name in ("min", "max"))
            versions = None if oldest is None or newest is None else (int(oldest), int(newest))
            return GeneratedTokens(output.token_ids, output.log_probs, versions)

        worker = TokenClient(
            generate, self.tokenizer, sampling_params, prompt=rollout.prompt_length,
            response=rollout.response_length, seeded=self._seed is not None,
        )  # fmt: skip
        request: dict[str, Any] = {
            "messages": [dict(message) for message in kwargs["raw_prompt"]],
            "generation": {
                "max_tokens": rollout.response_length, "chat_template_kwargs": dict(self.apply_chat_template_kwargs),
            },
            "seed": derive(self._seed or 0, str(index), str(kwargs.get("global_steps")), branch),
            **self._request,
        }  # fmt: skip
        tools = [_as_tool(tool, options.get(tool.name, {}), rewards) for tool in self._tools]
        answer, records = await roll_out(worker, str(index), branch, request, tools, self._options)
        if len(records) > 1 and not is_listed:
            raise ConfigError(
                f"the plan made {len(records)} sequences, and this trainer of verl takes one: set "
                "trainer.use_v1=true, or use a planner of one trajectory (single, react)"
            )
        # Tools run beside the model's calls, so there is one time for both.
        metrics = {"generate_sequences": answer.seconds, "num_preempted": max(-1, sum(preempted))}
        outputs: list[Any] = []
        for record in records:
            fields = verl_fields(record, temperature=float(sampling_params["temperature"]), narrowed=True, listed=True)
            for name in fields.keys() & {"response_ids", "response_mask", "response_logprobs"}:
                fields[name] = fields[name][: rollout.response_length]
            extra = fields["extra_fields"] | {"turn_scores": [], "tool_rewards": rewards}
            del extra["uid"]  # verl has its own
            if not worker.has_versions:
                extra |= {"min_global_steps": None, "max_global_steps": None}
            outputs.append(AgentLoopOutput(metrics=AgentLoopMetrics(**metrics), **{**fields, "extra_fields": extra}))
        return outputs if is_listed else outputs[0]


def _as_tool(tool: Any, options: Mapping[str, Any], rewards: list[float]) -> RemoteTool:
    """Return a tool of verl as one of plait's, which appends its rewards."""

    async def call(name: str, arguments: dict[str, Any]) -> str:
        if isinstance(tool, FunctionTool):
            response, reward, _ = normalize_function_tool_return(await tool.call(arguments))
        else:
            instance, _ = await tool.create(create_kwargs=options.get("create_kwargs", {}))
            try:
                response, reward, _ = await tool.execute(instance, arguments)
            finally:
                await tool.release(instance)
        rewards.extend([] if reward is None else [reward])
        return response.text or ""

    given = tool.tool_schema.function.model_dump(exclude_unset=True, exclude_none=True)
    # verl calls a tool each time that the model does, so no result is reused.
    spec = ToolSpec(side_effects=True, **{name: given[name] for name in given.keys() & ToolSpec.model_fields.keys()})
    server: Any = SimpleNamespace(call=call)
    return RemoteTool(server, spec, spec.name, None)
