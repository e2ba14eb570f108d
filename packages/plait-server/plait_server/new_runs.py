"""The ask box of the live page: what a new run can be, and one that starts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.core.errors import PluginError
from plait.runtime.plugins.loader import Plugins

from .bodies import PREFIX
from .chat import ChatBody
from .errors import ApiError
from .http import read
from .service import Service
from .stream_events import stream_model_calls
from .tenants import User

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
