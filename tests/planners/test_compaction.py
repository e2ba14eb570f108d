"""Compaction: what a shortened conversation keeps, that it always ends, and that everything about it is a step."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator, Budget, Orchestrator
from plait.core.chat import Message, assistant_message, read_messages
from plait.core.errors import PlannerError
from plait.core.result import Failure
from plait.core.step_handles import StepFailed
from plait.planners._shared.compaction import Compaction, Compactor, split_blocks
from plait.planners.tools.react import React
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from plait_research.planners.partial_rollout import PartialRollout
from plait_research.planners.speculate import Speculate
from tests.planners.test_react import call
from tests.runtime.driver.test_flows import cut

PAGE = "lorem ipsum dolor " * 40


class Pages(Scripted):
    """A model that reads page after page, and knows where it is only from its context."""

    def __init__(self, pages: int, summary: str = "Read up to page {last}.", context_tokens: int | None = 8192) -> None:
        super().__init__([Reply(text="")], max_model_len=context_tokens)
        self.pages, self.summary = pages, summary
        self.prompts: list[str] = []
        self.names: list[str] = []

    def _prepare(self, job: Any) -> Any:
        prepared = super()._prepare(job)
        if isinstance(prepared, Failure):
            return prepared
        think, prompt, _ = prepared
        self.prompts.append(prompt)
        self.names.append(job.step)
        last = max(map(int, re.findall(r"page (\d+)", prompt)), default=0)
        if "The messages above are removed" in prompt:
            text = self.summary.replace("{last}", str(last))
        else:
            text = f"Answer: {last} pages" if last >= self.pages else f"I read on. {call('read', page=last + 1)}"
        return think, prompt, Reply(text=text)


def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: {PAGE}"


def run(worker: Scripted, journal: str = "off", planner: Any = None, **options: Any) -> Any:
    budget = options.pop("budget", None)
    with Orchestrator(workers=[worker], tools=[read], journal=journal) as plait:
        planner = planner or React(rounds=1000, **options)
        return plait.run("How many pages are there?", planner=planner, budget=budget or Budget())


def compactions(answer: Any) -> list[str]:
    return [row.label for row in answer.trace if row.label.startswith("compacted")]


# -- long agents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["summary", "summary-only"])
def test_an_agent_of_400_turns_on_8192_tokens_ends_and_answers(mode: str):
    worker = Pages(400)
    answer = run(worker, compaction=mode)
    assert answer.answer == "400 pages"
    assert len([name for name in worker.names if "turn-" in name]) >= 400
    labels = compactions(answer)
    assert any("summarised" in label for label in labels)
    assert any("cleared" in label for label in labels) == (mode == "summary")
    assert len(labels) < 20
    # Whatever happened in between, the instructions and the question are read from the cache.
    start = worker.prompts[0]
    assert all(prompt.startswith(start[: start.index("How many pages are there?") + 25]) for prompt in worker.prompts)
    assert worker.counts["cached"] > 0.9 * worker.counts["prompt"]


def test_without_compaction_the_same_agent_fails_with_a_named_error():
    answer = run(Pages(400), compaction="off")
    assert answer.answer is None
    assert "the prompt has" in answer.failure.message
    assert compactions(answer) == []


def test_a_summary_alone_reads_the_results_before_they_are_lost():
    worker = Pages(60)
    answer = run(worker, compaction={"above_tokens": 1500})
    assert answer.answer == "60 pages"
    assert all("summarised" in label for label in compactions(answer))
    assert not any("was removed to save space" in prompt for prompt in worker.prompts)


@pytest.mark.parametrize("mode", ["clear", "truncate"])
def test_modes_without_a_model_call(mode: str):
    worker = Pages(80)
    answer = run(worker, compaction={"mode": mode, "above_tokens": 2000})
    assert answer.answer == "80 pages"
    assert compactions(answer)
    assert not any("compact-" in name for name in worker.names)
    assert all(len(prompt.split()) < 2200 for prompt in worker.prompts)


def test_a_threshold_in_turns():
    answer = run(Pages(40), compaction={"above_turns": 10})
    assert answer.answer == "40 pages"
    assert all("summarised" in label for label in compactions(answer))
    assert 3 <= len(compactions(answer)) <= 6


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        ("", "empty"),
        (call("read", page=1), "empty"),
        ("page {last} " + "word " * 40_000, "not shorter"),
    ],
)
def test_a_useless_summary_becomes_a_truncation_that_says_why(summary: str, reason: str):
    answer = run(Pages(60, summary), compaction={"above_tokens": 1500, "summary": {"max_tokens": 100_000}})
    assert answer.answer == "60 pages"
    if reason == "empty":
        assert all("left out" in label and reason in label for label in compactions(answer) if "cleared" not in label)


def test_a_summary_that_fails_becomes_a_truncation():
    class Broken(Pages):
        def _prepare(self, job: Any) -> Any:
            if "compact-" in job.step:
                return Failure(kind="EngineError", message="no memory")
            return super()._prepare(job)

    answer = run(Broken(60), compaction={"above_tokens": 1500})
    assert answer.answer == "60 pages"
    assert any("the summary failed: no memory" in label for label in compactions(answer))


def test_a_context_that_cannot_be_cut_is_an_error_and_no_loop():
    worker = Pages(60)
    answer = run(worker, compaction={"above_tokens": 400, "pinned_tools": ("read",)})
    assert answer.answer is None
    assert "tokens after compaction, and the limit is 400" in answer.failure.message
    assert "pin fewer tools" in answer.failure.message
    assert len(worker.names) < 20


def test_a_model_that_rejects_everything_is_asked_three_times_at_most():
    class Full(Pages):
        def _prepare(self, job: Any) -> Any:
            full = "page 3" in "".join(part.text for part in job.op.parts)
            return Failure(kind="ContextOverflow", message="too long") if full else super()._prepare(job)

    answer = run(worker := Full(60, "page 3"))
    assert "too long" in answer.failure.message or "after compaction" in answer.failure.message
    assert len(compactions(answer)) <= 2
    assert len(worker.names) < 8


def test_a_budget_covers_the_summaries():
    answer = run(Pages(400), compaction={"above_tokens": 1500}, budget=Budget(tokens=60))
    assert answer.answer is None
    assert "60 tokens" in answer.failure.message


def test_cleared_results_can_be_read_with_more():
    worker = Pages(30)
    run(worker, compaction={"mode": "clear", "above_tokens": 2500})
    cleared = next(prompt for prompt in worker.prompts if "was removed to save space" in prompt)
    assert 'read it with more(id="call00001", start=0, end=' in cleared


async def test_compaction_is_journalled_replayed_and_resumed(tmp_path: Path):
    planner = React(rounds=1000, compaction={"above_tokens": 900})

    def opened(path: Path) -> AsyncOrchestrator:
        return AsyncOrchestrator(workers=[Pages(20)], tools=[read], journal=path)

    whole = tmp_path / "whole.plait"
    async with opened(whole) as orchestrator:
        answer = await orchestrator.run("How many pages?", planner=planner)
    assert answer.answer == "20 pages"
    assert any("summarised" in label for label in compactions(answer))
    report = replay(whole, Plugins())
    assert report.divergence is None
    for events in range(20, report.events, report.events // 4):
        left = tmp_path / f"{events}.plait"
        cut(whole, left, events)
        async with opened(left) as orchestrator:
            (entry,) = entries(left)
            resumed = await orchestrator.resume(entry.run)
        assert resumed.answer == "20 pages"
        assert compactions(resumed) == compactions(answer)


def test_other_planners_with_conversations_compact_too():
    draft = {"max_tokens": 200}
    worker = Pages(30)
    planner = Speculate(rounds=100, compaction={"mode": "truncate", "above_tokens": 1500}, draft=draft, depth=1)
    assert run(worker, planner=planner).answer == "30 pages"
    assert max(len(prompt.split()) for prompt in worker.prompts) < 1700
    worker = Pages(30, context_tokens=1800)
    planner = PartialRollout(rounds=100, criterion="uniform", n=1, fresh=0, positions=1)
    answer = run(worker, planner=planner)
    assert answer.failure is None
    assert compactions(answer)


# -- what is kept ------------------------------------------------------------------------------------------------------


@dataclass
class Stub:
    """A context whose model writes a given summary, or fails."""

    summary: str | None
    labels: list[str] = field(default_factory=list)
    asked: list[Sequence[Message]] = field(default_factory=list)

    @property
    def host(self) -> Stub:
        return self

    def place(self) -> Stub:
        return self

    def next(self, kind: str) -> str:
        return f"{kind}-{len(self.labels)}"

    async def _ended(self) -> Any:
        if self.summary is None:
            raise StepFailed("compact", Failure(kind="EngineError", message="broken"))

    def think(self, pieces: Any, prompt: Any, **options: Any) -> Any:
        self.asked.append(options["messages"])
        read_messages([message.as_json() for message in options["messages"]])
        awaited = self._ended()

        class Line:
            text = self.summary or ""

            def __await__(self) -> Any:
                return awaited.__await__()

        return Line()

    async def answer(self, value: str, why: str, **options: Any) -> None:
        self.labels.append(value)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Message], list[Message]]:
    """The messages up to a question, and the whole conversation."""
    head: list[Message] = []
    for number in range(draw(st.integers(0, 3))):
        head += [Message(role="user", content="u" * draw(st.integers(1, 400)))]
        head += [Message(role="assistant", content=f"old {number} " + "a" * draw(st.integers(0, 400)))]
    head.append(Message(role="user", content="The question?"))
    talk, number = list(head), 1
    for turn in range(draw(st.integers(1, 12))):
        tools = draw(st.lists(st.sampled_from(["look", "note"]), max_size=3))
        text = f"turn {turn} " + "t" * draw(st.integers(0, 300)) + "".join(call(tool, n=turn) for tool in tools)
        talk.append(assistant_message(text, number))
        for tool in tools:
            content = f"{tool} {turn} " + "r" * draw(st.integers(0, 3000))
            talk.append(Message(role="tool", tool_call_id=f"call{number:05d}", name=tool, content=content))
            number += 1
        if not tools or draw(st.booleans()):
            talk.append(Message(role="user", content="go on"))
    return head, talk


SYSTEM = [Message(role="system", content="You have tools.")]


@given(
    conversations(),
    st.sampled_from(["summary", "summary-only", "clear", "truncate"]),
    st.sampled_from(["A summary.", "", None, "s" * 100_000]),
    st.integers(1, 4),
    st.sampled_from([(), ("note",)]),
    st.integers(60, 3000),
)
def test_what_a_compaction_keeps(
    talk_of: Any, mode: Any, summary: str | None, keep: int, pinned: tuple[str, ...], limit: int
):
    head, talk = talk_of
    stub = Stub(summary)
    options = Compaction(mode=mode, keep_turns=keep, pinned_tools=pinned)
    compactor = Compactor(stub, options, SYSTEM, list(head))  # type: ignore[arg-type]
    limit = min(limit, compactor.tokens(SYSTEM, talk))

    async def compact() -> list[Message]:
        return await compactor.compact(talk, limit, ())

    coroutine = compact()
    failure = ""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        kept: list[Message] = stop.value
    except PlannerError as error:
        failure = str(error)
    if failure:
        assert f"the limit is {limit:,}" in failure
        return
    assert compactor.tokens(SYSTEM, kept) <= limit
    # The question is there, and calls have their results.
    read_messages([message.as_json() for message in (*SYSTEM, *kept)])
    assert any("The question?" in message.text for message in kept)
    assert kept[0].role == "user"
    texts = [json.dumps(message.as_json()) for message in kept]
    for place, block in enumerate(blocks := split_blocks(talk[len(head) :])):
        is_pinned = any(message.name in pinned for message in block if message.role == "tool")
        if is_pinned:
            assert all(json.dumps(message.as_json()) in texts for message in block)
        if place == len(blocks) - 1:
            assert any(message.said == block[0].said for message in kept)
    assert len(stub.labels) == 1
    assert len(stub.asked) <= 2


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        ("", "the summary is empty"),
        (call("look", at="x"), "the summary is empty"),
        ("s" * 100_000, "the summary is not shorter than the turns that it replaces"),
        (None, "the summary failed: broken"),
    ],
)
def test_a_fallback_is_named_with_its_reason(summary: str | None, reason: str):
    head = [Message(role="user", content="The question?")]
    talk = [*head, *(assistant_message(f"turn {turn} " + "t" * 300) for turn in range(9))]
    stub = Stub(summary)
    compactor = Compactor(stub, Compaction(), SYSTEM, list(head))  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as stop:
        compactor.compact(talk, 1600, ()).send(None)
    kept = stop.value.value
    assert [message.text[:7] for message in kept[1:]] == ["turn 6 ", "turn 7 ", "turn 8 "]
    (label,) = stub.labels
    assert label.startswith("compacted: 6 turns left out")
    assert label.endswith(f"({reason})")


def test_blocks_hold_calls_and_their_results_together():
    talk = [Message(role="user", content="q"), assistant_message(call("look", at="a")),
            Message(role="tool", tool_call_id="call00001", name="look", content="x"),
            assistant_message("more")]  # fmt: skip
    assert [len(block) for block in split_blocks(talk)] == [1, 2, 1]
