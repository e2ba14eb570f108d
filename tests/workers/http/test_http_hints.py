"""What serving stacks are told: the headers and fields of requests as a server gets them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from plait import AsyncOrchestrator, ModelCall, Plan, Ref, Step
from plait.core.events import PRIORITY_STEP, Hints
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.runtime.client.config import Config
from plait.runtime.client.worker_factory import workers
from plait.runtime.plugins.loader import Plugins
from plait.workers.http import Http
from plait.workers.http.routing_hints import build_hints, find_stack

from .fake_server import FakeServer
from .http_kit import items, job, serving

HINTED = Hints(session="r/s", parent="r/p", final=True, expected=40, burst="b1", burst_size=3, origin="r/o", turn=2,
               blocks_parent=True, pause=1.5)  # fmt: skip
NAMES = ("x-dynamo", "x-session", "x-llm-d", "x-smg", "x-data-parallel")


async def recorded(kind: str, hints: Hints | None = HINTED, **options: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The headers of ours and the body that a stack gets."""
    async with serving(FakeServer(**options.pop("server", {})), hints=kind, **options) as (server, worker):
        server.headers.clear()
        given = replace(job(max_tokens=100, seconds=2.5, priority=-7), hints=hints)
        (result,) = await items(worker, given)
        assert isinstance(result, Result)
        (headers,), (body,) = server.headers, server.asked()
        return {name: value for name, value in headers.items() if name.startswith(NAMES)}, body


class Remembered(dict[str, Any]):
    """Runs of which the origins are kept when they are over."""

    def __init__(self, placed: dict[str, str]) -> None:
        super().__init__()
        self.placed = placed

    def pop(self, run: str, *default: Any) -> Any:
        if run in self:
            self.placed |= self[run].origins
        return super().pop(run, *default)


async def test_dynamo_is_told_the_session_and_the_expected_length():
    headers, body = await recorded("dynamo")
    assert headers == {
        "x-dynamo-session-id": "r/s",
        "x-dynamo-parent-session-id": "r/p",
        "x-dynamo-session-final": "true",
    }
    assert body["nvext"] == {"agent_hints": {"priority": 7, "osl": 40}}
    headers, body = await recorded("dynamo", replace(HINTED, final=False, expected=None))
    assert "x-dynamo-session-final" not in headers and body["nvext"] == {"agent_hints": {"priority": 7}}


async def test_llm_d_gets_the_session_the_run_and_the_burst():
    """And no limit for the first token: plait knows only limits of whole runs."""
    headers, body = await recorded("llm-d")
    assert headers == {
        "x-session-id": "r/s",
        "x-llm-d-inference-fairness-id": "r",
        "x-llm-d-burst-id": "b1",
        "x-llm-d-burst-size": "3",
    }
    assert "nvext" not in body and "vllm_xargs" not in body
    headers, _ = await recorded("llm-d", replace(HINTED, burst="", burst_size=1))
    assert "x-llm-d-burst-id" not in headers


@pytest.mark.parametrize("kind", ["vllm", "vllm-router"])
async def test_vllm_gets_everything_in_one_argument_and_the_trajectory_as_its_session(kind: str):
    headers, body = await recorded(kind)
    assert headers == {"x-session-id": "r/o"} and body["priority"] == -7 and body["session_id"] == "r/s"
    context = body["vllm_xargs"]["agentic_context"]
    assert isinstance(context, dict if kind == "vllm-router" else str)
    context = context if isinstance(context, dict) else json.loads(context)
    assert context == {
        "program_id": "r/s",
        "task_id": "r",
        "session_id": "r/s",
        "parent_program_id": "r/p",
        "blocks_parent": True,
        "agent_role": "subagent",
        "step_id": 2,
        "expected_resume": False,
        "kv_retention_ttl_seconds": 1.5,
        "priority": 7,
        "deadline_seconds": 2.5,
        "expected_output_length": 40,
        "burst": "b1",
        "burst_size": 3,
    }


def test_the_router_would_take_every_context() -> None:
    """Its rules (`docs/program_scheduling.md`): a parent is another program, numbers are numbers."""
    for hints in (
        HINTED,
        Hints(session="s"),
        Hints(session="s", parent="s", blocks_parent=True),
        Hints(session="s", program="s"),
    ):
        for priority in (0, 5):
            context = build_hints("vllm-router", replace(job(priority=priority), hints=hints)).fields["vllm_xargs"][
                "agentic_context"
            ]
            assert context.get("parent_program_id") != context["program_id"]
            assert not context["blocks_parent"] or context["parent_program_id"]
            assert context["blocks_parent"] is (context["agent_role"] == "subagent")
            assert isinstance(context.get("step_id", 0), int) and isinstance(context["expected_resume"], bool)
            assert context.get("priority", 0) == -priority, "the router serves higher numbers first"


def test_dynamo_prefills_the_next_turn_of_a_conversation_and_keeps_the_user_s_tiers() -> None:
    given = replace(job(), hints=Hints(session="s", continues=True), priority=-2 * PRIORITY_STEP + 3)
    given.op = ModelCall(prompt="x", chat=True)
    assert build_hints("dynamo", given).fields["nvext"]["agent_hints"] == {
        "priority": 2 * PRIORITY_STEP - 3, "strict_priority": 2, "speculative_prefill": True,
    }  # fmt: skip
    given.op = ModelCall(prompt="x")
    assert "speculative_prefill" not in build_hints("dynamo", given).fields["nvext"]["agent_hints"]


