"""plait as a harness of verifiers (`pip install verifiers`): a planner makes a rollout's model calls.

Verifiers finds a harness by the name of a top-level module. Re-export it in one of your own, such as your taskset's:

from plait_research.adapters.verifiers import PlaitHarness
__all__ = ["MyTaskset", "PlaitHarness"]
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import secrets
from typing import Any

from plait.core.values import as_text
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.plugins.loader import Plugins

from . import require_version

require_version("verifiers", "0.4")

from verifiers.v1.clients import ModelContext  # noqa: E402 - an unknown version may lack these
from verifiers.v1.configs.harness import HarnessConfig  # noqa: E402
from verifiers.v1.dialects.chat import message_to_wire  # noqa: E402
from verifiers.v1.harness import Harness  # noqa: E402
from verifiers.v1.runtimes import ProgramResult, Runtime  # noqa: E402
from verifiers.v1.task import TaskData  # noqa: E402
from verifiers.v1.trace import Trace  # noqa: E402


class PlaitHarnessConfig(HarnessConfig):
    """Which planner, and how."""

    planner: str = "single"
    """As in `--planner`: `sample:n=8`."""
    policies: list[str] = []
    task: str = "plain"
    tokens: int | None = None
    """Token limit of the rollout, over all branches."""


class PlaitHarness(Harness[PlaitHarnessConfig]):
    """Runs a plan in this process. Every call of the model goes through the interception server, so the trace has each
    branch, with tokens and logprobs where the client records them. The answer is the trace's `root_reply`, and the
    run's summary is in `info["plait"]`. A task's own tool servers are not used."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        """Run one segment."""
        config = self.config
        variable = f"VERIFIERS_{secrets.token_hex(8)}"  # a worker takes its key by the name of a variable
        os.environ[variable] = secret
        try:
            worker = Plugins().worker(
                "http", base_url=endpoint, model=ctx.model, api_key_env=variable, endpoint="chat", hints="none"
            )
            async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
                answer = await plait.run(
                    messages=self._messages(data),
                    planner=config.planner,
                    policies=config.policies,
                    task=config.task,
                    tokens=config.tokens,
                )
        finally:
            del os.environ[variable]
        trace.info["plait"] = json.loads(json.dumps(answer.summary(), default=str))
        if answer.value is None and answer.failure is not None:
            return ProgramResult(1, "", f"{answer.failure.kind}: {answer.failure.message}")
        trace.root_reply = "" if answer.value is None else as_text(answer.value)  # whole: tasks have their own parsers
        return ProgramResult(0, trace.root_reply, "")

    def _messages(self, data: TaskData) -> list[dict[str, Any]]:
        system, prompt = self.resolve_prompt(data)
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt or ())
        return [*([{"role": "system", "content": system}] if system else []), *turns]
