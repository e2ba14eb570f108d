"""Chat completions that are kept (`store: true`): read, listed, given other notes, deleted."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.core.values import Frozen

from .chat import ChatBody
from .errors import invalid, of_error
from .http import apart, read
from .kept import StoredResponse, dump_json, size_of
from .service import Service
from .tenants import User

__all__ = ["StoredCompletions"]

_AT_ONCE = 100
_MAX_NOTES = 16
_NOTE = re.compile(r"metadata\[(.{1,64})\]")


class StoredQuery(Frozen):
    """The query of a list."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")
    after: str = Field(default="", max_length=100)
    limit: int = Field(default=20, ge=1, le=_AT_ONCE)
    order: Literal["asc", "desc"] = "asc"
    model: str | None = None


class Notes(BaseModel):
    """The body of a change."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    metadata: Annotated[dict[str, str] | None, Field(max_length=16)]


class StoredCompletions:
    """The endpoints, and the place for what a chat has to keep."""

    def __init__(self, service: Service) -> None:
        self._service, self._kept = service, service.completions

    async def keep(self, whole: dict[str, Any], body: ChatBody, user: User) -> None:
        """Take a completion that is over."""
        made = StoredResponse({**whole, "metadata": body.metadata or {}}, user, None, [], body.messages,
                              background=False, over=True,
                              given_bytes=await apart(body.long, size_of, body.messages))  # fmt: skip
        await self._kept.keep(made)
        self._kept.settle(made)

    async def list(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/chat/completions`."""
        query, labels = _asked(request)
        page = await self._kept.page(user, query.after, query.limit + 1, query.order == "desc", labels)
        shown = page[: query.limit]
        ends = {"first_id": shown[0][0], "last_id": shown[-1][0]} if shown else {"first_id": None, "last_id": None}
        rest = dump_json({"has_more": len(page) > query.limit, **ends})
        made = b'{"object":"list","data":[' + b",".join(body for _, body in shown) + b"]," + rest[1:]
        return Response(made, media_type="application/json")

    async def read(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/chat/completions/ID`."""
        return await asyncio.to_thread(JSONResponse, (await self._found(request, user)).response)

    async def update(self, request: Request, user: User) -> Response:
        """Answer `POST /v1/chat/completions/ID`: other `metadata`."""
        body = await read(request, Notes, self._service.settings)
        kept = await self._found(request, user)
        kept.response["metadata"] = body.metadata or {}
        await self._kept.changed(kept)
        return JSONResponse(kept.response)

    async def delete(self, request: Request, user: User) -> Response:
        """Answer `DELETE /v1/chat/completions/ID`."""
        name = request.path_params["id"]
        await self._kept.forget(name, user)
        return JSONResponse({"id": name, "object": "chat.completion.deleted", "deleted": True})

    async def messages(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/chat/completions/ID/messages`: what was asked."""
        kept = await self._found(request, user)
        return await asyncio.to_thread(_messages, kept)

    async def _found(self, request: Request, user: User) -> StoredResponse:
        return await self._kept.find(request.path_params["id"], user)


def _asked(request: Request) -> tuple[StoredQuery, dict[str, str]]:
    """Parse the query of a list, and the labels that it filters by. Raises `ApiError`."""
    given = dict(request.query_params)
    labels = {f"metadata.{note[1]}": value for name, value in given.items() if (note := _NOTE.fullmatch(name))}
    if len(labels) > _MAX_NOTES:
        raise invalid(f"a list filters by at most {_MAX_NOTES} notes, got {len(labels)}", "metadata")
    try:
        query = StoredQuery.model_validate(given)
    except ValidationError as error:
        raise of_error(error) from None
    return query, labels if query.model is None else {**labels, "model": query.model}


def _messages(kept: StoredResponse) -> Response:
    data = [{"id": f"{kept.id}-{place}", **message} for place, message in enumerate(kept.given)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})
