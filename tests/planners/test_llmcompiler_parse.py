"""Plans as models write them: every way of writing is read, in whatever pieces it comes, and nothing is executed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.plan import Plan
from plait.core.result import Result
from plait.core.tools.tool import tool
from plait.core.values import json_references, substitute
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.planners.tools.llmcompiler.arguments import parse_arguments, read_plain
from plait.planners.tools.llmcompiler.parser import PlanText
from plait.planners.tools.llmcompiler.reader import UNREAD, PlanReader


def parse(text: str, *tools) -> dict:
    return LLMCompiler().parse(text, [tool(each).spec for each in tools])


def ref(name: str) -> dict:
    return {"$ref": name}


def one(line: str, *tools) -> dict:
    """The arguments of the last task of a plan."""
    return parse(line, *tools)["steps"][-2]["args"]


def search(query: str, k: int = 5) -> str:
    """Look something up."""
    return query * k


def math(problem: str, context: list[str] | None = None) -> float:
    """Compute something."""
    return len(problem + "".join(context or []))


def lookup(table: str, row: int) -> str:
    """Read a cell."""
    return table * row


CLEAN = """\
Thought: two facts are needed
1. search("Mont Blanc")
2. search("Zugspitze")
3. math("max($1, $2)", context=["$1", "$2"])
4. join()<END_OF_PLAN>
"""


def test_a_clean_plan_needs_no_repair():
    said = parse(CLEAN, search, math)
    assert said["repairs"] == said["errors"] == []
    assert [(s["name"], s["tool"], s["needs"]) for s in said["steps"]] == [
        ("1", "search", []),
        ("2", "search", []),
        ("3", "math", ["1", "2"]),
        ("4", "join", ["1", "2", "3"]),
    ]
    assert said["steps"][2]["args"] == {
        "problem": {"$text": ["max(", {"$ref": "1"}, ", ", {"$ref": "2"}, ")"]},
        "context": [{"$ref": "1"}, {"$ref": "2"}],
    }
    plan = Plan.model_validate(said["plan"])
    assert plan.output == "4"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"it\'s here"', "it's here"),
        ("'say \"yes\"'", 'say "yes"'),
        ("'Schindler's List'", "Schindler's List"),
        ('"the "big" one"', 'the "big" one'),
        (r'"a \"quoted\" word"', 'a "quoted" word'),
        (r'"two\nlines and a \d"', "two\nlines and a \\d"),
        ('"First for Women (magazine)"', "First for Women (magazine)"),
        ("Austin Powers International Man of Mystery", "Austin Powers International Man of Mystery"),
        ("Paris, Texas (film)", "Paris, Texas (film)"),
        ("First for Women (magazine)", "First for Women (magazine)"),
        ('"""three\nquotes"""', "three\nquotes"),
        ('"one\ntwo\n\n1. three"', "one\ntwo\n\n1. three"),
        ('"1. f(x)\n2. g(y)"', "1. f(x)\n2. g(y)"),
        ('"$15 or $1.50, $1,000, $1M, $HOME, $(rm -rf /)"', "$15 or $1.50, $1,000, $1M, $HOME, $(rm -rf /)"),
    ],
)
def test_text_arguments(written, meant):
    assert one(f"1. other()\n2. other()\n3. search({written})\n4. join()")["arg0"] == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("", {}),
        ("[1, 2]", {"arg0": [1, 2]}),
        ("1, -2.5, 1e3, true, None", {"arg0": 1, "arg1": -2.5, "arg2": 1000.0, "arg3": True, "arg4": None}),
        ("{'a': {\"b\": [1]}}", {"arg0": {"a": {"b": [1]}}}),
        ("b=2, a='x'", {"a": "x", "b": 2}),
        ("'p', k=3", {"arg0": "p", "k": 3}),
        ("[\n  1,\n  2\n]", {"arg0": [1, 2]}),
        ("9" * 5000, {"arg0": "9" * 5000}),
        ("1e9999", {"arg0": "1e9999"}),
    ],
)
def test_arguments_of_other_kinds(written, meant):
    assert one(f"1. f({written})\n2. join()") == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("$1", {"$ref": "1"}),
        ("${1}", {"$ref": "1"}),
        ('"$1"', {"$ref": "1"}),
        ("$1.output", {"$ref": "1"}),
        ("'${1}.output'", {"$ref": "1"}),
        ('"is $1, or ${2}?"', {"$text": ["is ", {"$ref": "1"}, ", or ", {"$ref": "2"}, "?"]}),
        ("$1 + $2", {"$text": [{"$ref": "1"}, " + ", {"$ref": "2"}]}),
        ("['$1', $2]", [{"$ref": "1"}, {"$ref": "2"}]),
        ("{'a': ['$1', {'b': '$2'}]}", {"a": [{"$ref": "1"}, {"b": {"$ref": "2"}}]}),
        ("${1.output}", {"$ref": "1"}),
        ('{"$ref": "1"}', {"$literal": {"$ref": "1"}}),
        ('{"$text": ["$1"]}', {"$literal": {"$text": ["$1"]}}),
    ],
)
def test_references(written, meant):
    assert one(f"1. a()\n2. b()\n3. f({written})\n4. join()")["arg0"] == meant


def test_what_a_model_writes_in_the_language_of_references_is_read_as_its_own_words():
    args = one('1. a()\n2. f({"$ref": "1"})\n3. join()')
    assert list(json_references(args)) == []
    assert substitute(args, {}) == {"arg0": {"$ref": "1"}}


def test_a_parameter_that_takes_a_string_gets_one():
    assert one("1. search(2024)\n2. join()", search) == {"query": "2024"}
    args = one('1. search("x")\n2. search($1)\n3. join()', search)
    assert substitute(args, {"1": {"a": 1}}) == {"query": '{"a":1}'}
    args = one('1. search("x")\n2. math("p", ["$1"])\n3. join()', search, math)
    assert args["context"] == [{"$ref": "1"}]  # may be null too: the value stays typed


def test_text_without_quotes_is_split_only_where_the_tool_must_have_as_many_arguments():
    assert one("1. search(Paris, Texas)\n2. join()", search) == {"query": "Paris, Texas"}
    assert one("1. lookup(cities, 3)\n2. join()", lookup) == {"table": "cities", "row": 3}


@pytest.mark.parametrize(
    "line",
    ['1) f("x")', '- 1. f("x")', '**1.** f("x")', '  1. f("x")', '1. `f`("x")', '1. f("x"', '1. f("x)', '* 1: f("x"),',
     '1. f("x") # why (not)', '1. f("x").', '1.f("x")', '**1. f("x")**', '<think>\n1. g("y")\n</think>\n1. f("x")',
     'Sure, here is a plan:\n```\n1. f("x")\n```'],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_styles_of_a_line(line, newline):
    said = parse(newline.join([*line.split("\n"), "2. join()", ""]))
    assert [(s["name"], s["tool"], s["args"]) for s in said["steps"]] == [
        ("1", "f", {"arg0": "x"}),
        ("2", "join", {}),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('1. f("x"\n2. join()', "task 1: ')' was missing at the end"),
        ('1) f("x")\n2. join()', "task 1: numbered '1) '"),
        ('1. f("x")', "join was missing"),
        ('1. f("x")\njoin()', "join had no number"),
        ('1. f("x")\n2. join', "task 2: '()' was missing after join"),
        ('1. f("x")\n2. join()<END_OFPLAN>', "'<END_OFPLAN>' taken as the end of the plan"),
        ('1. f("x") 2. g("y")\n3. join()', "two tasks stood on one line"),
        ('1. f("x")\n1. f("x")\n2. join()', "task 1: written twice, run once"),
        ('1. f("x")\n1. g("y")\n2. join()', "task 1: a second task has this number; later references mean 1-2"),
        ("1. f('x', 'y'))\n2. join()", "task 1: there was one ')' too many"),
        ("1. f(some words)\n2. join()", "task 1: text without quotes taken as one argument"),
        ('1. f("abc\n2. g("x")\n3. join()', "task 1: a string or bracket had no end"),
        ('hello\n1. f("x")\n2. join()', "a line that is no task was left out: 'hello'"),
    ],
)
def test_what_was_repaired_is_reported(text, said):
    # A missing '<END_OF_PLAN>' mark alone is no fault: servers cut stop texts off.
    assert said in parse(text)["repairs"]


@pytest.mark.parametrize(
    ("text", "error", "run"),
    [
        ("1. f(${4})\n2. join()", "1. f(${4}): ${4} refers to no earlier task", []),
        ("1. f($1)\n2. join()", "1. f($1): $1 refers to itself", []),
        ('2. f("$1")\n3. join()', '2. f("$1"): $1 refers to no earlier task', []),
        ('1. f("x")\n3. g("max($1, $2)")\n4. join()', '3. g("max($1, $2)"): $2 refers to no earlier task', ["1"]),
        ('1. f("x")\n2. then I add them up\n3. join()', f"2. then I add them up: {UNREAD}", ["1"]),
        ('1. f("x") and g("y")\n2. join()', f'and g("y"): {UNREAD}', ["1"]),
        ('f("x")\n2. join()', f'f("x"): {UNREAD}', []),
    ],
)
def test_a_dangling_reference_or_an_unread_line_is_an_error_and_not_run(text, error, run):
    said = parse(text)
    assert error in said["errors"]
    assert [step["name"] for step in said["steps"][:-1]] == run


@pytest.mark.parametrize("between", ["; ", ";", " ", ", ", " & ", " | "])
def test_several_tasks_on_one_line(between):
    said = parse(between.join(['1. f("a (b)")', '2. g("$1")', "3. join()"]))
    assert [(step["name"], step["needs"]) for step in said["steps"]] == [("1", []), ("2", ["1"]), ("3", ["1", "2"])]
    assert said["errors"] == []


def test_a_result_that_is_given_a_name_is_meant_by_it():
    said = parse('1. area = f("x")\n2. g($area)\n3. h("${area} km2", area)\n4. i("$1")\n5. join()')
    args = [step["args"] for step in said["steps"][1:4]]
    assert args == [{"arg0": ref("1")}, {"arg0": {"$text": [ref("1"), " km2"]}, "arg1": ref("1")}, {"arg0": ref("1")}]


@pytest.mark.parametrize("written", ["$1.output", "${1}.output", "${1.output}", '"${1.output}"'])
def test_references_to_outputs(written):
    assert one(f'1. f("x")\n2. g({written})\n3. join()') == {"arg0": ref("1")}


def test_the_first_join_ends_the_plan_and_what_follows_is_not_read():
    for end in ("3. join()", "3. join()<END_OF_PLAN>", "<END_OF_PLAN>", "###", "Question: another?"):
        said = parse(f'1. f("x")\n2. g("y")\n{end}\n4. rm("everything")\nQuestion: more?\n1. h("z")\n')
        assert [step["tool"] for step in said["steps"]] == ["f", "g", "join"], end


def test_a_second_task_of_a_number_is_what_later_references_mean():
    steps = parse("1. a()\n1. b()\n2. f($1)\n3. join()")["steps"]
    assert [(step["name"], step["tool"]) for step in steps[:3]] == [("1", "a"), ("1-2", "b"), ("2", "f")]
    assert steps[2]["needs"] == ["1-2"]


def test_tasks_are_given_at_their_newline_and_strings_with_lines_when_they_close():
    text = PlanText()
    assert text.feed('1. f("x")') == []
    assert [task.id for task in text.feed("\n2. g")] == [1]
    assert text.feed('("one\ntwo\n') == []
    assert [task.id for task in text.feed('three")\n')] == [2]
    assert [task.id for task in text.feed("3. h(missing\n4. i(\n")] == [3]
    assert [task.is_join for task in text.feed("5. join()\n")] == [False, True]


def test_a_task_that_was_cut_off_is_not_run():
    # The rest of the argument is unknown: half a path is another path.
    for text in ('1. f("x")\n2. delete("/data/me', '1. f("x")\n2. delete(/data/me', '1. f("x")\n2. delete("a", ["b"'):
        parser = PlanText()
        tasks = [*parser.feed(text), *parser.close(cut=True)]
        assert [task.tool for task in tasks] == ["f"]
        assert "not run" in parser.repairs[-1]


def shape(reader: PlanReader) -> tuple:
    return (
        [step.model_dump() for step in reader.steps],
        reader.join,
        reader.errors,
        reader.repairs,
        reader.text.repairs,
    )


def read(pieces: list[str], planner: LLMCompiler | None = None) -> tuple:
    reader = PlanReader.of_text(planner or LLMCompiler(), ())
    for piece in pieces:
        reader.feed(piece)
    reader._take(reader.text.close())
    return shape(reader)


LINES = st.sampled_from(
    [*CLEAN.splitlines(), '4. f("two', 'lines")', "5) g(a (b, 'c'", '6. h([1, "$1"', "]", "**7.** i($1.output)",
     "```", "<think>", "</think>", '1. f("x") 2. g("y")', "3. join", "<END_OF_PLAN>", "8. j('it's', k=\"$2\")", "",
     '"""', '9. k("""', "10. x(\\", '\\")', "1. f(1) )))"]
)  # fmt: skip
MESS = st.text(alphabet="12. )(\"'$[]{}ab,=\n\\#<>`", max_size=60)


@given(st.lists(st.one_of(LINES, MESS), max_size=15), st.lists(st.integers(0, 400), max_size=20))
def test_every_way_of_cutting_a_text_gives_the_same_plan(lines, cuts):
    text = "\n".join(lines)
    at = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in zip(at, at[1:], strict=False)]
    assert read(pieces) == read([text]) == read(list(text))


ATOMS = st.one_of(
    st.text(alphabet="ab $1(),[]=' #<", max_size=8).map(lambda text: f'"{text}"'),
    st.integers(-1000, 1000).map(str),
    st.sampled_from(["$1", "${2}"]),
)


@given(st.lists(st.one_of(ATOMS, st.lists(ATOMS, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
                          ATOMS.map(lambda atom: f"k={atom}")), max_size=4))  # fmt: skip
def test_the_short_cut_says_what_the_parser_says(items):
    raw = ", ".join(items)
    quick = read_plain(f"{raw})", 0)
    if quick is not None:
        slow = parse_arguments(raw)
        assert [(item.key, item.value) for item in quick.items] == [(item.key, item.value) for item in slow.items]


@given(st.text(max_size=300))
def test_any_text_is_read_without_complaint(text):
    said = parse(text)
    json.dumps(said)
    if said["plan"] is not None:
        Plan.model_validate(said["plan"])


@pytest.mark.parametrize(
    "text",
    ["1. f(" + "[" * 100_000, "1. f(" + "(" * 100_000 + ")" * 100_000, '1. f("' + '\\"' * 100_000, '1. f("' * 30_000,
     "1. f(" + "'" * 200_000, "1. f(" + ") " * 100_000, '1. f("a\n' + "b\n" * 50_000, "1" * 500_000 + ". f()",
     "\n" * 300_000, "$1" * 100_000, "1. f(" + "$1, " * 60_000, "1. f(a" + '" ' * 100_000, " " * 500_000,
     "1. f([" + "{'a':" * 50_000, '1. f("' + "\n1. f(" * 40_000, "<END" * 100_000, "1. f(" + "a=" * 100_000],
    ids=range(17),
)  # fmt: skip
def test_hostile_texts_take_linear_time(text):
    started = time.process_time()
    parse(text)
    assert time.process_time() - started < 5  # each is done in well under a second; quadratic time takes minutes


def test_ten_thousand_tasks_of_one_number_are_one_task():
    said = parse('1. f("x")\n' * 10_000)
    assert [step["name"] for step in said["steps"]] == ["1", "2"]


def test_a_limit_on_tasks():
    reader = PlanReader.of_text(LLMCompiler(max_branches=3), ())
    said: Any = reader.parsed("".join(f"{i}. f({i})\n" for i in range(1, 50)))
    assert len(said["steps"]) == 4
    assert "more tasks than 3: the others are not run" in said["repairs"]


def test_calls_that_do_not_fit_their_tools_are_errors():
    said = parse('1. serch("x")\n2. search()\n3. search("x", 1, 2)\n4. search("x", depth=3)\n5. math("$2")\n6. join()',
                 search, math)  # fmt: skip
    assert [step["name"] for step in said["steps"]] == ["6"]
    one, two, three, four, five = said["errors"]
    assert "no tool 'serch'; did you mean 'search'?" in one
    assert "search lacks 'query'" in two
    assert "got 3 arguments (it takes query, k)" in three
    assert "no argument 'depth'" in four
    assert "it needs task 2, which is not run" in five
    assert parse('1. Search("x")\n2. join()', search)["errors"] == []


def test_a_reader_ends_a_plan_that_has_no_task():
    reader = PlanReader.of_text(LLMCompiler(), ())
    assert reader.feed("I cannot help with that.") == ()
    assert reader.parsed("")["plan"] is None


def test_a_step_that_is_no_plan_of_this_planner_has_no_reader():
    from plait.core.errors import PlannerError
    from plait.core.interfaces import PlanningContext
    from plait.core.ops import ModelCall
    from plait.core.plan import Step
    from plait.core.request import Request
    from plait.tasks.plain import Plain

    brief = PlanningContext(Request(text="q"), Plain(text="q"), (tool(search).spec,))
    with pytest.raises(PlannerError, match="no reader"):
        LLMCompiler().reader(Step(name="other", op=ModelCall(prompt="x"), expands=True), brief)
    state = {"round": 1, "repair": 0, "numbers": []}
    reader = LLMCompiler().reader(
        Step(name="any", op=ModelCall(prompt="x"), expands=True, role="plan", state=state), brief
    )
    assert reader.feed('1. search("a")\n')[0].steps[0].name == "1"
    last = reader.close(Result(value='1. search("a")\n'))
    assert last is not None
    assert last.output == "answer-1"


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ("awk '$$2 > 5' a", "awk '$2 > 5' a"),
        ("$$1", "$1"),
        ("$${1} and $$$$", "${1} and $$$$"),
        ("echo $$", "echo $$"),
        ("print $$1, $1", {"$text": ["print $1, ", {"$ref": "1"}]}),
        ("$1$$1", {"$text": [{"$ref": "1"}, "$1"]}),
    ],
)
def test_two_dollar_signs_are_one_of_the_text_itself(written: str, query: object) -> None:
    plan = f'1. search(query="x")\n2. search(query={json.dumps(written)})\n3. join()'
    assert one(plan, search) == {"query": query}
