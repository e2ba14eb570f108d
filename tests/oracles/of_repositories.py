"""SWE-bench's reading of pytest's log, and its rule of resolution."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait_bench.environments.repository import parse_log, resolve
from tests.oracles.harness import Oracle, take

TESTS = ("t/test_a.py::test_x", "t/test_a.py::A::test_y[1-2]", "t/test_b.py::test_z", "t/test_b.py::test_w")
LINES = (
    "PASSED {}", "FAILED {} - assert 1 == 2", "FAILED {}", "ERROR {} - ImportError: no",
    "SKIPPED [1] t/test_a.py:3: no",
    "SKIPPED {} - why", "XFAIL {} - known", "XPASS {}", "{} PASSED [ 50%]", "PASSED", "FAILED - x", " PASSED {}",
    "= 1 failed, 3 passed =", "PASSEDLY {}", "ERROR\t{}",
)  # fmt: skip


def _logs(random: Random) -> Iterator[dict[str, Any]]:
    """A log, in which most tests pass, and two lists of tests."""
    while True:
        good = random.random()
        lines = ["PASSED {}" if random.random() < good else random.choice(LINES) for _ in range(random.randint(1, 8))]
        texts = [line.format(random.choice(TESTS)) for line in lines]
        if random.random() < 0.5:
            texts = [f"PASSED {test}" for test in TESTS] + texts[:2]
        names = random.sample(TESTS, len(TESTS))
        cut, end = random.randint(0, 3), random.randint(0, 4)
        yield {"log": "\n".join(texts), "fixed": names[:cut], "kept": names[cut : max(cut, end)]}


class Status(Enum):
    """The words of pytest that they read."""

    FAILED = "FAILED"
    PASSED = "PASSED"
    SKIPPED = "SKIPPED"
    ERROR = "ERROR"
    XFAIL = "XFAIL"


def theirs(clone: Path) -> Callable[[Any], Any]:
    lists = ("FAIL_TO_PASS", "PASS_TO_PASS", "FAIL_TO_FAIL", "PASS_TO_FAIL")
    harness = clone / "swebench/harness"
    parser = take(
        harness / "log_parsers/python.py", "parse_log_pytest", "_is_skip_summary", "_SKIP_SUMMARY_COUNT", re=re,
        TestStatus=Status,
    )  # fmt: skip
    levels = {name: SimpleNamespace(value=f"RESOLVED_{name}") for name in ("NO", "PARTIAL", "FULL")}
    grading = take(
        harness / "grading.py", "get_eval_tests_report", "get_resolution_status", "compute_fail_to_pass",
        "compute_pass_to_pass", "test_passed", "test_maintained", "test_failed", "_resolve_case",
        **{name: name for name in lists}, TestStatus=Status, ResolvedStatus=SimpleNamespace(**levels),
        EvalType=SimpleNamespace(PASS_AND_FAIL="both", FAIL_ONLY="fail"),
    )  # fmt: skip

    def run(case: dict[str, Any]) -> Any:
        statuses = parser["parse_log_pytest"](case["log"], None)
        wanted = dict(zip(lists, (case["fixed"], case["kept"]), strict=False))
        return [statuses, grading["get_resolution_status"](grading["get_eval_tests_report"](statuses, wanted))]

    return run


def ours(case: dict[str, Any]) -> Any:
    statuses = parse_log(case["log"])
    return [statuses, resolve(statuses, case["fixed"], case["kept"])]


ORACLES = [
    Oracle(
        "swe-bench-status", "SWE-bench/SWE-bench", "7a21e05772954cc81471ae19d56f436cecf43c54", "MIT",
        "swebench/harness/grading.py get_resolution_status, log_parsers/python.py parse_log_pytest", _logs, theirs,
        ours, number=200, differs="a status that pytest does not have is no pass; theirs leaves its test out",
    ),
]  # fmt: skip
