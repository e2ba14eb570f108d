"""The planner `think_summarize`: who is stopped when, what the synthesis reads, and what stands where it fails."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from plait.core.call_config import CallConfig
from plait.core.ops import Join, ModelCall
from plait.core.plan import Plan
from plait.core.result import Result
from plait.planners._shared.drafts import Draft, format_histogram, rank_drafts, read_drafts, render_block
from plait.workers.scripted import Reply
from plait_research.planners.think_summarize import ThinkSummarize
from tests.planners.scripted_runs import ask, brief, checked, made, named, prompt, states

SYNTHESIS = "Several attempts at this"


def record(name: str, text: str, done: bool = True, **more: object) -> dict[str, object]:
    facts = {"answer": None, "key": None, "verified": None, "logprob": None}
    return {"name": name, "text": text, "done": done, "tokens": len(text.split()), **facts, **more}


def counted(name: str, answer: str, **more: object) -> dict[str, object]:
    return record(name, f"I think so. Answer: {answer}", answer=answer, key=answer, **more)


def patch(records: list[dict[str, object]], **options: object) -> Plan:
    planner = ThinkSummarize.model_validate(options)
    plan = made(planner, brief(), {"paths": Result(value=records)})
    return checked(plan, outside=tuple(str(each["name"]) for each in records))


# --- plans and patches -----------------------------------------------------------------------------------------------


def test_the_first_plan_is_paths_and_a_first_to_finish_join() -> None:
    plan = checked(made(ThinkSummarize(n=3, draft=CallConfig(max_tokens=55)), brief()))
    assert [step.name for step in plan.steps] == ["path-1", "path-2", "path-3", "paths"]
    ops = [step.op for step in plan.steps if isinstance(step.op, ModelCall)]
    assert len({op.sampling.seed for op in ops}) == 3 and all(op.stream for op in ops)
    assert {op.prompt for op in ops} == {ops[0].prompt} and all(op.sampling.max_tokens == 55 for op in ops)
    join = plan.steps[-1]
    assert isinstance(join.op, Join) and join.op.early and join.op.on_failure == "best-effort"
    assert join.op.merge.options == {"enough": 1, "partial": True, "stop_on_verified": True}


def test_options_of_the_join() -> None:
    def join(**options: object) -> Join:
        op = made(ThinkSummarize.model_validate(options), brief()).steps[-1].op
        assert isinstance(op, Join)
        return op

    assert join(quorum=None, stop_on_verified=False).merge.options == {
        "enough": None,
        "partial": False,
        "stop_on_verified": False,
    }
    assert join(quorum=9, n=4).merge.options["enough"] == 4
    assert join(draft={"stream": False}).merge.options["partial"] is False


def test_the_synthesis_reads_finished_and_stopped_paths() -> None:
    plan = patch([counted("path-1", "42"), record("path-3", "but what if", done=False)])
    assert [step.name for step in plan.steps] == ["summary", "answer"]
    said = prompt(plan.steps[0])
    assert "### Attempt 1\nI think so. Answer: 42" in said
    assert "### Attempt 2, stopped before its end\nbut what if" in said
    assert "Answers of the drafts: 42 (1 of 1)." in said
    assert plan.steps[1].needs == ("summary", "path-1"), "a path that was stopped has no vote"


def test_a_single_path_needs_no_synthesis() -> None:
    plan = patch([counted("path-2", "42")])
    assert [step.name for step in plan.steps] == ["answer"] and plan.steps[0].needs == ("path-2",)
    assert patch([record("path-2", "half a", done=False)]).steps[0].name == "summary", "half a thought is no answer"


def test_a_verified_path_is_the_answer() -> None:
    records = [counted("path-1", "41"), counted("path-2", "42", verified=True)]
    plan = patch(records)
    assert [step.name for step in plan.steps] == ["answer"] and plan.steps[0].needs == ("path-2",)
    assert patch(records, stop_on_verified=False).steps[0].name == "summary"


@given(
    st.lists(
        st.tuples(st.text(max_size=50), st.booleans(), st.sampled_from([None, True, False])), min_size=1, max_size=8
    )
)
def test_whatever_paths_say_there_is_a_plan(paths: list[tuple[str, bool, bool | None]]) -> None:
    records = [
        counted(f"path-{i}", text, done=done, verified=verified) for i, (text, done, verified) in enumerate(paths, 1)
    ]
    plan = patch(records, n=8)
    assert named(plan, "answer") is plan.steps[-1] and plan.output == "answer"


# --- drafts as text --------------------------------------------------------------------------------------------------


def draft(text: str, tokens: int | None = None, **more: object) -> Draft:
    return Draft("d", text, tokens=len(text) // 4 if tokens is None else tokens, **more)


def test_drafts_are_cut_to_the_tokens_there_are_and_keep_their_end() -> None:
    long, short = draft("x" * 300 + " so it is 42", tokens=100), draft("y" * 40, tokens=10)
    text = render_block([long, short], 60)
    assert "y" * 40 in text, "a short draft is kept whole"
    assert "…" in text and "so it is 42" in text
    shown = len(text.partition("…")[2].partition("\n")[0])
    assert shown == len(long.text) // 2, "50 of its 100 tokens"
    assert render_block([long, short], 1000).count("…") == 0
    assert render_block([long], 1) == "### Draft 1\n…" + long.text[-3:] + "\n"


@given(st.lists(st.tuples(st.text(min_size=1, max_size=80), st.integers(0, 60)), max_size=6), st.integers(1, 100))
def test_a_block_never_has_more_tokens_than_allowed(texts: list[tuple[str, int]], most: int) -> None:
    drafts = [draft(text, tokens=tokens) for text, tokens in texts]
    shown = render_block(drafts, most)
    tokens = 0.0
    for i, each in enumerate(drafts, 1):
        body = shown.partition(f"### Draft {i}\n")[2].partition(f"\n### Draft {i + 1}\n")[0].strip("\n …")
        per_char = each.tokens / len(each.text) if each.tokens else 0.25
        tokens += min(len(body), len(each.text)) * per_char
    assert tokens <= most + len(drafts)


def test_reasoning_blocks_are_not_read() -> None:
    assert render_block([draft("<think>so many words</think>It is 42.")], 100) == "### Draft 1\nIt is 42.\n"


def test_answers_are_counted_and_prose_is_not() -> None:
    same = {"answer": "42", "key": "42"}
    drafts = [draft("a", **same), draft("b", answer="41", key="41"), draft("c", **same), draft("d")]
    assert format_histogram(drafts) == "Answers of the drafts: 42 (2 of 4), 41 (1 of 4); no short answer in 1."
    assert format_histogram([draft("a", answer="word " * 40, key="x")]) == ""
    assert format_histogram([draft("a", answer=["11-7=4"], key="k", verified=False)]) == (
        'Answers of the drafts: ["11-7=4"] (1 of 1 and wrong).'
    )


def test_ranking() -> None:
    wrong = draft("wrong", key="1", verified=False)
    right = draft("right", key="2", verified=True)
    often = [draft(f"often {i}", key="3", logprob=-float(i)) for i in (2, 1)]
    rare, half = draft("rare", key="4"), draft("half", done=False)
    order = rank_drafts([half, wrong, rare, *often, right])
    assert [each.text for each in order] == ["right", "often 1", "often 2", "rare", "half", "wrong"]


def test_records_that_are_none_are_passed_over() -> None:
    assert read_drafts(Result(value=None)) == [] == read_drafts(Result(value="x"))
    assert read_drafts(Result(value=[1, {"name": "a"}, record("path-1", "x")])) == [Draft("path-1", "x", tokens=1)]


# --- end to end ------------------------------------------------------------------------------------------------------


async def test_the_first_to_finish_stops_the_others_and_their_text_is_kept() -> None:
    slow = " ".join(f"w{i}" for i in range(400))
    answer, worker = await ask(
        "think_summarize",
        "Why?",
        Reply(when=SYNTHESIS, text="Because. Answer: 42"),
        Reply(text="one two three four five Answer: 42", times=1, delay=0.1),
        Reply(text=slow, tokens_per_second=200),
        options={"n": 3},
    )
    assert (answer.answer, answer.status) == ("42", "done")
    assert answer.why == "1 of 3 drafts and what 2 others had written; the first to end were read (a race); a synthesis"
    assert [states(answer)[f"path-{i}"] for i in (1, 2, 3)] == ["done", "cancelled", "cancelled"]
    (said,) = worker.asked(SYNTHESIS)
    assert said.count("stopped before its end") == 2 and "w1 " in said and "w399" not in said
    assert 0 < answer.usage.cancelled < 800


async def test_all_paths_are_read_if_that_is_wanted() -> None:
    answer, worker = await ask(
        "think_summarize",
        "Why?",
        Reply(when=SYNTHESIS, text="Answer: 42"),
        Reply(text="Answer: 41", times=1),
        Reply(text="Answer: 42"),
        options={"quorum": None},
    )
    assert answer.answer == "42" and answer.usage.cancelled == 0
    assert "42 (3 of 4), 41 (1 of 4)" in worker.asked(SYNTHESIS)[0]


async def test_a_path_that_fails_is_not_read() -> None:
    answer, worker = await ask(
        "think_summarize",
        "Why?",
        Reply(when=SYNTHESIS, text="Answer: 42"),
        Reply(text="x", finish="error", times=2),
        Reply(text="Answer: 42"),
        options={"quorum": 3},
    )
    assert answer.status == "done" and answer.why.startswith("2 of 4 drafts")
    assert worker.asked(SYNTHESIS)[0].count("### Attempt") == 2


async def test_a_synthesis_that_fails_is_a_vote() -> None:
    answer, _ = await ask(
        "think_summarize",
        "Why?",
        Reply(when=SYNTHESIS, text="x", finish="error"),
        Reply(text="Answer: 41", times=1),
        Reply(text="Answer: 42"),
        options={"quorum": None},
    )
    assert answer.answer == "42" and "a draft (3 of 4 votes): the synthesis failed: EngineError" in answer.why


async def test_if_all_paths_fail_so_does_the_run() -> None:
    answer, _ = await ask("think_summarize", "Why?", Reply(text="x", finish="error"))
    assert answer.status == "failed" and "EngineError" in answer.failure.message


@pytest.mark.parametrize("settle", [True, False])
async def test_a_verified_path_ends_the_run(settle: bool) -> None:
    right = "<hit> 11 - 7 = 4 ; 5 + 3 = 8 ; 8 * 4 = 32 <end>"
    answer, _ = await ask(
        "think_summarize",
        "3 5 7 11 -> 32",
        Reply(when=SYNTHESIS, text="<hit> 1 + 1 = 2 <end>"),
        Reply(text="<hit> 7 - 5 = 2 <end>", times=1),
        Reply(text=right),
        task="countdown",
        options={"quorum": None, "stop_on_verified": settle},
    )
    assert answer.verified is True and answer.answer == ["11-7=4", "5+3=8", "8*4=32"]
    if settle:
        assert "is verified" in answer.why and "summary" not in states(answer)
    else:
        assert "a draft (verified): the synthesis found wrong" in answer.why
