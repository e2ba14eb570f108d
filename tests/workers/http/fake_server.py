"""An OpenAI-compatible server without a model, for tests: HTTP/1.1 on 127.0.0.1, with faults on order.

It "generates" the words of `reply`, one token each, and counts what it sees: connections, requests, disconnects.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

VLLM_FIELDS = {
    "return_token_ids", "include_stop_str_in_output", "skip_special_tokens", "top_k", "min_p", "cache_salt", "priority",
    "stop_token_ids", "return_tokens_as_token_ids",
}  # fmt: skip
FORM_FIELDS = ("structured_outputs", "regex", "grammar", "ebnf", "response_format")


@dataclass
class Fault:
    """What happens to the next request for an answer."""

    status: int = 0
    """Answered at once, if not 0."""
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "as ordered"
    after: int = 0
    """Tokens before the connection is dropped, or `send` is sent."""
    send: str = ""
    """Raw text sent in place of the rest."""


class Closed(Exception):
    """The server ends the connection."""


@dataclass(eq=False)
class FakeServer:
    reply: Callable[[str], str] = lambda prompt: "alpha beta gamma delta"
    ids: bool = True
    completions: bool = True
    chat: bool = True
    template: bool = True
    strict: bool = False
    """Refuses fields beyond OpenAI's."""
    logprobs: bool = True
    tops: bool = True
    """Says the likeliest tokens' log-probabilities too."""
    forms: tuple[str, ...] = ()
    """Fields for forms that it heeds; it ignores the others."""
    fcfs: bool = False
    """Takes no priorities."""
    usage: bool = True
    streams: bool = True
    stop_reason: bool = True
    names: bool = False
    """Responses have an id and the model's name."""
    says: dict[str, Any] = field(default_factory=dict)
    """Further pages, by path: JSON, or a text."""
    cached: int = 0
    key: str = ""
    public: bool = False
    """Lists its models without a key."""
    wild: Callable[[asyncio.StreamWriter, dict[str, Any]], Awaitable[None]] | None = None
    """Answers in its own way; the connection ends with it."""
    away: bool = False
    """Only the proxy before it answers."""
    models: list[str] | None = field(default_factory=lambda: ["fake-model"])
    owner: str = "fake"
    """Who owns its models."""
    root: str | None = None
    """Where it says that it has its models from."""
    prefix: str = "/v1"
    delay: float = 0.0
    """Seconds before each token."""
    faults: deque[Fault] = field(default_factory=deque)
    crowd: int = 1000
    """More requests at the same time than this get a 429."""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    connections: int = 0
    disconnects: int = 0
    running: int = 0
    most: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self.words: list[str] = ["</s>"]
        self.tasks: set[asyncio.Task[None]] = set()
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def asked(self) -> list[dict[str, Any]]:
        """Bodies of the requests for answers."""
        return [body for path, body in self.requests if path.endswith("/completions")]

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    async def open(self) -> None:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Stop listening, and break every connection."""
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # --- tokens: a word each, written with the space before it ---

    def encode(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[each] for each in ids)

    # --- HTTP ---

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        self.connections += 1
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, Closed, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *rest = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
        method, path, _ = line.split(" ")
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(raw) if raw else {}
        self.requests.append((path, body))
        if path.endswith("/completions"):
            self.headers.append(headers)
        if self.key and not (self.public and method == "GET") and headers.get("authorization") != f"Bearer {self.key}":
            return self._send(writer, 401, {"error": {"message": f"bad key: {headers.get('authorization')}"}})
        name = path.removeprefix(self.prefix)
        if method == "GET" and name == "/models" and self.away:
            return self._send(writer, 503, {"error": {"message": "no server behind this proxy"}})
        if method == "GET" and name == "/models" and self.models is not None:
            root = {"root": self.root} if self.root else {}
            return self._send(
                writer,
                200,
                {"object": "list", "data": [{"id": each, "owned_by": self.owner} | root for each in self.models]},
            )
        if (name == "/completions" and self.completions) or (name == "/chat/completions" and self.chat):
            return await self._answer(reader, writer, body, name == "/chat/completions")
        if method == "GET" and path in self.says:
            return self._send(writer, 200, self.says[path])
        found = self._tokens(path, body)
        return self._send(writer, 404 if found is None else 200, found or {"detail": "Not Found"})

    def _tokens(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the tokens of a text, or their text, if this server tells them."""
        if path == "/tokenize" and self.ids and "prompt" in body:
            return {"tokens": self.encode(body["prompt"])}
        return {"prompt": self.decode(body["tokens"])} if path == "/detokenize" and self.ids else None

    def _send(
        self, writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str] | None = None
    ) -> bool:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n{more}\r\n"
        writer.write(head.encode() + data)
        return True

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any], chat: bool
    ) -> bool:
        self.times.append(asyncio.get_running_loop().time())
        fault = self.faults.popleft() if self.faults else Fault()
        refusal = self._refusal(body, chat, fault)
        if refusal is not None:
            status, message = refusal
            return self._send(writer, status, {"error": {"message": message}}, fault.headers)
        self.running += 1
        self.most = max(self.most, self.running)
        # What comes from a client in the middle of an answer is its end.
        gone = asyncio.ensure_future(reader.read(1))
        work = asyncio.ensure_future(
            self._wildly(writer, body) if self.wild else self._generate(writer, body, chat, fault)
        )
        try:
            await asyncio.wait([gone, work], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.disconnects += 1
                raise Closed
            work.result()
        finally:
            self.running -= 1
            for each in (gone, work):
                each.cancel()
            await asyncio.wait([gone])
        return True

    async def _wildly(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        assert self.wild is not None
        await self.wild(writer, body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        raise Closed

    def _refusal(self, body: dict[str, Any], chat: bool, fault: Fault) -> tuple[int, str] | None:
        if fault.status:
            return fault.status, fault.message
        if self.running >= self.crowd:
            return 429, "too many requests"
        if self.models is not None and body["model"] not in self.models:
            return 404, f"The model `{body['model']}` does not exist."
        if self.strict and (extra := VLLM_FIELDS & body.keys()):
            return 400, f"Unrecognized request arguments supplied: {', '.join(sorted(extra))}"
        if self.fcfs and body.get("priority"):
            return 400, "Got priority but priority scheduling is not enabled."
        if not self.ids and not isinstance(body.get("prompt", ""), str):
            return 422, "prompt: Input should be a valid string"
        if chat and not self.template:
            return 400, "default chat template is no longer allowed, so you must provide a chat template"
        return None

    async def _generate(self, writer: asyncio.StreamWriter, body: dict[str, Any], chat: bool, fault: Fault) -> None:
        prompt = "\n\n".join(map(self._shown, body["messages"])) if chat else body["prompt"]
        prompt_ids = prompt if isinstance(prompt, list) else self.encode(prompt)
        text = self.decode(prompt) if isinstance(prompt, list) else prompt
        tokens = [f" {word}" for word in (self._formed(body) or self.reply(text)).split(" ")]
        named = {"id": f"answer-{len(prompt_ids)}", "model": body.get("model", "")} if self.names else {}
        chunks = [named | chunk for chunk in self._chunks(body, chat, prompt_ids, tokens)]
        if not body.get("stream"):
            await asyncio.sleep(self.delay * len(tokens))
            if fault.after or fault.send:
                raise Closed
            self._send(writer, 200, named | self._whole(chunks, prompt_ids, chat))
            return
        if not self.streams:
            whole = "".join(tokens)
            choice = {"message": {"content": whole}} if chat else {"text": whole}
            self._send(writer, 200, {"choices": [{"finish_reason": "stop", **choice}]})
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for place, chunk in enumerate(chunks):
            if (fault.after or fault.send) and place == fault.after:
                if not fault.send:
                    raise Closed
                self._chunk(writer, fault.send)
                break
            await asyncio.sleep(self.delay)
            self._chunk(writer, f"data: {json.dumps(chunk)}\n\n")
            await writer.drain()
        else:
            self._chunk(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    @staticmethod
    def _shown(message: dict[str, Any]) -> str:
        """A message as a model without a template of its own would read it: its calls are text."""
        calls = [each["function"] for each in message.get("tool_calls") or ()]
        written = [{"name": each["name"], "arguments": json.loads(each["arguments"])} for each in calls]
        return "".join(
            [str(message.get("content") or ""), *(f"<tool_call>{json.dumps(each)}</tool_call>" for each in written)]
        )

    def _whole(self, chunks: list[dict[str, Any]], prompt_ids: list[int], chat: bool) -> dict[str, Any]:
        """What a stream says, in one piece: an answer that was not to be streamed."""
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        last = {key: value for key, value in choices[-1].items() if key not in ("delta", "text", "logprobs")}
        text = "".join(each["delta"]["content"] if chat else each["text"] for each in choices)
        last |= {"message": {"content": text}} if chat else {"text": text}
        answer: dict[str, Any] = {"choices": [last]}
        if "token_ids" in last:
            last["token_ids"] = [one for each in choices for one in each["token_ids"]]
            (answer if chat else last)["prompt_token_ids"] = prompt_ids
        if scored := [each["logprobs"] for each in choices if "logprobs" in each]:
            last["logprobs"] = {key: [one for each in scored for one in each[key]] for key in scored[0]}
        if self.usage:
            details = {"prompt_tokens_details": {"cached_tokens": self.cached}} if self.cached else {}
            counts = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(choices)}
            answer["usage"] = counts | details
        return answer

    def _chunk(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = text.encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _chunks(self, body: dict[str, Any], chat: bool, prompt_ids: list[int], tokens: list[str]) -> Any:
        tokens, finish, stop = self._cut(body, tokens)
        for place, token in enumerate(tokens):
            last = place == len(tokens) - 1
            shown = token
            if last and stop:
                kept = len(stop) if body.get("include_stop_str_in_output") else 0
                shown = token[: token.index(stop) + kept]
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish if last else None}
            choice |= {"delta": {"content": shown}} if chat else {"text": shown}
            if self.stop_reason:
                choice["stop_reason"] = (self.encode(stop)[0] if stop == token else stop) if last and stop else None
            asked = body.get("logprobs")
            if asked is not None and asked is not False and self.logprobs:
                score, tops = -0.25 * (1 + place), self.top_logprobs(place)[: body.get("top_logprobs") or int(asked)]
                if chat:
                    said: dict[str, Any] = {"token": token, "logprob": score}
                    if self.tops:
                        said["top_logprobs"] = [{"token": f"t{n}", "logprob": top} for n, top in enumerate(tops)]
                    choice["logprobs"] = {"content": [said]}
                else:
                    scored: dict[str, Any] = {"tokens": [token], "token_logprobs": [score]}
                    if self.tops:  # the sampled one, less likely than these, comes on top
                        listed = {token: -9.0} | {f"t{n}": top for n, top in enumerate(tops)}
                        scored["top_logprobs"] = [listed]
                    choice["logprobs"] = scored
            chunk: dict[str, Any] = {"choices": [choice]}
            if self.ids and body.get("return_token_ids"):
                choice["token_ids"] = self.encode(token) or [0]
                if place == 0:
                    (chunk if chat else choice)["prompt_token_ids"] = prompt_ids
            yield chunk
        if self.usage and body.get("stream_options"):
            details = {"prompt_tokens_details": {"cached_tokens": self.cached}} if self.cached else {}
            counts = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(tokens)}
            yield {"choices": [], "usage": counts | details}

    @staticmethod
    def top_logprobs(place: int) -> list[float]:
        """Log-probabilities of the likeliest tokens of a position, falling."""
        return [-0.7 - 0.1 * (place % 3) - 0.9 * n for n in range(8)]

    def _formed(self, body: dict[str, Any]) -> str:
        """A text of the form that is asked for in a field that is heeded."""
        for name in (*FORM_FIELDS, "guided_json", "guided_regex", "guided_choice", "guided_grammar"):
            if name not in body or name not in self.forms:
                continue
            spec = body[name]
            kind, spec = next(iter(spec.items())) if name == "structured_outputs" else (name, spec)
            if kind in ("json", "guided_json", "response_format"):
                return '{"n": 1}'
            if kind in ("choice", "guided_choice"):
                return spec[0]
            return spec.split('"')[1] if "root" in spec else spec.strip("()").split(")|(")[0]
        return ""

    def _cut(self, body: dict[str, Any], tokens: list[str]) -> tuple[list[str], str, str | None]:
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        for place, token in enumerate(tokens[:limit]):
            if (self.encode(token) or [0])[0] in (body.get("stop_token_ids") or ()):
                return tokens[: place + 1], "stop", token
            for stop in body.get("stop") or ():
                if stop in token:
                    return tokens[: place + 1], "stop", stop
        if len(tokens) >= limit:
            return tokens[:limit], "length", None
        return [*tokens, ""], "stop", None  # the end token, which shows no text
