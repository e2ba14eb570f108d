"""Tools of a Model Context Protocol server. The worker lists them once, and connects again if the session ends.

Little is taken on trust from a server. The names of its tools are checked before a prompt repeats them, and a call is
made twice only if the user trusts the server's word that it may be.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from plait.core import json_schema
from plait.core.errors import ConfigError, ToolError, WorkerError
from plait.core.tools.tool import Tool, ToolSpec, is_name

log = logging.getLogger("plait.workers.tools")

SECONDS = 30.0
"""To connect and list."""
CALL_SECONDS = 300.0
"""For a call, by default: a server that never answers does not hold its run."""
CLOSE_SECONDS = 15.0
"""For a server to end. The package `mcp` takes up to 6.5 s to flush, wait, terminate, kill and reap its process; cut
short, it leaves the process and its pipes behind."""
CONNECTION_CLOSED = -32000  # as the package `mcp` says it
PAGES, TOOLS = 100, 1000
"""Most pages and tools of a server's list."""
TRUSTED = "trusted:"


class RemoteTool(Tool[..., Any]):
    """A tool that a server runs. Its arguments are checked against the server's JSON schema before they are sent."""

    def __init__(self, server: McpServer, spec: ToolSpec, remote_name: str, timeout: float | None) -> None:
        async def call(**arguments: JsonValue) -> JsonValue:
            return await server.call(remote_name, arguments)

        self.fn = call
        self.name, self.description, self.parameters = spec.name, spec.description, spec.parameters
        self.side_effects, self.idempotent, self.timeout = spec.side_effects, spec.idempotent, timeout
        self.is_async, self.context, self.approve = True, None, False
        self.spec = spec

    def bind(self, args: Mapping[str, JsonValue]) -> dict[str, object]:
        """Return the arguments as they are. Raises `ToolError` for those that the schema does not allow."""
        try:
            faults = sorted(
                json_schema.faults(self.parameters, dict(args), 100), key=lambda fault: [*map(str, fault.path)]
            )
        except ValueError as error:
            raise ToolError(f"tool {self.name!r}: the server's schema cannot be used: {error}") from None
        if faults:
            problems = "; ".join(
                (f"argument {'.'.join(map(str, fault.path))!r}: " if fault.path else "") + fault.message
                for fault in faults[:3]
            )
            takes = ", ".join(_properties(self.parameters)) or "no arguments"
            raise ToolError(f"tool {self.name!r}: {problems} (it takes {takes})")
        return dict(args)


