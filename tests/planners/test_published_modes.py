"""Published modes that are options here: NoThinking, ParaThinker's tags, rounds of SEAT, own instructions."""

from __future__ import annotations

import pytest

from plait.core.call_config import CallConfig
from plait.core.errors import PluginError
from plait.core.interfaces import PlanningContext
from plait.core.ops import ModelCall
from plait.core.request import Request
from plait.core.result import Result
from plait.core.tools.tool import tool
from plait.planners._shared.steps import NO_THINKING
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.planners.votes.sample import Sample, Single
from plait.tasks.plain import Plain
from plait.workers.scripted import Reply
from plait_bench.tasks.countdown import Countdown
from plait_research.planners.skeleton_graph import SkeletonGraph
from plait_research.planners.think_summarize import ThinkSummarize
from tests.planners.scripted_runs import ask, made


def brief(text: str = "Why?") -> PlanningContext:
    return PlanningContext(Request(text=text), Plain(text=text), ())


UNTHINKING = CallConfig(begin="no-thinking")


@pytest.mark.parametrize("planner", [Sample(n=2, answer=UNTHINKING), Single(answer=UNTHINKING)])
def test_nothinking_begins_the_turn_with_thoughts_that_are_over(planner: Sample | Single) -> None:
    calls = [step.op for step in planner.start(brief()).steps if isinstance(step.op, ModelCall)]
    assert calls and all(op.begin == NO_THINKING for op in calls)
    own = planner.model_copy(update={"answer": CallConfig(begin="Sure: ")}).start(brief()).steps[0].op
    assert isinstance(own, ModelCall) and own.begin == "Sure: "


def test_a_prompt_that_is_plain_text_ends_with_the_beginning() -> None:
    puzzle = PlanningContext(Request(text="3 5 7 11 -> 24"), Countdown(text="3 5 7 11 -> 24"), ())
    op = Single(answer=CallConfig(begin="x")).start(puzzle).steps[0].op
    assert isinstance(op, ModelCall) and op.begin == "" and op.prompt[-1].model_dump()["text"] == "\nx"


async def test_parathinkers_paths_and_summary_are_one_turn_of_the_model() -> None:
    plan = made(ThinkSummarize(n=2, dialect="parathinker"), brief())
    calls = [step.op for step in plan.steps if isinstance(step.op, ModelCall)]
    assert [(op.begin, op.sampling.stop) for op in calls] == [
        ("<think1>", ("</think1>",)),
        ("<think2>", ("</think2>",)),
    ]
    planner = ThinkSummarize(n=2, dialect="parathinker", quorum=None)
    drafts = [
        {"name": f"path-{i}", "text": f"way {i}", "done": True, "tokens": 2, "answer": None, "key": None,
         "verified": None, "logprob": None} for i in (1, 2)
    ]  # fmt: skip
    after = made(planner, brief(), {"paths": Result(value=drafts)})  # type: ignore[arg-type]
    summary = after.steps[0].op
    assert isinstance(summary, ModelCall) and summary.sampling.stop == ("</summary>",)
    assert summary.begin == "<think1>way 1</think1>\n<think2>way 2</think2>\n<summary>"
    assert summary.prompt[0].model_dump()["text"] == "Why?"


def test_parathinkers_tokenizer_has_tags_for_eight_paths() -> None:
    assert ThinkSummarize(n=8, dialect="parathinker").n == 8 and ThinkSummarize(n=9).n == 9
    with pytest.raises(PluginError, match="8 paths"):
        ThinkSummarize(n=9, dialect="parathinker")


async def test_rounds_of_seat_end_when_the_answers_scatter_little() -> None:
    options = {
        "rounds": "4x4x4",
        "distiller": "shared-top-k",
        "max_prompt_items": 4,
        "threshold": 0.4,
        "draft": {"max_tokens": 20},
    }
    replies = [Reply(when="<notes>", text="Answer: 7"), *(Reply(text=f"Answer: {n}", times=1) for n in (1, 2, 7, 3))]
    answer, worker = await ask("refine", "Why?", *replies, options=options)
    assert answer.answer == "7" and len(worker.prompts) == 8, "the second round agrees, a third is not asked"
    again = [prompt for prompt in worker.prompts if "<notes>" in prompt]
    assert len(again) == 4 and all(f"Answer: {n}" in again[0] for n in (1, 2, 3, 7)), "rounds read one another"


def test_own_instructions_take_the_place_of_the_built_in_ones() -> None:
    @tool
    def search(query: str) -> str:
        """Look something up."""
        return query

    told = PlanningContext(Request(text="Why?"), Plain(text="Why?"), (search.spec,))
    plan = LLMCompiler(plan=CallConfig(template="Tools:\n{tools}\n{join}. join()\n{1}")).start(told)
    op = plan.steps[0].op
    assert isinstance(op, ModelCall)
    said = op.prompt[0].model_dump()["text"]
    assert said.startswith("Tools:\n1. search(query: string)") and "\n2. join()\n{1}\n" in said
    assert "utmost" not in said and "Question: Why?" in said
    graph = SkeletonGraph(plan=CallConfig(template="{question}: {least} to {most} parts, {1} as it is")).start(brief())
    op = graph.steps[0].op
    assert isinstance(op, ModelCall)
    assert op.prompt[0].model_dump()["text"] == "Why?: 2 to 10 parts, {1} as it is"
