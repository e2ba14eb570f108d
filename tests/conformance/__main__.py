"""Runs the clients and prints, or writes, the table."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tests.tenants_in_situations import SITUATIONS, Situation, others, settings
from tests.workers.vllm_server import vllm_process

from . import page
from .rows import Row

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENTS = {
    "openai2": ("instructor_modes", "llama_index_llm"),
    "frameworks": (
        "adk_agents", "agent_framework_agents", "agno_agents", "autogen_agents", "deepeval_metrics",
        "guidance_programs", "haystack_generators", "outlines_forms", "semantic_kernel_chat",
    ),
    "frameworks2": ("crewai_crews", "strands_agents"),
}  # fmt: skip
"""The clients of environments other than `newest`: those with a 2 do not take the newest `openai`."""
BESIDE = "guidellm_bench"
"""A client that runs in the environment of plait, for its PyTorch, with a folder of packages beside it."""
TOOLS = ("mcp_inspector", "mcp_python")
"""Clients that talk to `plait mcp`, as a server of tools. A server of models is none."""

SCRIPTED = ("coding_agents", "mastra_node", *ENVIRONMENTS["frameworks"], *ENVIRONMENTS["frameworks2"])
"""Clients that are not asked before a real model: most of their checks need calls or forms, which a small one seldom
writes."""

NO_TOOLS = "a server of models has no tools"


def clients(only: Sequence[str] = ()) -> list[str]:
    """Return the names of the clients that there are, or of those of them that are named, in their order."""
    files = [path for path in sorted((HERE / "clients").iterdir()) if path.suffix in (".py", ".mjs")]
    names = [path.stem for path in files if path.stem != "__init__"]
    return [name for name in only if name in names] if only else names


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    """Start the upstream without a model, and return its address."""
    with started([sys.executable, "-m", "tests.conformance.upstream"]) as child:
        yield line_of(child, "http")


@contextlib.contextmanager
def vllm(folder: str, model: str) -> Iterator[str]:
    """Start `vllm serve` with a real model, and return its address. It decodes greedily unless it is asked not to, so
    that what is said direct can be compared with what is said through plait."""
    greedy = json.dumps({"temperature": 0, "max_new_tokens": 32})
    settings = {
        "override-generation-config": greedy, "chat-template": HERE / "chat_template.jinja", "dtype": "float32",
        "tool-call-parser": "hermes", "max-model-len": 8192, "kv-cache-memory-bytes": 1 << 30,
    }  # fmt: skip
    log = ROOT / "build" / "vllm.log"
    log.parent.mkdir(exist_ok=True)
    flags = ("--enable-auto-tool-choice", "--enable-tokenizer-info-endpoint")
    with vllm_process(Path(folder), model, log, *flags, **settings) as (base, process):
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{base}/health", timeout=5).close()
                break
            if process.poll() is not None:
                raise RuntimeError(f"`vllm serve` did not start: see {log}")
            time.sleep(0.5)
        yield f"{base}/v1"


@contextlib.contextmanager
def plait(base: str, model: str = "q", situation: Situation = "open") -> Iterator[str]:
    """Start `plait serve` before an upstream, and return its address."""
    command = [sys.executable, "-m", "plait", "serve", "--port", "0", "--upstream", base, "--journal", "off"]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        (config := Path(folder, "plait.toml")).write_text(settings(situation))
        served = line_of(stack.enter_context(started([*command, "--config", str(config)])), "http")
        if situation == "busy":
            stack.enter_context(others(served, model))
        yield served


@contextlib.contextmanager
def plait_mcp(base: str) -> Iterator[str]:
    """Start `plait mcp` before an upstream, and return its address."""
    port = free_port()
    command = [sys.executable, "-m", "plait", "mcp", "--http", f"127.0.0.1:{port}", "--base-url", base]
    with started([*command, "--journal", "off"]) as child:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if child.poll() is not None:
                raise RuntimeError("`plait mcp` did not start")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a server, and end it."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            yield child
        finally:
            child.terminate()


def line_of(child: subprocess.Popen[str], word: str) -> str:
    """Return the address that a server prints when it listens."""
    assert child.stdout is not None
    for line in child.stdout:
        if found := [each for each in line.split() if each.startswith(word)]:
            return found[0]
    raise RuntimeError("the server did not start")


def python_of(environments: Path | None, client: str) -> str:
    """Return the Python that has a client, of those that `make conformance` makes."""
    if environments is None or client == BESIDE:
        return sys.executable
    name = next((name for name, clients in ENVIRONMENTS.items() if client in clients), "newest")
    return str(environments / name / "bin" / "python")


def checked(
    environments: Path | None, client: str, base: str, model: str, real: bool = False
) -> dict[str, dict[str, Any]]:
    """Run one client's checks, and return what came of each. `real`: any text of the upstream's will do."""
    python = python_of(environments, client)
    script = HERE / "clients" / f"{client}.mjs"
    command = [python, str(HERE / "child.py"), client]
    if script.exists():  # beside the packages, as Node looks for them there
        copy = Path(python).parent.parent.parent / "node" / script.name
        if not copy.parent.exists():
            return {"": {"check": "", "problem": "not installed"}}
        for file in (script, HERE / "expected.mjs"):
            (copy.parent / file.name).write_text(file.read_text())
        command = ["node", str(copy)]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if real:
        kept["CONFORMANCE_REAL"] = "1"
    if environments is not None:
        kept["CONFORMANCE_AGENTS"] = str((environments / "agents").resolve())
    if client == BESIDE and environments is not None:
        kept["PYTHONPATH"] = str((environments / "guidellm").resolve())
    done = subprocess.run([*command, base, model], capture_output=True, text=True, timeout=1800, env=kept, cwd=HERE)
    rows = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("CHECK ")]
    if done.returncode or not rows:
        raise RuntimeError(f"the checks of {client} broke down: {done.stderr[-2000:]}")
    return {row["check"]: row for row in rows}


def table(
    environments: Path | None,
    base: str,
    model: str,
    only: Sequence[str] = (),
    real: bool = False,
    at_once: int = 1,
    situation: Situation = "open",
) -> Iterator[list[Row]]:
    """Yield the rows of a client, one for each check, made against an upstream and through plait; so many clients ask
    side by side."""
    names = [name for name in clients(only) if not (real and name in SCRIPTED)]
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(plait(base, model, situation))
        tools = stack.enter_context(plait_mcp(base)) if any(client in TOOLS for client in names) else ""

        def rows_of(client: str) -> list[Row]:
            if client in TOOLS:
                told = checked(environments, client, tools, model, real)
                return [
                    Row(client, row.get("version", ""), name, NO_TOOLS, row["problem"]) for name, row in told.items()
                ]
            direct, through = (checked(environments, client, address, model, real) for address in (base, served))
            return [
                Row(client, one.get("version", ""), name, one["problem"], two["problem"] or other(one, two))
                for name, one in direct.items()
                for two in [through.get(name, {"problem": "was not run"})]
            ]

        side_by_side = ThreadPoolExecutor(at_once)
        try:
            for done in in_turn([side_by_side.submit(rows_of, client) for client in names]):
                yield done.result()
        finally:
            side_by_side.shutdown(wait=False, cancel_futures=True)


def in_turn(jobs: Iterable[Future[list[Row]]]) -> Iterator[Future[list[Row]]]:
    """Yield jobs as they end. SIGTERM is heeded between two looks: an exception of its handler would leave the locks of
    the waiting as they are, and a second one the clean-up."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        left = set(jobs)
        while left and not asked:
            ended, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
            yield from ended
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if asked else before)
    if asked:
        sys.exit(1)


