"""Programs: the line that SPoC's error localisation blames."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from plait_research.planners._compiled import read_errors
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


ORACLES = [
    Oracle(
        "spoc-errors", *SPOC, function="stitcher/err_utils.py: parse_error",
        cases=_outputs, theirs=blame_theirs, ours=blame_ours, number=200,
    )
]  # fmt: skip
