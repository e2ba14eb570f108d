"""A real receiver of traces: what Phoenix shows of requests to `plait serve`.

`PHOENIX` names the program: `pip install arize-phoenix` in an environment of its own, since it pins much.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conformance.__main__ import plait, upstream

PHOENIX = os.environ.get("PHOENIX", "")
pytestmark = pytest.mark.skipif(not PHOENIX, reason="PHOENIX names no program: install arize-phoenix")
START_S, ARRIVE_S = 240, 60
CALLER = "0af7651916cd43dd8448eb211c80319c"
QUERY = """{projects{edges{node{traceCount sessions(first:20){edges{node{sessionId}}} spans(first:100){edges{node{
name spanKind trace{traceId} tokenCountTotal input{value} output{value}}}}}}}}"""
WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start Phoenix with an empty store, and return its address."""
    folder = tmp_path_factory.mktemp("phoenix")
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = {"PHOENIX_PORT": str(one.getsockname()[1]), "PHOENIX_GRPC_PORT": str(two.getsockname()[1])}
    local = {"PHOENIX_HOST": "127.0.0.1", "PHOENIX_WORKING_DIR": str(folder), "PHOENIX_TELEMETRY_ENABLED": "false"}
    url, log = f"http://127.0.0.1:{ports['PHOENIX_PORT']}", folder / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen([PHOENIX, "serve"], env=os.environ | ports | local, stdout=out, stderr=out)
    try:
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/healthz", trust_env=False).status_code == 200:
                    break
            assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-2000:]
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def ask(served: str) -> None:
    """Send a vote, a further turn, a call of a tool within a caller's trace, and a chain of two responses."""
    talk = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "SAY<hello>"}]
    more = [*talk, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "SAY<again>"}]
    headers = {"traceparent": f"00-{CALLER}-b7ad6b7169203331-01"}
    with httpx.Client(base_url=served, headers=headers, trust_env=False, timeout=60) as http:

        def post(path: str, **body: Any) -> dict[str, Any]:
            answer = http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        post("/chat/completions", model="plait/sample:n=3@q", messages=talk)
        post("/chat/completions", model="q", messages=more, tools=WEATHER)
        post("/chat/completions", model="q", messages=[{"role": "user", "content": "weather?"}], tools=WEATHER)
        del http.headers["traceparent"]
        first = post("/responses", model="q", input="SAY<one>")
        post("/responses", model="q", input="SAY<two>", previous_response_id=first["id"])


def shown(receiver: str, count: int) -> dict[str, Any]:
    """Return the project of the receiver once it has that many spans."""
    until = time.monotonic() + ARRIVE_S
    while True:
        answer = httpx.post(f"{receiver}/graphql", json={"query": QUERY}, trust_env=False, timeout=60).json()
        (project,) = [edge["node"] for edge in answer["data"]["projects"]["edges"]]
        if len(project["spans"]["edges"]) >= count or time.monotonic() > until:
            return project
        time.sleep(0.5)


def test_every_span_shows_what_went_in_and_came_out(receiver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    with upstream() as base, plait(base) as served:
        ask(served)
    project = shown(receiver, 20)
    spans = [edge["node"] for edge in project["spans"]["edges"]]
    assert len(spans) == 20
    for span in spans:
        assert span["input"] and span["input"]["value"], span["name"]
        assert span["output"] and span["output"]["value"], span["name"]
        assert span["spanKind"] in ("agent", "chain", "llm"), span
        assert span["spanKind"] != "llm" or span["tokenCountTotal"] > 0
    assert project["traceCount"] == 3, "the caller's, and one for each response"
    assert sum(span["trace"]["traceId"] == CALLER for span in spans) == 14
    assert len(project["sessions"]["edges"]) == 2, "Phoenix keeps one for each trace: the two responses have the same"
