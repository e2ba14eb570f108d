"""Send HTTP requests to one OpenAI-compatible server, limit its responses, and explain its errors.

The key never appears in a message, and never goes to another host: redirects elsewhere are refused.
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
from urllib.parse import unquote, urljoin, urlsplit

from pydantic_core import PydanticSerializationError, to_json

from plait.core.errors import EngineError
from plait.core.value_sizes import measure_value

from .request_body import Endpoint, ServerError

RETRYABLE_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504})
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
MAX_REDIRECTS = 3
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
DRAIN_TIMEOUT_S = 1.0
"""Limit on the end of a response after its last line."""
OFFLOAD_BODY_BYTES = 64 << 10
"""Estimated size (`weigh`) of a request body that is encoded on a thread."""
KEEPALIVE_S = 4.5
"""Idle connections are closed after this time: uvicorn closes its own after 5 s, and a request sent into a closing
connection is lost."""
MAX_HEADER_BYTES = 64 << 10
"""Longest header line of a response; aiohttp's own 8 KB is too short for some gateways' cookies and policies."""
MAX_ERROR_BYTES = 1 << 16
MIN_SECRET_CHARS = 8
"""Shorter keys are not searched for in generated text: `EMPTY` and `none` are placeholders, not secrets."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Limits on one response. A server that exceeds one is disconnected."""

    connect_s: float = 10.0
    request_s: float = 60.0
    """For a response that is not generated: a list of models, token ids, embeddings."""
    line_bytes: int = 4 << 20
    """One line of a stream."""
    response_bytes: int = 64 << 20
    """After decompression."""


