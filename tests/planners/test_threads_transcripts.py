"""Whole texts in the form of the authors' transcripts, white space included, come out of the joins character by
character: a join that differs by a line break is one that their models were not trained on."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from plait.core.call_config import CallConfig
from plait.core.ops import ModelCall
from plait.planners.threads.threads import Threads
from plait.planners.threads.threads.dialects import load
from tests.planners.test_threads_dialects import ASK, run
from tests.planners.token_worker import TokenWorker

HEADER = re.compile(r"(?:\n<(?:Path|step)>\n[0-9.]+:|<Path>)\Z")
TRANSCRIPTS = Path(__file__).with_name("transcripts")


def writer(opening: str, transcript: str):
    """A model that writes a transcript: a parent goes on from where its context stops, and a thread writes what stands
    behind its header (of equal headers the n-th thread what stands behind the n-th)."""
    asked: Counter[str] = Counter()

    def model(context: str) -> str:
        written = context.removeprefix(opening)
        header = HEADER.search(written)
        if header is None:
            assert transcript.startswith(written), f"the transcript does not go on from {written[-60:]!r}"
            return transcript[len(written) :]
        asked[context] += 1
        at = header.start()
        for _ in range(asked[context]):
            at = transcript.index(header[0], at) + len(header[0])
        return transcript[at:]

    return model


@pytest.mark.parametrize("name", ["multiverse", "parallel-r1", "npr"])
def test_a_transcript_comes_out_as_it_was_written(name: str) -> None:
    transcript = (TRANSCRIPTS / f"{name.replace('-', '_')}.txt").read_text()
    table = load(name)
    opening = table.opening(ASK, ASK)
    worker = TokenWorker(writer(opening, transcript), table.tags)
    answer = run(worker, dialect=name)
    assert answer.status == "done"
    last = max((step for step in worker.prompts if step.startswith("round-")), key=lambda step: int(step[6:]))
    written = worker.tokenizer.decode((*worker.prompts[last], *worker.outputs[last]))
    assert written == opening + transcript
    assert len(worker.jobs) == 7, "the parent's legs and those of four threads"


def test_npr_asks_with_an_instruction_runs_five_plans_and_penalises_repetition() -> None:
    plans = "".join(f"<plan>{n}: p</plan>\n" for n in range(1, 8))
    worker = TokenWorker(
        lambda context: " x\n</step>" if context[-2:-1].isdigit() and context.endswith(":") else
        "42</takeaway>\\boxed{42}" if context.endswith("<takeaway>\n") else f"<guideline>\n{plans}</guideline>",
        load("npr").tags,
    )  # fmt: skip
    answer = run(worker, dialect="npr")
    assert answer.answer == "42"
    assert sum(step.startswith("child-") for step in worker.prompts) == 5
    asked = worker.tokenizer.decode(worker.prompts["round-1"])
    assert asked.startswith(ASK) and "<guideline>" in asked and asked.endswith("\\boxed{}.")
    penalties = {job.op.sampling.repetition_penalty for job in worker.jobs if isinstance(job.op, ModelCall)}
    assert penalties == {1.02}


def test_the_authors_own_instruction_takes_the_place_of_the_dialects() -> None:
    worker = TokenWorker(lambda context: "\\boxed{1}", load("npr").tags)
    run(worker, dialect="npr", answer={"template": "{question}\n\nTheir words.", "repetition_penalty": 1})
    assert worker.tokenizer.decode(worker.prompts["round-1"]) == f"{ASK}\n\nTheir words."
    assert {job.op.sampling.repetition_penalty for job in worker.jobs if isinstance(job.op, ModelCall)} == {1.0}
    with pytest.raises(Exception, match=r"`answer.template` needs"):
        Threads(dialect="npr", answer=CallConfig(template="no question"))
    with pytest.raises(Exception, match=r"`answer.template` needs"):
        Threads(dialect="apr", answer=CallConfig(template="{question}"))
