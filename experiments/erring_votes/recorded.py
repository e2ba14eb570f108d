"""Runs a way to vote on the recorded samples of a sum, through the machine, under virtual time of one token a tick."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.core.events import Job
from plait.core.ops import ModelCall, Plugin
from plait.core.request import Request
from plait.core.result import Result, Signals, Usage
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.simulator import Host, LatencyModel, simulate

from .._tools.voters.settings import Setting
from .._tools.voters.sums import SAMPLES, TOP, WINDOW, Drawn, Sample
from .traces import EVERY, Trace

__all__ = ["Row", "Rows", "replay", "replay_all"]

_STEP = re.compile(r"(sample|probe|rest|draft)-(\d+)(?:-(\d+))?$")
ROUND = 8
"""Drafts in a round of SEAT."""


class Row(NamedTuple):
    """What a setting came to on one sum."""

    right: float
    total: float
    """Tokens generated, those of questions for the answer so far included."""
    serial: float
    """Ticks until the answer, where each branch in flight writes a token a tick: the sequence that is waited for."""


Rows = NDArray[np.float64]
"""Of shape (sums, 3): the fields of `Row`."""
_PLUGINS: dict[str, Plugins] = {}


def plugins() -> Plugins:
    """Return the process's plugins."""
    return _PLUGINS.setdefault("", Plugins())


def replay(setting: Setting, drawn: Drawn, traces: Sequence[Trace] = ()) -> Row:
    """Run one setting over the recorded samples of a sum; `traces` for those that look at unfinished samples."""
    request = Request(
        text=drawn["text"],
        task=Plugin(name="sums", options={"skill": drawn["level"]}),
        planner=_planner(setting),
        policies=tuple(map(Plugin.of, setting.policies)),
    )
    source = _Recorded(drawn, traces, request.planner.options)
    hosts = (Host("engine", slots=SAMPLES, prefill_rate=1e12, decode_rate=1.0),)
    told = simulate(
        request,
        hosts=hosts,
        latency=LatencyModel(abort_latency=0.0),
        outcome=source.outcome,
        confidence=source.confidences if "logprobs" in setting.planner else None,
        plugins=plugins(),
    )
    task = plugins().task(request.task, request.text)
    value = told.result.value if told.result is not None else None
    answer = task.extract(value) if isinstance(value, str) else value
    right = answer is not None and task.verify(answer) is True
    return Row(float(right), float(told.usage.completion), float(round(told.makespan)))


def _planner(setting: Setting) -> Plugin:
    options: dict[str, Any] = {"merge": Plugin.of(setting.merge).model_dump(), "early": setting.early}
    if setting.allocate:
        options |= {"max_branches": SAMPLES, "allocate": Plugin.of(setting.allocate).model_dump()}
        return Plugin(name="adaptive", options=options)
    given = Plugin.of(setting.planner) if setting.planner else Plugin(name="sample")
    if given.name != "sample":
        return given
    return Plugin(name="sample", options={**options, "n": SAMPLES, **given.options})


class _Recorded:
    """The model's part: what each step says, by its name."""

    def __init__(self, drawn: Drawn, traces: Sequence[Trace], options: Mapping[str, Any]) -> None:
        self._drawn, self._traces = drawn, traces
        self._part = int(options.get("draft", {}).get("max_tokens", 0))
        """Tokens that a sample writes at a time; 0: all at once."""

    def outcome(self, job: Job, rng: Any) -> Result:
        """Return a step's result."""
        kind, number, part = self._step(job)
        if kind == "draft":
            return _said(self._drawn["samples"][(number - 1) * ROUND + part - 1], 0, 0)
        sample = self._drawn["samples"][number - 1]
        if kind == "probe":
            trace, at = self._traces[number - 1], self._part * max(1, part) // EVERY - 1
            # A sample that has ended is asked all the same by the planner `deepprune`, and no step reads the answer.
            said, sure = (trace["so_far"][at], trace["sure"][at]) if at < len(trace["so_far"]) else (None, 0.0)
            text = " <none>" if said is None else f" {said}"
            return Result(value=text, usage=Usage(prompt=8, completion=1), logprob=sure)
        begin = self._part * (1 if kind == "rest" else max(1, part) - 1)
        return _said(sample, begin, 0 if kind == "rest" else self._part)

    def confidences(self, job: Job, result: Result, rng: Any) -> Sequence[float]:
        """Return how sure the model was of each token of a sample."""
        known = self._traces[self._step(job)[1] - 1]["confidences"]
        return [*known, *[known[-1]] * (result.usage.completion - len(known))]

    def _step(self, job: Job) -> tuple[str, int, int]:
        found = _STEP.search(job.step)
        assert isinstance(job.op, ModelCall) and found is not None, job.step
        return found[1], int(found[2]), int(found[3] or 0)