@pytest.mark.parametrize(
    ("url", "stack"),
    [
        ("https://api.openai.com/v1", "openai"), ("https://eu.api.openai.com/v1", "openai"),
        ("https://me.openai.azure.com/openai/v1", "openai"), ("https://api.openai.com.example/v1", "none"),
        ("http://gateway:4000/v1", "none"),
    ],
)  # fmt: skip
def test_openai_gets_a_cache_key_that_it_takes(url: str, stack: str) -> None:
    assert find_stack("auto", ["openai"], url) == stack and find_stack("dynamo", [], url) == "dynamo"
    for origin in ("r/o", "r" * 65):
        (key,) = build_hints("openai", replace(job(), hints=replace(HINTED, origin=origin))).fields.values()
        assert len(key) <= 64 and (key == origin) is (len(origin) <= 64)


async def test_sglangs_router_is_told_a_routing_key():
    headers, body = await recorded("sglang", server={"ids": False})
    assert headers == {"x-smg-routing-key": "r/o"} and body["priority"] == 7


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_line_stays_at_one_replica_where_no_router_is(kind: str):
    ranks = set()
    for session in ("a", "b", "c", "d", "e", "f"):
        hints = replace(HINTED, session=session, burst="", origin="")
        first, _ = await recorded(kind, hints, data_parallel=4)
        again, _ = await recorded(kind, replace(hints, final=False, expected=None), data_parallel=4)
        assert first["x-data-parallel-rank"] == again["x-data-parallel-rank"]
        ranks.add(int(first["x-data-parallel-rank"]))
    assert len(ranks) > 1 and ranks <= {0, 1, 2, 3}
    together = {(await recorded(kind, replace(HINTED, session=each), data_parallel=4))[0]["x-data-parallel-rank"]
                for each in ("a", "b", "c")}  # fmt: skip
    assert len(together) == 1, "siblings that begin alike share a cache"


@pytest.mark.parametrize(
    ("owner", "name"),
    [("vllm", "agentic_context"), ("sglang", "x-smg-routing-key"), ("nvidia", "x-dynamo-session-id"), ("openai", "")],
)
async def test_auto_looks_at_who_owns_the_models(owner: str, name: str):
    headers, body = await recorded("auto", server={"owner": owner})
    told = [*headers, *body.get("vllm_xargs", ())]
    assert name in told if name else not told


async def test_nothing_is_said_where_nothing_is_wanted():
    assert (await recorded("none"))[0] == {}
    async with FakeServer() as server:
        assert not Http(server.url, hints="none").hints and Http(server.url).hints


def think(name: str, prompt: str = "", **fields: Any) -> Step:
    return Step(name=name, op=ModelCall(prompt=prompt, sampling=Sampling(max_tokens=64), **fields))


async def test_the_plan_says_sessions_bursts_and_lengths():
    plan = Plan(
        steps=(
            think("root", "the root"),
            *(think(f"fork-{n}", "go on", after="root") for n in (1, 2, 3)),
            think("next", "and on", after="fork-1"),
            *(think(f"vote-{n}", "vote") for n in range(1, 12)),
            Step(name="late", op=ModelCall(prompt=("so: ", Ref(step="vote-1")), sampling=Sampling(max_tokens=64))),
            Step(
                name="out",
                op=ModelCall(
                    prompt=tuple(
                        Ref(step=each)
                        for each in ("next", "fork-2", "fork-3", "late", *(f"vote-{n}" for n in range(2, 12)))
                    ),
                    sampling=Sampling(max_tokens=64),
                ),
            ),
        ),
        output="out",
    )  # fmt: skip
    async with FakeServer() as server:
        worker = Http(server.url, hints="vllm", slots=1)
        async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
            await plait.start()
            driver: Any = plait._driver
            placed: dict[str, str] = {}
            driver._hinter.runs = Remembered(placed)
            answer = await plait.run("x", plan=plan)
            assert answer.status == "done", answer.failure
            assert not driver._hinter.runs, "what is over is forgotten"
        asked = [json.loads(body["vllm_xargs"]["agentic_context"]) for body in server.asked() if "vllm_xargs" in body]
    origins = {each: placed[f"{answer.run}:{each}"] for each in ("root", "fork-1", "fork-2", "next", "vote-1")}
    assert len({origins[each] for each in ("root", "fork-1", "fork-2", "next")}) == 1 != len(set(origins.values()))
    assert placed[f"{answer.run}:vote-2"] == origins["vote-1"]
    by = {each["program_id"].rpartition("/")[2]: each for each in asked}
    sessions = [each["program_id"].rpartition("/")[2] for each in asked]
    assert [each["step_id"] for each in asked if each["program_id"].endswith("/root")] == [0, 1, 2]
    assert {each["task_id"] for each in asked} == {answer.run}
    assert sessions.count("root") == 3, "the root, its first fork and what follows that share a session"
    assert by["fork-2"]["parent_program_id"] == f"{answer.run}/root" and by["vote-1"]["parent_program_id"] == answer.run
    assert {each["burst_size"] for each in asked if each["program_id"].endswith(("fork-2", "fork-3"))} == {3}
    assert by["vote-1"]["burst"] == by["vote-2"]["burst"] and by["vote-1"]["burst_size"] == 11
    assert not by["fork-2"]["expected_resume"] and asked[sessions.index("root")]["expected_resume"]
    assert asked[0].get("expected_output_length") is None, "nothing like it has ended"
    lengths = [each["expected_output_length"] for each in asked if "vote" in each["program_id"]]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > 10 and lengths[-1] == 5, "siblings come to count"


def test_several_addresses_are_several_workers_with_affinity():
    config = Config(worker="http", base_url="http://a/v1, http://b/v1")
    made = workers(config, Plugins())
    assert [(each.name, each.base_url) for each in made if isinstance(each, Http)] == [
        ("http-1", "http://a/v1"),
        ("http-2", "http://b/v1"),
    ]
    assert [each.name for each in config.standing_policies] == ["affinity"]
    assert Config(worker="http", base_url="http://a/v1").standing_policies == ()
