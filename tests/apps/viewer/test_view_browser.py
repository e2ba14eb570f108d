"""The page of `plait runs view` in a real browser: what it draws, that its slider moves it, and that nothing runs in it
that should not. Needs chromium (`apt-get install chromium`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from plait.apps import main
from plait.apps.trace.read import read_trace
from plait.apps.viewer.page import page
from plait.runtime.plugins.loader import Plugins
from tests.apps.viewer.chromium import BROWSER, Tab, tab

pytest.importorskip("websockets", reason="websockets, which the browser is driven with, is not installed")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed: apt-get install chromium")

NASTY = "</script><img src=x onerror='document.title=1'><svg onload=alert(1)> \u2028 ${1} answer: 4"
TOOLS = '''
import asyncio
from plait import tool

@tool
async def search(query: str) -> str:
    """Look something up."""
    await asyncio.sleep(0.02)
    if query == "Atlantis":
        raise ValueError("nothing is known of Atlantis")
    return f"all about {query}"
'''
PLAN = (
    '1. search(query="Rome")\n2. search(query="Paris")\n3. search(query="$1 or $2")\n4. search(query="Atlantis")\n'
    "5. join()<END_OF_PLAN>\n"
)


@pytest.fixture(scope="module")
def browser():
    with tab() as made:
        yield made


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of three runs: a vote that is decided early, a plan of tool calls one of which fails, a thousand steps."""
    folder = tmp_path_factory.mktemp("pages")
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PLAIT_")}

    def made(name: str, replies: list[dict], *words: str) -> Path:
        script, journal, out = (folder / f"{name}.{suffix}" for suffix in ("json", "sqlite", "html"))
        script.write_text(json.dumps({"replies": replies}))
        main.run(["run", *words, "--script", str(script), "--journal", str(journal), "--json"])
        out.write_text(page(read_trace(journal, Plugins())), encoding="utf-8")
        return out

    quick = [{"text": f"a thought, then answer: {value}", "times": 1, "delay": 0.05} for value in (4, 5, 4, 4, 4)]
    slow = {"text": "so long a thought answer: 5", "delay": 9}
    vote = ["what is it?", "--planner", "sample:n=7", "--policy", "consensus"]
    tools = folder / "my_tools.py"
    tools.write_text(TOOLS)
    joiner = {"when": "Observation", "text": "Thought: so.\nAction: Finish(about both)", "tokens_per_second": 100}
    calls = ["which is larger?", "--planner", "llmcompiler", "--tools", str(tools)]
    many = [{"text": f"thought {k} answer: {k % 3}", "times": 1} for k in range(1200)]
    yield {
        "vote": made("vote", [*quick, slow], *vote),
        "calls": made("calls", [joiner, {"text": PLAN, "tokens_per_second": 60}], *calls),
        "many": made("many", many, "a thousand times?", "--planner", "sample:n=1200"),
        "long": made("long", [{"text": " ".join(["word"] * 999)}], "go", "--max-tokens", "999"),
        "nasty": made("nasty", [{"text": NASTY}], NASTY, "--planner", "sample:n=2"),
    }
    os.environ.update(kept)


@pytest.fixture
def shown(browser, pages):
    """Open a page, at a size, and check at the end that it complained about nothing and asked for nothing."""
    browser.problems.clear()
    browser.requests.clear()
    browser.dark(False)

    def open_page(name: str, fragment: str = "", width: int = 1280, height: int = 900) -> Tab:
        browser.size(width, height)
        browser.open(pages[name], fragment)
        return browser

    yield open_page
    assert browser.problems == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "about"}


def slide(tab: Tab, part: float) -> None:
    tab.run(
        f"(() => {{ const s = document.getElementById('slider'); s.value = {round(2000 * part)};"
        " s.dispatchEvent(new Event('input')); })()"
    )


def texts(tab: Tab, selector: str) -> list[str]:
    return tab.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")


def count(tab: Tab, selector: str) -> int:
    return tab.run(f"document.querySelectorAll({json.dumps(selector)}).length")


def click(tab: Tab, selector: str) -> None:
    tab.run(f"document.querySelector({json.dumps(selector)}).dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")


def test_a_vote_is_drawn_in_all_pictures(shown):
    tab = shown("vote")
    assert tab.run("document.getElementById('title').textContent") == "what is it?"
    assert tab.run("document.getElementById('status').textContent") == "done"
    assert count(tab, "#plan g.done[data-step]") == 6  # five branches and the vote
    assert count(tab, "#plan g.cancelled[data-step]") == 2
    assert count(tab, "#plan .picture path.edge") == 7
    assert count(tab, "#engines .picture rect.try.succeeded") == 5
    assert count(tab, "#engines .picture rect.try.stopped") == 2
    assert count(tab, "#engines .picture path.verdict") == 1
    assert count(tab, "#prefixes .picture rect.reuse:not([width='0'])") == 1  # the prompt that all share
    assert count(tab, "#branches button.row") == 8
    assert texts(tab, "#votes .ballot .num") == ["4 votes", "1 vote"]
    assert "4 of 5 votes" in tab.run("document.getElementById('votes').textContent")
    assert "2 steps stopped while it ran" in tab.run("document.getElementById('stops').textContent")
    assert "is decided" in tab.run("document.getElementById('stops').textContent")


