"""What the world does to a run, and that `plait why`, or the line of a command that ran nothing, names the cause: a
server that refuses, an engine that cannot start, a full disk, a port in use, a process that was killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scripts.checkout import python_path
from tests.workers.http.fake_server import FakeServer, Fault
from tests.workers.tiny_model import build

Plait = Callable[..., Any]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, _alone: None) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / "state"))
    monkeypatch.setattr(logging.getLogger("plait"), "handlers", [])  # they write where an earlier test did


@pytest.fixture
def serving() -> Iterator[Callable[[FakeServer], str]]:
    """Serve on a loop of its own, and return the address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened: list[FakeServer] = []

    def serve(server: FakeServer) -> str:
        asyncio.run_coroutine_threadsafe(server.open(), loop).result(10)
        opened.append(server)
        return server.url

    yield serve
    for server in opened:
        asyncio.run_coroutine_threadsafe(server.shut(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A script whose only reply takes its time."""
    (tmp_path / "slow.json").write_text(json.dumps({"replies": [{"text": "yes", "delay": 60}, {"text": "yes"}]}))
    (tmp_path / "quick.json").write_text(json.dumps({"replies": [{"text": "yes"}]}))
    return str(tmp_path / "quick.json")


def told(plait: Plait, done: Any) -> str:
    """Return what a person learns of a command that failed: its own line, and what `plait why` says of the run that
    the line names."""
    assert done.code, done.out
    _, more, run = done.err.partition("more: plait why ")
    return done.err + (plait("why", run.split()[0]).out if more else "")


@dataclass
class ServerFault:
    """A server, the words of the command, and what has to be said."""

    server: Callable[[], FakeServer]
    named: tuple[str, ...]
    words: str = ""


@dataclass(eq=False)
class LateFault(FakeServer):
    """Answers what is asked at the start, and then breaks: with a status and a message, or by silence."""

    fault: Fault = field(default_factory=Fault)
    silent: bool = False

    async def _answer(self, reader: Any, writer: Any, body: dict[str, Any], chat: bool) -> bool:
        if "Zanzibar" in self._asked(body):
            self.faults.append(self.fault)
            self.delay = 60.0 if self.silent else 0.0
        return await super()._answer(reader, writer, body, chat)

    def _asked(self, body: dict[str, Any]) -> str:
        prompt = body.get("prompt")
        return self.decode(prompt) if isinstance(prompt, list) else f"{prompt} {body.get('messages')}"


def late(status: int, message: str) -> Callable[[], FakeServer]:
    return lambda: LateFault(fault=Fault(status=status, message=message))


TOO_LONG = "This model's maximum context length is 512 tokens. However, your request has 9000 input tokens."
CUT_OFF = Fault(after=2)
SERVERS = {
    "no key": ServerFault(lambda: FakeServer(key="right"), ("refused access (401), saying 'bad key", "OPENAI_API_KEY")),
    "a wrong key": ServerFault(
        lambda: FakeServer(key="right"), ("refused access (401), saying 'bad key", "MY_KEY"), "--api-key-env MY_KEY"
    ),
    "a variable without a key": ServerFault(FakeServer, ("NO_SUCH_KEY is not set",), "--api-key-env NO_SUCH_KEY"),
    "a model that is not there": ServerFault(FakeServer, ("no model 'nobody'", "fake-model"), "--model nobody"),
    "a model that went away": ServerFault(late(404, "The model `fake-model` does not exist."), ("does not exist",)),
    "a context too long": ServerFault(late(400, TOO_LONG), (TOO_LONG, "context-overflow", "shorten the prompt")),
    "a server that breaks": ServerFault(late(500, "CUDA error: illegal memory access"), ("illegal memory access",)),
    "a server without memory": ServerFault(late(500, "CUDA out of memory"), ("CUDA out of memory",)),
    "a quota": ServerFault(late(429, "quota of the month is used up"), ("quota of the month is used up",)),
    "a schema that is refused": ServerFault(late(400, "Invalid schema: $ref is not allowed"), ("Invalid schema",)),
    "an answer cut off": ServerFault(lambda: LateFault(fault=CUT_OFF), ("closed the connection before its answer",)),
    "an answer that is no JSON": ServerFault(
        lambda: LateFault(fault=Fault(after=1, send="data: <html>502 Bad Gateway</html>\n\n")),
        ("502 Bad Gateway",),
        "--planner single:answer.stream=true",
    ),
    "no chat template": ServerFault(
        lambda: FakeServer(template=False, completions=False), ("you must provide a chat template",)
    ),
    "an address that is no such server": ServerFault(lambda: FakeServer(prefix="/other"), ("lists no models",)),
    "silence": ServerFault(lambda: LateFault(silent=True), ("seconds",), "--seconds 1.5"),
}


@pytest.mark.parametrize("fault", SERVERS)
def test_what_a_server_refuses_is_said_in_its_words(
    fault: str, plait: Plait, serving: Callable[[FakeServer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "wrong")
    case = SERVERS[fault]
    url = serving(case.server()).replace("/other", "/v1")
    out = told(plait, plait("run", "Where is Zanzibar?", "--base-url", url, *case.words.split()))
    for piece in case.named:
        assert piece in out, out


FOLDERS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no model": (lambda folder: folder.rename(folder.with_name("elsewhere")), ("there is no model at",)),
    "no config.json": (lambda folder: (folder / "config.json").unlink(), ("lacks config.json",)),
    "a config.json that is no JSON": (lambda folder: (folder / "config.json").write_text("{"), ("cannot be read",)),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), ("lacks a tokenizer",)),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ("lacks weights",)),
    "weights cut off": (
        lambda folder: os.truncate(folder / "model.safetensors", 2000), ("model.safetensors is cut off",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FOLDERS)
def test_a_folder_that_is_no_model_is_refused_before_an_engine_starts(fault: str, plait: Plait, tmp_path: Path) -> None:
    spoil, named = FOLDERS[fault]
    spoil(build(tmp_path / "model"))
    done = plait("run", "w1", "--worker", "engine", "--model", tmp_path / "model")
    assert "starting the engine" not in done.err
    for piece in named:
        assert piece in told(plait, done)
    check = next(
        check
        for check in plait("doctor", "--quick", "--json", "--model", tmp_path / "model").json["checks"]
        if check["name"] == "model"
    )
    assert check["grade"] == "fail" and all(piece in check["found"] for piece in named), "no check would have caught it"


SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
MODELS: dict[str, tuple[dict[str, Any], dict[str, str], tuple[str, ...]]] = {
    "heads of a size that attention lacks": (SHAPE, {}, ("attention heads of size 16", "--worker http")),
    "an architecture that vLLM lacks": ({"architectures": ["NobodyForCausalLM"]}, {}, ("NobodyForCausalLM",)),
    "a type that torch lacks": ({"torch_dtype": "float7"}, {}, ("AttributeError", "float7")),
    "weights of another shape": ({"intermediate_size": 256}, {}, ("RuntimeError", "dimension size")),
    "no memory": ({}, {"PLAIT_KV_CACHE_MIB": "100000000"}, ("too little memory", "GiB are free")),
}


@pytest.mark.engine
@pytest.mark.own_engine
@pytest.mark.parametrize("fault", MODELS)
def test_a_model_that_no_engine_runs_is_refused_in_the_engine_s_words(
    fault: str, plait: Plait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, environment, named = MODELS[fault]
    folder = build(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = told(plait, plait("run", "w1", "--worker", "engine", "--model", folder))
    for piece in named:
        assert piece in out, out


def test_thoughts_without_an_answer(plait: Plait, serving: Callable[[FakeServer], str]) -> None:
    async def thinks(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        last = {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": "length"}]}
        writer.write(head + f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())

    url = serving(FakeServer(completions=False, wild=thinks))
    out = told(plait, plait("run", "What?", "--base-url", url, "--set", "thinking=on", "--max-tokens", 4))
    assert "cut-in-thoughts" in out and "thinking_tokens" in out, out


def test_a_form_that_was_cut(plait: Plait) -> None:
    from plait import Orchestrator
    from plait.workers.scripted import Reply, Scripted

    with Orchestrator(workers=[Scripted([Reply(text='{"city": "Ro', finish="length")])]) as orchestrator:
        run = orchestrator.run("Which?", output={"type": "object", "required": ["city"]}).run
    out = plait("why", run).out
    assert "cut-in-form" in out and "--max-tokens" in out, out


def test_a_form_that_is_not_kept(plait: Plait) -> None:
    from plait import Orchestrator
    from plait.workers.scripted import Reply, Scripted

    with Orchestrator(workers=[Scripted([Reply(text='{"town": "Rome"}')])]) as orchestrator:
        run = orchestrator.run("Which?", output={"type": "object", "required": ["city"]}).run
    out = plait("why", run).out
    assert "city" in out and "planner-error" in out, out


def test_a_port_in_use(plait: Plait, script: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        done = plait("serve", "--script", script, "--port", port)
    assert done.code == 2 and f"127.0.0.1:{port} cannot be listened at (Address already in use)" in done.err


def test_a_full_disk(process: Any, script: str) -> None:
    """A file that may not grow stands in for it: the same call fails, with another number."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        running = process("run", "What?", "--script", script)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    _, err = running.communicate(timeout=120)
    assert "runs are not written down" in err and "check space" in err and "state" in err, err


@pytest.mark.parametrize("kib", [8, 64, 120])
def test_a_disk_that_is_full(kib: int, tmp_path: Path, root: Path, script: str) -> None:
    """A disk of a few KiB: it is full at the start, or in the middle of a run."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("only the superuser makes a disk")
    (tmp_path / "disk").mkdir()
    command = (
        f"mount -t tmpfs -o size={kib}k none {tmp_path}/disk && XDG_STATE_HOME={tmp_path}/disk exec {sys.executable} "
        f"-m plait.apps.main run What? --script {script} --planner sample:n=8"
    )
    environment = {**os.environ, "PYTHONPATH": python_path(root)}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert "cannot be used: " in done.stderr and "check space" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_an_mcp_server_that_ends(plait: Plait, script: str) -> None:
    out = told(plait, plait("run", "What?", "--script", script, "--mcp", "false"))
    assert "the MCP server 'false' cannot be used" in out


def test_a_policy_of_one_s_own_that_raises(
    plait: Plait, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_policy.py").write_text(
        "from plait import Policy\n\nclass Bad(Policy):\n"
        "    def rank(self, step, view):\n        raise ValueError('no rank')\n"
    )
    done = plait("run", "What?", "--script", script, "--policy", "my_policy.py:Bad")
    assert "Bad raised ValueError: no rank" in done.err
    run = done.err.partition("more: plait why ")[2].split()[0]
    assert "no rank" in plait("why", run, "--allow", "my_policy.py:Bad").out
    monkeypatch.setattr("plait.core.addresses._allowed", {})
    refused = plait("why", run)
    assert refused.code == 0 and "add --allow my_policy:Bad" in refused.out


def test_a_process_that_was_killed(process: Any, plait: Plait, tmp_path: Path, script: str) -> None:
    running = process("run", "What?", "--script", tmp_path / "slow.json")
    while not (rows := plait("runs", "list", "--json").json["runs"]):
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    out = plait("why", rows[0]["run"]).out
    assert "interrupted" in out and "plait runs resume" in out, out


@pytest.mark.engine
def test_an_actor_that_is_killed(process: Any, plait: Plait, tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(
        'import os\nfrom plait import tool\n\n@tool\ndef fatal(n: int) -> int:\n    """End."""\n    os._exit(1)\n'
    )
    plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "fatal", "args": {"n": 1}}}], "output": "a"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    running = process("run", "--plan", "plan.json", "--tools", "my_tools.py", "--set", "tool_actors=1")
    _, err = running.communicate(timeout=300)
    assert running.returncode == 1 and "more: plait why" in err, err
    out = plait("why", err.partition("more: plait why ")[2].split()[0]).out
    assert "1 step (a): the same prompt or call was running each time that its worker died" in out, out


KILLED = """
import os, signal, sys, threading, time
from plait import Orchestrator
from plait.workers.ray import RayWorker

options = {"model": sys.argv[1], "slots": 4, "kv_cache_memory_bytes": 32 << 20, "threads": 1}
worker = RayWorker(options=options, start_timeout=300.0, restarts=0)

def kill():
    while not worker._live:
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)

with Orchestrator(workers=[worker]) as plait:
    threading.Thread(target=kill).start()
    answer = plait.run("w1 w2 w3", planner="single:answer.max_tokens=400")
print("RUN", answer.run, answer.status)
"""


@pytest.mark.engine
def test_an_engine_s_actor_that_is_killed(plait: Plait, tmp_path: Path, root: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": python_path(root)}
    command = [sys.executable, str(tmp_path / "killed.py"), str(build(tmp_path / "model"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    run, status = done.stdout.partition("RUN ")[2].split()
    out = plait("why", run).out
    assert status == "failed" and "engine-0" in out and "died" in out and "\u2192 " in out, out
