"""Log-probabilities of an answer's tokens, as a server gives them, in OpenAI's forms; else refused."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plait.workers.http import Http
from tests.workers.http.fake_server import FakeServer

from .conftest import Serve, Served

MESSAGES: Any = [{"role": "user", "content": "say it"}]
WORDS = ["alpha", "beta", "gamma", "delta"]


@contextlib.asynccontextmanager
async def told(serve: Serve, kind: str) -> AsyncIterator[Served]:
    """Our server in front of one that knows chats alone, or completions with token ids."""
    chats = kind == "chat"
    async with FakeServer(ids=not chats, completions=not chats) as upstream:
        async with serve(workers=[Http(upstream.url)]) as served:
            yield served


both = pytest.mark.parametrize("kind", ["chat", "completions"])


@both
async def test_a_chat_tells_its_tokens(serve: Serve, kind: str) -> None:
    async with told(serve, kind) as served:
        client = served.client()
        said = await client.chat.completions.create(
            model="plait/single", messages=MESSAGES, logprobs=True, top_logprobs=2
        )
        (choice,) = said.choices
        assert [each.token.strip() for each in choice.logprobs.content] == WORDS
        assert [each.logprob for each in choice.logprobs.content] == [-0.25, -0.5, -0.75, -1.0]
        assert [len(each.top_logprobs) for each in choice.logprobs.content] == [2] * 4
        assert bytes(choice.logprobs.content[0].bytes).decode() == choice.logprobs.content[0].token
        assert "".join(each.token for each in choice.logprobs.content) == choice.message.content
        bare = await client.chat.completions.create(model="plait/single", messages=MESSAGES, logprobs=True)
        assert [each.top_logprobs for each in bare.choices[0].logprobs.content] == [[]] * 4
        none = await client.chat.completions.create(model="plait/single", messages=MESSAGES)
        assert none.choices[0].logprobs is None


@both
async def test_a_stream_tells_them_with_its_end(serve: Serve, kind: str) -> None:
    async with told(serve, kind) as served:
        stream = await served.client().chat.completions.create(
            model="plait/single", messages=MESSAGES, logprobs=True, stream=True
        )
        content = [token async for chunk in stream for each in chunk.choices if each.logprobs
                   for token in each.logprobs.content]  # fmt: skip
        assert [each.token.strip() for each in content] == WORDS


@both
async def test_a_response_tells_them(serve: Serve, kind: str) -> None:
    async with told(serve, kind) as served:
        client = served.client()
        asked: Any = {"model": "plait/single", "input": "say it", "include": ["message.output_text.logprobs"]}
        said = await client.responses.create(**asked, top_logprobs=1)
        (part,) = said.output[0].content
        assert [each.token.strip() for each in part.logprobs] == WORDS and len(part.logprobs[0].top_logprobs) == 1
        done = [event async for event in await client.responses.create(**asked, stream=True)
                if event.type == "response.output_text.done"]  # fmt: skip
        assert [each.token.strip() for each in done[0].logprobs] == WORDS


@both
async def test_the_chosen_one_of_a_vote_tells_its_own(serve: Serve, kind: str) -> None:
    async with told(serve, kind) as served:
        said = await served.client().chat.completions.create(model="plait/sample:n=3", messages=MESSAGES, logprobs=True)
        assert [each.token.strip() for each in said.choices[0].logprobs.content] == WORDS


@both
async def test_a_stop_text_that_begins_within_a_token_takes_no_token_away(serve: Serve, kind: str) -> None:
    async with told(serve, kind) as served:
        said = await served.client().chat.completions.create(
            model="plait/single", messages=MESSAGES, logprobs=True, stop=["mma"]
        )
        (choice,) = said.choices
        assert choice.message.content == " alpha beta ga"
        assert [each.token for each in choice.logprobs.content] == [" alpha", " beta", " gamma"]


async def test_what_cannot_be_told_is_refused_in_words(serve: Serve) -> None:
    import openai

    async with serve("fine") as served:  # whose worker says nothing of tokens
        client = served.client()
        with pytest.raises(openai.BadRequestError, match="plait/single over a worker") as refused:
            await client.chat.completions.create(model="plait/single", messages=MESSAGES, logprobs=True)
        assert refused.value.param == "logprobs" and refused.value.code == "unsupported_parameter"
        for wrong in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="plait/single", messages=MESSAGES, **wrong)
            assert refused.value.param == "top_logprobs"


async def test_tokens_that_spell_a_key_are_not_told(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    import openai

    monkeypatch.setenv("UP_KEY", "betagamma")
    async with FakeServer(reply=lambda prompt: "alpha betagamma delta") as upstream:
        async with serve(workers=[Http(upstream.url, api_key_env="UP_KEY")]) as served:
            with pytest.raises(openai.BadRequestError) as refused:
                await served.client().chat.completions.create(model="plait/single", messages=MESSAGES, logprobs=True)
    assert "betagamma" not in str(refused.value)
