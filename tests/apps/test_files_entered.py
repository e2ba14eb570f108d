"""How many files of ours one request enters: a reader who follows it has to open so many. Lower the limits with each
file that goes; raise none."""

from __future__ import annotations

import io
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

import plait
from plait import AsyncOrchestrator
from plait.core.ops import Plugin
from plait.workers.scripted import Reply, Scripted

SERVER = Path(__file__).parents[2] / "packages/plait-server/plait_server"
OURS = (*map(Path, plait.__path__), SERVER)
BY_SDK = 39
BY_SERVER = 57
BY_REPL = 51
"""One more each since the driver's pump is a class with a file of its own. The server has four more: admission by
tenant, its health, what drives the dialects, and sessions of clients."""


async def entered(work: Callable[[], Awaitable[object]]) -> list[str]:
    """Return the files of ours in which a function is called while something is done: the fewest of three times, for
    on a busy machine what is done now and then may fall into a request."""
    return min([await _entered(work) for _ in range(3)], key=len)


async def _entered(work: Callable[[], Awaitable[object]]) -> list[str]:
    files: set[str] = set()

    def look(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        await work()
    finally:
        sys.setprofile(None)
    paths = ((Path(file), root) for file in files for root in OURS)
    return sorted(str(file.relative_to(root)) for file, root in paths if file.is_relative_to(root))


def worker() -> Scripted:
    return Scripted([Reply(text="answer: 4")])


def within(files: list[str], limit: int) -> None:
    if len(files) > limit:
        pytest.fail(f"a request enters {len(files)} files, and {limit} are the most:\n" + "\n".join(files))


async def test_by_the_sdk() -> None:
    async with AsyncOrchestrator(workers=[worker()], journal="off") as orchestrator:

        async def ask() -> None:
            assert (await orchestrator.run("What is 2 + 2?", planner="single")).answer == "4"

        await ask()  # what is imported and made once is no part of a request
        within(await entered(ask), BY_SDK)


async def test_by_the_server() -> None:
    pytest.importorskip("starlette")
    from plait.runtime.client.config import Config
    from plait_server.app import build
    from plait_server.service import Service
    from plait_server.settings import Settings

    workers = [worker()]
    service = Service(AsyncOrchestrator(config=Config(journal="off"), workers=workers), Settings(), workers)
    app: Any = build(service)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:

            async def ask() -> None:
                body = {"model": "plait/single", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
                answer = await client.post("/v1/chat/completions", json=body)
                assert answer.json()["choices"][0]["message"]["content"] == "answer: 4"

            await ask()
            within(await entered(ask), BY_SERVER)


async def test_by_the_repl(tmp_path: Path) -> None:
    """A question on the plain REPL: its text on a line, the answer and the tree of its steps on the screen."""
    pytest.importorskip("prompt_toolkit")
    from plait.apps.repl.conversation import Repl
    from plait.apps.repl.session import ReplSession
    from plait.apps.repl.state import Manner
    from plait.apps.repl.view import Screen
    from plait.runtime.client.config import Config

    script = tmp_path / "script.json"
    script.write_text('{"replies": [{"text": "answer: 4"}]}')
    config = Config(worker="scripted", script=script, journal="off", planner=Plugin(name="single"))
    shown, wrong = io.StringIO(), io.StringIO()
    repl = Repl(ReplSession(config, Manner()), Screen(shown, errors=wrong))

    async def ask() -> None:
        await repl.take("What is 2 + 2?")
        assert not repl.failed, wrong.getvalue()

    await ask()
    within(await entered(ask), BY_REPL)
    assert shown.getvalue().splitlines().count("4") >= 2
    await repl.close()
