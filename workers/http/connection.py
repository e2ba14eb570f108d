"""The connection to one OpenAI-compatible server: sends requests, limits the answers, and words the errors.

The key is kept out of every message. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import email.utils
import json
import os
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from plait.core.errors import EngineError
from plait.core.weights import weigh

from .wire import Endpoint, ServerError

RETRYABLE = frozenset({408, 409, 429, 500, 502, 503, 504})
DEFAULT_KEY = "OPENAI_API_KEY"
DRAIN = 1.0
"""Seconds that the end of an answer may take after its last line."""
LONG = 64 << 10
"""What a request weighs (`weigh`) from which on it is written on a thread."""
POOL = 4
"""Connections of one pool, about."""
REDIRECTS = 3
ERROR_BYTES = 1 << 16
"""Bytes of an error's body that are read."""
SECRET = 8
"""Characters that a key must have to be looked for in generated text: `EMPTY` and `none` are no secrets."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits on one answer. A server that exceeds one is cut off."""

    connect: float = 10.0
    """Seconds to connect."""
    whole: float = 60.0
    """Seconds for an answer that is not generated: a list of models, token ids, embeddings."""
    line: int = 4 << 20
    """Bytes of one line of a stream."""
    answer: int = 64 << 20
    """Bytes of an answer, after decompression."""


