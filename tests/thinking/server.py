"""A chat server whose model thinks before it answers, in the ways that servers do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tests.ledger.truth import TruthServer

Shape = Literal["instruct", "parser", "block", "opened", "stubborn"]
SHAPES: tuple[Shape, ...] = ("instruct", "parser", "block", "opened", "stubborn")
PIECE = 50
"""Tokens of thoughts in one chunk."""


@dataclass(eq=False)
class ThinkingServer(TruthServer):
    """Thinks for `thoughts` tokens before each answer. `parser`: in a field of their own; `block`: in the text;
    `opened`: in the text, and the template has written `<think>` already, which `/tokenize` shows; `stubborn`: as
    `parser`, whatever the request asks for; `instruct`: not at all."""

    shape: Shape = "instruct"
    thoughts: int = 1_500
    thought: int = 0
    """Tokens of thoughts that it has made."""
    asked_off: int = 0
    """Requests that asked for no thoughts."""

    @classmethod
    def thinking(cls, shape: Shape, **fields: Any) -> ThinkingServer:
        """Return a server of that shape, which takes vLLM's fields."""
        return cls(ids=False, completions=False, strict=False, stop_reason=False, usage=True, shape=shape, **fields)

    def _tokens(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if path == "/tokenize" and "messages" in body:
            on = self.shape == "opened" and body.get("chat_template_kwargs", {}).get("enable_thinking") is not False
            return {"tokens": self.encode("Assistant: " + "<think>" * on)}
        return {"prompt": self.decode(body["tokens"])} if path == "/detokenize" else super()._tokens(path, body)

    def _pieces(
        self, body: dict[str, Any], chat: bool, ids: list[int], text: str, cached: int
    ) -> Iterator[dict[str, Any]]:
        off = (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False
        self.asked_off += off
        if self.shape == "instruct" or (off and self.shape != "stubborn") or self._begun(body):
            yield from super()._pieces(body, chat, ids, text, cached)
            return
        limit = body.get("max_tokens") or 16
        made = min(self.thoughts, limit)
        self.thought += made
        self.truth.completion += made
        apart = self.shape in ("parser", "stubborn")
        for place in range(0, made, PIECE):
            words = " hm" * min(PIECE, made - place)
            if self.shape == "block" and place == 0:
                words = "<think>" + words
            self.truth.completion -= 1  # the base class counts one for each chunk
            yield {"choices": [{"index": 0, "delta": {"reasoning_content" if apart else "content": words}}]}
        if made == limit:
            self.truth.completion -= 1
            yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
            yield {"choices": [], "usage": self._usage(ids, made, made)}
            return
        if not apart:
            self.truth.completion -= 1
            yield {"choices": [{"index": 0, "delta": {"content": "</think>\n\n"}}]}
        spoken = 0
        for chunk in super()._pieces(body | {"max_tokens": limit - made}, chat, ids, text, cached):
            spoken += bool(chunk["choices"])
            yield chunk if chunk["choices"] else {"choices": [], "usage": self._usage(ids, made + spoken, made)}

    @staticmethod
    def _begun(body: dict[str, Any]) -> bool:
        """Whether the request begins the answer itself, its thoughts over."""
        last = body["messages"][-1]
        return last["role"] == "assistant" and "</think>" in last["content"]

    def _usage(self, ids: list[int], completion: int, thoughts: int) -> dict[str, Any]:
        """Return what is told at the end. Only a server that keeps thoughts apart counts them apart."""
        apart = self.shape in ("parser", "stubborn")
        parts = {"completion_tokens_details": {"reasoning_tokens": thoughts}} if apart else {}
        return {"prompt_tokens": len(ids), "completion_tokens": completion, **parts}

    def _whole(self, chunks: list[dict[str, Any]], ids: list[int], chat: bool) -> dict[str, Any]:
        thoughts = "".join(
            each["choices"][0].get("delta", {}).get("reasoning_content", "") for each in chunks if each["choices"]
        )
        told = next((each["usage"] for each in chunks if not each["choices"]), None)
        kept = [each for each in chunks if each["choices"]]
        for each in kept:
            each["choices"][0].setdefault("finish_reason", None)
            each["choices"][0]["delta"].setdefault("content", "")
        whole = super()._whole(kept, ids, chat)
        if thoughts:
            whole["choices"][0]["message"]["reasoning_content"] = thoughts
        if told is not None:
            whole["usage"] = told
        return json.loads(json.dumps(whole))
