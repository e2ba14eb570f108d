"""Parts of the REPL by themselves: completion, clean output, plans as trees, plugins as written."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given, strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from rich.console import Console
from rich.text import Text

from plait.apps.common.output import CleanOutput, safe
from plait.apps.repl.completion import ReplCompleter
from plait.apps.repl.conversation import Repl
from plait.apps.repl.session import ReplSession
from plait.apps.repl.state import Manner, ReplTurn, load
from plait.apps.repl.view import Screen
from plait.core.errors import UsageError
from plait.core.ops import Plugin
from plait.core.record import StepRecord
from plait.runtime.client.answer import StepEvent, TextDelta
from plait.runtime.client.config import Config
from plait.runtime.plugins.spec import spelled

# -- clean output -----------------------------------------------------------------------------------------------------


@given(st.text())
def test_no_control_character_is_left(text):
    left = {sign for sign in safe(text) if unicodedata.category(sign) in ("Cc", "Cs")} - {"\n", "\t"}
    assert not left


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs"))))
def test_what_is_no_control_character_stays(text):
    assert safe(text) == text


@pytest.mark.parametrize("text", ["\x1b[31m", "\x9b31m", "\x1b]0;t\x07", "\x08\x08", "a\rb", "\u202eabc", "\x7f"])
def test_a_console_obeys_no_text(text):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=40)
    console.push_render_hook(CleanOutput())
    console.print(Text(f"x{text}y", style="bold"), soft_wrap=True)
    assert text not in stream.getvalue()
    assert "\x1b[1m" in stream.getvalue(), "the console's own styles are gone too"


# -- completion ------------------------------------------------------------------------------------------------------


@pytest.fixture
def complete(script):
    config = Config(worker="scripted", script=script("answer: 42"))
    repl = Repl(ReplSession(config, Manner()), Screen(io.StringIO()))
    completer = ReplCompleter(repl)

    def found(line: str) -> list[str]:
        document = Document(line, len(line))
        return [each.text for each in completer.get_completions(document, CompleteEvent())]

    found.repl = repl
    return found


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("/bra", ["branches"]),
        ("/help bra", ["branches"]),
        ("/planner sam", ["sample"]),
        ("/planner sample:answer.tempera", ["answer.temperature="]),
        ("/planner sample:n=2,answer.str", ["answer.stream="]),
        ("/planner sample:answer.stream=", ["true", "false"]),
        ("/planner single:style=d", ["direct"]),
        ("/policy fi", ["fifo", "first-finish"]),
        ("/policy fifo +consen", ["consensus"]),
        ("/task count", ["countdown"]),
        ("/merge collec", ["collect"]),
        ("/budget tok", ["tokens="]),
        ("/budget tokens=4 wi", ["width="]),
        ("/model worker=scr", ["scripted"]),
        ("/planner nobody:x", []),
        ("/nobody x", []),
        ("a question about /planner sam", []),
    ],
)
def test_what_is_offered(complete, line, offered):
    assert complete(line) == offered


def test_options_that_are_given_are_not_offered_again(complete):
    assert "n=" in complete("/planner sample:")
    assert "n=" not in complete("/planner sample:n=2,")


def test_files_steps_and_runs_are_offered(complete, tmp_path):
    (tmp_path / "talk.json").write_text("")
    assert complete("/load ta") == ["lk.json"]
    turn = ReplTurn("q", run="r1")
    for name, step in (("child-1", "r1:child-1"), ("a", "r1:child-1/a"), ("a", "r1:a")):
        turn.steps[step] = StepRecord(step, name, "think")
    complete.repl.session.turns.append(turn)
    assert complete("/why chi") == ["child-1", "child-1/a"]
    assert complete("/why a") == ["a"]
    assert complete("/branches r") == ["r1"]


# -- what is remembered ----------------------------------------------------------------------------------------------


VALUES = st.one_of(
    st.integers(),
    st.booleans(),
    st.none(),
    st.text(max_size=8),
    st.lists(st.integers() | st.text(max_size=3), max_size=3),
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True), VALUES, max_size=3))
def test_a_plugin_is_read_as_it_is_written(options):
    plugin = Plugin(name="sample", options=options)
    assert Plugin.of(spelled(plugin)) == plugin


def test_a_step_is_found_by_what_people_call_it():
    turn = ReplTurn("q", run="r")
    for step in (
        "r:round-1",
        "r:round-1/child-1",
        "r:round-1/child-2",
        "r:round-1/child-1/leaf",
        "r:round-1/child-2/leaf",
    ):
        turn.steps[step] = StepRecord(step, step.rpartition("/")[2].rpartition(":")[2], "think")

    def found(pattern):
        return [each.path for each in turn.find(pattern)]

    assert found("child-1") == ["round-1/child-1"]
    assert found("r:round-1/child-1") == found("round-1/child-1") == ["round-1/child-1"]
    assert found("leaf") == ["round-1/child-1/leaf", "round-1/child-2/leaf"]
    assert found("child-2/leaf") == ["round-1/child-2/leaf"]
    assert found("child-?") == ["round-1/child-1", "round-1/child-2"]
    assert found("nobody") == []


def test_confidence_is_the_mean_over_all_tokens_heard_of():
    turn = ReplTurn("q", run="r")

    def heard(text, tokens, logprob):
        turn.take(TextDelta(at=0.0, step="r:a", text=text, tokens=tokens, logprob=logprob))
        return turn.steps["r:a"]

    turn.take(StepEvent(at=0.0, record=StepRecord("r:a", "a", "think")))
    heard("one", 1, -1.0)
    step = heard(" two three", 3, -0.25)
    assert step.logprob == pytest.approx((-1.0 + 2 * -0.25) / 3)
    assert step.sure == "p=0.61"
    step = heard("again", 1, -2.0)  # a new attempt begins at its first token
    assert (step.text, step.logprob, step.tokens) == ("again", -2.0, 3)


def test_a_conversation_of_an_earlier_version_is_refused(tmp_path):
    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"plait-conversation": 1, "settings": {}, "turns": []}))
    with pytest.raises(UsageError, match="not a conversation of this version"):
        load(path)