class Link:
    """One server, with pools of connections that are kept alive."""

    def __init__(
        self, base_url: str, key_variable: str | None, connections: int, limits: AnswerLimits | None = None
    ) -> None:
        """Open no connection yet. Raises `EngineError`."""
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise EngineError(f"the http worker needs {error.name!r}: pip install httpx") from error
        self.base_url: str
        self.limits: AnswerLimits
        self.base_url, self.limits = base_url, limits or AnswerLimits()
        self.owners: frozenset[str] = frozenset()
        """Who owns the server's models, once they are listed."""
        self.key_variable: str = key_variable or DEFAULT_KEY
        key = os.environ.get(self.key_variable, "").strip()
        if key_variable and not key:
            raise EngineError(f"the environment variable {key_variable} is not set: put the server's key into it")
        self._key = key
        self._http = httpx
        self._url = httpx.URL(base_url)
        # For each request a pool looks at all of its connections: with a few hundred in one pool that was a third of
        # what we did for a request.
        pools = -(-connections // POOL)
        self._clients: list[Any] = [None] * pools
        self._secure: ssl.SSLContext | None = None
        """Made once, for it reads the system's certificates."""
        self._out = [0] * pools
        """Requests under way in each pool."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not stand in what a server generates."""
        return (self._key,) if len(self._key) >= SECRET else ()

    async def get(self, path: str, seconds: float | None = None) -> Any:
        """Return the JSON of a GET, of a path under the server's address or of a whole URL. Raises `ServerError`."""
        return await self._whole("GET", path, None, seconds)

    async def post(self, path: str, fields: Mapping[str, Any]) -> Any:
        """Return the JSON of a POST. Raises `ServerError`."""
        return await self._whole("POST", path, fields, None)

    async def stream(
        self, endpoint: Endpoint, fields: Mapping[str, Any], headers: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncGenerator[Any, None]:
        """Yield the JSON objects of a streamed answer, or the single object of a server that does not stream. Closing
        the iterator closes the connection if the answer is not over. Raises `ServerError`."""
        async with self._answer("POST", endpoint, fields, headers) as response:
            if "json" in response.headers.get("content-type", ""):
                yield self._json(await self._body(response))
                return
            lines = self._lines(response)
            async for line in lines:
                if not line.startswith(b"data:"):
                    continue  # an empty line, a comment, an event's name
                value = line[5:].strip()
                if value == b"[DONE]":
                    # Only a connection whose answer was read to its end is used again.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(DRAIN):
                            async for _ in lines:
                                pass
                    return
                if value:
                    yield self._json(value)

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            if client is not None:
                await client.aclose()

    def scrub(self, text: str) -> str:
        """Return a text without the key."""
        return text.replace(self._key, "***") if self._key else text

    # --- requests ---

    async def _whole(self, method: str, path: str, fields: Mapping[str, Any] | None, seconds: float | None) -> Any:
        seconds = seconds or self.limits.whole
        try:
            async with asyncio.timeout(seconds), self._answer(method, path, fields) as response:
                return self._json(await self._body(response))
        except TimeoutError:
            raise ServerError(f"{self.base_url} did not answer for {seconds:g} s: it hangs", retryable=True) from None

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        fields: Mapping[str, Any] | None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[Any]:
        """Send a request and yield the response, whose body is still to be read."""
        url = path if "://" in path else f"{self.base_url}/{path.lstrip('/')}"
        content = None if fields is None else await _written(fields)
        headers = {**more, "accept-encoding": "identity", "authorization": f"Bearer {self._key or 'none'}"}
        if content is not None:
            headers["content-type"] = "application/json"
        with self._told(), self._pool() as client:
            for _ in range(REDIRECTS + 1):
                request = client.build_request(method, url, content=content, headers=headers)
                response = await client.send(request, stream=True)
                try:
                    if response.is_success:
                        yield response
                        return
                    if not response.has_redirect_location:
                        raise self._status(response, await self._body(response, ERROR_BYTES, cut=True))
                    url = self._redirected(response, method)
                finally:
                    await response.aclose()
        raise ServerError(f"{self.base_url} redirects in circles: check the address")

    def _redirected(self, response: Any, method: str) -> str:
        target = response.url.join(response.headers["location"])
        place = f"{target.scheme}://{target.netloc.decode()}"
        if (target.scheme, target.host, target.port) != (self._url.scheme, self._url.host, self._url.port):
            raise ServerError(
                f"{self.base_url} sends requests on to {self.scrub(place)}, and neither a prompt nor a key goes to an "
                "address that was not given: give that one as base_url if it is the right one"
            )
        if method != "GET" and response.status_code not in (307, 308):
            raise ServerError(f"{self.base_url} sends requests on to {self.scrub(str(target))}: give that address")
        return str(target)

    @contextlib.contextmanager
    def _pool(self) -> Iterator[Any]:
        """Yield the client of the first pool that has room, so that few connections serve few requests."""
        place = next((place for place, out in enumerate(self._out) if out < POOL), 0)
        client = self._clients[place]
        if client is None:
            http = self._http
            self._secure = self._secure or http.create_ssl_context()
            limits = http.Limits(max_connections=None, max_keepalive_connections=POOL + 4)
            times = http.Timeout(None, connect=self.limits.connect)  # the others are kept by whoever reads
            client = self._clients[place] = http.AsyncClient(limits=limits, verify=self._secure, timeout=times)
        self._out[place] += 1
        try:
            yield client
        finally:
            self._out[place] -= 1

    # --- what comes back ---

    async def _bytes(self, response: Any) -> AsyncGenerator[bytes, None]:
        """Yield a body, decompressed, in pieces of at most about a MiB. Raises `ServerError` when it is too long."""
        coding = response.headers.get("content-encoding", "identity").lower()
        if coding not in ("identity", "gzip", "deflate"):
            raise ServerError(f"{self.base_url} answers in the encoding {coding!r}, which was not asked for")
        unpack = None if coding == "identity" else zlib.decompressobj(47 if coding == "gzip" else 15)
        left = self.limits.answer
        async for raw in response.aiter_raw():
            while raw:
                try:
                    piece, raw = (raw, b"") if unpack is None else (unpack.decompress(raw, 1 << 20), b"")
                except zlib.error as error:
                    raise ServerError(f"{self.base_url} sent what cannot be decompressed ({error})") from None
                if unpack is not None:
                    raw = unpack.unconsumed_tail
                left -= len(piece)
                if left < 0:
                    raise self._too_long("an answer", self.limits.answer, "answer_bytes")
                yield piece

    async def _lines(self, response: Any) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a body. They end in `\\n` alone: other line ends of Unicode may stand in text."""
        begun = bytearray()
        async with contextlib.aclosing(self._bytes(response)) as pieces:
            async for piece in pieces:
                first, *rest = piece.split(b"\n")
                begun += first
                if max(len(begun), *map(len, rest), 0) > self.limits.line:
                    raise self._too_long("a line", self.limits.line, "line_bytes")
                if rest:
                    yield bytes(begun)
                    for line in rest[:-1]:
                        yield line
                    begun = bytearray(rest[-1])
        if begun:
            yield bytes(begun)

    async def _body(self, response: Any, most: int | None = None, cut: bool = False) -> bytes:
        """Return a whole body; with `cut`, its first `most` bytes."""
        body = bytearray()
        async with contextlib.aclosing(self._bytes(response)) as pieces:
            async for piece in pieces:
                body += piece
                if cut and most is not None and len(body) >= most:
                    return bytes(body[:most])
        return bytes(body)

    def _too_long(self, what: str, most: int, option: str) -> ServerError:
        return ServerError(
            f"{self.base_url} sent {what} of more than {most:,} bytes: raise `{option}` if that is right"
        )

    def _json(self, raw: bytes) -> Any:
        text = raw.decode(errors="replace")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            head = self.scrub(text[:200].strip()[:80])
            complaint = f"{self.base_url} sent what is not JSON ({head!r}): is it an OpenAI-compatible server?"
            raise ServerError(complaint) from None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the HTTP library raises into `ServerError`."""
        http = self._http
        try:
            yield
        except (http.ConnectError, http.ConnectTimeout) as error:
            detail = self.scrub(str(error) or type(error).__name__)
            raise ServerError(
                f"{self.base_url} cannot be reached ({detail}): start the server, or give its address as base_url",
                retryable=True,
                unreachable=True,
            ) from None
        except http.TransportError as error:
            detail = self.scrub(str(error) or type(error).__name__)
            complaint = f"{self.base_url} closed the connection before its answer was complete ({detail})"
            raise ServerError(complaint, retryable=True) from None

    def _status(self, response: Any, body: bytes) -> ServerError:
        status: int = response.status_code
        reason = self.scrub(_message(body) or response.reason_phrase)[:500]
        if status in (401, 403):
            missing = f"set the key in the environment variable {self.key_variable}"
            wrong = f"it does not take the key in {self.key_variable}; put the right one there"
            remedy = wrong if self._key else missing
            return ServerError(f"{self.base_url} refused access ({status}), saying {reason!r}: {remedy}", status=status)
        if status in RETRYABLE:
            wait = _retry_after(response.headers)
            return ServerError(
                f"{self.base_url} answered {status}: {reason}", status=status, retryable=True, retry_after=wait
            )
        return ServerError(f"{self.base_url} rejected the request ({status}): {reason}", status=status)


async def _written(fields: Mapping[str, Any]) -> bytes:
    """Return the body of a request; a long one is written on a thread, so that others go on."""
    if weigh(dict(fields), {}, LONG).bytes < LONG:
        return json.dumps(fields).encode()
    return await asyncio.to_thread(lambda: json.dumps(fields).encode())


def _message(body: bytes) -> str:
    """Return what the server itself said in the body of an error, on one line."""
    text = body.decode(errors="replace")
    detail: Any = text
    with contextlib.suppress(ValueError, RecursionError):
        detail = json.loads(text)
    if isinstance(detail, Mapping):
        inner = detail.get("error")
        detail = detail.get("message") or (inner.get("message") if isinstance(inner, Mapping) else inner) or detail
    return " ".join(str(detail).split())


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After`, given as a number or as a date (RFC 9110, 10.2.3)."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
        return max(0.0, seconds) if seconds == seconds else None
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    return max(0.0, (when - dt.datetime.now(dt.UTC)).total_seconds())
