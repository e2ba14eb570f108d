"""What a request from outside may say: a table with a row for each field, and requests that ask for too much."""

from __future__ import annotations

import functools
import json
import random
import types
import typing
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from plait import AsyncOrchestrator, Config
from plait.core.declarations import Access
from plait.core.errors import NotAllowed, PlaitError
from plait.core.interfaces import PlanningContext
from plait.core.ops import Join, ModelCall, Plugin, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request, Retries
from plait.core.rights import TEMPLATE_OWN, Rights, host_of
from plait.runtime.client.request_preparation import Live
from plait.runtime.driver.expander import Expander, revised
from plait.runtime.plugins.loader import PACKAGES, Plugins
from plait.workers.scripted import Reply, Scripted
from plait_server import outside
from plait_server.errors import ApiError
from plait_server.service import Service
from plait_server.settings import Settings, Tenant
from plait_server.tenants import hashed, new_key

KEY = new_key()
LINK_LOCAL = "http://169.254.169.254/latest/meta-data"
_PLUGINS = Plugins()


class Named(Scripted):
    """A worker that has models of two names, and remembers what was asked of it."""

    @property
    def models(self):
        return ("small", "big")

    seen: list[ModelCall] = []

    async def run(self, job):
        assert isinstance(job.op, ModelCall)
        self.seen.append(job.op)
        async for item in super().run(job):
            yield item


def worker() -> Named:
    made = Named([Reply(text="fine")])
    made.seen = []
    return made


def tenant(**more) -> Tenant:
    return Tenant(name="ann", keys=(hashed(KEY),), **{"models": ("small",), "tools": False, **more})


def think(**fields) -> dict[str, Any]:
    return {"steps": [{"name": "a", "op": {"kind": "think", "prompt": "hi", **fields}}], "output": "a"}


def image(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return think(chat=True, messages=[{"role": "user", "content": parts}])


# -- at the door -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plait",
    [
        {"plan": think(model="big")},
        {"plan": think(salt="victim")},
        {"plan": think(extra_body={"cache_salt": ""})},
        {"plan": think(extra_body={"priority": -1000})},
        {"plan": think(extra_body={"best_of": 50})},
        {"plan": think(extra_body={"temperature": 9})},
        {"plan": think(chat=True, chat_template_kwargs={"chat_template": "{{ 1/0 }}"})},
        {"plan": think(chat=True, chat_template_kwargs={"tokenize": True})},
        {"plan": image(LINK_LOCAL)},
        {"plan": image("https://example.org/a.png")},
        {"plan": {"steps": [{"name": "a", "priority": -5, "op": {"kind": "think", "prompt": "hi"}}], "output": "a"}},
        {"plan": {"steps": [{"name": "a", "op": {"kind": "call", "tool": "look"}}], "output": "a"}},
        {"planner": "sample:n=2,answer.model=big"},
        {"planner": {"name": "sample", "options": {"answer": {"extra_body": {"priority": -1}}}}},
        {"planner": "sample:n=2", "merge": "judged:judge.model=big"},
        {"planner": {"name": "sample", "options": {"merge": "judged:judge.model=big"}}},
        {"planner": "route-record:path=/etc/passwd"},
        {
            "planner": {
                "name": "route",
                "options": {"planners": [{"name": "refine", "options": {"draft": {"model": "big"}}}]},
            }
        },
    ],
    ids=str,
)
async def test_a_tenant_gets_no_more_by_a_plan_or_an_option(serve, plait):
    def look() -> str:
        """Look."""
        return "seen"

    used = worker()
    async with serve(workers=[used], tenants=(tenant(),), tools=[look]) as served, httpx.AsyncClient() as http:
        said = await http.post(
            f"{served.base}/responses",
            json={"model": "small", "input": "q", "plait": plait},
            headers={"authorization": f"Bearer {KEY}"},
        )
    assert said.status_code == 403, said.text
    assert said.json()["error"]["type"] == "permission_error" and not used.seen


