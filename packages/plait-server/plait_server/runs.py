"""`/runs`: the runs of a tenant, now and past, for the live page and for programs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from plait.apps.control.distant import Distant
from plait.apps.trace.model import Clock, Trace
from plait.apps.trace.read import UNFINISHED, read_trace
from plait.apps.viewer.page import data_of, live_page, page_headers, runs_page
from plait.core.errors import ConfigError, PluginError, UsageError
from plait.core.interfaces import PluginRegistry as PluginsLike
from plait.runtime.control.verbs import VERBS, Control, Steerable, Verb
from plait.runtime.journal.directory import RunEntry, find, place
from plait.runtime.journal.location import Location
from plait.runtime.plugins.loader import Plugins

from .bodies import PREFIX
from .chat import ChatBody
from .errors import ApiError, not_found
from .http import EventStream, json_only, read, same_page, sse
from .listing import JournalRuns, ListQuery, Row, index_row, listed
from .service import Service
from .stream_events import stream_model_calls
from .tenants import User

COOKIE = "plait-session"
LOGIN_BYTES = 4096
"""Longest body of `/login`, which is read before any key is known: many half bodies of usual length fill the memory."""

_STEERING = {name: verb for name, verb in VERBS.items() if verb.of_run and verb.right == "steer"}
"""Verbs that a user of the server may use. Limits are the operator's: they bound what a tenant may use."""


class Order(BaseModel):
    """The body of `POST /runs/ID/VERB`: the arguments of the verb."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    step: str = ""
    question: str = ""
    value: JsonValue = None
    reason: str = ""

    def arguments(self, verb: Verb) -> dict[str, JsonValue]:
        """Return those that the verb takes."""
        return {argument.name: getattr(self, argument.name) for argument in verb.arguments}


class Feedback(BaseModel):
    """The body of `POST /runs/ID/feedback`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    right: float = Field(ge=0.0, le=1.0)
    """How right the answer was: 0 is wrong, 1 right."""