def test_the_slider_moves_every_picture(shown):
    tab = shown("vote")
    slide(tab, 0.0)
    assert count(tab, "#plan g.running[data-step]") == 7
    assert count(tab, "#plan g.done[data-step]") == 0
    assert texts(tab, "#votes .ballot .num") == ["0 votes", "0 votes"]
    assert count(tab, "#votes .ballot.chosen") == 0
    assert count(tab, "#stops .card.later") == count(tab, "#stops .card") == 1
    widths = "[...document.querySelectorAll('#engines .picture rect.try')].map(e => +e.getAttribute('width'))"
    at_start = tab.run(widths)
    slide(tab, 0.5)
    half = tab.run(widths)
    slide(tab, 1.0)
    whole = tab.run(widths)
    assert all(one <= two <= three for one, two, three in zip(at_start, half, whole, strict=True))
    assert sum(at_start) < sum(half) < sum(whole)
    assert count(tab, "#plan g.done[data-step]") == 6
    assert count(tab, "#votes .ballot.chosen") == 1
    assert count(tab, "#stops .card.later") == 0


def test_stepping_goes_from_change_to_change(shown):
    tab = shown("vote", "t=0")
    place = "+document.getElementById('slider').value"
    seen = [tab.run(place)]
    for _ in range(3):
        click(tab, "#forth")
        if (now := tab.run(place)) == seen[-1] == 2000:
            break  # the last change, when most of them have fallen together
        seen.append(now)
    assert len(seen) > 1
    assert seen == sorted(set(seen))
    click(tab, "#back")
    assert seen[-2] <= tab.run(place) < seen[-1], "changes may lie closer together than the slider has places"


def test_playing_reaches_the_end(shown):
    tab = shown("vote", "t=0.0001")
    tab.run("(() => { const real = performance.now.bind(performance); performance.now = () => real() - 60000; })()")
    click(tab, "#play")  # as if it had been playing for a minute
    tab.run("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(f))))")
    assert tab.run("document.getElementById('slider').value") == "2000"
    assert tab.run("document.getElementById('play').textContent") == "▶"


