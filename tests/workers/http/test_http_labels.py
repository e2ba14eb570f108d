"""Probabilities of labels, from the likeliest tokens that a server lists."""

from __future__ import annotations

import pytest

from .fake_server import FakeServer
from .http_kit import ask, fails, serving


@pytest.mark.parametrize("chat", [False, True])
async def test_labels_are_looked_for_among_the_likeliest_tokens(chat: bool) -> None:
    async with serving(FakeServer(completions=not chat)) as (server, worker):
        result = await ask(worker, labels=("t2", "t1", "zz"), max_tokens=1)
        assert result.labels == pytest.approx({"t1": -1.6, "t2": -2.5}) and result.text == "t1"
        assert "return_tokens_as_token_ids" not in server.requests[-1][1]
        failure = await fails(worker, labels=("yes", "no"), max_tokens=1)
        assert "none of the labels (yes, no) is among" in failure.message


async def test_a_server_that_lists_no_likely_tokens_cannot_tell_labels() -> None:
    async with serving(FakeServer(tops=False)) as (_, worker):
        failure = await fails(worker, labels=("t0", "t1"), max_tokens=1)
        assert "does not list the likeliest tokens" in failure.message