async def test_the_salt_and_the_priority_are_the_servers_whatever_is_asked(serve):
    used = worker()
    async with serve(workers=[used], tenants=(tenant(),)) as served, httpx.AsyncClient() as http:
        headers = {"authorization": f"Bearer {KEY}"}
        for plait in ({"plan": think(extra_body={"min_tokens": 1})}, {}):
            body = {"model": "small", "input": "q", "plait": plait}
            said = await http.post(f"{served.base}/responses", json=body, headers=headers)
            assert said.status_code == 200, said.text
        mine = served.service.tenants.users["ann"].salt
    assert [op.salt for op in used.seen] == [mine, mine] and mine


async def test_what_a_merge_asks_is_held_too(serve):
    """A merge that asks a model is held to the rights where nobody has looked at the plan before."""
    used = worker()
    async with serve(workers=[used], tenants=(tenant(planners=("sample",)),)) as served:
        user = served.service.tenants.users["ann"]
        plan = Plan.model_validate(
            {
                "steps": [
                    *({"name": name, "op": {"kind": "think", "prompt": name}} for name in "ab"),
                    {"name": "j", "needs": ["a", "b"],
                     "op": {"kind": "join", "merge": {"name": "synthesis", "options": {"answer": {"model": "big"}}}}},
                ],
                "output": "j",
            }
        )  # fmt: skip
        request = user.own(Request(text="q"))
        handle = await served.service.orchestrator.submit(request, plan=plan)
        answer = await handle
    assert answer.status == "failed" and answer.failure.code == "not-allowed"
    assert {op.model for op in used.seen} == {None}


@pytest.mark.without_keys("it is about the own machine")
async def test_on_the_own_machine_models_and_fields_are_free_and_inner_addresses_are_not(serve):
    taken = [think(model="big"), think(extra_body={"x": 1}), think(salt="s"), image("https://example.org/a.png")]
    async with serve(workers=[worker()]) as served:
        for plan in taken:
            assert await status(served, plan) != 403
        assert await status(served, image(LINK_LOCAL)) == 403


async def test_the_settings_open_hosts_and_fields(serve):
    more = {"image_hosts": ("*.example.org", "169.254.169.254"), "extra_body": ("logit_x",)}
    async with serve(workers=[worker()], tenants=(tenant(**more),)) as served:
        for plan in (image("https://a.example.org/a.png"), image(LINK_LOCAL), think(extra_body={"logit_x": 1})):
            assert await status(served, plan) != 403
        for plan in (image("https://example.com/a.png"), think(extra_body={"min_tokens": 1})):
            assert await status(served, plan) == 403


async def status(served, plan: dict[str, Any]) -> int:
    """The status of the answer to a plan; the worker here sees no images and fails then."""
    body, headers = {"model": "small", "plait": {"plan": plan}}, {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient() as http:
        return (await http.post(f"{served.base}/responses", json=body, headers=headers)).status_code


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1/", "http://127.1/", "http://0x7f.0.0.1/", "http://2130706433/", "http://017700000001/"),
        *("http://localhost/", "http://a.localhost./", "http://db/", "http://x.internal/", "http://printer.local/"),
        *("http://10.0.0.1/", "http://192.168.1.1/", "http://172.16.0.1/", "http://169.254.169.254/", "http://0/"),
        *("http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[fe80::1]/", "http://[fd00::1]/", "http://[::]/"),
        *("http://[2002:7f00:1::]/", "http://[64:ff9b::7f00:1]/", "http://[fe80::1%25eth0]/", "http://100.64.0.1/"),
        *(
            "http://a.org@127.0.0.1/",
            "http://a.org\\@127.0.0.1/",
            "http://127.0.0.1\t/",
            "http://1.2.3.4.5/",
            "http://",
        ),
        *("http://１２７.0.0.1/", "http://ⓛocalhost/", "http://[a.org/", "http://999.1.1.1/", "http://224.0.0.1/"),
    ],
)
def test_no_spelling_leads_inside(url):
    with pytest.raises(NotAllowed):
        Rights(image_hosts=("*",)).may_fetch(url, "it")


def test_public_hosts_are_named_as_they_are():
    for url in (
        "https://example.org/x",
        "http://8.8.8.8/x",
        "http://[2606:4700:4700::1111]/",
        "https://a.b.example.org:8443/",
    ):
        Rights(image_hosts=("*",)).may_fetch(url, "it")
    assert host_of("https://EXAMPLE.org.:80/x") == "example.org"


