"""HTTP as all endpoints need it: which requests may come from where, bodies in, events out, clients that go away.

A page that a browser shows can send requests to `localhost`, and with a name that its owner has pointed to 127.0.0.1
(DNS rebinding) it can read the answers too. It cannot choose the headers `Host` and `Origin`, nor send JSON as JSON
without asking first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from .admission import PLACE, BodyBytes, Place
from .bodies import LARGE_BODY_BYTES, Body
from .errors import ApiError, invalid, of_error
from .settings import LOOPBACK, Settings

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")
P = ParamSpec("P")

_FIELDS, _VALUES = 200, 50_000
_DISCARDED, _LINGER = 4, 2.0
"""How many times the longest body, and for how many seconds, is read of one that is refused."""
_READ = "plait.read"
"""In the scope of a request: whether its body was read, or refused."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_COUNTED = 64 << 10
"""Bytes whose values are counted at a time."""


def request_id(request: Request) -> str:
    """Return the id that the client gave its request in `x-request-id`; empty if it gave none that a log can hold."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else ""


class HostGuard:
    """Turns away requests for other hosts, of foreign pages, and of other kinds than JSON.

    With tenants every request needs a key, which no foreign page has: then only `allowed_hosts` are checked, if any.
    """

    def __init__(self, settings: Settings) -> None:
        self._on = not settings.tenants or bool(settings.allowed_hosts)
        self._any = settings.open and not settings.allowed_hosts
        self._hosts = {*LOOPBACK, settings.host.lower(), *(host.lower() for host in settings.allowed_hosts)}

    def check(self, request: Request) -> None:
        """Raise `ApiError` for a request that is turned away."""
        if not self._on:
            return
        host = request.headers.get("host", "")
        if not self._any and _name(f"//{host}") not in self._hosts:
            raise ApiError(
                421, f"this server does not answer for the host {host[:200]!r}: name it in `allowed_hosts`",
                code="host_not_allowed",
            )  # fmt: skip
        same_page(request)
        if request.method == "POST" and request.headers.get("content-type"):
            json_only(request)


def same_page(request: Request) -> None:
    """Raise `ApiError` for a request that a page of another host or port has sent."""
    if request.headers.get("sec-fetch-site") == "same-origin":  # no page can set it; a proxy may have changed the host
        return
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        raise ApiError(403, f"pages of {origin[:200]!r} may not ask this server", code="origin_not_allowed")


def json_only(request: Request) -> None:
    """Raise `ApiError` for a body that is not declared as JSON, which a foreign page cannot do without asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send JSON, with `Content-Type: application/json`", code="not_json")


