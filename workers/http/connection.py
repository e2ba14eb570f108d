"""The connection to one OpenAI-compatible server: the openai client, and what its errors mean.

Decides what is retryable and what a person is told; keeps the key out of every message. It does not know what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import email.utils
import importlib
import json
import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from plait.core.errors import EngineError

from .wire import Endpoint, ServerError

RETRYABLE = frozenset({408, 409, 429, 500, 502, 503, 504})
DEFAULT_KEY = "OPENAI_API_KEY"
DRAIN = 1.0
"""Seconds that the end of an answer may take after its last line."""
POOL = 16
"""Connections of one pool, about."""


class Link:
    """One server, with pools of connections that are kept alive."""

    def __init__(self, base_url: str, key_variable: str | None, connections: int, timeout: float) -> None:
        """Open no connection yet. `timeout` is the longest silence, in seconds. Raises `EngineError`."""
        try:
            import openai
        except ModuleNotFoundError as error:
            raise EngineError(f"the http worker needs {error.name!r}: pip install openai") from error
        self.base_url, self.timeout = base_url, timeout
        self.key_variable = key_variable or DEFAULT_KEY
        key = os.environ.get(self.key_variable, "").strip()
        if key_variable and not key:
            raise EngineError(f"the environment variable {key_variable} is not set: put the server's key into it")
        self._key = key
        self._openai = openai
        # The HTTP library that the client is built on: which one that is depends on the client's version.
        http = self._http = importlib.import_module(
            openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0]
        )
        # For each request a pool looks at all of its connections: with a few hundred in one pool that was a third of
        # what we did for a request.
        pools = -(-connections // POOL)
        limits = http.Limits(max_connections=None, max_keepalive_connections=POOL + 4)
        secure = http.create_ssl_context()  # made once: it reads the system's certificates
        self._clients = [
            openai.AsyncOpenAI(
                api_key=key or "none",
                base_url=base_url,
                max_retries=0,  # retries are the worker's: only it knows what has been shown to a reader
                timeout=http.Timeout(timeout, connect=min(timeout, 10.0), pool=None),
                http_client=openai.DefaultAsyncHttpxClient(limits=limits, verify=secure),
            )
            for _ in range(pools)
        ]
        self._out = [0] * pools
        """Requests under way in each pool."""

    async def get(self, path: str, seconds: float | None = None) -> Any:
        """Return the JSON of a GET. Raises `ServerError`."""
        options: Any = {} if seconds is None else {"timeout": seconds}
        with self._told(), self._pool() as client:
            response = await client.get(path, cast_to=self._http.Response, options=options)
        return self._json(response.text)

    async def post(self, path: str, fields: Mapping[str, Any]) -> Any:
        """Return the JSON of a POST. Raises `ServerError`."""
        with self._told(), self._pool() as client:
            response = await client.post(path, cast_to=self._http.Response, body=dict(fields))
        return self._json(response.text)

    async def stream(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield the JSON objects of a streamed answer, or the one of a server that does not stream. Closing the
        iterator closes the connection if the answer is not over. Raises `ServerError`."""
        model = fields["model"]
        # `extra_body` goes over the wire as it is: the client would walk through every token id of a prompt.
        given: dict[str, Any] = {"model": model, "stream": True, "extra_body": dict(fields)}
        with self._told(), self._pool() as client:
            if endpoint == "completions":
                opening = client.completions.with_streaming_response.create(prompt="", **given)
            else:
                opening = client.chat.completions.with_streaming_response.create(messages=[], **given)
            async with opening as response:
                if "json" in response.headers.get("content-type", ""):
                    yield self._json((await response.read()).decode(errors="replace"))
                    return
                lines = response.iter_lines()
                async for line in lines:
                    name, _, value = line.partition(":")
                    value = value.strip()
                    if name != "data" or not value:
                        continue  # an empty line, a comment, an event's name
                    if value == "[DONE]":
                        # Only a connection whose answer was read to its end is used again.
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(DRAIN):
                                async for _ in lines:
                                    pass
                        return
                    yield self._json(value)

    @contextlib.contextmanager
    def _pool(self) -> Iterator[Any]:
        """Yield the client of the first pool that has room, so that few connections serve few requests."""
        place = next((place for place, out in enumerate(self._out) if out < POOL), 0)
        self._out[place] += 1
        try:
            yield self._clients[place]
        finally:
            self._out[place] -= 1

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.close()

    def scrub(self, text: str) -> str:
        """Return a text without the key."""
        return text.replace(self._key, "***") if self._key else text

    def _json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            head = self.scrub(text.strip()[:80])
            said = f"{self.base_url} sent what is not JSON ({head!r}): is it an OpenAI-compatible server?"
            raise ServerError(said) from None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the client raises into `ServerError`."""
        openai = self._openai
        try:
            yield
        except openai.APIStatusError as error:
            raise self._status(error) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__
            if isinstance(error, openai.APITimeoutError) and not isinstance(cause, self._http.ConnectTimeout):
                raise self._silent() from None
            detail = self.scrub(str(cause or error) or type(cause or error).__name__)
            connect = isinstance(cause, self._http.ConnectError | self._http.ConnectTimeout)
            if not connect:
                raise ServerError(f"{self.base_url} closed the connection ({detail})", retryable=True) from None
            raise ServerError(
                f"{self.base_url} cannot be reached ({detail}): start the server, or give its address as base_url",
                retryable=True,
                unreachable=True,
            ) from None
        except self._http.ReadTimeout:
            raise self._silent() from None
        except self._http.TransportError as error:
            detail = self.scrub(str(error) or type(error).__name__)
            raise ServerError(
                f"{self.base_url} closed the connection within an answer ({detail})", retryable=True
            ) from None

    def _silent(self) -> ServerError:
        return ServerError(
            f"{self.base_url} did not answer for {self.timeout:g} s: it hangs, or needs a longer `timeout`",
            retryable=True,
        )

    def _status(self, error: Any) -> ServerError:
        status: int = error.status_code
        said = self.scrub(_message(error))[:500]
        if status in (401, 403):
            missing = f"set the key in the environment variable {self.key_variable}"
            wrong = f"it does not take the key in {self.key_variable}; put the right one there"
            return ServerError(
                f"{self.base_url} refused access ({status}): {wrong if self._key else missing}", status=status
            )
        if status in RETRYABLE:
            wait = _retry_after(error.response.headers)
            return ServerError(
                f"{self.base_url} answered {status}: {said}", status=status, retryable=True, retry_after=wait
            )
        return ServerError(f"{self.base_url} rejected the request ({status}): {said}", status=status)


def _message(error: Any) -> str:
    """Return what the server itself said."""
    said: Any = error.body
    if isinstance(said, Mapping):
        inner = said.get("error")
        said = said.get("message") or (inner.get("message") if isinstance(inner, Mapping) else inner) or said
    return " ".join(str(said or error.response.text or error.message).split())


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After`, given as a number or as a date (RFC 9110, 10.2.3)."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    return max(0.0, (when - dt.datetime.now(dt.UTC)).total_seconds())
