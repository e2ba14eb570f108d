"""The page at `/` in a real browser: runs that come and go, pictures that grow, questions, cancel, compare, keys."""

from __future__ import annotations

import asyncio
import sys
import time

import httpx
import pytest

from plait import Plan, Step, ToolCall, ToolContext, tool
from plait.workers.scripted import Reply
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key
from tests.apps.viewer.chromium import BROWSER, Tab, tab

pytest.importorskip("websockets", reason="websockets, which the browser is driven with, is not installed")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed: apt-get install chromium")

NASTY = "</script><img src=x onerror='document.title=1'><svg onload=alert(1)> ${1}"


@pytest.fixture(scope="module")
def browser():
    with tab() as made:
        yield made


@tool
async def book(city: str, ctx: ToolContext) -> str:
    """Book a room."""
    return f"{city}: {await ctx.ask('which date?', choices=['May', 'June'])}"


async def at(browser: Tab, url: str) -> None:
    await asyncio.to_thread(browser.send, "Page.navigate", url=url)
    await until(browser, "document.documentElement?.dataset.ready === 'yes'")


async def run(browser: Tab, code: str):
    return await asyncio.to_thread(browser.run, code)


async def until(browser: Tab, code: str, seconds: float = 300.0):
    end = time.monotonic() + seconds
    while True:
        try:
            if found := await run(browser, code):
                return found
        except AssertionError:  # between two pages
            pass
        assert time.monotonic() < end, (code, browser.problems)
        await asyncio.sleep(0.03)


async def test_a_run_is_seen_grows_is_filtered_and_cancelled(serve, browser, tmp_path):
    slow = Reply(text=f"{NASTY} " + "word " * 500, tokens_per_second=20)
    async with serve(slow, journal=str(tmp_path / "j.plait"), tools=[book]) as served:
        plait = served.service.orchestrator
        await at(browser, served.url + "/")
        body = {"model": "plait/sample:n=2,answer.stream=true", "input": NASTY, "background": True}
        async with httpx.AsyncClient() as http:
            made = (await http.post(f"{served.base}/responses", json=body)).json()
            name = made["id"].removeprefix("resp_")
            row = f"document.querySelector('tr[data-run=\"{name}\"]')"
            await until(browser, f"{row} !== null && {row}.textContent.includes('onerror')")
            await run(browser, f"{row}.querySelector('.open').click()")
            frame = "document.querySelector('iframe').contentDocument"
            await until(browser, f"{frame}?.documentElement.dataset.grown === '3'")
            assert await run(browser, f"{frame}.getElementById('status').textContent") == "running"
            assert "cut short" not in await run(browser, f"{frame}.getElementById('notes').textContent")
            facts = f"{frame}.getElementById('facts').textContent"
            before = await run(browser, facts)
            await until(browser, f"{facts} !== {before!r}")
            await run(browser, _filtered("nobody"))
            await until(browser, "document.querySelectorAll('tbody tr').length === 0")
            assert "No run has this" in await run(browser, "document.getElementById('none').textContent")
            await run(browser, _filtered("sample"))
            await until(browser, "document.querySelectorAll('tbody tr').length === 1")
            await run(browser, f"{row}.querySelector('[data-verb=pause]').click()")
            await until(browser, f"{row}.textContent.includes('paused')")
            await run(browser, f"{row}.querySelector('[data-verb=cancel]').click()")
            await until(browser, f"{row}.textContent.includes('cancelled')")
            await until(browser, f"{frame}.getElementById('status').textContent === 'cancelled'")
            step = Step(name="b", op=ToolCall(tool="book", args={"city": "Rome"}))
            handle = await plait.submit("ask me", plan=Plan(steps=(step,), output="b"))
            served.service.live[handle.run] = served.service.live.get(handle.run) or stranger(served, handle)
            await until(browser, "document.querySelector('#asks select') !== null")
            await run(browser, "document.querySelector('#asks select').selectedIndex = 1")
            await run(browser, "document.querySelector('#asks button').click()")
            assert (await handle).answer == "Rome: June"
            served.service.ended.add(served.service.live.pop(handle.run), await handle)
            await until(browser, "document.querySelectorAll('tbody tr').length === 1")
            await run(browser, _filtered(""))
            await until(browser, "document.querySelectorAll('tbody input').length === 2")
            await run(browser, "document.querySelectorAll('tbody input').forEach((e) => e.click())")
            await run(browser, "document.getElementById('compare').click()")
            await until(browser, "document.querySelectorAll('iframe').length === 2")
        assert await run(browser, "document.title") == "plait · runs"
        await asyncio.to_thread(browser.send, "Page.navigate", url="about:blank")


def _filtered(words: str) -> str:
    return f"{{const f = document.getElementById('filter'); f.value = {words!r}; f.dispatchEvent(new Event('input'))}}"


def stranger(served, handle):
    from plait_server.tenants import ServedRun

    return ServedRun(handle, served.service.tenants.everybody, "q", steps=False)


async def test_without_its_key_a_browser_sees_nothing(serve, browser, tmp_path):
    keys = [new_key(), new_key()]
    tenants = tuple(Tenant(name=name, keys=(hashed(key),)) for name, key in zip(("ann", "bob"), keys, strict=True))
    async with serve("fine", journal=str(tmp_path / "j.plait"), tenants=tenants) as served:
        await served.client(keys[0]).responses.create(model="q", input="of ann")
        await at(browser, served.url + "/")
        await until(browser, "!document.getElementById('login').hidden")
        for key, rows in (("wrong", 0), (keys[1], 0), (keys[0], 1)):
            await run(browser, f"document.getElementById('key').value = {key!r}")
            await run(browser, "document.getElementById('login').requestSubmit()")
            await until(browser, f"document.querySelectorAll('tbody tr').length === {rows}")
            if key == "wrong":
                await until(browser, "document.getElementById('refused').textContent !== ''")
            else:
                await until(browser, f"document.getElementById('count').textContent.endsWith('{rows} past')")
            if key == keys[1]:
                await run(browser, "document.getElementById('login').hidden = false")
        async with httpx.AsyncClient() as http:
            said = await http.get(f"{served.url}/runs", headers={"authorization": f"Bearer {keys[1]}"})
            assert said.json()["past"] == []
            made = (await http.get(f"{served.url}/runs", headers={"authorization": f"Bearer {keys[0]}"})).json()["past"]
            for path in ("data", "page"):
                said = await http.get(
                    f"{served.url}/runs/{made[0]['run']}/{path}", headers={"authorization": f"Bearer {keys[1]}"}
                )
                assert said.status_code == 404
        await asyncio.to_thread(browser.send, "Page.navigate", url="about:blank")


@pytest.mark.slow
async def test_ten_thousand_steps_are_painted_within_a_second(serve, browser, tmp_path):
    async with serve("answer: 4", journal=str(tmp_path / "j.plait")) as served:
        answer = await served.service.orchestrator.run("x", planner="sample:n=10000")
        await at(browser, f"{served.url}/runs/{answer.run}/page")
        paint = await until(browser, "performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        await until(browser, "document.documentElement.dataset.grown === '10001'")
        drawn, heap = [await run(browser, f"performance.{each}") for each in ("now()", "memory.usedJSHeapSize")]
        sys.stderr.write(f"first paint {paint:.0f} ms, all drawn after {drawn:.0f} ms, {heap / 2**20:.0f} MiB\n")
        assert paint < 1000
        assert await run(browser, "document.getElementById('facts').textContent.includes('10')")
        await asyncio.to_thread(browser.send, "Page.navigate", url="about:blank")
