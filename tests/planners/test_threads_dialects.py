"""Transcripts of every dialect, end to end through the public SDK: on the scripted worker, and token for token."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from plait import AsyncOrchestrator, Plugin
from plait.core.errors import PluginError
from plait.core.ops import ModelCall
from plait.core.result import Failure
from plait.planners.threads.threads import Threads
from plait.planners.threads.threads.dialects import Dialect, load
from plait.runtime.client.answer import Answer
from plait.workers.scripted import Reply, Scripted
from tests.planners.token_worker import TokenWorker

ASK = "What is 6*7?"


def run(worker: Any, text: str = ASK, task: str = "plain", **options: Any) -> Answer:
    async def go() -> Answer:
        async with AsyncOrchestrator(workers=[worker]) as plait:
            return await plait.run(text, task=task, planner=Plugin(name="threads", options=options))

    return asyncio.run(go())


def by_ending(replies: Mapping[str, str | Failure], first: str):
    """A model that looks at how its context ends; the longest ending that fits counts."""

    def model(context: str) -> str | Failure:
        fitting = [ending for ending in replies if context.endswith(ending)]
        return replies[max(fitting, key=len)] if fitting else first

    return model


def ends(worker: TokenWorker, step: str, *pieces: tuple[str, str]) -> None:
    """Check a prompt token for token: the whole of it."""
    assert worker.prompts[step] == worker.context(*pieces), worker.tokenizer.decode(worker.prompts[step])


# --- ThreadWeaver ----------------------------------------------------------------------------------------------------

TW_LIST = (
    "<think> the answer: <Parallel>\n<Outlines>\n<Outline> 1: then multiply</Outline>\n<Outline> 2: the other"
    "</Outline>\n</Outlines>"
)
TW_ONE, TW_TWO = " the first, then <Parallel>1</Parallel></Thread>", " in another way</Thread>"
TW_END = "</Parallel> so the answer is \\boxed{42}"


def threadweaver(**changed: str | Failure):
    replies: dict[str, str | Failure] = {
        "\n<Thread>\n1:": TW_ONE,
        "\n<Thread>\n2:": TW_TWO,
        "</Thread>\n": TW_END,
        **changed,
    }
    return by_ending(replies, TW_LIST)


def test_threadweaver_token_for_token() -> None:
    worker = TokenWorker(threadweaver(), load("threadweaver").tags)
    answer = run(worker, dialect="threadweaver")
    assert answer.answer == "42" and answer.status == "done" and answer.value == TW_END
    start = (("put", ASK), ("said", TW_LIST))
    ends(worker, "child-1", *start, ("put", "\n<Thread>\n1:"))
    ends(worker, "child-2", *start, ("put", "\n<Thread>\n2:"))
    ends(
        worker, "round-2", *start, ("put", "\n<Thread>\n1:"), ("said", TW_ONE), ("put", "<Thread>\n2:"),
        ("said", TW_TWO), ("put", "\n"),
    )  # fmt: skip
    joined = worker.tokenizer.decode(worker.prompts["round-2"])
    assert "</Thread><Thread>" in joined and not joined.endswith("</Parallel>")


def test_threadweaver_continues_ids_and_not_text() -> None:
    """What the model wrote is not what the tokenizer makes of it; were it tokenised again, this would show."""
    worker = TokenWorker(threadweaver(), load("threadweaver").tags)
    run(worker, dialect="threadweaver")
    prompt = worker.prompts["round-2"]
    assert tuple(worker.tokenizer.encode(worker.tokenizer.decode(prompt))) != prompt
    for child in ("child-1", "child-2"):
        written = worker.outputs[child]
        assert any(prompt[i : i + len(written)] == written for i in range(len(prompt)))


def test_threadweaver_with_conclusions() -> None:
    model = by_ending(
        {
            "\n<Thread>\n1:": TW_ONE,
            "\n<Thread>\n2:": TW_TWO,
            "</Thread>\n<Conclusion>\n": "both agree</Conclusion>\n" + TW_END,
        },
        TW_LIST,
    )
    worker = TokenWorker(model, load("threadweaver-conclusion").tags)
    answer = run(worker, dialect="threadweaver-conclusion")
    assert answer.answer == "42"
    assert worker.tokenizer.decode(worker.prompts["round-2"]).endswith(TW_TWO + "\n<Conclusion>\n")


@pytest.mark.parametrize(
    ("second", "read"),
    [
        (" and so on, and so on", " and so on, and so on\n</Thread>"),  # its text ended early
        (" done<|im_end|>", " done\n</Thread>"),  # an end of text would end the parent's
        ("", "\n</Thread>"),
        (Failure(kind="EngineError", message="out of memory"), "\n</Thread>"),
        (" in " * 100, " in " * 16 + "\n</Thread>"),  # cut off at 64 tokens
        (" </Parallel> </think> \\boxed{7}", " </Parallel> </think> \\boxed{7}\n</Thread>"),
        (" <Thread>3: <Outlines></Outlines></Thread>", " <Thread>3: <Outlines></Outlines></Thread>"),
    ],
)
def test_a_bad_thread_is_closed_and_costs_nothing_else(second: str | Failure, read: str) -> None:
    """Peers: one thread cut off or ended by an end of text ends the answer; one that raises throws all work away."""
    worker = TokenWorker(threadweaver(**{"\n<Thread>\n2:": second}), (*load("threadweaver").tags, "<|im_end|>"))
    answer = run(worker, dialect="threadweaver", part={"max_tokens": 64})
    assert answer.status == "done" and answer.answer == "42"
    joined = worker.tokenizer.decode(worker.prompts["round-2"])
    assert joined.endswith(f"\n<Thread>\n1:{TW_ONE}<Thread>\n2:{read}\n")


def test_outline_numbers_are_read_once_and_only_from_the_last_list() -> None:
    text = (
        "<Outlines><Outline> 9: old</Outline> no: <Parallel>\n<Outlines>\n<Outline>\n 2: b</Outline>"
        "<Outline> 1: a</Outline>\n<Outline> 2: again</Outline> <Outline> x: none</Outline>\n</Outlines>"
    )
    model = threadweaver()
    worker = TokenWorker(lambda context: text if context == ASK else model(context), load("threadweaver").tags)
    assert run(worker, dialect="threadweaver").answer == "42"
    assert set(worker.prompts) == {"round-1", "child-1", "child-2", "round-2"}
    final = worker.tokenizer.decode(worker.prompts["round-2"])
    assert final.endswith(f"\n<Thread>\n2:{TW_TWO}<Thread>\n1:{TW_ONE}\n"), "in the order of the outlines, each once"


def test_an_unreadable_list_is_left_standing_and_the_model_goes_on() -> None:
    worker = TokenWorker(
        by_ending({"</Outlines>": " never mind: \\boxed{42}"}, "<Outlines> none at all </Outlines> tail"),
        load("threadweaver").tags,
    )
    answer = run(worker, dialect="threadweaver")
    assert answer.answer == "42" and set(worker.prompts) == {"round-1", "round-2"}
    ends(worker, "round-2", ("put", ASK), ("said", "<Outlines> none at all </Outlines>"))


def test_after_the_last_round_lists_are_text() -> None:
    again = TW_LIST + " and \\boxed{41}"
    worker = TokenWorker(threadweaver(**{"</Thread>\n": again}), load("threadweaver").tags)
    answer = run(worker, dialect="threadweaver", rounds=3)
    assert answer.status == "done" and answer.value == again
    assert sum(name.startswith("round") for name in worker.prompts) == 4
    assert sum(job.step.rpartition("/")[2].startswith("child") for job in worker.jobs) == 6


def test_the_width_and_the_threads_of_a_run_are_bounded() -> None:
    outlines = "".join(f"<Outline> {n}: x</Outline>" for n in range(1, 2_001))
    worker = TokenWorker(lambda text: f"<Outlines>{outlines}</Outlines>" if text == ASK else "x</Thread>", ())
    answer = run(worker, dialect="threadweaver", answer={"max_tokens": 100_000}, rounds=1)
    assert answer.status == "done" and sum("child" in job.step for job in worker.jobs) == 50
    worker = TokenWorker(lambda text: TW_LIST if not text.endswith(":") else "x</Thread>", load("threadweaver").tags)
    answer = run(worker, dialect="threadweaver", max_branches=7)
    assert answer.status == "done" and sum("child" in job.step.rpartition("/")[2] for job in worker.jobs) == 7


@pytest.mark.parametrize("ids", [True, False])
def test_threads_that_would_fill_the_parents_context_are_cut_there(ids: bool) -> None:
    """The longest give way: here the second has 400 words, and the joined context would not fit."""
    long = " and so on" * 200
    model = threadweaver(**{"\n<Thread>\n2:": long})
    worker = TokenWorker(model, load("threadweaver").tags, ids=ids, most=900)
    assert run(worker, dialect="threadweaver").status == "failed", "without a limit it does not fit"
    worker = TokenWorker(model, load("threadweaver").tags, ids=ids, most=900)
    answer = run(worker, dialect="threadweaver", max_input_tokens=130)
    assert answer.answer == "42"
    first = len(worker.tokenizer.said(TW_ONE))
    joined = worker.tokenizer.decode(worker.prompts["round-2"])
    if ids:
        assert joined.endswith(f"\n<Thread>\n1:{TW_ONE}<Thread>\n2:{long[: 130 - first]}\n</Thread>\n")
    else:
        words = joined.partition("<Thread>\n2:")[2].partition("\n</Thread>")[0].split()
        assert words == long.split()[: 130 - len(TW_ONE.split())]


def test_a_thread_has_a_budget_of_its_own() -> None:
    model = threadweaver(**{"\n<Thread>\n2:": " and on" * 500})
    worker = TokenWorker(model, load("threadweaver").tags)
    answer = run(worker, dialect="threadweaver", budget={"tokens": 100})
    assert answer.answer == "42" and len(worker.outputs["child-2"]) <= 100


SCRIPTS: dict[str, tuple[list[Reply], str]] = {
    "threadweaver": (
        [
            Reply(when=r"</Thread>\n\Z", text="</Parallel> so \\boxed{42}"),
            Reply(when=r"<Thread>\n1:\Z", text=" six times seven</Thread>"),
            Reply(when=r"<Thread>\n2:\Z", text=" seven times six"),
            Reply(text=TW_LIST),
        ],
        "</Parallel> so \\boxed{42}",
    ),
    "multiverse": (
        [
            Reply(when=r"</Path>\n<Conclusion>\n\Z", text="42</Conclusion>\n</Parallel>\\boxed{42}"),
            Reply(when=r"<Path>\n[12]:\Z", text=" x\n</Path>"),
            Reply(text="<Parallel>\n<Goal>\n<Outline>\n1: a\n</Outline>\n<Outline>\n2: b\n</Outline>\n</Goal>"),
        ],
        "42</Conclusion>\n</Parallel>\\boxed{42}",
    ),
    "parallel-r1": (
        [
            Reply(when=r"</Parallel>\n<Summary>\Z", text="42</Summary> \\boxed{42}"),
            Reply(when=r"<Path>\Z", text="one way</Path>"),
            Reply(text="Hm. <Parallel>"),
        ],
        "42</Summary> \\boxed{42}",
    ),
    "npr": (
        [
            Reply(when=r"<takeaway>\n\Z", text="42</takeaway>\\boxed{42}"),
            Reply(when=r"<step>\n1:\Z", text=" x\n</step>"),
            Reply(text="<guideline>\n<plan>1: only</plan>\n</guideline>"),
        ],
        "42</takeaway>\\boxed{42}",
    ),
}


@pytest.mark.parametrize("dialect", sorted(SCRIPTS))
def test_every_dialect_on_the_scripted_worker(dialect: str) -> None:
    replies, last = SCRIPTS[dialect]
    answer = run(Scripted(replies), dialect=dialect)
    assert answer.status == "done" and answer.value == last and answer.answer == "42"
    assert answer.usage.cached > 0


# --- Multiverse ------------------------------------------------------------------------------------------------------

MV_ASK = ASK + " Think step by step and in parallel before answering."
MV_LIST = "<Think> the <Parallel>\n<Goal>\n<Outline>\n1: this\n</Outline>\n<Outline>\n2: that\n</Outline>\n</Goal>"
MV_INNER = " then <Parallel>\n<Goal>\n<Outline>\n1.1: an\n</Outline>\n<Outline>\n1.2: other\n</Outline>\n</Goal>"
MV_INNER_END = "inner</Conclusion>\n</Parallel> the rest\n</Path>"


def multiverse(context: str) -> str | Failure:
    replies: dict[str, str | Failure] = {
        "<Path>\n1:": MV_INNER,
        "<Path>\n2:": " that\n</Path>",
        "<Path>\n1.1:": " an inner one\n</Path>",
        "<Path>\n1.2:": " another\n</Path>",
        " another\n</Path>\n<Conclusion>\n": MV_INNER_END,
        " that\n</Path>\n<Conclusion>\n": "outer</Conclusion>\n</Parallel>\\boxed{42}",
    }
    return by_ending(replies, MV_LIST)(context)


def multiverse_pieces() -> list[tuple[str, str]]:
    inner = [
        ("said", MV_INNER), ("put", "\n<Path>\n1.1:"), ("said", " an inner one\n</Path>"), ("put", "\n<Path>\n1.2:"),
        ("said", " another\n</Path>"), ("put", "\n<Conclusion>\n"),
    ]  # fmt: skip
    return [("put", MV_ASK), ("said", MV_LIST), ("put", "\n<Path>\n1:"), *inner]


def test_multiverse_nests_token_for_token() -> None:
    """The parent of a thread that spawned threads reads all that it and they wrote."""
    worker = TokenWorker(multiverse, load("multiverse").tags)
    answer = run(worker, dialect="multiverse")
    assert answer.answer == "42"
    ends(worker, "child-1-round-2", *multiverse_pieces())
    ends(
        worker, "round-2", *multiverse_pieces(), ("said", MV_INNER_END), ("put", "\n<Path>\n2:"),
        ("said", " that\n</Path>"), ("put", "\n<Conclusion>\n"),
    )  # fmt: skip


def test_multiverse_nests_on_a_worker_without_token_ids() -> None:
    worker = TokenWorker(multiverse, load("multiverse").tags, ids=False)
    assert run(worker, dialect="multiverse").answer == "42"
    other = TokenWorker(multiverse, load("multiverse").tags)
    run(other, dialect="multiverse")
    for step, prompt in other.prompts.items():
        assert worker.tokenizer.decode(worker.prompts[step]) == other.tokenizer.decode(prompt), step


def test_a_nested_thread_that_fails_half_way_is_read_as_far_as_it_came() -> None:
    fails = Failure(kind="EngineError", message="gone")

    def model(context: str) -> str | Failure:
        if context.endswith(" another\n</Path>\n<Conclusion>\n"):
            return fails
        if context.endswith(" that\n</Path>\n<Conclusion>\n"):
            return "outer</Conclusion>\n</Parallel>\\boxed{42}"
        return multiverse(context)

    worker = TokenWorker(model, load("multiverse").tags)
    assert run(worker, dialect="multiverse").answer == "42"
    ends(
        worker, "round-2", *multiverse_pieces()[:-1], ("put", "\n<Conclusion>\n\n</Path>\n<Path>\n2:"),
        ("said", " that\n</Path>"), ("put", "\n<Conclusion>\n"),
    )  # fmt: skip


def test_blocks_nest_five_deep_and_no_deeper() -> None:
    outlines = "<Goal><Outline>1: a</Outline></Goal> then <Goal>so</Goal></Path>"
    worker = TokenWorker(
        lambda context: "x</Path>" if context.endswith("<Conclusion>\n") else outlines, load("multiverse").tags
    )
    answer = run(worker, dialect="multiverse", max_branches=64)
    assert answer.status == "done"
    depths = {name.count(".") + 1 for name in worker.prompts if name.startswith("child")}
    assert depths == {1, 2, 3, 4, 5}
    deepest = next(name for name in worker.outputs if name.count(".") == 4)
    assert worker.tokenizer.decode(worker.outputs[deepest]) == outlines, "what nests deeper is decoded in line"


def test_the_bound_on_threads_is_one_for_the_run_and_not_shared_out() -> None:
    """A chain of blocks, five deep, of four paths each: twenty threads, of which each level's first spawns more."""

    def model(context: str) -> str:
        header = re.search(r"\n<Path>\n([0-9.]+):\Z", context)
        if context.endswith("<Conclusion>\n"):
            return "so</Conclusion>\n</Parallel>\n</Path>"
        at = header[1] if header else ""
        if header and (not at.endswith("1") or at.count(".") == 4):
            return " done</Path>"
        below = [f"{at}.{n}" if at else str(n) for n in range(1, 5)]
        return "<Parallel>\n<Goal>" + "".join(f"<Outline>{each}: a</Outline>" for each in below) + "</Goal>"

    worker = TokenWorker(model, load("multiverse").tags)
    answer = run(worker, dialect="multiverse", max_branches=20)
    assert answer.status == "done"
    threads = [name for name in worker.prompts if name.startswith("child") and "round" not in name]
    assert len(threads) == 20 and max(name.count(".") for name in threads) == 4


