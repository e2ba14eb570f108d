"""Votes: DeepConf's statistics and votes, when ESC and Adaptive-Consistency stop."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait.core.lengths import majority_probability
from plait.core.result import Result, Signals
from plait.core.states import State
from plait.core.view import Branch
from plait.policies._ballots import top_two
from plait.policies._stopping import Poll
from plait.policies.merge.votes import Weighted
from plait.policies.stop.votes import ESC, AdaptiveConsistency
from plait.tasks.plain import Plain
from plait.workers._shared.confidence import ConfidenceTrace, add_position
from tests.oracles.harness import Oracle, take
from tests.policies.bench import Bench
from tests.policies.branches import LETTERS, branches, confident

DEEPCONF = ("facebookresearch/deepconf", "675529d172ef6d240aa1f21cb60940d427cc1ea6", "MIT")
WINDOWS = ("Yiwei98/ESC", "799157a4d21e6d97e86fcd541f5c85d8e3daae0a", "none given")
ADAPTIVE = ("Pranjal2041/AdaptiveConsistency", "899ab565ebc561c8c16a2217b98224031f1ff1c0", "Apache-2.0")


# --- DeepConf --------------------------------------------------------------------------------------------------------


def _traces(random: Random) -> Iterator[dict[str, Any]]:
    """Log-probabilities of the likeliest tokens of each position, and a window."""
    while True:
        k, length = random.choice([2, 5, 20]), random.randint(1, 30)
        rows = [sorted((round(-random.expovariate(0.5), 3) for _ in range(k)), reverse=True) for _ in range(length)]
        yield {"logprobs": rows[: max(1, 60 // k)], "window": random.choice([1, 3, 8])}


def trace_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    names = (
        "compute_confidence", "calculate_mean_confidence", "calculate_tail_confidence",
        "calculate_bottom_window_confidence",
    )  # fmt: skip
    rule = take(clone / "deepconf/utils.py", *names, np=np)

    def run(case: dict[str, Any]) -> dict[str, float]:
        tops = [{i: SimpleNamespace(logprob=each) for i, each in enumerate(row)} for row in case["logprobs"]]
        trace = {"confs": rule["compute_confidence"](tops)}
        window = case["window"]
        return {
            "confidence": rule["calculate_mean_confidence"](trace),
            "tail": rule["calculate_tail_confidence"](trace, window),
            "bottom": rule["calculate_bottom_window_confidence"](trace, window),
            "lowest": rule["calculate_bottom_window_confidence"](trace, window, -1),
        }

    return run


def trace_ours(case: dict[str, Any]) -> dict[str, float]:
    trace = ConfidenceTrace(len(case["logprobs"][0]), case["window"])
    for row in case["logprobs"]:
        add_position(trace, row)
    said = trace.signals()
    assert said is not None
    return {"confidence": said.confidence, "tail": said.tail, "bottom": said.bottom, "lowest": said.lowest}


def _polls(random: Random) -> Iterator[dict[str, Any]]:
    """Answers of traces and their confidences; a share to keep."""
    while True:
        n = random.randint(1, 40)
        kinds = random.randint(1, 6)
        answers = [f"{random.randrange(kinds)}" for _ in range(n)]
        yield {
            "answers": answers, "weights": [round(random.uniform(0.1, 20), 4) for _ in answers],
            "keep": random.choice([0.1, 0.5, 0.9]),
        }  # fmt: skip


def vote_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    rule = take(
        clone / "deepconf/utils.py", "weighted_majority_vote", "filter_top_confidence", "calculate_mean_confidence",
        "calculate_tail_confidence", np=np,
    )  # fmt: skip

    def run(case: dict[str, Any]) -> dict[str, Any]:
        traces = [
            {"answer": each, "confs": [weight]} for each, weight in zip(case["answers"], case["weights"], strict=True)
        ]
        kept = rule["filter_top_confidence"](traces, "tail", case["keep"])
        return {
            "all": rule["weighted_majority_vote"](case["answers"], case["weights"]),
            "kept": rule["weighted_majority_vote"]([x["answer"] for x in kept], [x["confs"][0] for x in kept]),
        }

    return run


def vote_ours(case: dict[str, Any]) -> dict[str, Any]:
    branches = [
        Branch(f"b{i}", f"r:b{i}", State.DONE, Result(value=answer, signals=_signals(weight)), None, 1)
        for i, (answer, weight) in enumerate(zip(case["answers"], case["weights"], strict=True))
    ]
    said = [
        Weighted(criterion="tail", cap=None, eta=eta).merge(branches, Plain(text="?")).value
        for eta in (100.0, 100 * case["keep"])
    ]
    return {"all": said[0], "kept": said[1]}


def _signals(weight: float) -> Signals:
    return Signals(k=20, confidence=weight, tail=weight, bottom=weight, lowest=weight, entropy=0.0)


def _floors(random: Random) -> Iterator[dict[str, Any]]:
    """Lowest group confidences of a warm-up, and the share of traces that shall pass."""
    while True:
        lowest = [round(random.uniform(0, 20), 3) for _ in range(random.randint(1, 16))]
        yield {"lowest": lowest, "eta": random.choice([10, 50, 90])}


def floor_theirs(clone: Path) -> Callable[[Any], Any]:
    """Return the bar of their online mode: the expression that its wrapper assigns."""
    import numpy as np

    code = next(
        node.value
        for node in ast.walk(ast.parse((clone / "deepconf/wrapper.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("conf_bar")
    )
    compiled = compile(ast.Expression(code), "wrapper.py", "eval")

    def run(case: dict[str, Any]) -> float:
        known = {"warmup_result": {"min_confs": case["lowest"]}, "confidence_percentile": case["eta"]}
        return float(eval(compiled, {"np": np, **known}))

    return run


def floor_ours(case: dict[str, Any]) -> float:
    """Return the floor under which the policy gives a branch up after its warm-up, as it reports it."""
    warm = case["lowest"]
    bench = Bench(len(warm) + 1, f"deepconf:warmup={len(warm)},eta={case['eta']}", logprobs=20, window=8)
    for number, lowest in enumerate(warm, 1):
        bench.done(number, signals=confident(lowest))
    bench.progress(len(warm) + 1, 8, group=-1.0, lowest=-1.0)
    return float(re.findall(r"is below (.*),", bench.given_up[len(warm) + 1])[0])


# --- ESC, Adaptive-Consistency ---------------------------------------------------------------------------------------


def _samples(random: Random) -> Iterator[dict[str, Any]]:
    """Answers of samples in order, and a window."""
    while True:
        odds = random.random()
        answers = ["a" if random.random() < odds else random.choice("abc") for _ in range(40)]
        yield {"answers": answers, "window": random.choice([2, 4, 5, 8])}


def esc_theirs(clone: Path) -> Callable[[Any], Any]:
    tree = ast.parse((clone / "early_stop_last.py").read_text(encoding="utf-8"))
    loop = next(
        node for node in ast.walk(tree)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == "index"
    )  # fmt: skip
    code = compile(ast.Module(body=[loop], type_ignores=[]), "early_stop_last.py", "exec")

    def run(case: dict[str, Any]) -> int:
        space: dict[str, Any] = {
            "sc_num": len(case["answers"]), "slice": case["window"], "shu_batch": case["answers"],
            "predict_list": [], "extract_answer": lambda each: each,
        }  # fmt: skip
        exec(code, space)
        return (space["index"] + 1) * case["window"]

    return run


def esc_ours(case: dict[str, Any]) -> int:
    answers, window = case["answers"], case["window"]
    done = branches(*answers[: len(answers) // window * window])
    ends = range(window, len(done) + 1, window)
    return next((end for end in ends if ESC(window=window).enough(Poll(done[:end], LETTERS)) is not None), len(done))


def _counts(random: Random) -> Iterator[dict[str, Any]]:
    while True:
        answers = [
            random.choice("aaab" + "c" * random.randint(0, 1))
            for _ in range(random.choice([1, 3, random.randint(1, 40)]))
        ]
        yield {"answers": answers, "confidence": random.choice([0.7, 0.95, 0.99])}


def beta_theirs(clone: Path) -> Callable[[Any], Any]:
    from scipy import integrate  # pyright: ignore[reportMissingTypeStubs]

    file = clone / "adaptive_consistency/stopping_criterias.py"
    rule = take(file, "StoppingCriterias", "BetaStoppingCriteria", integrate=integrate, Counter=Counter)

    def run(case: dict[str, Any]) -> dict[str, Any]:
        said = rule["BetaStoppingCriteria"](case["confidence"]).should_stop(case["answers"])
        return {"prob": said["prob"], "stop": bool(said["stop"])}

    return run


def beta_ours(case: dict[str, Any]) -> dict[str, Any]:
    first, second = top_two(Counter(case["answers"]).values())
    rule = AdaptiveConsistency(confidence=case["confidence"])
    stops = rule.enough(Poll(branches(*case["answers"]), LETTERS)) is not None
    return {"prob": majority_probability(first, second), "stop": stops}


ORACLES = [
    Oracle(
        "deepconf-traces", *DEEPCONF, "deepconf/utils.py compute_confidence, calculate_*_confidence", _traces,
        trace_theirs, trace_ours, tolerance=2e-3,  # theirs rounds a token's to three places
    ),
    Oracle(
        "deepconf-offline", *DEEPCONF, "deepconf/utils.py filter_top_confidence, weighted_majority_vote", _polls,
        vote_theirs, vote_ours, through="merge",
    ),
    Oracle(
        "deepconf-online", *DEEPCONF, "deepconf/wrapper.py conf_bar", _floors, floor_theirs, floor_ours,
        tolerance=1e-3, through="policy",  # which reports four digits
    ),
    Oracle(
        "esc", *WINDOWS, "early_stop_last.py, the loop over windows", _samples, esc_theirs, esc_ours, through="policy",
    ),
    Oracle(
        "adaptive-consistency", *ADAPTIVE, "adaptive_consistency/stopping_criterias.py BetaStoppingCriteria", _counts,
        beta_theirs, beta_ours, tolerance=1e-6, through="policy",
    ),
]  # fmt: skip
