"""Environment `repository`: ten fixes of a package, bad patches, branches that do not see one another, a selection."""

from __future__ import annotations

import asyncio
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import ToolError
from plait.core.flow import Context, Flow
from plait.core.ops import Plugin
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.sandbox import shared
from plait_bench.environments.repository import RepositoryEnvironment, pack_commit
from plait_bench.tasks.bash_sql import BashSql

FOLDER = Path(__file__).with_name("repositories")
NEW = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1,{1} @@\n{2}"
TOP = "more_itertools/__init__.py"
FIRST = '"""More routines for operating on iterables, beyond itertools"""'


@pytest.fixture(autouse=True)
def own_sandbox() -> None:
    """Use no sandbox of another test's event loop."""
    shared.cache_clear()


@lru_cache
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / "more-itertools.jsonl").read_text().splitlines()]


def placed(text: str, **given: Any) -> RepositoryEnvironment:
    return RepositoryEnvironment(text=text, sandbox="process", folder=str(FOLDER), **given)


def added(name: str, *lines: str) -> str:
    """Return a patch that makes a file."""
    return NEW.format(name, len(lines), "".join(f"+{line}\n" for line in lines))


def prepended(*lines: str) -> str:
    """Return a patch that puts lines before the package's first."""
    text = "".join(f"+{line}\n" for line in lines)
    return f"--- a/{TOP}\n+++ b/{TOP}\n@@ -1,1 +1,{1 + len(lines)} @@\n{text} {FIRST}\n"


async def try_patch(place: RepositoryEnvironment, patch: str, command: str) -> str:
    (tool,) = [each for each in place.tools() if each.name == "try_patch"]
    return await tool(patch=patch, command=command)  # type: ignore[no-any-return]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["id"][:8])
async def test_the_fix_of_each_instance_resolves_it_and_nothing_else_does(row: dict[str, Any]) -> None:
    place = placed(row["text"])
    assert "```" not in BashSql(text=row["text"]).render()
    assert await place.grade(row["patch"], row["want"])
    report = await place.report(prepended("# nothing"), row["want"])
    assert report["applied"] and report["resolved"] == "RESOLVED_NO"
    assert {report["statuses"][test] for test in row["want"]["FAIL_TO_PASS"]} == {"FAILED"}
    assert {report["statuses"][test] for test in row["want"]["PASS_TO_PASS"]} == {"PASSED"}


def test_the_ten_are_small_and_have_their_licence() -> None:
    assert len(rows()) == 10 and "Permission is hereby granted" in (FOLDER / "LICENSE").read_text()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 200_000
    assert all(row["want"]["FAIL_TO_PASS"] and row["want"]["PASS_TO_PASS"] for row in rows())


ROW = next(row for row in rows() if row["id"].startswith("958990e"))
LOST = ROW["patch"].replace("\n     ", "\n     not there ", 1)


@pytest.mark.parametrize(
    ("patch", "applied", "says"),
    [
        (None, False, "No valid patches in input"),
        ("Here is the fix: return early.", False, "No valid patches in input"),
        (LOST, False, "patch does not apply"),
        (added("../outside.py", "x = 1"), False, "invalid path '../outside.py'"),
        (added("tests/test_more.py", "x = 1"), True, "test_negative"),
        (prepended("import shutil", "shutil.rmtree('.')"), True, "exit code"),
        (prepended("raise SystemExit(3)"), True, "exit code 3"),
        (prepended("while True: print('x' * 10000)"), True, "xxx"),
    ],
)
async def test_bad_patches_end_with_their_reason(patch: str | None, applied: bool, says: str) -> None:
    report = await placed(ROW["text"]).report(patch, ROW["want"])
    assert (report["applied"], report["resolved"]) == (applied, "RESOLVED_NO")
    assert says in report["log"], report["log"]


async def test_tests_without_end_are_stopped_at_the_first() -> None:
    place = placed(ROW["text"], test_seconds=1)
    report = await place.report(prepended("import signal", "signal.signal(15, print)", "while True: pass"), ROW["want"])
    assert report["applied"] and report["resolved"] == "RESOLVED_NO"
    assert list(report["statuses"].values()) == ["FAILED"]


async def test_tests_that_a_patch_rewrites_are_those_of_the_expectation() -> None:
    """A patch that fixes the function and empties the test file is graded by the right tests."""
    emptied = (
        "diff --git a/tests/test_more.py b/tests/test_more.py\n--- a/tests/test_more.py\n+++ b/tests/test_more.py\n"
    )
    place = placed(ROW["text"])
    assert await place.grade(f"{ROW['patch']}{emptied}@@ -1,1 +1,1 @@\n-no such line\n+pass\n", ROW["want"])
    assert not await place.grade(f"{emptied}@@ -1,1 +1,1 @@\n-no such line\n+pass\n", ROW["want"])


