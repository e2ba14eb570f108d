"""The options of the task `plain`: where an answer stands, and when two are the same."""

from __future__ import annotations

import json
import random
import time
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from plait.core.addresses import allow
from plait.core.errors import PluginError, TaskError
from plait.core.ops import Plugin
from plait.runtime.plugins.loader import Plugins
from plait.tasks import _expression
from plait.tasks._expression import canonical
from plait.tasks.plain import Plain


def plain(**options: object) -> Plain:
    return Plain.model_validate({"text": "?", **options})


# --- where it stands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "text", "answer"),
    [
        ("boxed", r"so \boxed{1}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", "the answer is 42", None),
        ("boxed", r"\boxed{never closed", None),
        ("line", "Answer: 1\nAnswer: 42\nBye", "42"),
        ("line", r"\boxed{1}", None),
        ("text", r" all of \boxed{it} ", r"all of \boxed{it}"),
        ("text", " ", None),
    ],
)
def test_only_where_it_is_said_to_stand(how: str, text: str, answer: str | None) -> None:
    assert plain(where=how).extract(text) == answer


@pytest.mark.parametrize(
    ("field", "text", "answer"),
    [
        ("answer", 'first {"answer": 1} then {"answer": 2} and {"other": 3}', 2),
        ("answer", '```json\n{"answer": {"answer": 5}, "why": "{"}\n```', {"answer": 5}),
        ("result.value", '{"result": {"value": [1, 2]}}', [1, 2]),
        ("answer", '{"answer": null}', None),
        ("answer", '{"answer": NaN} {"answer": 1', None),
        ("answer", "no object", None),
        ("answer", '{"answer": "x"} {' * 3, "x"),
    ],
)
def test_a_field_of_the_last_object_that_has_it(field: str, text: str, answer: object) -> None:
    assert plain(where="json", field=field).extract(text) == answer


def test_a_regular_expression() -> None:
    assert plain(where="regex", pattern=r"#\d+").extract("#1 and #22.") == "#22"
    assert plain(where="regex", pattern=r"#(\d+)").extract("#1 and #22.") == "22"
    assert plain(where="regex", pattern=r"(#)(?P<answer>\d+)").extract("#1 and #22.") == "22"
    assert plain(where="regex", pattern=r"#(\d+)").extract("none") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"Is it \boxed{5}? No." "\nAnswer: 7", "7"),
        (r"Is it \boxed{5}? No." "\nThe answer is 7.", "7."),
        (r"Is it \boxed{5}? No." "\nThe answer is - 7", "- 7"),
        (r"Is it \boxed{5}? No." "\n**Answer:** seven", "seven"),
        (r"\boxed{5}" "\nThis answer is what was asked for.", "5"),
        (r"Answer: 5" "\n" r"No: \boxed{7}", "7"),
        (r"The answer is \boxed{7}.", "7"),
    ],
)
def test_what_is_stated_last_is_the_answer(text: str, answer: str) -> None:
    assert plain().extract(text) == answer


def shout(text: str) -> str | None:
    return text.upper() if text else None


allow(f"{__name__}:shout", f"{__name__}:none", "no.such:fn")


