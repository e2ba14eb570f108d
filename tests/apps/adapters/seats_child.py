"""Runs live rollouts beside the loops of the trainers that are installed; prints one JSON line a check.

python seats_child.py CHECK CASES
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from plait.core.ops import Function
from plait.planners._shared.tool_instructions import build_instructions
from plait.planners.tools.react.prompts import more_function
from tests.apps.adapters.seats import (
    FIELDS,
    LOOKUP,
    SAMPLING,
    FakeServers,
    asked_of,
    build_tokenizer,
    looked_up,
    turns_of,
)


def verl(cases: int) -> dict[str, Any]:
    """Compare `single` and `react` with verl's own loops, field by field."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.function_tool import FunctionTool
    from verl.tools.schemas import OpenAIFunctionToolSchema
    from verl.workers.rollout.replica import TokenOutput

    from plait_research.adapters.verl import PlaitAgentLoop

    turns = {
        "max_user_turns": 8, "max_assistant_turns": 8, "max_parallel_calls": 8, "max_tool_response_length": 4000,
        "tool_response_truncate_side": "middle", "format": "hermes",
    }  # fmt: skip
    tokenizer = build_tokenizer()

    class Texts:
        @classmethod
        async def process_multi_modal_info(cls, *_: Any, **__: Any) -> tuple[None, None, None]:
            return None, None, None

    def loop(kind: Any, server: Any, length: int, **options: Any) -> Any:
        rollout = {"prompt_length": 3000, "response_length": length, "full_determinism": False, "multi_turn": turns}
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
        return kind(
            trainer_config=DictConfigWrap(config), server_manager=server, tokenizer=tokenizer, processor=None,
            dataset_cls=Texts, data_config=DictConfigWrap(config.data), hf_model_type="qwen2", **options,
        )  # fmt: skip

    def tools(*schemas: dict[str, Any]) -> Any:
        made = [OpenAIFunctionToolSchema.model_validate(schema) for schema in schemas]
        return ToolListWrap([FunctionTool(schema.function.name, looked_up, schema) for schema in made])

    lookup = Function(**LOOKUP["function"])
    more = {"type": "function", "function": more_function().model_dump(include={"name", "description", "parameters"})}
    # Where a template shows the functions, `react` leaves them out of its instructions.
    system = build_instructions([lookup, more_function()], "native")
    begin = system.index("You may call these functions")
    system = system[:begin] + system[system.index("Write all calls") :]

    async def one(case: int, turn_count: int) -> tuple[Any, Any, int]:
        servers = [FakeServers(tokenizer, turn_count, TokenOutput) for _ in range(2)]
        for server in servers:
            server.versions = [(step, step) for step in range(case, case + 9)]
        question, length = asked_of(case)
        if not turn_count:
            kinds: Any = (SingleTurnAgentLoop, {}), (PlaitAgentLoop, {})
            messages = [[question]] * 2
        else:
            kinds = (ToolAgentLoop, {"tools": tools(LOOKUP, more)}), (
                PlaitAgentLoop, {"request": {"planner": "react"}, "tools": tools(LOOKUP)},
            )  # fmt: skip
            messages = [[{"role": "system", "content": system}, question], [question]]
        outputs = [
            await loop(kind, server, length, **options).run(dict(SAMPLING), raw_prompt=prompt, index=case)
            for (kind, options), server, prompt in zip(kinds, servers, messages, strict=True)
        ]
        return *outputs, len(servers[0].asked)

    async def run() -> dict[str, Any]:
        counts: dict[str, Any] = {}
        for name, most in (("single", False), ("react", True)):
            equal, calls, differing, recorded = 0, 0, list[Any](), list[Any]()
            for case in range(cases):
                theirs, ours, asked = await one(case, turns_of(case) if most else 0)
                wrong = [each for each in FIELDS if getattr(theirs, each) != getattr(ours, each)]
                wrong += [
                    each for each in ("min_global_steps", "max_global_steps")
                    if theirs.extra_fields[each] != ours.extra_fields[each]
                ]  # fmt: skip
                equal, calls = equal + (not wrong), calls + asked
                differing += [[case, *wrong]] if wrong else []
                recorded += [{each: getattr(theirs, each) for each in FIELDS}] if case < 4 else []
            counts[name] = {
                "cases": cases,
                "equal": equal,
                "calls": calls,
                "differing": differing,
                "recorded": recorded,
            }
        return counts

    return asyncio.run(run())


