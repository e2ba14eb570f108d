"""The same agent on a real `vllm serve`: does it end within the model's own limit of 8,192 tokens?

    python -m experiments.compaction.on_vllm --model FOLDER

A proxy sends each request to the server, which reads the whole context, refuses one that is too long, and writes some
tokens. The proxy replaces the text by that of the script, as no model this small makes 400 right calls. Token counts
and cached tokens are the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from plait import AsyncOrchestrator
from plait.core.call_config import CallConfig
from plait.planners.tools.react import React

from .._tools.server import served
from .run import MODES, read
from .workload import CONTEXT, PAGES, QUESTION, THOUGHT, codes_in, last_page, summary_of

ROWS = Path(__file__).parent / "data" / "vllm.jsonl"
MODEL, WRITTEN_TOKENS = "smollm2", 16
CONTENDERS = ("none, 8,192 tokens", "summary-only")


class Proxy:
    """The server with the texts of the script."""

    def __init__(self, url: str) -> None:
        self.counts = Counter[str]()
        self._url = url
        self._http = httpx.AsyncClient(timeout=600, trust_env=False)
        routes = [Route("/v1/chat/completions", self.chat, methods=["POST"]), Route("/v1/models", self.models)]
        self.app = Starlette(routes=routes)

    async def models(self, request: Request) -> Response:
        """Return the server's models."""
        return JSONResponse((await self._http.get(f"{self._url}/models")).json())

    async def chat(self, request: Request) -> Response:
        """Let the server read the context and write a few tokens; answer with the script's text."""
        asked = await request.json()
        text = "".join(map(flatten, asked["messages"]))
        message = {"role": "user", "content": text}  # the server's template is the last message as it stands
        body = {
            "model": MODEL,
            "messages": [message],
            "max_tokens": WRITTEN_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = await self._http.post(f"{self._url}/chat/completions", json=body)
        said = answer.json()
        if answer.status_code != 200:
            self.counts["refused"] += 1
            return JSONResponse(said, answer.status_code)
        usage = said["usage"]
        self.counts["calls"] += 1
        self.counts["prompt"] += usage["prompt_tokens"]
        self.counts["cached"] += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.counts["largest"] = max(self.counts["largest"], usage["prompt_tokens"])
        said["choices"][0]["message"] = self.reply(text, asked)
        said["choices"][0]["finish_reason"] = "tool_calls" if "tool_calls" in said["choices"][0]["message"] else "stop"
        return JSONResponse(said)

    def reply(self, text: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the script's message for a context."""
        last = last_page(text)
        if not asked.get("tools") or asked.get("tool_choice") == "none":
            self.counts["without_tools"] += last < PAGES
            return {"role": "assistant", "content": summary_of(text)}
        if last >= PAGES:
            return {"role": "assistant", "content": f"The codes are {', '.join(codes_in(text))}."}
        function = {"name": "read", "arguments": json.dumps({"page": last + 1})}
        call = {"id": f"c{self.counts['calls']}", "type": "function", "function": function}
        return {"role": "assistant", "content": THOUGHT, "tool_calls": [call]}


def flatten(message: dict[str, Any]) -> str:
    """Return a message as ChatML, with its calls as JSON."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    calls = json.dumps([call["function"] for call in message.get("tool_calls") or []])
    return f"<|im_start|>{message['role']}\n{text}{'' if calls == '[]' else calls}<|im_end|>\n"


async def run(model: Path) -> None:
    """Run the contenders on one server, and write the rows."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        settings = {"model": str(model), "served_model_name": MODEL, "dtype": "float32", "max_model_len": str(CONTEXT)}
        settings |= {"max_num_seqs": "2", "kv_cache_memory_bytes": str(1 << 30)}
        async with served(Path(scratch, "vllm.log"), **settings) as server:
            for what in CONTENDERS:
                proxy = Proxy(server.url)
                listening = uvicorn.Server(uvicorn.Config(proxy.app, port=0, log_level="warning"))
                task = asyncio.create_task(listening.serve())
                while not listening.started:  # noqa: ASYNC110 (uvicorn sets a flag, no event)
                    await asyncio.sleep(0.05)
                port = listening.servers[0].sockets[0].getsockname()[1]
                planner = React(
                    rounds=2 * PAGES, compaction=MODES[what][0], turn=CallConfig(max_tokens=64, stream=False)
                )
                async with AsyncOrchestrator(
                    base_url=f"http://127.0.0.1:{port}/v1", model=MODEL, tools=[read], journal="off"
                ) as plait:
                    answer = await plait.run(QUESTION, planner=planner)
                listening.should_exit = True
                await task
                row = {"what": what, "answered": answer.answer is not None, "codes": len(codes_in(answer.text or ""))}
                failure = answer.failure.message[:200] if answer.failure else ""
                rows.append({**row, **proxy.counts, "failure": failure})
                print(json.dumps(rows[-1]), flush=True)
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m experiments.compaction.on_vllm", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    asyncio.run(run(parser.parse_args().model))


if __name__ == "__main__":
    main()