class McpServer:
    """A connection to one server.

    `server`: a URL (streamable HTTP), a command line whose process speaks the protocol on its standard streams, or a
    server object of the package `mcp`, which is then called in this process. `prefix` is put before its tools' names.
    `timeout`: seconds that a call may take; `None` for no limit. `trusted` (or `trusted:` before the URL or command):
    trust the server's declarations that a tool only reads or may be called twice. Without it no call is made twice.
    """

    def __init__(
        self, server: str | Any, *, prefix: str = "", timeout: float | None = CALL_SECONDS, trusted: bool = False
    ) -> None:
        if isinstance(server, str) and server.startswith(TRUSTED):
            server, trusted = server.removeprefix(TRUSTED), True
        self._trusted = trusted
        self.label = server if isinstance(server, str) else getattr(server, "name", type(server).__name__)
        self._server, self._prefix, self._timeout = server, prefix, timeout
        self._client: Any = None
        self._connecting: asyncio.Lock | None = None  # held while a connection is made; `None` if it is closed
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def open(self) -> list[RemoteTool]:
        """Connect and return the server's tools. Raises `WorkerError` if it does not answer, `ConfigError` without the
        package `mcp`."""
        self._connecting = asyncio.Lock()
        return await self._connect()

    async def _connect(self) -> list[RemoteTool]:
        await self._disconnect()
        self._stop = asyncio.Event()
        ready: asyncio.Future[list[RemoteTool]] = asyncio.get_running_loop().create_future()
        # The client's cancel scopes have to be left by the task that entered them, so it gets a task of its own.
        self._task = asyncio.create_task(self._hold(ready))
        try:
            return await asyncio.wait_for(asyncio.shield(ready), SECONDS)
        except TimeoutError:
            await self._disconnect()
            raise WorkerError(
                f"the MCP server {self.label!r} gave no answer in {SECONDS:g} s: check that it runs and speaks MCP"
            ) from None

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        """Call a tool and return its value: its structured content, else its text (read as JSON if it is an object or
        a list), else its content blocks. Raises `ToolError` with what the server says if the tool failed."""
        client = self._client or await self._reconnect()
        try:
            result = await client.call_tool(name, dict(arguments))
        except Exception as error:
            if self._client is client and getattr(error, "code", None) == CONNECTION_CLOSED:
                self._client = None  # the next call connects again; this one may have had its effect
            raise ToolError(f"the MCP server {self.label!r}: {type(error).__name__}: {error}") from error
        blocks = [block.model_dump(mode="json", exclude_none=True) for block in result.content]
        texts = [block["text"] for block in blocks if block.get("type") == "text"]
        if result.is_error:
            raise ToolError("\n".join(texts) or f"the MCP server {self.label!r} says the call failed, and not why")
        if result.structured_content is not None:
            return _unwrapped(result.structured_content)
        return _value("\n".join(texts)) if len(texts) == len(blocks) else blocks

    async def _reconnect(self) -> Any:
        """Connect to a server that has closed the connection, such as one that was restarted. Returns the client."""
        if self._connecting is None:
            raise ToolError(f"the MCP server {self.label!r} is not connected")
        async with self._connecting:
            if self._client is None:
                try:
                    await self._connect()
                except WorkerError as error:
                    raise ToolError(str(error)) from error
            return self._client

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        self._connecting = None
        await self._disconnect()

    async def _disconnect(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._stop.set()
            _, running = await asyncio.wait([task], timeout=CLOSE_SECONDS)
            if running:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _hold(self, ready: asyncio.Future[list[RemoteTool]]) -> None:
        try:
            async with _client(self._server) as client:
                tools = [self._tool(entry) for entry in await self._listed(client) if self._named(entry.name)]
                self._client = client
                ready.set_result(tools)
                await self._stop.wait()
        except Exception as error:
            if ready.done():
                return
            if isinstance(error, ConfigError | WorkerError):
                ready.set_exception(error)
                return
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            reason = str(cause) or type(cause).__name__
            ready.set_exception(WorkerError(f"the MCP server {self.label!r} cannot be used: {reason}"))
        finally:
            self._client = None

    def _named(self, name: str) -> bool:
        """Whether a tool's name can go into a prompt: it is part of the text that a model reads."""
        if is_name(self._prefix + name):
            return True
        log.warning("the MCP server %r has a tool named %r, which is no name: it is left out", self.label, name[:80])
        return False

    async def _listed(self, client: Any) -> list[Any]:
        """Return all tools of the server. Raises `WorkerError` for a list without end."""
        tools: list[Any] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            last, cursor = cursor, getattr(page, "next_cursor", None)
            if not cursor:
                return tools
            if cursor == last or len(tools) > TOOLS:
                break
        raise WorkerError(
            f"the MCP server {self.label!r} lists tools without end ({len(tools)} so far, {TOOLS} at most): use "
            "another, or one that lists fewer"
        )

    def _tool(self, described: Any) -> RemoteTool:
        hints = described.annotations
        spec = ToolSpec(
            name=self._prefix + described.name,
            description=described.description or "",
            parameters=described.input_schema,
            returns=_content(getattr(described, "output_schema", None)),
            # The protocol's own defaults: a tool that does not say that it only reads may change the world.
            side_effects=not (self._trusted and hints is not None and hints.read_only_hint),
            idempotent=bool(self._trusted and hints is not None and hints.idempotent_hint),
        )
        return RemoteTool(self, spec, described.name, self._timeout)


def _content(schema: object) -> dict[str, JsonValue]:
    """Return the schema of a tool's value, as `_unwrapped` gives it."""
    match schema:
        case {"properties": {"result": dict() as inner} as fields, **rest} if len(fields) == 1:
            return {**inner, "$defs": rest["$defs"]} if "$defs" in rest else inner
        case dict():
            return schema
        case _:
            return {}


def _unwrapped(content: dict[str, JsonValue]) -> JsonValue:
    """Servers that were written with the package `mcp` wrap a value that is no object as `{"result": …}`."""
    return content["result"] if set(content) == {"result"} else content


def _value(text: str) -> JsonValue:
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _properties(schema: Mapping[str, JsonValue]) -> list[str]:
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def _client(server: str | Any) -> Any:
    try:
        from mcp import Client, StdioServerParameters
    except ImportError:
        raise ConfigError("MCP servers need the package mcp: pip install 'plait[mcp]'") from None
    if not isinstance(server, str):
        return Client(server)
    if server.startswith(("http://", "https://")):
        return Client(server)
    words = shlex.split(server)
    if not words:
        raise ConfigError("an MCP server is a URL or a command line, not an empty text")
    return Client(StdioServerParameters(command=words[0], args=words[1:]))
