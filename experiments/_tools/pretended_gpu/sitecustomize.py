"""A pretended GPU for vLLM: the forward pass is a wait, all else is vLLM's own.

Python imports this file at its start if PYTHONPATH names its folder, so vLLM's child processes and Ray's actors
have it too. It does nothing unless PRETENDED_STEP_MS is set. vLLM's scheduler (which schedules ahead, as it does on a
GPU), output processor, detokenizer and prefix cache are untouched. The forward pass takes PRETENDED_STEP_MS on a
virtual device that serves one step at a time. The interpreter's lock is free meanwhile, as it is under CUDA. What the
model runner of a GPU does in Python, one or two milliseconds a step, is missing.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from concurrent.futures import Future
from types import ModuleType
from typing import Any

STEP_SECONDS = float(os.environ.get("PRETENDED_STEP_MS", "0")) / 1e3
TOKEN_IDS = range(40, 100)
"""Ids that the pretended model samples in turn. None of them ends an answer of the bundled model."""


class StepResult(Future):
    """The result of a forward pass: waiting for it ends when the device is done."""

    def __init__(self, ready: float, output: Any) -> None:
        super().__init__()
        self.ready, self.output = ready, output

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the device is done; return the sampled tokens."""
        if not super().done():
            time.sleep(max(0.0, self.ready - time.perf_counter()))
            self.set_result(self.output)
        return super().result()

    def done(self) -> bool:
        """Return `False`: vLLM then waits by `result`."""
        return False


class Device:
    """The virtual device: it serves one step at a time, each for `STEP_SECONDS`."""

    def __init__(self) -> None:
        self.free, self.steps = 0.0, 0
        self.last: StepResult | None = None

    def submit(self, scheduled: Any) -> None:
        """Begin a step for the sequences that vLLM has scheduled."""
        from vllm.v1.outputs import ModelRunnerOutput

        self.steps += 1
        ids = list(scheduled.num_scheduled_tokens)
        tokens = [[TOKEN_IDS[(self.steps * 7 + place) % len(TOKEN_IDS)]] for place in range(len(ids))]
        places = {request: place for place, request in enumerate(ids)}
        self.free = max(time.perf_counter(), self.free) + STEP_SECONDS
        output = ModelRunnerOutput(req_ids=ids, req_id_to_index=places, sampled_token_ids=tokens)
        self.last = StepResult(self.free, output)


def pretend(module: ModuleType) -> None:
    """Replace the forward pass of vLLM's executor for one process by the device."""
    device = Device()

    def execute_model(self: Any, scheduled: Any, non_block: bool = False) -> Any:
        from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

        output = None if scheduled.num_scheduled_tokens else EMPTY_MODEL_RUNNER_OUTPUT
        if output is None:
            device.submit(scheduled)
        future: Future[Any] = Future()
        future.set_result(output)
        return future if non_block else output

    def sample_tokens(self: Any, grammar: Any, non_block: bool = False) -> Any:
        assert device.last is not None
        return device.last if non_block else device.last.result()

    executor: Any = module.UniProcExecutor
    executor.execute_model, executor.sample_tokens = execute_model, sample_tokens
    executor.supports_async_scheduling = classmethod(lambda cls: True)


def schedule_ahead(module: ModuleType) -> None:
    """Let vLLM schedule the next step before the last one has ended, which it does on a GPU and not on a CPU."""
    platform: Any = module.CpuPlatform
    check = platform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True
        # vLLM starts a process for each worker on a CPU if EngineCore has a process of its own.
        config.parallel_config.distributed_executor_backend = "uni"

    platform.check_and_update_config = classmethod(check_and_update_config)


class Patches(importlib.abc.MetaPathFinder):
    """Patch modules of vLLM when they are imported."""

    def __init__(self) -> None:
        self.wanted = {"vllm.v1.executor.uniproc_executor": pretend, "vllm.platforms.cpu": schedule_ahead}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the module's own spec, whose loader then also patches; `None` for all other modules."""
        patch = self.wanted.pop(name, None)
        spec = None if patch is None else importlib.util.find_spec(name)
        if patch is None or spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


if "PRETENDED_STEP_MS" in os.environ:
    sys.meta_path.insert(0, Patches())
