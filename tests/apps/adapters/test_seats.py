"""Live rollouts inside other people's trainers.

The trainers' own loops and classes run in `seats_child.py`, in an environment that has them (`ADAPTERS_PYTHON`, as in
`test_adapters.py`). What they made, and the interfaces that the adapters rely on, is recorded in `trainers.json`: the
other tests run the adapters on classes of these interfaces.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import create_model

from plait.core.errors import ConfigError
from plait_research import adapters
from scripts.checkout import python_path
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

HERE = Path(__file__).parent
KNOWN = json.loads((HERE / "trainers.json").read_text())
pytest.importorskip("transformers", reason="the tests' tokenizer is one of transformers")


class Loop:
    """verl's `AgentLoopBase` as far as it is relied on."""

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, data_config: Any, **_: Any) -> None:
        self.rollout_config = trainer_config.config.actor_rollout_ref.rollout
        self.server_manager, self.tokenizer = server_manager, tokenizer
        self.apply_chat_template_kwargs = data_config.config


class FunctionTool(SimpleNamespace):
    """The same of `FunctionTool`."""

    async def call(self, arguments: dict[str, Any]) -> Any:
        return self.fn(**arguments)


def published(monkeypatch: pytest.MonkeyPatch, version: str = KNOWN["verl"]["version"]) -> Any:
    """Return the adapter for verl, on the published fields of verl's classes."""
    loops, tools = ModuleType("agent_loop"), ModuleType("function_tool")
    for name in ("AgentLoopMetrics", "AgentLoopOutput"):
        fields: Any = {each: (Any, ... if need else None) for each, need in KNOWN["verl"][name].items()}
        setattr(loops, name, create_model(name, **fields, __config__={"extra": "forbid"}))
    loops.__dict__.update(AgentLoopBase=Loop, register=lambda name: lambda kind: kind)
    tools.__dict__.update(
        FunctionTool=FunctionTool, normalize_function_tool_return=lambda text: (SimpleNamespace(text=text), 0.5, {})
    )
    for name in ("verl", "verl.experimental", "verl.experimental.agent_loop", "verl.tools"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "verl.experimental.agent_loop.agent_loop", loops)
    monkeypatch.setitem(sys.modules, "verl.tools.function_tool", tools)
    monkeypatch.setattr(adapters, "version", lambda package: version)
    monkeypatch.delitem(sys.modules, "plait_research.adapters.verl", raising=False)
    return importlib.import_module("plait_research.adapters.verl")


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> Any:
    return published(monkeypatch)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


def loop(verl: Any, server: FakeServers, length: int = 2000, **options: Any) -> Any:
    """Return a loop on a server."""
    rollout = SimpleNamespace(prompt_length=3000, response_length=length, full_determinism=False)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return verl.PlaitAgentLoop(
        trainer_config=SimpleNamespace(config=config), server_manager=server, tokenizer=server.tokenizer,
        data_config=SimpleNamespace(config={}), **options,
    )  # fmt: skip


def tools() -> Any:
    """Return the tool that the model calls, as verl hands tools over."""
    function = SimpleNamespace(model_dump=lambda **_: LOOKUP["function"])
    schema = SimpleNamespace(function=function)
    return SimpleNamespace(tools=[FunctionTool(name="lookup", fn=looked_up, tool_schema=schema)])


async def rolled(verl: Any, server: FakeServers, case: int = 1, **given: Any) -> Any:
    """Return the output of a case."""
    question, length = asked_of(case)
    options = {name: given.pop(name) for name in ("seed", "tools", "options") if name in given}
    options["request"] = {"planner": given.pop("planner", "single"), "task": "plain:where=boxed"}
    return await loop(verl, server, length, **options).run(dict(SAMPLING), raw_prompt=[question], index=case, **given)


@pytest.mark.parametrize("planner", ["single", "react"])
async def test_the_ids_masks_and_logprobs_are_those_of_verls_own_loops(verl: Any, tokenizer: Any, planner: str) -> None:
    for case, theirs in enumerate(KNOWN["verl"]["loops"][planner]):
        turns = turns_of(case) if planner == "react" else 0
        given = {"tools": tools()} if turns else {}
        ours = await rolled(verl, FakeServers(tokenizer, turns), case, planner=planner, **given)
        assert {name: getattr(ours, name) for name in FIELDS} == theirs
        assert ours.extra_fields["tool_rewards"] == [0.5] * len(ours.extra_fields["tool_rewards"])
        assert bool(ours.extra_fields["tool_rewards"]) == (0 in ours.response_mask), "a tool was called, or none"


