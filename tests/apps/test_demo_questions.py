"""The demonstration's questions: one call a turn on a script, the reader of calls, and that none was trained on."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Plugin
from plait.apps.common.interrupt import Stopper
from plait.apps.common.output import Output
from plait.core.interfaces import Job, Progress
from plait.core.ops import ModelCall, Text
from plait.core.result import Failure, Result
from plait.planners.split.decompose.rules import find_signals
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait.workers.scripted import Reply, Scripted
from plait_bench.demo.plain import PLAIN, ask_plainly, chat_of
from plait_bench.demo.questions import PIECES, QUESTIONS, SPLIT, ask_questions, family_of
from plait_bench.demo.turns import OneCallATurn, read_call
from plait_bench.tasks.tables import Tables
from plait_bench.tasks.tables.language import NAMES, read
from plait_bench.tasks.tables.questions import is_test
from training.tables.formula import formula

SPECS = {tool.name: tool.spec for tool in Tables(text="who is Ardan?").tools()}


class Turns(Scripted):
    """Writes given turns one after another, and notes what it was shown."""

    def __init__(self, *turns: str) -> None:
        super().__init__([Reply(text="")])
        self.turns, self.shown = list(turns), list[str]()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        self.shown.append("".join(part.text for part in job.op.prompt if isinstance(part, Text)))
        self.script = self.script.model_copy(update={"replies": (Reply(text=self.turns.pop(0)),)})
        async for each in super().run(job):
            yield each


async def test_one_call_a_turn_shows_results_and_failures_and_ends_with_the_answer() -> None:
    text = "what is Ardan's age?"
    right = Tables(text=text).right()
    call = 'Action: lookup("age", "s0")\nObservation: '
    model = Turns(call, call, f"\nAction: Finish({right})<end>")
    task = Plugin(name="tables", options={"latency": [0.0, 0.0], "failing": 1.0})
    async with AsyncOrchestrator(workers=[model]) as orchestrator:
        answer = await orchestrator.run(text, task=task, planner=OneCallATurn(), policies=[])
        assert answer.verified and answer.answer == right
        assert model.shown[0] == "<react>what is s0's age?"
        assert model.shown[1].startswith(f"{model.shown[0]}{call}error: ")
        assert model.shown[2] == f"{model.shown[1]}{call}{right}"
        odd = Turns("Action: fly()")
    async with AsyncOrchestrator(workers=[odd]) as orchestrator:
        assert (await orchestrator.run(text, task=task, planner=OneCallATurn(), policies=[])).answer is None


@pytest.mark.parametrize(
    "text",
    ["", "Action: ", "lookup", "Action: fly(1)", 'Action: lookup("age")', 'Action: add(1, 2', "Action: add(1, x)",
     "Action: add(" + "[" * 5000 + ")", "Action: Finish(1)"],
)  # fmt: skip
def test_what_is_no_call_is_none(text: str) -> None:
    assert read_call(text, SPECS) is None


def test_a_call_is_read_by_position() -> None:
    assert read_call(' Action: add(1, "n0")\n', SPECS) == ("add", {"a": 1, "b": "n0"})


def test_the_questions_are_of_the_test_split_and_the_request_can_be_split() -> None:
    assert all(is_test(text) and len(text) < 120 for text in QUESTIONS)
    pieces = [line.partition(". ")[2] for line in SPLIT.splitlines()[1:]]
    assert PIECES == {piece: formula(read(piece)) for piece in pieces}
    names = {f"s{at}": name for at, name in enumerate(NAMES[:10])} | {f"n{at}": str(at + 2) for at in range(10)}
    for piece in pieces:
        assert read(piece) and is_test(re.sub(r"\b[sn][0-9]\b", lambda found: names[found[0]], piece))
    assert find_signals(SPLIT)


def test_the_family_is_asked_only_where_no_other_model_or_worker_was_asked_for() -> None:
    there = family_of(Config(worker="engine"))
    assert there is not None and there.model == str(BUNDLED_MODEL.with_name("tables"))
    assert family_of(Config(worker="scripted", script="x.json")) is None
    assert family_of(Config(worker="engine", model="another")) is None


def test_plain_questions_are_for_a_chat_model_that_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert chat_of(Config(worker="engine")) is None
    folder = tmp_path / "plait" / "models" / "smollm2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    there = chat_of(Config(worker="engine"))
    assert there is not None and there.model == str(folder)
    assert chat_of(Config(worker="scripted", script=tmp_path / "x.json")) is None
    assert chat_of(Config(worker="engine", model="tables")) is None


async def test_plain_questions_are_asked_three_ways(tmp_path: Path) -> None:
    replies = [
        {"when": "France", "text": "Paris."},
        {"when": "Italy", "text": "Rome"},
        {"when": "John", "text": '{"name": "John Smith", "age": 42}'},
    ]
    script = tmp_path / "replies.json"
    script.write_text(json.dumps({"replies": replies}))
    said = io.StringIO()
    config = Config(worker="scripted", script=script, journal="off")
    figures = await ask_plainly(config, Output(said, as_json=False), Stopper(asyncio.get_running_loop()))
    assert figures.answers == ["Paris.", "Rome", {"name": "John Smith", "age": 42}] and not figures.failure
    assert all(text in said.getvalue() for _, text, _ in PLAIN)
    assert '\n  {"name":"John Smith","age":42}\n' in said.getvalue()
    assert max(map(len, said.getvalue().splitlines())) <= 80


async def test_a_request_that_is_split_is_marked_piece_by_piece(tmp_path: Path) -> None:
    """By what the models say here the split gets one more right, and most of its tokens find the pieces."""
    whole = "\n".join(f"{at}. {text}" for at, text in enumerate(["agent(s0)", *list(PIECES.values())[1:3]], 1))
    found = {"template": "write as a formula: {data}", "context": None, "data": list(PIECES), "n": None,
             "category": "Translation"}  # fmt: skip
    replies = [{"when": "Reply with one JSON object", "text": json.dumps(found)}]
    replies += [{"when": "each of these", "text": whole}]
    replies += [{"when": piece, "text": text} for piece, text in list(PIECES.items())[1:]]
    script = tmp_path / "replies.json"
    script.write_text(json.dumps({"replies": [*replies, {"text": "agent(s0)"}]}))
    said = io.StringIO()
    config = Config(worker="scripted", script=script, journal="off")
    _, splits = await ask_questions(config, Output(said, as_json=False), Stopper(asyncio.get_running_loop()))
    told = said.getvalue().partition("A request of 4 pieces")[2]
    assert [(way.right, way.asked) for way in splits] == [(2, 4), (3, 4)], told
    assert "whole request: 2 of 4 right" in told and "to find the pieces" in told
    assert "✗ 1. agent(s0)" in told and f"✓ 2. {list(PIECES.values())[1]}" in told and "✗ no answer" in told
