"""A generator for SkyRL (`pip install skyrl`) that runs plans on SkyRL's own engines. Copy it beside your entry point.

The environment (skyrl-gym) gives the prompt and rewards the answer. Override `BasePPOExp.get_generator` to return it.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.core.errors import ConfigError
from plait.core.planning import derive
from plait.core.values import as_text
from plait_research.adapters import require_version
from plait_research.rollouts.adapters import verl_fields
from plait_research.rollouts.producer import roll_out
from plait_research.workers.token_client import GeneratedTokens, TokenClient

require_version("skyrl", "0.3")

import skyrl_gym  # noqa: E402 - an unknown version may lack these
from skyrl.train.generators.skyrl_gym_generator import (  # noqa: E402
    SkyRLGymGenerator,
    StepWiseOutput,
    TrajectoryOutput,
)


class PlaitGenerator(SkyRLGymGenerator):
    """Runs a plan per trajectory. With `step_wise_trajectories`, each sequence of the plan is a step, and SkyRL gives
    all of them the advantage of the last one, the answer's; without, a plan makes one sequence."""

    def __init__(self, *args: Any, request: Mapping[str, Any] = {}, seed: int | None = None, **kwargs: Any) -> None:
        """`request`: fields of a `Request`. `seed`: each call gets a seed derived from it and from the trajectory."""
        super().__init__(*args, **kwargs)
        self._request, self._seed = dict(request), seed

    async def agent_loop(
        self, prompt: Any, env_class: str, env_extras: dict[str, Any], max_tokens: int, max_input_length: int,
        sampling_params: dict[str, Any] | None = None, trajectory_id: Any = None, cache_salt: str | None = None,
    ) -> Any:  # fmt: skip
        """Run one trajectory."""
        config, group = getattr(self.skyrl_gym_cfg, env_class, {}), getattr(trajectory_id, "instance_id", "0")
        env = skyrl_gym.make(env_class, env_config=config, extras={**env_extras, "max_turns": self.max_turns})
        messages, _ = await self._run_in_executor_if_available(env.init, list(prompt))
        branch, client = getattr(trajectory_id, "repetition_id", 0), self.inference_engine_client
        session, params = f"{group}_{branch}_{id(env)}", sampling_params or {"temperature": 1.0}

        async def generate(step: str, ids: list[int], params: dict[str, Any]) -> GeneratedTokens:
            asked = {"prompt_token_ids": [ids], "session_ids": [session], "sampling_params": params}
            output = await client.generate({**asked, "cache_salt": cache_salt}, model=self.policy_model_name)
            return GeneratedTokens(output["response_ids"][0], (output.get("response_logprobs") or [None])[0])

        worker = TokenClient(
            generate, self.tokenizer, params, prompt=0, response=max_input_length + max_tokens,
            seeded=self._seed is not None,
        )  # fmt: skip
        generation = {"max_tokens": max_tokens, "chat_template_kwargs": self.generator_cfg.chat_template_kwargs}
        request = {"messages": messages, "generation": generation, "seed": derive(self._seed or 0, group, branch)}
        try:
            answer, records = await roll_out(worker, group, branch, {**request, **self._request})
        finally:
            await client.finish_session(session)
        ended = await self._run_in_executor_if_available(env.step, as_text(answer.value or ""))
        metrics = env.get_metrics()
        await self._run_in_executor_if_available(env.close)
        if not ended["done"] or (len(records) > 1 and not self.generator_cfg.step_wise_trajectories):
            raise ConfigError(
                f"the plan made {len(records)} sequences for one answer to {env_class}: set step_wise_trajectories for "
                "several sequences, and max_turns=1 for an environment that asks again"
            )
        outputs: list[Any] = []
        for record in records:
            fields = verl_fields(record, temperature=params["temperature"], narrowed=True, listed=True)
            score = ended["reward"] if record is records[-1] else 0.0
            outputs.append(TrajectoryOutput(
                response_ids=fields["response_ids"], reward=[0.0] * (len(fields["response_ids"]) - 1) + [score],
                stop_reason="length" if answer.cut else "stop",
                loss_mask=fields["response_mask"], prompt_ids=fields["prompt_ids"],
                rollout_logprobs=fields.get("response_logprobs"), env_metrics=metrics, e2e_time=answer.seconds,
            ))  # fmt: skip
        several = self.generator_cfg.step_wise_trajectories
        return StepWiseOutput(step_outputs=outputs, e2e_time=answer.seconds) if several else outputs[0]
