"""The tool `reward` against a server's recorded answers, and through a search."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import ConfigError, ToolError
from plait.planners.tree import Tree
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.reward import reward_model


class Handler(BaseHTTPRequestHandler):
    """Finds texts with "good" in them good, in the forms in which vLLM answers."""

    seen: ClassVar[list[dict[str, Any]]] = []
    body: ClassVar[Any] = None

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append({"path": self.path, **asked})
        good = "good" in asked.get("input", asked.get("text_2", ""))
        rows = {
            "/classify": {"index": 0, "label": "good", "probs": [0.1, 0.9] if good else [0.8, 0.2], "num_classes": 2},
            "/score": {"index": 0, "object": "score", "score": 0.75 if good else 0.25},
            "/pooling": {"index": 0, "object": "pooling", "data": [[-3.0], [2.0 if good else -2.0]]},
        }
        said = json.dumps(self.body or {"object": "list", "data": [rows[self.path]]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

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


@pytest.mark.parametrize(
    ("endpoint", "good", "bad"), [("classify", 0.9, 0.2), ("score", 0.75, 0.25), ("pooling", 0.881, 0.119)]
)
async def test_each_endpoint_gives_a_number(server: str, endpoint: Any, good: float, bad: float) -> None:
    reward = reward_model("rm", base_url=server, endpoint=endpoint)
    assert await reward(text="good", question="Why?") == pytest.approx(good, abs=1e-3)
    assert await reward(text="", question="") == pytest.approx(bad, abs=1e-3)
    assert {each["path"] for each in Handler.seen} == {f"/{endpoint}"} and Handler.seen[0]["model"] == "rm"


@pytest.mark.parametrize("body", [{}, [], {"data": []}, {"data": [{"probs": []}]}, {"data": [{"probs": ["x", "y"]}]},
                                  {"data": [{"probs": [True]}]}])  # fmt: skip
async def test_an_answer_without_a_number_is_an_error_in_words(server: str, body: Any) -> None:
    Handler.body = body or {"nothing": 1}
    with pytest.raises(ToolError, match="gave no number: does it serve a reward model"):
        await reward_model("rm", base_url=server)(text="a")


def test_another_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no endpoint 'rate'"):
        reward_model("rm", base_url="http://127.0.0.1:1", endpoint="rate")  # type: ignore[arg-type]


async def test_a_search_goes_by_it(server: str) -> None:
    model = Scripted(
        [
            Reply(when=r"good\n\Z", text="yes"),
            Reply(when=r"bad\n\Z", text="no"),
            Reply(text="good\n", times=1),
            Reply(text="bad\n"),
        ]
    )
    reward = reward_model("rm", base_url=server)
    async with AsyncOrchestrator(workers=[model], tools=[reward], journal=None) as orchestrator:
        answer = await orchestrator.run("Q?\n", planner=Tree(scorer="reward-model", search="beam", nodes=40))  # type: ignore[arg-type]
    assert answer.answer == "good\nyes", answer.failure
    assert len(Handler.seen) == len({json.dumps(each) for each in Handler.seen}), "each state is asked about once"