async def test_some_fixed_and_none_broken_is_partial() -> None:
    row = next(row for row in rows() if row["id"].startswith("073d234"))
    half = row["patch"].partition("@@ ")[0] + "@@ " + row["patch"].split("\n@@ ")[1]
    report = await placed(row["text"]).report(f"{half}\n", row["want"])
    assert report["applied"] and report["resolved"] == "RESOLVED_PARTIAL"


async def test_another_command_and_pytests_summary_count() -> None:
    says = "echo PASSED; echo SKIPPED"
    lists = {"FAIL_TO_PASS": ["b"], "PASS_TO_PASS": ["a"]}
    report = await placed(ROW["text"]).report(prepended("# x"), {**lists, "command": says})
    assert report["statuses"] == {"b": "SKIPPED", "a": "SKIPPED"} and report["resolved"] == "RESOLVED_NO"


async def test_branches_do_not_see_one_another() -> None:
    place = placed(ROW["text"])
    made = [added(f"{name}.txt", name) for name in "abcd"]
    seen = await asyncio.gather(*(try_patch(place, patch, "rm -r tests; ls; cat *.txt") for patch in made))
    assert [text.split() for text in seen] == [["LICENSE", f"{n}.txt", "more_itertools", n] for n in "abcd"]
    (look,) = [each for each in place.tools() if each.name == "look"]
    assert (await look(command="ls")).split() == ["LICENSE", "more_itertools", "tests"]
    assert "does not apply" in await try_patch(place, LOST, "ls")


@pytest.mark.parametrize(
    ("name", "commit", "says"),
    [
        ("../test_repository.py", "0" * 40, "give a bundle or folder of git"),
        ("gone.bundle", "0" * 40, "give a bundle or folder of git"),
        ("more-itertools.bundle", "--output=x", "a commit's hash"),
        ("more-itertools.bundle", "0" * 40, "git cannot read more-itertools.bundle"),
        ("LICENSE", "0" * 40, "git cannot read LICENSE"),
    ],
)
async def test_a_repository_that_cannot_be_had_is_named(name: str, commit: str, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        pack_commit(str(FOLDER), name, commit)
    with pytest.raises(ToolError, match=says):
        await placed(json.dumps({"prompt": "?", "repository": [name, commit]})).grade("", ROW["want"])


async def test_an_expectation_without_tests_is_refused() -> None:
    with pytest.raises(ToolError, match="FAIL_TO_PASS"):
        await placed(ROW["text"]).grade("", {"tests": []})


async def test_a_model_that_knows_solves_all_ten() -> None:
    replies = [
        Reply(text=f"The fix:\n```diff\n{row['patch']}```", when=re.escape(json.loads(row["text"])["prompt"][:40]))
        for row in rows()
    ]
    right = 0
    async with AsyncOrchestrator(workers=[Scripted(replies)], journal="off") as plait:
        for row in rows():
            answer = await plait.run(row["text"], task="bash-sql", planner="sample:n=1")
            right += await placed(row["text"]).grade(answer.answer, row["want"])
    assert right == 10


class Selection(Flow):
    """CodeMonkeys' selection: tests that a model writes vote on patches, and a model compares the best three."""

    async def run(self, ctx: Context, question: str) -> Any:
        written = await ctx.think(f"Write a test of this: {question}", name="test")
        drafts = [ctx.think(f"Draft {i}: {question}", name=f"draft-{i}") for i in range(4)]
        command = f"python3 -c '{written.text}' && echo passed"
        calls = [
            ctx.call("try_patch", patch=str(ctx.brief.task.extract((await draft).text)), command=command)
            for draft in drafts
        ]
        passes = [str(await call).strip() == "passed" for call in calls]
        best = sorted(range(4), key=lambda i: not passes[i])[:3]
        return ctx.join([drafts[i] for i in best], merge=Plugin(name="pairwise"))


async def test_tests_vote_on_patches_and_the_best_are_compared() -> None:
    """The candidate that the judge prefers fails the written test, so it is compared with no other."""
    test = (
        "import more_itertools\ntry: more_itertools.sliced([1], -1)\nexcept ValueError: pass\nelse: raise SystemExit(1)"
    )
    block = "```diff\n{}```"
    other = ROW["patch"].replace("n must be at least 0", "negative")
    cheat = prepended("# the shortest")
    patches = [cheat, other, ROW["patch"], ROW["patch"]]
    replies = [
        Reply(text=test, when="^Write a test"),
        *(Reply(text=block.format(patch), when=f"^Draft {i}:") for i, patch in enumerate(patches)),
        Reply(text="A", when=r"(?s)A.*at least 0.*B.*negative"),
        Reply(text="B"),
    ]
    place = placed(ROW["text"])
    async with AsyncOrchestrator(workers=[Scripted(replies)], journal="off") as plait:
        answer = await plait.run(ROW["text"], task="bash-sql", planner=Selection(), tools=place.tools())
    assert answer.status == "done", answer.failure
    assert answer.answer == ROW["patch"], answer.why
    assert await place.grade(answer.answer, ROW["want"])
