"""What goes wrong in ThreadWeaver, APR, Multiverse-Engine, Skeleton-of-Thought and in samplers (optillm, its_hub,
dspy), each with a text of our own in the same shape. LLMCompiler's and LangGraph's: `test_llmcompiler_defects.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plait import AsyncOrchestrator, Plugin
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result
from plait.planners.threads.threads import Threads
from plait.planners.threads.threads.dialects import load
from plait.workers.scripted import Reply, Scripted
from tests.planners.scripted_runs import ask, states
from tests.planners.test_threads_apr import CALL, LAST, NONE, PUZZLE, SEARCH
from tests.planners.test_threads_dialects import by_ending, run
from tests.planners.token_worker import TokenWorker

LIST = "<Parallel>\n<Outlines>\n" + "".join(f"<Outline> {i}: way {i}</Outline>\n" for i in range(1, 5)) + "</Outlines>"
REPLIES = [
    Reply(when=r"</Thread>\n\Z", text="</Parallel> \\boxed{42}"),
    Reply(when=r"<Thread>\n\d:\Z", text=" it is 42</Thread>", tokens_per_second=200),
    Reply(text=LIST),
]
WEAVE = Plugin(name="threads", options={"dialect": "threadweaver"})


# --- ThreadWeaver ----------------------------------------------------------------------------------------------------


async def test_tw1_the_calls_of_one_trajectory_stay_where_their_prefix_is() -> None:
    # Six calls, four replicas: keyed on a fresh request id each, they went to 0, 1, 2, 3, 0, 1.
    workers = [Scripted(REPLIES, name=f"replica-{i}") for i in range(4)]
    async with AsyncOrchestrator(workers=workers, policies=["affinity"]) as orchestrator:
        answers = await asyncio.gather(*(orchestrator.run(f"What is {i}*7?", planner=WEAVE) for i in range(8)))
    for answer in answers:
        calls = [row for row in answer.report.steps if row.kind == "think"]
        assert len(calls) == 6 and len({row.worker for row in calls}) == 1
    everywhere = {row.worker for answer in answers for row in answer.report.steps if row.kind == "think"}
    assert len(everywhere) == 4, "different trajectories are spread"


@pytest.mark.parametrize(
    ("second", "read"),
    [
        (" and so on" * 2000, "\n</Thread>"),  # over-long: finish "length"
        (" early<|im_end|>", "\n</Thread>"),  # ended the whole text
        (Failure(kind="EngineError", message="gone"), "2:\n</Thread>"),
    ],
)
def test_tw_one_bad_thread_does_not_end_the_answer(second: str | Failure, read: str) -> None:
    replies: dict[str, str | Failure] = {
        "<Thread>\n1:": " one</Thread>",
        "<Thread>\n2:": second,
        "<Thread>\n3:": " three</Thread>",
        "<Thread>\n4:": " four</Thread>",
        "</Thread>\n": "</Parallel> \\boxed{42}",
    }
    worker = TokenWorker(by_ending(replies, LIST), load("threadweaver").tags)
    answer = run(worker, dialect="threadweaver", part={"max_tokens": 300})
    assert (answer.status, answer.answer) == ("done", "42")
    context = worker.tokenizer.decode(worker.prompts["round-2"])
    assert read in context and "3: three</Thread>" in context and "4: four</Thread>" in context
    assert [job.step for job in worker.jobs].count(worker.jobs[0].step) == 1, "nothing is generated from scratch again"


def test_tw_a_thread_has_a_limit_of_its_own_and_so_have_rounds() -> None:
    worker = TokenWorker(by_ending({"</Thread>\n": LIST, ":": " never ends" * 100}, LIST), load("threadweaver").tags)
    answer = run(worker, dialect="threadweaver", part={"max_tokens": 50}, rounds=2)
    assert answer.status == "done"
    steps = {job.step for job in worker.jobs}
    assert sum("child" in step for step in steps) == 8 and not any("round-4" in step for step in steps)
    assert all(len(ids) <= 50 for leg, ids in worker.outputs.items() if "child" in leg)


def test_tw_what_does_not_fit_the_context_is_a_failure_and_never_the_prompt() -> None:
    worker = TokenWorker(by_ending({"</Thread>\n": "never"}, LIST), load("threadweaver").tags, most=20)
    answer = run(worker, "a question that is longer than twenty tokens of one letter each", dialect="threadweaver")
    assert answer.status == "failed" and answer.answer is None
    assert answer.failure is not None and "too long" in answer.failure.message


def test_tw_the_stop_is_asked_for_and_kept_whatever_the_server_says_of_it() -> None:
    # Nothing depends on which stop was hit (`matched_stop`): the text's own end says it.
    worker = TokenWorker(by_ending({"</Thread>\n": "\\boxed{42}", ":": " x</Thread>"}, LIST), load("threadweaver").tags)
    run(worker, dialect="threadweaver")
    for job in worker.jobs:
        assert isinstance(job.op, ModelCall)
        thread = "child" in job.step
        assert (("</Thread>",) if thread else ("</Outlines>",)) == job.op.sampling.stop and job.op.sampling.keep_stop


# --- APR -------------------------------------------------------------------------------------------------------------


def test_apr_model_text_is_never_evaluated(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr("os.system", lambda command: ran.append(command))
    evil = "__import__('os').system('touch x')"
    trace = (
        f"\nMoving to Node #0,1\nCurrent State: 39:[{evil}, 3], Operations: ['{evil}']\n"
        f"Generated Node #0,1: 39:[{evil}] Operation: {evil}\n{evil},39 equal: Goal Reached\nGoal Reached\n"
    )
    worker = TokenWorker(by_ending({"<End Sub Searches>\n": LAST}, trace + CALL))
    assert run(worker, PUZZLE, dialect="apr").status == "done"
    assert ran == []


def test_apr_results_stand_in_the_order_of_the_calls_not_of_the_ends() -> None:
    slow = [
        Reply(when=r"Sub Searches>\n\Z", text=LAST),
        Reply(when=r"Node #0,1\n", text=NONE, tokens_per_second=30),
        Reply(when=r"Node #0,0,2\n", text=NONE, tokens_per_second=300),
        Reply(when=r"\n.*Node #0,0\n|^Moving to Node #0,0\n", text=NONE),
        Reply(text=SEARCH + CALL),
    ]
    worker = Scripted(slow)
    answer = run(worker, PUZZLE, dialect="apr")
    join = next(row for row in answer.report.steps if row.name == "join-1")
    assert [need.rpartition("/")[2].rpartition(":")[2] for need in join.needs] == ["child-1", "child-2", "child-3"]


# --- Multiverse-Engine -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["<Parallel>\n</Goal>", "<Parallel>\n<Goal>\n</Goal>", "</Goal></Goal>"])
def test_multiverse_a_missing_goal_or_outline_is_text(text: str) -> None:
    worker = TokenWorker(by_ending({"</Goal>": " so \\boxed{42}"}, text), load("multiverse").tags)
    assert run(worker, dialect="multiverse").answer == "42"


def test_multiverse_more_than_twenty_paths_are_not_run() -> None:
    goals = "".join(f"<Outline>\n{i}: x\n</Outline>\n" for i in range(1, 100))
    replies = {"<Conclusion>\n": "\\boxed{42}", ":": " y\n</Path>"}
    worker = TokenWorker(by_ending(replies, f"<Parallel>\n<Goal>\n{goals}</Goal>"), load("multiverse").tags)
    assert run(worker, dialect="multiverse").answer == "42"
    assert sum("child" in step for step in worker.outputs) == Threads(dialect="multiverse").table.width == 20


# --- Skeleton-of-Thought ---------------------------------------------------------------------------------------------


async def test_sot_points_are_written_at_the_same_time() -> None:
    points = "1. One\n2. Two\n3. Three\n"
    replies = [Reply(when="Write only the skeleton", text=points), Reply(text="It is so.", delay=0.05)]
    answer, _ = await ask("skeleton", "Tell me three things.", *replies, options={"criterion": "all"})
    rows = [row for row in answer.report.steps if row.name.startswith("point-")]
    starts, ends = [row.started_at for row in rows], [row.ended_at for row in rows]
    assert len(rows) == 3
    assert max(start for start in starts if start is not None) < min(end for end in ends if end is not None)


@pytest.mark.parametrize("skeleton", ["", "about 3.5 ideas come to mind", "I cannot.", "1.1. sub\n1.2. sub"])
async def test_sot_a_skeleton_without_points_is_one_call(skeleton: str) -> None:
    replies = [Reply(when="Write only the skeleton", text=skeleton), Reply(text="Answer: 42")]
    answer, _ = await ask("skeleton", "Tell me.", *replies, options={"criterion": "all"})
    assert (answer.status, answer.answer) == ("done", "42")
    assert not any(name.startswith("point-") for name in states(answer))


# --- optillm, its_hub, dspy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planner", "options", "at_once"),
    [
        ("sample", {"n": 16}, 16),  # optillm and dspy: n calls one after another
        ("refine", {"rounds": "8x1"}, 8),  # its_hub's planning: approaches one after another
        ("think_summarize", {"n": 6, "quorum": None}, 6),
        ("route", {"planners": ["refine"]}, 4),
    ],
)
async def test_tries_at_the_same_question_are_made_at_the_same_time(
    planner: str, options: dict[str, Any], at_once: int
) -> None:
    class Counting(Scripted):
        running = most = 0

        async def run(self, job: Any) -> Any:
            self.running += 1
            self.most = max(self.most, self.running)
            async for item in super().run(job):
                if isinstance(item, Result):  # nobody asks for more after it
                    self.running -= 1
                yield item

    worker = Counting([Reply(text="Answer: 7", delay=0.2)], slots=64)
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        answer = await orchestrator.run("How many?", planner=Plugin(name=planner, options=options))
    assert answer.status == "done" and worker.most == at_once


@pytest.mark.parametrize(
    ("planner", "options"), [("sample", {"n": 5}), ("refine", {"rounds": "5x1"}), ("route", {"n": 5})]
)
async def test_one_failed_try_takes_no_other_with_it(planner: str, options: dict[str, Any]) -> None:
    """its_hub: a failed sample raises out of the whole batch and leaves the rest running."""
    failing = Reply(finish="error", text="the server is gone", times=1)
    answer, _ = await ask(planner, "How many?", failing, Reply(text="Answer: 7"), options=options)
    assert (answer.status, str(answer.answer).removeprefix("Answer: ")) == ("done", "7")
    assert set(states(answer).values()) <= {"done", "failed", "cancelled"}


async def test_a_text_that_speaks_of_users_and_assistants_is_whole() -> None:
    """optillm: an answer with `User:` in it is split there, and only the last piece is returned."""
    said = "Write it so:\n```\nUser: hi\nAssistant: hello\n```\nAnswer: 7"
    answer, _ = await ask("single", "How?", Reply(text=said), task="plain:where=text")
    assert answer.value == said
