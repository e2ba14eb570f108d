"""Compiled programs: one Python program in the sandbox compiles them, runs them on inputs and reports each outcome."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from plait.core.errors import ToolError
from plait.core.languages import find_language
from plait.core.tools.tool import Tool, tool

from .program import UNLIMITED_MIB, Program, ProgramOutcome, SandboxLimits

_DRIVER = """import json, os, subprocess, sys, time
def main(job):
    os.remove("main.py")  # it has the key
    repeats, turns = job["repeats"], list(range(len(job["programs"])))
    def report(**outcome):
        sys.stdout.write(job["key"] + json.dumps(outcome) + "\\n")
        sys.stdout.flush()
    def call(command, folder, text=""):
        with open("in", "w+b") as given, open("out", "w+b") as output, open("err", "w+b") as errors:
            given.write(text.encode())
            given.seek(0)
            begun = time.perf_counter()
            code = subprocess.call(["env", *command], stdin=given, stdout=output, stderr=errors, cwd=str(folder))
            took = time.perf_counter() - begun
            texts = [file.seek(0) or file.read(job["kept"]).decode(errors="replace") for file in (output, errors)]
            return {"code": 128 - code if code < 0 else code, "stdout": texts[0], "stderr": texts[1]}, took
    for folder, program in enumerate(job["programs"]):
        os.mkdir(str(folder))
        for name, text in {**job["files"], job["file"]: program}.items():
            with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        made, _ = call(job["compiler"], folder)
        if made["code"]:
            return report(refused=made["stderr"] or f"the compiler ended with {made['code']}", code=made["code"])
    report(compiled=True)
    spent, known = [], {}
    for number in range(max(repeats, 1)):
        for place, text in enumerate(job["inputs"]):
            took = [0.0] * len(turns)
            for folder in turns if (number + place) % 2 else turns[::-1]:
                outcome, took[folder] = call(job["run"], folder, text)
                if not repeats:
                    report(**outcome)
                elif known.setdefault(place, outcome["stdout"]) != outcome["stdout"] or outcome["code"]:
                    return report(**outcome)
            spent.append(took)
    if repeats:
        report(seconds=spent)
main(json.loads(JOB))
"""
Outcomes = dict[str, Any]
Run = Callable[[Program], Awaitable[ProgramOutcome]]


async def run_compiled(
    run: Run, programs: Sequence[str], language: str, inputs: Sequence[str], limits: SandboxLimits, **how: Any
) -> Outcomes:
    """Compile programs and run the first on each input. Raises `ToolError` without a compiler or a sandbox that works.

    Returns `status`, `refused` (the compiler's output, if it refused one) and `outcomes` (`code`, `stdout`, `stderr`;
    fewer than inputs at a limit). `check` names a check of the language. With `repeats`, all programs run, and each row
    of `seconds` has their times for one input, by a clock that programs cannot reach; programs take turns, in the other
    order for each row. One that fails or writes something else than the first leaves no `seconds`.
    """
    row, key = find_language(language), secrets.token_hex(16)
    check = row.find_check(how.get("check", ""))
    threads = f"OMP_THREAD_LIMIT={max(1, limits.processes // 2)}"  # more than it may have end an OpenMP program
    job = {"compiler": [*row.compile, *check.flags], "run": [threads, *(check.run or row.run)], "file": row.file}
    job |= {"files": check.files, "programs": programs, "inputs": inputs, "repeats": how.get("repeats", 0), "key": key}
    job["kept"] = limits.output
    wide = {"output": 10 * limits.output * (len(inputs) + 1)}  # the driver limits what is kept of each output
    wide |= {"memory": UNLIMITED_MIB} if check.unlimited else {}
    driver = Program(code=_DRIVER.replace("JOB", repr(json.dumps(job))), limits=limits.model_copy(update=wide))
    ended = await run(driver)
    reports = [json.loads(line.removeprefix(key)) for line in ended.stdout.split("\n")[:-1] if line.startswith(key)]
    last: dict[str, Any] = reports[-1] if reports else {}
    if last.get("code") == 127 and ("refused" in last or check.install):  # by `env`
        need = row.install if "refused" in last else check.install
        raise ToolError(f"the sandbox cannot compile or check {language}: {need} where programs run")
    if not reports and ended.status in ("broken", "failed"):
        raise ToolError(f"the sandbox does not work: {ended.stderr}")
    refused = last.get("refused", "" if reports else f"the compiler did not end within its limit: {ended.status}")
    reports = [report for report in reports if "stdout" in report]
    return {"status": ended.status, "refused": refused, "outcomes": reports, "seconds": last.get("seconds", [])}


def build_program_tool(run: Run, languages: Sequence[str], limits: SandboxLimits) -> Tool[..., Any]:
    """Return the tool `run_program` for some languages."""

    @tool
    async def run_program(code: str, language: str, inputs: list[str], check: str = "", repeats: int = 0) -> Outcomes:
        """Compile a program and run it on inputs. Returns its outputs, or the compiler's errors.

        Args:
            code: the program.
            language: c, cpp, openmp, rust or go.
            inputs: texts on standard input, one for each run.
            check: "address" or "thread" for a sanitizer, "profile" or "instructions" for costs (C, C++ and OpenMP).
            repeats: rounds of timed runs; 0 for one run without times.
        """
        if language not in languages:
            raise ToolError(f"language {language!r} is not offered (available: {', '.join(languages)})")
        return await run_compiled(run, [code], language, inputs, limits, check=check, repeats=repeats)

    return run_program
