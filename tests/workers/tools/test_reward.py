"""The tool `reward` against a server's recorded answers, and through a search."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import ConfigError, ToolError
from plait.planners.search.tree import Tree
from plait.workers.scripted import Reply, Scripted
from plait_research.tools import reward
from plait_research.tools.reward import build_model_input, reward_model
from tests.oracles.of_rewards import CHATML, LLAMA, words


class Handler(BaseHTTPRequestHandler):
    """Finds texts with "good" in them good, in the forms in which vLLM answers."""

    seen: ClassVar[list[dict[str, Any]]] = []
    body: ClassVar[Any] = None

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append({"path": self.path, **asked})
        if "completions" in self.path or isinstance(asked.get("input"), list):
            self.answer(self.body)
            return
        said = asked.get("input", asked.get("text_2", "")) or asked["messages"][-1]["content"]
        good = "good" in said
        rows = {
            "/classify": {"index": 0, "label": "good", "probs": [0.1, 0.9] if good else [0.8, 0.2], "num_classes": 2},
            "/score": {"index": 0, "object": "score", "score": 0.75 if good else 0.25},
            "/pooling": {"index": 0, "object": "pooling", "data": [[-3.0], [2.0 if good else -2.0]]},
        }
        self.answer(self.body or {"object": "list", "data": [rows[self.path]]})

    def answer(self, said: Any) -> None:
        body = json.dumps(said).encode()
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


@pytest.mark.parametrize(
    ("endpoint", "good", "bad"), [("classify", 0.9, 0.2), ("score", 0.75, 0.25), ("pooling", 0.881, 0.119)]
)
async def test_each_endpoint_gives_a_number(server: str, endpoint: Any, good: float, bad: float) -> None:
    tool = reward_model("rm", base_url=server, endpoint=endpoint)
    assert await tool(text="good", question="Why?") == pytest.approx(good, abs=1e-3)
    assert await tool(text="", question="") == pytest.approx(bad, abs=1e-3)
    assert {each["path"] for each in Handler.seen} == {f"/{endpoint}"} and Handler.seen[0]["model"] == "rm"


@pytest.mark.parametrize("body", [{}, [], {"data": []}, {"data": [{"probs": []}]}, {"data": [{"probs": ["x", "y"]}]},
                                  {"data": [{"probs": [True]}]}, {"data": [{"probs": [1e999]}]}])  # fmt: skip
async def test_an_answer_without_a_number_is_an_error_in_words(server: str, body: Any) -> None:
    Handler.body = body or {"nothing": 1}
    with pytest.raises(ToolError, match="gave no number by 'classify': is it a reward model"):
        await reward_model("rm", base_url=server)(text="a")


async def test_the_numbers_of_a_reward_head_are_asked_for_as_they_are(server: str) -> None:
    """Else the model's own sigmoid or softmax would go through ours once more."""
    Handler.body = {"data": [{"data": [[9.0, -9.0], [math.log(1), math.log(3)]]}]}
    for label, share in ((-1, 0.75), (0, 0.25)):
        tool = reward_model("rm", base_url=server, endpoint="pooling", label=label)
        assert await tool(text="a") == pytest.approx(share)
    assert Handler.seen[0]["use_activation"] is False


async def test_question_and_text_may_be_a_conversation(server: str) -> None:
    assert await reward_model("rm", base_url=server, chat=True)(text="good", question="Why?") == 0.9
    said = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "good"}]
    assert Handler.seen[0]["messages"] == said and "input" not in Handler.seen[0]


STEPS = {"question": "2+2?", "text": "## Step 1: add\n\nso 4\n\n"}


async def test_a_process_reward_model_is_given_token_ids_and_read_where_its_steps_end(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = words(CHATML)
    monkeypatch.setattr(reward, "tokenizer_of", lambda model, revision: known)
    order = build_model_input("qwen-prm", known, **STEPS)
    end = known.encode("<extra_0>")[0]
    assert [order.ids[place] for place in order.places] == [end, end], "a blank end makes no third step"
    rows = [[0.0, 0.0] for _ in order.ids]
    rows[order.places[-1]] = [math.log(1), math.log(4)]
    for told in (rows, [[0.0, 0.0], rows[order.places[-1]]]):  # of each token, or of the steps alone
        Handler.body = {"data": [{"data": told}]}
        assert await reward_model("rm", base_url=server, style="qwen-prm")(**STEPS) == pytest.approx(0.8)
    assert Handler.seen[-1]["path"] == "/pooling" and Handler.seen[-1]["input"] == order.ids
    Handler.body = {"data": [{"data": rows[:3]}]}
    with pytest.raises(ToolError, match="3 rows of numbers"):
        await reward_model("rm", base_url=server, style="qwen-prm")(**STEPS)


async def test_a_model_that_writes_its_marks_is_asked_what_it_would_write(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = words(LLAMA)
    monkeypatch.setattr(reward, "tokenizer_of", lambda model, revision: known)
    right, wrong = (known.encode(each)[-1] for each in "+-")
    for style in ("math-shepherd", "rlhflow"):
        tops = {f"token_id:{right}": math.log(0.3), f"token_id:{wrong}": math.log(0.1), "token_id:9": -0.5}
        Handler.body = {"choices": [{"text": "+", "logprobs": {"top_logprobs": [tops]}}]}
        tool = reward_model("rm", base_url=server, style=style)  # type: ignore[arg-type]
        assert await tool(**STEPS) == pytest.approx(0.75)
        sent = Handler.seen[-1]
        assert sent["path"] == "/v1/completions" and (sent["max_tokens"], sent["temperature"]) == (1, 0.0)
        assert sent["prompt"] == build_model_input(style, known, **STEPS).prompt  # type: ignore[arg-type]
        Handler.body = {"choices": [{"text": "+", "logprobs": {"top_logprobs": [{"token_id:9": -0.5}]}}]}
        with pytest.raises(ToolError, match="neither the word for right"):
            await tool(**STEPS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"style": "prm"}, "there is no style 'prm'"),
        ({"style": "rlhflow"}, "writes its marks: serve it"),
        ({"endpoint": "rate"}, "there is no endpoint 'rate'"),
        ({"endpoint": "score", "chat": True}, "leave `chat` out"),
        ({"base_url": "http://127.0.0.1:1", "engine": {}}, "give one of them"),
        ({"engine": {"treads": 1}}, "did you mean 'threads'"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        reward_model("rm", **given)


async def test_a_model_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="there is no model at"):
        await reward_model(str(tmp_path / "none"))(text="a")


async def test_a_search_goes_by_it(server: str) -> None:
    model = Scripted(
        [
            Reply(when=r"good\n\Z", text="yes"),
            Reply(when=r"bad\n\Z", text="no"),
            Reply(text="good\n", times=1),
            Reply(text="bad\n"),
        ]
    )
    tool = reward_model("rm", base_url=server)
    async with AsyncOrchestrator(workers=[model], tools=[tool], journal=None) as orchestrator:
        answer = await orchestrator.run("Q?\n", planner=Tree(scorer="reward-model", search="beam", max_branches=40))  # type: ignore[arg-type]
    assert answer.answer == "good\nyes", answer.failure
    assert len(Handler.seen) == len({json.dumps(each) for each in Handler.seen}), "each state is asked about once"
