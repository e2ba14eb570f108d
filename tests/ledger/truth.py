"""A server that knows the truth: what it read and generated, told or not, for each request that it took."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from tests.workers.http.fake_server import Closed, FakeServer, Fault

Form = Literal["ids", "text", "chat"]
_TOKEN = re.compile(r"\s*[^\s<>]+>?|\s*[<>]|\s+")
"""So that no token holds more than the end of a tag."""


@dataclass
class Truth:
    """Tokens that a server really read and generated."""

    prompt: int = 0
    cached: int = 0
    """Of the prompts: read from its prefix cache."""
    completion: int = 0
    thoughts: int = 0
    """Of the generated ones."""
    requests: int = 0

    def __add__(self, other: Truth) -> Truth:
        return Truth(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(eq=False)
class TruthServer(FakeServer):
    """Answers with a function of prompt and seed, a token a word with the space before it. Of each request that it
    took it counts the prompt, and each token until it is through or sees that nobody listens."""

    says: Any = field(default_factory=dict[str, Any])
    replies: Callable[[str, int], str] = lambda prompt, seed: "alpha beta gamma delta"
    failing: random.Random | None = None
    """Draws which requests fail: a fifth of them, some before their first token and some within."""
    thinks: bool = False
    """Some answers begin with thoughts, which stand apart from the text."""
    truth: Truth = field(default_factory=Truth)
    seen: list[list[int]] = field(default_factory=list[list[int]])
    """Prompts that were read: what its prefix cache holds."""

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
        cached = self._cached(ids)
        self.truth.cached += cached
        chunks: list[dict[str, Any]] = []
        stream = bool(body.get("stream"))
        if stream:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for place, chunk in enumerate(self._pieces(body, chat, ids, text, cached)):
            if fault.after and place == fault.after:
                raise Closed
            await asyncio.sleep(self.delay)
            self.truth.completion += bool(chunk["choices"])
            self.truth.thoughts += any("reasoning_content" in each.get("delta", ()) for each in chunk["choices"])
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

    def _cached(self, ids: list[int]) -> int:
        """Return how many tokens at the beginning of a prompt were read before, in blocks of four, never all."""
        found = 0
        for before in self.seen:
            same = next(
                (at for at, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b), min(len(ids), len(before))
            )
            found = max(found, min(same, len(ids) - 1) // 4 * 4)
        self.seen.append(ids)
        return found

    def _pieces(
        self, body: dict[str, Any], chat: bool, ids: list[int], text: str, cached: int
    ) -> Iterator[dict[str, Any]]:
        seed = int(body.get("seed") or 0)
        said = self._formed(body) or self.replies(text, seed)
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        thoughts = _TOKEN.findall(f"{said} hm")[:3] if chat and self.thinks and (seed + len(ids)) % 3 == 0 else []
        thoughts = thoughts[: max(0, limit - 1)]
        limit -= len(thoughts)
        for token in thoughts:
            choice: dict[str, Any] = {"index": 0, "finish_reason": None, "delta": {"reasoning_content": token}}
            if self.ids and body.get("return_token_ids"):
                choice["token_ids"] = self.encode(token)
            yield {"choices": [choice]}
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
        if self.usage and (body.get("stream_options") or not body.get("stream")):
            yield {"choices": [], "usage": _usage(len(ids), cached, len(tokens) + len(thoughts), len(thoughts))}

    def _whole(self, chunks: list[dict[str, Any]], prompt_ids: list[int], chat: bool) -> dict[str, Any]:
        """What a stream says, in one piece."""
        told = [each["usage"] for each in chunks if "usage" in each]
        thoughts = [
            each["choices"][0]["delta"]["reasoning_content"] for each in chunks
            if each["choices"] and "reasoning_content" in each["choices"][0].get("delta", ())
        ]  # fmt: skip
        spoken = [each for each in chunks if each["choices"]]
        answer = super()._whole(spoken[len(thoughts) :], prompt_ids, chat)
        if thoughts:
            answer["choices"][0]["message"]["reasoning_content"] = "".join(thoughts)
        if "token_ids" in answer["choices"][0]:
            answer["choices"][0]["token_ids"] = [one for each in spoken for one in each["choices"][0]["token_ids"]]
        if told:
            answer["usage"] = told[0]
        return answer

    def _scored(self, token: str, place: int, body: dict[str, Any], chat: bool) -> dict[str, Any]:
        most = int(body.get("top_logprobs") or body["logprobs"] or 1)
        names = ["yes", "no", "A", "B", "C", "D", *(str(n) for n in range(11))]
        tops = dict(zip([token, *names], self.top_logprobs(place) * 3, strict=False))
        tops = dict(list(tops.items())[: max(1, most)])
        if not chat:
            return {"tokens": [token], "token_logprobs": [-0.25 * (1 + place % 4)], "top_logprobs": [tops]}
        listed = [{"token": each, "logprob": score} for each, score in tops.items()]
        return {"content": [{"token": token, "logprob": -0.25 * (1 + place % 4), "top_logprobs": listed}]}


def _usage(prompt: int, cached: int, completion: int, thoughts: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens": completion,
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }


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
