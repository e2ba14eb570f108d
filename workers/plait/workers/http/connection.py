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
import urllib.request
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urljoin, urlsplit

from pydantic_core import PydanticSerializationError, to_json

from plait.core.errors import EngineError
from plait.core.weights import weigh

from .wire import Endpoint, ServerError

RETRYABLE = frozenset({408, 409, 429, 500, 502, 503, 504})
DEFAULT_KEY = "OPENAI_API_KEY"
DRAIN = 1.0
"""Seconds that the end of an answer may take after its last line."""
LONG = 64 << 10
"""What a request weighs (`weigh`) from which on it is written on a thread."""
KEPT = 4.5
"""Seconds for which an idle connection is kept: servers close theirs after 5."""
HEAD = 64 << 10
"""Most bytes of a line in the head of an answer."""
MOVED = (301, 302, 303, 307, 308)
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
            import aiohttp
        except ModuleNotFoundError as error:
            raise EngineError(f"the http worker needs {error.name!r}: pip install aiohttp") from error
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
        self._http = aiohttp
        self._client: aiohttp.ClientSession | None = None
        self._proxy = _proxy(base_url)

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
        async with contextlib.aclosing(self.batches(endpoint, fields, headers)) as batches:
            async for batch in batches:
                for chunk in batch:
                    yield chunk

    async def batches(
        self, endpoint: Endpoint, fields: Mapping[str, Any], headers: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncGenerator[list[Any], None]:
        """Yield what `stream` yields, in lists of what has arrived together."""
        async with self._answer("POST", endpoint, fields, headers) as response:
            if "json" in response.headers.get("content-type", ""):
                yield [self._json(await self._body(response))]
                return
            async with contextlib.aclosing(self._lines(response)) as arrived:
                async for lines in arrived:
                    batch: list[Any] = []
                    done = False
                    try:
                        done = self._read_lines(lines, batch)
                    except ServerError:
                        if batch:  # what came before is good
                            yield batch
                        raise
                    if batch:
                        yield batch
                    if done:
                        # Only a connection whose answer was read to its end is used again.
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(DRAIN):
                                async for _ in arrived:
                                    pass
                        return

    def _read_lines(self, lines: list[bytes], batch: list[Any]) -> bool:
        """Add the JSON objects of some lines to a batch; return whether the last of all is among them."""
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # an empty line, a comment, an event's name
            value = line[5:].strip()
            if value == b"[DONE]":
                return True
            if value:
                batch.append(self._json(value))
        return False

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

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
        with self._told():
            for _ in range(REDIRECTS + 1):
                response = await self._session().request(
                    method, url, data=content, headers=headers, allow_redirects=False, proxy=self._proxy
                )
                try:
                    if response.status < 300:
                        yield response
                        return
                    if response.status not in MOVED or "location" not in response.headers:
                        raise self._status(response, await self._body(response, ERROR_BYTES, cut=True))
                    url = self._redirected(response, method)
                finally:
                    response.close()  # of an answer that was read to its end the connection is kept
        raise ServerError(f"{self.base_url} redirects in circles: check the address")

    def _redirected(self, response: Any, method: str) -> str:
        target = urljoin(str(response.url), response.headers["location"])
        if _place(target) != _place(self.base_url):
            place = "{}://{}:{}".format(*_place(target))
            raise ServerError(
                f"{self.base_url} sends requests on to {self.scrub(place)}, and neither a prompt nor a key goes to an "
                "address that was not given: give that one as base_url if it is the right one"
            )
        if method != "GET" and response.status not in (307, 308):
            raise ServerError(f"{self.base_url} sends requests on to {self.scrub(target)}: give that address")
        return target

    def _session(self) -> Any:
        """Return the client, made with the first request: it belongs to the loop that runs then."""
        if self._client is None:
            http = self._http
            times = http.ClientTimeout(total=None, sock_connect=self.limits.connect)  # others are kept by who reads
            self._client = http.ClientSession(
                connector=http.TCPConnector(limit=0, keepalive_timeout=KEPT),
                cookie_jar=http.DummyCookieJar(),
                timeout=times,
                auto_decompress=False,
                max_line_size=HEAD,
                max_field_size=HEAD,
            )
        return self._client

    # --- what comes back ---

    async def _bytes(self, response: Any) -> AsyncGenerator[bytes, None]:
        """Yield a body, decompressed, in pieces of at most about a MiB. Raises `ServerError` when it is too long."""
        coding = response.headers.get("content-encoding", "identity").lower()
        if coding not in ("identity", "gzip", "deflate"):
            raise ServerError(f"{self.base_url} answers in the encoding {coding!r}, which was not asked for")
        unpack = None if coding == "identity" else zlib.decompressobj(47 if coding == "gzip" else 15)
        left = self.limits.answer
        async for raw in response.content.iter_any():
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

    async def _lines(self, response: Any) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of a body that are whole by now. They end in `\\n` alone: other line ends of Unicode may
        stand in text."""
        begun = bytearray()
        async with contextlib.aclosing(self._bytes(response)) as pieces:
            async for piece in pieces:
                *lines, rest = piece.split(b"\n")
                if lines and begun:
                    lines[0] = bytes(begun + lines[0])
                    begun.clear()
                begun += rest
                if max(len(begun), *map(len, lines), 0) > self.limits.line:
                    raise self._too_long("a line", self.limits.line, "line_bytes")
                if lines:
                    yield lines
        if begun:
            yield [bytes(begun)]

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
        except (http.ClientConnectorError, http.ConnectionTimeoutError) as error:
            detail = self.scrub(str(error) or type(error).__name__)
            raise ServerError(
                f"{self.base_url} cannot be reached ({detail}): start the server, or give its address as base_url",
                retryable=True,
                unreachable=True,
            ) from None
        except http.ClientError as error:
            detail = self.scrub(str(error) or type(error).__name__)
            complaint = f"{self.base_url} closed the connection before its answer was complete ({detail})"
            raise ServerError(complaint, retryable=True) from None

    def _status(self, response: Any, body: bytes) -> ServerError:
        status: int = response.status
        reason = self.scrub(_message(body) or response.reason or "")[:500]
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
        return _as_json(fields)
    return await asyncio.to_thread(_as_json, fields)


def _as_json(fields: Mapping[str, Any]) -> bytes:
    try:
        return to_json(fields)
    except PydanticSerializationError:  # half of a surrogate pair, which JSON's escapes can say and UTF-8 cannot
        return json.dumps(fields).encode()


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for an address (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`)."""
    scheme, host, _ = _place(url)
    named = urllib.request.getproxies()
    return None if urllib.request.proxy_bypass(host) else named.get(scheme) or named.get("all")


def _place(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address; no port for one that is none."""
    parts = urlsplit(url)
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    return parts.scheme, parts.hostname or "", port


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
