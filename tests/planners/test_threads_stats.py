"""How much ran side by side, against a direct transcription of the formulas over the recorded calls and over tokens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from plait.planners.threads.threads.dialects import load
from plait.runtime.client.answer import Answer
from plait.runtime.client.parallelism import TrajectoryTags, activated_share, parallelism, trajectory_lengths
from tests.planners.test_threads_dialects import MV_INNER, MV_LIST, multiverse, run
from tests.planners.token_worker import TokenWorker

TAGS = TrajectoryTags(block=1, block_end=2, thread=3, thread_end=4)


@dataclass
class Block:
    """s_b without the threads' tags, and t_bi."""

    own: int
    threads: list[int]


BLOCK = st.builds(Block, own=st.integers(0, 4), threads=st.lists(st.integers(0, 6), max_size=4))


@given(st.lists(st.one_of(st.integers(0, 5), BLOCK), max_size=8))
def test_a_trajectorys_lengths_are_the_published_ones(parts: list[int | Block]) -> None:
    ids: list[int] = []
    blocks = [part for part in parts if isinstance(part, Block)]
    serial = sum(part for part in parts if isinstance(part, int)) + 2 * len(blocks)
    for part in parts:
        if isinstance(part, int):
            ids += [9] * part
        else:
            ids += [1] + [9] * part.own
            for count in part.threads:
                ids += [3] + [1] * count + [4]  # a block inside a thread is text
            ids.append(2)
    s = [block.own + 2 * len(block.threads) for block in blocks]
    longest = serial + sum(s_b + max(block.threads, default=0) for s_b, block in zip(s, blocks, strict=True))
    total = serial + sum(s_b + sum(block.threads) for s_b, block in zip(s, blocks, strict=True))
    assert trajectory_lengths(ids, TAGS) == (longest, total)
    assert total == len(ids)


def test_what_has_no_end_goes_to_the_end() -> None:
    assert trajectory_lengths([9, 1, 9, 3, 9, 9, 9], TAGS) == (7, 7)
    assert trajectory_lengths([1, 3, 9, 4, 3, 9, 9], TAGS) == (6, 7)
    assert trajectory_lengths([2, 4, 9], TAGS) == (3, 3), "ends of nothing are text"
    assert trajectory_lengths([], TAGS) == (0, 0)


LENGTHS = st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=4), min_size=1, max_size=3)


@given(LENGTHS, st.lists(st.integers(1, 20), min_size=4, max_size=4))
def test_a_recorded_runs_figures_are_the_published_ones(rounds: list[list[int]], legs: list[int]) -> None:
    """Σ and longest chain over the calls (section 0: out_c), the calls being legs and threads of known lengths."""
    table = load("threadweaver")

    def model(context: str) -> str:
        done = context.count("<Outlines>")
        if context.endswith(":"):
            number = int(context[:-1].rpartition("\n")[2])
            return "x" * (rounds[done - 1][number - 1] - 1) + "</Thread>"
        if done == len(rounds):
            return "y" * legs[3]
        outlines = "".join(f"<Outline>{n}:" for n in range(1, len(rounds[done]) + 1))
        return "y" * legs[done] + f"<Outlines>{outlines}</Outlines>"

    worker = TokenWorker(model, table.tags)
    answer = run(worker, dialect="threadweaver")
    out = {step: len(ids) for step, ids in worker.outputs.items()}
    figures = parallelism(answer.report)
    sequential = [legs[i] + 2 + 3 * len(threads) for i, threads in enumerate(rounds)] + [legs[3]]
    longest = sum(sequential) + sum(map(max, rounds))
    total = sum(sequential) + sum(map(sum, rounds))
    assert sum(out[f"round-{n}"] for n in range(1, len(rounds) + 2)) == sum(sequential)
    assert (figures.longest, figures.total) == (longest, total)
    assert figures.acceleration == pytest.approx(1 - longest / total)
    assert figures.parallel == pytest.approx(total / longest)
    assert figures.activated and figures.rounds == len(rounds)
    assert figures.threads == sum(map(len, rounds)) and figures.in_threads == sum(map(sum, rounds))


def test_threads_of_threads_count_on_the_longest_chain() -> None:
    worker = TokenWorker(multiverse, load("multiverse").tags)
    answer = run(worker, dialect="multiverse")
    out = {step: len(ids) for step, ids in worker.outputs.items()}
    first = out["child-1"] + max(out["child-1.1"], out["child-1.2"]) + out["child-1-round-2"]
    figures = parallelism(answer.report)
    assert out["round-1"] == len(worker.tokenizer.said(MV_LIST)) and out["child-1"] == len(
        worker.tokenizer.said(MV_INNER)
    )
    assert figures.longest == out["round-1"] + max(first, out["child-2"]) + out["round-2"]
    assert figures.total == sum(out.values()) == answer.usage.completion
    assert (figures.threads, figures.rounds) == (4, 2)
    assert figures.in_threads == sum(out[name] for name in out if name.startswith("child"))


def test_a_run_that_spawned_nothing() -> None:
    answers: list[Answer] = [
        run(TokenWorker(lambda context: "\\boxed{42}"), dialect="threadweaver"),
        run(TokenWorker(multiverse, load("multiverse").tags), dialect="multiverse"),
    ]
    serial, parallel = (parallelism(answer.report) for answer in answers)
    assert not serial.activated and serial.acceleration == 0 and serial.parallel == 1
    assert activated_share([serial, parallel]) == 0.5 and activated_share([]) == 0
    assert parallel.summary()["activated"] is True
