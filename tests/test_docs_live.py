"""The pages' commands that need a run, a server, an engine or Ray: run as they stand, and compared with what the pages
say. Numbers differ from run to run, and so does which branch was stopped: names of steps, words and answers do not."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.checkout import python_path
from tests.workers.http.fake_server import FakeServer

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ADDRESS = "http://localhost:8000/v1"
SCRIPT = """echo '{"replies": [{"text": "Six sevens are 42. Answer: 42"}]}' > replies.json
plait run "What is 6 times 7?" --script replies.json --planner sample:n=3
RUN=$(plait runs list --json | python -c 'import json, sys; print(json.load(sys.stdin)["runs"][0]["run"])')
"""
AREA = """cat > tools.py <<'END'
from plait import tool

@tool
def area(width: float, height: float) -> float:
    "Return the area of a rectangle."
    return width * height
END
cat > area.json <<'END'
{"steps": [{"name": "room", "op": {"kind": "call", "tool": "area", "args": {"width": 4, "height": 2.5}}}],
 "output": "room"}
END
"""


class LiveCommand(NamedTuple):
    """Commands of a page: from the line that begins so, as many lines as there are up to a blank one."""

    page: str
    begins: str
    before: str = ""
    """What the page takes for granted."""
    stdin: str = ""
    says: tuple[str, ...] = ()
    """What comes of it, beside what the page shows."""


RUNS = [
    LiveCommand("howto/durable-runs.md", "plait runs list  ", SCRIPT, says=("What is 6 times 7?", "3 of 3 votes")),
    LiveCommand("howto/reading-a-trace.md", "plait runs view RUN --format otel --out", SCRIPT, says=("spans.jsonl",)),
]
SERVED = [
    LiveCommand("howto/own-server.md", "PLAIT_WORKER=http", says=("8 of 8 votes",)),
    LiveCommand("quickstart.md", 'plait run "How warm is Rome'),
    LiveCommand("howto/repl.md", "plait repl --worker http", stdin="Why?\n/branches\n/quit\n", says=("8 of 8 votes",)),
]
ENGINES = [
    LiveCommand("quickstart.md", 'plait run "3 5 7 11 -> 24"'),
    LiveCommand("howto/reading-a-trace.md", 'plait run "18 4 12 14', 'RUN=""\n', says=("done, verified", ".html")),
    LiveCommand("howto/repl.md", "plait repl --task countdown --planner threads", stdin="3 5 7 11 -> 24\n/quit\n",
                says=("11 × 7 = 77, 77 − 5 = 72, 72 ÷ 3 = 24", "done, verified")),
    LiveCommand("howto/ray-cluster.md", 'plait run "2 18 1 3 -> 59"'),
    LiveCommand("howto/ray-cluster.md", "plait run --plan area.json", AREA, says=("10.0", "done")),
]  # fmt: skip


def written(case: LiveCommand) -> tuple[str, str]:
    """Return the commands of a case, and what the page says that they print."""
    lines = (DOCS / case.page).read_text(encoding="utf-8").splitlines()
    first = next(at for at, line in enumerate(lines) if line.strip().startswith(case.begins))
    last = next(at for at in range(first, len(lines)) if lines[at].strip() in ("", "```"))
    commands = "\n".join(line.strip() for line in lines[first:last])
    commands = re.sub(r"\b3f9a\w*|(?<!\$)\bRUN\b", "$RUN", re.sub(r"(?m)^.*--send.*$", "", commands))
    after = [line.strip() for line in lines[last + (lines[last].strip() == "```") :]]
    first = next((at for at, line in enumerate(after) if line), 0)
    prints = after[first + 1 : after.index("```", first + 1)] if after[first] == "```" else []
    return commands.replace(" $RUN ", ' "$RUN" '), "\n".join(prints)


def shape(line: str) -> str:
    """Return what of a line is the same in every run: the name of a step, or the words without numbers of any kind."""
    step = re.match(r"[│ ]*[├└]─ \S (\S+)", line)
    words = re.sub(r" · \S+ tokens cancelled| · \S+ of \S+ prompt tokens cached|time: .*", "", line)
    return step[1] if step else re.sub(r"[\d.,]+", "N", " ".join(words.split()))


def ran(case: LiveCommand, folder: Path, address: str = ADDRESS) -> None:
    """Run the commands of a case and compare. Raises `AssertionError`."""
    commands, prints = written(case)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "plait").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m plait.apps.main "$@"\n')
    (folder / "plait").chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PLAIT_", "OTEL_"))}
    environment |= {
        "PATH": f"{folder}:{Path(sys.executable).parent}:{environment['PATH']}", "COLUMNS": "140",
        "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": python_path(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", case.before + commands.replace(ADDRESS, address)],
        cwd=folder, env=environment, input=case.stdin, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    out = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0 and "Traceback" not in out, out[-3000:]
    shapes = {shape(line) for line in out.splitlines()}
    lost = [line for line in prints.splitlines() if shape(line) and shape(line) not in shapes]
    assert not lost and all(word in out for word in case.says), f"{lost}\n{out[-3000:]}"


def named(case: LiveCommand) -> str:
    return f"{case.page} {case.begins[:30]}"


@pytest.mark.parametrize("case", RUNS, ids=named)
def test_commands_about_a_run(case: LiveCommand, tmp_path: Path) -> None:
    ran(case, tmp_path)


def replies(prompt: str) -> str:
    """Return what a small model says: the plan of the quickstart, its joiner, an answer."""
    if "Rome" not in prompt:
        return "Answer: 391"
    if "2750000" in prompt.replace(",", ""):
        return "Thought: I know both.\nAction: Finish(Rome has 17.5 °C and 2,750,000 inhabitants.)"
    return '1. temperature("Rome")\n2. population("Rome")\n3. join()<END_OF_PLAN>'


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a server."""
    loop, server = asyncio.new_event_loop(), FakeServer(reply=replies)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(coroutine: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine(), loop).result(10)  # type: ignore[arg-type]

    wait(server.open)
    yield server.url
    wait(server.shut)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.mark.parametrize("case", SERVED, ids=named)
def test_commands_to_a_server(case: LiveCommand, address: str, tmp_path: Path) -> None:
    ran(case, tmp_path, address)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", ENGINES, ids=named)
def test_commands_on_engines(case: LiveCommand, tmp_path: Path) -> None:
    ran(case, tmp_path)
