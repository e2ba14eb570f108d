"""The page at `/` as a place to begin, in a real browser: ask box, list, what waits for a person."""

from __future__ import annotations

import asyncio

import pytest

from plait import AsyncOrchestrator, Config, Plan, Step, ToolCall, tool
from plait.workers.scripted import Reply, Scripted
from tests.apps.serve.test_live_page import NASTY, at, run, stranger, until
from tests.apps.viewer.chromium import BROWSER, tab

pytest.importorskip("websockets", reason="websockets, which the browser is driven with, is not installed")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed: apt-get install chromium")

WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def browser():
    with tab() as made:
        yield made


@pytest.fixture(autouse=True)
def clean(browser):
    """Check after each test that the page complained about nothing, and asked nobody but its own server."""
    browser.problems.clear()
    browser.requests.clear()
    yield
    browser.send("Page.navigate", url="about:blank")
    assert browser.problems == []
    assert {url.partition("/runs")[0].rstrip("/").rpartition(":")[0] for url in browser.requests} <= {
        "http://127.0.0.1", "about"
    }  # fmt: skip


@tool(approve=True)
async def book(city: str) -> str:
    """Book a room."""
    return f"a room in {city}"


async def size(browser, width: int) -> None:
    await asyncio.to_thread(browser.size, width, 900)


async def text(browser, id: str) -> str:
    return await run(browser, f"document.getElementById('{id}').textContent")


async def put(browser, id: str, value: str, event: str = "change") -> None:
    code = f"const e = document.getElementById('{id}'); e.value = {value!r}; e.dispatchEvent(new Event('{event}'))"
    await run(browser, f"{{{code}}}")


async def send(browser, question: str, planner: str = "single", options: str = "") -> None:
    await put(browser, "planner", planner)
    await put(browser, "question", question)
    await put(browser, "options", options)
    await run(browser, "document.getElementById('ask').requestSubmit()")


async def fits(browser, width: int) -> None:
    assert await run(browser, "document.documentElement.scrollWidth") <= width
    out = "[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('pre, .away')"
    out += f" && e.getBoundingClientRect().right > {width} + 1).map((e) => e.outerHTML.slice(0, 120))"
    assert await run(browser, out) == []


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_server_that_was_asked_nothing_says_how_to_begin(serve, browser, tmp_path, width):
    async with serve("fine", journal=str(tmp_path / "j.plait")) as served:
        await size(browser, width)
        await at(browser, served.url + "/")
        assert await run(browser, "document.getElementById('first').open")
        said = await text(browser, "curl")
        assert f"{served.url}/v1/chat/completions" in said
        assert "Nothing has been asked" in await text(browser, "none")
        await fits(browser, width)
        shell = await asyncio.create_subprocess_shell(said, stdout=asyncio.subprocess.PIPE)
        out, _ = await shell.communicate()
        assert b'"content":"fine"' in out.replace(b" ", b"")  # what is there to be copied works
        await until(browser, "document.querySelectorAll('tbody tr').length === 1")
        assert not await run(browser, "document.getElementById('first').open")


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_question_is_asked_and_answered_on_the_page(serve, browser, tmp_path, width):
    replies = [Reply(text=f"answer: 4 {NASTY}", tokens_per_second=40)]
    async with serve(*replies, journal=str(tmp_path / "j.plait")) as served:
        await size(browser, width)
        await at(browser, served.url + "/")
        await send(browser, f"2 + 2? {NASTY}", "sample", "m=3")
        await until(browser, "document.getElementById('problem').textContent !== ''")
        assert "'m'" in await text(browser, "problem")  # and what it should be stands in the server's words
        assert not await run(browser, "document.querySelectorAll('tbody tr').length")
        browser.problems.clear()  # the browser notes that the server answered 400
        await send(browser, f"2 + 2? {NASTY}", "sample", "n=3")
        frame = "document.querySelector('iframe').contentDocument"
        await until(browser, f"document.querySelector('iframe') && {frame}?.documentElement.dataset.grown === '4'")
        await until(browser, f"{frame}.getElementById('status').textContent === 'done'")
        assert "unfinished" not in await run(browser, f"{frame}.body.innerText")
        await until(browser, "document.querySelector('tbody .said').textContent.includes('4')")
        assert await text(browser, "problem") == ""
        cells = {name: f"document.querySelector('tbody .col-{name}').textContent" for name in
                 ("status", "steps", "planner", "seconds", "created")}  # fmt: skip
        shown = {name: await run(browser, code) for name, code in cells.items()}
        assert (shown["status"], shown["steps"], shown["planner"]) == ("done", "4", "sample")
        assert shown["seconds"].endswith("s")
        assert ":" in shown["created"]
        assert await run(browser, "document.title") == "plait · runs"
        await fits(browser, width)