def test_a_thread_that_may_spawn_none_writes_its_block_out_and_ends_with_its_own_end() -> None:
    block = "<Parallel>\n<Goal><Outline>1.1: a</Outline></Goal>\n<Path>\n1.1: x\n</Path>\n<Conclusion>c</Conclusion>\n"
    inner = f" y\n{block}</Parallel>\nso\n</Path>"

    def model(context: str) -> str:
        if context.endswith("\n<Path>\n1:"):
            return inner
        if context.endswith("\n<Path>\n1.1: x\n</Path>"):
            return inner.partition("1.1: x\n</Path>")[2]
        if context.endswith("<Conclusion>\n"):
            return "d</Conclusion>\n</Parallel>\n\\boxed{42}"
        return "<Parallel>\n<Goal>\n<Outline>\n1: a\n</Outline>\n</Goal>"

    worker = TokenWorker(model, load("multiverse").tags)
    answer = run(worker, dialect="multiverse", depth=0)
    assert answer.answer == "42"
    read = worker.tokenizer.decode(worker.prompts["round-2"])
    assert read.endswith(f"\n<Path>\n1:{inner}\n<Conclusion>\n"), "the parent reads the whole thread"


def test_nested_threads_are_bounded_in_all() -> None:
    outlines = "".join(f"<Outline>{n}: a</Outline>" for n in range(20))
    worker = TokenWorker(lambda context: f"<Goal>{outlines}</Goal>", load("multiverse").tags)
    answer = run(worker, dialect="multiverse", max_branches=200)
    assert answer.status == "done"
    assert sum(job.step.rpartition("/")[2].startswith("child") and "round" not in job.step.rpartition("/")[2]
               for job in worker.jobs) <= 200  # fmt: skip