# -- the table ---------------------------------------------------------------------------------------------------------


def classes() -> list[type[BaseModel]]:
    """All that a request may be made of: `Request`, `Plan`, what they hold, and the plugins with what they hold."""
    found: list[type[BaseModel]] = []

    def add(kind: type[BaseModel]) -> None:
        if kind in found:
            return
        found.append(kind)
        for info in kind.model_fields.values():
            declared = any(isinstance(mark, Access) for mark in info.metadata)  # of all that is within
            for each in () if declared else outside.leaves(info.annotation):
                if isinstance(each, type) and issubclass(each, BaseModel):
                    add(each)

    add(Request)
    add(Plan)
    for kind, name in plugins():
        add(_PLUGINS.class_of(kind, name))
    return found


@functools.cache
def plugins() -> list[tuple[Any, str]]:
    kinds: list[Any] = [kind for kind in PACKAGES if kind in ("planner", "policy", "merge", "task", "search", "scorer")]
    names = {kind: _PLUGINS.names(kind) for kind in kinds}  # all packages that are installed are asked for them
    return [(kind, name) for kind in kinds for name, about in names[kind].items() if "cannot be loaded" not in about]


_NOT_LOOKED_INTO = ("Plugin", "Budget", "Retries", "Rights")
"""Read as plugins; limits, which are the least of theirs and the server's; the server's."""


def test_every_field_has_a_row_or_declares_its_access():
    missing = []
    for kind in classes():
        if kind.__name__ in _NOT_LOOKED_INTO:
            continue
        rows = outside.ROWS.get(kind)
        for name, info in kind.model_fields.items():
            how = rows.get(name) if rows is not None else outside.option_check(kind, info)
            if how is None:
                missing.append(f"{kind.__name__}.{name}")
    assert not missing, f"declare what it may cost or touch (`plait.core.declarations`): {', '.join(missing)}"
    assert not [
        f"{kind.__name__}.{name}"
        for kind, rows in outside.ROWS.items()
        for name in rows.keys() - kind.model_fields.keys()
    ]


def test_the_table_of_the_docs_names_what_is_not_for_who_asks(root):
    """Fields that the server or the machine sets, and what a tenant's settings say of a request."""
    page = (root / "docs" / "howto" / "serve.md").read_text()
    table = page[page.index("### What a request may ask") : page.index("A requester cannot approve its own calls")]
    theirs = {name for rows in outside.ROWS.values() for name, how in rows.items() if how in ("server", "machine")}
    own = {"name", "keys", "weight", "salted", "admin", "tokens_per_run"}  # of the tenant; how it is served
    assert not sorted(name for name in (theirs | Tenant.model_fields.keys()) - own if f"`{name}`" not in table)


def test_a_field_without_a_row_is_refused(monkeypatch):
    monkeypatch.delitem(outside.ROWS[ModelCall], "begin")
    plan = Plan.model_validate(think(chat=True, begin="x"))
    with pytest.raises(NotAllowed, match="begin"):
        outside.check(Request(text="q"), plan, Rights(), _PLUGINS)


# -- mutants -----------------------------------------------------------------------------------------------------------

_TEXTS = ("big", "victim", "/etc/hostile", LINK_LOCAL, "fixed", "look", "a", "sample", "hi {question}", "0", "x=1")
_FIELDS = ("cache_salt", "priority", "best_of", "n", "temperature", "chat_template", "tokenize", "model", "min_tokens")
_HOSTILE = [
    {"name": "fixed", "options": {"path": "/etc/hostile"}}, {"name": "judged", "options": {"judge": {"model": "big"}}},
    {"name": "layers", "options": {"models": ["big"]}}, {"name": "single", "options": {"answer": {"model": "big"}}},
    {"name": "react", "options": {}}, {"name": "route-record", "options": {"path": "/etc/hostile"}},
    "judged:judge.model=big", {"name": "code-search", "options": {"tool": "look"}},
    {"name": "tool", "options": {"tool": "look"}},
]  # fmt: skip


