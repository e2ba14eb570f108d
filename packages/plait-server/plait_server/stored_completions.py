"""The endpoints for stored chat completions (`store: true`): list, read, change metadata, delete."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.core.values import Frozen

from .chat import ChatBody
from .errors import invalid
from .http import apart, read
from .response_store import StoredResponse, dump_json, size_of
from .service import Service
from .tenants import User

MAX_PAGE_SIZE = 100
_MAX_NOTES = 16
_NOTE = re.compile(r"metadata\[(.{1,64})\]")


class StoredQuery(Frozen):
    """The query of a list."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")
    after: str = Field(default="", max_length=100)
    limit: int = Field(default=20, ge=1, le=MAX_PAGE_SIZE)
    order: Literal["asc", "desc"] = "asc"
    model: str | None = None


class Notes(BaseModel):
    """The body of a change."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    metadata: Annotated[dict[str, str] | None, Field(max_length=16)]


class StoredCompletions:
    """The endpoints, which also store new completions."""

    def __init__(self, service: Service) -> None:
        self._service, self._store = service, service.completions

    async def add(self, whole: dict[str, Any], body: ChatBody, user: User) -> None:
        """Store a completion that has ended."""
        completion = StoredResponse({**whole, "metadata": body.metadata or {}}, user, None, [], body.messages,
                              background=False, over=True,
                              given_bytes=await apart(body.is_long, size_of, body.messages))  # fmt: skip
        await self._store.add(completion)
        self._store.complete(completion)

    async def list(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/chat/completions`."""
        query, labels = _parse_query(request)
        page = await self._store.page(user, query.after, query.limit + 1, query.order == "desc", labels)
        shown = page[: query.limit]
        ends = {"first_id": shown[0][0], "last_id": shown[-1][0]} if shown else {"first_id": None, "last_id": None}
        rest = dump_json({"has_more": len(page) > query.limit, **ends})
        completion = b'{"object":"list","data":[' + b",".join(body for _, body in shown) + b"]," + rest[1:]
        return Response(completion, media_type="application/json")

    async def read(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/chat/completions/ID`."""
        return await asyncio.to_thread(JSONResponse, (await self._find(request, user)).response)

    async def update(self, request: Request, user: User) -> Response:
        """Answer `POST /v1/chat/completions/ID`: other `metadata`."""
        body = await read(request, Notes, self._service.settings)
        stored = await self._find(request, user)
        stored.response["metadata"] = body.metadata or {}
        await self._store.write(stored)
        return JSONResponse(stored.response)

    async def delete(self, request: Request, user: User) -> Response:
        """Answer `DELETE /v1/chat/completions/ID`."""
        name = request.path_params["id"]
        await self._store.delete(name, user)
        return JSONResponse({"id": name, "object": "chat.completion.deleted", "deleted": True})

    async def messages(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/chat/completions/ID/messages`: what was asked."""
        stored = await self._find(request, user)
        return await asyncio.to_thread(list_inputs, stored)

    async def _find(self, request: Request, user: User) -> StoredResponse:
        return await self._store.find(request.path_params["id"], user)


def _parse_query(request: Request) -> tuple[StoredQuery, dict[str, str]]:
    """Parse the query of a list, and the labels that it filters by. Raises `ApiError`, and pydantic's error."""
    given = dict(request.query_params)
    labels = {f"metadata.{note[1]}": value for name, value in given.items() if (note := _NOTE.fullmatch(name))}
    if len(labels) > _MAX_NOTES:
        raise invalid(f"a list filters by at most {_MAX_NOTES} notes, got {len(labels)}", "metadata")
    query = StoredQuery.model_validate(given)
    return query, labels if query.model is None else {**labels, "model": query.model}


def list_inputs(stored: StoredResponse, newest: bool = False) -> Response:
    """Return what was asked, as a list with one page."""
    data = [{"id": f"{stored.id}-{place}", **item} for place, item in enumerate(stored.given)]
    data = data[::-1] if newest else data
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})
