"""MARS and Parallel-Probe: when to stop, gamma, the chance of switching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait_research.planners.mars import LineLooks, Look, SteadyVote, Switching, calibrate, is_safe
from tests.oracles.harness import Oracle, take

REPOSITORY = "Wenbo11/MARS"
COMMIT = "6f31776a31ce1853221ca87cbaa9db4ac570677e"


def _vote(random: Random, most: int, answers: int) -> Iterator[dict[str, Any]]:
    """Looks of unfinished lines: ids of answers (-1: none), chances of switching."""
    while True:
        lines, kinds = random.randint(1, most), random.randint(1, answers)
        hard = random.random()
        ids = [-1 if random.random() < 0.1 else min(int(random.expovariate(1.2)), kinds - 1) for _ in range(lines)]
        chances = [round(random.random() * hard * hard, 4) for _ in range(lines)]
        yield {"ids": ids, "q": chances, "gamma": random.choice([0.5, 0.63, 0.8, 1.0])}


def _key(number: int) -> str | None:
    return None if number < 0 else f"{number:03}"


def stop_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    rule = take(clone / "mars/voting.py", "MarsStopping", "compute_votes", np=np)

    def run(case: dict[str, Any]) -> bool:
        ids = np.array([case["ids"]])
        kinds = max(1, int(ids.max()) + 1)
        state = SimpleNamespace(
            vote_weights=rule["compute_votes"](ids, None, ids >= 0, kinds),
            answer_ids=ids,
            weights=None,
            eligible=ids >= 0,
            w_active_by_ans=None,
            pos_idx=0,
            n_active_traces=np.array([ids.size]),
            active_iter_indices=None,
        )
        chances = np.array(case["q"])[None, :, None]
        stopping = rule["MarsStopping"](chances, 1.0, 0.05, kinds, use_correction=False, gamma=case["gamma"])
        return bool(stopping.check(state)[0])

    return run


def stop_ours(case: dict[str, Any]) -> bool:
    keys = [_key(each) for each in case["ids"]]
    first = dict.fromkeys(sorted(key for key in keys if key is not None), 0)  # of equals theirs takes the lowest id
    votes = Counter({**first, **Counter(key for key in keys if key is not None)})
    return is_safe(votes, list(zip(keys, case["q"], strict=True)), case["gamma"])


def _traces(random: Random) -> Iterator[dict[str, Any]]:
    """Answers of lines at each position (a line that has ended gives its last one), and their ends."""
    while True:
        lines, positions, kinds = random.randint(4, 16), random.randint(1, 8), random.randint(1, 5)
        easy = random.random()
        finals = [min(int(random.expovariate(0.3 + 2 * easy)), kinds - 1) for _ in range(lines)]
        ends = [random.randint(1, positions) for _ in range(lines)]
        ends[random.randrange(lines)] = positions
        looks = [
            [
                final
                if random.random() < easy + (1 - easy) * at / positions
                else -1
                if random.random() < 0.15
                else random.randrange(kinds)
                for at in range(end)
            ]
            for final, end in zip(finals, ends, strict=True)
        ]
        met = dict.fromkeys(kind for kind in (*finals, *(kind for line in looks for kind in line)) if kind >= 0)
        order = {kind: place for place, kind in enumerate(met)}
        yield {
            "finals": [order[each] for each in finals],
            "looks": [[order.get(each, -1) for each in line] for line in looks],
        }


def gamma_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    rule = take(clone / "mars/voting.py", "calibrate_gamma_warmup", np=np)
    model = take(clone / "mars/q_model.py", "compute_oracle_q_values", np=np)

    def run(case: dict[str, Any]) -> float:
        finals = np.array(case["finals"])
        wide = max(map(len, case["looks"]))
        ids = np.array([[*line, *[end] * (wide - len(line))] for line, end in zip(case["looks"], finals, strict=True)])
        chances = model["compute_oracle_q_values"](ids, finals)
        kinds = int(max(ids.max(), finals.max())) + 1
        return rule["calibrate_gamma_warmup"](
            ids, chances, None, ids >= 0, kinds, ucb_z=1.0, final_answer_ids=finals, gamma_min=0.5
        )

    return run


def gamma_ours(case: dict[str, Any]) -> float:
    return calibrate(
        [
            LineLooks([Look(_key(each), 0.0) for each in line], _key(final))
            for line, final in zip(case["looks"], case["finals"], strict=True)
        ]
    )


def _fits(random: Random) -> Iterator[dict[str, Any]]:
    for case in _traces(random):
        sure = [[round(-random.random() * (3 if each < 0 else 1 + each), 3) for each in line] for line in case["looks"]]
        wide = max(map(len, case["looks"]))
        if all(len(line) == wide for line in case["looks"]):
            yield {**case, "sure": sure}
        else:  # theirs fits lines of one length
            looks = [[*line, *[line[-1]] * (wide - len(line))] for line in case["looks"]]
            yield {**case, "looks": looks, "sure": [[*line, *[line[-1]] * (wide - len(line))] for line in sure]}


def fit_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    names = (
        "compute_flips", "compute_streaks", "_build_base_features", "build_training_labels", "FittedQModel",
        "fit_q_model", "build_switch_features", "precompute_switch_probs",
    )  # fmt: skip
    import dataclasses

    rule = take(clone / "mars/q_model.py", *names, np=np, dataclass=dataclasses.dataclass)

    def run(case: dict[str, Any]) -> Any:
        ids = np.array(case["looks"], dtype=np.int16)
        sure, finals = np.array(case["sure"]), np.array(case["finals"], dtype=np.int16)
        flips, streaks = rule["compute_flips"](ids), rule["compute_streaks"](ids)
        positions = np.arange(ids.shape[1])
        labels = rule["build_training_labels"](ids, finals)
        if not 0 < labels.sum() < labels.size:
            return None  # without both kinds the fit runs to infinity
        features = rule["build_switch_features"](positions, sure, flips, streaks)
        model = rule["fit_q_model"](features, labels)
        return rule["precompute_switch_probs"](model, None, sure, flips, streaks, positions)

    return run


def fit_ours(case: dict[str, Any]) -> Any:
    lines = [
        LineLooks([Look(_key(each), mark) for each, mark in zip(line, sure, strict=True)], _key(final))
        for line, sure, final in zip(case["looks"], case["sure"], case["finals"], strict=True)
    ]
    switched = [look.key != seen.final for seen in lines for look in seen.looks]
    if not any(switched) or all(switched):
        return None
    model = Switching(lines)
    return [[model.of(LineLooks(seen.looks[: at + 1])) for at in range(len(seen.looks))] for seen in lines]


def _looks(random: Random) -> Iterator[dict[str, Any]]:
    """Answers of lines (-1: none) at each look. The first lines' answers are numbered as they come."""
    while True:
        lines, looks, kinds = random.randint(1, 12), random.randint(1, 12), random.randint(1, 4)
        stays = random.random()
        now = [random.randrange(kinds) for _ in range(lines)]
        rows = []
        for _ in range(looks):
            now = [each if random.random() < stays else random.randint(-1, kinds - 1) for each in now]
            rows.append(list(now))
        yield {"rows": rows}


