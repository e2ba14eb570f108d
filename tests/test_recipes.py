"""Every recipe of docs/README.md has code, and a test runs it: here, or the one that is named."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import plait
from plait import AsyncOrchestrator, Orchestrator
from plait.workers.scripted import Reply, Scripted
from plait_server.adapters.local import local_server
from scripts.checkout import python_path

ROOT = Path(__file__).resolve().parent.parent
HOWTO = ROOT / "docs" / "howto"
RUN_BY = {
    "howto/votes-on-your-data.md": "tests/test_docs.py",
    "howto/web-page.md": "tests/test_recipes.py",
    "howto/typed-extraction.md": "tests/test_recipes.py",
    "howto/approvals.md": "tests/test_recipes.py",
    "howto/phoenix-langfuse.md": "tests/test_recipes.py",
    "howto/coding-agents.md": "tests/conformance/agent_turns.py",
    "howto/deploy.md": "tests/test_deploy.py",
    "howto/ray-cluster.md": "tests/test_docs_live.py",
    "howto/beside-others.md": "tests/test_recipes.py",
    "gallery.md": "tests/test_recipes.py",
}
"""By recipe: the file whose tests run its code."""
SERVER = "http://localhost:8000/v1"


def samples(page: str) -> list[str]:
    """Return the Python samples of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (HOWTO / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def scripted(cls: Any, *replies: str) -> Any:
    """Return an orchestrator's class whose model is a script, whatever address its caller names."""

    def make(*, base_url: str, **fields: Any) -> Any:
        assert base_url == SERVER
        return cls(workers=[Scripted([Reply(text=text, times=1) for text in replies])], journal="off", **fields)

    return make


def test_each_recipe_names_the_test_that_runs_it() -> None:
    listed = (ROOT / "docs/README.md").read_text().partition("## Recipes")[2].partition("\n## ")[0]
    assert set(re.findall(r"\]\(([^)]+)\)", listed)) == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert (ROOT / test).is_file()
        assert re.search(r"^(```|    \w)", (ROOT / "docs" / page).read_text(), re.MULTILINE), f"{page} has no code"


async def app_of(page: str, monkeypatch: pytest.MonkeyPatch, *replies: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run the application of a page and yield a client of it."""
    pytest.importorskip("fastapi", reason="pip install fastapi")
    monkeypatch.setattr(plait, "AsyncOrchestrator", scripted(AsyncOrchestrator, *replies), raising=False)
    names: dict[str, Any] = {}
    exec(compile(samples(page)[0], page, "exec", dont_inherit=True), names)  # a page's own code
    app = names["app"]
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            yield http


async def test_a_web_page_gets_texts_and_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async for http in app_of("web-page.md", monkeypatch, *["Answer: 42"] * 3):
        events = (await http.get("/ask", params={"q": "What is 6 times 7?"})).text.strip().split("\n\n")
        kinds = [event.partition("\n")[0] for event in events]
        assert kinds[0] == "event: text" and kinds[-1] == "event: answer"
        assert json.loads(events[-1].partition("data: ")[2]) == {"answer": "42", "status": "done"}


CALL = '<tool_call>{"name": "refund", "arguments": {"order": "A7", "euros": 12}}</tool_call>'


@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_waits_for_its_approval(approved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async for http in app_of("approvals.md", monkeypatch, CALL, "It is done."):
        run = (await http.post("/runs", params={"text": "Pay order A7 back."})).json()["run"]
        while not (open_ones := (await http.get(f"/runs/{run}/questions")).json()):
            await asyncio.sleep(0.01)
        assert open_ones[0]["call"] == {"tool": "refund", "args": {"order": "A7", "euros": 12}}
        decision = {"question": open_ones[0]["id"], "approved": approved, "reason": "too much"}
        assert (await http.post(f"/runs/{run}/decision", params=decision)).status_code == 200
        assert (await http.get(f"/runs/{run}/answer")).json() == {"status": "done", "answer": "It is done."}
        assert (await http.get(f"/runs/{run}/questions")).json() == []


def test_records_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    records = ['{"number": "2024-17", "total": 99, "currency": "EUR"}'] * 3 + ['{"number": "8", "total": -1}'] * 9
    monkeypatch.setattr(plait, "Orchestrator", scripted(Orchestrator, *records), raising=False)
    names: dict[str, Any] = {}
    exec(compile(samples("typed-extraction.md")[0], "typed", "exec", dont_inherit=True), names)  # a page's own code
    assert [invoice.number for invoice in names["invoices"]] == ["2024-17"]
    assert [failure is not None for failure in names["failures"]] == [True]


class Collector(BaseHTTPRequestHandler):
    """Records what an exporter sends."""

    def do_POST(self) -> None:
        """Take a request."""
        self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.path, self.headers))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(("number", "path"), [(0, "/v1/traces"), (1, "/api/public/otel/v1/traces")])
def test_spans_reach_the_address_of_the_page(number: int, path: str, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp", reason="pip install 'plait[otel]'")
    fences = re.findall(r"^```sh\n(.*?)^```$", (HOWTO / "phoenix-langfuse.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "replies.json").write_text('{"replies": [{"text": "Answer: 42"}]}')
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        here = f"http://127.0.0.1:{server.server_port}"
        script = re.sub(r"https?://[\w.:-]+(?=/)", here, fences[number])
        command = f'{script}\n"{sys.executable}" -m plait.apps.main run "six?" --script replies.json'
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PLAIT_", "OTEL_"))}
        environment |= {"PYTHONPATH": python_path(ROOT), "XDG_STATE_HOME": str(tmp_path / "state"),
                        "LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"}  # fmt: skip
        done = subprocess.run(["bash", "-euc", command], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              check=False, timeout=120)  # fmt: skip
        server.shutdown()
        thread.join()
    assert done.returncode == 0, done.stderr
    paths = [where for where, _ in server.seen]  # type: ignore[attr-defined]
    assert path in paths, done.stderr
    if number:
        headers = server.seen[paths.index(path)][1]  # type: ignore[attr-defined]
        assert headers["Authorization"] == "Basic cGs6c2s="


@pytest.mark.parametrize("number", range(4))
def test_each_library_does_the_job_of_the_page(number: int, tmp_path: Path) -> None:
    """plait's samples, and those of the other libraries where PEERS names a Python that has them."""
    code = samples("beside-others.md")[number]
    python = sys.executable if number in (0, 2) else os.environ.get("PEERS", "")
    if not python:
        compile(code, "beside-others", "exec")
        pytest.skip("PEERS=PYTHON names an environment with langgraph, openai and pydantic-ai")

    replies = [
        Reply(when="Italy", text='{"name": "Rome", "people": 2750000}'),
        Reply(text="Answer: 42"),
    ]
    with local_server(workers=[Scripted(replies)], journal="off") as url:
        model = httpx.get(f"{url}/models").json()["data"][0]["id"]
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": python_path(ROOT)}
        command = [python, "-c", code.replace(SERVER, url).replace("qwen3", model)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert ("42" if number < 2 else "name='Rome' people=2750000") in done.stdout


def test_the_commands_of_the_gallery_parse() -> None:
    from plait.apps.main import check_words

    page = (ROOT / "docs/gallery.md").read_text()
    commands = re.findall(r"^    plait (.+?)(?:  +#.*| && .*)?$", page, re.MULTILINE)
    assert len(commands) == len(re.findall(r"^!\[", page, re.MULTILINE)) == 6
    for words in commands:
        check_words([word.strip('"') for word in re.findall(r'"[^"]*"|\S+', words)])
