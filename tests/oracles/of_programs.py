"""Programs: the line that SPoC's error localisation blames, and the programs that its search compiles."""

from __future__ import annotations

import heapq
import importlib.util
import io
import itertools
import json
import re
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from experiments._tools.worker import InProcess, text_of
from plait import Orchestrator, tool
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from plait_research.planners._compiled import read_errors
from plait_research.planners.code_search import CodeSearch
from tests.oracles.harness import Oracle, take

SPOC = ("Sumith1896/spoc", "66d9319d18b31224b1f824a0b78b629d9f77e2d6", "none given")
OFFSET = 5
"""Lines in front of the first statement of their programs, less one."""
MESSAGES = (
    "‘{name}’ was not declared in this scope",
    "expected ‘;’ before ‘{name}’",
    "no match for ‘operator<<’ (operand types are ‘std::ostream’ {{aka ‘std::basic_ostream<char>’}} and ‘{name}’)",
    "expected primary-expression before ‘)’ token",
    "invalid types ‘int[int]’ for array subscript",
    "request for member ‘{name}’ in ‘x’, which is of non-class type ‘int’",
    "too many arguments to function  ",
)
OTHERS = (
    "{file}: In function ‘int main()’:",
    "{file}:{line}:{column}: warning: unused variable ‘{name}’ [-Wunused-variable]",
    "{file}:{line}:{column}: note: suggested alternative: ‘{name}’",
    "{file}:{line}:{column}: fatal error: {name}.h: No such file or directory",
    "   {line} |   int {name} = 0;",
    "In file included from /usr/include/c++/12/iostream:39,",
    "                 from {file}:1:",
    "/usr/bin/ld: /tmp/cc.o: in function `main':",
    "{file}:(.text+0x{line}): undefined reference to `{name}()'",
    "collect2: error: ld returned 1 exit status",
    "/usr/include/c++/12/bits/stl_vector.h:{line}:{column}:   required from ‘void {name}()’",
    "g++ timeout!",
    "",
)


def _outputs(random: Random) -> Iterator[str]:
    """Outputs of g++, of errors and of all else that it writes, with and without columns, also of headers."""
    while True:
        lines: list[str] = []
        for _ in range(random.randint(0, 6)):
            fill = {
                "file": random.choice(["12A-43.cpp", "main.cpp", "/usr/include/c++/12/bits/stl_algo.h"]),
                "line": random.randint(1, 60), "column": random.randint(1, 40),
                "name": random.choice(["i", "ans", "n1", "s[i]", "main"]),
            }  # fmt: skip
            column = random.choice(["", ":", ":{column}:", ":{column}: "]).format(**fill)
            error = f"{{file}}:{{line}}{column or ':'} error: {random.choice(MESSAGES)}"
            lines.append((error if random.random() < 0.4 else random.choice(OTHERS)).format(**fill))
        yield "\n".join(lines)


def blame_theirs(clone: Path) -> Callable[[Any], Any]:
    rule = take(clone / "stitcher/err_utils.py", "parse_error", re=re, LINE_OFFSET=OFFSET)

    def run(case: str) -> list[Any]:
        return list(rule["parse_error"](case, tokenize=False))

    return run


def blame_ours(case: str) -> list[Any]:
    errors = read_errors(case, "cpp")
    return [errors[0].line - OFFSET, errors[0].message] if errors else [None, None]


HEADER = ("#include <bits/stdc++.h>", "", "using namespace std;", "")
SAMPLES = 16
SHARES = ((16,), (8, 8), (8, 4, 4), (8, 4, 2, 2), (8, 4, 2, 1, 1), (4, 4, 4, 4), (4, 4, 4, 2, 2), (8, 2, 2, 2, 1, 1))
"""How many samples wrote each candidate of a line. Powers of two: sums of their logarithms are exact."""


def _searches(random: Random) -> Iterator[dict[str, Any]]:
    """Programs of given and predicted lines, the candidates that a compiler refuses with the line that it names, and
    those of the program that passes."""
    while True:
        lines: list[dict[str, Any]] = [{"code": "int main() {", "indent": 0}]
        indent = 1
        for number in range(random.randint(2, 6)):
            counts = random.choice(SHARES)
            lines.append({"counts": counts, "indent": indent, "text": f"line {number}", "opens": random.random() < 0.2})
            if random.random() < 0.2:
                lines.append({"code": random.choice(["}", "x++;", ""]), "indent": max(1, indent - 1)})
            indent = max(1, indent + random.choice([-2, -1, 0, 0, 1, 2]))
        lines.append({"code": "}", "indent": 0})
        asked = [at for at, line in enumerate(lines) if "counts" in line]
        refused = [
            [at, candidate, at if random.random() < 0.7 else random.randrange(-1, len(lines))]
            for at in asked for candidate in range(len(lines[at]["counts"])) if random.random() < 0.3
        ]  # fmt: skip
        right = [random.randrange(len(lines[at]["counts"])) if random.random() < 0.6 else 0 for at in asked]
        yield {
            "lines": lines, "refused": refused, "right": right, "rounds": random.choice([5, 20, 60]),
            "blame": random.choice(["exclude", "penalty"]),
        }  # fmt: skip


def _candidate(at: int, candidate: int, opens: bool) -> str:
    return f"f{at}_{candidate}();" + (" {" if opens and candidate % 2 == 0 else "")


