"""Spawn/join as the evaluation runs it, against scripted models: counting, judging, joins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from training import controller
from training.check import check, lines_on, solvable, solves
from training.evaluate import held_out, row_of, wilson
from training.generate import Trace, add_child
from training.model import Llama
from training.task import is_test, reach
from training.vocab import decode, encode

Script = Callable[[list[str]], str]
MODEL: Llama = None  # type: ignore[assignment]  # the scripts below never look at it
BUNDLED = Path(__file__).parents[2] / "packages" / "plait-models" / "plait_models" / "models" / "countdown"


def child(words: list[str]) -> str:
    """A perfect child."""
    at = len(words) - 1 - words[::-1].index("<child>")
    target, numbers = int(words[at + 1][1:]), [int(w) for w in words[at + 2 : at + 5]]
    trace = Trace([], [])
    add_child(trace, numbers, target)
    return decode(trace.ids)


def parent(words: list[str]) -> str:
    """A perfect, unimaginative parent: the next k candidates."""
    k, numbers = int(words[1]), [int(w) for w in words[3:7]]
    text = " ".join(words)
    if "<hit>" in words:
        entry = text.rsplit("<join>", 1)[1].removesuffix(" <go>").split(" | ")
        return next(e.strip() for e in entry if "<hit>" in e) + " <end>"
    legal = list({line: tuple(left) for line, left in lines_on(numbers)}.items())
    tried = text.count(" = ")
    if tried == len(legal) or text.count("<join>") == 3:
        return "<none> <end>"
    items = [f"{a} {op} {b} = {c} | {x} {y}" for (a, op, b, c), (x, y) in legal[tried : tried + k]]
    return "<spawn> " + " ; ".join(items) + " <wait>"


def perfect(words: list[str]) -> str:
    return child(words) if "<child>" in words and words[-1] == "<go>" and words[-6] == "<child>" else parent(words)


def play(monkeypatch: pytest.MonkeyPatch, script: Script) -> list[list[str]]:
    """Replace the model by a script; returns the list of all prompts that it will see."""
    seen: list[list[str]] = []

    def scripted(
        model: Llama, prompts: Sequence[Sequence[int]], stop: Collection[int], limit: int, *rest: float
    ) -> list[list[int]]:
        seen.extend(decode(p).split() for p in prompts)
        return [encode(script(decode(p).split()))[:limit] for p in prompts]

    monkeypatch.setattr(controller, "generate", scripted)
    return seen


@pytest.mark.parametrize("forked", [True, False])
def test_a_perfect_model_solves_everything(monkeypatch: pytest.MonkeyPatch, forked: bool) -> None:
    seen = play(monkeypatch, perfect)
    outcomes, counts = controller.run_threads(MODEL, held_out(25), 8, forked=forked)
    assert all(o.solved and o.claimed for o in outcomes)
    assert counts.distinct == counts.items == counts.wanted and counts.invalid == 0
    assert counts.hits == counts.hits_possible and counts.false_claims == 0
    assert all(o.first_hit <= o.critical <= o.total for o in outcomes)
    children = [words for words in seen if words[-6:-5] == ["<child>"]]
    assert all((words[0] == "<parent>") == forked for words in children)
    whole = [" ".join(words + perfect(words).split()) for words in seen]
    finals = [text for text in whole if text.endswith("<end>")]
    assert {check(text) for text in finals} == ({"parent", "fork"} if forked else {"parent", "child"})


def test_a_lying_child_never_reaches_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def lying(words: list[str]) -> str:
        if words[-6:-5] == ["<child>"]:
            return "<hit> 9 - 4 = 5 ; 5 * 5 = 25 <end>"
        return perfect(words)

    seen = play(monkeypatch, lying)
    outcomes, counts = controller.run_threads(MODEL, held_out(5), 4)
    assert not any(o.solved or o.claimed for o in outcomes)
    assert counts.hits == 0 and counts.false_claims == counts.distinct
    assert not any("<hit>" in words for words in seen)


def test_repeated_and_illegal_items_are_counted_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def clumsy(words: list[str]) -> str:
        if words[-6:-5] == ["<child>"]:
            return "<none> <end>"
        a, b, c, d = words[3:7]
        good = f"{a} + {b} = {int(a) + int(b)} | {c} {d}"
        bad = f"{a} + {b} = {int(a) + int(b) + 1} | {c} {d}"
        return f"<spawn> {good} ; {good} ; {bad} ; | <wait>" if "<join>" not in words else "<none> <end>"

    play(monkeypatch, clumsy)
    outcomes, counts = controller.run_threads(MODEL, held_out(3), 4)
    assert (counts.rounds, counts.wanted, counts.items, counts.distinct, counts.invalid) == (3, 12, 12, 3, 6)
    assert not any(o.claimed for o in outcomes)


def test_false_claims_are_not_solutions() -> None:
    puzzle = ((14, 10, 8, 3), 36)
    right = [
        "14",
        "+",
        "8",
        "=",
        "22",
        ";",
        "22",
        "-",
        "10",
        "=",
        "12",
        ";",
        "12",
        "*",
        "3",
        "=",
        "36",
        "<end>",
    ]
    assert not controller.judge(right, puzzle).claimed, "an answer begins with <hit> in the searching modes"
    assert controller.judge(["<hit>", *right], puzzle).solved
    wrong = controller.judge(
        [
            "<hit>",
            "14",
            "+",
            "8",
            "=",
            "22",
            ";",
            "22",
            "-",
            "10",
            "=",
            "12",
            ";",
            "12",
            "+",
            "3",
            "=",
            "15",
            "<end>",
        ],
        puzzle,
    )
    assert wrong.claimed and not wrong.solved
    assert not controller.judge(
        ["<try>", "14", "+", "8", "=", "22", "|", "22", "10", "3", "<go>", "<none>", "<end>"], puzzle
    ).claimed


def test_held_out_problems_are_of_the_test_split_and_solvable() -> None:
    puzzles = held_out(60)
    assert len(set(puzzles)) == 60
    for numbers, target in puzzles:
        assert is_test(numbers) and 10 <= target <= 100
        assert solvable(numbers, target)
    assert puzzles == held_out(60)


def test_reach_gives_legal_solutions() -> None:
    for target, lines in reach((12, 7, 2)).items():
        assert solves([(s.a, s.op, s.b, s.c) for s in lines], [12, 7, 2], target)


def test_interval_and_row() -> None:
    low, high = wilson(90, 100)
    assert low == pytest.approx(0.8256, abs=1e-3) and high == pytest.approx(0.9448, abs=1e-3)
    row = row_of("x", [controller.Outcome(True, True, 10, 20, 5), controller.Outcome(False, True, 30, 40, 30)])
    assert (row.solved, row.false_claims, row.critical, row.total) == (0.5, 0.5, 20, 30)


@pytest.mark.slow
@pytest.mark.skipif(not (BUNDLED / "model.safetensors").exists(), reason="no model was exported")
def test_the_bundled_model_solves_held_out_problems() -> None:
    from training.export import load

    outcomes, counts = controller.run_threads(load(BUNDLED), held_out(40), 8)
    assert sum(o.solved for o in outcomes) >= 32
    assert counts.distinct >= 0.9 * counts.wanted