def other(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """Return what a real model said through plait, if it said something else direct."""
    pairs = zip(one.get("texts", ()), two.get("texts", ()), strict=False)
    differ = [] if one["problem"] else [(direct, through) for direct, through in pairs if direct != through]
    return f"another text: {differ[0][1]!r} and not {differ[0][0]!r}" if differ else ""


def show(rows: Sequence[Row]) -> None:
    """Print rows."""
    for row in rows:
        mark = "BROKEN" if row.broken else "ok" if not row.through else "both differ" if row.direct else ""
        sys.stdout.write(f"{mark:12} {row.client:16} {row.check:44} {row.direct[:80]} | {row.through[:300]}\n")
    sys.stdout.flush()


def end(*_: object) -> None:
    """End, and the servers too. A second signal does not break into that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main() -> int:
    """Run, print, and write where that was asked for. 1: a client loses something by plait."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--environments", type=Path, help="folder of those that `make conformance` makes")
    parser.add_argument("--upstream", help="a server of models in the place of the one without a model")
    parser.add_argument("--real", metavar="FOLDER", help="a model: `vllm serve` with it is the upstream")
    parser.add_argument("--model", default="q", help="its name at the server")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--at-once", type=int, default=1, help="clients that ask side by side")
    parser.add_argument("--situation", choices=SITUATIONS, default="open", help="without keys, with, among others")
    parser.add_argument("--write", action="store_true", help="keep the rows, and make the page of them")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, end)
    # clients run in another folder
    environments = None if given.environments is None else given.environments.absolute()
    with contextlib.ExitStack() as stack:
        real = bool(given.upstream or given.real)
        if given.real:
            base = stack.enter_context(vllm(given.real, given.model))
        else:
            base = given.upstream or stack.enter_context(upstream())
        rows = list[Row]()
        for told in table(environments, base, given.model, given.only, real, given.at_once, given.situation):
            rows += told
            show(told)
            if given.write:
                page.kept(told, real)
    broken, wrong = sum(row.broken for row in rows), sum(row.wrong for row in rows)
    sys.stdout.write(
        f"{len(rows)} checks; {broken} pass direct and fail through plait, {wrong} of them without a reason\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