@pytest.mark.parametrize("width", WIDTHS)
async def test_many_runs_are_counted_paged_and_sorted(serve, browser, tmp_path, width):
    replies = [Reply(text="word " * (k + 1), times=1) for k in range(60)]
    folder = tmp_path / "runs"
    folder.mkdir()
    async with AsyncOrchestrator(config=Config(journal=folder), workers=[Scripted([Reply(text="earlier")])]) as other:
        await other.run("of another program", planner="sample:n=2")
    async with serve(*replies, journal=str(folder)) as served:
        client = served.client()
        for k in range(60):
            await client.chat.completions.create(model="q", messages=[{"role": "user", "content": f"question {k}"}])
        await size(browser, width)
        await at(browser, served.url + "/")
        assert await text(browser, "count") == "0 under way, 60 past"
        assert await text(browser, "range") == "1–25 of 60"
        first = "document.querySelector('tbody .question')?.textContent"
        assert await run(browser, first) == "question 59"
        await fits(browser, width)
        for shown, last in (("26–50 of 60", 34), ("51–60 of 60", 9)):
            await run(browser, "document.getElementById('older').click()")
            await until(browser, f"document.getElementById('range').textContent === '{shown}'")
            assert await run(browser, first) == f"question {last}"
        assert await run(browser, "document.getElementById('older').disabled")
        await put(browser, "sort", "tokens")
        await until(browser, f"{first} === 'question 59'")
        await run(browser, "document.querySelector('th[data-key=tokens] button').click()")  # the least first
        await until(browser, f"{first} === 'question 0'")
        assert await run(browser, "document.querySelector('th[data-key=tokens]').ariaSort") == "ascending"
        await put(browser, "filter", "question 7", "input")
        await until(browser, "document.querySelectorAll('tbody tr').length === 1")
        await put(browser, "filter", "another program", "input")
        await until(browser, "document.querySelectorAll('tbody tr').length === 0")
        await put(browser, "scope", "all")
        await until(browser, "document.querySelectorAll('tbody tr').length === 1")
        assert await run(browser, "document.querySelector('tbody .col-steps').textContent") == "3"
        assert await text(browser, "count") == "0 under way, 61 past"


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_call_is_allowed_with_other_arguments_and_another_refused(serve, browser, tmp_path, width):
    async with serve("fine", journal=str(tmp_path / "j.plait"), tools=[book]) as served:
        await size(browser, width)
        await at(browser, served.url + "/")
        for verb, wanted in (("allow", "a room in Paris"), ("refuse", None)):
            step = Step(name="b", op=ToolCall(tool="book", args={"city": NASTY}))
            handle = await served.service.orchestrator.submit("ask me", plan=Plan(steps=(step,), output="b"))
            served.service.live[handle.run] = stranger(served, handle)
            await until(browser, "document.querySelector('.approval textarea') !== null")
            assert NASTY.split()[0] in await run(browser, "document.querySelector('.approval textarea').value")
            await fits(browser, width)
            change = "document.querySelector('.approval textarea').value = "
            await run(browser, f"{change}'not JSON'")
            await run(browser, "document.querySelector('[data-verb=allow]').click()")
            await until(browser, "document.querySelector('.approval .bad').textContent.includes('not JSON')")
            await run(browser, change + """'{"city": "Paris"}'""")
            await run(browser, "document.querySelector('.approval input').value = 'too dear'")
            await run(browser, f"document.querySelector('[data-verb={verb}]').click()")
            answer = await handle
            assert answer.value == wanted
            if wanted is None:
                assert answer.failure is not None
                assert "too dear" in answer.failure.message
            served.service.live.pop(handle.run)
            await until(browser, "document.querySelector('.approval') === null")


async def test_without_a_journal_the_page_asks_and_shows_no_pictures(serve, browser):
    async with serve("fine") as served:
        await at(browser, served.url + "/")
        await send(browser, "hello")
        await until(browser, "document.querySelector('tbody .said')?.textContent === 'fine'")
        assert await run(browser, "document.querySelector('.open').disabled")
        assert await run(browser, "document.querySelector('iframe') === null")
