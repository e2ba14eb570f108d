"""`plait demo` and the tree of threads."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from plait.apps.common.tree import StepTree
from plait.core.record import StepRecord
from plait.runtime.client.answer import StepEvent, TextDelta
from plait_bench.countdown import draw

ROUND = "<parent> <spawn> {step} = {c} | {x} {y} <wait>"


def step(name, state="waiting", owner=None, kind="think", label="", reason="", **more):
    moves = () if state == "waiting" else ((0.0, state, reason),)
    record = StepRecord(f"r:{name}", name, kind, label, owner=owner, state=state, moves=moves, **more)
    return StepEvent(at=0.0, record=record)


def drawn(tree, width=80, height=None):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(tree.renderable(width, height))
    return console.file.getvalue().splitlines()


@pytest.fixture
def tree():
    tree = StepTree("a puzzle")
    tree.take(step("round-1", "expanded", label="parent", tokens=40, value="x <wait>"))
    for i in range(1, 7):
        tree.take(
            step(f"child-{i}", "done", owner="r:round-1", label=f"{i} + {i} = {2 * i}", tokens=100, value="<none>")
        )
    tree.take(step("join-1", "expanded", owner="r:round-1", kind="join", label="join of 6"))
    tree.take(step("round-2", "running", owner="r:join-1", label="round 2"))
    return tree


def test_rounds_stand_beside_one_another(tree):
    lines = drawn(tree)
    assert lines[0].startswith("a puzzle")
    assert [line.split()[:3] for line in lines if "round-" in line] == [["├─", "◆", "round-1"], ["└─", "●", "round-2"]]
    assert sum(line.startswith("│  ") for line in lines) == 7  # children and join, inside the first round


def test_the_lines_of_a_flow_stand_below_the_steps_that_they_continue():
    tree = StepTree("beam")
    tree.take(step("flow", "expanding", kind="join"))
    tree.take(step("a", "done", owner="r:flow"))
    tree.take(step("b", "done", owner="r:flow"))
    tree.take(step("a1", "done", owner="r:flow", after="r:a"))
    tree.take(step("b1", "running", owner="r:flow", after="r:b"))
    tree.take(step("a2", "running", owner="r:flow", after="r:a"))
    shown = [line[: line.index(mark)] for line in drawn(tree)[1:] for mark in "✓●" if mark in line]
    assert [(line.count("│") + line.count("   "), name) for line, name in zip(shown, _names(tree), strict=True)] == [
        (0, "flow"), (0, "a"), (1, "a1"), (1, "a2"), (0, "b"), (1, "b1"),
    ]  # fmt: skip
    for number in range(100):
        tree.take(step(f"c{number}", "done", owner="r:flow", after=f"r:c{number - 1}" if number else "r:b1"))
    assert max(line.index(mark) for line in drawn(tree)[1:] for mark in "✓●" if mark in line) < 30


def _names(tree):
    return [next(word for word in line.split() if word.isalnum()) for line in drawn(tree)[1:]]


def test_text_grows_and_its_end_is_shown(tree):
    for piece in ("alpha ", "beta " * 40, "omega"):
        tree.take(TextDelta(at=0.1, step="r:round-2", text=piece, tokens=7))
    last = drawn(tree)[-1]
    assert last.rstrip().endswith("omega")
    assert "alpha" not in last
    assert "7 tok" in last


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_too_wide(tree, width):
    tree.take(TextDelta(at=0.1, step="r:round-2", text="字" * 300, tokens=300))
    assert max(map(len, drawn(tree, width))) <= width


def test_a_question_of_several_lines_is_one_line_of_the_tree() -> None:
    lines = drawn(StepTree("write each:\n\n1. one\n2. two"))
    assert len(lines) == 1 and lines[0].startswith("write each: 1. one 2. two")


def test_what_is_too_high_is_folded_and_then_cut(tree):
    folded = drawn(tree, height=8)
    assert any("child-*" in line and "6 steps" in line and "6 done" in line and "600 tok" in line for line in folded)
    assert len(folded) <= 8
    for i in range(20):
        tree.take(step(f"tail-{i}", "running"))
    cut = drawn(tree, height=10)
    assert len(cut) <= 10
    assert any("more lines" in line for line in cut)
    assert "tail-19" in cut[-1]


def test_why_a_step_was_given_up_is_shown():
    tree = StepTree("t")
    tree.take(step("sample-1", "running"))
    tree.take(step("sample-1", "cancelled", reason="vote is decided"))
    assert "vote is decided" in drawn(tree)[-1]


@pytest.fixture
def solver(script):
    """A script that solves the demonstration's first puzzle in all three ways, and no other."""
    from plait_bench.countdown import CountdownProblem

    def solution(problem: CountdownProblem) -> str:
        return _search(problem.numbers, problem.target)

    first = draw(2)[0]
    steps = solution(first)
    return script(
        {"when": f"T{first.target} .*<parent>|<parent>.* T{first.target} ", "text": f"<hit> {steps} <end>"},
        {"when": f"T{first.target} ", "text": f"<hit> {steps} <end>"},
        "<none> <end>",
    )


def _search(numbers, target, done=()):
    numbers = sorted(numbers, reverse=True)
    if len(numbers) == 1:
        return " ; ".join(done) if numbers[0] == target else None
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            if j <= i:
                continue
            rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
            made = [("+", a + b), ("-", a - b), ("*", a * b)] + ([("/", a // b)] if b and a % b == 0 else [])
            for op, c in made:
                found = _search([*rest, c], target, (*done, f"{a} {op} {b} = {c}")) if c > 0 else None
                if found:
                    return found
    return None


def test_three_ways_and_a_table(plait, solver):
    done = plait("demo", "--limit", 2, "--script", solver)
    assert done.code == 0
    for words in ("one line of reasoning", "a vote", "threads:", "critical path", "total tokens", "cached", "seconds"):
        assert words in done.out
    table = [
        line.split() for line in done.out.splitlines() if line.split()[:1] in (["single"], ["sample"], ["threads"])
    ]
    assert [row[:2] for row in table] == [["single", "1/2"], ["sample", "1/2"], ["threads", "1/2"]]
    assert "\x1b" not in done.out  # plain lines where nobody watches
    assert max(map(len, done.out.splitlines())) <= 100


def test_as_json(plait, solver):
    said = plait("demo", "--limit", 2, "--script", solver, "--json").json
    assert said["status"] == "done"
    assert len(said["puzzles"]) == 2
    assert {key: way["solved"] for key, way in said["ways"].items()} == {"single": 1, "sample": 1, "threads": 1}
    assert said["ways"]["sample"]["total_tokens_mean"] >= said["ways"]["single"]["total_tokens_mean"]
    assert said["answers"]["single"][0]["solved"] is True


def test_an_engine_that_fails_is_said(plait, script):
    done = plait("demo", "--limit", 1, "--script", script({"text": "no memory", "finish": "error"}))
    assert done.code == 1
    assert "no memory" in done.err
