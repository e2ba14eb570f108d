"""The page's sample prints what the page says, and its command starts before servers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import yaml

from tests.workers.http.fake_server import FakeServer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/howto/router.md").read_text(encoding="utf-8")


def test_the_sample_prints_what_the_page_says() -> None:
    code, prints = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)[:2]
    assert len(code.splitlines()) <= 30
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "router.md", "exec"), {})
    assert out.getvalue() == prints


async def test_the_command_passes_requests_on() -> None:
    command = re.findall(r"```sh\n(plait-router .*?)\n```", PAGE)[0].split()[1:]
    async with FakeServer() as server:
        words = [server.url if word.startswith("http") else word for word in command]
        run = [sys.executable, "-c", "from plait_router.server import main; main()", *words, "--port", "0"]
        process = await asyncio.create_subprocess_exec(*run, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 120)
            address = re.search(rb"http://[\d.]+:\d+", line)
            assert address is not None
            url = f"{address[0].decode()}/v1/models"
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=60) as answer:
                assert answer.status == 200
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 120)


def test_the_options_of_the_verl_sample_are_options_of_the_router() -> None:
    options = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        module = __import__(options["router_class"].partition(".")[0])
    finally:
        sys.path.pop(0)
    assert module.VerlLoadBalancer({"a": "A"}, options).get_all_servers() == ["a"]
