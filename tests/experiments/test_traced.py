"""Study of traces: what its repairers see, and that both contenders get the same tokens."""

from __future__ import annotations

import pytest

from experiments._tools.functions import BRANCHED, Function, functions, returned
from experiments.traced_repairs import run as traced
from experiments.traced_repairs.run import Done, row, solve, suspects


@pytest.fixture(scope="module")
def few() -> list[Function]:
    return functions(4, 2, BRANCHED, 4)


PROGRAM = "def f(x):\n    if x > 1:\n        y = 1\n    else:\n        y = 2\n    return y"


def test_a_trace_rules_out_lines_that_did_not_run() -> None:
    assert suspects(PROGRAM, "") == [2, 3, 5, 6]
    trace = "\nline 2: if x > 1:    # x = 0\nline 5: y = 2    # y = 2\nline 6: return y    # returns 2"
    assert suspects(PROGRAM, trace) == [2, 5, 6]


def test_mutants_of_whole_functions_differ_in_one_line(few: list[Function]) -> None:
    for function in few:
        lines = function.right.splitlines()
        for each in (*function.wrong, *function.caught):
            assert sum(a != b for a, b in zip(lines, each.splitlines(), strict=True)) == 1
            assert not function.is_right(each)
        assert all(returned(each, function.inputs[0]) == returned(function.right, function.inputs[0])
                   for each in function.wrong)  # fmt: skip


def test_a_trace_costs_tokens_and_repairs_that_it_spoils_cost_answers(few: list[Function]) -> None:
    plain = [solve(each, 4, 3, False, (1.0, 0.0), 5) for each in few]
    guided = [solve(each, 4, 3, True, (1.0, 0.0), 5) for each in few]
    assert sum(each.tokens for each in guided) > sum(each.tokens for each in plain)
    assert sum(each.right for each in guided) < sum(each.right for each in plain)


def test_the_number_of_samples_without_traces_is_that_of_equal_tokens(
    few: list[Function], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a world where a trace costs as much as half a sample: 4 with traces, about 6 without."""
    monkeypatch.setattr(traced, "solve", lambda _f, n, _r, guided, _o, _s: Done(guided, n * (150 if guided else 100)))
    shown = row("30 %, 40 % with a trace", 4, 1, few * 10, few, 1)
    assert "| 4 × (1 + 1) | 6.0 × (1 + 1) | 600 | 600 |" in shown and "+100.0 points" in shown
