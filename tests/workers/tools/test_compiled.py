"""Compiled programs run in the sandbox: limits, exit codes, sanitizers, and what is not there."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plait.core.errors import ConfigError, ToolError
from plait.core.languages import find_language
from plait.workers.tools.sandbox import Program, Sandbox, SandboxLimits
from plait.workers.tools.sandbox.compiled import run_compiled

if shutil.which("gcc") is None or shutil.which("g++") is None:
    pytest.skip("gcc and g++ are not installed", allow_module_level=True)

DOUBLE = '#include <cstdio>\nint main() { int a; scanf("%d", &a); printf("%d\\n", 2 * a); return a == 7 ? 3 : 0; }\n'
SUM = """#include <cstdio>
#include <vector>
int main() {
  std::vector<int> a(1000, 1);
  long sum = 0;
#pragma omp parallel for CLAUSE
  for (int i = 0; i < 1000; i++) {
    UPDATE
  }
  printf("%ld\\n", sum);
}
"""


@pytest.fixture(params=["process", "bubblewrap"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    made = Sandbox(request.param)
    first = await made.run(Program(code="print('ready')"))
    if first.status == "broken":
        pytest.skip(f"this kernel does not allow it: {first.stderr}")
    yield made
    await made.close()


async def ran(
    sandbox: Sandbox,
    programs: str | list[str],
    language: str,
    *inputs: str,
    check: str = "",
    repeats: int = 0,
    **limits: Any,
) -> dict[str, Any]:
    """Run programs under wide limits of time, so that a slow machine changes nothing."""
    wide = SandboxLimits.model_validate({"seconds": 120, "cpu": 60, **limits})
    texts = [programs] if isinstance(programs, str) else programs
    return await run_compiled(sandbox.run, texts, language, inputs or [""], wide, check=check, repeats=repeats)


async def test_a_program_is_compiled_once_and_run_on_each_input(sandbox: Sandbox) -> None:
    done = await ran(sandbox, DOUBLE, "cpp", "21", "7", "")
    assert [(each["code"], each["stdout"]) for each in done["outcomes"][:2]] == [(0, "42\n"), (3, "14\n")]
    assert len(done["outcomes"]) == 3 and done["refused"] == ""
    crash = await ran(sandbox, "int main() { __builtin_trap(); }", "c")
    assert crash["outcomes"][0]["code"] in (128 + 4, 128 + 5)  # SIGILL, SIGTRAP on other processors


async def test_a_compiler_that_refuses_names_the_line(sandbox: Sandbox) -> None:
    done = await ran(sandbox, "int main() {\n  int y = 1;\n  return x;\n}\n", "c", "1", "2")
    assert done["outcomes"] == [] and "main.c:3:10: error:" in done["refused"]
    unlinked = await ran(sandbox, "void f(void); int main() { f(); }", "c")
    assert "undefined reference" in unlinked["refused"]


async def test_endless_programs_and_outputs_end_at_a_limit(sandbox: Sandbox) -> None:
    endless = await ran(sandbox, "int main() { for (;;); }", "c", seconds=3)
    assert (endless["status"], endless["outcomes"]) == ("timeout", [])
    flood = '#include <stdio.h>\nint main() { for (;;) puts("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"); }'
    (wrote,) = (await ran(sandbox, flood, "c", output=1000))["outcomes"]
    assert wrote["code"] and len(wrote["stdout"]) == 1000
    bomb = "#include <unistd.h>\nint main() { for (;;) fork(); }"
    assert (await ran(sandbox, bomb, "c", seconds=3))["status"] == "timeout"
    assert (await ran(sandbox, DOUBLE, "cpp", "4"))["outcomes"][0]["stdout"] == "8\n"


async def test_a_compiler_that_never_ends_or_crashes_is_reported(sandbox: Sandbox) -> None:
    slow = 'constexpr long f(long n) { return n < 2 ? 1 : f(n - 1) + f(n - 2); }\nstatic_assert(f(60) > 0, "");\n'
    done = await ran(sandbox, slow + "int main() {}", "cpp", seconds=1)
    assert done["refused"] == "the compiler did not end within its limit: timeout"
    endless = await ran(sandbox, '#include "/dev/zero"\nint main() {}', "c")
    assert endless["refused"] and endless["outcomes"] == []


async def test_a_program_cannot_write_an_outcome(sandbox: Sandbox) -> None:
    forged = '#include <cstdio>\nint main() { FILE* f = fopen("../main.py", "r"); puts(f ? "read" : "gone"); }'
    assert (await ran(sandbox, forged, "cpp"))["outcomes"][0]["stdout"] == "gone\n"


async def needs_sanitizer(sandbox: Sandbox, check: str) -> None:
    done = await ran(sandbox, "int main() { return 0; }", "c", check=check)
    if done["refused"] or done["outcomes"][0]["code"]:
        pytest.skip(f"the sanitizer {check} does not work here: {done}")


@pytest.mark.parametrize(
    ("body", "finding"),
    [
        ('int a[3] = {1, 2, 3}; int i; scanf("%d", &i); return a[i];', "out of bounds"),
        ('int i; scanf("%d", &i); printf("%d", 2147483647 + i); return 0;', "signed integer overflow"),
        ("int* p = malloc(4); free(p); return *p;", "heap-use-after-free"),
        ('int i; scanf("%d", &i); return 0;', ""),
    ],
)
async def test_undefined_behaviour_is_found(sandbox: Sandbox, body: str, finding: str) -> None:
    await needs_sanitizer(sandbox, "address")
    program = f"#include <stdio.h>\n#include <stdlib.h>\nint main() {{\n  {body}\n}}\n"
    (outcome,) = (await ran(sandbox, program, "c", "5", check="address"))["outcomes"]
    assert finding in outcome["stderr"] and bool(outcome["code"]) == bool(finding), outcome


RACES = {
    "shared": ("", "sum += a[i];", True),
    "shared maximum": ("", "if (a[i] + i > sum) sum = a[i] + i;", True),
    "neighbour": ("", "if (i) a[i] += a[i - 1];", True),
    "unlocked read": ("", "long now = sum;\n#pragma omp critical\n    sum = now + a[i];", True),
    "reduction": ("reduction(+ : sum)", "sum += a[i];", False),
    "atomic": ("", "#pragma omp atomic\n    sum += a[i];", False),
    "critical": ("schedule(dynamic, 7)", "#pragma omp critical\n    sum += a[i];", False),
    "own element": ("schedule(guided)", "a[i] *= 2;", False),
}
"""Known races and race-free programs: clause, body, whether it races."""


@pytest.mark.parametrize("name", RACES)
async def test_known_races_are_found_and_no_others(sandbox: Sandbox, name: str) -> None:
    await needs_sanitizer(sandbox, "thread")
    clause, update, races = RACES[name]
    program = SUM.replace("CLAUSE", clause).replace("UPDATE", update)
    (outcome,) = (await ran(sandbox, program, "openmp", check="thread"))["outcomes"]
    assert ("data race" in outcome["stderr"], outcome["code"] != 0) == (races, races), outcome


async def test_barriers_and_single_sections_order_threads(sandbox: Sandbox) -> None:
    await needs_sanitizer(sandbox, "thread")
    program = """#include <cstdio>
