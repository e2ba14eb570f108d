"""InterCode's reward of an SQL answer: 1 where ours calls the rows right."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait.workers.tools.environments.bash_sql import _cells
from tests.oracles.harness import Oracle, take


def _results(random: Random) -> Iterator[dict[str, Any]]:
    """Rows that an agent saw, and those of the gold query."""
    while True:
        gold = [[random.choice(("Ann", "Bo", 3, 4.5, None)), random.randint(0, 3)] for _ in range(random.randint(0, 6))]
        seen = [list(row) for row in gold]
        match random.randrange(5):
            case 0:
                random.shuffle(seen)
            case 1 if seen:
                seen[random.randrange(len(seen))][1] = 9
            case 2 if seen:
                seen.pop()
            case 3:
                seen.append(["Bo", 1])
        yield {"seen": seen, "gold": gold}


def theirs(clone: Path) -> Callable[[Any], Any]:
    stats = importlib.import_module("scipy.stats")
    names = {name: name.lower() for name in ("AGENT_OBS", "CORRUPT_GOLD", "EVAL_OBS", "REWARD")}
    space = take(
        clone / "intercode/envs/sql/sql_env.py", "SqlEnv.get_reward", "SqlEnv.get_intersect_items", **names,
        Counter=Counter, chain=chain, groupby=groupby, itemgetter=itemgetter, kendalltau=stats.kendalltau, math=math,
        mysql=SimpleNamespace(connector=SimpleNamespace(errors=SimpleNamespace(ProgrammingError=OSError,
                                                                               DatabaseError=OSError))),
    )  # fmt: skip

    def run(case: dict[str, Any]) -> bool:
        cursor = SimpleNamespace(execute=lambda _: None, description=(), fetchall=lambda: case["gold"])
        own = SimpleNamespace(
            observation=case["seen"], gold="", cur=cursor, logger=SimpleNamespace(info=lambda _: None),
            get_intersect_items=lambda listed, known: space["get_intersect_items"](None, listed, known),
        )  # fmt: skip
        reward, _ = space["get_reward"](own)
        return bool(reward >= 0.995)

    return run


def ours(case: dict[str, Any]) -> bool:
    """Compare rows in their order, as `bash-sql` does with `ordered`."""
    return _cells(case["seen"], True) == _cells(case["gold"], True)


ORACLES = [
    Oracle(
        "intercode-sql", "princeton-nlp/intercode", "c3e46d827cfc9d4c704ec078f7abf9f41e3191d8", "MIT",
        "intercode/envs/sql/sql_env.py SqlEnv.get_reward", _results, theirs, ours, number=200,
        differs="",
    ),
]  # fmt: skip