def test_a_clicked_step_is_told_in_full(shown):
    tab = shown("calls")
    assert count(tab, "#plan g.hold") == 1  # the plan holds its tasks
    place = "[...document.querySelectorAll('#plan g[data-step]')].find(g => g.children[3].textContent === '3')"
    tab.run(f"{place}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    said = tab.run("document.getElementById('details').textContent")
    for words in ("search", "all about Rome or all about Paris", "1 on tools", "succeeded", "Story", "plan-1"):
        assert words in said
    assert tab.run(f"{place}.classList.contains('sel')")
    click(tab, "#details .link")  # to a step that it needs
    assert tab.run("document.querySelector('#details h2').textContent").startswith("✓1")
    click(tab, "#close")
    assert "Click a step" in tab.run("document.getElementById('details').textContent")


def test_a_failed_branch_says_why(shown):
    tab = shown("calls")
    assert count(tab, "#plan g.failed[data-step]") == 1
    assert count(tab, "#engines .picture rect.try.failed") == 1
    assert "nothing is known of Atlantis" in tab.run("document.getElementById('stops').textContent")
    click(tab, "#plan g.failed[data-step]")
    assert "ToolError" in tab.run("document.querySelector('#details .bad').textContent")


def test_a_stretch_of_context_is_told(shown):
    tab = shown("vote")
    click(tab, "#prefixes rect[data-part='0']")
    said = tab.run("document.getElementById('details').textContent")
    assert "of context" in said
    assert "sample-1" in said
    assert "cached" in said


def test_searching_marks_what_it_finds(shown):
    tab = shown("calls")
    find = "(w => { const s = document.getElementById('search'); s.value = w; s.dispatchEvent(new Event('input')); })"
    tab.run(f"{find}('ATLANTIS')")
    assert tab.run("document.getElementById('found').textContent").endswith("found")
    assert count(tab, "#plan .hit") >= 1
    hits = texts(tab, "#branches .row.hit b")
    assert "4" in hits
    assert "2" not in hits
    tab.run(
        "document.getElementById('search').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
    )
    assert tab.run("document.querySelector('#details h2').textContent") != ""
    tab.run(f"{find}('')")
    assert count(tab, ".hit") == 0


def test_what_a_model_wrote_runs_nowhere(shown):
    tab = shown("nasty")
    for selector in ("#plan g[data-step]", "#branches .row", "#prefixes rect[data-part]"):
        click(tab, selector)
    assert tab.run("document.title").startswith("</script><img")
    assert count(tab, "img, svg svg, svg[onload], [onerror], body script:not(:last-of-type):not([type])") == 0
    assert NASTY.split("answer")[0][:20] in tab.run("document.getElementById('title').textContent")
    click(tab, "#branches .row")
    assert "<svg onload=alert(1)>" in tab.run("document.querySelector('#details').textContent")


def test_a_thousand_steps_are_folded_and_it_is_said(shown):
    tab = shown("many")
    assert "1\u202f200 of them are like others" in tab.run("document.querySelector('#plan .say').textContent")
    assert count(tab, "#plan .cell") == 1200
    assert count(tab, "#plan .cell.done") == 1200
    assert count(tab, "#branches button.row") < 20
    assert "1\u202f194 like steps are folded" in tab.run("document.querySelector('#branches .say').textContent")
    assert "more branches" in tab.run("document.getElementById('prefixes').textContent")
    found = []
    for share in (0.3, 0.5, 0.7, 0.85, 0.95, 0.99):  # when the steps were done depends on the machine
        slide(tab, share)
        found.append(count(tab, "#plan .cell.done"))
    assert found == sorted(found)
    assert any(0 < each < 1200 for each in found), found
    click(tab, "#plan [data-group]")
    assert count(tab, "#plan g[data-step]") > 100
    click(tab, "#branches .fold")
    assert count(tab, "#branches button.row") == 1201


@pytest.mark.parametrize("name", ["vote", "calls", "many", "nasty"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_of_the_page(shown, name, width):
    tab = shown(name, width=width, height=844)
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.querySelector('#plan .picture svg').getBoundingClientRect().height") > 30
    handles = "[...document.querySelectorAll('#bar button, #bar input, nav a')]"
    assert min(tab.run(f"{handles}.map(e => e.getBoundingClientRect().height)")) >= 20  # a thumb can hit them


def test_the_panel_is_a_sheet_on_a_phone(shown):
    tab = shown("vote", width=390, height=844)
    assert tab.run("getComputedStyle(document.getElementById('details')).display") == "none"
    click(tab, "#branches .row")
    assert tab.run("getComputedStyle(document.getElementById('details')).display") == "block"
    assert tab.run("document.getElementById('details').getBoundingClientRect().width") <= 390
    click(tab, "#close")
    assert tab.run("getComputedStyle(document.getElementById('details')).display") == "none"


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, WCAG 2."""
    parts = [int(each) / 255 for each in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_texts_and_marks_can_be_told_from_their_ground(shown, browser, dark):
    browser.dark(dark)
    tab = shown("vote")
    of = "(v => { const e = document.createElement('i'); e.style.color = `var(--${v})`; document.body.append(e);"
    of += " const c = getComputedStyle(e).color; e.remove(); return c; })"
    paper = tab.run(f"{of}('paper')")
    assert (luminance(paper) < 0.1) is dark
    for name in ("ink", "soft", "run", "done", "fail", "stop", "expand"):
        assert contrast(tab.run(f"{of}('{name}')"), paper) >= 4.5, name  # texts (WCAG 2 AA)
    for name in ("cached", "computed", "made", "unread", "wait"):
        assert contrast(tab.run(f"{of}('{name}')"), paper) >= 2.5, name  # areas, which have words too
    over = "rgb(8, 18, 27)" if dark else "rgb(255, 255, 255)"
    for name in ("made", "unread", "computed", "run", "done", "fail"):
        assert contrast(over, tab.run(f"{of}('{name}')")) >= 4.5, name  # names written on bars


def test_light_and_dark_by_hand(shown):
    tab = shown("vote")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = tab.run(ground)
    click(tab, "#theme")
    assert tab.run(ground) != before
    click(tab, "#theme")
    assert tab.run(ground) == before


def test_states_have_signs_and_not_only_colours(shown):
    tab = shown("calls")
    signs = {
        state: tab.run(f"document.querySelector('#plan g.{state}[data-step] .sign').textContent")
        for state in ("done", "failed")
    }
    assert signs == {"done": "✓", "failed": "✗"}


def test_the_legend_is_as_thick_as_what_the_end_waited_for(shown):
    tab = shown("calls")
    thick = [
        tab.run(f"getComputedStyle(document.querySelector('{where} .box')).strokeWidth")
        for where in ("#plan g.chain[data-step]", "#plan .legend li:last-child", "#plan .legend li")
    ]
    assert thick[0] == thick[1] != thick[2]


def test_the_label_at_the_end_of_an_axis_is_not_cut(shown):
    tab = shown("long")
    labels = "[...document.querySelectorAll('#prefixes svg text.soft')].filter(t => t.getAttribute('y') === '13')"
    assert tab.run(f"{labels}.at(-1).textContent") == "1\u202f000"
    right = f"{labels}.at(-1).getBoundingClientRect().right"
    assert tab.run(f"{right} <= document.querySelector('#prefixes .picture > svg').getBoundingClientRect().right")


def test_keys_reach_steps(shown):
    tab = shown("vote")
    tab.run(
        "(() => { const g = document.querySelector('#plan g[data-step]'); g.focus();"
        " g.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true})); })()"
    )
    assert tab.run("document.querySelector('#details h2').textContent").endswith("×")
    tab.run("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))")
    assert "Click a step" in tab.run("document.getElementById('details').textContent")
