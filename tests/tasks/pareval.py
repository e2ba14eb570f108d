"""ParEval's own grader beside ours: `python -m tests.tasks.pareval CLONE [--write] [--problems N]`.

Three answers for each OpenMP problem: its baseline, the baseline with one operator changed, and an empty function.
Their grader (`drivers/cpp/cpp_driver_wrapper.py`) compiles and runs each with two threads, as ours does with the rows
that `experiments._tools.published_programs` makes. `--write` writes `pareval.jsonl`: their verdicts, and the problems
that tests run without a clone.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

from experiments._tools.published_programs import pareval
from plait.workers.tools.sandbox import SandboxLimits, shared
from plait_bench.environments.programs import ProgramsEnvironment
from plait_bench.tasks.programs import Programs

KEPT = Path(__file__).with_name("pareval.jsonl")
COMMIT = "4c9877fcf3e50ad8ac2d898187122a2d9cfd8e47"
WHOLE = ("10_geometry_convex_hull", "21_histogram_bin_0-100", "30_scan_prefix_sum", "44_sort_sort_non-zero_elements")
"""Problems whose drivers are kept, so that they are graded without a clone."""
CHANGES = (
    (" < ", " > "), (" += ", " -= "), (" > ", " < "), (" == ", " != "), (" - ", " + "), (" + ", " - "), (" * ", " + "),
    ("true", "false"), ("end()", "begin()"), (" / ", " * "), (" <= ", " > "),
)  # fmt: skip
LIMITS = SandboxLimits(seconds=100, cpu=40, memory=4096)


def answers(row: dict[str, Any]) -> dict[str, str]:
    """Return texts that continue the prompt of a problem."""
    baseline = str(row["baseline"])
    name = re.findall(r"\b(correct\w+)\s*\(", baseline)[-1]
    defined = list(re.finditer(rf"\b{name}\s*\([^;{{]*\)\s*\{{", baseline))[-1]
    rest, depth, end = baseline[defined.end() :], 1, 0
    while depth:
        depth += (rest[end] == "{") - (rest[end] == "}")
        end += 1
    body = rest[:end].replace(name, json.loads(row["text"])["entry"])
    changed = next((body.replace(old, new, 1) for old, new in CHANGES if old in body), "}")
    return {"baseline": body, "changed": changed, "empty": "}"}


async def grade(row: dict[str, Any], answer: str) -> bool:
    """Return our verdict of an answer."""
    shared("process").limits = LIMITS
    problem = json.loads(row["text"])
    program = Programs(text=row["text"]).extract(f"```cpp\n{problem['prompt']}\n{answer}\n```")
    return await ProgramsEnvironment(text=row["text"], sandbox="process").grade(program, row["want"])


class Theirs:
    """Their grader, without the launcher of a cluster."""

    def __init__(self, clone: Path) -> None:
        os.chdir(clone / "drivers")
        sys.path[:0] = [str(clone), str(clone / "drivers")]
        sys.modules.setdefault("tqdm", types.SimpleNamespace(tqdm=list))  # type: ignore[arg-type]
        from cpp.cpp_driver_wrapper import CppDriverWrapper  # type: ignore[import-not-found]

        driver = "cpp/models/omp-driver"
        subprocess.run(["g++", *"-std=c++17 -O3 -fopenmp -c".split(), f"{driver}.cc", "-o", f"{driver}.o"], check=True)
        launch = {"omp": {"format": "{exec_path} {args} {num_threads}", "params": [{"num_threads": 2}]}}
        limits = {"build_timeout": 120, "run_timeout": 40}
        self._wrapper = CppDriverWrapper(parallelism_model="omp", launch_configs=launch, **limits)
        self._prompts = {
            each["name"]: each
            for each in json.loads((clone / "prompts" / "generation-prompts.json").read_text("utf-8"))
            if each["parallelism_model"] == "omp"
        }

    def grade(self, name: str, answer: str) -> bool:
        """Return their verdict of an answer."""
        asked = self._prompts[name]
        folder = f"cpp/benchmarks/{asked['problem_type']}/{name}"
        done = self._wrapper.test_single_output(asked["prompt"], answer, f"{folder}/cpu.cc", "1024")
        return bool(done.are_all_valid())


def facts() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the first line of what is kept, and the problems."""
    head, *rows = map(json.loads, KEPT.read_text("utf-8").splitlines())
    return head, rows


def main(words: list[str]) -> int:
    """Grade all problems by both; print what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.tasks.pareval", description=__doc__)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--problems", type=int, default=60)
    asked = parser.parse_args(words)
    rows, theirs, kept = pareval(asked.clone)[: asked.problems], Theirs(asked.clone.resolve()), []
    differ = 0
    for row in rows:
        begun, made = time.monotonic(), answers(row)
        passed = {kind: theirs.grade(row["name"], text) for kind, text in made.items()}
        ours = {kind: asyncio.run(grade(row, text)) for kind, text in made.items()}
        differ += sum(passed[kind] != ours[kind] for kind in made)
        took = f"{time.monotonic() - begun:.1f} s"
        sys.stdout.write(f"{row['name']:40} {passed} {'' if passed == ours else ours} {took}\n")
        sys.stdout.flush()
        hashes = {kind: hashlib.sha256(text.encode()).hexdigest()[:16] for kind, text in made.items()}
        line = {"name": row["name"], "passed": passed, "answers": hashes}
        kept.append(line | ({"row": row} if row["name"] in WHOLE else {}))
    sys.stdout.write(f"{3 * len(rows)} verdicts, {differ} differ\n")
    if asked.write:
        head: dict[str, Any] = {"repository": "parallelcodefoundry/ParEval", "commit": COMMIT, "licence": "MIT"}
        head["notice"] = (asked.clone / "LICENSE").read_text("utf-8")
        head |= {"verdicts": 3 * len(rows), "differ": differ}
        head |= {"function": "drivers/cpp/cpp_driver_wrapper.py: CppDriverWrapper.test_single_output"}
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [head, *kept])
        KEPT.write_text(text, encoding="utf-8")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
