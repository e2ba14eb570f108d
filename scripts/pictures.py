"""Takes the pictures of the README: the live page of the server in chromium, and the REPL as SVG. `make pictures`.

The model is scripted, so that the pictures stay the same.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import tempfile
import time
from pathlib import Path

import httpx
from rich.console import Console
from rich.text import Text

import plait.apps.repl.plain  # noqa: F401 - enters the commands in the table
from plait import AsyncOrchestrator
from plait.apps.common.tree import StepTree
from plait.apps.repl.conversation import Repl
from plait.apps.repl.session import ReplSession
from plait.apps.repl.state import Manner
from plait.apps.repl.view import Screen
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.runtime.client.answer import RunEnded
from plait.runtime.client.config import Config
from plait.workers.scripted import Reply, Scripted
from plait_server.adapters.local import local_server
from tests.apps.viewer.chromium import Tab, tab

IMAGES = Path(__file__).parents[1] / "docs/images"
WIDE, PHONE = (1280, 620), (390, 844)
COLUMNS = 100
ROWS = 11
"""Lines of the picture that moves."""
PAUSE, REST = 0.12, 3.0
"""Seconds between two of its pictures, and for which the last one stays."""
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
    repl = Repl(ReplSession(config, Manner(request)), screen)
    for line in lines:
        stream.write(f"\x1b[1mplait>\x1b[0m {line}\n")
        await repl.take(line)
    await repl.close()


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


async def _created_agents() -> StepTree:
    """Return the tree of a run whose model creates three agents, joins two and answers."""

    def call(name: str, **arguments: object) -> str:
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    cities = {"Rome": False, "Paris": True, "Oslo": False}
    spawned = "".join(call("spawn_agent", task=f"Offers of {city}", fork=fork) for city, fork in cities.items())
    script = [
        Reply(when="agent-1: .*agent-2: ", text="Rome is cheaper: 90 against 110 euros.\n", delay=0.1),
        Reply(when="agent-3 works on it", text=call("join_agents", agents=["agent-1", "agent-2"])),
        Reply(when="^(User: )?Offers of Rome", text="90 euros", delay=0.5),
        Reply(when="\nOffers of Paris", text="110 euros", delay=0.8),
        Reply(when="^(User: )?Offers of Oslo", text="It takes longer.", delay=60.0),
        Reply(text=spawned, delay=0.2),
    ]
    tree = StepTree("Which is cheaper, Rome or Paris?")
    async with AsyncOrchestrator(workers=[Scripted(script)], journal="off") as orchestrator:
        async for news in orchestrator.stream("Which is cheaper, Rome or Paris?", planner="react:depth=1"):
            if not isinstance(news, RunEnded):
                tree.take(news)
    return tree


def created_agents(path: Path) -> None:
    """Write the tree of a run with agents that its model created as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(asyncio.run(_created_agents()).renderable(COLUMNS, None))
    console.save_svg(str(path), title="plait run --planner react:depth=1")


async def _watched(config: Config) -> list[tuple[float, str]]:
    """Return pictures of a vote's tree while it runs, each with the seconds from the beginning."""
    frames: list[tuple[float, str]] = []
    drawn = 0.0
    tree, began = StepTree(QUESTION[:60] + "…"), time.monotonic()
    async with AsyncOrchestrator(config=config) as orchestrator:
        async for news in orchestrator.stream(QUESTION, planner="sample:n=7", policies=["consensus"]):
            at = time.monotonic() - began
            if isinstance(news, RunEnded):
                frames.append((at, _frame(tree, len(frames), f"{news.answer.answer}   {news.answer.why}")))
                break
            tree.take(news)
            drawn = frames[-1][0] if frames else drawn or at
            if at - drawn >= PAUSE:
                frames.append((at, _frame(tree, len(frames))))
    return frames


def _frame(tree: StepTree, place: int, below: str = "") -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(tree.renderable(COLUMNS, None))
    lines = len(console.export_text(clear=False).splitlines())
    console.print(below + "\n" * (ROWS - lines), highlight=False)
    return console.export_svg(title="plait run", unique_id=f"p{place}")  # what is hidden in one picture clips no other


def moving(path: Path) -> None:
    """Write a run as one SVG that moves: its pictures one behind another, each shown for as long as it was true."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text('{"replies": [' + ",".join(reply.model_dump_json() for reply in replies(24)) + "]}")
        frames = asyncio.run(_watched(Config(script=script, journal="off")))
    whole = frames[-1][0] + REST
    ends = [at for at, _ in frames[1:]] + [whole]
    size = re.search(r'viewBox="[^"]*"', frames[0][1])
    assert size is not None
    rules = [f".frame {{ visibility: hidden; animation-duration: {whole:.2f}s; animation-iteration-count: infinite; }}"]
    for place, ((at, _), end) in enumerate(zip(frames, ends, strict=True)):
        begin, over = 100 * at / whole if place else 0.0, 100 * end / whole
        shown = f"{begin:.3f}%, {over - 0.001:.3f}% {{ visibility: visible }}"
        hidden = f"{max(begin - 0.001, 0):.3f}% {{ visibility: hidden }} " if place else ""
        rest = f" {over:.3f}%, 100% {{ visibility: hidden }}" if place + 1 < len(frames) else ""
        rules.append(f"@keyframes f{place} {{ {hidden}{shown}{rest} }} #f{place} {{ animation-name: f{place} }}")
    still = ".frame { animation: none } .frame:last-child { visibility: visible }"
    rules.append(f"@media (prefers-reduced-motion: reduce) {{ {still} }}")
    pieces = [f'<g class="frame" id="f{place}">{text}</g>' for place, (_, text) in enumerate(frames)]
    head, style = f'<svg xmlns="http://www.w3.org/2000/svg" {size[0]}>', "\n".join(rules)
    path.write_text(f"{head}\n<style>{style}</style>\n{''.join(pieces)}</svg>\n")


if __name__ == "__main__":
    conversation(IMAGES / "repl.svg")
    moving(IMAGES / "run.svg")
    created_agents(IMAGES / "created-agents.svg")
    live_page(IMAGES)
