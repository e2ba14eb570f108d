"""Arithmetic sampling over HTTP: codes go to servers that sample by them, and to no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from plait.workers._shared.arithmetic_codes import CODE

from .fake_server import FakeServer, Fault
from .http_kit import ask, fails, serving


@dataclass
class ByCodes(FakeServer):
    """Refuses what is no code, as vLLM with the logits processor does."""

    def _refusal(self, body: dict[str, Any], chat: bool, fault: Fault) -> tuple[int, str] | None:
        if body.get("vllm_xargs", {}).get(CODE) == "?":
            return 400, f"{CODE} of arithmetic sampling is a number from 0 to below 1, and not '?'"
        return super()._refusal(body, chat, fault)


@dataclass
class InTheStream(FakeServer):
    """Refuses inside the stream, as vLLM 0.32 does: requests are checked when their answers have begun."""

    def _chunks(self, body: dict[str, Any], *others: Any) -> Iterator[dict[str, Any]]:
        if body.get("vllm_xargs", {}).get(CODE) == "?":
            said = f"{CODE} of arithmetic sampling is a number from 0 to below 1, and not '?'"
            return iter([{"error": {"message": said, "type": "BadRequestError", "code": 400}}])
        return iter(super()._chunks(body, *others))


def codes(server: FakeServer) -> list[Any]:
    return [body["vllm_xargs"][CODE] for _, body in server.requests if "vllm_xargs" in body]


@pytest.mark.parametrize("kind", [ByCodes, InTheStream])
@pytest.mark.parametrize("ids", [True, False])
async def test_the_server_is_asked_once_and_then_gets_the_codes(ids: bool, kind: type[FakeServer]) -> None:
    async with serving(kind(ids=ids)) as (server, worker):
        lines = (ask(worker, attempt=i, arithmetic=i / 4, temperature=1.0, seed=i) for i in range(4))
        assert {result.text.strip() for result in await asyncio.gather(*lines)} == {"alpha beta gamma delta"}
        assert sorted(codes(server), key=str) == [0.0, 0.25, 0.5, 0.75, "?"]


async def test_a_server_that_does_not_sample_by_codes_is_refused_in_words() -> None:
    async with serving() as (server, worker):
        for _ in range(2):
            failure = await fails(worker, arithmetic=0.25, temperature=1.0)
            assert "--logits-processors plait.workers.engine.arithmetic:Arithmetic" in failure.message
        assert codes(server) == ["?"], "it is asked once, and gets no work"
    async with serving(FakeServer(strict=True)) as (_, worker):
        assert "does not sample by arithmetic" in (await fails(worker, arithmetic=0.25, temperature=1.0)).message


async def test_a_greedy_step_needs_no_code() -> None:
    async with serving() as (server, worker):
        assert (await ask(worker, arithmetic=0.25, temperature=0.0)).text
        assert codes(server) == []
