"""Published problems of programs as rows of the task `programs`: HumanEval-X, MultiPL-E and ParEval.

`python -m experiments._tools.published_programs SOURCE > rows.jsonl`, then `plait eval rows.jsonl --task programs`.
SOURCE is the data file of HumanEval-X in C++ (`humaneval_cpp.jsonl`), a file of prompts of MultiPL-E (`…-cpp-….json`),
or a clone of ParEval.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

LOCAL = re.compile(r'^#include "(utilities|baseline)\.hpp".*$', re.MULTILINE)
BEGUN = re.compile(r"(\w+)\s*\(")
PAREVAL_HEAD = "#define USE_OMP\n#define DRIVER_PROBLEM_SIZE 1024\n"
"""What ParEval's drivers read. It is the size of timed runs; a driver validates on a size of its own."""


def rows(source: Path) -> list[dict[str, Any]]:
    """Return the problems of a file or a clone, each with `text` and `want`, and `name`."""
    if source.is_dir():
        return pareval(source)
    text = source.read_text("utf-8")
    given = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines() if line]
    return [row(each) for each in given]


def row(given: dict[str, Any]) -> dict[str, Any]:
    """Return a problem of HumanEval-X, whose grader adds includes, or of MultiPL-E, whose tests begin with a brace."""
    prompt = str(given["prompt"])
    added = [line for line in given.get("declaration", "").split("\n") if line[:1] == "#" and line not in prompt]
    prompt = "".join(f"{line}\n" for line in added) + prompt
    tests = str(given.get("tests", given.get("test"))).removeprefix("}")
    return _row(str(given.get("task_id", given.get("name"))), prompt, "cpp", {"tests": tests})


def pareval(clone: Path) -> list[dict[str, Any]]:
    """Return ParEval's OpenMP problems, each with its driver in one text."""
    drivers, made = clone / "drivers" / "cpp", []
    main = (drivers / "models" / "omp-driver.cc").read_text("utf-8").replace("num_threads = 1;", "num_threads = 2;")
    for given in json.loads((clone / "prompts" / "generation-prompts.json").read_text("utf-8")):
        if given["parallelism_model"] != "omp":
            continue
        folder = drivers / "benchmarks" / given["problem_type"] / given["name"]
        parts = {"utilities": drivers / "utilities.hpp", "baseline": folder / "baseline.hpp"}
        texts = {name: path.read_text("utf-8").replace("#pragma once", "") for name, path in parts.items()}
        body = LOCAL.sub(lambda name, texts=texts: texts[name[1]], (folder / "cpu.cc").read_text("utf-8"))
        tests = f"{PAREVAL_HEAD}{body}\n{main}"
        want = {"tests": tests, "passed": "Validation: PASS"}
        made.append(_row(given["name"], given["prompt"], "openmp", want) | {"baseline": texts["baseline"]})
    return made


def _row(name: str, prompt: str, language: str, want: dict[str, Any]) -> dict[str, Any]:
    last = [line for line in prompt.rstrip().split("\n") if "(" in line][-1]
    entry = BEGUN.findall(last)[0]
    return {"name": name, "text": json.dumps({"prompt": prompt, "language": language, "entry": entry}), "want": want}


if __name__ == "__main__":
    for each in rows(Path(sys.argv[1])):
        sys.stdout.write(json.dumps({"text": each["text"], "want": each["want"]}) + "\n")
