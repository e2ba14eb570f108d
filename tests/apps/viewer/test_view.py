"""`plait runs view`: one file that needs nothing else and in which nothing that a model wrote can become markup."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re

import pytest
from hypothesis import given, strategies as st

from plait.apps.trace.read import read_trace
from plait.apps.viewer import page as page_module
from plait.apps.viewer.page import data_of, embedded, page
from plait.runtime.plugins.loader import Plugins

NASTY = (
    "</script><script>alert(1)</script><!-- --><img src=x onerror=alert(2)>&lt;\u2028\u2029'\"`${x}{{data}}{{script}}"
)


class Reader(html.parser.HTMLParser):
    """Collects elements and the text of scripts, as a browser would see them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._inside = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            self._inside = tag if tag != "script" else dict(attrs).get("id") or "code"

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside:
            self.texts[self._inside] = self.texts.get(self._inside, "") + data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


@pytest.fixture
def traced(plait, tmp_path):
    def run(*words):
        path = tmp_path / "run.sqlite"
        plait("run", *words, "--journal", path)
        return read_trace(path, Plugins())

    return run


def test_the_command_writes_one_file(plait, script, tmp_path):
    journal, out = tmp_path / "run.sqlite", tmp_path / "seen.html"
    plait("run", "what?", "--planner", "sample:n=3", "--script", script("answer: 4"), "--journal", journal)
    done = plait("runs", "view", journal, "--out", out)
    assert done.code == 0
    assert f"{out}: run " in done.out
    assert "4 steps" in done.out
    seen = read(out.read_text())
    assert json.loads(seen.texts["trace"])["answer"] == "4"
    assert seen.texts["title"] == "what? · plait"
    by_name = plait("runs", "view", journal, "--json").json
    assert by_name["file"] == f"plait-{by_name['run']}.html"
    assert (tmp_path / by_name["file"]).stat().st_size == by_name["bytes"]


def test_it_needs_nothing_else(traced, script):
    whole = page(traced("q", "--script", script("answer: 4")))
    seen = read(whole)
    assert not [tag for tag, attrs in seen.tags if tag in ("link", "img", "iframe", "object") or attrs.get("src")]
    assert not re.search(r"@import|url\(\s*[\"']?(?!#)", seen.texts["style"])
    code = seen.texts["code"].replace("http://www.w3.org/2000/svg", "")
    assert "//" not in re.sub(r"^\s*//.*$|\s//\s.*$", "", code, flags=re.M)
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|eval|innerHTML|outerHTML)\b", code
    )
    assert "insertAdjacent" not in code
    assert "document.write" not in code


def test_its_policy_runs_this_script_and_loads_nothing(traced, script):
    seen = read(page(traced("q", "--script", script("answer: 4"))))
    policy = next(attrs["content"] for tag, attrs in seen.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for part in ("code", "style"):
        digest = base64.b64encode(hashlib.sha256(seen.texts[part].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_what_a_model_wrote_stays_text(traced, script):
    plain = read(page(traced("q", "--planner", "sample:n=2", "--script", script("answer: 4"))))
    trace = traced(NASTY, "--planner", "sample:n=2", "--script", script(NASTY))
    whole = page(trace)
    seen = read(whole)
    assert [tag for tag, _ in seen.tags] == [tag for tag, _ in plain.tags]
    assert seen.texts["code"] == plain.texts["code"]
    data = json.loads(seen.texts["trace"])
    assert data["text"] == NASTY
    assert data["steps"][0]["text"] == trace.steps[0].text
    assert "alert(1)" in trace.steps[0].text
    assert seen.texts["title"].startswith("</script><script>alert(1)")


VALUES = st.recursive(
    st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)


@given(VALUES)
def test_embedded_data_is_inert_and_whole(value):
    said = embedded(value)
    assert said.isascii()
    assert not set(said) & set("<>&\n\r")
    assert json.loads(said) == value


def test_lone_surrogates_are_carried_along():
    assert json.loads(embedded("\ud800")) == "\ud800"


def test_huge_texts_are_cut_in_their_middle_and_it_is_said(traced, script):
    data = data_of(traced("q", "--script", script("start " + "x" * 50_000 + " end answer: 4")))
    text = data["steps"][0]["text"]
    assert len(text) < page_module.MOST_TEXT + 100
    assert text.startswith("start ")
    assert text.endswith("answer: 4")
    assert "characters left out" in text
    assert any("their middles are left out" in note for note in data["notes"])


def test_many_long_texts_are_cut_shorter(traced, script, monkeypatch):
    monkeypatch.setattr(page_module, "MOST_TOTAL", 30_000)
    trace = traced("q", "--planner", "sample:n=8", "--script", script("x" * 15_000 + " answer: 4"))
    assert len(embedded(data_of(trace))) < 90_000


def test_steps_refer_to_one_another_by_place(traced, script):
    data = data_of(traced("q", "--planner", "sample:n=3", "--script", script("answer: 4")))
    assert [step["name"] for step in data["steps"]] == ["sample-1", "sample-2", "sample-3", "vote"]
    assert data["steps"][3]["needs"] == [0, 1, 2]
    assert [attempt["step"] for attempt in data["attempts"]] == [0, 1, 2]
    assert data["votes"][0]["step"] == 3
    assert data["votes"][0]["ballots"][0]["steps"] == [0, 1, 2]


def test_it_opens_a_browser_only_if_asked(plait, script, tmp_path, monkeypatch):
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    journal, out = tmp_path / "run.sqlite", tmp_path / "seen.html"
    plait("run", "what?", "--script", script("answer: 4"), "--journal", journal)
    plait("runs", "view", journal, "--out", out, "--no-open")
    plait("runs", "view", journal, "--out", out)  # standard output is no terminal here
    assert shown == []
    plait("runs", "view", journal, "--out", out, "--open")
    assert shown == [out.as_uri()]


def test_what_cannot_be_viewed(plait, tmp_path):
    (tmp_path / "notes.txt").write_text("shopping")
    assert "not a journal" in plait("runs", "view", "notes.txt").err
    missing = plait("runs", "view", "nobody")
    assert missing.code == 2
    assert "nobody" in missing.err


def test_a_file_that_cannot_be_written(plait, script, tmp_path):
    journal = tmp_path / "run.sqlite"
    plait("run", "what?", "--script", script("answer: 4"), "--journal", journal)
    done = plait("runs", "view", journal, "--out", tmp_path / "no" / "such" / "folder.html")
    assert done.code == 1
    assert "No such file" in done.err
