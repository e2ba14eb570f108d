"""The REPL's prompt, driven by keys through prompt_toolkit's pipe input and drawn on a terminal of 80 x 24."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import Awaitable, Callable

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from plait.apps.repl.conversation import Repl
from plait.apps.repl.session import ReplSession
from plait.apps.repl.state import Manner
from plait.apps.repl.terminal import Conversation, wants_more
from plait.apps.repl.view import Screen
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.runtime.client.config import Config

ENTER, NEW_LINE, UP, CTRL_C, CTRL_D, TAB = "\r", "\x1b\r", "\x1b[A", "\x03", "\x04", "\t"
SLOW = {"when": "slow", "text": "one two three four five six seven eight answer: 1", "tokens_per_second": 4}
_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])")


class Keys:
    """Somebody at a terminal."""

    def __init__(self, talk: Conversation, pipe, drawn: io.StringIO) -> None:
        self.talk = talk
        self._pipe = pipe
        self._drawn = drawn

    def press(self, text: str) -> None:
        self._pipe.send_text(text)

    @property
    def seen(self) -> str:
        """All that was ever drawn, without sequences."""
        return _SEQUENCE.sub("", self._drawn.getvalue())

    async def until(self, what: Callable[[], object] | str) -> None:
        """Wait for a text to be drawn, or something to be so."""
        ready = (lambda: what in self.seen) if isinstance(what, str) else what
        end = time.monotonic() + 300
        while not ready():
            assert time.monotonic() < end, f"never came: {what!r}\n{self.seen[-3000:]}"
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def sit(script):
    """Sit at a terminal and do something; return what was drawn and the exit code."""

    def at(do: Callable[[Keys], Awaitable[None]], *replies, planner: Plugin | None = None) -> tuple[str, int]:
        config = Config(worker="scripted", script=script(*(replies or ("answer: 42",))))
        drawn = io.StringIO()

        async def hold() -> int:
            with create_pipe_input() as pipe:
                output = Vt100_Output(drawn, lambda: Size(rows=24, columns=80), term="xterm-256color")
                with create_app_session(input=pipe, output=output):
                    talk = Conversation(
                        Repl(ReplSession(config, Manner(Request(planner=planner))), Screen(styled=True))
                    )
                    holding = asyncio.ensure_future(talk.hold())
                    keys = Keys(talk, pipe, drawn)
                    try:
                        await keys.until("plait>")
                        await do(keys)
                        return await asyncio.wait_for(holding, 300)
                    finally:
                        if not holding.done():
                            talk.leave()
                            await asyncio.wait_for(holding, 300)

        code = asyncio.run(hold())
        return _SEQUENCE.sub("", drawn.getvalue()), code

    return at


def test_a_question_an_answer_and_ctrl_d(sit):
    async def do(keys):
        keys.press("6 times 7?" + ENTER)
        await keys.until("critical path")
        keys.press(CTRL_D)

    seen, code = sit(do)
    assert code == 0
    assert "plait> 6 times 7?" in seen
    assert "42" in seen


def test_the_tree_moves_and_ctrl_c_ends_the_run_and_not_the_session(sit):
    async def do(keys):
        keys.press("slow one" + ENTER)
        await keys.until("2 running")
        await keys.until(lambda: "two" in keys.talk.session.current.find("sample-1")[0].text)
        keys.press(CTRL_C)
        await keys.until("cancelled by the user")
        keys.press("quick" + ENTER)
        await keys.until("2 of 2 votes")
        keys.press("/quit" + ENTER)

    seen, code = sit(do, SLOW, "answer: 42", planner=Plugin(name="sample", options={"n": 2}))
    assert code == 0
    assert "├─ ● sample-1" in seen
    assert "2 of 2 votes" in seen


def test_commands_work_while_a_run_is_under_way(sit):
    async def do(keys):
        keys.press("slow one" + ENTER)
        await keys.until("3 running")
        keys.press("/prune sample-2 too slow" + ENTER)
        await keys.until("pruned sample-2")
        await keys.until(lambda: keys.talk.session.current.find("sample-2")[0].state == "cancelled")
        keys.press("/pause" + ENTER)
        await keys.until("  paused")
        keys.press("/branches" + ENTER)
        await keys.until("run ")
        keys.press("/model bundled" + ENTER)
        await keys.until("/model has to wait until the run is over")
        keys.press("/resume" + ENTER)
        await keys.until("resumed")
        await keys.until("2 of 2 votes")
        keys.press("/prune sample-1" + ENTER)
        await keys.until("nothing runs that could be pruned")
        keys.press("/why sample-2" + ENTER)
        await keys.until("given up too slow")
        keys.press(CTRL_D)

    seen, _ = sit(do, SLOW, planner=Plugin(name="sample", options={"n": 3}))
    assert "not counted: sample-2" in seen


def test_a_paused_run_starts_nothing_until_it_is_resumed(sit, tmp_path):
    """Steps that wait for a slot stay where they are."""

    async def do(keys):
        keys.press("/budget width=1" + ENTER)
        await keys.until("width 1")
        keys.press("quick" + ENTER)
        await keys.until("1 running")
        keys.press("/pause" + ENTER)
        await keys.until("no new step starts")
        turn = keys.talk.session.current
        await keys.until(lambda: turn.find("sample-1")[0].state == "done")
        await asyncio.sleep(0.2)
        assert turn.find("sample-2")[0].state == "ready"
        keys.press("/resume" + ENTER)
        await keys.until(lambda: turn.answer is not None)
        keys.press(CTRL_D)

    sit(do, {"text": "one two answer: 3", "tokens_per_second": 6}, planner=Plugin(name="sample", options={"n": 2}))


def test_questions_wait_for_the_run_before_them_and_ctrl_c_drops_them(sit):
    async def do(keys):
        keys.press("slow one" + ENTER)
        await keys.until("running")
        keys.press("second" + ENTER + "third" + ENTER)
        await keys.until("(2 waiting)")
        keys.press(CTRL_C)
        await keys.until("cancelled ·")
        assert [turn.question for turn in keys.talk.session.turns] == ["slow one"]
        keys.press("slow two" + ENTER)
        await keys.until("slow two  ")
        keys.press("fourth" + ENTER)
        await keys.until(lambda: len(keys.talk.session.turns) == 3)
        assert [turn.question for turn in keys.talk.session.turns[1:]] == ["slow two", "fourth"]
        keys.press(CTRL_D)

    sit(do, {**SLOW, "tokens_per_second": 10}, "answer: 42")


def test_ctrl_c_clears_a_line_and_then_says_how_to_leave(sit):
    async def do(keys):
        keys.press("half a ques" + CTRL_C)
        await keys.until(lambda: keys.talk._prompt.default_buffer.text == "")
        keys.press(CTRL_C)
        await keys.until(lambda: "Ctrl-D or /quit leaves" in str(keys.talk._toolbar()))
        keys.press("whole" + ENTER)
        await keys.until("critical path")
        keys.press(CTRL_D)

    seen, code = sit(do)
    assert code == 0
    assert "plait> whole" in seen


def test_lines_go_on_after_escape_enter_a_backslash_and_an_open_bracket(sit):
    async def do(keys):
        keys.press("one" + NEW_LINE + "two\\" + ENTER + "f(3," + ENTER + "4)" + ENTER)
        await keys.until("critical path")
        assert keys.talk.session.turns[0].question == "one\ntwo\nf(3,\n4)"
        keys.press(CTRL_D)

    sit(do)


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("a question", False),
        ("a question\\", True),
        ("what is (3 + 4", True),
        ("what is (3 + 4)", False),
        ("what is )3 + 4(", True),
        ("what is (3 + 4\n", False),
        ("/plan what is (", False),
        ("/plan what\\", True),
    ],
)
def test_what_enter_does(text, more):
    assert wants_more(text) is more


def test_the_history_of_an_earlier_session_is_there(sit, tmp_path):
    async def first(keys):
        keys.press("remember me" + ENTER)
        await keys.until("critical path")
        keys.press(CTRL_D)

    async def second(keys):
        keys.press(UP)
        await keys.until(lambda: keys.talk._prompt.default_buffer.text == "remember me")
        keys.press(CTRL_C + CTRL_D)

    sit(first)
    history = tmp_path / "state" / "plait" / "repl-history"
    assert "+remember me" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    sit(second)


def test_a_command_is_completed_while_it_is_typed(sit):
    async def do(keys):
        keys.press("/bra")
        await keys.until("The steps of a run")
        keys.press(TAB)
        await keys.until(lambda: keys.talk._prompt.default_buffer.text == "/branches")
        keys.press(CTRL_C + CTRL_D)

    sit(do)


def test_no_escape_sequence_of_a_model_is_drawn(sit):
    raw = io.StringIO()

    async def do(keys):
        keys.press("q" + ENTER)
        await keys.until("critical path")
        keys.press("/branches" + ENTER + "/why sample-1" + ENTER)
        await keys.until("a call of the model")
        raw.write(keys._drawn.getvalue())
        keys.press(CTRL_D)

    planner = Plugin(name="sample", options={"n": 2})
    sit(do, {"text": "an \x1b[41mevil \x1b]0;title\x07 \x9b5A answer", "tokens_per_second": 20}, planner=planner)
    assert "␛[41mevil" in raw.getvalue()
    assert "\x1b[41m" not in raw.getvalue()
    assert "\x1b]0;title" not in raw.getvalue()
    assert "\x9b" not in raw.getvalue()


def test_no_colour_is_sent_where_none_is_wanted(sit, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    raw = io.StringIO()

    async def do(keys):
        keys.press("q" + ENTER)
        await keys.until("critical path")
        raw.write(keys._drawn.getvalue())
        keys.press(CTRL_D)

    sit(do, planner=Plugin(name="sample", options={"n": 2}))
    codes = {code for run in re.findall(r"\x1b\[([\d;]*)m", raw.getvalue()) for code in run.split(";")}
    assert not {code for code in codes if code.isdigit() and 30 <= int(code) <= 107}


def test_leaving_while_a_run_is_under_way_gives_it_up(sit):
    async def do(keys):
        keys.press("slow" + ENTER)
        await keys.until("running")
        keys.press(CTRL_D)

    _, code = sit(do, {**SLOW, "tokens_per_second": 0.1})
    assert code in (0, 1)


def test_a_script_that_is_not_there_is_said_and_the_session_stays(sit, monkeypatch, tmp_path):
    async def do(keys):
        keys.press("/model script=nowhere.json" + ENTER)
        await keys.until("cannot be read")
        keys.press("q" + ENTER)
        await keys.until(lambda: keys.seen.count("cannot be read") >= 2)
        keys.press(CTRL_D)

    _, code = sit(do)
    assert code == 1