def test_a_function_of_the_users() -> None:
    task = plain(where="function", function=f"{__name__}:shout")
    assert task.extract("yes") == "YES" and task.extract("") is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": "regex"}, "needs a `pattern`"),
        ({"where": "regex", "pattern": "("}, "not a regular expression"),
        ({"where": "function"}, "as pkg.mod:fn"),
        ({"where": "function", "function": "no.such:fn"}, "cannot be imported"),
        ({"where": "function", "function": f"{__name__}:none"}, "there is no function 'none'"),
        ({"where": "guess"}, "where"),
        ({"colour": "red"}, "no option 'colour'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], said: str) -> None:
    with pytest.raises((TaskError, PluginError), match=said):
        Plugins().task(Plugin.model_validate({"name": "plain", "options": options}), "?")


@given(st.text(alphabet='{}"answer: 1,\\boxed', max_size=80))
def test_no_text_breaks_an_extraction(text: str) -> None:
    for how in ("auto", "boxed", "line", "text"):
        found = plain(where=how).extract(text)
        assert found is None or isinstance(found, str)
    json.dumps(plain(where="json").extract(text))


def test_many_braces_are_read_in_little_time() -> None:
    began = time.process_time()
    plain(where="json").extract("{" * 50_000)
    plain(where="boxed").extract("\\boxed{" * 20_000)
    assert time.process_time() - began < 5.0


# --- when two are the same --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "same", "other"),
    [
        ({"equal": "exact"}, ["A b", "A b"], "a b"),
        ({}, ["50%", r"50\%", "50.0 %", r"$50\%$"], "50"),
        ({}, ["B", "(B)", r"\text{(B)}", "**(b)**"], "(C)"),
        ({}, [r"\frac{1}{2}", r"\text{\frac{1}{2}}", ".5"], r"\text{\frac{1}{3}}"),
        ({}, ['{"a": 1, "b": [2, 3]}', '{ "b": [2,3],\n "a": 1 }'], '{"a": 1, "b": [3, 2]}'),
        ({"equal": "expression"}, ["(5,100)", "(5, 100)", r"\left(5, 100\right)"], "5100"),
        ({"equal": "expression"}, ["(9,110)", "(9, 110)"], "9,110"),
        ({"equal": "normalised"}, ["1,000.0", "1000", "$1000$", "2000/2"], "1000.1"),
        ({"equal": "number", "tolerance": 0.5}, ["3.1", "2.9", "3", "6/2"], "3.3"),
        ({"equal": "number", "digits": 3}, ["3.1416", "3.14", "3.1399", "314e-2"], "3.15"),
        ({"equal": "number", "digits": 3}, ["0.00012345", "1.23e-4"], "1.24e-4"),
        ({"equal": "number"}, ["50\\%", "50", "50%"], "51"),
        ({"equal": "number", "tolerance": 0.1}, ["no number", "No  number."], "a number"),
        ({"equal": "expression"}, ["2(x+1)", "2x + 2", r"\frac{4x+4}{2}", "x+x+2"], "2x+1"),
        ({"equal": "expression"}, ["yes", "Yes."], "sey"),
        ({"equal": "expression"}, ["-5", "−5", "- 5"], "5"),
    ],
)
def test_equality(options: dict[str, object], same: list[str], other: str) -> None:
    task = plain(**options)
    assert len({task.key(each) for each in same}) == 1
    assert task.key(other) != task.key(same[0])


@pytest.mark.parametrize("equal", ["normalised", "number", "expression"])
def test_mixed_numbers_bare_decimals_and_signs_are_read_as_they_are_written(equal: str) -> None:
    groups = [
        ["1 1/2", "1.5", "3/2", r"1 \frac{1}{2}", r"1\frac{1}{2}", r"1\dfrac{1}{2}", "$1 1/2$", "1 1 / 2"],
        ["11/2", "5.5", "11 / 2", "5 1/2", r"\frac{11}{2}", r"\frac{ 11 }{ 2 }"],
        ["2 1/4", "2.25", r"2\frac{1}{4}"],
        ["21/4", "5.25"],
        ["-1 1/2", "−1.5", "- 1 1/2", r"-1\frac{1}{2}", r"\frac{-3}{2}", "−3/2"],
        [".5", "0.5", "1/2", r"\frac{1}{2}"],
        ["-.5", "−0.5", "-1/2"],
        ["1 1 2"],
        ["."],
    ]
    keys = [{plain(equal=equal).key(text) for text in group} for group in groups]
    assert [len(each) for each in keys] == [1] * len(groups)
    assert len(set().union(*keys)) == len(groups)


@given(st.integers(0, 999), st.integers(0, 999), st.integers(1, 999), st.sampled_from(["", "-", "−"]))
def test_a_mixed_number_is_its_whole_part_and_its_fraction(whole: int, above: int, below: int, sign: str) -> None:
    value = Fraction(whole) + Fraction(above, below)
    for equal in ("normalised", "number", "expression"):
        task = plain(equal=equal)
        right = task.key(str(-value if sign else value))
        for text in (f"{sign}{whole} {above}/{below}", rf"{sign}{whole}\frac{{{above}}}{{{below}}}"):
            assert task.key(text) == right


SAME = [
    ["1/2", "0.5", r"\frac12", r"\dfrac{1}{2}", "2^{-1}", "50/100", r"\left(\frac{1}{2}\right)"],
    [r"\sqrt{8}", r"2\sqrt{2}", r"2\sqrt2", "8^{1/2}", r"\frac{4}{\sqrt{2}}", r"\sqrt{2}\cdot 2"],
    [r"\frac{\sqrt{3}}{3}", r"1/\sqrt{3}", r"\sqrt{1/3}"],
    ["x^2-1", "(x-1)(x+1)", "-1+x^2", "x*x-1"],
    ["3\\pi/4", r"\frac{3\pi}{4}", "0.75π"],
    [r"\sin(x)^2", r"\sin^2(x)", r"\sin^{2} x"],
    ["(1, 2)", r"\left(1,\frac{4}{2}\right)", "(1,2)"],
    [r"\{2, 1\}", r"\{1,2\}"],
    ["x = 5", "5", "$5$"],
    [r"\sqrt{-4}", "2i", "2*i"],
    ["1{,}000".replace("{,}", ","), "1000"],
    ["e^{x+1}", "e^{1+x}"],
    [r"\sqrt[3]{27}", "3"],
    ["2,1", "1, 2"],
]


