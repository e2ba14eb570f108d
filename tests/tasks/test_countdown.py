"""The task `countdown`: what is taken, what is claimed, when it is right, when two solutions are the same."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import TaskError
from plait.core.values import as_text
from plait_bench.tasks.countdown import Countdown

TASK = Countdown(text="3 5 7 11 -> 24")
RIGHT = ["7-3=4", "11-5=6", "6*4=24"]


@pytest.mark.parametrize("text", ["3 5 7 11 -> 24", " 11,7, 5 ,3->24\n", "3 5 7 11 → 24", "3 5 7 11 => 024"])
def test_ways_to_write_it(text: str) -> None:
    task = Countdown(text=text)
    assert task.numbers == (11, 7, 5, 3) and task.target == 24


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a Countdown puzzle"),
        ("What is 6 times 7?", "is not a Countdown puzzle"),
        ("3 5 7 11", "is not a Countdown puzzle"),
        ("3 5 7 -> 24", "has 3 numbers"),
        ("3 5 7 11 2 -> 24", "has 5 numbers"),
        ("3 5 7 26 -> 24", "26 is out of range: the numbers are 1..25"),
        ("0 5 7 11 -> 24", "0 is out of range"),
        ("3 5 7 11 -> 9", "the target 9 is out of range: it is 10..100"),
        ("3 5 7 11 -> 101", "the target 101 is out of range"),
        ("3 5 7 11 -> -24", "is not a Countdown puzzle"),
        ("9" * 100_000, "is not a Countdown puzzle"),
        ("9 " * 100 + "-> 24", "is not a Countdown puzzle"),
        ("3 5 7 1e1 -> 24", "is not a Countdown puzzle"),
    ],
)
def test_what_is_not_taken(text: str, said: str) -> None:
    with pytest.raises(TaskError) as caught:
        Countdown(text=text)
    assert said in str(caught.value) and "for example: 3 5 7 11 -> 24" in str(caught.value)
    assert len(str(caught.value)) < 250


def test_prompts_in_the_models_words() -> None:
    assert TASK.render() == "<serial> 8 T24 11 7 5 3 <go>"
    assert TASK.render("threads", 4) == "<parent> 4 T24 11 7 5 3 <go>"
    assert TASK.render("threads", 64) == "<parent> 8 T24 11 7 5 3 <go>"
    assert TASK.render("serial", 1) == "<serial> 2 T24 11 7 5 3 <go>"
    assert TASK.render("direct") == "<direct> T24 11 7 5 3 <go>"
    assert not TASK.chat()


def test_widths_that_the_model_was_not_trained_for_are_asked_for_only_on_request() -> None:
    free = Countdown(text=TASK.text, any_width=True)
    assert [free.render("threads", width).split()[1] for width in (0, 1, 9, 10, 500)] == ["1", "1", "9", "10", "127"]
    assert free.render("serial", 1) == "<serial> 1 T24 11 7 5 3 <go>"
    assert free.render("direct", 1) == TASK.render("direct", 1)


@pytest.mark.parametrize(
    "text",
    [
        "<hit> 7 - 3 = 4 ; 11 - 5 = 6 ; 6 * 4 = 24 <end>",
        " <hit> 7 - 3 = 4 ; 11 - 5 = 6 ; 6 * 4 = 24",  # engines that hide the end token
        "7 - 3 = 4 ; 11 - 5 = 6 ; 6 * 4 = 24 <end>",
        "<try> 7 - 3 = 4 | 11 5 4 <go> 11 - 5 = 6 | 4 + 10 <lo> * 24 <hit> 7 - 3 = 4 ; 11 - 5 = 6 ; 6 * 4 = 24 <end>",
        "7-3=4;11-5=6;6*4=24",
        json.dumps(RIGHT),
    ],
)
def test_claims(text: str) -> None:
    assert TASK.extract(text) == RIGHT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<none> <end>",
        "<hit>",
        "<hit> <end>",
        "<hit> 7 - 3 = 4 ; 11 - 5 =",
        "<hit> 7 - 3 = 4 ; 11 - 5 = 6 ; 6 * 4 = 24 <end> <hit> ?",
        "<hit> 7 - 3 = 4 ; 11 - 5 = 6 <none> <end>",
        "<try> 7 - 3 = 4 | 11 5 4 <go> 11 - 5 = 6",
        "<spawn> 7 - 3 = 4 | 11 5 <wait>",
        "null",
        "[",
        "[]",
        "[1]",
        '["7-3"]',
        '{"a": 1}',
        "[" * 399,
        "1 + 1 = 2 ; " * 1000,
        "9" * 100_000,
    ],
)
def test_no_claim(text: str) -> None:
    assert TASK.extract(text) is None


@pytest.mark.parametrize(
    "wrong",
    [
        ["7-3=4", "11-5=6", "6*4=25"],
        ["7-3=4", "11-5=6"],
        ["7-3=4", "11-5=6", "6*4=24", "24/1=24"],
        ["7-3=4", "7-3=4", "4*4=16"],
        ["3*7=21", "21+3=24", "24*1=24"],
        ["11+7=18", "18+5=23", "23+3=26"],
        ["7/3=2", "11+5=16", "16+2=18"],
        ["5-5=0", "24/0=0", "0+0=0"],
        [],
        None,
        "24",
        [["7-3=4"]],
        ["999999999*999999999=1", "1+1=2", "2*12=24"],
        ["9" * 10_000 + "+1=2"] * 3,
        ["__import__('os')"] * 3,
    ],
)
def test_wrong_answers(wrong) -> None:
    assert TASK.verify(wrong) is False
    assert isinstance(TASK.key(wrong), str) and len(TASK.key(wrong)) <= 401


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("24 1 2 3 -> 24", ["2-1=1"]),  # the target is there, but the rest is not used
        ("24 1 2 3 -> 24", ["24*1=24"]),
        ("3 5 7 11 -> 18", ["7/3=2", "11+5=16", "16+2=18"]),  # right but for a division that is not exact
    ],
)
def test_wrong_answers_that_end_in_the_target(text: str, wrong: list[str]) -> None:
    assert Countdown(text=text).verify(wrong) is False


def test_right() -> None:
    assert TASK.verify(RIGHT) is True
    assert TASK.verify(["11-5=6", "7-3=4", "4*6=24"]) is True
    assert TASK.explain(RIGHT) == "7 − 3 = 4, 11 − 5 = 6, 6 × 4 = 24"
    assert TASK.explain(None) == "no answer"


# --- against a brute-force solver ------------------------------------------------------------------------------------


def every_line(numbers: list[int]):
    """All lists of exact steps on non-negative integers, as (a, op, b, c) in any order of operands."""
    if len(numbers) == 1:
        yield [], numbers[0]
        return
    for i, j in itertools.permutations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        rest = [n for at, n in enumerate(numbers) if at not in (i, j)]
        for op in "+-*/":
            if op == "/" and b == 0:
                continue
            value = {"+": Fraction(a + b), "-": Fraction(a - b), "*": Fraction(a * b)}.get(op)
            value = Fraction(a, b) if value is None else value
            if value.denominator == 1 and value >= 0:
                for more, end in every_line([*rest, int(value)]):
                    yield [f"{a}{op}{b}={value}", *more], end


def value_of(expression: str) -> Fraction:
    """Evaluate a canonical key by a small parser of its own."""
    at = 0

    def part() -> Fraction:
        nonlocal at
        if expression[at] != "(":
            start = at
            while at < len(expression) and expression[at].isdigit():
                at += 1
            return Fraction(int(expression[start:at]))
        at += 1
        total = Fraction(0) if expression[at] in "+-" else Fraction(1)
        while expression[at] != ")":
            op = expression[at]
            at += 1
            value = part()
            sums = {"+": total + value, "-": total - value, "*": total * value}
            total = sums[op] if op in sums else total / value
        at += 1
        return total

    return part()


@pytest.mark.parametrize("numbers", [(1, 2, 3, 4), (6, 6, 2, 5), (25, 25, 1, 12)])
def test_every_list_of_steps_is_judged_as_brute_force_does(numbers: tuple[int, ...]) -> None:
    rng = random.Random(1)
    lines = list(every_line(list(numbers)))
    ends = {end for _, end in lines}
    target = next(t for t in range(24, 101) if t in ends)
    task = Countdown(text=f"{' '.join(map(str, numbers))} -> {target}")
    for steps, end in rng.sample(lines, min(3000, len(lines))):
        assert task.verify(steps) is (end == target), steps
        assert task.extract(as_text(steps)) == steps
        key = task.key(steps)
        assert value_of(key) == end, (steps, key)
    right = [steps for steps, end in lines if end == target]
    assert right and all(task.verify(steps) for steps in right[:500])


@given(st.data())
def test_one_changed_number_is_found_out(data: st.DataObject) -> None:
    place, digit = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 40))
    words = RIGHT[place].replace("=", " = ").replace("-", " - ").replace("*", " * ").split()
    at = data.draw(st.sampled_from([0, 2, 4]))
    changed = list(RIGHT)
    changed[place] = "".join([*words[:at], str(digit), *words[at + 1 :]])
    assert TASK.verify(changed) is (int(words[at]) == digit)


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("3 5 7 11 -> 24", [RIGHT, ["11-5=6", "7-3=4", "4*6=24"], ["7-3=4", "11-5=6", "4*6=24"]]),
        ("1 2 3 4 -> 10", [["4+3=7", "7+2=9", "9+1=10"], ["1+2=3", "4+3=7", "7+3=10"], ["1+4=5", "3+2=5", "5+5=10"]]),
        ("9 8 3 2 -> 12", [["8-3=5", "9-5=4", "4*3=12"]]),
        (
            "20 9 4 3 -> 18",
            [["9-4=5", "20-5=15", "15+3=18"], ["20-9=11", "11+4=15", "15+3=18"], ["20+3=23", "9-4=5", "23-5=18"]],
        ),
        (
            "24 8 4 2 -> 24",
            [["8/4=2", "24/2=12", "12*2=24"], ["24/8=3", "3*4=12", "12*2=24"], ["4*2=8", "24*8=192", "192/8=24"]],
        ),
    ],
)
def test_equal_solutions_have_one_key(text: str, same: list[list[str]]) -> None:
    task = Countdown(text=text)
    assert len({task.key(steps) for steps in same}) == 1, [task.key(steps) for steps in same]


def test_other_solutions_have_other_keys() -> None:
    task = Countdown(text="1 2 3 4 -> 10")
    others = [
        ["4+3=7", "7+2=9", "9+1=10"],
        ["4*2=8", "8+3=11", "11-1=10"],
        ["4*3=12", "12/1=12", "12-2=10"],
        ["1+1=2"],
        None,
    ]
    assert len({task.key(steps) for steps in others}) == len(others)


@given(
    st.one_of(
        st.text(max_size=100),
        st.lists(st.sampled_from(["<hit>", "<end>", ";", "1", "+", "=", "3 + 5 = 8", "["])).map(" ".join),
    )
)
def test_whatever_is_extracted_is_stable(text: str) -> None:
    answer = TASK.extract(text)
    if answer is not None:
        assert TASK.extract(as_text(answer)) == answer
        TASK.key(answer)
        TASK.verify(answer)
