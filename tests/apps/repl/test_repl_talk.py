"""`plait repl`, the conversation: history, forks, system, attachments, agents, approval, cost, and branches as text."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.apps.repl.attachments import LONGEST, attachment, message_of
from plait.apps.repl.session import ReplSession
from plait.apps.repl.state import Manner
from plait.core.chat import ImagePart
from plait.core.errors import UsageError
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.runtime.client.config import Config

TOOLS = '''
from plait import tool

@tool(side_effects=True)
def book(room: str) -> str:
    """Book a room."""
    return f"booked {room}"
'''
AGENTS = """
from plait import Agent

clerk = Agent(name="clerk", description="Books rooms.", instructions="You are a clerk.", tools=("book",))
other = Agent(name="other")
"""
PIXEL = b"\x89PNG\r\n\x1a\n"


END = r"\?(\s+Assistant:)?\Z"
SPRING = {"when": rf"Rain\.\s+User: And in spring{END}", "text": "Flowers."}
SUMMER = {"when": rf"Rain\.\s+User: And in summer{END}", "text": "Sun."}
LATER = {"when": rf"Rain\..*Sun\.\s+User: And then{END}", "text": "Leaves."}
FIRST = {"when": f"in autumn{END}", "text": "Rain."}
SEASONS = (LATER, SPRING, SUMMER, FIRST)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def talk(plait: Any, script: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Hold a conversation over a pipe."""

    def hold(*lines: str, options: tuple[str, ...] = (), replies: Any = SEASONS) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return plait("repl", "--script", script(*replies), *options)

    return hold


def answers(done: Any) -> list[str]:
    """Return the lines before those that say what an answer took."""
    lines = done.out.splitlines()
    return [before for before, line in zip(lines, lines[1:], strict=False) if line.startswith("done · ")]


def test_a_conversation_goes_on_and_its_prefix_is_cached(talk: Any):
    done = talk("What is it like in autumn?", "And in summer?", "And then?", "/cost", "/talk")
    assert answers(done) == ["Rain.", "Sun.", "Leaves."]
    assert re.search(r"^3 questions · [\d.]+ s · [\d]+ tokens · \d+ of \d+ prompt tokens cached$", done.out, re.M)
    cached = re.findall(r"(\d+) of (\d+) prompt tokens cached$", done.out, re.M)
    assert int(cached[1][0]) >= int(cached[0][1]), "the third question found all of the second one's prompt"
    assert done.out.splitlines()[-1] == "talk: on, 3 questions so far"


def test_a_question_is_edited_as_a_fork_and_both_branches_stay(talk: Any):
    done = talk("in autumn?", "And in spring?", "/edit And in summer?", "And then?", "/history", "/fork 1",
                "And in spring?", "/history")  # fmt: skip
    assert answers(done) == ["Rain.", "Flowers.", "Sun.", "Leaves.", "Flowers."]
    rows = [line for line in done.out.splitlines() if re.match(r" +\d[ *] ", line)]
    assert [line[:4] for line in rows[:4]] == ["  1*", "  2 ", "  3*", "  4*"]
    assert "after 1  And in summer?" in rows[2]
    assert [line[:4] for line in rows[4:]] == ["  1*", "  2 ", "  3 ", "  4 ", "  5*"]
    assert "the next question continues after 1: in autumn?" in done.out


def test_an_edit_of_the_first_question_begins_anew_and_a_new_conversation_knows_nothing(talk: Any):
    only = {"when": rf"\A(?!.*Rain).*And in spring{END}", "text": "Alone."}
    done = talk("in autumn?", "/edit 1 And in spring?", "in autumn?", "/talk new", "And in spring?", "/talk off",
                "in autumn?", "And in spring?", replies=(only, *SEASONS))  # fmt: skip
    assert answers(done) == ["Rain.", "Alone.", "Rain.", "Alone.", "Rain.", "Alone."]


def test_a_conversation_with_its_forks_is_saved_and_goes_on(talk: Any):
    talk("in autumn?", "And in spring?", "/edit 2 And in summer?", "/system Be brief.", "/save talk.json")
    done = talk("/load talk.json", "/system", "And then?", "/fork 1", "And in spring?")
    assert done.err == ""
    assert answers(done) == ["Leaves.", "Flowers."]
    assert "system: Be brief." in done.out


def test_mistakes_are_said_in_words(talk: Any, tmp_path: Path):
    (tmp_path / "x.bin").write_bytes(b"\xff\0")
    lines = ["/edit 1 x", "/fork", "in autumn?", "/edit", "/edit 9 x", "/fork x", "/talk maybe", "/attach nothing.txt"]
    lines += [f"/attach {tmp_path / 'x.bin'}", "/agent clerk", "/agent none.py:x", "/approve fly", "/cost"]
    said = talk(*lines).err
    wanted = [
        "nothing has been asked",
        "needs the new question",
        "no question 9",
        "'x' is not the number of a question",
        "'maybe'",
    ]
    wanted += ["is no file", "no text in UTF-8", "names no agent", "there is no file none.py", "no tool 'fly'"]
    for words in wanted:
        assert words in said