class Login(BaseModel):
    """The body of `POST /login`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)
    key: str = ""


class RunsApi:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._plugins: PluginsLike = Plugins()
        self._journals = JournalRuns()

    def _control(self, user: User, *, look: bool = True) -> Control:
        """Return the runs that a tenant sees (`look`) or steers. Who approves sees what waits for that."""
        live = self._service.live

        def sees(run: str) -> bool:
            if run not in live or user.sees(live[run].user):
                return run in live
            return look and user.tenant.approves and any(question.call for question in live[run].handle.questions)

        return Control(self._service.orchestrator, sees)

    async def index(self, request: Request, user: User) -> Response:
        """Answer `GET /`: the page."""
        return HTMLResponse(runs_page(), headers=page_headers())

    async def login(self, request: Request, user: User) -> Response:
        """Answer `POST /login`: a cookie for the browser, in the place of the key."""
        # Else a foreign page could log the browser in as another tenant, which then reads what the visitor asks.
        same_page(request)
        json_only(request)
        body = await read(request, Login, self._service.settings, LOGIN_BYTES)
        answer = JSONResponse({"ok": True})
        token = self._service.tenants.login(body.key)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)
        return answer

    async def logout(self, request: Request, user: User) -> Response:
        """Answer `POST /logout`: forget the browser's cookie."""
        same_page(request)
        self._service.tenants.logout(request.cookies.get(COOKIE, ""))
        answer = JSONResponse({"ok": True})
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    async def list(self, request: Request, user: User) -> Response:
        """Answer `GET /runs`: the running and past runs that match a `ListQuery`, and the open questions."""
        query = ListQuery.model_validate(dict(request.query_params))
        control = self._control(user)
        now = [self._live_row(row) for row in control.list()]
        there = {row["run"]: row for row in now}
        past: list[Row] = []
        places: dict[str, Location] = {}
        more = False
        if query.past:
            ended = {row["run"]: row for row in self._service.ended.rows(user) if row["run"] not in there}
            if query.scope == "all":
                entries, more = await asyncio.to_thread(self._past, user)
                places = {entry.run: entry.path for entry in entries}
                past = [index_row(entry) for entry in entries if entry.run not in there and entry.run not in ended]
            past += ended.values()
        rows, total = listed([*now, *past], query, lambda row: row["run"] in there)
        await asyncio.to_thread(self._journals.count_steps, rows, places)
        return JSONResponse(
            {
                "now": [row for row in rows if row["run"] in there],
                "past": [row for row in rows if row["run"] not in there],
                "order": [row["run"] for row in rows],
                "total": total,
                "counts": {"now": len(now), "past": len(past)},
                "more": more,
                "session": user is not self._service.tenants.everybody and COOKIE in request.cookies,
                "questions": [question for row in now for question in row["questions"]],
                "workers": control.process()["workers"],
            }
        )

    def _live_row(self, row: Row) -> Row:
        """Return the row of a running run with the columns that every run has in the list."""
        live = self._service.live[row["run"]]
        created = datetime.fromtimestamp(time.time() - row["seconds"], UTC).isoformat(timespec="milliseconds")
        return {**row, "created": created, "model": live.handle.request.model or "", "answer": "", "here": True}

    async def show(self, request: Request, user: User) -> Response:
        """Answer `GET /runs/ID`."""
        run = request.path_params["run"]
        there = await self._elsewhere(run, user)
        if there is not None:
            return JSONResponse(await asyncio.to_thread(there.show))
        return JSONResponse(self._control(user).show(self._live(self._control(user), run).run))

    async def data(self, request: Request, user: User) -> Response:
        """Answer `GET /runs/ID/data`: what the pictures are drawn of, as it is now."""
        made = await asyncio.to_thread(self._data, request.path_params["run"], user)
        return Response(made, media_type="application/json")

    async def page(self, request: Request, user: User) -> Response:
        """Answer `GET /runs/ID/page`: the pictures. The page is there at once, and asks for the data."""
        entry = await asyncio.to_thread(self._entry, request.path_params["run"], user)
        return HTMLResponse(live_page(_blank(entry), f"/runs/{entry.run}/data"), headers=page_headers())

    async def events(self, request: Request, user: User) -> EventStream:
        """Answer `GET /runs/ID/events`: the news, as server-sent events."""
        there = await self._elsewhere(request.path_params["run"], user)
        control = self._control(user)
        rows = control.watch(self._live(control, request.path_params["run"]).run) if there is None else there.events()
        first = await anext(rows)

        async def encode_events() -> AsyncGenerator[bytes, None]:
            yield sse(first)
            async for row in rows:
                yield sse(row)

        return EventStream(encode_events(), lambda: None)

    async def order(self, request: Request, user: User) -> Response:
        """Answer `POST /runs/ID/VERB`: do a verb of the table to a run."""
        run, name = request.path_params["run"], request.path_params["verb"]
        verb = _STEERING.get(name)
        if verb is None:
            raise not_found(f"there is no verb {name!r}: {', '.join(_STEERING)}")
        body = await read(request, Order, self._service.settings)
        answers = name == "answer" and user.tenant.approves
        there = await self._elsewhere(run, user, approves=answers, changes=True)
        given: dict[str, Any] = body.arguments(verb)
        if name == "answer":
            given["by"] = user.answerer
        if there is None:
            control = self._control(user, look=answers)
            handle = self._live(control, run)
            if answers and not self._service.is_visible(user, handle.run):
                self._only_approvals(handle, body.question)
            verb.do(handle, **given)
        else:
            if answers and not self._service.is_visible(user, there.run, there.entry.share):
                await asyncio.to_thread(self._only_approvals, there, body.question)
            await asyncio.to_thread(verb.do, there, **given)
        return JSONResponse({"run": run, "done": name})

    async def feedback(self, request: Request, user: User) -> Response:
        """Answer `POST /runs/ID/feedback`: say how right the answer of a run was, for a planner that learns. Only who
        sees the run may."""
        run = request.path_params["run"]
        body = await read(request, Feedback, self._service.settings)
        if not self._service.is_visible(user, run):
            raise not_found(f"there is no run {run!r}")
        request.scope["plait.run"] = run  # for the audit file
        learned = await self._service.orchestrator.lessons.feedback(run, body.right)
        return JSONResponse({"run": run, "learned": learned})

    @staticmethod
    def _live(control: Control, run: str) -> Steerable:
        """Return a running run. Raises `ApiError` (404) for a run that is not running, or belongs to another tenant."""
        try:
            return control.find(run)
        except UsageError as error:
            raise not_found(str(error)) from None

    def _only_approvals(self, run: Steerable, question: str) -> None:
        """Raise `ApiError` unless the question of another tenant's run is whether a call is allowed."""
        asked = [one for one in run.questions if question in ("", one.id)]
        if not asked or not all(one.call for one in asked):
            raise not_found(f"there is no call to allow in run {run.run!r} ({question[:200]!r})")

    # -- the journal ---------------------------------------------------------------------------------------------------

    def _place(self) -> Location:
        config = self._service.orchestrator.config
        if config.journal == "off":
            raise not_found("this server writes no journal, so there are no pictures: leave journal=off out")
        return place(config)

    def _past(self, user: User) -> tuple[list[RunEntry], bool]:
        """Return the runs of the journals that a tenant sees, and whether there are older ones."""
        try:
            entries, more = self._journals.entries(self._place())
        except ApiError:
            return [], False
        return [entry for entry in entries if self._service.is_visible(user, entry.run, entry.share)], more

    def _entry(self, run: str, user: User, *, approves: bool = False, changes: bool = False) -> RunEntry:
        if self._service.store is None and not self._service.is_visible(user, run):
            raise not_found(f"there is no run {run!r}")
        try:
            entry = find(self._place(), run, changes=changes)
        except (UsageError, ConfigError) as error:
            if not user.tenant.admin:  # other tenants must not see which runs exist
                raise not_found(f"there is no run {run!r}") from None
            raise not_found(str(error)) from None
        if not approves and not self._service.is_visible(user, entry.run, entry.share):
            raise not_found(f"there is no run {run!r}")
        return entry

    async def _elsewhere(
        self, run: str, user: User, *, approves: bool = False, changes: bool = False
    ) -> Distant | None:
        """Return a run of another process, or `None` if it is running in this process or no store exists. `changes`:
        whether the run is then changed, for which a prefix of its id has to be longer."""
        store = self._service.store
        if store is None or run in self._service.live:
            return None
        entry = await asyncio.to_thread(self._entry, run, user, approves=approves, changes=changes)
        return Distant(store, entry)

    def _data(self, run: str, user: User) -> bytes:
        entry = self._entry(run, user)
        try:
            trace = read_trace(entry.path, self._plugins, entry.run)
        except ConfigError as error:
            raise not_found(str(error)) from None
        trace.others = 0  # they are in the list
        data = data_of(trace)
        if UNFINISHED in data["notes"] and (entry.run in self._service.live or entry.status == "running"):
            data["status"] = "running"
            data["notes"].remove(UNFINISHED)
        return json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()


