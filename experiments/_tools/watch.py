"""What an OpenAI server sees of its clients, written down by the server itself.

`--middleware experiments._tools.watch.Watch`.

The same for every client, whatever it is written with: requests, how many were given up, bytes, how many were there at
a time, steps of the engine, and the tokens that were generated for a puzzle after its first right answer had left the
server. A request gets a token in each step of the engine; so the steps that it lived beyond that answer are its late
tokens. Of a request for several answers, it is what the others are longer than the first right one.

`GET /watch` says it in JSON and resets the record.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plait_bench.countdown import CountdownProblem, is_right
from training.vocab import decode

from .by_hand import steps_of

STEPS, GENERATED = "vllm:iteration_tokens_total", "vllm:generation_tokens"
PROMPT, CACHED = "vllm:prompt_tokens", "vllm:prefix_cache_hits"
ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
_PUZZLE = re.compile(r"T(\d{1,3})((?: \d{1,3})+) <go>")


@dataclass(slots=True)
class Seen:
    """One request for answers."""

    began: float
    """Seconds."""
    first: float
    """Steps of the engine until then."""
    ended: float = 0.0
    last: float = 0.0
    left: bool = False
    """Its client went away before it had the answer."""
    body: bytearray = field(default_factory=bytearray)
    said: bytearray = field(default_factory=bytearray)
    pieces: int = 0

    def texts(self) -> list[str]:
        """Return the answers, as far as they are complete."""
        if self.left or not self.said:
            return []
        if self.said.startswith(b"data:"):
            lines = [line[5:].strip() for line in bytes(self.said).split(b"\n") if line.startswith(b"data:")]
            found = defaultdict[int, str](str)
            for chunk in (json.loads(line) for line in lines if line != b"[DONE]"):
                for choice in chunk.get("choices", ()):
                    found[choice["index"]] += _text(choice)
            return list(found.values())
        return [_text(choice) for choice in json.loads(bytes(self.said)).get("choices", ())]


def _text(choice: Mapping[str, Any]) -> str:
    message = choice.get("message") or choice.get("delta") or {}
    return choice.get("text") or message.get("content") or ""


def puzzles(body: Mapping[str, Any]) -> list[CountdownProblem]:
    """Return the puzzles that a request's prompt holds: that of the whole line first, the one to be solved now last."""
    prompt = body.get("prompt")
    if prompt is None:
        prompt = (body.get("messages") or [{}])[-1].get("content") or ""
    text = prompt if isinstance(prompt, str) else decode(prompt)
    return [CountdownProblem(tuple(map(int, found[2].split())), int(found[1])) for found in _PUZZLE.finditer(text)]


def late(requests: list[Seen]) -> float:
    """Return the tokens generated for puzzles after the first right answer of each had left."""
    of = defaultdict[CountdownProblem, list[Seen]](list)
    solved: dict[CountdownProblem, float] = {}
    within = 0
    for seen in requests:
        found = puzzles(json.loads(bytes(seen.body)))
        if not found:
            continue
        of[found[0]].append(seen)
        answers = [(len(text.split()), is_right(found[-1], steps_of(text))) for text in seen.texts()]
        if any(right for _, right in answers):
            solved[found[0]] = min(seen.last, solved.get(found[0], seen.last))
            shortest = min(length for length, right in answers if right)
            within += sum(max(0, length - shortest) for length, _ in answers)
    beyond = (max(0.0, seen.last - max(solved[puzzle], seen.first)) for puzzle in solved for seen in of[puzzle])
    return within + sum(beyond)


class Watch:
    """Stands between the server and its network."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self._reset()

    def _reset(self) -> None:
        self.requests: list[Seen] = []
        self.paths: Counter[str] = Counter()
        self.base = {name: _count(name) for name in (STEPS, GENERATED, PROMPT, CACHED)}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        if path == "/watch":
            said = json.dumps(self.said()).encode()
            self._reset()
            head = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": said})
            return
        self.paths[path] += 1
        if path not in ENDPOINTS:
            await self.app(scope, receive, send)
            return
        seen = Seen(time.monotonic(), _count(STEPS))
        self.requests.append(seen)

        async def taken() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                seen.body += message.get("body", b"")
            elif not seen.ended:
                seen.left = True
            return message

        async def given(message: Any) -> None:
            if message["type"] == "http.response.body" and (piece := message.get("body")):
                seen.said += piece
                seen.pieces += 1
            if message["type"] == "http.response.body" and not message.get("more_body"):
                seen.ended, seen.last = time.monotonic(), _count(STEPS)
            await send(message)

        try:
            await self.app(scope, taken, given)
        finally:
            if not seen.ended or seen.left:
                seen.ended, seen.last, seen.left = time.monotonic(), _count(STEPS), True

    def said(self) -> dict[str, Any]:
        """Return the observations since the last call."""
        done = [seen for seen in self.requests if seen.ended and seen.body]
        counts = {name: _count(name) - before for name, before in self.base.items()}
        span = max((s.ended for s in done), default=0.0) - min((s.began for s in done), default=0.0)
        return {
            "requests": len(done),
            "left": sum(seen.left for seen in done),
            "other": sum(count for path, count in self.paths.items() if path not in (*ENDPOINTS, "/metrics")),
            "bytes": sum(len(seen.said) + len(seen.body) for seen in done),
            "pieces": sum(seen.pieces for seen in done),
            "in_flight": sum(seen.ended - seen.began for seen in done) / span if span else 0.0,
            "seconds": span,
            "steps": counts[STEPS],
            "generated": counts[GENERATED],
            "prompt": counts[PROMPT],
            "cached": counts[CACHED],
            "late": late(done),
        }


def _count(name: str) -> float:
    """Return a counter of the server's own, summed over its engines; of a histogram, how many it has seen."""
    from prometheus_client import REGISTRY

    found = REGISTRY._names_to_collectors.get(name)  # to collect all of them takes milliseconds
    if found is None:
        return 0.0
    suffix = "_count" if found._type == "histogram" else "_total"  # pyright: ignore[reportAttributeAccessIssue]
    return sum(each.value for metric in found.collect() for each in metric.samples if each.name.endswith(suffix))
