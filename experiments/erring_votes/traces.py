"""What the samples of the study `erring-votes` looked like while they were written: how sure the model was of each
token, and what it would have answered. Read off the model once, in plain torch, and kept beside the samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

from plait.core.ops import Plugin
from plait.runtime.client.config import BUNDLED_MODEL
from plait.runtime.plugins.loader import Plugins

from .._tools.voters.sums import TOP, Drawn

__all__ = ["EVERY", "HIT", "Trace", "Traced", "trace_all"]

EVERY = 3
"""Tokens between two questions for the answer so far."""
HIT = "<hit>"
"""The word that the voter writes before its answer; after it the answer is one word."""
ROWS = 512


class Trace(TypedDict):
    """One sample while it was written."""

    confidences: list[float]
    """Of each token: the mean negative log-probability of the 20 likeliest (nats), as DeepConf has it."""
    so_far: list[int | None]
    """The likeliest answer after each `EVERY` tokens, up to the last that are followed by others; `None`: no number."""
    sure: list[float]
    """Log-probabilities (nats) of these."""


class Traced(TypedDict):
    """The traces of a sum's samples, in order."""

    level: int
    text: str
    traces: list[Trace]


def trace_all(drawn: Sequence[Drawn], kept: Path) -> dict[tuple[int, str], list[Trace]]:
    """Return the traces of all samples, by level and sum; what is missing in the file is added to it."""
    found: dict[tuple[int, str], list[Trace]] = {}
    for line in kept.read_text(encoding="utf-8").split("\n")[:-1] if kept.is_file() else []:
        each: Traced = json.loads(line)
        found[each["level"], each["text"]] = each["traces"]
    missing = [each for each in drawn if (each["level"], each["text"]) not in found]
    if missing:
        with kept.open("a", encoding="utf-8") as file:
            for traced in _traced(missing):
                found[traced["level"], traced["text"]] = traced["traces"]
                file.write(json.dumps(traced) + "\n")
                file.flush()
    return {(each["level"], each["text"]): found[each["level"], each["text"]] for each in drawn}


def _traced(drawn: Sequence[Drawn]) -> Iterator[Traced]:
    import torch

    from training.arithmetic.vocab import ID, WORDS
    from training.export import load

    torch.set_num_threads(1)
    model = load(Path(BUNDLED_MODEL).with_name("arithmetic"))
    plugins = Plugins()

    @torch.inference_mode()
    def scores(lines: Sequence[Sequence[int]]) -> Iterator[Any]:
        """Yield the log-probabilities of what follows each word of each line, shape (words, vocabulary)."""
        for at in range(0, len(lines), ROWS):
            rows = lines[at : at + ROWS]
            longest = max(map(len, rows))
            ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
            told = model.logits(model.hidden(ids, torch.float32), torch.float32).log_softmax(-1)
            yield from (each[: len(row)] for each, row in zip(told, rows, strict=True))

    for each in drawn:
        task = plugins.task(Plugin(name="sums", options={"skill": each["level"]}), each["text"])
        prompt = [ID[word] for word in task.render().split()]
        words = [[ID[word] for word in sample["text"].split()] for sample in each["samples"]]
        whole = scores([[*prompt, *line] for line in words])
        begun = [(i, at) for i, line in enumerate(words) for at in range(EVERY, len(line), EVERY)]
        asked = scores([[*prompt, *words[i][:at], ID[HIT]] for i, at in begun])
        traces = [Trace(confidences=[], so_far=[], sure=[]) for _ in words]
        for trace, sample, told in zip(traces, each["samples"], whole, strict=True):
            likely = -told[len(prompt) - 1 :].topk(TOP).values.mean(-1)
            trace["confidences"] = [round(value, 4) for value in likely.tolist()][: sample["tokens"]]
        for (i, _), told in zip(begun, asked, strict=True):
            sure, word = told[-1].max(-1)
            said = WORDS[int(word)]
            traces[i]["so_far"].append(int(said) if said.isdecimal() else None)
            traces[i]["sure"].append(round(float(sure), 4))
        yield Traced(level=each["level"], text=each["text"], traces=traces)