def verl_threads(cases: int) -> dict[str, Any]:
    """Run prompts of several rollouts with three samples each through the worker of verl's trainer v1, and compare its
    GRPO advantages with those of `weighed`."""
    import numpy as np
    import torch
    import verl.trainer.ppo.v1.agent_loop_tq as v1
    from omegaconf import OmegaConf
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.workers.rollout.replica import TokenOutput

    import plait_research.adapters.verl as seat
    from plait_research.rollouts.advantages import weighed
    from plait_research.rollouts.record import Record

    tokenizer, rows, made = build_tokenizer(), {}, []
    rollout = {
        "prompt_length": 500, "response_length": 300, "n": 4, "temperature": 0.7, "val_kwargs": {"n": 1},
        "agent": {"default_agent_loop": "plait"},
    }  # fmt: skip

    async def put(**_: Any) -> None: ...

    async def put_batch(keys: list[str], fields: Any, tags: list[dict[str, Any]], partition_id: str) -> None:
        rows.update({key: (fields[place], tags[place]) for place, key in enumerate(keys)})

    class Texts:
        process_multi_modal_info = None

    class Worker(v1.AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # without servers and without Ray
        async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
            # As verl's reward loop: of the last sequence alone, the answer's.
            outputs[-1].reward_score = float(sum(outputs[-1].response_ids) % 5)
            outputs[-1].extra_fields["reward_extra_info"] = {}

        async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
            made.append((kwargs["uid"], kwargs["session_id"], output))
            await super()._agent_loop_postprocess(output, validate, **kwargs)

    v1.tq.async_kv_put, v1.tq.async_kv_batch_put = put, put_batch
    v1.list_of_dict_to_tensordict = list
    # As an entry of `agent_loop_config_path`.
    entry = {
        "name": "plait",
        "_target_": f"{seat.__name__}.PlaitAgentLoop",
        "request": {"planner": "sample:n=3,early=false"},
        "seed": 5,
    }
    v1.AgentLoopWorker._run_agent_loop.__globals__["_agent_loop_registry"]["plait"] = OmegaConf.create(entry)
    worker: Any = object.__new__(Worker)
    worker.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    worker.tokenizer, worker.hf_model_type, worker.dataset_cls = tokenizer, "qwen2", Texts
    worker.llm_client = FakeServers(tokenizer, 0, TokenOutput)
    worker.processor = worker.reward_loop_worker_handles = None
    worker.tools, worker.distillation_enabled = [], False

    async def run() -> None:
        trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
        for case in range(cases):
            prompt = {
                "uid": f"u{case}", "index": case, "agent_name": "plait", "global_steps": 1,
                "raw_prompt": [asked_of(case)[0]],
            }  # fmt: skip
            await worker._run_prompt(prompt, dict(SAMPLING), trajectory)

    asyncio.run(run())
    keys = list(rows)
    masks = [rows[key][0]["response_mask"] for key in keys]
    scores = [rows[key][0]["rm_scores"] for key in keys]

    def pad(values: list[Any]) -> Any:
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True)

    data = DataProto.from_single_dict(
        {"response_mask": pad(masks), "token_level_rewards": pad(scores), "uid": np.array([key[:-4] for key in keys])}
    )
    theirs = compute_advantage_for_multi_trajectories(data, keys, AdvantageEstimator.GRPO).batch["advantages"]
    groups: dict[str, list[list[Record]]] = {}
    for uid, session, outputs in made:
        records = [
            Record(
                rollout=f"{uid}/{session}", group=uid, branch=session, index=place, of=len(outputs), tokens=(1,),
                mask=(0,), reward=outputs[-1].reward_score,
            )
            for place in range(len(outputs))
        ]  # fmt: skip
        groups.setdefault(uid, []).append(records)
    ours = {
        f"{record.group}_{record.branch}_{record.index}": record.advantage or 0.0
        for group in groups.values() for rollout in weighed(group) for record in rollout
    }  # fmt: skip
    equal = sum(
        bool(torch.allclose(theirs[place][: len(masks[place])], masks[place] * ours[key], atol=1e-5))
        for place, key in enumerate(keys)
    )
    return {
        "rows": len(keys), "rollouts": len(made), "equal": equal, "nonzero": sum(map(bool, ours.values())),
        "seeds": len({asked["params"]["seed"] for asked in worker.llm_client.asked}),
    }  # fmt: skip