async def test_threads_are_a_list_for_trainer_v1_and_an_error_for_the_older_one(verl: Any, tokenizer: Any) -> None:
    servers = FakeServers(tokenizer)
    outputs = await rolled(verl, servers, planner="sample:n=3,early=false", session_id=2, seed=7)
    assert [each.extra_fields["sequence"] for each in outputs] == [0, 1, 2]
    assert all(each.prompt_ids == outputs[0].prompt_ids for each in outputs)
    assert len({tuple(each.response_ids) for each in outputs}) == 3
    assert len({asked["id"] for asked in servers.asked}) == 1, "one session, so one server has the prefix"
    with pytest.raises(ConfigError, match=r"made 3 sequences, .* trainer\.use_v1=true"):
        await rolled(verl, FakeServers(tokenizer), planner="sample:n=3,early=false", seed=7)


async def test_a_seed_repeats_a_rollout_and_tells_rollouts_apart(verl: Any, tokenizer: Any) -> None:
    async def one(**given: Any) -> list[list[int]]:
        made = await rolled(verl, FakeServers(tokenizer), planner="sample:n=2,early=false", **given)
        return [each.response_ids for each in made]

    first = await one(session_id=0, seed=7)
    assert await one(session_id=0, seed=7) == first
    for other in ({"session_id": 1}, {"session_id": 0, "seed": 8}, {"session_id": 0, "global_steps": 2}):
        assert await one(**{"seed": 7, **other}) != first
    server = FakeServers(tokenizer)
    await rolled(verl, server)
    assert "seed" not in server.asked[0]["params"], "without a seed the server draws as it is set to"


async def test_tools_of_verl_and_of_plait_are_called_in_one_rollout(verl: Any, tokenizer: Any, tmp_path: Path) -> None:
    class Both(FakeServers):
        """Calls verl's `lookup`, then plait's `count`."""

        def write(self, prompt: Any, seed: int) -> list[int]:
            turn = self.tokenizer.decode(list(prompt), skip_special_tokens=False).count("<tool_response>")
            calls = ('{"name": "lookup", "arguments": {"key": "7"}}', '{"name": "count", "arguments": {"text": "abc"}}')
            said = f"<tool_call>\n{calls[turn]}\n</tool_call>" if turn < 2 else "it is 3"
            return [*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id]

    file = tmp_path / "tools.py"
    file.write_text(
        "from plait import tool\n\n@tool\ndef count(text: str) -> int:\n    'Count letters.'\n    return len(text)"
    )
    server = Both(tokenizer)
    output = await rolled(verl, server, planner="react", tools=tools(), options={"tools": str(file)})
    last = tokenizer.decode(server.asked[-1]["prompt"], skip_special_tokens=False)
    assert len(server.asked) == 3 and "<tool_response>\n3" in last and looked_up("7") in last
    assert output.extra_fields["tool_rewards"] == [0.5], "verl's tool alone has rewards"


async def test_a_rollout_is_cancelled_with_its_step(verl: Any, tokenizer: Any) -> None:
    server = FakeServers(tokenizer)
    server.hang = True
    step = asyncio.ensure_future(rolled(verl, server, planner="sample:n=3,early=false", session_id=0))
    while len(server.asked) < 3:
        await asyncio.sleep(0.01)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert server.cancelled == 3


async def test_the_error_of_a_server_that_died_reaches_the_trainer(verl: Any, tokenizer: Any) -> None:
    class ActorDied(Exception):
        """Stands for Ray's."""

    server = FakeServers(tokenizer)
    server.fault = ActorDied("the node is gone")
    with pytest.raises(ActorDied, match="the node is gone"):
        await rolled(verl, server, planner="react", tools=tools())
    assert len(server.asked) == 1, "verl decides whether to repeat the rollout"


