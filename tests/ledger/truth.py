"""A server that knows the truth: what it read and generated, told or not, for each request that it took."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.workers.http.fake_server import Closed, FakeServer, Fault

Form = Literal["ids", "text", "chat"]
_TOKEN = re.compile(r"\s*[^\s<>]+>?|\s*[<>]|\s+")
"""So that no token holds more than the end of a tag."""


@dataclass
class Truth:
    """Tokens that a server really read and generated."""

    prompt: int = 0
    completion: int = 0
    requests: int = 0


@dataclass(eq=False)
class TruthServer(FakeServer):
    """Answers with a function of prompt and seed, a token a word with the space before it. Of each request that it
    took it counts the prompt, and each token until it is through or sees that nobody listens."""

    says: Any = field(default_factory=dict[str, Any])
    replies: Callable[[str, int], str] = lambda prompt, seed: "alpha beta gamma delta"
    failing: random.Random | None = None
    """Draws which requests fail: a fifth of them, some before their first token and some within."""
    truth: Truth = field(default_factory=Truth)

    @classmethod
    def of(cls, form: Form, told: bool, **fields: Any) -> TruthServer:
        """Return a server that takes token ids, texts or chats alone, and says its usage or not."""
        return cls(
            ids=form == "ids", completions=form != "chat", strict=form != "ids", stop_reason=form == "ids", usage=told,
            **fields,
        )  # fmt: skip

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, a new one for each new token."""
        ids: list[int] = []
        for token in _TOKEN.findall(text):
            if token not in self.words:
                self.words.append(token)
            ids.append(self.words.index(token))
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        return "".join("" if each == 0 else self.words[each] for each in ids)

    def _refusal(self, body: dict[str, Any], chat: bool, fault: Fault) -> tuple[int, str] | None:
        if self.failing is not None and not fault.status and self.failing.random() < 0.2:
            fault.status, fault.after = self.failing.choice([(500, 0), (503, 0), (0, 1), (0, 4)])
        return super()._refusal(body, chat, fault)

    async def _generate(self, writer: asyncio.StreamWriter, body: dict[str, Any], chat: bool, fault: Fault) -> None:
        prompt = "\n\n".join(map(self._shown, body["messages"])) if chat else body["prompt"]
        ids = prompt if isinstance(prompt, list) else self.encode(prompt)
        text = self.decode(ids) if isinstance(prompt, list) else prompt
        self.truth.requests += 1
        self.truth.prompt += len(ids)
        chunks: list[dict[str, Any]] = []
        stream = bool(body.get("stream"))
        if stream:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for place, chunk in enumerate(self._pieces(body, chat, ids, text)):
            if fault.after and place == fault.after:
                raise Closed
            await asyncio.sleep(self.delay)
            self.truth.completion += bool(chunk["choices"])
            chunks.append(chunk)
            if stream:
                self._chunk(writer, f"data: {json.dumps(chunk)}\n\n")
                await writer.drain()
        if not stream:
            self._send(writer, 200, self._whole(chunks, ids, chat))
            return
        self._chunk(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _pieces(self, body: dict[str, Any], chat: bool, ids: list[int], text: str) -> Iterator[dict[str, Any]]:
        said = self._formed(body) or self.replies(text, int(body.get("seed") or 0))
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        tokens, finish, stop = ended(said, limit, body.get("stop") or ())
        shown, before = len("".join(tokens)) if stop is None else "".join(tokens).index(stop), 0
        if stop is not None and body.get("include_stop_str_in_output"):
            shown += len(stop)
        for place, token in enumerate(tokens):
            last, visible = place == len(tokens) - 1, token[: max(0, shown - before)]
            before += len(token)
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish if last else None}
            choice |= {"delta": {"content": visible}} if chat else {"text": visible}
            if self.stop_reason:
                choice["stop_reason"] = stop if last else None
            if body.get("logprobs") not in (None, False):
                choice["logprobs"] = self._scored(token, place, body, chat)
            chunk: dict[str, Any] = {"choices": [choice]}
            if self.ids and body.get("return_token_ids"):
                choice["token_ids"] = self.encode(token) or [0]
                if place == 0:
                    (chunk if chat else choice)["prompt_token_ids"] = ids
            yield chunk
        if self.usage and body.get("stream_options"):
            yield {"choices": [], "usage": {"prompt_tokens": len(ids), "completion_tokens": len(tokens)}}

    def _scored(self, token: str, place: int, body: dict[str, Any], chat: bool) -> dict[str, Any]:
        most = int(body.get("top_logprobs") or body["logprobs"] or 1)
        names = ["yes", "no", "A", "B", "C", "D", *(str(n) for n in range(11))]
        tops = dict(zip([token, *names], self.top_logprobs(place) * 3, strict=False))
        tops = dict(list(tops.items())[: max(1, most)])
        if not chat:
            return {"tokens": [token], "token_logprobs": [-0.25 * (1 + place % 4)], "top_logprobs": [tops]}
        listed = [{"token": each, "logprob": score} for each, score in tops.items()]
        return {"content": [{"token": token, "logprob": -0.25 * (1 + place % 4), "top_logprobs": listed}]}


def ended(reply: str, limit: int, stops: Sequence[str]) -> tuple[list[str], str, str | None]:
    """Return the tokens that are generated of a reply, how they end, and by which stop text. The last of an end by
    itself shows no text."""
    tokens = _TOKEN.findall(reply)
    text = ""
    for place, token in enumerate(tokens[:limit]):
        text += token
        if stop := next((each for each in stops if each in text), None):
            return tokens[: place + 1], "stop", stop
    return (tokens[:limit], "length", None) if len(tokens) >= limit else ([*tokens, ""], "stop", None)