def _judge(case: dict[str, Any], program: str) -> tuple[str, bool]:
    """Return the compiler's output and whether a program passes."""
    chosen = {int(at): int(candidate) for at, candidate in re.findall(r"\bf(\d+)_(\d+)\(", program)}
    for at, candidate, line in case["refused"]:
        if chosen[at] == candidate:
            return (f"a.cpp:{line + OFFSET}:1: error: bad" if line >= 0 else "ld: no line"), False
    return "", [chosen[at] for at in sorted(chosen)] == case["right"]


def _shorten(seen: list[str], passed: bool) -> list[Any]:
    """Return the first program whole, the candidates of all, and whether the last one passes."""
    return [seen[0], [" ".join(re.findall(r"\bf\d+_(\d+)\(", program)) for program in seen], passed]


def search_theirs(clone: Path) -> Callable[[Any], Any]:
    spec = importlib.util.spec_from_file_location("err_utils", clone / "stitcher/err_utils.py")
    assert spec is not None and spec.loader is not None
    sys.modules["err_utils"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = ("_inp", "_pred", "err", "pass_test", "SCORE_THRES", "ERR_BLACK_AMOUNT", "PrioritySet", "fix_strings")
    names += ("gen_neighbors_skip_blacks", "gen_neighbors_down_grays", "FragilePrioritySet", "stitch_error_detect")
    given = {"heapq": heapq, "itertools": itertools, "time": time, "traceback": traceback, "START_TIME": 0.0}
    rule = take(clone / "stitcher/stitch.py", *names, **given, open=lambda *_: io.StringIO())

    def run(case: dict[str, Any]) -> Any:
        seen: list[str] = []
        most = max(len(line.get("counts", ())) for line in case["lines"])
        arguments = {"compile_budget": case["rounds"], "err_rebuild_heap": False, "err_gray_amount": 10}
        arguments |= {"num_preds": most, "max_heap": 10**6, "err_detector": "naive"}
        rule["ARGS"] = SimpleNamespace(**arguments, err_handling={"exclude": "black"}.get(case["blame"], "gray"))
        code, results = rule["err"], rule["pass_test"]

        def compiled(program: str, *_: Any) -> tuple[int, int, str | None]:
            seen.append(re.sub(r" // .*", "", program))
            refused, passes = _judge(case, program)
            error = code.compile_err if refused else code.no_err if passes else code.mismatch_err
            return results.both if passes else results.none, error, refused or None

        rule["compile_and_run_tests"] = compiled
        stated, predicted = [], []
        for at, line in enumerate(case["lines"]):
            counts = line.get("counts", ())
            text = line.get("text", "DUMMY")
            stated.append([line.get("text", ""), line.get("code", "?"), "", "", "", "", str(at), str(line["indent"])])
            codes = [_candidate(at, each, line.get("opens", False)) for each in range(len(counts))]
            scores = [(count // 2).bit_length() - 4.0 for count in counts]
            fill = most - len(counts)  # so little that the search ends before it takes one
            predicted.append(["", text, "", "", "", *codes, *["?"] * fill, *scores, *[-2e6] * fill])
        passed, _ = rule["stitch_error_detect"](stated, predicted, "a", "b")
        return _shorten(seen, passed)

    return run


class _Writer(InProcess):
    """Writes the candidates of lines as often as a case has it."""

    name = "writer"

    def __init__(self, case: dict[str, Any]) -> None:
        self._left = {
            at: [_candidate(at, each, line["opens"]) for each, count in enumerate(line["counts"]) for _ in range(count)]
            for at, line in enumerate(case["lines"]) if "counts" in line
        }  # fmt: skip

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        number = int(re.findall(r"Write line (\d+) alone", text_of(job.op))[-1])
        yield Result(value=self._left[number - len(HEADER) - 1].pop(0), usage=Usage(completion=4), finish="stop")


def search_ours(case: dict[str, Any]) -> Any:
    seen: list[str] = []

    @tool
    def run_program(code: str, language: str, inputs: list[str]) -> dict[str, Any]:
        """Judge a program."""
        seen.append(code)
        refused, passes = _judge(case, code)
        return {"refused": refused, "outcomes": [{"code": 0, "stdout": "1" if passes else "0", "stderr": ""}]}

    lines = [{"code": text} for text in HEADER]
    lines += [{name: line[name] for name in ("text", "code", "indent") if name in line} for line in case["lines"]]
    problem = {"prompt": "", "language": "cpp", "public": [{"stdin": "", "stdout": "1"}], "lines": lines}
    planner = CodeSearch(n=SAMPLES, rounds=case["rounds"], penalty={"exclude": 0}.get(case["blame"], 10))
    with Orchestrator(workers=[_Writer(case)], tools=[run_program], journal=None) as orchestrator:
        answer = orchestrator.run(json.dumps(problem), task="programs", planner=planner)
    return _shorten(seen, "passes 1 of 1" in answer.why)


ORACLES = [
    Oracle(
        "spoc-errors", *SPOC, function="stitcher/err_utils.py: parse_error",
        cases=_outputs, theirs=blame_theirs, ours=blame_ours, number=200,
    ),
    Oracle(
        "spoc-search", *SPOC, function="stitcher/stitch.py: stitch_error_detect",
        cases=_searches, theirs=search_theirs, ours=search_ours, number=60, through="planner",
    ),
]  # fmt: skip
