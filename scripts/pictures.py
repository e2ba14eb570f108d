"""Takes the pictures of the README: the live page of the server in chromium, and the REPL as SVG. `make pictures`.

The model is scripted, so that the pictures stay the same.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from pathlib import Path

import httpx
from rich.console import Console
from rich.text import Text

import plait.apps.repl.cli  # noqa: F401 - enters the commands in the table
from plait.apps.adapters.local import local_server
from plait.apps.repl.conversation import ended, started
from plait.apps.repl.state import Manner
from plait.apps.repl.view import Screen
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.runtime.client.config import Config
from plait.workers.scripted import Reply, Scripted
from tests.apps.viewer.chromium import Tab, tab

IMAGES = Path(__file__).parents[1] / "docs/images"
WIDE, PHONE = (1280, 620), (390, 844)
COLUMNS = 100
QUESTION = "A bat and a ball cost $1.10. The bat costs $1 more than the ball. What does the ball cost?"
RIGHT = "Let the ball cost x. Then the bat costs x + 1, so 2x + 1 = 1.10 and x = 0.05.\nAnswer: 0.05"
HASTY = "The bat costs one dollar, which leaves ten cents for the ball.\nAnswer: 0.10"


def replies(rate: float) -> list[Reply]:
    """What the model says, the same in every picture: five of seven samples are right, two are slow."""
    return [
        Reply(text=text, times=1, tokens_per_second=rate * pace)
        for text, pace in ((RIGHT, 1.0), (HASTY, 1.3), (RIGHT, 0.9), (RIGHT, 0.8), (HASTY, 0.05), (RIGHT, 0.7))
    ] + [Reply(text=RIGHT, tokens_per_second=rate / 20)]


def live_page(folder: Path) -> None:
    """Take the pictures of the live page: the list of runs, wide and on a phone, and one that was just asked for."""
    workers = [Scripted([*replies(400)[:6], *replies(8)[:6], *replies(8)])]
    with tempfile.TemporaryDirectory() as place, tab() as browser, local_server(workers=workers, journal=place) as url:
        root = url.removesuffix("/v1")
        body = {"model": "plait/sample:n=7+consensus", "messages": [{"role": "user", "content": QUESTION}]}
        httpx.post(f"{url}/chat/completions", json=body, timeout=60)
        browser.size(*WIDE)
        browser.send("Page.navigate", url=root)
        _until(browser, "document.documentElement?.dataset.ready === 'yes'")
        fields = {"question": QUESTION, "planner": "sample", "options": "n=7"}
        for name, value in fields.items():
            browser.run(f"document.getElementById('{name}').value = {value!r}")
            browser.run(f"document.getElementById('{name}').dispatchEvent(new Event('change'))")
        browser.run("document.getElementById('options').value = 'n=7'")
        browser.run("document.getElementById('ask').requestSubmit()")
        _until(browser, "document.querySelector('iframe')?.contentDocument?.documentElement?.dataset.grown === '8'")
        _until(browser, "/^[2-6].8/.test(document.querySelector('tbody .col-steps')?.textContent)")
        time.sleep(1.0)
        browser.picture(folder / "live-run.png")
        browser.run("document.getElementById('shut').click()")
        browser.run("scrollTo(0, 0)")
        browser.picture(folder / "live-page.png")
        browser.size(*PHONE)
        browser.picture(folder / "live-page-phone.png")
        for row in httpx.get(f"{root}/runs").json()["now"]:
            httpx.post(f"{root}/runs/{row['run']}/cancel", json={})


def _until(browser: Tab, code: str) -> None:
    until = time.monotonic() + 60
    while not browser.run(code):
        assert time.monotonic() < until, (code, browser.problems)
        time.sleep(0.05)


async def _talk(config: Config, lines: list[str], stream: io.StringIO) -> None:
    request = Request(n=7, planner=Plugin(name="sample"), policies=(Plugin(name="consensus"),))
    screen = Screen(stream, styled=True)
    screen.size = lambda: (COLUMNS, 40)
    repl = started(config, Manner(request), screen)
    for line in lines:
        stream.write(f"\x1b[1mplait>\x1b[0m {line}\n")
        await repl.take(line)
    await ended(repl)


def conversation(path: Path) -> None:
    """Write a conversation as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text('{"replies": [' + ",".join(each.model_dump_json() for each in replies(200)) + "]}")
        stream = io.StringIO()
        config = Config(worker="scripted", script=script, journal="off")
        asyncio.run(_talk(config, [QUESTION, "/branches"], stream))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(stream.getvalue()))
    console.save_svg(str(path), title="plait repl")


if __name__ == "__main__":
    conversation(IMAGES / "repl.svg")
    live_page(IMAGES)
