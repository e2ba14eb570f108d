"""`plait runs`, `plait runs list --live` and `plait run --detach`: runs seen and steered from another process."""

# pyright: reportOptionalMemberAccess=false, reportArgumentType=false
from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from plait import AsyncOrchestrator, Budget, Plan, Step, ToolCall, ToolContext, tool
from plait.apps.common.output import Output
from plait.apps.control.command import _shown
from plait.core.errors import UsageError
from plait.runtime.control.socket import Peer, opened, peers
from plait.runtime.control.verbs import Control
from plait.runtime.journal.directory import match_run
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from scripts.checkout import python_path
from tests.machine.invariants import check_invariants

SLOW = Reply(text="word " * 500, tokens_per_second=50)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))


async def ask(peer, *words, **fields):
    return await asyncio.to_thread(lambda: list(peer.ask(*words, **fields)))


@tool
async def book(city: str, ctx: ToolContext) -> str:
    """Book a room."""
    return f"booked in {city}: {await ctx.ask('which date?', choices=['May', 'June'])}"


async def test_runs_are_listed_shown_pruned_paused_and_cancelled_by_socket():
    async with AsyncOrchestrator(workers=[Scripted([SLOW])], journal="off") as plait, opened(Control(plait)) as path:
        assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
        (peer,) = await asyncio.to_thread(peers)
        handle = await plait.submit("x", planner="sample:n=3,answer.stream=true")
        while not handle.tokens:
            await asyncio.sleep(0.01)
        (row,) = await ask(peer, "list")
        assert row["run"] == handle.run and row["status"] == "running" and row["tokens"] > 0
        assert (await ask(peer, "process"))[0]["pid"] == os.getpid()
        await ask(peer, "prune", run=handle.run, step="sample-2")
        await ask(peer, "pause", run=handle.run[:6])
        assert (await ask(peer, "show", run=handle.run))[0]["status"] == "paused"
        await ask(peer, "resume", run=handle.run)
        follows = asyncio.create_task(ask(peer, "watch", None, run=handle.run))
        while not handle._queues:
            await asyncio.sleep(0.01)
        seen = handle.tokens
        while handle.tokens == seen:  # some text after the first who follows
            await asyncio.sleep(0.01)
        await ask(peer, "cancel", run=handle.run, reason="enough")
        answer, news = await handle, await follows
        states = {row["name"]: row["state"] for row in news if row["kind"] == "step"}
        assert states["sample-2"] == "cancelled" and news[-1]["kind"] == "answer"
        assert news[-1]["status"] == answer.status == "cancelled"
        assert any(row["kind"] == "text" for row in news)
        assert await ask(peer, "list") == []
    assert not path.exists()


async def test_a_question_is_answered_from_outside():
    plan = Plan(steps=(Step(name="b", op=ToolCall(tool="book", args={"city": "Rome"})),), output="b")
    async with AsyncOrchestrator(workers=[], tools=[book], journal="off") as plait, opened(Control(plait)) as path:
        handle = await plait.submit("x", plan=plan)
        while not handle.questions:
            await asyncio.sleep(0.01)
        peer = Peer(path)
        (row,) = await ask(peer, "list")
        assert row["questions"][0]["text"] == "which date?"
        with pytest.raises(UsageError, match="answer one of"):
            await ask(peer, "answer", run=handle.run, question="", value="never")
        await ask(peer, "answer", run=handle.run, question="", value="May")
        assert (await handle).answer == "booked in Rome: May"


