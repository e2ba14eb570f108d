"""The tokens of an engine's answer with their log-probabilities (`Sampling.top_logprobs`), also through a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from transformers import AutoTokenizer

from plait.core.events import Job
from plait.core.interfaces import Worker
from plait.workers._shared.prompt import Prompter
from plait.workers.engine import Engine
from plait.workers.engine.requests import LEAST, spelled
from tests.apps.serve.conftest import Serve, serve, situation  # noqa: F401  (fixtures)

from ..byte_model import build_bytes
from .test_engine import everything, generate, job, words


@pytest.fixture(scope="module")
def byte_prompter(tmp_path_factory: pytest.TempPathFactory) -> Prompter:
    return Prompter(AutoTokenizer.from_pretrained(build_bytes(tmp_path_factory.mktemp("bytes") / "model")))


def rows(ids: list[list[int]], scores: list[list[float]]) -> list[Any]:
    """One step of the engine for each position."""
    return [(np.array([a]), np.array([b], dtype=np.float32)) for a, b in zip(ids, scores, strict=True)]


@given(before=st.text(max_size=8), text=st.text(min_size=1, max_size=12), cut=st.integers(0, 12))
def test_tokens_spell_the_text_though_characters_come_in_halves(
    byte_prompter: Prompter, before: str, text: str, cut: int
) -> None:
    encode = byte_prompter.tokenizer.encode
    ids = encode(text)
    said = text[: max(1, cut)]
    told = spelled(byte_prompter, encode(before), rows([[each] for each in ids], [[-1.0]] * len(ids)), said)
    if "\ufffd" in said:
        return  # written by the model itself, it cannot be told from half a character
    assert "".join(each.text for each in told) == said
    assert len(told) == len(said.encode())  # a token a byte, up to where the text was cut


def test_the_likeliest_stand_beside_and_what_cannot_be_is_bounded(byte_prompter: Prompter) -> None:
    a, b, c = byte_prompter.tokenizer.encode("abc")
    (first, second) = spelled(
        byte_prompter, [c], rows([[a, a, b], [b, c, a]], [[-0.5, -0.5, -1], [-3, 1e-6, -np.inf]]), "ab"
    )
    assert (first.text, first.logprob, first.top) == ("a", -0.5, (("a", -0.5), ("b", -1.0)))
    assert (second.logprob, second.top) == (-3.0, (("c", 0.0), ("a", LEAST)))
    assert spelled(byte_prompter, [c], rows([[a]], [[-0.5]]), "b") == ()  # another text's
    assert spelled(byte_prompter, [c], rows([[a]], [[-0.5]]), "ab") == ()  # not known of all


class Lent(Worker):
    """The session's engine for a server, which closes its workers."""

    serves = ("think",)

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.slots = engine, engine.name, engine.slots

    def run(self, job: Job) -> AsyncIterator[Any]:
        return self.engine.run(job)

    async def start(self) -> None:
        await self.engine.start()  # it runs already

    async def close(self) -> None:
        pass

    async def cancel(self, attempt: int) -> None:
        await self.engine.cancel(attempt)

    def health(self) -> AsyncIterator[bool]:
        return self.engine.health()


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="session")
async def test_an_engine_tells_its_tokens_also_through_a_server(
    engine: Engine,
    serve: Serve,  # noqa: F811
) -> None:
    said = await generate(engine, words(0, 6), max_tokens=8, top_logprobs=3, temperature=0.0)
    assert "".join(each.text for each in said.tokens) == said.text and len(said.tokens) == 8
    for each in said.tokens:  # greedy: the first of the likeliest is the token itself
        assert each.top[0] == (each.text, each.logprob) and len(each.top) == 3
        assert list(each.top) == sorted(each.top, key=lambda top: -top[1])
    # the same numbers by the other way, and nothing where nothing is asked
    other = await generate(engine, words(0, 6), max_tokens=8, temperature=0.0, logprobs=1, token_logprobs=True)
    assert other.tokens == () and other.drawn is not None
    assert [each.logprob for each in said.tokens] == pytest.approx(other.drawn.logprobs, abs=1e-4)
    # together with signals, a stop text and a stream
    *_, last = await everything(engine, job(words(0, 6), max_tokens=8, temperature=0.0, stream=True, logprobs=5,
                                            top_logprobs=1, stop=(said.tokens[4].text.strip(),)))  # fmt: skip
    assert last.signals is not None and 0 < len(last.tokens) <= 4 and last.text
    assert [(each.text, each.top[0]) for each in last.tokens] == [
        (each.text, each.top[0]) for each in said.tokens[: len(last.tokens)]
    ]
    assert "".join(each.text for each in last.tokens) == last.text
    async with serve(workers=[Lent(engine)]) as served:
        client = served.client()
        asked: Any = {
            "model": "plait/single:answer.max_tokens=6",
            "messages": [{"role": "user", "content": words(0, 6)}],
        }
        whole = await client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
        content = whole.choices[0].logprobs.content
        assert len(content) == 6 and [len(each.top_logprobs) for each in content] == [2] * 6
        assert "".join(each.token for each in content).strip() == whole.choices[0].message.content.strip()
        stream = await client.chat.completions.create(**asked, logprobs=True, stream=True)
        told = [token async for chunk in stream for each in chunk.choices if each.logprobs
                for token in each.logprobs.content]  # fmt: skip
        assert len(told) == 6 and all(each.logprob <= 0 for each in told)