def test_equal_expressions_have_one_form_and_others_have_another() -> None:
    forms = []
    for group in SAME:
        found = {canonical(each) for each in group}
        assert len(found) == 1 and None not in found, group
        forms += found
    assert len(set(forms)) == len(forms)


DIFFERENT = ["x+1", "x-1", "1-x", "x", "y", "x^2", "2x", "x/2", "2/x", "sqrt(2)", "sqrt(3)", "-sqrt(2)", "i", "-i",
             "pi", "e", "sin(x)", "cos(x)", "sqrt(x)", "2^x", "x^y", "y^x", "sqrt(2)/1048576", "2048", "(1,2)", "(2,1)",
             "[1,2]", "[1,2)", "log(x)", "xy", "1.41421356", "3.14159265358979"]  # fmt: skip


def test_different_expressions_have_different_forms() -> None:
    assert len({canonical(each) for each in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize(
    "text",
    ["", "dog", "the answer", "1 1/2", "1/0", "x+", "(", ")", "2^", r"\frac{1}", "x^^2", "1..2", "(" * 300,
     "x" * 500, r"\unknown{2}", "1,", "__import__('os')", "2)(3"],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    assert canonical(text) is None


def test_powers_cannot_take_long() -> None:
    began = time.process_time()
    for text in (
        "9^{9^{9^9}}",
        "(((9^999)^999)^999)^999",
        "2^{1000}" * 30,
        r"\sqrt{99999999999999999999}",
        "1/3+" * 90 + "1",
    ):
        canonical(text)
    assert time.process_time() - began < 2.0


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> tuple[str, str]:
    """Two ways to write one expression: as it is, and with commuted, bracketed and multiplied-out parts."""
    if depth == 0 or draw(st.booleans()):
        atom = draw(st.sampled_from(["x", "y", "2", "3", "7", "z"]))
        return atom, f"({atom})"
    (a, a2), (b, b2) = draw(trees(depth=depth - 1)), draw(trees(depth=depth - 1))
    match draw(st.sampled_from("+-*d")):
        case "+":
            return f"({a}+{b})", f"({b2}+{a2})"
        case "-":
            return f"({a}-({b}))", f"(-({b2})+{a2})"
        case "d":
            c = draw(st.sampled_from(["x", "y", "5"]))
            return f"{c}({a}+{b})", f"(({c}*({a2}))+({c})({b2}))"
        case _:
            return f"({a})*({b})", f"({b2})({a2})"


@given(trees())
def test_rewriting_changes_nothing(pair: tuple[str, str]) -> None:
    assert canonical(pair[0]) == canonical(pair[1])


@given(st.text(alphabet="0123456789xyi+-*/^(){}[],.= \\fracsqtπ", max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    form = canonical(text)
    assert form is None or form == canonical(text)


def test_numbers_agree_with_floating_point() -> None:
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(rng.choice("123456789") + rng.choice("+-*/") for _ in range(4)) + "1"
        form = canonical(text)
        assert form is not None
        above, _, below = form.partition("/")
        assert int(above) / int(below or 1) == pytest.approx(eval(text))  # our own digits


# --- steps of reasoning -----------------------------------------------------------------------------------------------


def test_steps_are_whole_lines() -> None:
    assert plain().steps("First  do\n\n  THIS \nand th") == ["first do", "this"]
    assert plain().steps("") == []


def test_steps_of_countdown_are_operations_in_one_form() -> None:
    task = Plugins().task(Plugin(name="countdown"), "3 5 7 11 -> 24")
    text = "<try> 11 - 7 = 4 | 5 4 3 <go> 4 * 5 = 20 | 3 + 23 <lo> ; 3+5=8 ; 5 + 4 = 9"
    assert task.steps(text) == ["11-7=4", "5*4=20", "5+3=8"], "the last number may go on"
    assert task.steps(text + " ;")[-1] == "5+4=9"


@pytest.mark.parametrize(
    "text",
    [
        "+".join(rf"\sqrt{{{n}}}" for n in range(9_999_999_900, 9_999_999_922)),
        "1/314159265358979323846264338327950288459",
        "\\sqrt{1/314159265358979323846264338327950288459}",
        "2^{1/314159265358979323846264338327950288459}",
        "1,111" * 30_000,
        "(" * 50_000,
        "2^" * 150,
        "9" * 60 + "^" + "9" * 60,
    ],
)
def test_an_expression_takes_bounded_work_and_never_raises(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-two roots of ten digits once took a minute, and a denominator with no inverse raised in the merge."""
    made = 0

    def counted(*args: object) -> object:
        nonlocal made
        made += 1
        return rational(*args)

    rational = _expression._rational
    monkeypatch.setattr(_expression, "_rational", counted)
    form = plain(equal="expression").key(text)
    assert form == plain(equal="expression").key(text)
    assert made < 1_000, "arithmetic of values is bounded by the length of the text"
