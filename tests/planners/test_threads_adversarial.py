"""Whatever a model writes, in any dialect, a run ends, within its bounds, with an answer or a failure that says why."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given, strategies as st

from plait.core.result import Failure
from plait.core.view import Branch
from plait.planners.threads.threads.dialects import load
from plait.policies.merge.values import Splice
from plait.tasks.plain import Plain
from tests.planners.test_threads_dialects import run
from tests.planners.token_worker import TokenWorker

DIALECTS = ["apr", "multiverse", "npr", "parallel-r1", "threadweaver", "threadweaver-conclusion"]
NOISE = [
    "", " ", "\n", "so", "1:", "<", ">", "</", "<Parallel", "</think>", "<|im_end|>", "\\boxed{42}", "{text}", "{item}",
    "{0}", "%s", "$(rm -rf ~)", "__import__('os')", "9" * 300, "1." * 200, "\0", "\U0001f600",
    "<Outline> 1: a</Outline>", "<Outline> 1: a</Outline>" * 3, "<Outline>2.1.3: b", "<plan>1: x</plan>", "<plan>7:",
    "Moving to Node #0\nCurrent State: 39:[3, 4], Operations: []\n", "Goal Reached", "Goal Reached\nGoal Reached",
    "<Start Sub Search 0 at level 1> Moving to Node #0",
]  # fmt: skip


def words_of(dialect: str) -> list[str]:
    table = load(dialect)
    special = [*table.tags, table.fork, table.open, *table.child_stop, table.header, table.join.head, table.join.tail]
    return [*NOISE, *(word for word in special if word), *(word[: len(word) // 2] for word in special if word)]


@pytest.mark.parametrize("dialect", DIALECTS)
@given(seed=st.integers(0, 2**32), ids=st.booleans(), lists=st.integers(0, 3))
def test_a_run_ends_whatever_the_model_writes(dialect: str, seed: int, ids: bool, lists: int) -> None:
    table = load(dialect)
    words = words_of(dialect)

    def model(context: str) -> str | Failure:
        draw = random.Random(f"{seed}/{hashlib.sha256(context.encode()).hexdigest()}")
        if draw.random() < 0.05:
            return Failure(kind="EngineError", message="gone")
        said = "".join(draw.choice(words) for _ in range(draw.randint(0, 12)))
        if draw.randint(0, 3) < lists:
            items = "".join(draw.choice(words) for _ in range(draw.randint(0, 6)))
            said += table.open + items + draw.choice(["", table.fork, table.fork[:-1]])
        return said

    worker = TokenWorker(model, table.tags, ids=ids)
    answer = run(worker, "25 6 3 4 -> 39", dialect=dialect, max_branches=20, rounds=5, part={"max_tokens": 200})
    assert answer.status in ("done", "failed")
    if answer.status == "failed":  # only ever because the model's own call failed
        assert answer.failure is not None and "gone" in answer.failure.message
    threads = {
        job.step for job in worker.jobs if "-round-" not in (name := job.step.rpartition("/")[2]) and "child" in name
    }
    assert len(threads) <= 20
    assert len({job.step for job in worker.jobs}) <= 6 + 20 * 6


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("word", range(len(NOISE)))
def test_one_word_without_end_is_bounded(dialect: str, word: int) -> None:
    table = load(dialect)
    text = NOISE[word] * (20_000 // max(1, len(NOISE[word])))
    for said in (text, table.open + text + table.fork, (table.open + text[:50] + table.fork) * 100):
        assert len(table.items(said, "", 8, table.remember("", text))) <= 256
    options = {"block": table.join, "places": [{"branch": "a"}]}
    assert Splice.model_validate(options).merge([_result(text)], Plain(text="?")).value


@pytest.mark.parametrize("dialect", DIALECTS)
@given(st.lists(st.sampled_from(NOISE), max_size=8).map("".join), st.integers(0, 4))
def test_what_a_thread_wrote_is_in_the_join_once_and_never_read_as_a_template(
    dialect: str, text: str, cut: int
) -> None:
    block = load(dialect).join
    if block.goal is not None:
        return
    said = text + block.end[: len(block.end) - cut]
    result = _result(said)
    value = Splice.model_validate(
        {"block": block, "places": [{"item": "1", "branch": "a"}, {"item": "2", "branch": "b"}]}
    )
    verdict = value.merge([result, _failed("b")], Plain(text="?")).value
    assert isinstance(verdict, list)
    whole = "".join(
        each if isinstance(each, str) else str(each["text"]) for each in verdict if isinstance(each, str | dict)
    )
    body = said.removesuffix("<|im_end|>") if not said.endswith(block.end) else said
    assert body in whole and whole.endswith(block.tail) and whole.count("{text}") == body.count("{text}")
    assert block.end in whole


def _result(text: str) -> Branch:
    from plait.core.result import Result
    from plait.core.states import State

    return Branch("a", "r:a", State.DONE, Result(value=text), None, 1)


def _failed(name: str) -> Branch:
    from plait.core.states import State

    return Branch(name, f"r:{name}", State.FAILED, None, Failure(kind="EngineError", message="gone"), 0)
