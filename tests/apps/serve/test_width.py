"""A request may ask a planner for `width` branches (256) at most, at whatever depth and in whatever option it asks."""

from __future__ import annotations

import json
from typing import Annotated, Any

import httpx
import pytest
from pydantic import BaseModel

from plait import AsyncOrchestrator, Config
from plait.core.declarations import Access
from plait.core.errors import NotAllowed, PlaitError
from plait.core.interfaces import Merge, Planner, Policy
from plait.core.ops import Join, ModelCall, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.rights import Rights
from plait.core.vocabulary import N, OnePlugin
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from plait_server import outside
from plait_server.app import build
from plait_server.errors import of_error
from plait_server.service import Service
from plait_server.settings import Settings

WIDTH = 256


class Replans(Merge):
    """Plans more, by a planner."""

    planner: Annotated[OnePlugin, Access("planner")]
    others: tuple[Annotated[OnePlugin, Access("planner")], ...] = ()


class Undeclared(Planner):
    """Of another package: one option declares what it costs, the others do not."""

    n: N = 4
    chunks: int = 4
    folder: str = ""
    share: float = 0.5
    inner: OnePlugin = Plugin(name="sample")


PLUGINS = Plugins()
PLUGINS.register("merge", "replans", Replans)
PLUGINS.register("planner", "undeclared", Undeclared)


def counts(kind: type[BaseModel]) -> list[str]:
    return [name for name, info in kind.model_fields.items() if outside.option_check(kind, info) == "branches"]


def too_wide() -> list[tuple[str, dict[str, Any]]]:
    """Each option of each plugin that counts branches, asking for 257, with the kind of its plugin."""
    kinds: tuple[Any, ...] = ("planner", "merge", "search", "scorer")
    named = [(kind, name) for kind in kinds for name in PLUGINS.listed(kind)]
    found = [
        (kind, {"name": name, "options": {option: [200, 57] if (name, option) == ("refine", "rounds") else 257}})
        for kind, name in named
        for option in counts(PLUGINS.class_of(kind, name))
    ]
    return [*found, *(("planner", {"name": "refine", "options": {"rounds": rounds}}) for rounds in ("1000x1", 257))]


def planners(kind: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The plugin as a planner, or within the options of one."""
    match kind:
        case "planner":
            return [spec]
        case "merge":
            return [{"name": "sample", "options": {"merge": spec}}, {"name": "adaptive", "options": {"allocate": spec}}]
        case "search":
            return [{"name": "tree", "options": {"search": spec}}]
        case _:
            return [{"name": "tree", "options": {"scorer": spec}}, {"name": "ssr", "options": {"scorer": spec}}]


def nested(planner: dict[str, Any]) -> list[dict[str, Any]]:
    """A planner alone and within others."""
    tiers = [{"planner": "single"}, {"planner": planner}]
    agent = {"name": "a", "description": "d", "planner": planner}
    routed = {"name": "route-record", "options": {"candidates": tiers}}
    within = {"name": "react", "options": {"agents": [{**agent, "agents": [{**agent, "name": "b"}]}]}}
    replanned = {"name": "replans", "options": {"planner": "single", "others": [planner]}}
    deep = {
        "name": "route-record",
        "options": {"candidates": [{"planner": "single"}, {"planner": within}]},
    }
    return [planner, routed, within, {"name": "sample", "options": {"merge": replanned}}, deep]


def join(merge: dict[str, Any]) -> Plan:
    steps = tuple(Step(name=name, op=ModelCall(prompt=(Text(text="q"),))) for name in "ab")
    return Plan(steps=(*steps, Step(name="j", needs=("a", "b"), op=Join(merge=Plugin(**merge)))), output="j")


def check(planner: Any = None, plan: Plan | None = None, width: int | None = WIDTH, **fields: Any) -> None:
    said = {"planner": planner} if planner is not None else {}
    outside.check(Request.of({"text": "q", **said, **fields}), plan, Rights(), PLUGINS, width=width)


@pytest.mark.parametrize(("kind", "spec"), [pytest.param(*each, id=json.dumps(each[1])) for each in too_wide()])
def test_no_nesting_passes_the_width(kind: str, spec: dict[str, Any]) -> None:
    for planner in planners(kind, spec):
        for whole in nested(planner):
            with pytest.raises(PlaitError) as refused:
                check(whole)
            assert of_error(refused.value).status in (400, 403), whole
    if kind == "merge":
        with pytest.raises(PlaitError):
            check(plan=join(spec))


def test_what_is_within_the_width_passes_at_every_depth() -> None:
    for planner in (
        "sample:n=256",
        "refine:rounds=128x127x1",
        "threads:max_input_tokens=100000",
        "undeclared:n=256,share=900",
    ):
        for whole in nested(Plugin.of(planner).model_dump()):
            check(whole)
    check(plan=join({"name": "replans", "options": {"planner": "sample:n=256"}}))
    check({"name": "sample", "options": {"answer": {"max_tokens": 100_000}}}, n=256)
    check("sample:n=5000", width=None)


@pytest.mark.parametrize(
    ("planner", "path", "asked"),
    [
        ("sample:n=257", "planner.n", 257),
        ("refine:rounds=1000x1", "planner.rounds", 1001),
        (
            'route-record:candidates=["single",{"planner":"sample:n=1000"}]',
            "planner.candidates[1].planner.n",
            1000,
        ),
        ("adaptive:allocate=by-saturation:max_branches=300", "planner.allocate.max_branches", 300),
        ('threads:dialect={"fork":"x","rounds":300}', "planner.dialect.rounds", 300),
    ],
)
def test_a_refusal_names_the_option_and_the_width(planner: str, path: str, asked: int) -> None:
    with pytest.raises(PlaitError) as refused:
        check(planner)
    assert str(refused.value) == f"{path} asks for {asked:,}, which is more than the 256 allowed here"
    assert of_error(refused.value).status == 400


def test_a_number_beside_the_planner_is_held_to_the_width() -> None:
    with pytest.raises(PlaitError, match="257, which is more than the 256"):
        check(n=257)


@pytest.mark.parametrize("option", ["chunks=4", "folder=x", "inner=single"])
def test_an_option_that_declares_nothing_is_refused_with_what_to_declare(option: str) -> None:
    for whole in nested(Plugin.of(f"undeclared:{option}").model_dump()):
        with pytest.raises(
            NotAllowed, match=rf"\.{option.partition('=')[0]} .*Annotated.*BranchCount.*plait\.core\.declarations"
        ):
            check(whole)


def test_policies_plan_nothing_so_their_numbers_cost_nothing() -> None:
    class Patient(Policy):
        patience: int = 1

    assert outside.option_check(Patient, Patient.model_fields["patience"]) == "free"
    assert counts(Patient) == []
    assert counts(Undeclared) == ["n"]


async def test_the_server_answers_400() -> None:
    workers = [Scripted([Reply(text="answer: 4")])]
    orchestrator = AsyncOrchestrator(config=Config(journal="off"), workers=workers)
    app = build(Service(orchestrator, Settings(), workers))
    async with app.router.lifespan_context(app):  # pyright: ignore[reportAttributeAccessIssue]
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")
        async with client:
            for planner in (
                "sample:n=257",
                "refine:rounds=1000x1",
                'route-record:candidates=["single","sample:n=1000"]',
            ):
                body = {"model": f"plait/{planner}", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
                answer = await client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 400, (planner, answer.text)
                assert "more than the 256 allowed here" in answer.json()["error"]["message"]