def test_the_system_message_stands_before_the_conversation(talk: Any):
    told = {"when": r"System: Be brief\.\s+User: in autumn", "text": "Wet."}
    done = talk("/system Be brief.", "in autumn?", "/system none", "/talk new", "in autumn?", replies=(told, FIRST))
    assert answers(done) == ["Wet.", "Rain."]


def test_a_file_goes_with_the_next_question_alone_and_stays_in_the_conversation(talk: Any, tmp_path: Path):
    (tmp_path / "note.txt").write_text("The key is 17.\n```\n")
    seen = {"when": r"File note.txt:\n````\nThe key is 17\.\n```\n````\n\nWhich key\?\Z", "text": "17"}
    later = {"when": r"The key is 17.*\s17\s+User: Twice\?", "text": "34"}
    edited = {"when": r"The key is 17.*Half of it\?", "text": "8.5"}
    done = talk(f"/attach {tmp_path / 'note.txt'}", "/attach", "Which key?", "Twice?", "/attach", "/edit 1 Half of it?",
                replies=(later, seen, edited))  # fmt: skip
    assert "attached to the next question: note.txt (text, 19 bytes)" in done.out
    assert answers(done) == ["17", "34", "8.5"], "an edit keeps the attachment"
    assert "attached to the next question: nothing" in done.out


def test_an_image_is_a_part_of_the_message_and_a_text_has_a_limit(tmp_path: Path):
    (tmp_path / "a.PNG").write_bytes(PIXEL)
    picture = attachment(tmp_path / "a.PNG")
    message = message_of("What is it?", [picture])
    assert message is not None
    assert isinstance(message.content, tuple)
    assert isinstance(message.content[0], ImagePart)
    assert message.content[0].image_url.url.startswith("data:image/png;base64,iVBORw0KGgo=")
    assert message.text == "What is it?"
    (tmp_path / "long.txt").write_bytes(b"x" * (LONGEST + 1))
    with pytest.raises(UsageError, match="too large"):
        attachment(tmp_path / "long.txt")
    with pytest.raises(UsageError, match="is no file"):
        attachment(tmp_path)


def test_an_agent_of_a_file_answers_and_its_call_waits_for_a_yes(talk: Any, tmp_path: Path):
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "my_agents.py").write_text(AGENTS)
    call = '<tool_call>{"name": "book", "arguments": {"room": "r1"}}</tool_call>'
    replies = [{"when": "booked r1", "text": "It is booked."}, {"when": "did not allow", "text": "You said no."},
               {"when": "You are a clerk", "text": call}, {"text": "no clerk"}]  # fmt: skip
    agents = tmp_path / "my_agents.py"
    lines = [f"/agent {agents}", f"/agent {agents}:clark", f"/agent {agents}:clerk", "/approve book"]
    lines += ["Book r1.", "yes", "/talk new", "Book r1.", "no", "/approve none", "/agent none", "Book r1."]
    done = talk(*lines, replies=replies, options=("--tools", str(tmp_path / "tools.py")))
    assert "has 2 agents (clerk, other)" in done.err
    assert "no agent 'clark'; did you mean 'clerk'?" in done.err
    assert "agent: clerk: Books rooms." in done.out
    assert '? Allow book(room="r1")? (yes, no)' in done.out
    assert answers(done) == ["It is booked.", "You said no.", "no clerk"]


PLANNERS = ["single", "sample:n=2", "adaptive", "refine", "think_summarize", "debate", "layers", "react",
            "skeleton", "decompose", "route", "tree", "skeleton_graph", "deepprune"]  # fmt: skip


@pytest.mark.parametrize("planner", PLANNERS)
async def test_the_branches_of_every_planner_are_heard_while_they_are_written(planner: str, script: Any):
    words = "1. Water is wet and so on.\n2. Light is bright and so on.\n\nanswer: 42"
    config = Config(script=script({"text": words, "tokens_per_second": 2000}), worker="scripted", journal="off")
    name, _, n = planner.partition(":n=")
    session = ReplSession(config, Manner(Request(planner=Plugin(name=name, options={"n": int(n)} if n else {}))))
    heard: set[str] = set()
    running: set[str] = set()

    def watch(news: Any) -> None:
        if news is not None and news.kind == "text":
            heard.add(news.step)
        if news is not None and news.kind == "step" and news.record.kind == "think":
            running.add(news.record.step)

    session.watch = watch
    try:
        turn = await session.ask("Say something about water and light, air and fire.")
    finally:
        await session.close()
    assert turn.answer is not None
    assert running
    assert heard == {each for each in running if turn.steps[each].tokens}, "a step that wrote was heard writing"


def test_what_is_saved_is_plain_data(talk: Any, tmp_path: Path):
    (tmp_path / "note.txt").write_text("hi")
    talk(f"/attach {tmp_path / 'note.txt'}", "in autumn?", "/save talk.json")
    (turn,) = json.loads(Path("talk.json").read_text())["turns"]
    assert turn["said"]["role"] == "user"
    assert turn["question"] == "in autumn?"