class ServerConnection:
    """One server, with a pool of connections."""

    def __init__(self, base_url: str, key_variable: str | None, limits: ResponseLimits | None = None) -> None:
        """Read the key; connect with the first request. Raises `EngineError`."""
        try:
            import aiohttp
        except ModuleNotFoundError as error:
            raise EngineError(f"the http worker needs {error.name!r}: pip install aiohttp") from error
        self.base_url: str
        self.limits: ResponseLimits
        self.base_url, self.limits = base_url, limits or ResponseLimits()
        self.owners: frozenset[str] = frozenset()
        """Owners of the server's models, once they are listed."""
        self.key_variable: str = key_variable or DEFAULT_KEY_VARIABLE
        key = os.environ.get(self.key_variable, "").strip()
        if key_variable and not key:
            raise EngineError(f"the environment variable {key_variable} is not set: put the server's key into it")
        self._key = key
        self._http = aiohttp
        self._client: aiohttp.ClientSession | None = None
        parts = urlsplit(base_url)
        self._socket = unquote(parts.netloc) if parts.scheme == "http+unix" else None
        self._proxy = None if self._socket else _find_proxy(base_url)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts to redact from what the server generates."""
        return (self._key,) if len(self._key) >= MIN_SECRET_CHARS else ()

    @property
    def root_url(self) -> str:
        """The address without `/v1`: vLLM, SGLang and llama.cpp serve what is not OpenAI's API there."""
        return self.base_url.removesuffix("/v1")

    async def get(self, path: str, seconds: float | None = None) -> Any:
        """Return the JSON of a GET; `path` is relative to the address, or a whole URL. Raises `ServerError`."""
        return await self._fetch("GET", path, None, seconds)

    async def post(self, path: str, fields: Mapping[str, Any], seconds: float | None = None) -> Any:
        """Return the JSON of a POST. Raises `ServerError`."""
        return await self._fetch("POST", path, fields, seconds)

    async def stream(
        self, endpoint: Endpoint, fields: Mapping[str, Any], headers: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncGenerator[Any, None]:
        """Yield the JSON objects of a streamed response, or the single object of a server that does not stream. Closing
        the iterator cancels an unfinished response. Raises `ServerError`."""
        async with contextlib.aclosing(self.stream_batches(endpoint, fields, headers)) as batches:
            async for batch in batches:
                for chunk in batch:
                    yield chunk

    async def stream_batches(
        self, endpoint: Endpoint, fields: Mapping[str, Any], headers: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncGenerator[list[Any], None]:
        """Yield what `stream` yields, in lists of objects that arrived together."""
        async with self._open_response("POST", endpoint, fields, headers) as response:
            if "json" in response.headers.get("content-type", ""):
                yield [self._parse_json(await self._read_body(response))]
                return
            async with contextlib.aclosing(self._read_lines(response)) as arrived:
                async for lines in arrived:
                    batch: list[Any] = []
                    is_done = False
                    try:
                        is_done = self._parse_events(lines, batch)
                    except ServerError:
                        if batch:  # the objects before the broken one are valid, and their tokens are paid for
                            yield batch
                        raise
                    if batch:
                        yield batch
                    if is_done:
                        # Only a connection whose response was read to its end returns to the pool.
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                                async for _ in arrived:
                                    pass
                        return

    def _parse_events(self, lines: list[bytes], batch: list[Any]) -> bool:
        """Append the JSON objects of server-sent events to a batch; return whether the stream ends with them."""
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # an empty line, a keep-alive comment, an event's name
            value = line[5:].strip()
            if value == b"[DONE]":
                return True
            if value:
                batch.append(self._parse_json(value))
        return False

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def redact(self, text: str) -> str:
        """Return a text without the key."""
        return text.replace(self._key, "***") if self._key else text

    # --- requests ---

    async def _fetch(self, method: str, path: str, fields: Mapping[str, Any] | None, seconds: float | None) -> Any:
        seconds = seconds or self.limits.request_s
        try:
            async with asyncio.timeout(seconds), self._open_response(method, path, fields) as response:
                return self._parse_json(await self._read_body(response))
        except TimeoutError:
            raise ServerError(f"{self.base_url} did not answer for {seconds:g} s: it hangs", retryable=True) from None

    @contextlib.asynccontextmanager
    async def _open_response(
        self,
        method: str,
        path: str,
        fields: Mapping[str, Any] | None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[Any]:
        """Send a request and yield the response, its body unread."""
        url = path if "://" in path else f"{self.base_url}/{path.lstrip('/')}"
        if self._socket:
            url = urlsplit(url)._replace(scheme="http", netloc="localhost").geturl()
        content = None if fields is None else await _encode_body(fields)
        # Compression would save little of a stream of single tokens, and delay each until its block is full.
        headers = {**more, "accept-encoding": "identity", "authorization": f"Bearer {self._key or 'none'}"}
        if content is not None:
            headers["content-type"] = "application/json"
        with self._convert_errors():
            for _ in range(MAX_REDIRECTS + 1):
                response = await self._open_session().request(
                    method, url, data=content, headers=headers, allow_redirects=False, proxy=self._proxy
                )
                try:
                    if response.status < 300:
                        yield response
                        return
                    if response.status not in REDIRECT_STATUSES or "location" not in response.headers:
                        raise self._build_error(response, await self._read_error(response))
                    url = self._follow_redirect(response, method)
                finally:
                    response.close()  # has no effect on a response that was read to its end
        raise ServerError(f"{self.base_url} redirects in circles: check the address")

    def _follow_redirect(self, response: Any, method: str) -> str:
        """Return the target of a redirect on the same host. Raises `ServerError` for any other."""
        target = urljoin(str(response.url), response.headers["location"])
        if _parse_origin(target) != _parse_origin(self.base_url):
            origin = "{}://{}:{}".format(*_parse_origin(target))
            raise ServerError(
                f"{self.base_url} sends requests on to {self.redact(origin)}, and neither prompts nor keys go to an "
                "address that was not given: give that one as base_url if it is the right one"
            )
        # After 301 to 303 clients may repeat a POST as GET without its body (RFC 9110): only 307 and 308 keep it.
        if method != "GET" and response.status not in (307, 308):
            raise ServerError(f"{self.base_url} sends requests on to {self.redact(target)}: give that address")
        return target

    def _open_session(self) -> Any:
        """Return the client session. It is created with the first request, since it belongs to the running loop."""
        if self._client is None:
            http = self._http
            # No limit of its own: `ConcurrencyLimiter` sets one, and checks of the server must not queue behind it.
            pool: dict[str, Any] = {"limit": 0, "keepalive_timeout": KEEPALIVE_S}
            # How long a response may take is for its reader to limit, token by token.
            timeout = http.ClientTimeout(total=None, sock_connect=self.limits.connect_s)
            self._client = http.ClientSession(
                connector=http.UnixConnector(self._socket, **pool) if self._socket else http.TCPConnector(**pool),
                cookie_jar=http.DummyCookieJar(),
                timeout=timeout,
                auto_decompress=False,  # `_read_bytes` does it in bounded pieces
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        return self._client

    # --- responses ---

    async def _read_bytes(self, response: Any) -> AsyncGenerator[bytes, None]:
        """Yield a body, decompressed, in pieces of at most about 1 MiB. Raises `ServerError` if it is too long."""
        coding = response.headers.get("content-encoding", "identity").lower()
        if coding not in ("identity", "gzip", "deflate"):
            raise ServerError(f"{self.base_url} answers in the encoding {coding!r}, which was not asked for")
        # 47: zlib detects the header of gzip by itself.
        unpack = None if coding == "identity" else zlib.decompressobj(47 if coding == "gzip" else 15)
        left = self.limits.response_bytes
        async for raw in response.content.iter_any():
            while raw:
                # In pieces: a few KB of a decompression bomb would otherwise fill the memory before they are counted.
                try:
                    piece, raw = (raw, b"") if unpack is None else (unpack.decompress(raw, 1 << 20), b"")
                except zlib.error as error:
                    raise ServerError(f"{self.base_url} sent an invalid {coding} body ({error})") from None
                if unpack is not None:
                    raw = unpack.unconsumed_tail
                left -= len(piece)
                if left < 0:
                    raise self._build_size_error("an answer", self.limits.response_bytes, "answer_bytes")
                yield piece

    async def _read_lines(self, response: Any) -> AsyncGenerator[list[bytes], None]:
        """Yield the complete lines of a body, in lists of lines that arrived together."""
        # Split bytes at `\n` alone: a decoded text would also split at U+2028, which JSON strings may contain.
        rest = bytearray()
        async with contextlib.aclosing(self._read_bytes(response)) as pieces:
            async for piece in pieces:
                *lines, tail = piece.split(b"\n")
                if lines and rest:
                    lines[0] = bytes(rest + lines[0])
                    rest.clear()
                rest += tail
                if max(len(rest), *map(len, lines), 0) > self.limits.line_bytes:
                    raise self._build_size_error("a line", self.limits.line_bytes, "line_bytes")
                if lines:
                    yield lines
        if rest:
            yield [bytes(rest)]

    async def _read_body(self, response: Any) -> bytes:
        async with contextlib.aclosing(self._read_bytes(response)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def _read_error(self, response: Any) -> bytes:
        """Return the beginning of an error's body."""
        body = bytearray()
        async with contextlib.aclosing(self._read_bytes(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) >= MAX_ERROR_BYTES:
                    break
        return bytes(body[:MAX_ERROR_BYTES])

    def _build_size_error(self, what: str, maximum: int, option: str) -> ServerError:
        message = f"{self.base_url} sent {what} of more than {maximum:,} bytes: raise `{option}` if that is right"
        return ServerError(message)

    def _parse_json(self, raw: bytes) -> Any:
        text = raw.decode(errors="replace")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):  # a hostile server may nest a thousand lists
            head = self.redact(text[:200].strip()[:80])
            message = f"{self.base_url} sent invalid JSON ({head!r}): is it an OpenAI-compatible server?"
            raise ServerError(message) from None

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert aiohttp's errors into `ServerError`."""
        http = self._http
        try:
            yield
        except (http.ClientConnectorError, http.ConnectionTimeoutError) as error:
            detail = self.redact(str(error) or type(error).__name__)
            raise ServerError(
                f"{self.base_url} cannot be reached ({detail}): start the server, or give its address as base_url",
                retryable=True,
                unreachable=True,
            ) from None
        except http.ClientError as error:
            detail = self.redact(str(error) or type(error).__name__)
            message = f"{self.base_url} closed the connection before its answer was complete ({detail})"
            raise ServerError(message, retryable=True) from None

    def _build_error(self, response: Any, body: bytes) -> ServerError:
        """Return the error that a status means."""
        status: int = response.status
        reason = self.redact(_parse_message(body) or response.reason or "")[:500]
        if status in (401, 403):
            missing = f"set the key in the environment variable {self.key_variable}"
            wrong = f"it does not take the key in {self.key_variable}; put the right one there"
            remedy = wrong if self._key else missing
            return ServerError(f"{self.base_url} refused access ({status}), saying {reason!r}: {remedy}", status=status)
        if status in RETRYABLE_STATUSES:
            wait = _parse_retry_after(response.headers)
            return ServerError(
                f"{self.base_url} answered {status}: {reason}", status=status, retryable=True, retry_after=wait
            )
        return ServerError(f"{self.base_url} rejected the request ({status}): {reason}", status=status)


async def _encode_body(fields: Mapping[str, Any]) -> bytes:
    """Return a request's body as JSON. A long one is encoded on a thread, so that it does not block the loop."""
    if measure_value(dict(fields), {}, OFFLOAD_BODY_BYTES).bytes < OFFLOAD_BODY_BYTES:
        return _to_json(fields)
    return await asyncio.to_thread(_to_json, fields)


def _to_json(fields: Mapping[str, Any]) -> bytes:
    try:
        return to_json(fields)
    except PydanticSerializationError:  # half of a surrogate pair: JSON can escape it, UTF-8 cannot encode it
        return json.dumps(fields).encode()


def _find_proxy(url: str) -> str | None:
    """Return the proxy for an address by `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`."""
    # aiohttp's `trust_env` reads them too, but also .netrc, whose password would replace our key.
    scheme, host, _ = _parse_origin(url)
    proxies = urllib.request.getproxies()
    return None if urllib.request.proxy_bypass(host) else proxies.get(scheme) or proxies.get("all")


def _parse_origin(url: str) -> tuple[str, str, int | None]:
    """Return (scheme, host, port) of a URL; the port `None` if it is invalid."""
    parts = urlsplit(url)
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    return parts.scheme, parts.hostname or "", port


def _parse_message(body: bytes) -> str:
    """Return the server's message in the body of an error, on one line."""
    text = body.decode(errors="replace")
    detail: Any = text
    with contextlib.suppress(ValueError, RecursionError):
        detail = json.loads(text)
    if isinstance(detail, Mapping):
        inner = detail.get("error")  # an object for OpenAI and vLLM, a string for Ollama and some gateways
        detail = detail.get("message") or (inner.get("message") if isinstance(inner, Mapping) else inner) or detail
    return " ".join(str(detail).split())


def _parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header, a number or a date (RFC 9110, 10.2.3)."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
        return max(0.0, seconds) if seconds == seconds else None  # "nan" is a number to Python
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    return max(0.0, (when - dt.datetime.now(dt.UTC)).total_seconds())