def probe_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    rule = take(clone / "mars/voting.py", "ParallelProbeStopping", np=np)

    def run(case: dict[str, Any]) -> list[Any]:
        rows = case["rows"]
        stopping = rule["ParallelProbeStopping"](1, len(rows[0]), 4)
        out: list[Any] = []
        for at, row in enumerate(rows):
            ids = np.array([row])
            state = SimpleNamespace(pos_idx=at, answer_ids=ids, eligible=ids >= 0, active_iter_indices=None)
            out.append([bool(stopping.check(state)[0]), stopping.pruned[0].tolist()])
        return out

    return run


def probe_ours(case: dict[str, Any]) -> list[Any]:
    rule = SteadyVote(len(case["rows"][0]))
    return [[rule.ends([_key(each) for each in row]), list(rule.left)] for row in case["rows"]]


def _of(name: str, function: str, **rest: Any) -> Oracle:
    return Oracle(name, REPOSITORY, COMMIT, "MIT", function, **rest)


ORACLES = [
    _of(
        "mars-stop",
        "mars/voting.py MarsStopping.check",
        cases=lambda random: _vote(random, 20, 5),
        theirs=stop_theirs,
        ours=stop_ours,
        number=400,
    ),
    _of(
        "mars-gamma",
        "mars/voting.py calibrate_gamma_warmup",
        cases=_traces,
        theirs=gamma_theirs,
        ours=gamma_ours,
        number=300,
    ),
    _of(
        "mars-switch",
        "mars/q_model.py fit_q_model, precompute_switch_probs",
        cases=_fits,
        theirs=fit_theirs,
        ours=fit_ours,
        number=60,
        tolerance=2e-3,
    ),
    _of(
        "parallel-probe",
        "mars/voting.py ParallelProbeStopping.check",
        cases=_looks,
        theirs=probe_theirs,
        ours=probe_ours,
        number=150,
        differs="of equals the answer is first that a line gave first; theirs takes the lowest id",
    ),
]
