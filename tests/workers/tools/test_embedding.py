"""The tool `embed`: from an OpenAI-compatible server, from a model in a folder, and through a run."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import ConfigError, ToolError
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.embed import embedder
from plait_research.tools.reward import tokenizer_of


class Handler(BaseHTTPRequestHandler):
    """Counts letters; every answer is in an order of its own."""

    seen: ClassVar[list[dict[str, Any]]] = []
    keys: ClassVar[list[str | None]] = []
    status: ClassVar[int] = 200
    body: ClassVar[bytes | None] = None

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append({"path": self.path, **asked})
        self.keys.append(self.headers["authorization"])
        rows = [{"index": i, "embedding": [text.count(c) for c in "ab"]} for i, text in enumerate(asked["input"])]
        said = self.body or json.dumps({"data": rows[::-1]}).encode()
        self.send_response(self.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.seen, Handler.keys, Handler.status, Handler.body = [], [], 200, None
    made = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}/v1"
    made.shutdown()
    thread.join()
    made.server_close()


async def test_vectors_come_in_the_order_of_the_texts(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sesame")
    embed = embedder("letters", base_url=server + "/", key_variable="SOME_KEY", batch=2)
    assert await embed(texts=["aab", "", "b"]) == [[2.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
    assert [each["path"] for each in Handler.seen] == ["/v1/embeddings"] * 2
    assert Handler.seen[0] == {
        "path": "/v1/embeddings",
        "model": "letters",
        "input": ["aab", " "],
        "encoding_format": "float",
    }
    assert Handler.keys == ["Bearer sesame"] * 2
    assert await embed(texts=[]) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"{}", "gave 0 vectors for 1 texts"), (b'{"data": [{"embedding": "no"}]}', "gave 0 vectors"),
     (b'{"data": [{"index": 3, "embedding": [1]}]}', "gave 1 vectors for 1 texts"), (b"no", "sent invalid JSON")],
)  # fmt: skip
async def test_a_server_without_vectors(server: str, body: bytes, said: str) -> None:
    Handler.body = body
    with pytest.raises(ToolError, match=said):
        await embedder("letters", base_url=server)(texts=["a"])


@pytest.mark.parametrize(("status", "retryable"), [(503, True), (404, False)])
async def test_a_server_that_refuses(server: str, status: int, retryable: bool) -> None:
    Handler.status, Handler.body = status, b'{"error": {"message": "not here"}}'
    with pytest.raises(ToolError, match="not here") as caught:
        await embedder("letters", base_url=server)(texts=["a"])
    assert caught.value.retryable is retryable


@pytest.mark.engine
def test_a_model_in_a_folder(root: Path) -> None:
    pytest.importorskip("torch")
    embed = embedder(str(root / "packages" / "plait-models" / "plait_models" / "models" / "countdown"))
    one, two, empty = embed(texts=["11-7=4", "11-7=4", ""])
    assert one == two and len(one) == len(empty) > 8 and any(one) and not any(empty)
    with pytest.raises(ToolError, match="cannot be loaded as an embedding model"):
        embedder(str(root / "docs"))(texts=["a"])


@pytest.mark.parametrize(("up", "why"), [(True, "4 of 5 votes, margin 3; 4 answers in 2 classes"), (False, "2 of 5")])
async def test_a_vote_over_classes_of_an_embedding(server: str, up: bool, why: str) -> None:
    """And where the server fails, the vote is that of the task's own equality."""
    Handler.status = 200 if up else 400
    replies = [Reply(text=f"answer: {text}", times=1) for text in ("b", "aa", "aa", "a", "aaa")]
    tools = [embedder("letters", base_url=server)]
    async with AsyncOrchestrator(workers=[Scripted(replies, slots=1)], tools=tools) as orchestrator:
        answer = await orchestrator.run("q", planner="sample:n=5", merge="equivalent:ask=embedding")
    assert answer.answer == "aa" and answer.why.startswith(why)
    assert up or "embed gave no vectors" in answer.why


def test_what_is_loaded_from_a_hub_has_the_revision_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name alone is whatever its owner has put there that day."""
    named: list[object] = []

    class Auto:
        @staticmethod
        def from_pretrained(model: str, **options: object) -> object:
            named.append((model, options))
            raise OSError("no hub here")

    fake = {"AutoModel": Auto, "AutoTokenizer": Auto}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**fake))
    monkeypatch.setitem(
        sys.modules, "transformers.utils", SimpleNamespace(logging=SimpleNamespace(disable_progress_bar=int))
    )
    with pytest.raises(ToolError, match="no hub here"):
        embedder("org/letters", revision="0a1b2c3")(texts=["a"])
    with pytest.raises(ConfigError, match="no hub here"):
        tokenizer_of("org/letters", "0a1b2c3")
    assert named == [("org/letters", {"revision": "0a1b2c3"})] * 2
