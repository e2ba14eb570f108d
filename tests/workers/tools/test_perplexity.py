"""The tool `perplexity` against an echoed prompt, the scorer, and `takeover` that goes by it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import ToolError
from plait.core.ops import Plugin
from plait_research.tools.perplexity import prompt_perplexity
from tests.planners.two_models import Models, goes_on


class Handler(BaseHTTPRequestHandler):
    """Echoes a prompt, a token a word, each with the log-probability -1; a word with an `x` has -3."""

    seen: ClassVar[list[dict[str, Any]]] = []
    body: ClassVar[Any] = None

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append({"path": self.path, **asked})
        words, place = [], 0
        for piece in asked["prompt"].split(" "):
            word = piece if not words else f" {piece}"
            words.append((word, place))
            place += len(word)
        values = [None if not number else -3.0 if "x" in word else -1.0 for number, (word, _) in enumerate(words)]
        told = {"token_logprobs": [*values, -0.1], "text_offset": [*(at for _, at in words), place]}
        body = json.dumps(self.body or {"choices": [{"text": "", "logprobs": told}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.seen, Handler.body = [], None
    made = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}/v1"
    made.shutdown()
    thread.join()
    made.server_close()


async def test_only_the_tokens_of_the_text_count(server: str) -> None:
    ask = prompt_perplexity("big", base_url=server)
    assert await ask(text=" b x", before="x x") == pytest.approx(math.exp(-2))
    assert await ask(text="a b c") == pytest.approx(math.exp(-1)), "the first token of all has no probability"
    assert Handler.seen[0] == {"path": "/v1/completions", "model": "big", "prompt": "x x b x", "max_tokens": 1,
                               "temperature": 0.0, "echo": True, "logprobs": 1}  # fmt: skip


@pytest.mark.parametrize("body", [{"choices": []}, {"choices": [{"logprobs": None}]}, {"what": 1}])
async def test_a_server_that_does_not_echo_is_an_error_in_words(server: str, body: Any) -> None:
    Handler.body = body
    with pytest.raises(ToolError, match="does not tell the log-probabilities of a prompt"):
        await prompt_perplexity("big", base_url=server)(text="a b")


async def test_a_text_without_a_token_of_its_own_is_an_error_in_words(server: str) -> None:
    with pytest.raises(ToolError, match="no token of its own"):
        await prompt_perplexity("big", base_url=server)(text="b", before="a")


async def test_takeover_scores_each_segment_behind_all_that_stands_before_it(server: str) -> None:
    """The second segment has a word that the target finds unlikely: it is taken over."""
    words = {
        "small": goes_on(" d1 d2 d3 x4 d5 d6 d7 d8 Answer: 9"),
        "large": goes_on(" t1 t2 t3 t4 t5 t6 t7 t8 Answer: 7"),
    }
    options: dict[str, Any] = {
        "draft": {"model": "small", "max_tokens": 3, "temperature": 0.0}, "target": {"model": "large"}, "n": 1,
        "scorer": "perplexity", "records": [[0.3, 0.35, 0.36, 0.367]], "threshold": 0.2,
    }  # fmt: skip
    tool = prompt_perplexity("big", base_url=server)
    async with AsyncOrchestrator(workers=[Models(words)], tools=[tool]) as orchestrator:
        answer = await orchestrator.run("Why?", planner=Plugin(name="takeover", options=options))
    assert answer.value == " d1 d2 d3 t4 t5 t6 d7 d8 Answer: 9"
    assert [asked["prompt"] for asked in Handler.seen[:2]] == ["Why? d1 d2 d3", "Why? d1 d2 d3 x4 d5 d6"]
    scores: Any = answer.data["scores"]  # type: ignore[index, call-overload]
    assert scores[1] == [pytest.approx(math.exp(-5 / 3), abs=1e-5)]