def _said(sample: Sample, begin: int, most: int) -> Result:
    """Return a sample's text from a token on, at most `most` tokens (0: all)."""
    words = sample["text"].split()
    left = sample["tokens"] - begin
    cut = bool(most) and left > most
    piece = words[begin : begin + most] if cut else [*words[begin:], "<end>"]
    signals = None
    if sample["signals"] is not None and not begin and not cut:
        names = ("confidence", "tail", "bottom", "lowest", "entropy")
        values: dict[str, Any] = dict(zip(names, sample["signals"], strict=True))
        signals = Signals(k=TOP, window=WINDOW, **values)
    usage = Usage(prompt=8, completion=most if cut else left)
    finish = "length" if cut else "stop"
    text = "".join(f" {word}" for word in piece)  # as the engine says it, so that parts go together
    return Result(value=text, usage=usage, logprob=sample["logprob"], signals=signals, finish=finish)


# -- all of them, kept -------------------------------------------------------------------------------------------------

Traces = Mapping[tuple[int, str], Sequence[Trace]]


def replay_all(
    wanted: Sequence[Setting],
    drawn: Sequence[Drawn],
    traces: Traces | None = None,
    processes: int = 1,
    kept: Path | None = None,
) -> dict[Setting, Rows]:
    """Return the result of every setting on every sum.

    `kept` is a file where rows are kept under setting, samples and the files of the plugins; it knows nothing of the
    machine's own, so throw it away when that has changed.
    """
    pairs = [(each, (traces or {}).get((each["level"], each["text"]), ())) for each in drawn]
    samples = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    digests = {setting: _digest(setting, samples) for setting in dict.fromkeys(wanted)}
    known = _known(kept)
    missing = [setting for setting, digest in digests.items() if digest not in known]
    for setting, rows in zip(missing, _rows_of(missing, pairs, processes), strict=True):
        known[digests[setting]] = rows
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"replay": digests[setting], "setting": setting, "rows": rows}) + "\n")
    return {
        setting: np.array(known[digest], dtype=np.float64).reshape(-1, len(Row._fields))
        for setting, digest in digests.items()
    }


Pairs = Sequence[tuple[Drawn, Sequence[Trace]]]
_GIVEN: list[Pairs] = []
"""What a process was given at its start."""


def _rows_of(missing: Sequence[Setting], pairs: Pairs, processes: int) -> Any:
    if processes < 2 or len(missing) < 2:
        _begin(pairs)
        yield from map(_rows, missing)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (pairs,)) as pool:
        yield from pool.map(_rows, missing)


def _begin(pairs: Pairs) -> None:
    _GIVEN[:] = [pairs]


def _rows(setting: Setting) -> list[Row]:
    return [replay(setting, *pair) for pair in _GIVEN[0]]


def _known(kept: Path | None) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in kept.read_text(encoding="utf-8").split("\n")[:-1] if kept is not None and kept.is_file() else []:
        held = json.loads(line)
        found[held["replay"]] = held["rows"]
    return found


def _digest(setting: Setting, samples: str) -> str:
    """Return a name for what the rows depend on: setting, samples, and the files of the plugins."""
    specs = [("merge", setting.merge), ("planner", _planner(setting).name), ("task", "sums")]
    specs += [("merge", setting.allocate)] if setting.allocate else []
    specs += [("policy", each) for each in setting.policies]
    modules = {inspect.getmodule(plugins().class_of(kind, Plugin.of(name).name)) for kind, name in specs}  # type: ignore[arg-type]
    files = sorted(Path(module.__file__) for module in modules if module is not None and module.__file__)
    sources = [hashlib.sha256(file.read_bytes()).hexdigest() for file in [*files, Path(__file__)]]
    return hashlib.sha256(json.dumps([setting, samples, sources]).encode()).hexdigest()[:32]