_RICH = think(
    chat=True,
    model="small",
    salt="",
    extra_body={"min_tokens": 1},
    chat_template_kwargs={"enable_thinking": False},
    messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}],
    sampling={"max_tokens": 5, "structured": {"kind": "regex", "spec": "a+"}},
)
_RICH["steps"] += [
    {"name": "b", "priority": 1, "op": {"kind": "think", "prompt": [{"kind": "ref", "step": "a"}]}},
    {
        "name": "j",
        "needs": ["a", "b"],
        "op": {"kind": "join", "merge": {"name": "judged", "options": {"judge": {"model": "small"}}}},
    },
]
_RICH["output"] = "j"


class Mutants:
    """Hostile values for the fields of models, by their types alone: it knows no table."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.names = plugins()

    def value(self, kind: Any, depth: int = 0) -> Any:
        dice, origin = self.dice, typing.get_origin(kind)
        if origin is typing.Annotated:
            return self.value(typing.get_args(kind)[0], depth)
        if origin is Literal:
            return dice.choice(typing.get_args(kind))
        if origin is typing.Union or isinstance(kind, types.UnionType):
            return self.value(dice.choice(typing.get_args(kind)), depth)
        if origin in (tuple, list):
            inner = [each for each in typing.get_args(kind) if each is not ...]
            return [self.value(each, depth) for each in inner]
        if origin is dict:
            return {dice.choice(_FIELDS): self.value(typing.get_args(kind)[1], depth)}
        if isinstance(kind, type) and issubclass(kind, Plugin):
            return self.plugin(depth)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return self.model(kind, depth + 1)
        if kind is bool:
            return dice.random() < 0.5
        if kind in (int, float):
            return dice.choice((-1000, -1, 0, 1, 2, 3, 9, 10**9))
        if kind is str:
            return dice.choice(_TEXTS)
        if kind is type(None):
            return None
        return {dice.choice(_FIELDS): dice.choice((*_TEXTS, -1000, 50, True))}

    def plugin(self, depth: int) -> Any:
        if depth > 2 or self.dice.random() < 0.4:
            return self.dice.choice(_HOSTILE)
        kind, name = self.dice.choice(self.names)
        fields = [each for each in _PLUGINS.class_of(kind, name).model_fields.items() if each[0] != "text"]
        some = self.dice.sample(fields, min(len(fields), self.dice.choice((0, 1, 1, 2))))
        return {"name": name, "options": {key: self.value(info.annotation, depth + 1) for key, info in some}}

    def model(self, kind: type[BaseModel], depth: int) -> dict[str, Any]:
        fields = kind.model_fields
        required = [name for name, info in fields.items() if info.is_required()]
        some = self.dice.sample(list(fields), min(len(fields), self.dice.choice((1, 1, 2)))) if depth < 7 else []
        return {name: self.value(fields[name].annotation, depth) for name in dict.fromkeys((*required, *some))}

    def leaf(self, plan: dict[str, Any]) -> dict[str, Any]:
        """A plan in which one text, number or object, wherever it stands, is a hostile one."""
        places: list[tuple[Any, Any]] = []

        def find(value: Any) -> None:
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                places.append((value, key))
                if isinstance(each, dict | list):
                    find(each)

        find(plan["steps"])
        holder, key = self.dice.choice(places)
        kinds: dict[type, Any] = {str: str, int: int, float: int, dict: dict[str, object], list: tuple[str, ...]}
        new = self.value(kinds.get(type(holder[key]), object))
        holder[key] = {**holder[key], **new} if isinstance(holder[key], dict) and isinstance(new, dict) else new
        return plan

    def case(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """A request and perhaps a plan, harmless but for what one or two fields say."""
        request: dict[str, Any] = {"text": "hi"}
        if self.dice.random() < 0.5:
            for name in self.dice.sample(list(Request.model_fields), 2):
                request[name] = self.value(Request.model_fields[name].annotation)
            return request, None
        if self.dice.random() < 0.5:
            return request, self.leaf(json.loads(json.dumps(_RICH)))
        plan = think(chat=self.dice.random() < 0.7)
        plan["steps"].append({"name": "b", "op": {"kind": "think", "prompt": "hi"}})
        plan["steps"].append({"name": "j", "needs": ["a", "b"], "op": {"kind": "join"}})
        plan["output"] = "j"
        step = self.dice.choice(plan["steps"])
        kind: type[BaseModel] = {"think": ModelCall, "join": Join}[step["op"]["kind"]]
        for _ in range(self.dice.choice((1, 2))):
            at, cls = self.dice.choice(((step["op"], kind), (step["op"], kind), (step, Step), (plan, Plan)))
            name = self.dice.choice(
                [each for each in cls.model_fields if each not in ("steps", "kind", "name", "output")]
            )
            at[name] = self.value(cls.model_fields[name].annotation)
        return request, plan


def what_passes(service: Service, fields: dict[str, Any], given: dict[str, Any] | None) -> list[str] | None:
    """What a tenant without rights got by a request, `None` if it was refused."""
    user = service.tenants.users["ann"]
    try:
        plan = None if given is None else Plan.model_validate(given)
        request = service.apply_limits(Request.of({"model": "small", **fields}), plan, user)
        brief: PlanningContext = service.orchestrator._briefs.brief(
            request, Live(lenient=True), planned=plan is not None
        )
        if plan is None:
            planner = _PLUGINS.planner(brief.request.planner)
            plan = Expander(revised).start("r", planner, brief, 0.0).plan
        else:
            plan = revised(plan, brief)
    except (PlaitError, ApiError, ValidationError):
        return None
    request = brief.request
    got = []
    got += ["tenant"] * ((request.tenant, request.fairness_group, request.salt) != ("ann", "ann", user.salt))
    got += ["priority"] * (request.priority != 0 or any(step.priority < 0 for step in plan.steps))
    got += ["fairness_weight"] * (request.fairness_weight != 1) + ["retries"] * (request.retries != Retries())
    got += ["rights"] * (request.rights != user.rights("small")) + ["model"] * (request.model not in (None, "small"))
    for step in plan.steps:
        got += ["call"] * isinstance(step.op, ToolCall)
        if isinstance(step.op, ModelCall):
            got += ["model"] * (step.op.model not in (None, "small")) + ["salt"] * (step.op.salt != user.salt)
            got += ["body"] * bool(step.op.sampling.extra_body.keys() - {"min_tokens", "ignore_eos", "bad_words"})
            got += ["template"] * bool(TEMPLATE_OWN.intersection(step.op.sampling.chat_template_kwargs))
            got += ["machine"] * bool(step.op.context or step.op.heard or any(each.said for each in step.op.messages))
            urls = [part.image_url.url for each in step.op.messages for part in each.parts if part.type == "image_url"]
            got += ["url"] * any(not url.startswith("data:image/") for url in urls)
    return got


def tried(count: int, seed: int, monkeypatch, **rights: Any) -> tuple[int, int, list[Any]]:
    """How many requests were refused, how many not, and what was got by those."""
    opened: list[str] = []
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *a, **k: opened.append(str(path)) or real(path, *a, **k))
    orchestrator = AsyncOrchestrator(config=Config(journal="off"), workers=[worker()])
    settings = Settings(
        port=0, tenants=(tenant(**rights),), planners=tuple(n for k, n in plugins() if k == "planner" and n != "fixed")
    )
    service, mutants = Service(orchestrator, settings, [worker()]), Mutants(seed)
    refused, fine, passed = 0, 0, []
    for _ in range(count):
        fields, plan = mutants.case()
        got = what_passes(service, fields, plan)
        refused, fine = refused + (got is None), fine + (got == [])
        passed += [(got, fields, plan)] * bool(got)
    assert not [each for each in opened if "hostile" in each]
    return refused, fine, passed


def test_no_mutant_gets_what_the_tenant_may_not(monkeypatch):
    refused, fine, passed = tried(800, 1, monkeypatch)
    assert not passed, passed[:3]
    assert refused > 80 and fine > 80  # both happen, or nothing is tried


def test_the_mutants_would_get_it_without_the_table(monkeypatch):
    monkeypatch.setattr(outside, "check", lambda *_: None)
    monkeypatch.setattr(Rights, "hold", lambda *_: None)
    got: set[str] = set()
    for seed in range(1, 21):  # an address of an image comes about once in a thousand
        got |= {each for some, *_ in tried(1000, seed, monkeypatch)[2] for each in some}
        if got >= {"model", "body", "template", "url"}:
            return
    raise AssertionError(got)
