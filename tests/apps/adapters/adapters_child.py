"""What each framework makes of its adapter, run in the environment that has it: prints one JSON line a check."""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from plait import AsyncOrchestrator, tool
from plait.core.plan import Plan
from plait.core.tools.context import ToolContext
from plait.workers.scripted import Reply, Scripted
from plait_server.adapters.local import local_server

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
REPLIES = [
    Reply(when="sunny", text="It is sunny."),
    Reply(when="the weather", text=CALL),
    Reply(text="The answer is 42."),
]


def worker() -> Scripted:
    return Scripted(REPLIES)


def pydantic_ai() -> None:
    from pydantic_ai import Agent

    from plait_server.adapters.pydantic_ai import PlaitModel

    with local_server(workers=[worker()], journal="off") as url:
        agent = Agent(PlaitModel("sample:n=3", url))
        assert "42" in agent.run_sync("six by seven?").output
        agent = Agent(PlaitModel("single", url))

        @agent.tool_plain
        def weather(city: str) -> str:
            """Tell the weather."""
            return f"sunny in {city}"

        assert agent.run_sync("the weather?").output == "It is sunny."


def langchain_openai() -> None:
    from plait_server.adapters.langchain import PlaitChatModel

    with local_server(workers=[worker()], journal="off") as url:
        assert "42" in PlaitChatModel("sample:n=3", url).invoke("six by seven?").text
        pieces = [each.text for each in PlaitChatModel("single", url).stream("six by seven?")]
        assert "".join(pieces) == "The answer is 42." and len(pieces) > 1


def inspect_ai() -> None:
    import tempfile

    from inspect_ai import Task, eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes

    from plait_research.adapters.inspect_ai import plait_solver

    plait = AsyncOrchestrator(workers=[worker()], journal="off")
    task = Task(
        dataset=[Sample(input="six by seven?", target="42"), Sample(input="seven by six?", target="43")],
        solver=plait_solver("sample:n=3", plait),
        scorer=includes(),
    )
    with tempfile.TemporaryDirectory() as folder:
        (log,) = evaluate(task, model="mockllm/model", log_dir=folder, display="none")
        assert log.status == "success", log.error
        samples = list(log.samples)  # read from the folder only now
    assert [next(iter(each.scores.values())).value for each in samples] == ["C", "I"]
    assert samples[0].metadata["plait"]["status"] == "done"


def ag_ui() -> None:
    from ag_ui.core import events as ag
    from ag_ui.encoder import EventEncoder

    from plait_server.adapters.agui import agui_events

    @tool
    async def permit(what: str, ctx: ToolContext) -> str:
        """Ask a person."""
        return f"{what}: {await ctx.ask(f'May I {what}?', choices=['yes', 'no'])}"

    async def both() -> None:
        async with AsyncOrchestrator(workers=[worker()], tools=[permit], journal="off", on_ask="later") as plait:
            handle = await plait.submit("six by seven?", planner="sample:n=2", watch=True)
            seen = [each async for each in agui_events(handle, "t")]
            assert all(EventEncoder().encode(each).startswith("data: {") for each in seen)
            assert isinstance(seen[0], ag.RunStartedEvent) and isinstance(seen[-1], ag.RunFinishedEvent)
            begun = [each.message_id for each in seen if isinstance(each, ag.ReasoningMessageStartEvent)]
            ended = [each.message_id for each in seen if isinstance(each, ag.ReasoningMessageEndEvent)]
            assert len(set(begun)) == 2 and sorted(begun) == sorted(ended)
            text = dict.fromkeys(begun, "")
            for each in seen:
                if isinstance(each, ag.ReasoningMessageContentEvent):
                    text[each.message_id] += each.delta
            assert set(text.values()) == {"The answer is 42."}
            plan = {
                "steps": [{"name": "a", "op": {"kind": "call", "tool": "permit", "args": {"what": "sing"}}}],
                "output": "a",
            }
            handle = await plait.submit("", plan=Plan.model_validate(plan), watch=True)
            *_, last = [each async for each in agui_events(handle, "t")]
            (asked,) = last.outcome.interrupts
            assert asked.message == "May I sing?"
            handle.answer(asked.id, "yes")
            seen = [each async for each in agui_events(handle, "t")]
            assert [each.content for each in seen if isinstance(each, ag.ToolCallResultEvent)] == ["sing: yes"]

    asyncio.run(both())