# --- Parallel-R1, NPR ------------------------------------------------------------------------------------------------


def test_parallel_r1_token_for_token() -> None:
    worker = TokenWorker(
        by_ending({"<Path>": "the same</Path>", "<Summary>": "then</Summary> \\boxed{42}"}, "the <Parallel> other"),
        load("parallel-r1").tags,
    )
    answer = run(worker, dialect="parallel-r1", n=3)
    assert answer.answer == "42"
    start = (("put", ASK), ("said", "the <Parallel>"))
    for child in ("child-1", "child-2", "child-3"):
        ends(worker, child, *start, ("put", "<Path>"))
    path = (("put", "<Path>"), ("said", "the same</Path>"))
    ends(worker, "round-2", *start, *path, *path, *path, ("put", "</Parallel>\n<Summary>"))
    sampled = [job.op.sampling for job in worker.jobs if isinstance(job.op, ModelCall) and "child" in job.step]
    assert {each.temperature for each in sampled} == {1.0}
    assert len({each.seed for each in sampled}) == 3, "the prompts are identical: only seeds tell them apart"


def test_parallel_r1_runs_two_paths_by_default() -> None:
    assert (
        len(Threads(dialect="parallel-r1").table.items("x <Parallel>", "", Threads(dialect="parallel-r1")._width)) == 2
    )