int main() {
  int a[64] = {}, b[64] = {}, once = 0;
#pragma omp parallel
  {
#pragma omp for
    for (int i = 0; i < 64; i++) a[i] = i;
#pragma omp for schedule(dynamic, 3)
    for (int i = 0; i < 64; i++) b[i] = a[63 - i];
#pragma omp single
    once = b[5];
#pragma omp for
    for (int i = 0; i < 64; i++) a[i] = b[63 - i] + once;
  }
  printf("%d\\n", a[0]);
}
"""
    (outcome,) = (await ran(sandbox, program, "openmp", check="thread"))["outcomes"]
    assert (outcome["code"], outcome["stdout"]) == (0, "58\n"), outcome
    unordered = program.replace("#pragma omp for\n", "#pragma omp for nowait\n", 1)
    (racy,) = (await ran(sandbox, unordered, "openmp", check="thread"))["outcomes"]
    assert "data race" in racy["stderr"], racy


async def test_memory_is_limited_under_a_sanitizer(sandbox: Sandbox) -> None:
    await needs_sanitizer(sandbox, "address")
    eats = "#include <stdlib.h>\n#include <string.h>\nint main() { for (;;) memset(malloc(1 << 20), 1, 1 << 20); }"
    done = await ran(sandbox, eats, "c", check="address", total_memory=300)
    assert (done["status"], done["outcomes"]) == ("memory", [])


@pytest.mark.parametrize(
    ("check", "command", "text"), [("profile", "gprof", "Flat profile"), ("instructions", "valgrind", "Collected")]
)
async def test_costs_are_counted(sandbox: Sandbox, check: str, command: str, text: str) -> None:
    if shutil.which(command) is None:
        with pytest.raises(ToolError, match="install valgrind") if command == "valgrind" else pytest.skip("no gprof"):
            await ran(sandbox, DOUBLE, "cpp", "21", check=check)
        return
    (outcome,) = (await ran(sandbox, DOUBLE, "cpp", "21", check=check))["outcomes"]
    assert (outcome["code"], outcome["stdout"]) == (0, "42\n") and text in outcome["stderr"]


async def test_timed_programs_take_turns_and_must_agree(sandbox: Sandbox) -> None:
    both = await ran(sandbox, [DOUBLE, DOUBLE.replace("2 * a", "a + a")], "cpp", "1", "2", repeats=3)
    assert [len(row) for row in both["seconds"]] == [2] * 6 and min(map(min, both["seconds"])) > 0
    other = await ran(sandbox, [DOUBLE, DOUBLE.replace("2 * a", "a * a")], "cpp", "1", "3", repeats=3)
    assert other["seconds"] == [], "a program with another output has no time"
    cheats = DOUBLE.replace("2 * a", 'fopen("seen", "r") ? 0 : (fopen("seen", "w"), 2 * a)')
    assert (await ran(sandbox, [DOUBLE, cheats], "cpp", "1", repeats=3))["seconds"] == []


OTHERS = {"go": "package main\nfunc main() { print(1) }\n", "rust": 'fn main() { eprint!("1"); }\n'}


@pytest.mark.parametrize("language", OTHERS)
async def test_other_languages_run_or_say_what_to_install(sandbox: Sandbox, language: str) -> None:
    try:
        done = await ran(sandbox, OTHERS[language], language, processes=200, memory=4096)
    except ToolError as error:
        done = {"refused": str(error), "outcomes": [{"stderr": "1"}]}
    absent = f"the sandbox cannot compile or check {language}: {find_language(language).install} where programs run"
    assert done["refused"] in ("", absent) and done["outcomes"][0]["stderr"] == "1"


async def test_the_tool_run_program_offers_only_its_languages() -> None:
    sandbox = Sandbox("process")
    assert [tool.name for tool in sandbox.tools()] == ["run_python", "run_shell"]
    run = sandbox.tools("c", "cpp")[2]
    assert run.name == "run_program"
    with pytest.raises(ToolError, match="language 'rust' is not offered \\(available: c, cpp\\)"):
        await run.fn(code="", language="rust", inputs=[""])


def test_an_unknown_language_or_check_lists_what_is_there() -> None:
    with pytest.raises(ConfigError, match=r"'c\+\+' is not a compiled language.*c, cpp, openmp, rust, go"):
        find_language("c++")
    with pytest.raises(ConfigError, match="rust has no check 'thread' \\(available: none\\)"):
        find_language("rust").find_check("thread")