def _blank(entry: RunEntry) -> Trace:
    """Return the trace of a run before its journal is read."""
    clock = Clock(0.0, entry.created.timestamp(), exact=False)
    trace = Trace(run=entry.run, text=entry.text, task="", planner=entry.planner, policies=(), budget="", seed=0,
                  clocks=(clock,), seconds=0.0, status="loading", notes=["its journal is being read …"])  # fmt: skip
    return trace


_IN_SHORT = {
    "single": "Asks the model once.",
    "sample": "Asks n times at once and takes the answer that most samples agree on.",
    "adaptive": "Asks a few times, and more often where the answers differ.",
    "route": "Chooses a planner by how hard the question looks.",
    "decompose": "Splits a request with many like items into parts that are answered at once.",
    "llmcompiler": "Plans calls of tools, makes independent ones at once, and answers from the results.",
    "refine": "Writes several drafts at once, keeps what is good in them in a short text, and writes again from that.",
    "skeleton": "Writes the points of an answer first, and then all points at once.",
    "skeleton-graph": "The same, where points may need other points.",
    "think-summarize": "Thinks several times at once and writes one answer from all thoughts.",
    "threads": "Lets the model split its own reasoning into threads that run at once.",
}
"""What a planner does, for people who choose one; the docstrings of planners begin with the paper."""


class NewRun(BaseModel):
    """The body of `POST /runs`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, pattern=r"\S")
    planner: str = Field(min_length=1, max_length=1000)
    """With options and policies, as in the name of a model: `sample:n=4+consensus`."""
    model: str = Field(default="", max_length=1000)
    """Empty: any."""


class NewRuns:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._about: dict[str, dict[str, Any]] = {}

    async def choices(self, request: Request, user: User) -> Response:
        """Answer `GET /runs/new`: the planners and models that the user may ask for, and whether a request needs a
        key."""
        service, planners = self._service, user.planners
        default = service.orchestrator.config.planner.name
        models: list[str] = []
        for model in service.served_models:
            with contextlib.suppress(ApiError):  # not this tenant's
                service.strategy(f"{PREFIX}{planners[0]}@{model}" if planners else model, user)
                models.append(model)
        if not self._about:  # in a thread, as it imports every planner
            self._about = await asyncio.to_thread(_planners)
        return JSONResponse(
            {
                "planners": [self._about[name] for name in planners if name in self._about],
                "planner": default if default in planners else next(iter(planners), ""),
                "models": models,
                "keys": service.tenants.everybody is None,
                "journal": service.orchestrator.config.journal != "off",
            }
        )

    async def start(self, request: Request, user: User) -> Response:
        """Answer `POST /runs`: start a run as `POST /v1/chat/completions` does, and return its id at once."""
        asked = await read(request, NewRun, self._service.settings)
        name = f"{PREFIX}{asked.planner}" + (f"@{asked.model}" if asked.model else "")
        body = ChatBody.model_validate({"model": name, "messages": [{"role": "user", "content": asked.text}]})
        body.check()
        await self._service.count_request(user)
        made = body.request(self._service.strategy(body.model, user))
        live = await self._service.submit(made, body, user, watch=True)
        request.scope["plait.run"] = live.handle.run
        self._service.run_in_background(stream_model_calls(live.handle), "the news of a run")
        return JSONResponse({"run": live.handle.run}, 201)


def _planners() -> dict[str, dict[str, Any]]:
    """Return the name, description and option names of each planner, without those that lost every comparison."""
    plugins, made = Plugins(), dict[str, dict[str, Any]]()
    for name, about in plugins.names("planner").items():
        try:
            cls = plugins.class_of("planner", name)
        except PluginError:
            continue
        if plugins.lost_in("planner", name):  # who wants it types its name
            continue
        options = list(cls.model_fields) if issubclass(cls, BaseModel) else []
        made[name] = {"name": name, "about": _IN_SHORT.get(name, about), "options": options}
    return made