@pytest.mark.parametrize("how", ["open", "link", "file"])
async def test_a_folder_that_is_not_this_users_alone_is_not_believed(tmp_path, monkeypatch, how):
    """Its sockets are neither asked nor removed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    there, home = tmp_path / "there", tmp_path / "plait"
    there.mkdir(mode=0o700)
    asked: list[bytes] = []

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    server = await asyncio.start_unix_server(met, there / "1.sock")
    async with server:
        if how == "file":
            home.write_text("")
        elif how == "link":
            home.symlink_to(there)
        else:
            there.rename(home)
            home.chmod(0o755)
        assert not await asyncio.to_thread(peers)
        async with (
            AsyncOrchestrator(workers=[], journal="off") as plait,
            opened(Control(plait)) as path,
        ):
            assert path is None
    assert not asked


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_socket_of_another_user_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    home = tmp_path / "plait"
    home.mkdir(mode=0o700)
    code = (
        "import os, socket, sys; link = socket.socket(socket.AF_UNIX); link.bind(sys.argv[1]); "
        "os.setuid(65534); link.listen(); print('up', flush=True); "
        "found, _ = link.accept(); print(found.recv(9) or 'nothing', flush=True); found, _ = link.accept(); "
        "print(found.recv(9) or 'nothing', flush=True)"
    )
    listens = subprocess.Popen([sys.executable, "-c", code, str(home / "1.sock")], stdout=subprocess.PIPE, text=True)
    try:
        assert listens.stdout.readline() == "up\n"
        assert not peers()
        with pytest.raises(OSError, match="another user"):
            list(Peer(home / "1.sock").ask("answer", run="r", value="yes"))
        assert listens.stdout.readline() == listens.stdout.readline() == "nothing\n"
    finally:
        listens.kill()
        listens.wait()
        listens.stdout.close()


def test_what_other_processes_say_obeys_no_terminal():
    text = "t\x1b]8;;\x07\x9b1m"
    row = {"run": "r\x1b]0;x\x07", "pid": 1, "status": text, "planner": text, "text": text, "tokens": 1}
    process = {"pid": 1, "words": ["run", text], "workers": [{"name": text, "slots": 1}], "runs": 1}
    said = io.StringIO()
    Console(file=said, width=300).print(_shown({"processes": [process], "runs": [{**row, "tokens_per_second": 0.0}]}))
    made = Output(said, as_json=False)
    made.report({}, text)
    assert "␛" in said.getvalue() and not set("\x1b\x07\x9b") & set(said.getvalue())


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"nonsense\n", b"[]\n", b'{"do": 1}\n', b'{"do": "list", "x": 1}\n', b'{"do": "cancel"}\n',
             b'{"do": "show", "run": 3}\n', b"[" * 100_000 + b"\n", b"x" * 3_000_000,
             b'{"do": "set", "name": "a", "value": "b"}\n'],
)  # fmt: skip
async def test_nonsense_on_the_socket_is_answered_in_words_or_not_at_all(line):
    async with AsyncOrchestrator(workers=[Scripted([SLOW])], journal="off") as plait, opened(Control(plait)) as path:

        def talk() -> bytes:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(10)
                link.connect(str(path))
                try:
                    link.sendall(line)
                    link.shutdown(socket.SHUT_WR)
                    return link.recv(1 << 20)
                except (BrokenPipeError, ConnectionResetError):
                    return b""

        said = await asyncio.to_thread(talk)
        assert not said or "error" in json.loads(said.splitlines()[0])
        assert await ask(Peer(path), "list") == []


async def test_limits_of_a_run_and_slots_change_while_it_runs_and_the_journal_replays_so(tmp_path):
    worker = Scripted([SLOW], slots=8)
    journal = tmp_path / "runs.db"
    async with AsyncOrchestrator(workers=[worker], journal=journal) as plait, opened(Control(plait)) as path:
        peer = Peer(path)
        handle = await plait.submit("x", planner="sample:n=6,answer.stream=true", budget=Budget(width=1))

        def running() -> int:
            return sum(step.state == "running" and step.kind == "think" for step in handle.steps)

        async def until(count: int) -> None:
            while running() != count:
                await asyncio.sleep(0.01)

        await until(1)
        await ask(peer, "limit", name="width", value="3")
        await until(3)
        assert (await ask(peer, "list"))[0]["budget"]["width"] == 3 == handle.budget.width
        await ask(peer, "set", name="slots", value="4")
        await ask(peer, "limit", name="width", value="none", run=handle.run)
        await until(4)
        assert (await ask(peer, "process"))[0]["workers"][0] == {"name": "scripted", "slots": 4}
        for name, value, said in (
            ("width", "0", "greater than or equal to 1"),
            ("width", "many", "integer"),
            ("widht", "2", "did you mean 'width'"),
            ("beams", "2", "what a planner was given it keeps"),
            ("turns", "3", "has not counted its turns"),
        ):
            with pytest.raises(UsageError, match=said):
                await ask(peer, "limit", name=name, value=value)
        for name, value, said in (
            ("slots", "9", "was started with 8 slots"),
            ("slots", "-1", "must be a number of concurrent jobs"),
            ("width", "2", "log_level and slots are"),
        ):
            with pytest.raises(UsageError, match=said):
                await ask(peer, "set", name=name, value=value)
        with pytest.raises(UsageError, match="no worker 'other'"):
            await ask(peer, "set", name="slots", value="1", worker="other")
        await ask(peer, "limit", name="tokens", value="1")
        answer = await handle  # all that ran is cut, and nothing more starts
        assert answer.status == "partial" or answer.failure is not None
    assert replay(journal, Plugins(), check=check_invariants).divergence is None
    assert [event.kind for event in Journal(journal).events()].count("limited") == 3


def test_the_commands_say_what_is_there_and_what_is_not(plait, tmp_path):
    assert plait("runs", "list", "--live", "--json").json == {"processes": [], "runs": []}
    assert plait("runs", "list", "--live").out.startswith("0 runs")
    for words in (
        ("cancel", "abcd"),
        ("show", "-f"),
        ("pause",),
        ("cancel", "abcd", "x"),
        ("set", "width", "2", "abcd"),
    ):
        done = plait("runs", *words)
        assert done.code == 2 and "plait runs list --live" in done.err, words
    done = plait("runs", "list", "--follow")
    assert done.code == 2 and "--follow goes with --live" in done.err
    done = plait("runs", "answer", "abcd")
    assert done.code == 2 and "the answer is missing: `plait runs answer abcd ANSWER`" in done.err
    done = plait("runs", "resume")
    assert done.code == 2 and "no run is running: name one that `plait runs list` shows" in done.err
    done = plait("runs", "show", "--from", tmp_path)
    assert done.code == 2 and "there is no run in" in done.err
    assert "none is open" in plait("runs", "answer", "abcd:x?1", "yes").err
    assert "run 'abcd' has no open question" in plait("runs", "answer", "abcd", "yes").err


@pytest.mark.parametrize("where", [[], ["--from", "j.sqlite"]])
async def test_no_call_is_allowed_by_an_id_that_is_empty_or_too_short(plait, where):
    """`plait runs answer "$Q" yes` with an empty Q allowed a dangerous call of the only run that asked."""
    plan = Plan(steps=(Step(name="b", op=ToolCall(tool="book", args={"city": "Rome"})),), output="b")
    async with AsyncOrchestrator(workers=[], tools=[book], journal="j.sqlite") as running, opened(Control(running)):
        handle = await running.submit("x", plan=plan)
        while not handle.questions:
            await asyncio.sleep(0.01)
        for given, why in (("", "empty"), (handle.run[:1], "at least 4"), (handle.run[:3], "at least 4")):
            done = await asyncio.to_thread(plait, "runs", "answer", given, "May", *where)
            assert done.code == 2 and why in done.err and handle.questions, (given, done.err)
        done = await asyncio.to_thread(plait, "runs", "answer", f"{handle.run[:4]}:b?1", "May", *where)
        assert done.code == 2 and "no open question" in done.err, "of a question the whole id"
        done = await asyncio.to_thread(plait, "runs", "answer", handle.run[:4], "May", *where)
        assert done.code == 0, done.err
        assert (await handle).answer == "booked in Rome: May"


async def test_every_verb_refuses_a_run_that_is_hardly_named(plait):
    async with (
        AsyncOrchestrator(workers=[Scripted([SLOW])], journal="off") as running,
        opened(Control(running)) as path,
    ):
        handle = await running.submit("x")
        peer = Peer(path)
        verbs = {"cancel": [], "pause": [], "resume": []}
        for given, why in (("", "empty"), (handle.run[:1], "at least 4"), (handle.run[:3], "at least 4")):
            with pytest.raises(UsageError, match=why):
                await ask(peer, "pause", run=given)
            for verb, words in verbs.items():
                done = await asyncio.to_thread(plait, "runs", verb, given, *words)
                assert done.code == 2 and why in done.err, (verb, given, done.err)
            for words in (["cancel", given, "x"], ["set", "width", "2", given]):
                done = await asyncio.to_thread(plait, "runs", *words)
                assert done.code == 2 and why in done.err, (words, done.err)
        shown = await asyncio.to_thread(plait, "runs", "show", handle.run[:1])  # to look is harmless
        assert shown.out.startswith(f"run {handle.run}: running")
        done = await asyncio.to_thread(plait, "runs", "cancel")  # none named: the only one
        assert done.code == 0 and (await handle).status == "cancelled"


def test_a_full_id_counts_however_short_it_is_and_several_are_listed():
    assert match_run("ab", ["ab", "abcdef"], changes=True) == "ab"
    assert match_run("abcd", ["ab", "abcdef"], changes=True) == "abcdef"
    assert match_run("ab", ["abcdef"], changes=False) == "abcdef"
    assert match_run(None, ["ab"], changes=True) == "ab"
    assert match_run(None, [], changes=True) is None
    with pytest.raises(UsageError, match="2 runs are active: give the id of one: abcde1, abcde2"):
        match_run(None, ["abcde1", "abcde2"], changes=False)
    with pytest.raises(UsageError, match="begins the ids of 2 runs"):
        match_run("abcd", ["abcde1", "abcde2"], changes=True)


def test_a_detached_run_is_found_steered_and_ends(plait, script, tmp_path, root):
    path = script({"text": "word " * 500, "tokens_per_second": 20})
    words = ["run", "x", "--script", str(path), "--journal", "off", "--json"]
    env = {**os.environ, "PYTHONPATH": python_path(root)}
    made = subprocess.run(
        [sys.executable, "-m", "plait", *words, "--detach"], capture_output=True, env=env, timeout=500
    )
    launch = json.loads(made.stdout)
    try:
        assert launch["event"] == "launch" and Path(launch["socket"]).exists()
        run = launch["run"]
        assert [row["run"] for row in plait("runs", "list", "--live", "--json").json["runs"]] == [run]
        assert run[:8] in plait("runs", "list", "--live").out
        assert plait("runs", "show", run[:6]).out.startswith(f"run {run}: running")
        assert plait("runs", "set", "log_level", "info", "--json").json["pids"] == [launch["pid"]]
        assert plait("runs", "set", "width", "2", run[:8]).out == f"limit width 2: run {run}\n"
        assert plait("runs", "list", "--live", "--json").json["runs"][0]["budget"]["width"] == 2
        assert plait("runs", "cancel", run, "--json").json == {"run": run, "done": "cancel", "reason": ""}
        until = time.monotonic() + 300
        while (Path(launch["socket"]).exists() or not Path(launch["output"]).read_text()) and time.monotonic() < until:
            time.sleep(0.05)  # the socket goes first, the answer is written then
        assert json.loads(Path(launch["output"]).read_text())["status"] == "cancelled"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(launch["pid"], signal.SIGKILL)
    broken = subprocess.run(
        [sys.executable, "-m", "plait", "run", "x", "--script", str(tmp_path / "none.json"), "--detach"],
        capture_output=True, env=env, timeout=500,
    )  # fmt: skip
    assert broken.returncode and b"cannot be read" in broken.stderr
