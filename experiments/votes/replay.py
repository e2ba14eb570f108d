"""Runs a way to vote on recorded samples, through the machine, under virtual time of one token a tick.

Decides what a recorded sample is to the machine, and which replays need not be made again. It does not know which rules
there are, nor what is made of their outcomes.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait_bench.countdown import CountdownProblem, is_right

from .._tools.base import Record
from .._tools.samples import place_of
from .rules import TOKENS, Rule

__all__ = ["TOP", "WINDOW", "Outcome", "Row", "replay", "replay_all"]

TOP = 20
WINDOW = 32
"""Tokens in a group of confidence: about a tenth of a sample's median length."""
Floats = NDArray[np.float64]
Wanted = tuple[Rule, int]
"""A rule and how many samples it may take."""


class Row(NamedTuple):
    """What a rule came to on one problem."""

    solved: bool
    total: int
    """Tokens generated in all, those of stopped branches up to the stop."""
    critical: int
    """Tokens on the critical path."""
    serial: int
    """Tokens one after another until the end, where every branch that runs writes one at a time: the critical path,
    and what was waited for."""
    votes: int
    """Votes that had been cast when it ended."""


class Outcome(NamedTuple):
    """What a rule came to over the problems; arrays by problem, of shape (n,)."""

    solved: Floats
    total: Floats
    critical: Floats
    serial: Floats
    votes: Floats

    def at(self, places: slice) -> Outcome:
        """Return the same over some of the problems."""
        return Outcome(*(each[places] for each in self))


def replay_all(
    wanted: Sequence[Wanted],
    runs: Sequence[Record],
    problems: Sequence[CountdownProblem],
    workers: int,
    kept: Path | None,
) -> dict[tuple[str, int], Outcome]:
    """Return the result of every rule, by its key and the number of samples.

    Computes in `workers` processes. `kept` is a file where outcomes are kept under rule, size, samples and the files of
    the plugins; it knows nothing of the machine's own, so throw it away when that has changed.
    """
    samples = hashlib.sha256(json.dumps([runs, [list(each) for each in problems]], default=str).encode()).hexdigest()
    digests = {(rule.key, size): _digest(rule, size, samples) for rule, size in wanted}
    names = {digests[rule.key, size]: (rule, size) for rule, size in wanted}  # two keys may mean the same
    found = _known(kept, names)
    missing = {digest: pair for digest, pair in names.items() if digest not in found}
    for digest, rows in _replayed(missing, runs, problems, workers):
        found[digest] = rows
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                rule, size = names[digest]
                file.write(json.dumps({"replay": digest, "rule": rule.key, "size": size, "rows": rows}) + "\n")
    outcomes: dict[tuple[str, int], Outcome] = {}
    for name, digest in digests.items():
        array = np.array(found[digest], dtype=np.float64).reshape(-1, len(Row._fields))
        outcomes[name] = Outcome(*(array[:, i] for i in range(len(Row._fields))))
    return outcomes


def replay(rule: Rule, size: int, run: Record, problem: CountdownProblem) -> Row:
    """Run one rule over the first `size` recorded samples of a problem."""
    from plait.core.ops import Plugin
    from plait.core.request import Request
    from plait_research.simulation.simulator import Host, LatencyModel, simulate

    plugins = _plugins()
    merge = Plugin.of(rule.merge).model_dump()
    options: dict[str, Any] = {"merge": merge, "early": rule.early, "answer": {"max_tokens": rule.tokens}}
    if rule.allocate:
        planner = Plugin(
            name="adaptive",
            options={**options, "max_branches": size, "allocate": Plugin.of(rule.allocate).model_dump()},
        )
    else:
        planner = Plugin(name="sample", options={**options, "n": size})
    request = Request(
        text=problem.text,
        task=Plugin(name="countdown"),
        planner=planner,
        policies=tuple(Plugin.of(policy) for policy in rule.policies),
    )
    hosts = (Host("engine", slots=size, prefill_rate=1e12, decode_rate=1.0),)
    outcome = recorded(run, rule.tokens)
    report = simulate(request, hosts=hosts, latency=LatencyModel(abort_latency=0.0), outcome=outcome, plugins=plugins)
    task = plugins.task(request.task, request.text)
    value = report.result.value if report.result is not None else None
    answer = task.extract(value) if isinstance(value, str) else value
    done = [
        run["branches"][place_of(span.step)]
        for span in report.spans
        if span.end_in == "done" and "sample-" in span.step
    ]
    votes = sum(branch["key"] is not None and branch["tokens"] <= rule.tokens for branch in done)
    usage, critical = report.usage.completion, report.critical_path_tokens
    return Row(is_right(problem, answer), usage, critical, round(report.makespan), votes)


