"""vLLM's API without a model, for what a client costs: `python -m experiments._tools.scripted_server PORT`.

It writes what the bundled model was taught to write (`training.generate`), in its tokens, so every client meets the
same puzzles, lengths and shares of right answers as on the real one. Its time is that of continuous batching: in each
step every answer in flight gets a token, and a step takes `base` seconds and `each` for every answer; an answer that is
given up leaves at the next step. Prompts take no time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.runtime.client.config import BUNDLED_MODEL
from training.generate import MAX_ROUNDS, Trace, _pick_round, add_child, problem_prompt, serial_trace
from training.task import Problem, candidates, reach
from training.vocab import END, ID, WORDS, decode, encode

from .watch import CACHED, GENERATED, PROMPT, STEPS, Watch

MODEL = "countdown"
_HEAD = re.compile(r"<(serial|parent|child)>(?: (\d))? T(\d{1,3})((?: \d{1,3})+) <go>")


def written(prompt: str, seed: int) -> list[int]:
    """Return the ids of what the model writes after a prompt."""
    heads = list(_HEAD.finditer(prompt))
    if not heads:
        return [ID["<none>"], END]
    mode, width = heads[-1][1], int(heads[-1][2] or 8)
    target, numbers = int(heads[-1][3]), tuple(map(int, heads[-1][4].split()))
    if mode == "child":
        trace = Trace([], [])
        add_child(trace, numbers, target)
        return trace.ids
    firsts = candidates(numbers)
    problem = Problem(numbers, target, firsts, [reach(step.numbers()).get(target) for step in firsts])
    if mode == "serial":
        trace = serial_trace(random.Random(f"{seed} {numbers} {target}"), problem, width)
        return trace.ids[len(problem_prompt(mode, numbers, target, width)) :]
    return _parent(prompt, problem, width)


def _parent(prompt: str, problem: Problem, width: int) -> list[int]:
    """Return the parent's next round, or the answer of the first entry of the last join that has one."""
    joins = re.findall(r"<join> ([^>]*(?:>[^>]*)*?) ?<go>", prompt)
    hit = re.search(r"<hit> ([^<|]*[^<| ])", joins[-1]) if joins else None
    if hit is not None:
        return [*encode(f"<hit> {hit[1]}"), END]
    rng = random.Random(f"{problem.numbers} {problem.target}")
    left = list(range(len(problem.candidates)))
    chosen: list[int] = []
    for _ in range(len(joins) + 1):
        chosen = _pick_round(rng, left, problem, width)
        left = [i for i in left if i not in chosen]
    if len(joins) >= MAX_ROUNDS or not chosen:
        return [ID["<none>"], END]
    steps = [problem.candidates[i] for i in chosen]
    items = (f"{s.a} {s.op} {s.b} = {s.c} | {' '.join(map(str, s.rest))}" for s in steps)
    return encode(f"<spawn> {' ; '.join(items)} <wait>")


@dataclass(eq=False)
class Answer:
    """One answer in flight."""

    ids: list[int]
    finish: str
    done: int = 0
    step: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has got a token."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """Gives every answer in flight a token in each step."""

    def __init__(self, base: float, each: float, most: int) -> None:
        from prometheus_client import Counter, Histogram

        self.base, self.each, self.most = base, each, most
        self.running: list[Answer] = []
        self.waiting: deque[Answer] = deque()
        self.steps = Histogram(STEPS, "of the engine")
        self.generated, self.prompt = Counter(GENERATED, "tokens"), Counter(PROMPT, "tokens")
        Counter(CACHED, "tokens")
        self.busy: asyncio.Task[None] | None = None

    def add(self, answer: Answer) -> None:
        """Take an answer on."""
        self.waiting.append(answer)
        if self.busy is None or self.busy.done():
            self.busy = asyncio.create_task(self._work())

    def drop(self, answer: Answer) -> None:
        """Give an answer up."""
        for group in (self.running, self.waiting):
            if answer in group:
                group.remove(answer)

    async def _work(self) -> None:
        while self.running or self.waiting:
            while self.waiting and len(self.running) < self.most:
                self.running.append(self.waiting.popleft())
            await asyncio.sleep(self.base + self.each * len(self.running))
            self.steps.observe(len(self.running))
            self.generated.inc(len(self.running))
            for answer in self.running:
                answer.done += 1
                answer.step.set()
                if answer.done == len(answer.ids):
                    answer.over.set()
            self.running = [answer for answer in self.running if not answer.over.is_set()]


def cut(ids: list[int], body: Mapping[str, Any]) -> tuple[list[int], str]:
    """Return an answer's ids up to its stop or limit, the stop included, and why it ended."""
    stops = {END, *body.get("stop_token_ids", ()), *(ID[s] for s in body.get("stop") or () if s in ID)}
    end = next((at + 1 for at, each in enumerate(ids) if each in stops), len(ids))
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or 512
    return (ids[:limit], "length") if limit < end else (ids[:end], "stop")