def verl_published(_: int) -> dict[str, Any]:
    """Return the interface that the adapter relies on, as the installed version has it."""
    import inspect
    from importlib.metadata import version

    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    models = (AgentLoopMetrics, AgentLoopOutput, TokenOutput)
    calls = (AgentLoopBase.__init__, AgentLoopBase.run, LLMServerClient.generate)
    return {
        "version": version("verl"),
        **{model.__name__: {n: field.is_required() for n, field in model.model_fields.items()} for model in models},
        **{call.__qualname__: list(inspect.signature(call).parameters) for call in calls},
    }


def skyrl(cases: int) -> dict[str, Any]:
    """Compare `single` with SkyRL's own generator, field by field, and count the steps of three samples."""
    import typing

    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # pydantic wants this one before Python 3.12
    import skyrl_gym
    from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
    from skyrl.train.generators.base import TrajectoryID
    from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

    from examples.trainers.skyrl_generator import PlaitGenerator

    tokenizer, finished = build_tokenizer(), []
    params = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 1, "max_tokens": 34}

    class Client:
        def __init__(self) -> None:
            self.servers = FakeServers(tokenizer)

        async def generate(self, asked: dict[str, Any], model: str | None = None) -> dict[str, Any]:
            (ids,), (session,) = asked["prompt_token_ids"], asked["session_ids"]
            output = await self.servers.generate(session, prompt_ids=ids, sampling_params=asked["sampling_params"])
            stop = "stop" if output.token_ids[-1] == tokenizer.eos_token_id else "length"
            return {
                "responses": [tokenizer.decode(output.token_ids, skip_special_tokens=True)], "stop_reasons": [stop],
                "response_ids": [output.token_ids], "response_logprobs": [output.log_probs],
            }  # fmt: skip

        async def finish_session(self, session: str) -> None:
            finished.append(session)

    class Digits(BaseTextEnv):
        def __init__(self, env_config: Any = None, extras: Any = None) -> None:
            super().__init__()

        def step(self, action: str) -> Any:
            reward = float(sum(map(str.isdigit, action)))
            return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})

    skyrl_gym.register(id="digits", entry_point=Digits)

    def generated(kind: Any, steps: bool, **options: Any) -> dict[str, Any]:
        config = GeneratorConfig(step_wise_trajectories=steps, max_input_length=1000)
        config.sampling_params.max_generate_length = 34
        made = kind(config, SkyRLGymConfig(max_env_workers=0), Client(), tokenizer, **options)
        given = {
            "prompts": [[asked_of(case)[0]] for case in range(cases)], "env_classes": ["digits"] * cases,
            "env_extras": [{} for _ in range(cases)], "sampling_params": params,
            "trajectory_ids": [TrajectoryID(str(case), 0) for case in range(cases)],
        }  # fmt: skip
        return asyncio.run(made.generate(given, disable_tqdm=True))

    theirs, ours = generated(SkyRLGymGenerator, False), generated(PlaitGenerator, False)
    names = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_logprobs")
    differing = [[name, case] for name in names for case in range(cases) if theirs[name][case] != ours[name][case]]
    several = generated(PlaitGenerator, True, request={"planner": "sample:n=3,early=false"}, seed=1)
    return {
        "cases": cases, "equal": cases - len({case for _, case in differing}), "differing": differing[:5],
        "cut": ours["stop_reasons"].count("length"), "sessions": len(finished),
        "steps": len(several["response_ids"]), "last": several["is_last_step"],
        "rewarded": [any(rewards) for rewards in several["rewards"]],
    }  # fmt: skip


CHECKS = {check.__name__: check for check in (skyrl, verl, verl_published, verl_threads)}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(CHECKS[sys.argv[1]](int(sys.argv[2]))) + "\n")