async def test_weights_that_change_under_a_run_are_recorded_by_turn(verl: Any, tokenizer: Any) -> None:
    server = FakeServers(tokenizer, calls=2)
    server.versions = [(4, 4), (4, 5), (6, 6)]
    output = await rolled(verl, server, planner="react", tools=tools())
    extra = output.extra_fields
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (4, 6)
    assert [policy for *_, policy in extra["policies"]] == sorted(policy for *_, policy in extra["policies"])
    drawn = sum(end - start for start, end, _ in extra["policies"])
    assert drawn == sum(output.response_mask) == sum(map(len, output_turns(server)))
    unknown = (await rolled(verl, FakeServers(tokenizer))).extra_fields
    assert (unknown["min_global_steps"], unknown["max_global_steps"]) == (None, None)


def output_turns(server: FakeServers) -> list[list[int]]:
    """Return what the server has written, turn by turn."""
    return [server.write(asked["prompt"], 0) for asked in server.asked]


@pytest.mark.parametrize(
    ("package", "module", "known"),
    [
        ("verl", "plait_research.adapters.verl", "0.9"),
        ("verifiers", "plait_research.adapters.verifiers", "0.4"),
        ("skyrl", "examples.trainers.skyrl_generator", "0.3"),
    ],
)
def test_an_unknown_version_is_named_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str, known: str
) -> None:
    monkeypatch.setattr(adapters, "version", lambda name: "1.2.0")
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ConfigError, match=rf"{package} 1\.2\.0 is not supported \(supported: {known}\)"):
        importlib.import_module(module)


@pytest.fixture(scope="module")
def installed() -> Any:
    """Return a function that runs a check of `seats_child.py` where its package is installed, or skips."""
    pythons = os.environ.get("ADAPTERS_PYTHON", sys.executable).split(os.pathsep)

    def run(package: str, check: str, cases: int) -> Any:
        probe = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
        found = [each for each in pythons if subprocess.run([each, "-c", probe], check=False).returncode == 0]
        if not found:
            pytest.skip(f"{package} is not installed; name a Python that has it in ADAPTERS_PYTHON")
        file = [check] if check.endswith(".py") else ["seats_child.py", check]
        command = [found[0], str(HERE / file[0]), *file[1:], str(cases)]
        env = {**os.environ, "PYTHONPATH": python_path(HERE.parents[2])}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


@pytest.mark.slow
def test_verls_own_loops_make_the_same(installed: Any) -> None:
    found = installed("verl", "verl", 12)
    for planner in ("single", "react"):
        assert found[planner]["equal"] == found[planner]["cases"], found[planner]["differing"]
        assert found[planner]["recorded"] == KNOWN["verl"]["loops"][planner]
    assert installed("verl", "verl_published", 0) == {
        name: KNOWN["verl"][name] for name in KNOWN["verl"].keys() - {"loops"}
    }


@pytest.mark.slow
def test_verls_trainer_gives_threads_the_advantage_of_their_rollout(installed: Any) -> None:
    found = installed("verl", "verl_threads", 4)
    assert found["rows"] == found["equal"] == 3 * found["rollouts"] == found["seeds"] == 48
    assert found["nonzero"] > 24, "the rewards differ, or the test shows nothing"


@pytest.mark.slow
def test_verls_own_training_worker_learns_from_threads(installed: Any) -> None:
    pytest.importorskip("torch", reason="verl's training worker needs torch")
    steps = installed("verl", "verl_step.py", 3)
    assert [step["sequences"] for step in steps] == [32] * 3, "4 prompts, 4 rollouts, 2 threads each"
    for step in steps:
        assert step["off"] < 1e-4, "the recorded log-probabilities are those that verl computes again"
        assert step["after"] < step["before"] - 0.01 and step["grad_norm"] > 0, "its step lowers GRPO's loss"


@pytest.mark.slow
def test_skyrls_own_generator_makes_the_same(installed: Any) -> None:
    found = installed("skyrl", "skyrl", 40)
    assert found["equal"] == found["cases"] == 40, found["differing"]
    assert 0 < found["cut"] < 40, "the limit cuts some answers, and not others"
    assert found["sessions"] == 120, "every trajectory of the three runs gave its session back"
    assert found["steps"] == 120 and found["last"] == found["rewarded"] == [False, False, True] * 40