def app(base: float, each: float, most: int) -> Any:
    """Return the application."""
    from prometheus_client import generate_latest
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    engine = Engine(base, each, most)

    async def models(_: Request) -> Response:
        model = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": str(BUNDLED_MODEL)}
        return JSONResponse({"object": "list", "data": [model]})

    async def tokenize(request: Request) -> Response:
        words = (await request.json())["prompt"].replace("<", " <").replace(">", "> ").split()
        return JSONResponse({"tokens": [ID.get(word, ID["<unk>"]) for word in words]})

    async def detokenize(request: Request) -> Response:
        return JSONResponse({"prompt": decode((await request.json())["tokens"])})

    async def metrics(_: Request) -> Response:
        return Response(generate_latest())

    async def complete(request: Request) -> Response:
        try:
            body = await request.json()
        except ClientDisconnect:
            return Response(status_code=499)
        chat = "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        asked = [ID.get(word, ID["<unk>"]) for word in prompt.split()] if isinstance(prompt, str) else prompt
        text = decode(asked)
        seed = 0 if not body.get("temperature", 1.0) else body.get("seed")
        seed, count = random.getrandbits(32) if seed is None else int(seed), int(body.get("n") or 1)
        answers = [Answer(*cut(written(text, seed * 64 + i), body)) for i in range(count)]
        engine.prompt.inc(len(asked))
        for answer in answers:
            engine.add(answer)
        usage = {"prompt_tokens": len(asked), "completion_tokens": sum(len(answer.ids) for answer in answers)}
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        head = {"id": "c", "created": 0, "model": MODEL, "object": "chat.completion" if chat else "text_completion"}

        def choice(index: int, answer: Answer, first: int, last: int, key: str) -> dict[str, Any]:
            over = last == len(answer.ids)
            shown = answer.ids[first:last]
            stop = next((WORDS[each] for each in shown[-1:] if each != END), None) if over else None
            keeps = bool(body.get("include_stop_str_in_output"))
            hidden = over and answer.finish == "stop" and not (keeps and shown[-1:] != [END])
            words = decode(shown[:-1] if hidden else shown)
            said: dict[str, Any] = {"text": " " + words if words else ""}
            if chat:
                said = {key: {"role": "assistant", "content": said["text"]}}
            said |= {"index": index, "finish_reason": answer.finish if over else None, "logprobs": None}
            if over and answer.finish == "stop":
                said["stop_reason"] = stop
            if body.get("return_token_ids"):
                said["token_ids"] = shown
                if not first:
                    said["prompt_token_ids"] = asked
            return said

        if not body.get("stream"):
            gone, over = asyncio.create_task(_gone(request)), asyncio.create_task(_over(answers))
            try:
                await asyncio.wait({gone, over}, return_when=asyncio.FIRST_COMPLETED)
                if not over.done():
                    return Response(status_code=499)
            finally:
                for task in (gone, over):
                    task.cancel()
                for answer in answers:
                    engine.drop(answer)
            choices = [choice(i, answer, 0, len(answer.ids), "message") for i, answer in enumerate(answers)]
            return JSONResponse({**head, "choices": choices, "usage": usage})

        async def events() -> AsyncIterator[bytes]:
            try:
                for i, answer in enumerate(answers):
                    shown = 0
                    while shown < len(answer.ids):
                        await answer.step.wait()
                        answer.step.clear()
                        said = {**head, "choices": [choice(i, answer, shown, answer.done, "delta")]}
                        shown = answer.done
                        yield f"data: {json.dumps(said)}\n\n".encode()
                yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
            finally:
                for answer in answers:
                    engine.drop(answer)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _gone(request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async def _over(answers: Sequence[Answer]) -> None:
        for answer in answers:
            await answer.over.wait()

    post = ["POST"]
    routes = [Route("/v1/models", models), Route("/metrics", metrics), Route("/health", models)]
    routes += [Route("/tokenize", tokenize, methods=post), Route("/detokenize", detokenize, methods=post)]
    routes += [Route(f"/v1/{path}", complete, methods=post) for path in ("completions", "chat/completions")]
    return Starlette(routes=routes, middleware=[Middleware(Watch)])


def main() -> None:
    """Serve."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m experiments._tools.scripted_server", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--base", type=float, default=0.003, help="seconds of a step of the engine")
    parser.add_argument("--each", type=float, default=0.0002, help="seconds more for each answer in flight")
    parser.add_argument("--most", type=int, default=256, help="answers at a time")
    options = parser.parse_args()
    uvicorn.run(app(options.base, options.each, options.most), host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
