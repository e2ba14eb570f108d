"""How much ran side by side, against a direct transcription of the formulas over the recorded calls."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from plait.planners.threads.threads.dialects import load
from plait.runtime.client.answer import Answer
from plait.runtime.client.parallelism import parallelism
from tests.planners.test_threads_dialects import MV_INNER, MV_LIST, multiverse, run
from tests.planners.token_worker import TokenWorker

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
    assert parallel.summary()["activated"] is True
