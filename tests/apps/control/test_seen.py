"""Every process that holds runs is seen from outside: `plait runs list --live` finds what each command runs."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from plait import AsyncOrchestrator, Orchestrator
from plait.runtime.control.socket import opened, peers
from plait.runtime.control.verbs import Control
from plait.workers.scripted import Reply, Scripted

ASKED = "what is seen?"


def by_run(start: Callable[..., Any], words: list[str], _: Any) -> Any:
    return start("run", ASKED, *words)


def by_batch(start: Callable[..., Any], words: list[str], tmp_path: Any) -> Any:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": ASKED}) + "\n")
    return start("batch", rows, "--out", tmp_path / "out.jsonl", *words)


def by_repl(start: Callable[..., Any], words: list[str], _: Any) -> Any:
    child = start("repl", *words)
    child.stdin.write(f"{ASKED}\n")
    child.stdin.flush()
    return child


def by_serve(start: Callable[..., Any], words: list[str], _: Any) -> Any:
    pytest.importorskip("uvicorn")
    child = start("serve", "--port", "0", *words)
    address = next(word for line in child.stderr for word in line.split() if word.startswith("http"))
    body = json.dumps({"model": "q", "messages": [{"role": "user", "content": ASKED}]}).encode()
    asked = urllib.request.Request(f"{address}/chat/completions", body, {"content-type": "application/json"})

    def ask() -> None:
        try:
            urllib.request.urlopen(asked).read()
        except OSError:  # the server is stopped while it answers
            pass

    threading.Thread(target=ask, daemon=True).start()
    return child


def by_mcp(start: Callable[..., Any], words: list[str], _: Any) -> Any:
    pytest.importorskip("mcp")
    child = start("mcp", *words)
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    for said in (
        {"id": 1, "method": "initialize", "params": about},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "start", "arguments": {"question": ASKED}}},
    ):
        child.stdin.write(json.dumps({"jsonrpc": "2.0", **said}) + "\n")
        child.stdin.flush()
    return child


@pytest.mark.parametrize("by", [by_run, by_batch, by_repl, by_serve, by_mcp])
def test_what_a_command_has_under_way_is_listed(
    by: Any, process: Any, script: Any, tmp_path: Any, tmp_path_factory: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    path = script({"text": "word " * 4000, "tokens_per_second": 4})  # 512 tokens: two minutes
    words = ["--script", str(path), "--journal", "off", "--planner", "single"]

    def start(*said: object) -> subprocess.Popen[str]:
        return process(*map(str, said), stdin=subprocess.PIPE)

    child = by(start, words, tmp_path)
    rows: list[dict[str, Any]] = []
    while not rows:
        assert child.poll() is None, child.stderr.read()
        rows = [row for peer in peers() for row in peer.ask("list")]
        time.sleep(0.1)
    (row,) = rows
    assert row["text"] == ASKED and row["status"] == "running"
    ((about,),) = ([*peer.ask("process")] for peer in peers())
    assert about["pid"] == child.pid
    (peer,) = peers()
    assert [*peer.ask("cancel", run=row["run"])], "and it is steered"


SLOW = Reply(text="word " * 4000, tokens_per_second=20)


def listed() -> list[dict[str, Any]]:
    return [row for peer in peers() for row in peer.ask("list")]


@pytest.mark.parametrize("control", [False, True])
async def test_a_program_is_seen_if_it_asks_for_that(
    control: bool, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    async with AsyncOrchestrator(workers=[Scripted([SLOW])], journal="off", control=control) as orchestrator:
        handle = await orchestrator.submit(ASKED)
        rows = await asyncio.to_thread(listed)
        assert [row["run"] for row in rows] == ([handle.run] if control else [])
        if control:
            (peer,) = await asyncio.to_thread(peers)
            assert await asyncio.to_thread(lambda: [*peer.ask("cancel", run=handle.run)])
            assert (await handle).status == "cancelled"
    assert not peers(), "the socket goes with the orchestrator"


def test_a_program_without_a_loop_is_seen_if_it_asks_for_that(
    tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    with Orchestrator(workers=[Scripted([SLOW])], journal="off", control=True) as orchestrator:
        for _ in orchestrator.stream(ASKED, modes=["text"]):
            break
        assert not listed(), "a stream that was left is given up"
        (peer,) = peers()
        (about,) = peer.ask("process")
        assert about["workers"] == [{"name": "scripted", "slots": about["workers"][0]["slots"]}, about["workers"][1]]
    assert not peers()


@pytest.mark.parametrize("turns", range(7))
async def test_whoever_has_just_come_is_let_go(turns: int) -> None:
    """A process looks who is there while another one closes: the connection ends with it, and is not left open."""
    with socket.socket(socket.AF_UNIX) as link:
        async with opened(Control(cast("Any", None))) as path:
            assert path is not None
            link.connect(str(path))
            for _ in range(turns):  # as far as the loop has taken the connection in
                await asyncio.sleep(0)
        link.settimeout(0)
        with suppress(ConnectionError):
            assert link.recv(1) == b""