def test_npr_token_for_token_twice() -> None:
    one = "<guideline>\n<plan>1: the</plan>\n<plan>2: other</plan>\n</guideline>"
    two = "both</takeaway>\n<guideline>\n<plan>1: in the end</plan>\n</guideline>"
    worker = TokenWorker(
        by_ending(
            {
                "<step>\n1:": " this\n</step>",
                "<step>\n2:": " that\n</step>",
                "2: that\n</step>\n<takeaway>\n": two,
                "1: this\n</step>\n<takeaway>\n": "all</takeaway> \\boxed{42}",
            },
            one,
        ),
        load("npr").tags,
    )
    answer = run(worker, dialect="npr")
    assert answer.answer == "42"
    first = (
        ("put", load("npr").opening(ASK, ASK)), ("said", one), ("put", "\n<step>\n1:"), ("said", " this\n</step>"),
        ("put", "\n<step>\n2:"),
        ("said", " that\n</step>"), ("put", "\n<takeaway>\n"),
    )  # fmt: skip
    ends(worker, "round-2", *first)
    ends(
        worker, "round-3", *first, ("said", two), ("put", "\n<step>\n1:"), ("said", " this\n</step>"),
        ("put", "\n<takeaway>\n"),
    )  # fmt: skip


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dialect": "threadweaver", "fork": False}, "leave `fork` on"),
        ({"dialect": "apr", "fork": True}, "leave `fork` out"),
        ({"dialect": "apr", "answer": {"template": "{question}"}}, "needs {opening}"),
    ],
)
def test_options_that_do_not_fit_the_dialect(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PluginError, match=said):
        Threads(**options)


@pytest.mark.parametrize("name", ["apr", "multiverse", "npr", "parallel-r1", "threadweaver", "threadweaver-conclusion"])
def test_a_dialect_survives_its_journal(name: str) -> None:
    table = load(name)
    assert Dialect.model_validate(table.model_dump()).join == table.join