def _name(address: str) -> str:
    """Return the host of an address without its port, or an empty text if it is not an address."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:  # such as an open bracket
        return ""


async def read(request: Request, model: type[B], settings: Settings, max_bytes: int | None = None) -> B:
    """Return the body of a request, of `max_bytes` at most (by default those of the settings). Raises `ApiError` for
    one that is too long, too slow, has too many values, or does not fit the model."""
    if request.headers.get("content-type"):
        json_only(request)
    place: Place | None = request.scope.get(PLACE)
    held = None if place is None else place.body
    pieces = await _pieces(request, settings, settings.body_bytes if max_bytes is None else max_bytes, held)
    size = sum(map(len, pieces))
    async with contextlib.nullcontext() if place is None else place.turn():
        body = await apart(size >= LARGE_BODY_BYTES, parse, pieces, model)
    if isinstance(body, Body):
        body.set_size(size, held)
        body.check_fields(settings.strict)
        return body.with_session(request.headers)
    return body


async def apart(long: bool, work: Callable[P, T], *args: P.args, **fields: P.kwargs) -> T:
    """Call a function and return its result. If it may take `long`, it runs on a thread and does not block others."""
    if not long:
        return work(*args, **fields)
    return await asyncio.to_thread(work, *args, **fields)


def parse(pieces: Sequence[bytes], model: type[B]) -> B:
    """Parse a body, given in pieces, and return its model. Raises `ApiError`, also for too many values."""
    _count(pieces)
    try:
        data = from_json(b"".join(pieces), allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid("the body is not a JSON object", code="invalid_json")
    if len(data) > _FIELDS:  # each that is not known would be a fault of its own
        raise invalid(f"the body has {len(data)} fields, more than this endpoint has", code="unknown_parameter")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise of_error(error) from None
    except RecursionError:
        raise invalid("the body is nested too deep", code="invalid_json") from None


def _count(pieces: Iterable[bytes]) -> None:
    """Raise `ApiError` for a body of too many values."""
    shape = BodyShape()
    for piece in pieces:
        for at in range(0, len(piece), _COUNTED):  # in small pieces: each call holds the interpreter
            shape.feed(piece[at : at + _COUNTED])
            if max(shape.values, shape.strings // 2) > _VALUES:  # an object has two strings for each value
                raise ApiError(413, f"the body has more than {_VALUES} values", code="body_too_long")


def _too_long(most: int) -> ApiError:
    message = f"the body is longer than {most} bytes"
    return ApiError(413, message, code="body_too_long", headers={"connection": "close"})


async def _pieces(request: Request, settings: Settings, most: int, held: BodyBytes | None) -> list[bytes]:
    request.scope[_READ] = True
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > most:
        await _discard(request, most)
        raise _too_long(most)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for piece in request.stream():
                pieces.append(piece)
                size += len(piece)
                if held is not None:
                    held.add(len(piece))
                if size > most:
                    await _discard(request, most)
                    raise _too_long(most)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {settings.body_seconds:g} s", code="body_too_slow",
                       headers={"connection": "close"}) from None  # fmt: skip
    return pieces


async def refuse_body(request: Request, settings: Settings) -> dict[str, str]:
    """Read on for a while if the body of a refused request is long and unread. Returns headers for the answer."""
    length, chunked = request.headers.get("content-length", "0"), "transfer-encoding" in request.headers
    if request.scope.get(_READ) or (length.isdigit() and int(length) < LARGE_BODY_BYTES and not chunked):
        return {}
    await _discard(request, settings.body_bytes)
    return {"connection": "close"}


async def _discard(request: Request, most: int) -> None:
    """Read on for a while without keeping anything: a client that is cut off while it sends does not see the answer."""
    left = _DISCARDED * most
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            async for piece in request.stream():
                left -= len(piece)
                if left < 0:
                    return


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects. Call it after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: asyncio.Future[T], give_up: Callable[[], object]) -> T | None:
    """Return the result of a future, or `None` if the client disconnects first; `give_up` then cancels the work."""
    watch = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        give_up()
        return None
    except asyncio.CancelledError:
        give_up()
        raise
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # `json.dumps` would make one for each token


def sse(data: Any, event: str = "") -> bytes:
    """Return one server-sent event."""
    text = _ENCODER.encode(data)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


PING_S = 15.0
"""Silence in seconds after which a stream sends a comment: proxies close connections that are silent for a minute."""


class EventStream:
    """An answer of server-sent events, as they come, with comments in silences. When the client goes away, `give_up` is
    called and nothing more is sent."""

    def __init__(self, events: AsyncGenerator[bytes, None], give_up: Callable[[], object]) -> None:
        self._events, self._give_up = events, give_up
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        watch, ping = (asyncio.ensure_future(task) for task in (self._watch(receive), self._ping(send)))
        whole = False
        try:
            await send(_START)
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self._sent_at = loop.time()
            ping.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            whole = True
        except OSError:  # the connection has broken
            pass
        finally:
            watch.cancel()
            ping.cancel()
            if not whole:
                self._give_up()
            await self._events.aclose()

    async def _ping(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # the connection has broken
            while True:
                await asyncio.sleep(self._sent_at + PING_S - loop.time())
                if loop.time() >= self._sent_at + PING_S:
                    self._sent_at = loop.time()
                    await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})

    async def _watch(self, receive: Receive) -> None:
        await wait_for_disconnect(receive)
        self._give_up()


_START: Any = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
}

Endpoint = Callable[[Request], Awaitable[Any]]


# No group is possessive here: before Python 3.11.5 such ones match wrongly, and may not end.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*")*[^"]*+', re.DOTALL)
"""All up to a string that does not end. What was no string to the first quote is not looked for behind each other one:
that would take the square of the time."""
_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*', re.DOTALL)


class BodyShape:
    """Counts the values of a JSON text that comes in pieces: openings and commas outside of strings.

    Reading JSON, and making a request of it, takes time by the number of its values, not by its bytes: a text of 8 MB
    is read in milliseconds, two million numbers in the same bytes are not.

    >>> shape = BodyShape()
    >>> for piece in (b'{"a": [1, 2, "x,', b'[y"]}'):
    ...     shape.feed(piece)
    >>> shape.values
    4
    """

    def __init__(self) -> None:
        self.values = self.strings = 0
        self._within = self._escaped = False
        """Whether the last piece ended within a string, and whether it ended after a backslash there."""

    def feed(self, piece: bytes) -> None:
        """Count those of one more piece."""
        if self._within:
            piece = self._after_the_string(piece)
        whole = _WHOLE.match(piece)
        end = len(piece) if whole is None else whole.end()
        bare, strings = _STRING.subn(b"", piece[:end])
        self.strings += strings
        if end < len(piece):
            self._within = True
            self._escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        self.values += bare.count(b",") + bare.count(b"[") + bare.count(b"{")

    def _after_the_string(self, piece: bytes) -> bytes:
        """Return the rest of a piece after the string that the previous piece left open."""
        start = 1 if self._escaped else 0
        rest = _REST.match(piece, start)
        end = len(piece) if rest is None else rest.end()
        if end < len(piece) and piece[end : end + 1] == b'"':
            self._within = self._escaped = False
            return piece[end + 1 :]
        self._escaped = end < len(piece)  # only a backslash at the end stops the match
        return b""
