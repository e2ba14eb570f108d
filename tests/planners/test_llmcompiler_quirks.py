"""One plan for each quirk of plans that models and shipped prompts write; what it is read as, and what was forgiven."""

from __future__ import annotations

from typing import Any

import pytest

from plait.planners.tools.llmcompiler import LLMCompiler


def ref(step: str) -> dict[str, str]:
    return {"$ref": step}


def text(*pieces: Any) -> dict[str, Any]:
    return {"$text": list(pieces)}


Args = dict[str, Any]
QUIRKS: dict[str, tuple[str, list[tuple[str, str, Args]], tuple[str, ...]]] = {
    "two kinds of quotes, an escaped one, and none at all": (
        '1. search("a")\n2. search(\'b\')\n3. search("say \\"c\\"")\n'
        "5. search(Austin Powers International Man of Mystery)\n6. now()\n7. join()",
        [
            ("1", "search", {"arg0": "a"}),
            ("2", "search", {"arg0": "b"}),
            ("3", "search", {"arg0": 'say "c"'}),
            ("5", "search", {"arg0": "Austin Powers International Man of Mystery"}),
            ("6", "now", {}),
        ],
        ("text without quotes",),
    ),
    "parentheses in strings and without quotes": (
        '1. search("First for Women (magazine)")\n2. search(Arthur (magazine) of (1844))\n3. join()',
        [
            ("1", "search", {"arg0": "First for Women (magazine)"}),
            ("2", "search", {"arg0": "Arthur (magazine) of (1844)"}),
        ],
        (),
    ),
    "the closing parenthesis is missing, as in a shipped example": (
        '1. search("a"\n2. math("x", ["$1"]\n3. join()',
        [("1", "search", {"arg0": "a"}), ("2", "math", {"arg0": "x", "arg1": [ref("1")]})],
        ("')' was missing",),
    ),
    "references bare, inside text, in lists, in objects, and of outputs": (
        '1. a()\n2. b($1, ${1})\n3. c("max($1, $2) / min(${1})")\n'
        '4. d(["$1", \'$2\'], {"k": {"j": "$1.output"}})\n5. join()',
        [
            ("1", "a", {}),
            ("2", "b", {"arg0": ref("1"), "arg1": ref("1")}),
            ("3", "c", {"arg0": text("max(", ref("1"), ", ", ref("2"), ") / min(", ref("1"), ")")}),
            ("4", "d", {"arg0": [ref("1"), ref("2")], "arg1": {"k": {"j": ref("1")}}}),
        ],
        (),
    ),
    "keywords in any order, and the broken quotes of a shipped description": (
        '1. search("X")\n2. math(context=["$1"], problem="a, context=b")\n'
        '3. math("age of X, context=["$1"])\n4. join()',
        [
            ("1", "search", {"arg0": "X"}),
            ("2", "math", {"context": [ref("1")], "problem": "a, context=b"}),
            ("3", "math", {"arg0": "age of X", "context": [ref("1")]}),
        ],
        ("a quote was missing",),
    ),
    "references to nothing, to itself and to later tasks, and money": (
        '1. a("$1 and $9")\n2. b("it costs $15 or $1.50")\n3. c("about $4")\n4. d()\n5. join()',
        [
            ("1", "a", {"arg0": "$1 and $9"}),
            ("2", "b", {"arg0": "it costs $15 or $1.50"}),
            ("3", "c", {"arg0": "about $4"}),
            ("4", "d", {}),
        ],
        (),
    ),
    "no join, and an end that is misspelt": ("1. a()\n<END_OFPLAN>\n2. b()", [("1", "a", {})], ("join was missing",)),
    "what stands after the end": (
        "1. a()\n2. join()<END_OF_PLAN>\n3. b()\n###\nQuestion: another?\n1. c()",
        [("1", "a", {})],
        (),
    ),
    "blank lines, spaces, other numbers, fences, odd names, comments, strings over lines": (
        'Here is it:\n```\n\n  1) get-page("a")\n- 2. a.b("x\ny") # why\n**3.** c()\n```\n4. join()',
        [("1", "get-page", {"arg0": "a"}), ("2", "a.b", {"arg0": "x\ny"}), ("3", "c", {})],
        ("numbered '  1) '", "code fence"),
    ),
    "a thought before its action, and numbers that do not begin at 1": (
        "Thought: first\n7. a()\nThought: then\n9. b($7)\n10. join()",
        [("7", "a", {}), ("9", "b", {"arg0": ref("7")})],
        (),
    ),
}


@pytest.mark.parametrize("quirk", QUIRKS)
def test_a_quirk_is_read_as_it_was_meant(quirk: str) -> None:
    plan, tasks, said = QUIRKS[quirk]
    made: Any = LLMCompiler().parse(plan)
    assert [(each["name"], each["tool"], each["args"]) for each in made["steps"][:-1]] == tasks
    assert made["steps"][-1]["needs"] == [name for name, _, _ in tasks], "the join reads every task that there is"
    for part in said:
        assert any(part in repair for repair in made["repairs"]), made["repairs"]


def test_of_two_tasks_with_a_number_the_last_is_meant() -> None:
    made: Any = LLMCompiler().parse('1. a("x")\n1. a("y")\n2. b($1)\n3. join()')
    (last,) = [step for step in made["steps"] if step["tool"] == "b"]
    (meant,) = [step for step in made["steps"] if step["args"] == {"arg0": "y"}]
    assert last["needs"] == [meant["name"]]