def recorded(run: Record, most: int = TOKENS) -> Any:
    """Return the result of `sample-i`: the text of the i-th recorded sample, with its length and signals. One that is
    longer than `most` tokens is cut off before its answer."""
    from plait.core.result import Result, Signals, Usage

    def outcome(job: Any, rng: Any) -> Result:
        branch = run["branches"][place_of(job.step)]
        cut = branch["claim"] is None or branch["tokens"] > most
        text = "<none> <end>" if cut else f"<hit> {branch['claim']} <end>"
        signals = None
        if branch["signals"] is not None:
            confidence, tail, bottom, lowest, entropy = branch["signals"]
            whole = branch["certainty"] is not None
            signals = Signals(
                k=-1 if whole else TOP, window=WINDOW, confidence=confidence, tail=tail, bottom=bottom, lowest=lowest,
                entropy=entropy, certainty=branch["certainty"],
            )  # fmt: skip
        usage = Usage(prompt=8, completion=min(branch["tokens"], most))
        return Result(value=text, usage=usage, logprob=branch["logprob"], signals=signals)

    return outcome


# -- in processes, and only once ---------------------------------------------------------------------------------------

_GIVEN: dict[str, Any] = {}
"""What a process was given at its start: samples, problems, plugins."""


def _plugins() -> Any:
    from plait.runtime.plugins.loader import Plugins

    if "plugins" not in _GIVEN:
        _GIVEN["plugins"] = Plugins()
    return _GIVEN["plugins"]


def _begin(runs: Sequence[Record], problems: Sequence[tuple[Any, ...]]) -> None:
    _GIVEN.update(runs=runs, problems=[CountdownProblem(*problem) for problem in problems])


def _begin_process(runs: Sequence[Record], problems: Sequence[tuple[Any, ...]]) -> None:
    _begin(runs, problems)
    gc.freeze()  # the samples stay; looking through them again and again takes a fifth of the time


def _rows(pair: Wanted) -> list[Row]:
    return [replay(*pair, run, problem) for run, problem in zip(_GIVEN["runs"], _GIVEN["problems"], strict=True)]


def _replayed(
    missing: Mapping[str, Wanted], runs: Sequence[Record], problems: Sequence[CountdownProblem], workers: int
) -> Iterator[tuple[str, list[Row]]]:
    given = (list(runs), [tuple(problem) for problem in problems])
    if workers < 2 or len(missing) < 2:
        _begin(*given)
        for digest, pair in missing.items():
            yield digest, _rows(pair)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin_process, given) as pool:
        yield from zip(missing, pool.map(_rows, missing.values()), strict=True)


def _known(kept: Path | None, names: Mapping[str, Wanted]) -> dict[str, list[Any]]:
    """Read the outcomes that are kept; a line that was being written when the process was killed is passed over."""
    found: dict[str, list[Any]] = {}
    if kept is None or not kept.exists():
        return found
    for line in kept.read_text(encoding="utf-8").splitlines():
        try:
            held = json.loads(line)
        except ValueError:
            continue
        if held["replay"] in names:
            found[held["replay"]] = held["rows"]
    return found


def _digest(rule: Rule, size: int, samples: str) -> str:
    """Return a name for what a replay depends on."""
    settings = [rule.merge, rule.early, rule.policies, rule.allocate, rule.tokens, size, samples]
    text = json.dumps([settings, _sources(rule)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sources(rule: Rule) -> list[str]:
    """Return the digests of the files that a rule is made of."""
    from plait.core.ops import Plugin

    plugins = _plugins()
    planner = "adaptive" if rule.allocate else "sample"
    classes = [plugins.class_of("planner", planner), plugins.class_of("task", "countdown")]
    merges = [rule.merge, rule.allocate] if rule.allocate else [rule.merge]
    classes += [plugins.class_of("merge", Plugin.of(name).name) for name in merges]
    classes += [plugins.class_of("policy", Plugin.of(name).name) for name in rule.policies]
    modules = {inspect.getmodule(each) for each in classes}
    modules |= {
        importlib.import_module(name) for name in ("plait.policies._ballots", "plait.policies._stopping", __name__)
    }
    files = sorted({module.__file__ for module in modules if module is not None and module.__file__})
    return [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files]