PRIME_RL = "559b44772e471d1538537b8805cc77f3824a5e64"
"""The commit of prime-rl that the facts below are of (2026-08-21)."""
READ = ("token_ids", "sampled_mask", "logprobs", "nodes", "routed_experts", "reference_logprobs", "advantages")
"""What prime-rl reads of a trace's branch to make a `TrainingSample`, and verifiers 0.4.0 has. It reads
`multi_modal_data` too, of the verifiers that it pins."""

ROLLOUTS = {
    "prime_rl.transports.rollouts.types": "transports/rollouts/types.py",
    "trajectories": "orchestrator/trajectories.py",
}


def prime_rl_samples(trace: Any) -> list[Any]:
    """Return the samples that prime-rl makes of a trace: one a branch, in which a sampled node that an earlier branch
    has too is context. With `PRIME_RL_SOURCE`, a checkout, by prime-rl's own function."""
    number = itertools.count()
    for node in trace.nodes:  # as a training client records them; that of this check knows no tokens
        node.token_ids = [next(number), next(number)]
        node.mask, node.logprobs = [bool(node.sampled)] * 2, [-0.5] * 2
    for branch in trace.branches:
        lacking = [name for name in READ if not hasattr(branch, name)]
        assert not lacking, f"prime-rl {PRIME_RL[:8]} reads {lacking}"
        assert len(branch.token_ids) == len(branch.sampled_mask) == len(branch.logprobs) == 2 * len(branch.nodes)
    if (source := os.environ.get("PRIME_RL_SOURCE")) is None:
        drawn = [[each for node in branch.nodes for each in node.mask] for branch in trace.branches]
        return [
            SimpleNamespace(token_ids=each.token_ids, mask=mask)
            for each, mask in zip(trace.branches, drawn, strict=True)
        ]
    logger = ModuleType("prime_rl.utils.logger")
    logger.__dict__["get_logger"] = lambda: logging.getLogger("prime_rl")
    for name in ("prime_rl", "prime_rl.utils", "prime_rl.transports"):
        sys.modules[name] = ModuleType(name)
    sys.modules["prime_rl.utils.logger"] = logger
    for name, file in ROLLOUTS.items():
        spec = importlib.util.spec_from_file_location(name, Path(source) / "src/prime_rl" / file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        sys.modules.setdefault("prime_rl.transports.rollouts", sys.modules[name])
    type(trace.branches[0]).multi_modal_data = None
    samples = sys.modules["trajectories"].trace_to_samples(trace)
    assert all(len(each.token_ids) == len(each.mask) == len(each.logprobs) for each in samples)
    return samples


def verifiers() -> None:
    import tempfile

    from verifiers.v1.agent import Agent, AgentConfig
    from verifiers.v1.clients import EvalClientConfig
    from verifiers.v1.task import Task, TaskData
    from verifiers.v1.utils.decorators import reward

    class Right(Task[TaskData]):
        @reward
        async def right(self, trace) -> float:
            return float("42" in trace.last_reply)

    async def both(url: str) -> None:
        config = AgentConfig(
            harness={"id": "my-harness", "planner": "sample:n=3"}, runtime={"type": "subprocess"}, model="any",
            client=EvalClientConfig(base_url=url, api_key_var="KEY"),
        )  # fmt: skip
        async with Agent(config) as agent:
            data = TaskData(idx=0, prompt="six by seven?", system_prompt="Be brief.")
            trace = await agent.run(Right(data))
        assert trace.ok, trace.errors
        assert "42" in trace.last_reply and trace.reward == 1.0
        assert trace.num_turns == 3, "three samples, and nothing asked beforehand"
        assert [each.role for each in trace.branches[0].messages] == ["system", "user", "assistant"]
        assert trace.info["plait"]["status"] == "done"
        samples = prime_rl_samples(trace)
        assert len(samples) == 3 and all(sum(each.mask) == 2 for each in samples), "one a thread, and its own tokens"

    with tempfile.TemporaryDirectory() as folder, local_server(workers=[worker()], journal="off") as url:
        (Path(folder) / "my_harness.py").write_text(
            "from plait_research.adapters.verifiers import PlaitHarness\n__all__ = ['PlaitHarness']\n"
        )
        sys.path.insert(0, folder)
        os.environ["KEY"] = "none"
        asyncio.run(both(url))


def main() -> None:
    for check in (pydantic_ai, langchain_openai, inspect_ai, ag_ui, verifiers):
        problem = None
        if importlib.util.find_spec(check.__name__) is None:
            problem = "not installed"
        else:
            try:
                check()
            except BaseException:
                problem = traceback.format_exc()
        sys.stdout.write(json.dumps({"adapter": check.__name__, "problem": problem}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
