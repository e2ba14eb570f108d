"""Tokens that are counted here in place of the server, once it has agreed with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from plait.core.ops import Text, Tokens
from plait.workers.http.prompt_encoder import REQUIRED_AGREEMENTS, LocalTokenizer

from .fake_server import FakeServer
from .http_kit import ask, serving

WORDS = [f"word{i}" for i in range(20)]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)


def written(folder: Path, vocabulary: Mapping[str, int]) -> str:
    """Write a tokenizer of words into a folder and return it."""
    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary), unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def told(server: FakeServer) -> int:
    return sum(path.endswith("/tokenize") for path, _ in server.requests)


async def asked(server: FakeServer, worker: Any, words: list[str]) -> list[list[int]]:
    """Ask with each word after two token ids; return the ids that the server got."""
    first = server.encode("hello there")
    for word in words:
        await ask(worker, (Tokens(ids=tuple(first)), Text(text=word)), max_tokens=1)
    return [body["prompt"][len(first) :] for body in server.asked()]


async def test_a_tokenizer_that_agrees_spares_the_requests(tmp_path: Path) -> None:
    server = FakeServer()
    server.encode(" ".join(WORDS))
    server.root = written(tmp_path / "model", {word: server.words.index(word) for word in server.words})
    async with serving(server) as (server, worker):
        assert await asked(server, worker, WORDS) == [server.encode(word) for word in WORDS]
        assert told(server) == REQUIRED_AGREEMENTS
        server.requests.clear()
        assert await asked(server, worker, WORDS) and told(server) == 0, "and what was asked is remembered"


async def test_a_tokenizer_that_differs_is_never_used(tmp_path: Path) -> None:
    server = FakeServer()
    server.encode(" ".join(WORDS))
    server.root = written(tmp_path / "model", {word: 100 - server.words.index(word) for word in server.words})
    async with serving(server) as (server, worker):
        assert await asked(server, worker, WORDS) == [server.encode(word) for word in WORDS]
        assert told(server) == len(WORDS)


@pytest.mark.parametrize("root", [None, "meta-llama/Llama-3.2-1B", "/no/such/folder", "broken"])
async def test_without_one_here_the_server_is_asked(root: str | None, tmp_path: Path) -> None:
    if root == "broken":
        (tmp_path / "tokenizer.json").write_text("{")
        root = str(tmp_path)
    async with serving(FakeServer(root=root)) as (server, worker):
        assert await asked(server, worker, WORDS[:6]) == [server.encode(word) for word in WORDS[:6]]
        assert told(server) == 6


def test_one_difference_is_enough(tmp_path: Path) -> None:
    tokenizer = LocalTokenizer(written(tmp_path, {"</s>": 0, "a": 1}))
    for _ in range(REQUIRED_AGREEMENTS):
        assert not tokenizer.is_trusted
        tokenizer.compare(tokenizer.encode("a"), (1,))
    assert tokenizer.is_trusted and tokenizer.encode("a a") == (1, 1)
    tokenizer.compare(tokenizer.encode("a"), (2,))
    assert not tokenizer.is_trusted and tokenizer.encode("a") is None


@pytest.mark.parametrize(
    ("within", "kept", "asked"),
    [
        ("one two", ["one", "two"], []),
        ("one two three four", ["one", "two", "three", "four"], []),
        ("one two th", ["one", "two"], [" th"]),
        ("on", [], ["on"]),
    ],
)
async def test_kept_text_keeps_its_ids(within: str, kept: list[str], asked: list[str]) -> None:
    """`before=` continues a context up to a text: what it keeps is not tokenised again."""
    async with serving() as (server, worker):
        ids = tuple(server.encode("one two three four"))
        for attempt in (1, 2):
            await ask(worker, (Text(text="start "), Tokens(ids=ids, within=within)), attempt=attempt)
        sent = server.asked()[-1]["prompt"]
        assert sent[1 : 1 + len(kept)] == server.encode(" ".join(kept))
        tokenised = [body["prompt"] for path, body in server.requests if path == "/tokenize"]
        assert tokenised == ["start ", *asked], "once, and nothing that was kept"
