"""`serve run plait_server.ray_serve:app` on a Ray of its own: the command and the file that the how-to shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from plait.apps.common.interrupt import descendants
from plait.core.errors import ConfigError

pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'plait[ray-serve]'")

from plait_server.ray_serve import DeployArguments, app
from scripts.checkout import python_path

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, Path]]:
    folder = tmp_path_factory.mktemp("serve")
    script = {"replies": [{"when": "slowly", "text": "word " * 200, "tokens_per_second": 20}, {"text": "fine"}]}
    (folder / "script.json").write_text(json.dumps(script))
    port = free_port()
    home = tempfile.mkdtemp(prefix="pr-")  # short: Ray puts sockets there
    file = folder / "serve.yaml"
    found = yaml.safe_load((ROOT / "deploy/ray-serve.yaml").read_text())
    found["http_options"] = {"host": "127.0.0.1", "port": port}
    (application,) = found["applications"]
    application["args"] = {
        "settings": {"upstreams": [{"script": str(folder / "script.json")}]}, "options": {"journal": str(folder)},
        "max_replicas": 2, "ongoing": 2.0, "upscale_seconds": 0.0, "cpus": 0.1,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(found))
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(ROOT),
        "RAY_TMPDIR": home, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0",
    }  # fmt: skip
    environment.pop("RAY_ADDRESS", None)
    command = [str(Path(sys.executable).with_name("serve")), "run", str(file)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 300
        while True:
            try:
                if httpx.get(f"{url}/readyz", timeout=5).text == "ready":
                    break
            except httpx.HTTPError:
                pass
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()[-5000:]
            time.sleep(0.5)
        yield url, process.pid, folder
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "plait/single", "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.engine
@pytest.mark.slow
async def test_ray_serve_answers_streams_cancels_and_adds_replicas(served) -> None:
    url, root, folder = served
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        said = (await client.post("/v1/chat/completions", json=body("hello"))).json()
        assert said["choices"][0]["message"]["content"] == "fine"
        vote = {**body("hello"), "model": "plait/sample:n=4"}
        said = (await client.post("/v1/chat/completions", json=vote)).json()
        assert said["choices"][0]["message"]["content"] == "fine" and said["usage"]["completion_tokens"] == 4
        refused = await client.post("/v1/chat/completions", json=body("hello", audio={}))
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "modalities"

        arrived: list[float] = []
        async with client.stream("POST", "/v1/chat/completions", json=body("slowly", stream=True)) as stream:
            async for line in stream.aiter_lines():
                arrived += [time.monotonic()] * line.startswith("data: {")
                if len(arrived) > 8:
                    break  # the client goes away
        assert arrived[-1] - arrived[0] > 0.1, "the stream came in one piece"
        for _ in range(100):
            rows = (await client.get("/runs")).json()
            if not rows["now"] and any(row["status"] == "cancelled" for row in rows["past"]):
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail(f"the run goes on without its client: {rows}")

        many = [asyncio.create_task(client.post("/v1/chat/completions", json=body("slowly"))) for _ in range(12)]
        counted = 1
        while not all(each.done() for each in many):
            counted = max(counted, replicas(root))
            await asyncio.sleep(0.2)
        assert counted == 2, (folder / "log").read_text()[-3000:]
        assert [(await each).status_code for each in many] == [200] * 12


def replicas(root: int) -> int:
    """How many processes of replicas there are."""
    found = 0
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::ServeReplica:plait:plait")
    return found


def test_the_arguments_become_the_options_of_a_deployment(tmp_path) -> None:
    file = tmp_path / "plait.toml"
    file.write_text('journal = "off"\n[serve]\ndrain_seconds = 7\n')
    made = app(
        DeployArguments(
            config=file, upstream="http://a/v1,http://b/v1", min_replicas=2, max_replicas=5, ongoing=3, max_queued=9
        )
    )
    found = made._bound_deployment
    assert found.name == "plait" and found.ray_actor_options["num_cpus"] == 1.0
    scaled = found._deployment_config.autoscaling_config
    assert (scaled.min_replicas, scaled.max_replicas, scaled.target_ongoing_requests) == (2, 5, 3)
    assert found._deployment_config.graceful_shutdown_timeout_s == 17
    assert found._deployment_config.max_queued_requests == 9


def test_settings_that_make_no_sense_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="upstream"):
        app(DeployArguments(settings={"upstream": "http://a"}))
    with pytest.raises(ConfigError, match="jurnal"):
        app(DeployArguments(options={"jurnal": "off"}))
