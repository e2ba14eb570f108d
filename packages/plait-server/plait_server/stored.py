"""Chat completions that are kept (`store: true`): read, listed, given other notes, deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.core.values import Frozen

from .chat import ChatBody
from .errors import of_error
from .http import read
from .kept import StoredResponse
from .service import Service
from .tenants import User

__all__ = ["StoredCompletions"]

_AT_ONCE = 100
_LOOKED = 2_000
"""Maximum number of completions that one list request reads."""
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
        made = StoredResponse(
            {**whole, "metadata": body.metadata or {}}, user, None, [], body.messages, background=False, over=True
        )
        await self._kept.keep(made)
        self._kept.settle(made)

    async def list(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/chat/completions`."""
        query, notes = _asked(request)
        fitting, after, looked = list[StoredResponse](), query.after, 0
        while len(fitting) <= query.limit and looked < _LOOKED:
            page = await self._kept.page(user, after, _AT_ONCE, query.order == "desc")
            looked, after = looked + len(page), page[-1].id if page else after
            fitting += [kept for kept in page if _fits(kept.response, query.model, notes)]
            if len(page) < _AT_ONCE:
                break
        more = len(fitting) > query.limit or looked >= _LOOKED
        return _listed([kept.response for kept in fitting[: query.limit]], more)

    async def read(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/chat/completions/ID`."""
        return JSONResponse((await self._found(request, user)).response)

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
        return _listed([{"id": f"{kept.id}-{place}", **message} for place, message in enumerate(kept.given)], False)

    async def _found(self, request: Request, user: User) -> StoredResponse:
        return await self._kept.find(request.path_params["id"], user)


def _asked(request: Request) -> tuple[StoredQuery, dict[str, str]]:
    """Parse the query of a list, and the metadata that it filters by. Raises `ApiError`."""
    given = dict(request.query_params)
    notes = {note[1]: value for name, value in given.items() if (note := _NOTE.fullmatch(name))}
    try:
        return StoredQuery.model_validate(given), notes
    except ValidationError as error:
        raise of_error(error) from None


def _fits(completion: dict[str, Any], model: str | None, notes: dict[str, str]) -> bool:
    return model in (None, completion["model"]) and notes.items() <= completion["metadata"].items()


def _listed(data: Sequence[dict[str, Any]], more: bool) -> Response:
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": data, "has_more": more, **ends})
