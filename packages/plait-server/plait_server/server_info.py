"""What the server says without running anything: whether it is well, its version, its interface, the length of a
prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from plait.core.interfaces import offer
from plait.core.ops import ModelCall, Text
from plait.core.request import Request
from plait.runtime.journal.journal import version

from .http import apart, read
from .messages import CountBody
from .service import Service
from .tenants import User

_CHARACTERS = 4
"""Average characters per token, used for the estimate where no worker can count tokens."""
_REFS = "#/components/schemas/{model}"
_ANSWERS = Path(__file__).with_name("answers.json")
"""Schemas of answers, and the address of each. The bodies have theirs from their classes."""


class AboutApi:
    """The endpoints. `bodies`: what is sent to an address, for its description."""

    def __init__(self, service: Service, routes: Sequence[Route], bodies: Mapping[str, type[BaseModel]]) -> None:
        self._service, self._routes, self._bodies = service, routes, bodies

    async def health(self, _: HttpRequest, __: User) -> Response:
        """Answer `GET /health` as vLLM does: 200 and nothing, 503 before the workers run and while it stops."""
        return Response(status_code=503 if self._service.problems else 200)

    async def version(self, _: HttpRequest, __: User) -> Response:
        """Answer `GET /version`."""
        return JSONResponse({"version": version()})

    async def openapi(self, _: HttpRequest, __: User) -> Response:
        """Answer `GET /openapi.json`: each address, and the schemas of what is sent to it."""
        kinds = [(body, "validation") for body in dict.fromkeys(self._bodies.values())]
        refs, whole = models_json_schema(kinds, ref_template=_REFS)  # pyright: ignore[reportArgumentType]
        described = await asyncio.to_thread(lambda: json.loads(_ANSWERS.read_bytes()))
        paths: dict[str, dict[str, Any]] = {}
        for route in self._routes:
            path = route.path.replace(":path}", "}")
            for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
                operation: dict[str, Any] = {"responses": {"default": _described("an error", "Error")}}
                if (name := described["answers"].get(f"{method} {path}")) is not None:
                    operation["responses"]["200"] = _described("the answer", name)
                names = [name.partition("}")[0] for name in path.split("{")[1:]]
                if names:
                    operation["parameters"] = [
                        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
                    ]
                if method == "POST" and (body := self._bodies.get(route.path)) is not None:
                    schema = refs[body, "validation"]
                    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
                paths.setdefault(path, {})[method.lower()] = operation
        info = {"title": "plait", "version": version()}
        components = {"schemas": {**whole.get("$defs", {}), **described["schemas"]}}
        return JSONResponse({"openapi": "3.1.0", "info": info, "paths": paths, "components": components})

    async def count_message(self, request: HttpRequest, user: User) -> Response:
        """Answer `POST /v1/messages/count_tokens`."""
        service = self._service
        body = await read(request, CountBody, service.settings)
        body.check()
        asked = await apart(body.is_long, body.request, service.strategy(body.model, user))
        return JSONResponse(await input_tokens(service, asked, user))


def _described(what: str, name: str) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": {"$ref": _REFS.format(model=name)}}}}


async def input_tokens(service: Service, request: Request, user: User) -> dict[str, Any]:
    """Return the number of tokens of a conversation, functions included, as a worker counts it. `estimated` is true
    if no worker could count it. Raises `ApiError` for a model that the tenant may not use."""
    request = service.apply_limits(request, None, user)
    prompt = () if request.asked else (Text(text=request.text),)
    op = ModelCall(prompt=prompt, messages=request.messages, tools=request.tools, chat=True, model=request.model,
               begin=request.begin)  # fmt: skip
    for worker in service.workers:
        there = offer(worker)
        if request.model in (None, *there.models) and there.counts_tokens:
            count = await worker.count_tokens(op)
            if count is not None:
                return {"input_tokens": count}
    texts = [part.text for part in op.parts if isinstance(part, Text)]
    texts += [tool.model_dump_json() for tool in op.tools]
    return {"input_tokens": -(-sum(map(len, texts)) // _CHARACTERS), "estimated": True}
